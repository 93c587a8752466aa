"""The zip file for GLUE's leaderboard."""

import os
import sys
import zipfile
from functools import partial

import pytest
import refusals
from conftest import ROOT, read_lines, run_command

from adapter_bert.commands import glue_submission
from adapter_bert.commands.glue_submission import FILES, PREDICTIONS
from adapter_bert.tasks.kinds import get_task

pytestmark = pytest.mark.newer_stack


def write(folder, task, file, rows):
    """Predictions of all labels in turn."""
    labels = getattr(get_task(task), "labels", ("0.000", "3.125"))
    (folder / task).mkdir(exist_ok=True)
    (folder / task / file).write_text(
        "index\tprediction\n"
        + "".join(f"{i}\t{labels[i % len(labels)]}\n" for i in range(rows))
    )


@pytest.fixture
def runs(tmp_path):
    """A folder with the runs of all tasks."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for task, file, rows in FILES.values():
        write(folder, task, file, rows)
    return folder


def submit(runs):
    return run_command(
        ROOT / "scripts/glue_submission.sh",
        runs,
        runs.parent / "glue.zip",
        env={**os.environ, "PYTHON": sys.executable},
    )


def test_the_zip_has_glues_files_and_wnli_may_be_left_out(runs):
    (runs / "WNLI" / "test_predictions.tsv").unlink()
    (runs / "CoLA").rename(runs / "cola")
    done = submit(runs)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(runs.parent / "glue.zip") as archive:
        # At the root, as the leaderboard wants them.
        assert sorted(archive.namelist()) == sorted(
            "CoLA.tsv SST-2.tsv MRPC.tsv STS-B.tsv MNLI-m.tsv MNLI-mm.tsv "
            "QNLI.tsv QQP.tsv RTE.tsv WNLI.tsv AX.tsv".split()
        )
        lines = archive.read("WNLI.tsv").decode().splitlines()
        assert lines[0] == "index\tprediction" and len(lines) == 147
        assert set(line.split("\t")[1] for line in lines[1:]) == {"0"}
        lines = archive.read("MNLI-mm.tsv").decode().splitlines()
        assert lines[1:3] == ["0\tcontradiction", "1\tentailment"]
        assert archive.read("STS-B.tsv").decode().splitlines()[2] == "1\t3.125"


@pytest.mark.parametrize(
    "task, change, expected",
    [
        ("RTE", lambda lines: lines[:-1], "4 predictions, expected 5"),
        ("RTE", lambda lines: lines[1:], ":1: found '0\\tentailment'"),
        ("RTE", lambda lines: [*lines[:2], "7\t0", *lines[3:]], ":3: found in"),
        ("RTE", lambda lines: [*lines[:2], "1\t0", *lines[3:]], "label '0'"),
        ("STS-B", lambda lines: [*lines[:2], "1\t6.0", *lines[3:]], "'6.0'"),
        ("STS-B", lambda lines: [*lines[:2], "1\t3", *lines[3:]], "as in 3.25"),
        ("STS-B", lambda lines: [], ":1: found ''"),
        ("STS-B", None, "missing"),
    ],
)
def test_what_the_leaderboard_would_refuse_is_refused(
    tmp_path, monkeypatch, run_main, task, change, expected
):
    small = {f"{name}.tsv": (name, PREDICTIONS, 5) for name in ("RTE", "STS-B")}
    monkeypatch.setattr(glue_submission, "FILES", small)
    for name in ("RTE", "STS-B"):
        write(tmp_path, name, PREDICTIONS, 5)
    target = tmp_path / "glue.zip"
    submit = partial(run_main, glue_submission, tmp_path, target)
    submit()
    target.unlink()
    path = tmp_path / task / PREDICTIONS
    lines = read_lines(path)
    path.unlink()
    if change:
        path.write_text("".join(f"{line}\n" for line in change(lines)))
    refusals.check(submit, path, expected)
    assert not target.exists()
