"""Predictors of both engines: built once, trained values swapped."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from engine_jobs import (
    CLASSIFICATION,
    make_job,
    make_rows,
    new_engine,
    predict,
    train,
)
from numpy.testing import assert_allclose, assert_array_equal

from adapter_bert import optimization
from adapter_bert.data.input_pipeline import make_batch
from adapter_bert.training import prediction


@pytest.fixture
def made(engine):
    """Each engine in turn."""
    return new_engine(engine)


def counted(job):
    """The job, and what it builds and reads: `model` or a variable's name."""
    events = []

    def build_model(create):
        events.append("model")
        return job.build_model(create)

    def read(name):
        events.append(name)
        return job.initial_values[name]()

    values = {n: (lambda n=n: read(n)) for n in job.initial_values}
    return (
        replace(job, build_model=build_model, initial_values=values),
        events,
    )


def other_values(job):
    rng = np.random.default_rng(1)
    return {
        p.name: rng.normal(0, 0.5, p.shape).astype(np.float32)
        for p in job.table.trained
    }


@pytest.fixture
def job(tiny_config, tmp_path):
    return make_job(tiny_config, tmp_path)


def test_all_splits_stand_on_one_model(made, job):
    """Of other lengths, in batches of other sizes."""
    job, events = counted(job)
    splits = [
        (make_rows(CLASSIFICATION), 7),
        (make_rows(CLASSIFICATION, [5] * 40), 16),
    ]
    with made.predictor(job) as predictor:
        outputs = [predictor.predict(*split, "eval") for split in splits]
        again = predictor.predict(*splits[0], "eval")
        if hasattr(predictor, "_compute"):
            assert predictor._compute.experimental_get_tracing_count() == 1
    assert sorted(events) == sorted([*job.initial_values, "model"])
    assert_array_equal(again["logits"], outputs[0]["logits"])
    for split, output in zip(splits, outputs):
        expected = predict(made, job, *split)["logits"]
        assert_allclose(output["logits"], expected, atol=1e-6)


def test_many_runs_are_no_reason_for_a_warning(job, caplog):
    """TensorFlow warns of a function that it traces five times in a row."""
    for _ in range(6):
        predict(new_engine(), job, make_rows(CLASSIFICATION), 40)
    assert "retracing" not in caplog.text


@pytest.mark.parametrize("tokens,batches", [(0, 20), (48, 7), (10_000, 1)])
def test_short_rows_are_predicted_more_at_once(
    made, tiny_config, tmp_path, monkeypatch, tokens, batches
):
    rows = make_rows(CLASSIFICATION, lengths=[*[3] * 20, *[12] * 20])
    made.check_devices()
    job = make_job(tiny_config, tmp_path, lanes=1)
    with made.predictor(job) as predictor:
        expected = predictor.predict(rows, 40, "test")["logits"]
    counted = []
    monkeypatch.setattr(
        prediction.input_pipeline,
        "make_batch",
        lambda *args: counted.append(make_batch(*args)) or counted[-1],
    )
    job = replace(job, predict_tokens=tokens)
    with made.predictor(job) as predictor:
        logits = predictor.predict(rows, 2, "test")["logits"]
    assert_allclose(logits, expected, atol=1e-6)
    assert len(counted) == batches


def test_trained_values_are_swapped_without_building(made, job):
    job, events = counted(job)
    rows, values = make_rows(CLASSIFICATION), other_values(job)
    changed = {n: (lambda v=v: v) for n, v in values.items()}
    changed = replace(job, initial_values={**job.initial_values, **changed})
    expected = [predict(made, j, rows, 16)["logits"] for j in (job, changed)]
    first = {n: job.initial_values[n]() for n in values}
    events.clear()
    with made.predictor(job) as predictor:
        # Before anything is built, and again and again after.
        for number, loaded in ((1, values), (0, first), (1, values)):
            predictor.load(loaded)
            outputs = predictor.predict(rows, 16, "eval")["logits"]
            assert_allclose(outputs, expected[number], atol=1e-6)
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    assert events.count("model") == 1 and len(events) == len(set(events))


# After a training


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_training_hands_its_variables_over(job, monkeypatch):
    """Nothing is read again; optimizer slots are gone by then."""
    engine = new_engine()
    job, events = counted(job)
    rows, slots = make_rows(CLASSIFICATION), []
    create = optimization.AdamWeightDecay

    def note_slots(trained, made, *arguments):
        slots.extend(map(weakref.ref, made.values()))
        return create(trained, made, *arguments)

    monkeypatch.setattr(optimization, "AdamWeightDecay", note_slots)
    train(engine, job, rows)
    events.clear()
    with engine.predictor(job) as predictor:
        assert len(slots) == 2 * len(job.table.trained)
        assert not [slot for slot in slots if slot() is not None]
        outputs = predictor.predict(rows, 8, "eval")["logits"]
        assert not events
    # The second one has the checkpoint's.
    assert_array_equal(predict(engine, job, rows, 8)["logits"], outputs)
    assert "model" in events


@pytest.mark.gate
@pytest.mark.older_stack
def test_variables_of_another_training_are_not_taken(job, tiny_config, folders):
    """Neither of another job, nor when the folder's training has gone on."""
    engine, rows = new_engine(), make_rows(CLASSIFICATION)
    job, events = counted(job)
    train(engine, job, rows, steps=2)
    train(new_engine(), job, rows, steps=4)
    events.clear()
    outputs = predict(engine, job, rows, 8)["logits"]
    assert "model" in events
    train(engine, make_job(tiny_config, folders("other")), rows, steps=2)
    assert_array_equal(predict(engine, job, rows, 8)["logits"], outputs)


def test_a_predictor_goes_on_after_a_failure(made, job):
    job, events = counted(job)
    rows = make_rows(CLASSIFICATION)
    wrong = replace(rows, tokens=rows.tokens + 99)
    values = other_values(job)
    with made.predictor(job) as predictor:
        predictor.load(values)
        outputs = predictor.predict(rows, 8, "eval")["logits"]
        with pytest.raises(tf.errors.InvalidArgumentError):
            predictor.predict(wrong, 8, "eval")
        again = predictor.predict(rows, 8, "eval")["logits"]
    assert events.count("model") == 1
    assert_allclose(again, outputs, atol=1e-6)
