"""A smaller task, cut off a larger one."""

import os

import pytest
from conftest import ROOT, read_lines, run_command, write_table

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def task(tmp_path):
    folder = tmp_path / "task"
    folder.mkdir()
    write_table(folder / "train.tsv", [(f"{n}", "1") for n in range(9)])
    write_table(folder / "dev.tsv", [("a", "0")])
    return folder


def cut(task, rows):
    """Cuts a task's training set; returns what was done, and the folder."""
    folder = task.parent / "small"
    script = ROOT / "scripts/internal/cut_training_set.sh"
    done = run_command(script, task, folder, str(rows))
    return done, folder


def test_the_header_the_first_rows_and_the_whole_dev_set_are_taken(task):
    for _ in range(2):
        done, folder = cut(task, 2)
        assert done.returncode == 0, done.stderr
    assert (folder / "train.tsv").read_text() == "text\tlabel\n0\t1\n1\t1\n"
    assert (folder / "dev.tsv").read_text() == "text\tlabel\na\t0\n"
    assert sorted(os.listdir(folder)) == ["dev.tsv", "train.tsv"]


@pytest.mark.parametrize("changed", ["rows", "train", "dev"])
def test_another_cut_than_that_of_earlier_runs_is_refused(task, changed):
    _, folder = cut(task, 2)
    before = {path: path.read_text() for path in folder.iterdir()}
    if changed != "rows":
        write_table(task / f"{changed}.tsv", [("b", "0")] * 9)
    done, _ = cut(task, 3 if changed == "rows" else 2)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {folder}/")
    assert "choose another OUTPUT_DIR" in done.stderr
    assert {path: path.read_text() for path in folder.iterdir()} == before


def test_a_cut_that_was_killed_is_made_again(task):
    _, folder = cut(task, 2)
    (folder / "train.tsv").unlink()
    (folder / "dev.tsv").write_text("text\tla")
    done, _ = cut(task, 3)
    assert done.returncode == 0, done.stderr
    assert len(read_lines(folder / "train.tsv")) == 4
    assert (folder / "dev.tsv").read_text() == "text\tlabel\na\t0\n"
