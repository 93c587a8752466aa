"""Folders of runs: what trainings leave in them, whole or killed."""

import random
import subprocess
import sys
import time

import numpy as np
from conftest import ROOT

from adapter_bert.checkpoints import adapter_artifact, training_state


def artifact_bytes(folder):
    """The values of a run's adapter."""
    return (folder / "adapter" / "adapter.safetensors").read_bytes()


def bytes_by_task(folder):
    """Those of each task of a run of several."""
    return {
        part.name: artifact_bytes(part) for part in (folder / "tasks").iterdir()
    }


def check_nearly_equal(first, second, atol=1e-6):
    """Compares the values of two runs' adapters."""
    before, after = (
        adapter_artifact.read(str(folder / "adapter")).weights
        for folder in (first, second)
    )
    assert set(before.shapes) == set(after.shapes)
    for name in before.shapes:
        np.testing.assert_allclose(
            after.read(name), before.read(name), atol=atol
        )


def saved_step(folder):
    """The step of a training's last checkpoint, 0 without one."""
    return training_state.latest_step(str(folder))[1]


def kill(arguments, condition, delay=0.0, program="run_classifier.py"):
    """Starts a run, and kills it some seconds after a condition holds."""
    process = subprocess.Popen(
        [sys.executable, program, *arguments],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not condition():
            assert process.poll() is None, "ended before it could be killed"
            time.sleep(0.002)
        time.sleep(delay)
    finally:
        # With SIGKILL.
        process.kill()
        process.wait()


def kill_twice(arguments, folder, seed):
    """Kills a training at random moments, and again when it has gone on.

    Returns:
        The steps of the last checkpoints after the two.
    """
    chance = random.Random(seed)
    steps = [0]
    for _ in range(2):
        kill(
            arguments,
            lambda: saved_step(folder) > steps[-1],
            chance.uniform(0, 0.1),
        )
        steps.append(saved_step(folder))
    return steps[1:]
