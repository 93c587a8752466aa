"""Batches: every row in its turn, padded right, in the order of a seed."""

import dataclasses
import hashlib
import weakref

import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
from hypothesis import given, settings
from numpy.random import default_rng
from numpy.testing import assert_array_equal

from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Features, TrainPlan
from adapter_bert.data.table_flags import POOL_BATCHES

PROPERTY = settings(max_examples=50)
LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)
SEEDS = st.integers(0, 2**31)


def make_features(lengths, labels=True):
    """Rows whose tokens tell the row and the place."""
    rows = [
        (
            [100 * (row + 1) + place for place in range(length)],
            [int(place > length // 2) for place in range(length)],
        )
        for row, length in enumerate(lengths)
    ]
    count = len(rows)
    named = {
        "label_ids": np.arange(count, dtype=np.int32),
        "scores": np.linspace(0, 1, 2 * count, dtype=np.float32).reshape(
            count, 2
        ),
    }
    return Features.from_rows(rows, named if labels else {})


def make_plan(lengths, batch_size, steps, seed):
    return TrainPlan(np.array(lengths, np.int64), batch_size, steps, seed)


def all_rows(plan, steps):
    return [plan.rows(step) for step in range(steps)]


def assert_same_batches(batches, others):
    batches, others = list(batches), list(others)
    assert len(batches) == len(others)
    for batch, other in zip(batches, others):
        assert set(batch) == set(other)
        for name in batch:
            assert_array_equal(batch[name], other[name], name)


def test_fingerprints_tell_features_apart():
    rows = [([5, 6], [0, 1]), ([7], [0])]
    labels = {"label_ids": np.array([0, 1], np.int32)}
    variants = [
        (rows, labels),
        (rows, {}),
        (rows, {"label_ids": np.array([1, 0], np.int32)}),
        (rows, {"scores": labels["label_ids"]}),
        ([([5, 8], [0, 1]), ([7], [0])], labels),
        ([([5, 6], [0, 0]), ([7], [0])], labels),
        ([([5], [0]), ([6, 7], [1, 0])], labels),
        (rows[::-1], labels),
        ([], {"label_ids": np.zeros(0, np.int32)}),
    ]
    prints = [Features.from_rows(*v).fingerprint() for v in variants]
    assert len(set(prints)) == len(variants)
    assert Features.from_rows(rows, dict(labels)).fingerprint() == prints[0]
    features = with_token_labels([3, 5, 4, 7])
    plain = features.unlabelled()
    assert not plain.labels and plain.token_labels is None
    backwards = features.token_labels[::-1]
    other = dataclasses.replace(features, token_labels=backwards)
    assert len({f.fingerprint() for f in (features, plain, other)}) == 3


def test_fingerprints_stay_those_of_recorded_runs(monkeypatch):
    """They are of int32 segments, whatever these are kept as."""
    features = make_features([4, 1, 7])
    digest = hashlib.sha256()
    for name in ("label_ids", "scores"):
        digest.update(name.encode() + b"\0" + features.labels[name].tobytes())
    digest.update(features.tokens.astype(np.int32).tobytes())
    digest.update(features.segments.astype(np.int32).tobytes())
    digest.update(features.starts.astype(np.int64).tobytes())
    assert features.segments.max() == 1
    for piece in (1, 5, 2**20):
        monkeypatch.setattr(input_pipeline, "PIECE", piece)
        assert features.fingerprint() == digest.hexdigest()


def test_rows_are_packed_as_they_come_and_not_kept():
    alive = weakref.WeakSet()

    class Row(list):
        """A list that can be watched."""

    def rows():
        for number in range(100):
            assert len(alive) < 3
            row = Row([number, number])
            alive.add(row)
            yield row, [0, 1]

    # A set needs to tell them apart.
    Row.__hash__ = object.__hash__
    Row.__eq__ = object.__eq__
    features = Features.from_rows(rows(), {})
    assert features.tokens.tolist() == [n for n in range(100) for _ in "ab"]
    assert (features.tokens.dtype, features.segments.dtype) == ("i4", "u1")
    assert features.starts.dtype == np.int64


@pytest.mark.parametrize(
    "rows, batch_size, epochs, steps",
    [
        # MRPC and CoLA, as the published programs name their checkpoints.
        (3668, 32, 3, 343),
        (8551, 32, 15, 4008),
        (5, 32, 1, 1),
        (5, 32, 0.01, 1),
        # 100 * 1.1 is 110.00000000000001 in binary.
        (100, 10, 1.1, 11),
        # In floats these lose a step: 4.6 * 25 is 114.99999999999999.
        (46, 10, 25, 115),
        (29, 100, 100, 29),
        (2**31 - 1, 10, 10, 2**31 - 1),
    ],
)
def test_train_steps_are_rounded_down(rows, batch_size, epochs, steps):
    assert input_pipeline.count_train_steps(rows, batch_size, epochs) == steps


@pytest.mark.parametrize("epochs", [2**31, 2**31 + 1, 1e300])
def test_more_steps_than_can_be_counted_are_refused(epochs):
    assert input_pipeline.count_train_steps(1, 1, 2**31 - 1) == 2**31 - 1
    refusals.check(
        lambda: input_pipeline.count_train_steps(1, 1, epochs),
        "epochs of 1 rows are too many steps",
    )


@PROPERTY
@given(LENGTHS, st.integers(1, 8), st.integers(1, 200), SEEDS, st.data())
def test_rows_take_turns_and_do_not_depend_on_the_order_of_calls(
    lengths, batch_size, steps, seed, data
):
    """No row is a whole epoch ahead of another."""
    batches = all_rows(make_plan(lengths, batch_size, steps, seed), steps)
    assert all(rows.shape == (batch_size,) for rows in batches)
    counts = np.bincount(np.concatenate(batches), minlength=len(lengths))
    assert counts.max() - counts.min() <= 1
    plan = make_plan(lengths, batch_size, steps, seed)
    order = st.lists(st.integers(0, steps - 1), min_size=1, max_size=20)
    for step in data.draw(order):
        assert plan.rows(step).tolist() == batches[step].tolist()


def test_epochs_and_pools_have_orders_of_their_own():
    # Rows of one length: sorting changes nothing, each pool is one epoch.
    rows = 4 * POOL_BATCHES
    plan = make_plan([7] * rows, 4, 3 * POOL_BATCHES, 0)
    batches = all_rows(plan, 3 * POOL_BATCHES)
    orders = np.concatenate(batches).reshape(3, rows)
    # Rows meet others in every epoch.
    assert len({frozenset(batch) for batch in batches}) == len(batches)
    for order in orders:
        assert sorted(order) == list(range(rows))
        assert (order != np.arange(rows)).mean() > 0.9
    assert len(set(map(str, orders.tolist()))) == 3
    other = make_plan([7] * rows, 4, 3 * POOL_BATCHES, 1)
    assert other.rows(0).tolist() != batches[0].tolist()


def test_short_batches_do_not_come_first():
    lengths = default_rng(0).integers(5, 128, 3200)
    plan = make_plan(lengths, 32, 100, 0)
    means = np.array([lengths[plan.rows(step)].mean() for step in range(100)])
    first, second = means[:50], means[50:]
    assert abs(np.corrcoef(np.arange(50), first)[0, 1]) < 0.5
    # Every pool holds short and long rows.
    for pool in (first, second):
        assert pool.min() < 20 and pool.max() > 110


@PROPERTY
@given(LENGTHS, st.data())
def test_batches_are_padded_with_zeros_behind_the_tokens(lengths, data):
    features = make_features(lengths)
    rows = np.array(
        data.draw(
            st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=9)
        )
    )
    fixed = data.draw(st.sampled_from([None, 30, 33]))
    batch = input_pipeline.make_batch(features, rows, fixed)
    length = fixed or max(lengths[row] for row in rows)
    for name in ("input_ids", "input_mask", "segment_ids"):
        assert batch[name].dtype == np.int32
        assert batch[name].shape == (len(rows), length)
    for place, row in enumerate(rows):
        count, padding = lengths[row], [0] * (length - lengths[row])
        tokens = [100 * (row + 1) + i for i in range(count)]
        segments = [int(i > count // 2) for i in range(count)]
        assert batch["input_ids"][place].tolist() == tokens + padding
        assert batch["segment_ids"][place].tolist() == segments + padding
        assert batch["input_mask"][place].tolist() == [1] * count + padding
    assert batch["row"].tolist() == list(range(len(rows)))
    assert batch["row"].dtype == np.int32
    assert batch["label_ids"].tolist() == rows.tolist()
    assert_array_equal(batch["scores"], features.labels["scores"][rows])


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_concatenated_shards_are_the_batch(shards):
    lengths = default_rng(0).integers(1, 20, 50)
    features = make_features(lengths)
    plan = TrainPlan(features.lengths, 8, 20, 0)
    parts = list(
        input_pipeline.train_batches(features, plan, range(3, 7), None, shards)
    )
    assert len(parts) == 4 * shards
    assert all(len(part["row"]) == 8 // shards for part in parts)
    for step in range(3, 7):
        batch = input_pipeline.make_batch(features, plan.rows(step), None)
        first, parts = parts[:shards], parts[shards:]
        joined = {n: np.concatenate([p[n] for p in first]) for n in batch}
        assert_same_batches([joined], [batch])


@PROPERTY
@given(LENGTHS, st.integers(1, 70), st.integers(0, 300))
def test_batches_grow_up_to_some_tokens(lengths, batch_size, tokens):
    features = make_features(lengths)
    batches = input_pipeline.sorted_batches(features, batch_size, tokens)
    rows = np.concatenate(batches)
    assert sorted(rows) == list(range(len(lengths)))
    assert [lengths[row] for row in rows] == sorted(lengths)
    for number, batch in enumerate(batches):
        longest = lengths[batch[-1]]
        assert len(batch) <= batch_size or len(batch) * longest <= tokens
        if batch is not batches[-1]:
            assert len(batch) >= batch_size
            # With the next row it would be too many.
            following = lengths[batches[number + 1][0]]
            assert (len(batch) + 1) * following > tokens


@PROPERTY
@given(LENGTHS, st.integers(1, 70))
def test_restored_outputs_are_in_the_order_of_rows(lengths, batch_size):
    features = make_features(lengths)
    batches = input_pipeline.sorted_batches(features, batch_size)
    values = default_rng(0).normal(size=(len(lengths), 2))
    filled = input_pipeline.fill(batches, batch_size)
    assert {len(batch) for batch in filled} == {batch_size}
    restored = input_pipeline.restore_order(
        batches, [values[batch] for batch in filled]
    )
    assert_array_equal(restored, values)


@pytest.mark.parametrize("length, batch_size", [(None, None), (24, 8)])
@pytest.mark.parametrize("labels", [False, True])
def test_a_dataset_yields_the_generators_batches(length, batch_size, labels):
    lengths = default_rng(0).integers(1, 20, 50)
    features = make_features(lengths) if labels else with_token_labels(lengths)
    plan = TrainPlan(features.lengths, 8, 20, 0)

    def batches():
        return input_pipeline.train_batches(features, plan, range(20), length)

    dataset = input_pipeline.to_dataset(batches, features, length, batch_size)
    shapes = {n: s.shape.as_list() for n, s in dataset.element_spec.items()}
    assert shapes["input_ids"] == [batch_size, length]
    assert shapes["row"] == [batch_size]
    assert ("label_ids" in shapes) == labels
    if labels:
        assert shapes["scores"] == [batch_size, 2]
    else:
        assert shapes["token_labels"] == [batch_size, length]
        assert shapes["token_weights"] == [batch_size]
    # A session's end would wait for the tuner.
    assert not dataset.options().autotune.enabled
    assert_same_batches(dataset.as_numpy_iterator(), batches())


@dataclasses.dataclass(frozen=True)
class TokenFeatures(Features):
    """Features whose tokens have labels."""

    token_labels: np.ndarray = None


def with_token_labels(lengths):
    """Every third token has a label, those of all count from 0."""
    features = make_features(lengths, labels=False)
    places = np.arange(len(features.tokens), dtype=np.int32)
    labels = np.where(places % 3 == 0, places // 3, input_pipeline.NO_LABEL)
    return TokenFeatures(**vars(features), token_labels=labels)


@PROPERTY
@given(LENGTHS, SEEDS, st.sampled_from([None, 30]))
def test_labels_of_tokens_are_padded_and_weighted(lengths, seed, length):
    features = with_token_labels(lengths)
    rows = default_rng(seed).permutation(len(lengths))[:7]
    batch = input_pipeline.make_batch(features, rows, length)
    labels = batch["token_labels"]
    assert labels.dtype == np.int32
    assert labels.shape == batch["input_ids"].shape
    count = 0
    for row, padded in zip(rows, labels):
        first, last = features.starts[row], features.starts[row + 1]
        expected = features.token_labels[first:last]
        count += sum(place % 3 == 0 for place in range(first, last))
        assert padded[: len(expected)].tolist() == expected.tolist()
        assert (padded[len(expected) :] == input_pipeline.NO_LABEL).all()
    weights = batch["token_weights"]
    assert weights.dtype == np.float32 and len(set(weights)) == 1
    # Their mean over the rows is one of all labelled tokens alike.
    assert weights[0] == np.float32(len(rows) / max(count, 1))


@PROPERTY
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=5
    )
)
def test_outputs_of_tokens_are_joined_to_the_widest(sizes):
    outputs = [
        default_rng(n).normal(1, 0.1, (*size, 2)).astype(np.float32)
        for n, size in enumerate(sizes)
    ]
    joined = input_pipeline.join_outputs(outputs)
    assert joined.dtype == np.float32
    assert joined.shape[1] == max(width for _, width in sizes)
    first = 0
    for value in outputs:
        part = joined[first : first + len(value)]
        assert_array_equal(part[:, : value.shape[1]], value)
        assert not part[:, value.shape[1] :].any()
        first += len(value)
    assert first == len(joined)


@pytest.mark.parametrize(
    "lengths, pool, different",
    [([9] * 8, 1, "8"), (range(1, 9), 4, "2"), ([9] * 32, 1, None)],
)
def test_a_batch_that_holds_copies_is_said(lengths, pool, different, caplog):
    plan = TrainPlan(np.array(lengths), 32, 4, 1, pool)
    rows = [len(np.unique(plan.rows(step))) for step in range(4)]
    messages = [record.getMessage() for record in caplog.records]
    if different is None:
        assert rows == [32] * 4 and not messages
        return
    assert (
        f"larger than all 8 rows: it holds copies, and {different}"
        in (messages[0])
    )
    assert float(different) == np.mean(rows[:pool])
