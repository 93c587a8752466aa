"""What the documents name is there."""

import re

import pytest
from conftest import ROOT

pytestmark = pytest.mark.older_stack

PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("tests/golden/*.md"),
]
FOLDERS = ("", "docs", "scripts", "scripts/internal", "benchmarks", "tasks")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_is_there(page):
    text = page.read_text()
    names = re.findall(r"`([\w/]+\.(?:py|sh|sbatch|md))`", text)
    names += re.findall(r"\b(?:scripts|benchmarks)/[\w/]+\.\w+", text)
    missing = {
        name
        for name in names
        if not any((ROOT / folder / name).exists() for folder in FOLDERS)
    }
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_script_that_is_to_be_run_is_there(page):
    modules = r"-m ((?:scripts|benchmarks)\.[\w.]+)"
    for name in re.findall(modules, page.read_text()):
        assert (ROOT / (name.replace(".", "/") + ".py")).exists(), name
