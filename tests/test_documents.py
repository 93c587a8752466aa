"""What the documents name is there."""

import re

import pytest
from conftest import ROOT

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


def test_every_module_has_a_row_in_the_architecture():
    text = (ROOT / "docs/architecture.md").read_text()
    rows = "\n".join(x.split("|")[1] for x in text.splitlines() if x[:1] == "|")
    modules = [*ROOT.glob("*.py")]
    for folder in ("engines", "methods", "runs", "tasks", "weights"):
        modules += ROOT.glob(f"{folder}/*.py")
    lacking = {
        str(path.relative_to(ROOT))
        for path in modules
        if path.name != "__init__.py"
        and f"`{path.relative_to(ROOT)}`" not in rows
    }
    assert not lacking
