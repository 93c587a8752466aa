"""Devices and lanes of one machine give the result of one."""

import json
import sys
import threading

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import ROOT, run_command
from engine_jobs import (
    COMPARING,
    EITHER,
    LENGTH,
    MULTI,
    TAGGING,
    TASKS,
    check_equal,
    make_job,
    make_rows,
    new_engine,
    predict,
    train,
    trained_values,
)
from numpy.testing import assert_allclose
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

from adapter_bert.training import cpu_cores, devices, process_options
from adapter_bert.training.settings import Hardware

SETS = "tasks.sets/logits"
DEVICES = """
import sys
sys.path[:0] = {paths!r}
import json, os
from adapter_bert.bert import encoder as modeling
from engine_jobs import *
from adapter_bert.training.engines import Hardware, choose_engine
from adapter_bert.tasks import tagging, text_classification

for module in (tagging, text_classification):
    module.dropout = lambda x, *arguments: x
config = modeling.BertConfig(**json.loads({config!r}))
engine = choose_engine({name!r})[0](Hardware(num_devices={devices}))
engine.check_devices()
found = []
for name, parts, output, method in {cases!r}:
    folder = os.path.join({folder!r}, f"{{name}}{{parts}}")
    os.makedirs(folder)
    task = {{**TASKS, **COMPARING}}[name]
    job = make_job(config, folder, method, task=task, parts=parts)
    rows = make_rows(task)
    losses = train(engine, job, rows, steps=6)
    found.append([losses, predict(engine, job, rows, 7)[output].tolist()])
print(json.dumps(found))
"""


def run_on_devices(config, folder, name, devices, *cases):
    """Losses and predictions of trainings on logical CPUs.

    Cases are a task's name, the number of parts, an output's name, a method.
    """
    code = DEVICES.format(
        paths=[str(ROOT), str(ROOT / "tests")],
        config=json.dumps(vars(config)),
        name=name,
        devices=devices,
        folder=str(folder),
        cases=cases,
    )
    done = run_command(sys.executable, "-c", code, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.gate
@EITHER
def test_two_devices_give_the_result_of_one(
    steady_config, steady, tmp_path, name
):
    """Each pads its batches to a length of its own."""

    shown = np.arange(LENGTH) < make_rows(TAGGING).lengths[:, np.newaxis]
    # Each of the engines gets some of the tasks.
    cases = {
        "estimator": [
            ("tagging", 1, "logits", "houlsby(size=4)"),
            ("tiny", 2, "logits", "adalora(init_rank=4, rank=2)"),
            ("vectors", 1, "vectors", "houlsby(size=4)"),
        ],
        "strategy": [
            ("tiny", 1, "logits", "adalora(init_rank=4, rank=2)"),
            (MULTI.name, 2, SETS, "houlsby(size=4)"),
            ("vectors", 2, "vectors", "houlsby(size=4)"),
            ("two_adapters", 2, "vectors", "houlsby(size=4)"),
        ],
    }[name]
    values = run_on_devices(steady_config, tmp_path / "two", name, 2, *cases)
    engine = new_engine(name)
    for (losses, outputs), (of, parts, output, method) in zip(values, cases):
        task = {**TASKS, **COMPARING}[of]
        (tmp_path / of).mkdir()
        job = make_job(steady_config, tmp_path / of, method, task=task)
        expected = train(engine, job, make_rows(task), steps=6)
        assert len(expected) == 6
        assert_allclose(losses, expected, atol=1e-5)
        expected = predict(engine, job, make_rows(task), 7)[output]
        texts = 80 if of in COMPARING else 40
        assert len(expected) == texts or task is MULTI
        chosen = shown if task is TAGGING else slice(None)
        assert_allclose(np.array(outputs)[chosen], expected[chosen], atol=1e-5)
        other = make_job(
            steady_config, tmp_path / "two" / f"{of}{parts}", method, task=task
        )
        check_equal(trained_values(other), trained_values(job), 1e-5)


@pytest.mark.parametrize(
    "count, gpus, number",
    [
        (0, 0, 1),
        (2, 0, 2),
        (0, 3, 3),
        (2, 3, 2),
        (3, 3, 3),
        (2, 1, "there are only 1 GPUs"),
    ],
)
def test_devices_are_as_many_as_asked_for_or_all_gpus(
    monkeypatch, count, gpus, number
):
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: ["GPU"] * gpus
    )

    def counted():
        return devices.count(Hardware(num_devices=count))

    if isinstance(number, str):
        refusals.check(counted, number)
    else:
        assert counted() == number


def test_what_cannot_be_divided_any_more_is_one_line(monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("Virtual devices cannot be modified")

    monkeypatch.setattr(tf.config, "set_logical_device_configuration", refuse)
    refusals.check(
        lambda: devices.strategy(Hardware(num_devices=9)), "start another one"
    )
    task = {"type": "worker", "index": 0}
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": task}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    refusals.check(
        lambda: devices.strategy(Hardware(num_devices=9)), "TF_CONFIG names"
    )


# Lanes


@pytest.fixture
def threads(monkeypatch):
    """A machine without a GPU; collects what operations are allowed."""
    allowed = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(
        tf.config.threading, "set_intra_op_parallelism_threads", allowed.append
    )
    return allowed


@pytest.mark.parametrize(
    "cores, count, lanes, one_thread",
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
    monkeypatch, threads, cores, count, lanes, one_thread
):
    """Where there is one on each, an operation takes no other core."""
    monkeypatch.setattr(cpu_cores, "count", lambda: cores)
    assert devices.use_lanes(Hardware(cpu_lanes=count)) == lanes
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


@pytest.mark.parametrize(
    "gpus, others",
    [([], {"use_tpu": True}), ([], {"num_devices": 2}), (["x"], {})],
)
def test_there_is_one_lane_beside_other_devices(
    monkeypatch, threads, gpus, others
):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    for count in (0, 1, 2):
        assert devices.use_lanes(Hardware(cpu_lanes=count, **others)) == 1
    assert not threads


def test_products_are_as_exact_as_the_run_says():
    """On a GPU; a TPU multiplies as it does."""
    is_enabled = tf.config.experimental.tensor_float_32_execution_enabled
    before = is_enabled()
    try:
        devices.choose_graph_optimizer(Hardware(), "float32")
        assert not is_enabled()
        devices.choose_graph_optimizer(Hardware(), "bfloat16")
        assert is_enabled()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def test_a_thread_keeps_the_graph_optimizer_that_it_chose():
    """Though a model in another dtype answers in another thread."""

    def is_off():
        config = context.context().function_call_options.config_proto_serialized
        rewrites = config_pb2.ConfigProto.FromString(config).graph_options
        return rewrites.rewrite_options.disable_meta_optimizer

    def choose(dtype):
        devices.choose_graph_optimizer(Hardware(), dtype)

    with process_options.restored():
        for mine, other in ("float32", "bfloat16"), ("bfloat16", "float32"):
            choose(mine)
            thread = threading.Thread(target=choose, args=(other,))
            thread.start()
            thread.join()
            assert is_off() == (mine == "float32")


@pytest.mark.parametrize(
    "rows, lanes, parts",
    [
        (32, 2, 1),
        (64, 2, 1),
        (128, 2, 2),
        (256, 2, 4),
        (256, 8, 1),
        (96, 2, 2),
        # Parts of one row would be slow.
        (67, 2, 1),
        (0, 2, 1),
        (512, 1, 1),
    ],
)
def test_large_batches_are_divided_for_lanes(rows, lanes, parts):
    assert devices.divide(rows, lanes) == parts
