"""What SECURITY.md says that the program does not do."""

import ast
import re

import pytest
from conftest import ROOT
from test_architecture import attributes, imported, sources

from adapter_bert.server import http_api

pytestmark = pytest.mark.newer_stack

# Modules that make programs of data.
LOADERS = {"dill", "joblib", "marshal", "pickle", "shelve", "torch", "yaml"}
UNPICKLING = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "load",
    "loads",
}
RUN_TEXT = {"eval", "exec", "compile", "os.system", "os.popen"}


def modules():
    """All that read what others wrote: scripts too."""
    paths = [*sources().values()]
    return [*paths, *(ROOT / "scripts").glob("**/*.py")]


def test_no_module_loads_pickles():
    for path in modules():
        loaders = LOADERS & {n.split(".")[0] for n in imported(path)}
        if path.name == "torch_files.py":
            # Its own class finds no functions but that module's.
            assert not UNPICKLING & set(attributes(path))
            loaders -= {"pickle"}
        assert not loaders, path


def test_no_module_runs_text_as_a_program():
    for path in modules():
        assert not RUN_TEXT & set(attributes(path)), path


def test_arrays_are_loaded_without_pickles():
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "np.load",
                "numpy.load",
            ):
                keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert keywords.get("allow_pickle") == "False", path


def test_the_servers_page_runs_no_foreign_script():
    """And is shown within no other page."""
    policy = http_api.HEADERS["Content-Security-Policy"].split("; ")
    assert {
        "default-src 'none'",
        "script-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
    } <= set(policy)
    assert "unsafe" not in str(policy) and "http" not in str(policy)


def test_the_tests_that_are_named_are_there():
    text = (ROOT / "SECURITY.md").read_text()
    table = text.partition("## Tested")[2].partition("## Report")[0]
    for line in table.splitlines():
        file = ""
        for named in re.findall(r"`([\w./]+)`", line):
            if named.endswith(".py"):
                file = (ROOT / named).read_text()
            else:
                assert f"\ndef {named}(" in file, named
    assert table.count("`test_") > 30
