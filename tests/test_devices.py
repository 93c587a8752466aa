"""Devices and lanes of one machine: the result is that of one."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT
from engine_jobs import (
    EITHER,
    LENGTH,
    MULTI,
    TAGGING,
    check_equal,
    make_job,
    make_rows,
    trained_values,
)

from adapter_bert.errors import UserError
from adapter_bert.training import cpu_cores, devices, multi_worker
from adapter_bert.training.engines import Hardware, choose_engine

DEVICES = """
import sys
sys.path[:0] = {paths!r}
import dataclasses, json
import numpy as np
from adapter_bert.bert import encoder as modeling
from engine_jobs import *
from adapter_bert.training.engines import Hardware, choose_engine
from adapter_bert.tasks import tagging, text_classification
from adapter_bert.checkpoints import training_state

for module in (tagging, text_classification):
    module.dropout = lambda x, *arguments: x
task = TASKS[{task!r}]
config = modeling.BertConfig(**json.loads({config!r}))
engine = choose_engine({name!r})[0](Hardware(num_devices={devices}))
engine.check_devices()
job = dataclasses.replace(
    make_job(config, {folder!r}, task=task), parts={parts}, length={length}
)
rows = make_rows(task)
losses = train(engine, job, rows, steps=6)
outputs = predict(engine, job, rows, 7)[{output!r}]
print(json.dumps([losses, outputs.tolist()]))
"""


def run_on_devices(
    config,
    folder,
    name,
    devices,
    parts=1,
    length=None,
    task="tiny",
    output="logits",
):
    """Losses and predictions of a training on logical CPUs."""
    code = DEVICES.format(
        paths=[str(ROOT), str(ROOT / "tests")],
        config=json.dumps(vars(config)),
        name=name,
        devices=devices,
        folder=str(folder),
        parts=parts,
        length=length,
        task=task,
        output=output,
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.gate
@EITHER
def test_two_devices_tag_as_one_does(steady_config, folders, name):
    """Each pads its batches to a length of its own."""
    (losses, outputs), (other_losses, other_outputs) = (
        run_on_devices(
            steady_config, folders(str(n)), name, n, parts=n, task="tagging"
        )
        for n in (1, 2)
    )
    np.testing.assert_allclose(other_losses, losses, rtol=0, atol=1e-5)
    shown = np.arange(LENGTH) < make_rows(TAGGING).lengths[:, np.newaxis]
    np.testing.assert_allclose(
        np.array(other_outputs)[shown],
        np.array(outputs)[shown],
        rtol=0,
        atol=1e-5,
    )


@pytest.mark.gate
@EITHER
def test_two_devices_train_several_tasks_as_one_does(
    steady_config, folders, name
):
    one, two = (
        run_on_devices(
            steady_config,
            folders(str(n)),
            name,
            n,
            parts=n,
            task=MULTI.name,
            output="tasks.sets/logits",
        )
        for n in (1, 2)
    )
    for found, expected in zip(two, one):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.gate
@EITHER
def test_two_devices_give_the_result_of_one(steady_config, folders, name):
    runs = {}
    for count, parts in ((1, 1), (2, 1), (2, 2)):
        folder = folders(f"{count}x{parts}")
        runs[folder] = run_on_devices(steady_config, folder, name, count, parts)
    (first, (losses, outputs)), *others = runs.items()
    assert len(losses) == 6 and len(outputs) == 40
    job = make_job(steady_config, first)
    for folder, (other_losses, other_outputs) in others:
        np.testing.assert_allclose(other_losses, losses, rtol=0, atol=1e-5)
        np.testing.assert_allclose(other_outputs, outputs, rtol=0, atol=1e-5)
        check_equal(
            trained_values(make_job(steady_config, folder)),
            trained_values(job),
            1e-5,
        )


def test_more_gpus_than_there_are_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: ["one GPU"]
    )
    with pytest.raises(UserError, match="there are only 1 GPUs"):
        devices.count(Hardware(num_devices=2))


@pytest.mark.parametrize(
    "asked, gpus, number",
    [(0, 0, 1), (2, 0, 2), (0, 3, 3), (2, 3, 2), (3, 3, 3)],
)
def test_devices_are_as_many_as_asked_for_or_all_gpus(
    monkeypatch, asked, gpus, number
):
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: ["GPU"] * gpus
    )
    assert devices.count(Hardware(num_devices=asked)) == number


@pytest.mark.parametrize("use_tpu, workers", [(True, False), (False, True)])
def test_a_number_of_devices_is_for_one_machine_without_a_tpu(
    monkeypatch, use_tpu, workers
):
    monkeypatch.setattr(multi_worker, "is_cluster", lambda: workers)
    with pytest.raises(UserError, match="--num_devices=2 is for one machine"):
        devices.strategy(Hardware(num_devices=2, use_tpu=use_tpu))


# Lanes


@pytest.fixture
def threads(monkeypatch):
    """A machine without a GPU; collects what operations are allowed."""
    allowed = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(
        tf.config.threading,
        "set_intra_op_parallelism_threads",
        allowed.append,
    )
    return allowed


@pytest.mark.parametrize(
    "cores, asked, lanes, one_thread",
    [
        (1, 0, 1, False),
        (2, 0, 2, True),
        (8, 0, 8, True),
        (64, 0, devices.MAX_LANES, False),
        (2, 1, 1, False),
        (4, 3, 3, False),
        (4, 4, 4, True),
        (2, 12, 12, True),
    ],
)
def test_lanes_are_those_asked_for_or_one_on_each_core(
    monkeypatch, threads, cores, asked, lanes, one_thread
):
    """Where there is one on each, an operation takes no other core."""
    monkeypatch.setattr(cpu_cores, "count", lambda: cores)
    assert devices.use_lanes(Hardware(cpu_lanes=asked)) == lanes
    assert threads == [1] * one_thread


def test_lanes_are_taken_though_threads_cannot_be_set_any_more(
    monkeypatch, threads
):
    def refuse(number):
        raise RuntimeError("Intra op parallelism cannot be modified")

    monkeypatch.setattr(cpu_cores, "count", lambda: 2)
    monkeypatch.setattr(
        tf.config.threading, "set_intra_op_parallelism_threads", refuse
    )
    assert devices.use_lanes(Hardware()) == 2


OTHERS = [{"use_tpu": True}, {"num_devices": 2}]


@pytest.mark.parametrize("others", OTHERS)
def test_there_is_one_lane_beside_other_devices(threads, others):
    for asked in (0, 1):
        assert devices.use_lanes(Hardware(cpu_lanes=asked, **others)) == 1
    assert not threads


def test_there_is_one_lane_on_a_gpu(monkeypatch, threads):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["x"])
    assert devices.use_lanes(Hardware()) == 1
    with pytest.raises(UserError, match="--cpu_lanes=2 .* leave it out"):
        devices.use_lanes(Hardware(cpu_lanes=2))
    assert not threads


@pytest.mark.parametrize("others", OTHERS)
def test_lanes_beside_other_devices_are_one_clear_line(engine, threads, others):
    """Of either engine, before it looks for those devices."""
    hardware = Hardware(cpu_lanes=2, **others)
    with pytest.raises(UserError, match="--cpu_lanes=2 .* leave it out"):
        choose_engine(engine)[0](hardware).check_devices()


def test_products_are_as_exact_as_the_run_says():
    """On a GPU; a TPU multiplies as it does."""
    found = tf.config.experimental.tensor_float_32_execution_enabled
    before = found()
    try:
        devices.choose_graph_optimizer(Hardware(), "float32")
        assert not found()
        devices.choose_graph_optimizer(Hardware(), "bfloat16")
        assert found()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
