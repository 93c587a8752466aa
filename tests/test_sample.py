"""The small data sets that the package brings along."""

import csv
import shutil

import pytest
import refusals
from conftest import ROOT

from adapter_bert.commands import sample


@pytest.fixture
def run(tmp_path, run_main):
    return lambda: run_main(sample, f"--output_dir={tmp_path}")


def test_the_files_and_tables(run, tmp_path, capsys):
    run()
    lines = capsys.readouterr().out.splitlines()
    for path in (ROOT / "data").rglob("*.*"):
        copy = tmp_path / path.relative_to(ROOT)
        assert copy.read_bytes() == path.read_bytes()
        lines.remove(str(copy))
    assert lines == [str(tmp_path / "tickets.csv"), str(tmp_path / "new.csv")]
    with open(lines[0], newline="") as file:
        tickets = list(csv.DictReader(file))
    assert [row["ticket"] for row in tickets] == [*map(str, range(1001, 1641))]
    assert len({row["queue"] for row in tickets}) == 10
    with open(lines[1], newline="") as file:
        new = list(csv.DictReader(file))
    assert len(new) == 110 and list(new[0]) == ["ticket", "message"]


def test_what_else_lies_in_a_checkout_is_left_out(tmp_path, monkeypatch):
    expected = list(sample.contents())
    shutil.copytree(ROOT / "data", tmp_path / "data")
    for name in ("pyproject.toml", "data/mine.csv"):
        (tmp_path / name).touch()
    (tmp_path / "data/same_meaning/a.folder").mkdir()
    monkeypatch.setattr(sample.command_line, "ROOT", tmp_path)
    assert list(sample.contents()) == expected


def test_other_files_are_left(run, tmp_path, capsys):
    run()
    capsys.readouterr()
    run()
    assert not capsys.readouterr().out
    (tmp_path / "new.csv").write_text("mine")
    refusals.check(run, "new.csv is there")
    assert (tmp_path / "new.csv").read_text() == "mine"


def test_a_place_that_cannot_be_written(tmp_path, command):
    place = tmp_path / "a"
    place.touch()
    refusals.check(
        lambda: command(sample, output_dir=place), "cannot read or write", place
    )
