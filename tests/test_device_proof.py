"""Machines proven with TensorFlow: the script, the judge, refusals."""

import json
import os
import sys

import numpy as np
import pytest
import safetensors.numpy
from conftest import ROOT, run_command, run_process

from adapter_bert.errors import UserError
from adapter_bert.progress import Curves
from lab.devices import judge
from lab.trials import tiny_files

pytestmark = pytest.mark.newer_stack

SCRIPT = ROOT / "lab/devices/prove.sh"
LONG = 1200
STEPS = {10: 0.7, 20: 0.5, 30: 0.4}
ROWS = np.array([[0.25, 0.75], [0.5, 0.5]])
VALUES = np.arange(1, 5, dtype=np.float32)


def make_run(folder, steps=STEPS, rows=ROWS, values=VALUES):
    """The files of a run that are judged."""
    curves = Curves(str(folder))
    for step, loss in steps.items():
        curves.add_scalar("loss", loss, step)
    curves.close()
    np.savetxt(folder / "test_results.tsv", rows, delimiter="\t")
    (folder / "adapter").mkdir()
    safetensors.numpy.save_file({"x": values}, folder / judge.ADAPTER)
    return folder


def changed(value, place, to):
    """A copy of an array with another number at a flat place."""
    found = value.copy()
    found.ravel()[place] = to
    return found


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, {}),
        ({"steps": {**STEPS, 20: 0.75}}, {"loss": 0.25}),
        ({"rows": changed(ROWS, 3, 0.75)}, {"probability": 0.25}),
        ({"values": changed(VALUES, 3, 7)}, {"values": 3 / 30**0.5}),
    ],
)
def test_differences_are_of_losses_probabilities_and_values(
    tmp_path, changes, expected
):
    first = make_run(tmp_path / "first")
    found = judge.differences(first, make_run(tmp_path / "other", **changes))
    assert found == pytest.approx(
        {"loss": 0, "probability": 0, "values": 0, **expected}
    )


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"steps": {**STEPS, 20: np.nan}}, "has losses that are not finite"),
        ({"steps": {10: 0.7, 20: 0.5}}, r"steps of the shape \(2,\), expected"),
        ({"steps": {10: 1, 20: 1, 31: 1}}, "has losses of other steps"),
        ({"steps": {}}, "has no curve 'loss'"),
        (
            {"rows": changed(ROWS, 3, np.nan)},
            "has probabilities that are not finite",
        ),
        ({"rows": ROWS[:1]}, r"probabilities of the shape \(1, 2\), expected"),
        ({"values": changed(VALUES, 3, np.inf)}, "has values that are not"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(tmp_path, changes, problem):
    first = make_run(tmp_path / "first")
    other = make_run(tmp_path / "other", **changes)
    with pytest.raises(UserError, match=problem):
        judge.differences(first, other)


def test_damaged_files_are_refused(tmp_path):
    first, other = (make_run(tmp_path / name) for name in ("first", "other"))
    for path in (other / judge.ADAPTER, other / "test_results.tsv"):
        path.write_text("damaged")
        with pytest.raises(UserError, match=f"{path} is damaged"):
            judge.differences(first, other)
        path.unlink()
        with pytest.raises(UserError, match=str(path)):
            judge.differences(first, other)
        make_run(tmp_path / path.name)
        (tmp_path / path.name / path.relative_to(other)).rename(path)


def error_of(done):
    """The one line of a program that has failed."""
    assert done.returncode == 1, done.stderr
    [line] = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
    assert "Traceback" not in done.stderr
    return line


@pytest.mark.parametrize(
    "words, problem",
    [
        (("cpu", 1), "has no curve 'loss'"),
        (("cpu", "long"), "invalid int value: 'long'"),
        (("abacus", 1), "invalid choice: 'abacus'"),
    ],
)
def test_the_judge_refuses_in_one_line(tmp_path, words, problem):
    done = run_process(
        "lab.devices.judge", tmp_path, *words, program="-m", check=False
    )
    assert problem in error_of(done)


@pytest.mark.parametrize(
    "variables, problem",
    [
        ({"DEVICE": "abacus"}, "DEVICE is 'abacus'; expected cpu, gpu or tpu"),
        ({"STEPS": "4o"}, "STEPS is '4o', expected a number of 1 or more"),
        ({"BATCH": "0"}, "BATCH is '0', expected a number of 1 or more"),
        ({"CORES": "-8"}, "CORES is '-8', expected a number of 1 or more"),
        ({"STEPS": "10"}, "STEPS is 10, expected >= 20"),
        ({"STEPS": "45"}, "45 STEPS of 32 rows are not whole epochs of 320"),
    ],
)
def test_the_script_refuses_before_any_work(tmp_path, variables, problem):
    out = tmp_path / "out"
    environment = {**os.environ, "DEVICE": "cpu", "PYTHON": "false"}
    done = run_command(SCRIPT, out, env={**environment, **variables})
    assert problem in error_of(done)
    assert not out.exists()


@pytest.mark.gate
def test_a_machine_is_proven_and_a_fault_is_told(tmp_path):
    tiny_files.make(tmp_path)
    out = tmp_path / "out"
    done = run_command(
        SCRIPT,
        out,
        "--task_name=custom",
        f"--data_dir={tmp_path / tiny_files.TABLE}",
        "--max_seq_length=24",
        "--learning_rate=1e-3",
        timeout=LONG,
        env={
            **os.environ,
            "PYTHON": sys.executable,
            "DEVICE": "cpu",
            "BERT": str(tmp_path / tiny_files.BERT),
            "STEPS": "60",
            "BATCH": "8",
            "EXAMPLES": "40",
            "LIMIT": str(LONG),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "prove.json").read_text())
    assert found["is_alike"] == {"device": True, "xla": True}
    # XLA computes in another order.
    assert 0 == found["differences"]["device"]["values"]
    assert 0 < found["differences"]["xla"]["values"]
    assert found["resumes_with_same_bits"]
    assert {*found["losses"]} == {"cpu", "device", "xla"}
    assert [*found["losses"]["xla"]] == ["10", "20", "30", "40", "50", "60"]
    assert set(found["examples_per_second"]) == {"float32", "bfloat16"}
    adapter = out / "resumed" / judge.ADAPTER
    adapter.write_bytes(adapter.read_bytes()[:-1] + b"\1")
    done = run_process(
        "lab.devices.judge", out, "cpu", 1, program="-m", check=False
    )
    assert done.returncode == 1
    assert "resumes with same bits  NO" in done.stdout
