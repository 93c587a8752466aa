"""Jobs for engines, small enough to train in a second."""

import contextlib
import functools
import os
import unittest.mock
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from adapter_bert import optimization
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import google, training_state
from adapter_bert.data.input_pipeline import (
    NO_LABEL,
    Choices,
    Features,
    TrainPlan,
)
from adapter_bert.data.tables import Layout
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.multi_label import MultiLabel
from adapter_bert.tasks.multi_task import JoinedFeatures, multi_task
from adapter_bert.tasks.multiple_choice import COPA
from adapter_bert.tasks.squad import Squad
from adapter_bert.tasks.tagging import SentenceWindows, tagging_task
from adapter_bert.tasks.tagging_files import split_tag
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.tasks.text_regression import TextRegression
from adapter_bert.tasks.vectors import Vectors, layout_of_columns
from adapter_bert.training.engines import Course, choose_engine
from adapter_bert.training.settings import Hardware
from adapter_bert.training.training_step import Job, loss_and_gradients

ESTIMATOR = pytest.mark.skipif(
    not hasattr(tf, "estimator"),
    reason=f"TensorFlow {tf.__version__} has no TPUEstimator",
)
# Tests each engine in turn; of those that run here.
EITHER = pytest.mark.parametrize(
    "name", [pytest.param("estimator", marks=ESTIMATOR), "strategy"]
)
CLASSIFICATION = TextClassification(
    "tiny", Layout(0), Layout(0), labels=("a", "b")
)
SQUAD = Squad(
    "squad",
    doc_stride=4,
    max_query_length=4,
    n_best_size=5,
    max_answer_length=3,
)
TAGGING = replace(
    tagging_task(), tags=tuple(map(split_tag, ("O", "B-X", "I-X")))
)
CHOICE = replace(COPA, name="choice")
MULTI = multi_task(
    [
        ("labels", CLASSIFICATION),
        ("scores", TextRegression("tiny", Layout(0), Layout(0))),
        (
            "sets",
            MultiLabel("tiny", Layout(0), Layout(0), labels=("a", "b", "c")),
        ),
    ],
    "annealed",
)
TASKS = {
    task.name: task for task in (CLASSIFICATION, SQUAD, TAGGING, CHOICE, MULTI)
}
# These compare the rows of a batch, which TPUEstimator does not on a TPU.
VECTORS = Vectors()
TWO = Vectors(layout=layout_of_columns("a", "b", (), None), two_adapters=True)
COMPARING = {"vectors": VECTORS, "two_adapters": TWO}
LENGTH = 12


def make_rows(task, lengths=None):
    """40 random rows with the task's labels."""
    rng = np.random.default_rng(0)
    if task in (CHOICE, VECTORS, TWO):
        lengths = rng.integers(3, LENGTH + 1, 2 * 40)
    elif lengths is None:
        lengths = rng.integers(3, LENGTH + 1, 40)
    rows = [(rng.integers(4, 30, n), [0] * n) for n in lengths]
    if task is MULTI:
        labels = {
            "labels": {"label_ids": rng.integers(0, 2, 15).astype(np.int32)},
            "scores": {"label_scores": rng.random(15, np.float32)},
            "sets": {"label_sets": rng.integers(0, 2, (10, 3), np.int32)},
        }
        return JoinedFeatures.join(
            {
                name: Features.from_rows(rows[first : first + count], of)
                for (name, of), first, count in zip(
                    labels.items(), (0, 15, 30), (15, 15, 10)
                )
            }
        )
    if task is SQUAD:
        starts = rng.integers(0, lengths).astype(np.int32)
        labels = {"start_positions": starts, "end_positions": starts}
    elif task is TAGGING:
        # Some rows have no labelled token at all.
        tags = rng.integers(NO_LABEL, 3, sum(lengths)).astype(np.int32)
        tags[: lengths[0]] = NO_LABEL
        features = Features.from_rows(rows, {})
        return SentenceWindows(
            **vars(features),
            places=np.flatnonzero(tags != NO_LABEL),
            token_labels=tags,
        )
    elif task in (VECTORS, TWO):
        labels = {"text_ids": rng.integers(0, 60, (40, 2)).astype(np.int32)}
    else:
        labels = {"label_ids": rng.integers(0, 2, 40).astype(np.int32)}
    features = Features.from_rows(rows, labels)
    if task in (CHOICE, VECTORS, TWO):
        return Choices(**vars(features), choices=2, has_sides=task == TWO)
    return features


def make_job(
    config,
    folder,
    method="houlsby(size=4)",
    length=None,
    seed=5,
    task=CLASSIFICATION,
    **more,
):
    """A job from fresh values; the method as text, or as it is."""
    if isinstance(method, str):
        method = parse(method)
    table = task_model.list_parameters(config, method, task.build_head)
    values = {
        p.name: functools.partial(
            encoder.initial_values, p.name, p.shape, p.initializer, seed
        )
        for p in table.parameters
    }
    return Job(
        lambda create: task_model.TaskModel(
            config, method, task.build_head, create
        ),
        table,
        values,
        str(folder),
        seed,
        length,
        **more,
    )


def shaken_model(job, scale=0.1):
    """A job's model, its variables by name, and those that are trained.

    The trained ones are random, unless `scale` is 0.
    """
    rng = np.random.default_rng(1)
    made = {}
    for p in sorted(job.table.parameters, key=lambda p: p.name):
        value = encoder.initial_values(p.begins_as, p.shape, p.initializer, 3)
        if p.trained:
            value = value + rng.normal(0, scale, p.shape)
        made[p.name] = tf.Variable(
            value.astype(np.float32), trainable=p.trained
        )
    model = job.build_model(lambda name, *_: made[name])
    return model, made, [(p.name, made[p.name]) for p in job.table.trained]


def first_step(job, model, trained, batch):
    """The loss and the gradients of a batch of eight rows."""

    @tf.function(autograph=False)
    def compute():
        step = tf.constant(0, tf.int64)
        return loss_and_gradients(job, model, trained, batch, step, 8)

    return compute()


def zero_step(job, rows):
    """A model of zeros, and its training step as a function of ids, labels."""
    variables = {
        p.name: tf.Variable(np.zeros(p.shape, np.float32), trainable=p.trained)
        for p in job.table.parameters
    }
    model = job.build_model(lambda name, *_: variables[name])
    trained = [(p.name, variables[p.name]) for p in job.table.trained]

    def step(ids, labels):
        ones = tf.ones_like(ids)
        features = {
            "input_ids": ids,
            "segment_ids": 0 * ones,
            "input_mask": ones,
            "row": tf.range(rows),
            "label_ids": labels,
        }
        return loss_and_gradients(
            job, model, trained, features, tf.constant(0), rows
        )

    return model, step


class Stopped(Exception):
    """A training that was interrupted."""


def train(
    engine,
    job,
    rows,
    steps=3,
    save_steps=100,
    batch_size=8,
    stop_at=0,
    learning_rate=1e-2,
    **pauses,
):
    """Trains, perhaps up to a step only; returns (step, loss) of every step."""
    progress = unittest.mock.Mock()
    seen, begun = [], training_state.latest_step(job.output_dir)[1]

    def update(step, loss, is_timed=True):
        del is_timed
        if stop_at and step > stop_at:
            raise Stopped
        seen.append((step, loss))

    progress.update.side_effect = update
    with contextlib.suppress(Stopped):
        course = Course(
            rows,
            TrainPlan(rows.lengths, batch_size, steps, 1),
            optimization.Schedule(learning_rate, steps, 1),
            begun,
            batch_size,
            stop_at - begun if stop_at else save_steps,
            **pauses,
        )
        engine.train(job, course, progress)
    return seen


def new_engine(name="strategy", **hardware):
    return choose_engine(name)[0](Hardware(**hardware))


def train_alike(jobs, rows, tolerance, make_engine=new_engine, **more):
    """Trains two jobs that come to the same; returns their losses."""
    losses = [train(make_engine(), job, rows, **more) for job in jobs]
    assert_allclose(*losses, atol=tolerance)
    check_equal(*map(trained_values, jobs), tolerance)
    return losses


def predict(engine, job, rows, batch_size):
    """The outputs of a predictor of its own."""
    with engine.predictor(job) as predictor:
        return predictor.predict(rows, batch_size, "eval")


def trained_values(job, step=None):
    """All that the newest, or a named, checkpoint holds."""
    path = training_state.latest_step(job.output_dir)[0]
    if step is not None:
        path = os.path.join(job.output_dir, f"model.ckpt-{step}")
    weights = google.open_tensorflow(path)
    return {name: weights.read(name) for name in weights.shapes}


def check_gradients(trained, slopes, expected):
    """Compares gradients of (name, variable), none of them nothing."""
    for (name, _), slope, other in zip(trained, slopes, expected):
        other = tf.convert_to_tensor(other).numpy()
        tolerance = 1e-6 * max(1, np.abs(other).max())
        assert_allclose(slope, other, atol=tolerance, err_msg=name)
        assert np.abs(slope).max() > 1e-5 or "bias" in name, name


def check_equal(values, expected, tolerance=0.0):
    assert set(values) == set(expected)
    for name, value in expected.items():
        assert_allclose(values[name], value, atol=tolerance, err_msg=name)
