"""Rows of several tasks: their labels, their order, and how tasks are drawn."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_input_pipeline import PROPERTY, SEEDS, make_features

from adapter_bert.data.input_pipeline import (
    batch_signature,
    make_batch,
    train_batches,
)
from adapter_bert.tasks.multi_task import (
    SAMPLINGS,
    JoinedFeatures,
    MultiTaskPlan,
    OneTaskFeatures,
    choose_tasks,
    scoped,
)

pytestmark = pytest.mark.older_stack

NAMES = ("a", "b-1", "bias")
LENGTHS = st.lists(
    st.lists(st.integers(1, 20), min_size=1, max_size=30),
    min_size=2,
    max_size=3,
)


def make_parts(lengths):
    """Features of some tasks; the second has other labels than the others."""
    parts = {name: make_features(of) for name, of in zip(NAMES, lengths)}
    sets = np.ones((len(parts["b-1"]), 3), np.int32)
    parts["b-1"].labels.clear()
    parts["b-1"].labels["label_sets"] = sets
    return parts


def make_plan(lengths, sampling="annealed", steps=40, seed=3, pool=4, size=4):
    features = JoinedFeatures.join(make_parts(lengths))
    return features, MultiTaskPlan(features, sampling, size, steps, seed, pool)


@PROPERTY
@given(LENGTHS, st.data())
def test_a_batch_has_each_rows_tokens_task_and_labels(lengths, data):
    parts = make_parts(lengths)
    joined = JoinedFeatures.join(parts)
    assert len(joined) == sum(map(len, lengths))
    places = [
        (name, i) for name, part in parts.items() for i in range(len(part))
    ]
    chosen = data.draw(
        st.lists(st.integers(0, len(places) - 1), min_size=1, max_size=9)
    )
    batch = make_batch(joined, np.array(chosen), None)
    for number, row in enumerate(chosen):
        name, place = places[row]
        own = make_batch(parts[name], np.array([place]), None)
        length = own["input_ids"].shape[1]
        for key in ("input_ids", "input_mask", "segment_ids"):
            assert batch[key][number, :length].tolist() == own[key][0].tolist()
            assert not batch[key][number, length:].any()
        assert list(parts)[batch["task_ids"][number]] == name
        for task, part in parts.items():
            for key in part.labels:
                found = batch[scoped(task, key)][number]
                expected = own[key][0] if task == name else 0
                assert (found == expected).all()
                assert found.dtype == part.labels[key].dtype


def test_signatures_are_those_of_the_batches():
    joined = JoinedFeatures.join(make_parts([[3, 4], [5], [2]]))
    signature = batch_signature(joined, 6, 3)
    batch = make_batch(joined, np.array([0, 2, 3]), 6)
    assert set(batch) == set(signature)
    for name, value in batch.items():
        assert signature[name].shape.is_compatible_with(value.shape), name
        assert signature[name].dtype == value.dtype, name


def test_in_prediction_rows_have_neither_task_nor_labels():
    joined = JoinedFeatures.join(make_parts([[3, 4], [5]]))
    batch = make_batch(joined.unlabelled(), np.array([0, 2]), None)
    assert set(batch) == {"input_ids", "input_mask", "segment_ids", "row"}


def test_fingerprints_tell_joined_features_apart():
    def fingerprint(lengths, change=lambda parts: None):
        parts = make_parts(lengths)
        change(parts)
        return JoinedFeatures.join(parts).fingerprint()

    def other_label(parts):
        parts["a"].labels["label_ids"][1] = 7

    def other_name(parts):
        parts["c"] = parts.pop("a")

    found = [
        fingerprint([[3, 4], [5, 2]]),
        # The same rows, of which another number is the first task's.
        fingerprint([[3, 4, 5], [2]]),
        fingerprint([[3, 4], [5, 2]], other_label),
        fingerprint([[3, 4], [5, 2]], other_name),
    ]
    assert len(set(found)) == len(found)
    assert fingerprint([[3, 4], [5, 2]]) == found[0]
    assert len(found[0]) == len(hashlib.sha256().hexdigest())


@PROPERTY
@given(LENGTHS, SEEDS, st.sampled_from(sorted(SAMPLINGS)))
def test_each_batch_is_of_one_task_and_each_task_has_all_of_its_rows(
    lengths, seed, sampling
):
    """Epoch after epoch of its own rows, whatever batches are between them."""
    features, plan = make_plan(lengths, sampling, seed=seed, pool=1)
    used = np.zeros(len(features), int)
    for step in range(40):
        rows = plan.rows(step)
        first = features.firsts[plan.tasks[step]]
        own = slice(first, first + len(lengths[plan.tasks[step]]))
        assert (rows >= own.start).all() and (rows < own.stop).all()
        np.add.at(used, rows, 1)
        # No row comes again before all others of its task have come.
        assert used[own].max() - used[own].min() <= 1


@PROPERTY
@given(LENGTHS, SEEDS, st.data())
def test_batches_are_a_function_of_seed_and_step(lengths, seed, data):
    """In any order; so a run that starts again reads the same."""
    _, plan = make_plan(lengths, seed=seed)
    expected = [plan.rows(step).tolist() for step in range(40)]
    _, again = make_plan(lengths, seed=seed)
    for step in data.draw(st.permutations(range(40))):
        assert again.rows(step).tolist() == expected[step]


def test_another_seed_draws_other_tasks_and_rows():
    lengths = [[5] * 30, [5] * 30]
    plans = [make_plan(lengths, seed=seed)[1] for seed in (1, 2)]
    assert plans[0].tasks.tolist() != plans[1].tasks.tolist()
    # Tasks of equal size are not shuffled alike either.
    of_task = [
        plans[0].rows(np.flatnonzero(plans[0].tasks == task)[0]) - 30 * task
        for task in (0, 1)
    ]
    assert of_task[0].tolist() != of_task[1].tolist()


def test_rows_of_like_length_are_grouped_within_a_task():
    rng = np.random.default_rng(0)
    lengths = [rng.integers(2, 40, 200).tolist() for _ in range(2)]

    def padding(pool):
        features, plan = make_plan(lengths, steps=50, pool=pool, size=8)
        batches = train_batches(features, plan, range(50), None)
        masks = [batch["input_mask"] for batch in batches]
        return sum((1 - m).sum() for m in masks) / sum(m.sum() for m in masks)

    assert padding(8) < 0.5 * padding(1)


COUNTS = {"small": 100, "middle": 1000, "large": 8900}


def shares(sampling, batch_size=1, epochs=1):
    """The share of each task in the draws of each epoch."""
    steps = 10_000 * epochs // batch_size
    chosen = choose_tasks(COUNTS, sampling, batch_size, steps, seed=7)
    return [
        np.bincount(part, minlength=3) / len(part)
        for part in np.split(chosen, epochs)
    ]


@pytest.mark.parametrize(
    "sampling, exponent",
    [("proportional", 1.0), ("square_root", 0.5), ("uniform", 0.0)],
)
def test_tasks_are_drawn_by_a_power_of_their_rows(sampling, exponent):
    expected = np.array(list(COUNTS.values())) ** exponent
    for found in shares(sampling, epochs=2):
        np.testing.assert_allclose(found, expected / expected.sum(), atol=0.015)


def test_annealed_sampling_goes_from_proportional_to_nearly_uniform():
    """Stickland and Murray: a = 1 - 0.8 (e - 1) / (E - 1)."""
    rows = np.array(list(COUNTS.values()))
    for found, exponent in zip(
        shares("annealed", batch_size=2, epochs=5), (1, 0.8, 0.6, 0.4, 0.2)
    ):
        expected = rows**exponent
        np.testing.assert_allclose(found, expected / expected.sum(), atol=0.025)


def test_an_only_epoch_is_proportional():
    [annealed] = shares("annealed")
    [proportional] = shares("proportional")
    assert annealed.tolist() == proportional.tolist()


def test_plans_say_what_they_depend_on():
    lengths = [[5] * 30, [5] * 30]
    texts = {
        repr(make_plan(lengths, **change)[1])
        for change in (
            {},
            {"sampling": "uniform"},
            {"steps": 41},
            {"seed": 4},
            {"pool": 5},
            {"size": 5},
        )
    }
    assert len(texts) == 6
    assert repr(make_plan(lengths)[1]) in texts


@pytest.mark.parametrize("labelled", [True, False])
def test_rows_of_one_task_say_which(labelled):
    own = make_features([3, 5, 2])
    features = OneTaskFeatures.of(own, 2)
    assert features.fingerprint() == own.fingerprint()
    if not labelled:
        features, own = features.unlabelled(), own.unlabelled()
    batch = make_batch(features, np.array([2, 0]), None)
    assert set(batch) == set(batch_signature(features, None, 2))
    ids = batch.pop("task_ids")
    assert ids.dtype == np.int32 and ids.tolist() == [2, 2]
    expected = make_batch(own, np.array([2, 0]), None)
    assert set(batch) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(batch[name], value)
