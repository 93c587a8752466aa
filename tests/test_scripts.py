"""The shell scripts, run as a user runs them."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.pretrained
def test_quickstart_ends_with_a_row_for_each_task(tmp_path, pretrained_dir):
    done = subprocess.run(
        [
            ROOT / "scripts" / "quickstart.sh",
            tmp_path / "out",
            "--num_train_epochs=0.2",
        ],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    header, *rows = done.stdout.strip().splitlines()[-3:]
    assert header.split()[0] == "task"
    for row, task, trained in zip(
        rows, ("customer_intents", "same_meaning"), ("609,034", "605,954")
    ):
        folder = tmp_path / "out" / task
        results = json.loads((folder / "eval_results.json").read_text())
        cells = row.split()
        assert cells[:3] == [task, f"{results['eval_accuracy']:.3f}", trained]
        assert cells[-4:] == ["2.4", "MB", "90.9", "MB"]
