"""What the package says of itself."""

import re

import pytest
from conftest import ROOT

tomllib = pytest.importorskip("tomllib")
pytestmark = pytest.mark.newer_stack

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def number(version):
    return tuple(map(int, version.split(".")))


def test_what_is_asked_for_is_as_old_as_the_oldest_that_is_tested():
    """To what the bound says of it: 2.3 is any 2.3 of a lock."""
    lock = (ROOT / "requirements" / "tf215-cpu.txt").read_text()
    locked = {}
    for name, version in re.findall(r"(?m)^([\w-]+)==([\d.]+)", lock):
        name = name.replace("tensorflow-cpu", "tensorflow")
        locked.setdefault(name, []).append(number(version))
    for requirement in SETTINGS["project"]["dependencies"]:
        name, bound = requirement.split(">=")
        bound = number(bound)
        assert min(locked[name])[: len(bound)] == bound, requirement


def test_all_files_name_one_version():
    version = SETTINGS["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"(?m)^version: (.*)", citation) == [version]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"(?m)^## \[?([\d.]+)", changes)[0] == version


def test_an_image_has_nothing_that_git_ignores():
    kept = (ROOT / ".dockerignore").read_text().split()
    for line in (ROOT / ".gitignore").read_text().split():
        name = line.strip("/")
        is_there = name.startswith(".") or name.startswith("*.pyc")
        assert is_there or {name, f"**/{name}"} & {*kept}, name


def test_the_package_holds_all_data():
    listed = SETTINGS["tool"]["setuptools"]["data-files"]
    inside = [p for patterns in listed.values() for p in patterns]
    files = {path for pattern in inside for path in ROOT.glob(pattern)}
    assert files == set((ROOT / "data").rglob("*.*"))
    for folder, patterns in listed.items():
        assert patterns[0].startswith(
            folder.removeprefix("share/adapter_bert/")
        )
