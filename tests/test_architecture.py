"""The rules of docs/architecture.md that can be read off the source."""

import ast
import pathlib

import pytest

pytestmark = pytest.mark.newer_stack

ROOT = pathlib.Path(__file__).parent.parent

# Which modules of the project each room may import. A package stands for all
# of its modules.
MAY_IMPORT = {
    "errors": set(),
    "start_tensorflow": set(),
    "command_line": {"errors"},
    "adapter_bert.folder_lock": {"errors"},
    "adapter_bert.files": {"adapter_bert.folder_lock"},
    "storage": {
        "errors",
        "storage",
        "adapter_bert.folder_lock",
        "adapter_bert.files",
    },
    "metrics": {"errors"},
    "added_tokens": {"errors", "storage"},
    "tokenization": {"added_tokens", "errors", "storage"},
    "subword_tokenization": {
        "added_tokens",
        "errors",
        "storage",
        "tokenization",
    },
    "input_pipeline": {"errors"},
    "optimization": {"errors"},
    "adapter_bert.bert.functional": {"errors"},
    "bert": {"bert", "adapter_bert.bert.functional", "errors", "storage"},
    "modeling": {"bert", "adapter_bert.bert.functional"},
    "monitoring": {"errors", "monitoring", "optimization", "storage"},
    "adapter_bert.methods.base": {"bert", "errors", "modeling", "optimization"},
    "adapter_modeling": {
        "bert",
        "adapter_bert.bert.functional",
        "errors",
        "adapter_bert.methods.base",
        "modeling",
    },
    "methods": {
        "adapter_modeling",
        "bert",
        "adapter_bert.bert.functional",
        "errors",
        "methods",
        "adapter_bert.methods.base",
        "modeling",
        "optimization",
    },
    "adapter_bert.bert.shared_layers": {"bert", "modeling"},
    "task_model": {
        "bert",
        "adapter_bert.bert.shared_layers",
        "errors",
        "adapter_bert.methods.base",
        "modeling",
        "optimization",
    },
    "weights": {
        "added_tokens",
        "bert",
        "errors",
        "adapter_bert.methods.base",
        "modeling",
        "storage",
        "adapter_bert.folder_lock",
        "adapter_bert.files",
        "subword_tokenization",
        "tokenization",
        "weights",
    },
    "tasks": {
        "bert",
        "adapter_bert.bert.functional",
        "errors",
        "input_pipeline",
        "metrics",
        "modeling",
        "monitoring",
        "storage",
        "tasks",
        "tokenization",
    },
    "engines": {
        "bert",
        "engines",
        "errors",
        "input_pipeline",
        "modeling",
        "monitoring",
        "optimization",
        "task_model",
        "weights",
    },
    "adapter_bert.training.parts": {
        "errors",
        "methods",
        "adapter_bert.methods.base",
        "modeling",
        "storage",
        "tokenization",
        "weights",
    },
    "runs": {
        "bert",
        "command_line",
        "engines",
        "errors",
        "input_pipeline",
        "methods",
        "adapter_bert.methods.base",
        "modeling",
        "monitoring",
        "optimization",
        "runs",
        "adapter_bert.training.parts",
        "storage",
        "adapter_bert.folder_lock",
        "adapter_bert.files",
        "task_model",
        "tasks",
        "tokenization",
        "weights",
    },
    "exchange": {
        "adapter_modeling",
        "errors",
        "exchange",
        "methods",
        "adapter_bert.methods.base",
        "modeling",
        "storage",
        "tasks",
        "weights",
    },
    "serving": {
        "bert",
        "adapter_bert.bert.shared_layers",
        "engines",
        "errors",
        "exchange",
        "input_pipeline",
        "methods",
        "adapter_bert.methods.base",
        "modeling",
        "adapter_bert.training.parts",
        "serving",
        "storage",
        "adapter_bert.folder_lock",
        "adapter_bert.files",
        "task_model",
        "tasks",
        "tokenization",
        "weights",
    },
    "adapter_library": {
        "command_line",
        "errors",
        "exchange",
        "modeling",
        "serving",
        "start_tensorflow",
        "storage",
        "task_model",
        "tasks",
        "weights",
    },
    "predict": {
        "errors",
        "monitoring",
        "runs",
        "adapter_bert.training.parts",
        "serving",
        "start_tensorflow",
        "storage",
        "tasks",
    },
    "export_model": {
        "errors",
        "monitoring",
        "runs",
        "adapter_bert.training.parts",
        "serving",
        "start_tensorflow",
    },
    "serve": {"errors", "runs", "serving", "start_tensorflow"},
    # It feeds all that reads what others wrote.
    "soak": {
        "adapter_library",
        "command_line",
        "engines",
        "errors",
        "exchange",
        "methods",
        "modeling",
        "monitoring",
        "predict",
        "run_classifier",
        "run_mlm",
        "run_squad",
        "run_tagger",
        "runs",
        "serve",
        "serving",
        "soak",
        "start_tensorflow",
        "storage",
        "adapter_bert.folder_lock",
        "subword_tokenization",
        "tasks",
        "tokenization",
        "weights",
    },
    "run_classifier": {"errors", "runs", "start_tensorflow", "tasks"},
    "run_mlm": {"errors", "runs", "start_tensorflow", "tasks"},
    "run_squad": {"errors", "runs", "start_tensorflow", "tasks"},
    "run_tagger": {"errors", "runs", "start_tensorflow", "tasks"},
}
FOLDERS = (
    "bert",
    "engines",
    "exchange",
    "methods",
    "monitoring",
    "runs",
    "serving",
    "soak",
    "storage",
    "tasks",
    "weights",
)
# Modules that are rooms of their own: what others of their room stand on, and
# what stands above the model.
OWN_ROOMS = {
    "adapter_bert.bert.functional",
    "adapter_bert.bert.shared_layers",
    "adapter_bert.methods.base",
    "adapter_bert.training.parts",
    "adapter_bert.folder_lock",
    "adapter_bert.files",
}


def room_of(module):
    """The room of a dotted module name."""
    return module if module in OWN_ROOMS else module.split(".")[0]


def sources():
    """(room, path) of every module outside tests and scripts."""
    paths = [*ROOT.glob("*.py")]
    for folder in FOLDERS:
        paths += ROOT.glob(f"{folder}/*.py")
    return [
        (room_of(".".join(path.relative_to(ROOT).with_suffix("").parts)), path)
        for path in paths
    ]


def imported(tree):
    """Dotted names that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # The name may be a module of a package, or what a module holds.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_imported(name):
    """The room of an imported name."""
    for own in OWN_ROOMS:
        if f"{name}.".startswith(f"{own}."):
            return own
    return name.split(".")[0]


@pytest.mark.parametrize(
    "room,path", sources(), ids=lambda value: getattr(value, "name", value)
)
def test_imports_run_downward(room, path):
    assert room in MAY_IMPORT, f"{path} is in no row of the table"
    rooms = {room for room, _ in sources()}
    names = imported(ast.parse(path.read_text()))
    used = set(map(room_imported, names)) & rooms
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
    assert readers == {
        "export_model.py",
        "flags.py",
        "predict.py",
        "run_classifier.py",
        "run_mlm.py",
        "run_squad.py",
        "run_tagger.py",
        "serve.py",
    }


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


def test_beam_is_imported_in_its_room_only():
    """Other environments have none."""
    everywhere = [path for _, path in sources()]
    for folder in ("benchmarks", "scripts", "tests"):
        everywhere += ROOT.glob(f"{folder}/**/*.py")
    users = {
        path.relative_to(ROOT).as_posix()
        for path in everywhere
        for name in imported(ast.parse(path.read_text()))
        if name.split(".")[0] == "apache_beam"
        or name == "adapter_bert.serving.beam"
    }
    assert users == {"adapter_bert/serving/beam.py", "adapter-bert beam"}


def test_no_file_is_long():
    for _, path in sources():
        assert len(path.read_text().splitlines()) <= 520, path


def test_what_describes_something_cannot_be_changed():
    """But for what collects the rows of requests."""
    changeable = set()
    for _, path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            for decorator in map(ast.unparse, node.decorator_list):
                is_frozen = "frozen=True" in decorator
                if decorator.startswith("dataclasses.") and not is_frozen:
                    changeable.add(node.name)
    assert changeable == {"Group", "_Request"}
