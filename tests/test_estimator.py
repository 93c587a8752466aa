"""The TPUEstimator engine on the CPU."""

import json
import os
import threading
import unittest.mock
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from conftest import as_tensors
from engine_jobs import (
    CLASSIFICATION,
    LENGTH,
    MULTI,
    make_job,
    make_rows,
    predict,
    train,
)
from numpy.testing import assert_allclose

from adapter_bert import optimization
from adapter_bert.data.input_pipeline import make_batch
from adapter_bert.errors import UserError
from adapter_bert.training.settings import Hardware

if not hasattr(tf, "estimator"):
    pytest.skip(
        f"TensorFlow {tf.__version__} has no TPUEstimator",
        allow_module_level=True,
    )
from adapter_bert.checkpoints import training_state
from adapter_bert.training import estimator as estimator_module  # noqa: E402
from adapter_bert.training.estimator import EstimatorEngine  # noqa: E402

v1 = tf.compat.v1


@pytest.fixture
def rows():
    return make_rows(CLASSIFICATION)


@pytest.mark.parametrize(
    "message, is_told",
    [
        ("Gradient for x:0 is NaN : Tensor had NaN values", True),
        ("Gradient for x:0 is NaN : Tensor had Inf values", True),
        ("b", False),
    ],
)
def test_a_value_that_is_no_number_is_told_as_tpuestimator_finds_it(
    tiny_config, tmp_path, rows, monkeypatch, message, is_told
):
    """On a TPU it looks before any hook does."""
    error = tf.errors.InvalidArgumentError(None, None, message)
    stub = unittest.mock.Mock()
    stub.train.side_effect = error
    monkeypatch.setattr(EstimatorEngine, "_estimator", lambda *_: stub)
    with pytest.raises(UserError if is_told else type(error)) as caught:
        train(
            EstimatorEngine(Hardware()), make_job(tiny_config, tmp_path), rows
        )
    assert ("lower --learning_rate" in str(caught.value)) == is_told


@pytest.mark.parametrize(
    "names, count", [(["GPU:0", "GPU:1"], 1), (["CPU:0", "CPU:1", "CPU:2"], 3)]
)
def test_the_host_is_a_device_beside_gpus(
    monkeypatch, tiny_config, tmp_path, names, count
):
    # There are no such GPUs here.
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda devices: None)
    engine = EstimatorEngine(Hardware())
    monkeypatch.setattr(engine, "_devices", names)
    job = make_job(tiny_config, tmp_path)
    made = engine._estimator(job, 8, None)
    assert made.config.session_config.device_count == {"CPU": count}


def test_one_thread_writes_all_checkpoints(
    tiny_config, tmp_path, rows, monkeypatch
):
    """Each would keep some of the memory that it has written from."""
    threads = []
    save = training_state.save_training

    def watched(*arguments):
        threads.append(threading.current_thread())
        save(*arguments)

    monkeypatch.setattr(training_state, "save_training", watched)
    job = make_job(tiny_config, tmp_path)
    train(EstimatorEngine(Hardware()), job, rows, save_steps=1)
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert not threads[0].is_alive()


@pytest.mark.parametrize("method", ["houlsby(size=4)", "top_layers(1)"])
def test_frozen_variables_keep_every_bit(tiny_config, tmp_path, rows, method):
    """Read at the end of a real training, from its own session."""
    job = make_job(tiny_config, tmp_path, method)
    values = {}

    class ReadAll(v1.train.SessionRunHook):
        predictor = None

        def end(self, session):
            for variable in v1.global_variables() + v1.local_variables():
                values[variable.op.name] = session.run(variable)

    reader = ReadAll()
    with unittest.mock.patch.object(
        estimator_module, "TrainingHook", lambda *_: reader
    ):
        train(EstimatorEngine(Hardware()), job, rows)
    for p in job.table.parameters:
        same = np.array_equal(values[p.name], job.initial_values[p.name]())
        assert same == (not p.trained), p.name


def engine_step(job, rows, compile_step):
    """One step of the engine's own graph: the loss and what it trained."""
    # Of several tasks some rows of each.
    batch = make_batch(rows, np.arange(0, 40, 5), LENGTH)
    schedule = optimization.Schedule(1e-3, 10, 0)
    model_fn = EstimatorEngine(Hardware())._model_fn(job, schedule, 8)

    def step():
        features = as_tensors(batch)
        spec = model_fn(features, None, tf.estimator.ModeKeys.TRAIN, {})
        return [spec.loss, spec.train_op]

    with tf.Graph().as_default(), v1.Session() as session:
        if compile_step:
            # Outputs of a compiled computation wait for its functional.
            loss = tf.xla.experimental.compile(step)[0]
        else:
            loss, train_op = step()
            with tf.control_dependencies([train_op]):
                loss = tf.identity(loss)
        session.run(
            [
                v1.global_variables_initializer(),
                v1.local_variables_initializer(),
            ]
        )
        value = session.run(loss)
        trained = {p.name for p in job.table.trained}
        return value, {
            v.op.name: session.run(v)
            for v in v1.global_variables()
            if v.op.name in trained
        }


@pytest.mark.gate
def test_the_training_step_compiled_by_xla_equals_the_plain_one(tiny_config):
    """Dropout on; the very graph that the engine builds.

    tests/test_accelerators_step.py has other tasks.
    """
    rows = make_rows(MULTI)
    config = replace(tiny_config, num_hidden_layers=1)
    job = make_job(
        config, "unused", length=LENGTH, task=MULTI, share_layers=False
    )
    plain_loss, plain = engine_step(job, rows, compile_step=False)
    xla_loss, xla = engine_step(job, rows, compile_step=True)
    assert abs(plain_loss - xla_loss) < 1e-5
    assert len(plain) == len(job.table.trained)
    for name, value in plain.items():
        assert_allclose(xla[name], value, atol=1e-5, err_msg=name)
        assert (value != job.initial_values[name]()).any()


def test_it_runs_on_a_machine_that_is_called_a_worker(
    monkeypatch, tiny_config, tmp_path, rows
):
    """Which its own reading of TF_CONFIG would refuse."""
    alone = json.dumps(
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    )
    monkeypatch.setenv("TF_CONFIG", alone)
    engine, job = EstimatorEngine(Hardware()), make_job(tiny_config, tmp_path)
    engine.check_devices()
    assert len(train(engine, job, rows, steps=1)) == 1
    assert len(predict(engine, job, rows, 8)["logits"]) == 40
    assert os.environ["TF_CONFIG"] == alone
