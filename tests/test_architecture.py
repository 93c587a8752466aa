"""The rules of docs/architecture.md that can be read off the source."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# Which modules of the project each room may import. A package stands for all
# of its modules.
MAY_IMPORT = {
    "errors": set(),
    "files": {"errors"},
    "metrics": {"errors"},
    "tokenization": {"errors", "files"},
    "input_pipeline": {"errors"},
    "optimization": {"errors"},
    "operations": {"errors"},
    "hooks": {"errors", "operations"},
    "modeling": {"errors", "files", "hooks", "operations"},
    "progress": {"errors", "optimization"},
    "methods": {
        "errors",
        "hooks",
        "methods",
        "modeling",
        "operations",
        "optimization",
    },
    "adapter_modeling": {"errors", "methods"},
    "task_model": {"errors", "hooks", "methods", "modeling", "optimization"},
    "run_record": {"errors", "files"},
    "checkpoints": {"errors", "files", "modeling", "run_record"},
    "adapter_artifact": {"checkpoints", "errors", "files", "run_record"},
    "tasks": {
        "errors",
        "files",
        "hooks",
        "input_pipeline",
        "metrics",
        "modeling",
        "progress",
        "tasks",
        "tokenization",
    },
    "engines": {
        "checkpoints",
        "engines",
        "errors",
        "hooks",
        "input_pipeline",
        "modeling",
        "optimization",
        "progress",
        "task_model",
    },
    "preparation": {
        "adapter_artifact",
        "adapter_modeling",
        "checkpoints",
        "engines",
        "errors",
        "files",
        "input_pipeline",
        "methods",
        "modeling",
        "optimization",
        "run_record",
        "task_model",
        "tasks",
        "tokenization",
    },
    "experiment": {
        "adapter_artifact",
        "checkpoints",
        "engines",
        "errors",
        "files",
        "input_pipeline",
        "modeling",
        "optimization",
        "preparation",
        "progress",
        "run_record",
        "task_model",
    },
    "run_flags": {
        "adapter_modeling",
        "engines",
        "errors",
        "input_pipeline",
        "preparation",
        "tasks",
    },
    "run_classifier": {
        "errors",
        "experiment",
        "preparation",
        "run_flags",
        "tasks",
    },
    "run_squad": {"errors", "experiment", "preparation", "run_flags", "tasks"},
}


def sources():
    """(room, path) of every module outside tests and scripts."""
    paths = [*ROOT.glob("*.py"), *ROOT.glob("tasks/*.py")]
    paths += [*ROOT.glob("engines/*.py"), *ROOT.glob("methods/*.py")]
    return [
        (
            path.stem if path.parent == ROOT else path.parent.name,
            path,
        )
        for path in paths
    ]


def imported(tree):
    """Top-level names that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


@pytest.mark.parametrize(
    "room,path", sources(), ids=lambda value: getattr(value, "name", value)
)
def test_imports_run_downward(room, path):
    assert room in MAY_IMPORT, f"{path} is in no row of the table"
    rooms = {room for room, _ in sources()}
    used = set(imported(ast.parse(path.read_text()))) & rooms
    assert used <= MAY_IMPORT[room]


def test_the_table_has_no_cycle():
    done = set()
    while len(done) < len(MAY_IMPORT):
        ready = {
            room
            for room, below in MAY_IMPORT.items()
            if room not in done and below - {room} <= done
        }
        assert ready, f"a cycle among {set(MAY_IMPORT) - done}"
        done |= ready


def attributes(path):
    """Dotted names that a module's code mentions, as `tf.distribute`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, (ast.ImportFrom, ast.Import)):
            yield from (alias.name for alias in node.names)


def test_flags_are_read_in_entry_points_only():
    readers = {
        path.name for _, path in sources() if "FLAGS" in attributes(path)
    }
    assert readers == {"run_flags.py", "run_classifier.py", "run_squad.py"}


@pytest.mark.parametrize("name", ["TPUEstimator", "estimator.Estimator"])
def test_estimators_are_named_in_their_engine_only(name):
    users = {
        path.name
        for _, path in sources()
        if any(name in attribute for attribute in attributes(path))
    }
    assert users <= {"estimator.py"}


def test_tf_distribute_is_named_in_engines_only():
    users = {
        path.parent.name
        for _, path in sources()
        if any(a.startswith("tf.distribute") for a in attributes(path))
    }
    assert users == {"engines"}


def test_no_file_is_long():
    for _, path in sources():
        assert len(path.read_text().splitlines()) <= 520, path
