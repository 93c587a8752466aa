"""What `make` refuses."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.newer_stack


def make(target, folder):
    """Runs make with a folder for the virtual environment."""
    return subprocess.run(
        ["make", target],
        cwd=ROOT,
        env={
            **os.environ,
            "VENV": str(folder),
            "PYTHON": sys.executable,
            # Nothing is fetched.
            "PIP_NO_INDEX": "1",
        },
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("target", ["setup", "clean"])
def test_a_folder_that_is_no_environment_is_left_alone(tmp_path, target):
    (tmp_path / "thesis.txt").write_text("mine")
    done = make(target, tmp_path)
    assert done.returncode != 0
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("error")]
    assert str(tmp_path) in line and "no virtual environment" in line
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_empty_folder_and_an_old_environment_are_taken(tmp_path):
    for _ in range(2):
        # It gets as far as what it cannot fetch.
        done = make("setup", tmp_path)
        assert "no virtual environment" not in done.stderr
        assert (tmp_path / "pyvenv.cfg").exists()
