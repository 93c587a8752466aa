"""The tf.distribute engine, and that both engines compute the same."""

import os
import unittest.mock
from dataclasses import replace

import numpy as np
import pytest
import refusals
import tensorflow as tf
from engine_jobs import (
    CLASSIFICATION,
    EITHER,
    ESTIMATOR,
    MULTI,
    TASKS,
    check_equal,
    make_job,
    make_rows,
    new_engine,
    train,
    train_alike,
    trained_values,
)
from numpy.testing import assert_allclose

from adapter_bert import optimization
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints.training_state import latest_step
from adapter_bert.data.input_pipeline import TrainPlan
from adapter_bert.errors import UserError
from adapter_bert.training import strategy
from adapter_bert.training.engines import (
    Course,
    check_batch_size,
    choose_engine,
)
from adapter_bert.training.settings import Hardware
from adapter_bert.training.strategy import StrategyEngine


@pytest.mark.gate
@ESTIMATOR
@pytest.mark.parametrize("name", [MULTI.name, "squad", "tagging"])
def test_both_engines_agree_at_every_step(tiny_config, folders, name):
    """Dropout on, 50 steps; of several tasks one is a classification."""
    names = ["estimator", "strategy"]
    jobs = [make_job(tiny_config, folders(n), task=TASKS[name]) for n in names]
    engines = iter(names)
    _, losses = train_alike(
        jobs,
        make_rows(TASKS[name]),
        1e-4,
        lambda: new_engine(next(engines)),
        steps=50,
        learning_rate=1e-3,
    )
    steps, values = zip(*losses)
    assert steps == (*range(1, 51),) and len(set(values)) == 50


@pytest.mark.gate
@ESTIMATOR
def test_each_engine_goes_on_with_the_others_run(tiny_config, folders):
    rows = make_rows(CLASSIFICATION)
    whole = make_job(tiny_config, folders("whole"))
    train(new_engine("estimator"), whole, rows, steps=9)
    parts = make_job(tiny_config, folders("parts"))
    for name, first, last in (
        ("estimator", 1, 3),
        ("strategy", 4, 6),
        ("estimator", 7, 9),
    ):
        # It saves where it stops.
        losses = train(new_engine(name), parts, rows, steps=9, stop_at=last)
        assert [step for step, _ in losses] == [*range(first, last + 1)]
        assert latest_step(parts.output_dir)[1] == last
    check_equal(trained_values(parts), trained_values(whole), 1e-5)


@pytest.mark.gate
@pytest.mark.newer_stack
def test_several_steps_may_run_between_two_returns(
    tiny_config, folders, monkeypatch
):
    """As on a GPU, here on the CPU; checkpoints come when they are due.

    Speed is taken at the end of each call. Before it, steps are told that
    were done a while ago.
    """
    updates = []

    def update(step, loss, is_timed):
        updates.append((step, loss, is_timed))

    plain = make_job(tiny_config, folders("plain"))
    train_telling(update, plain, steps=8, save_steps=5)
    expected, updates[:] = list(updates), []
    assert [step for step, _, is_timed in expected if is_timed] == [
        *range(1, 9)
    ]
    looped, calls = make_job(tiny_config, folders("looped")), []
    run = strategy._run

    def note(train_steps, batches, count):
        calls.append(int(count))
        return run(train_steps, batches, count)

    monkeypatch.setattr(strategy, "_run", note)
    monkeypatch.setattr(StrategyEngine, "_steps_per_call", 4)
    train_telling(update, looped, steps=8, save_steps=5)
    assert calls == [4, 1, 3]
    assert [one[:2] for one in updates] == [one[:2] for one in expected]
    assert [step for step, _, is_timed in updates if is_timed] == [4, 5, 8]
    for step in (5, 8):
        check_equal(trained_values(looped, step), trained_values(plain, step))


@pytest.mark.parametrize(
    "hardware, gpus, steps",
    [
        (Hardware(), 0, 1),
        (Hardware(num_devices=2), 0, 1),
        (Hardware(), 1, strategy.GPU_STEPS),
        (Hardware(use_tpu=True, iterations_per_loop=7), 0, 7),
    ],
)
def test_accelerators_return_after_several_steps(
    monkeypatch, hardware, gpus, steps
):
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: ["GPU"] * gpus
    )
    assert StrategyEngine(hardware)._steps_per_call == steps


def train_telling(update, job, steps, save_steps=100):
    """Trains, and has `update` told what the progress is told."""
    progress = unittest.mock.Mock()
    progress.update.side_effect = update
    rows = make_rows(CLASSIFICATION)
    plan = TrainPlan(rows.lengths, 8, steps, 1)
    schedule = optimization.Schedule(1e-2, steps, 1)
    course = Course(rows, plan, schedule, 0, 8, save_steps)
    new_engine().train(job, course, progress)


@pytest.mark.newer_stack
def test_the_first_loss_that_is_no_number_is_named(
    tiny_config, folders, monkeypatch
):
    """Though later steps of the same call were computed; none is saved."""
    job, seen = make_job(tiny_config, folders("run")), []
    run = strategy._run

    def spoil(*arguments):
        losses = run(*arguments)
        return [*losses[:2], float("nan"), *losses[3:]]

    monkeypatch.setattr(strategy, "_run", spoil)
    monkeypatch.setattr(StrategyEngine, "_steps_per_call", 4)
    refusals.check(
        lambda: train_telling(
            lambda step, *_, **__: seen.append(step), job, steps=4
        ),
        "the loss of step 3 is nan",
        "lower --learning_rate",
    )
    assert seen == [1, 2] and not os.listdir(job.output_dir)


@pytest.mark.parametrize(
    "workers, expected, words",
    [
        (1, tf.errors.UnavailableError, "^gone"),
        (2, UserError, "another worker has stopped; see its log.*gone"),
    ],
)
def test_what_a_lost_worker_raises_is_one_line_where_there_are_others(
    tiny_config, folders, monkeypatch, workers, expected, words
):
    """Of a machine alone it keeps its traceback."""

    def fail(*arguments):
        raise tf.errors.UnavailableError(None, None, "gone")

    monkeypatch.setattr(strategy, "_run", fail)
    trained = new_engine()
    trained.workers = workers
    job = make_job(tiny_config, folders("run"))
    with pytest.raises(expected, match=words):
        train(trained, job, make_rows(CLASSIFICATION))


@pytest.mark.newer_stack
def test_a_training_is_looked_at_where_it_pauses_and_may_end_there(
    tiny_config, folders
):
    """So is the estimator's, by tests/test_early_stopping.py."""
    looked = []

    def look(step, predictor):
        looked.append(step)
        return step == 4

    job = make_job(tiny_config, folders("run"))
    losses = train(
        new_engine(),
        job,
        make_rows(CLASSIFICATION),
        steps=6,
        stops=frozenset([2, 4]),
        look=look,
    )
    assert looked == [2, 4]
    assert [step for step, _ in losses] == [1, 2, 3, 4]
    assert latest_step(job.output_dir)[1] == 4


@EITHER
def test_checkpoints_hold_what_is_trained(tiny_config, folders, name):
    job = make_job(tiny_config, folders("run"))
    train(new_engine(name), job, make_rows(CLASSIFICATION), steps=1)
    trained = [p.name for p in job.table.trained]
    assert set(trained_values(job)) == {
        *trained,
        *(f"{name}/adam_{slot}" for name in trained for slot in "mv"),
        "global_step",
    }


@pytest.mark.newer_stack
def test_frozen_variables_keep_every_bit(tiny_config, folders):
    job = make_job(tiny_config, folders("run"))
    models = {}

    def build_model(create):
        def create_and_note(name, *about):
            models[name] = create(name, *about)
            return models[name]

        return job.build_model(create_and_note)

    noted = replace(job, build_model=build_model)
    train(new_engine(), noted, make_rows(CLASSIFICATION))
    trained = {p.name for p in job.table.trained}
    assert len(models) == len(job.table.parameters)
    for name, variable in models.items():
        same = np.array_equal(variable.numpy(), job.initial_values[name]())
        assert same == (name not in trained), name


@ESTIMATOR
def test_a_loss_that_is_no_number_is_one_clear_line(tiny_config, folders):
    job = make_job(tiny_config, folders("run"))
    values = dict(job.initial_values)
    values["output_bias"] = lambda: np.full(2, np.nan, np.float32)
    job = replace(job, initial_values=values)
    refusals.check(
        lambda: train(new_engine("estimator"), job, make_rows(CLASSIFICATION)),
        "lower --learning_rate",
    )
    assert not latest_step(job.output_dir)[0]


# The gradient


def gradient_by_hand(config, job, rows, chosen):
    """Mean loss of some rows and its clipped gradient, without an engine."""
    variables = {n: tf.Variable(of()) for n, of in job.initial_values.items()}
    model = job.build_model(lambda name, *_: variables[name])
    trained = [variables[p.name] for p in job.table.trained]
    with tf.GradientTape() as tape:
        losses = []
        for row in chosen:
            tokens = rows.tokens[rows.starts[row] : rows.starts[row + 1]]
            ones = tf.ones([1, len(tokens)], tf.int32)
            features = {
                "input_ids": tf.constant(tokens[np.newaxis]),
                "segment_ids": 0 * ones,
                "input_mask": ones,
                "label_ids": tf.constant(rows.labels["label_ids"][[row]]),
            }
            predictions = model(features, Context(ones, training=False))
            losses.append(model.head.loss(predictions, features)[0])
        loss = tf.reduce_mean(losses)
    gradients = map(tf.convert_to_tensor, tape.gradient(loss, trained))
    means = [gradient.numpy() for gradient in gradients]
    norm = np.sqrt(sum((m**2).sum() for m in means))
    factor = min(1.0, optimization.CLIP_NORM / norm)
    names = (p.name for p in job.table.trained)
    return float(loss), dict(zip(names, (factor * m for m in means)))


@EITHER
def test_the_gradient_is_the_mean_over_the_batch_and_clipped_then(
    steady_config, steady, folders, name
):
    """After one step `adam_m` is a tenth of the gradient."""
    rows = make_rows(CLASSIFICATION)
    job = make_job(steady_config, folders("run"))
    # A large head makes a gradient that has to be clipped.
    values = dict(job.initial_values)
    rng = np.random.default_rng(3)
    large = rng.normal(0, 30, (2, 16)).astype(np.float32)
    values["output_weights"] = lambda: large
    job = replace(job, initial_values=values, parts=4)
    losses = train(new_engine(name), job, rows, steps=1)
    chosen = TrainPlan(rows.lengths, 8, 1, 1).rows(0)
    loss, gradients = gradient_by_hand(steady_config, job, rows, chosen)
    assert abs(losses[0][1] - loss) < 1e-5 * loss
    saved = trained_values(job)
    total = np.sqrt(sum((g**2).sum() for g in gradients.values()))
    assert_allclose(total, 1.0, rtol=1e-5)
    for variable, gradient in gradients.items():
        assert_allclose(saved[f"{variable}/adam_m"], 0.1 * gradient, atol=1e-6)


def test_a_batch_that_cannot_be_divided_is_refused():
    check_batch_size(24, 2, 3)
    refusals.check(
        lambda: check_batch_size(8, 1, 3), "8 cannot be divided", "1 ", " 3 "
    )


# The choice


def test_auto_takes_the_engine_that_can_run(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    chosen, why = choose_engine("auto")
    if hasattr(tf, "estimator"):
        assert chosen.__name__ == "EstimatorEngine" and "has it" in why
    else:
        assert chosen is StrategyEngine and "has no TPUEstimator" in why
    assert choose_engine("strategy") == (StrategyEngine, "--engine names it")


@refusals.table(
    {
        "estimator": (
            lambda: choose_engine("estimator"),
            "has no TPUEstimator",
            "--engine=strategy",
        ),
        "unknown": (
            lambda: choose_engine("keras"),
            "'keras'",
            "auto or one of estimator",
        ),
    }
)
def test_an_engine_that_is_not_there_is_refused(monkeypatch, call, parts):
    monkeypatch.delattr(tf, "estimator", raising=False)
    refusals.check(call, *parts)
