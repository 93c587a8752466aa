"""docs/architecture.md says of the code what holds of it."""

import ast
import functools
import re

import pytest
from conftest import ROOT
from test_architecture import MAY_IMPORT, attributes, sources

from adapter_bert.bert.hooks import Hooks
from adapter_bert.training.help_page import TOPICS

pytestmark = pytest.mark.older_stack

PAGE = (ROOT / "docs" / "architecture.md").read_text()
# The first cells of the two tables of files.
CELLS = [
    line.split("|")[1]
    for line in PAGE.partition("\n## Grids of runs\n")[0].splitlines()
    if line.startswith("| `")
]
NAMED = [name for cell in CELLS for name in re.findall("`(.+?)`", cell)]
# Names of others' programs, not of this one's code.
FOREIGN = {"TF_CONFIG"}


def modules():
    """Every module, by its path from the root."""
    return {
        path.relative_to(ROOT).as_posix()
        for _, path in sources()
        if path.name != "__init__.py"
    }


def scripts():
    """Every script, by its path from the root."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "scripts").glob("**/*.*")
        if path.suffix in (".py", ".sh")
    }


def test_every_module_and_script_has_one_row():
    assert modules() | scripts() <= set(NAMED)
    assert len(NAMED) == len(set(NAMED))


@pytest.mark.parametrize("name", NAMED)
def test_every_row_is_of_a_file(name):
    assert (ROOT / name).is_file()


def test_every_row_asks_or_states_something():
    for line in PAGE.partition("\n## Grids of runs\n")[0].splitlines():
        if line.startswith("| `"):
            assert line.split("|")[2].strip()


@functools.lru_cache(None)
def classes():
    """The names of each class's attributes, its base classes' included."""
    own, bases = {}, {}
    for _, path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = own.setdefault(node.name, set())
                bases.setdefault(node.name, set()).update(
                    ast.unparse(base).split(".")[-1] for base in node.bases
                )
                for part in node.body:
                    names |= set(_defined(part))
    for name in own:
        for base in bases[name] & set(own):
            own[name] |= own[base]
    return own


def _defined(node):
    """What a statement of a class's body defines, `self.x` included."""
    if isinstance(node, ast.FunctionDef):
        yield node.name
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and isinstance(
                part.ctx, ast.Store
            ):
                yield part.attr
    elif isinstance(node, ast.Assign):
        yield from map(ast.unparse, node.targets)
    elif isinstance(node, ast.AnnAssign):
        yield ast.unparse(node.target)


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`([A-Z]\w+(?:\.\w+)?)`", PAGE)) - FOREIGN)
)
def test_every_class_that_is_named_is_there(name):
    owner, _, attribute = name.partition(".")
    assert owner in classes()
    assert not attribute or attribute in classes()[owner]


def test_every_flag_that_is_named_is_there():
    known = {name for names in TOPICS.values() for name in names}
    assert set(re.findall(r"--(\w+)", PAGE)) <= known | {"help"}


def test_the_hooks_are_those_of_the_class():
    table = re.search(r"\| hook \|.*?\n\n", PAGE, re.DOTALL).group()
    acting = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert len(acting) == 7 and "Seven hooks" in PAGE
    about = {"acts_at", "layer_kind", "observe", "penalty", "prepare"}
    methods = {n for n in vars(Hooks) if callable(getattr(Hooks, n))}
    assert {n for n in methods if n[0] != "_"} == acting | about
    assert all(f"`{n}`" in PAGE or f".{n}`" in PAGE for n in about)


def calls(name):
    """(module, call) of every call of a function, by its dotted name."""
    for _, path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                yield path.name, node


def test_autograph_is_left_out_everywhere():
    made = list(calls("tf.function"))
    assert len(made) >= 5
    for module, call in made:
        given = {k.arg: ast.unparse(k.value) for k in call.keywords}
        assert given.get("autograph") == "False", module
    # As a decorator without arguments.
    for _, path in sources():
        assert not re.search(r"@tf\.function\n", path.read_text()), path


def test_no_module_names_keras():
    for _, path in sources():
        assert not any("keras" in a for a in attributes(path)), path


def test_one_module_writes_checkpoints():
    assert {m for m, _ in calls("tf.raw_ops.SaveV2")} == {"training_state.py"}


@pytest.mark.parametrize("library", ["sklearn", "scipy", "seqeval"])
def test_what_takes_long_to_load_is_loaded_where_it_is_needed(library):
    for _, path in sources():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert library not in ast.unparse(node), path


def test_who_knows_of_other_programs_and_of_tasks():
    users = {r for r, below in MAY_IMPORT.items() if "exchange" in below}
    assert users == {"adapter_library", "exchange", "serving", "soak"}
    assert "tasks" not in MAY_IMPORT["engines"]
