"""The rules of docs/architecture.md that can be read off the source."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.newer_stack

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = "adapter_bert"
# A room imports from those before it.
ROOMS = (
    "errors",
    "command_line",
    "environments",
    "flags",
    "flag_page",
    "keywords",
    "start_tensorflow",
    "folder_lock",
    "json_lines",
    "files",
    "graph_building",
    "optimization",
    "progress",
    "bert",
    "methods",
    "data",
    "tasks",
    "checkpoints",
    "exchange",
    "training",
    "accelerators",
    "answering",
    "library",
    "graph",
    "server",
    "reports",
    "upstream",
    "commands",
    "api",
    "sklearn",
    "__main__",
)


def module_of(path):
    """The dotted name of a module of the project."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources():
    """Every module of the package, with its dotted name."""
    return {
        module_of(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))
    }


def imported(path):
    """Dotted names that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # The name may be a module of a package, or what a module holds.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def edges():
    """(importing, imported) modules of the package."""
    modules = sources()
    for module, path in modules.items():
        for name in imported(path):
            below = name if name in modules else name.rpartition(".")[0]
            if below in modules and below != module:
                yield module, below


def room_of(module):
    """The place of a module's room in `ROOMS`."""
    _, _, within = module.partition(".")
    return ROOMS.index(within.partition(".")[0]) if within else -1


def test_imports_run_downward():
    upward = [pair for pair in edges() if room_of(pair[0]) < room_of(pair[1])]
    assert not [pair for pair in upward if pair[0] != PACKAGE]


def test_no_modules_import_one_another():
    below = {}
    for module, other in edges():
        below.setdefault(module, set()).add(other)
    done = set()
    while len(done) < len(sources()):
        ready = {m for m in sources() if below.get(m, set()) <= done} - done
        assert ready, f"a cycle among {sorted(set(sources()) - done)}"
        done |= ready


def test_nothing_imports_what_stands_outside_the_package():
    outside = {path.stem for path in ROOT.glob("*.py")}
    outside |= {"bert", "lab", "tests"}
    users = {
        module
        for module, path in sources().items()
        if outside & {name.partition(".")[0] for name in imported(path)}
    }
    assert not users


def test_neither_importing_nor_help_loads_tensorflow():
    code = (
        "import sys, adapter_bert.commands\n"
        "sys.argv[1:] = ['--help']\n"
        "adapter_bert.commands.run('run_classifier')\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def attributes(path):
    """Dotted names that a module's code mentions, as `tf.distribute`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, (ast.ImportFrom, ast.Import)):
            yield from (alias.name for alias in node.names)


def users_of(test):
    """Modules that mention a name for which a test holds.

    Those with upstream's names, which are for graphs, do not count.
    """
    users = {
        module.partition(".")[2]
        for module, path in sources().items()
        if any(map(test, attributes(path)))
    }
    return {user for user in users if not user.startswith("upstream.")}


def test_nothing_but_commands_imports_upstream_s_names():
    users = {
        module
        for module, other in edges()
        if other.startswith(f"{PACKAGE}.upstream")
    }
    rooms = ("upstream", "commands")
    assert {user.split(".")[1] for user in users} <= set(rooms)


def test_flags_are_read_in_commands_and_flag_files_only():
    readers = users_of(lambda name: name == "FLAGS")
    assert {r for r in readers if not r.startswith("commands.")} == {
        "flags",
        "training.run_from_flags",
    }


def test_each_engine_is_alone_with_its_library():
    estimators = users_of(lambda name: "TPUEstimator" in name)
    assert estimators == {"training.estimator"}
    strategies = users_of(lambda name: name.startswith("tf.distribute"))
    # Adam adds up the gradients of all devices.
    strategies.remove("optimization")
    assert all(name.startswith("training.") for name in strategies)


@pytest.mark.parametrize(
    "library, users",
    [
        (
            f"(apache_beam|{PACKAGE}.graph.beam$)",
            "graph.beam commands.beam",
        ),
        ("jax", "accelerators.compilers"),
    ],
)
def test_what_other_environments_lack_has_few_users(library, users):
    assert {
        module.partition(".")[2]
        for module, path in sources().items()
        for name in imported(path)
        if re.match(rf"{library}\b", name)
    } == set(users.split())
