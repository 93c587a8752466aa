"""What SECURITY.md says that the program does not do."""

import ast
import re
import socket

from absl import flags
from absl.testing import flagsaver
from conftest import ROOT, entry_point
from test_architecture import attributes, imported, sources

import serve

# Modules that make programs of data.
LOADERS = {"dill", "joblib", "marshal", "pickle", "shelve", "torch", "yaml"}
RUN_TEXT = {"eval", "exec", "compile", "os.system", "os.popen"}


def test_no_module_loads_pickles():
    for _, path in sources():
        names = imported(ast.parse(path.read_text()))
        assert not LOADERS & {n.split(".")[0] for n in names}, path


def test_no_module_runs_text_as_a_program():
    for _, path in sources():
        assert not RUN_TEXT & set(attributes(path)), path


def test_arrays_are_loaded_without_pickles():
    for _, path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "np.load",
                "numpy.load",
            ):
                given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert given.get("allow_pickle") == "False", path


def test_the_server_listens_on_this_machine_alone():
    with entry_point(serve):
        assert flags.FLAGS.host == "127.0.0.1"
        with flagsaver.flagsaver(port=0), serve.listen() as listening:
            assert listening.family == socket.AF_INET
            assert listening.getsockname()[0] == "127.0.0.1"


def test_the_tests_that_are_named_are_there():
    named = re.findall(r"`(tests/\w+\.py)`", (ROOT / "SECURITY.md").read_text())
    assert named and all((ROOT / name).exists() for name in named)
