"""Folders of runs: what trainings leave in them, whole or killed."""

import random
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import (
    ROOT,
    flag_words,
    latest_step,
    load_predictor,
    read_adapter,
    read_json,
    read_lines,
)

from adapter_bert.checkpoints import training_state


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
        read_adapter(folder / "adapter").weights for folder in (first, second)
    )
    assert set(before.shapes) == set(after.shapes)
    for name in before.shapes:
        np.testing.assert_allclose(
            after.read(name), before.read(name), atol=atol
        )


def check_texts_are_learned(classify, bert, data, out, **flags):
    """Trains a BERT; checks that a predictor answers as the evaluation did."""
    classify(
        task_name="custom",
        data_dir=data,
        init_checkpoint=bert,
        output_dir=out,
        do_train=True,
        do_eval=True,
        max_seq_length=24,
        train_batch_size=40,
        length_pool_batches=1,
        learning_rate=1e-2,
        num_train_epochs=30,
        adapter_size=8,
        cpu_lanes=1,
        **flags,
    )
    scores = read_json(out / "eval_results.json")
    assert scores["eval_accuracy"] > 0.8
    rows = [line.split("\t") for line in read_lines(data / "dev.tsv")[1:]]
    predictor = load_predictor(bert, {"one": out / "adapter"})
    answers = predictor("one", [text for text, _ in rows])
    right = [a["label"] == label for a, (_, label) in zip(answers, rows)]
    assert np.isclose(np.mean(right), scores["eval_accuracy"])


def saved_step(folder):
    """The step of a training's last checkpoint, 0 without one."""
    return latest_step(folder)[1]


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


def interrupt(train, part=""):
    """Trains, and is interrupted after a save in a folder of such a name."""
    save = training_state.save_training

    def save_and_stop(folder, *values):
        save(folder, *values)
        if part in folder:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_state, "save_training", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train()


def kill_and_go_on(
    run, flags, folder, seed=1, times=1, program="run_classifier.py"
):
    """Trains at once, and killed at random moments, each when it has gone on.

    Args:
        run: the program, within this process, where it is not killed.
        flags: of the run, but for its folder.
        folder: for the folders of both trainings.
        seed: of the moments.
        times: how often it is killed.
        program: that trains.

    Returns:
        The folders of both.
    """
    whole, killed = folder / "whole", folder / "killed"
    run(**{**flags, "output_dir": whole})
    flags = {**flags, "output_dir": killed}
    chance, steps = random.Random(seed), [0]
    for _ in range(times):
        kill(
            flag_words(flags),
            lambda: saved_step(killed) > steps[-1],
            chance.uniform(0, 0.1),
            program,
        )
        steps.append(saved_step(killed))
    assert steps[-1] < saved_step(whole)
    run(**flags)
    return whole, killed
