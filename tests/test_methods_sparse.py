"""Methods that change few of BERT's parameters: masks, gates, phases."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.testing import assert_allclose, assert_array_equal
from tiny_model import TinyModel, table_of

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.methods.registry import parse
from adapter_bert.methods.sparse import GateHooks, Gates, largest

BASE = encoder.BertConfig(vocab_size=30522)


@pytest.mark.parametrize(
    "text,count",
    [
        # A change and a gate for each parameter, a gate for each variable.
        ("diff_pruning", 2 * 109_482_240 + 199),
        ("diff_pruning(structured=False)", 2 * 109_482_240),
        ("lt_sft", 109_482_240),
    ],
)
def test_the_first_phase_trains_as_much_as_it_says(text, count):
    phase = parse(text).first_phase
    assert table_of(BASE, phase).trained_count == count + 2 * 768 + 2


SIZES = arrays.arrays(
    np.float32,
    st.integers(1, 30),
    elements=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)


@given(st.lists(SIZES, min_size=1, max_size=4), st.floats(0.01, 0.99))
def test_exactly_the_largest_entries_are_marked(arrays, share):
    sizes = {str(i): value for i, value in enumerate(arrays)}
    marks = largest(sizes, share)
    flat = np.concatenate(arrays)
    mark = np.concatenate([marks[name] for name in sizes]) == 1.0
    assert mark.sum() == int(round(share * flat.size))
    if mark.any() and not mark.all():
        assert flat[mark].min() >= flat[~mark].max()


def test_of_equal_entries_the_first_are_marked():
    marks = largest({"a": np.ones((2, 2)), "b": np.ones(4)}, 0.75)
    assert_array_equal(marks["a"], np.ones((2, 2)))
    assert_array_equal(marks["b"], [1, 1, 0, 0])


def test_masked_entries_keep_every_bit(tiny_config):
    tiny = TinyModel(tiny_config, "lt_sft(sparsity=0.5)")
    rng = np.random.default_rng(0)
    for name, variable in tiny.variables.items():
        if name.startswith("mask/"):
            shape = tuple(variable.shape)
            variable.assign(rng.integers(0, 2, shape).astype(np.float32))
    before = {n: v.numpy().copy() for n, v in tiny.variables.items()}
    for step in range(3):
        tiny.train_one_step(step)
    moved = total = 0
    for name in encoder.list_variables(tiny_config):
        open_here = before[f"mask/{name}"] == 1.0
        changed = tiny.variables[name].numpy() != before[name]
        assert not changed[~open_here].any(), name
        moved += changed.sum()
        total += open_here.sum()
    # All but words and positions that are not in the batch.
    assert 0.5 < moved / total <= 1.0


def test_lt_sft_goes_back_to_the_start_with_the_largest_changes():
    base = {"bert/a": np.zeros((2, 2), np.float32), "bert/b": np.ones(4)}
    trained = {
        "bert/a": np.array([[0.1, -0.9], [0.2, 0.0]], np.float32),
        "bert/b": np.array([1.0, 1.3, -1.0, 1.0]),
    }
    start = parse("lt_sft(sparsity=0.25)").second_start(
        list(base), [], base.__getitem__, trained.__getitem__
    )
    # BERT's own variables are not named, so they start as pretrained.
    assert set(start) == {"mask/bert/a", "mask/bert/b"}
    assert_array_equal(start["mask/bert/a"], [[0, 1], [0, 0]])
    assert_array_equal(start["mask/bert/b"], [0, 0, 1, 0])


def test_diff_pruning_keeps_the_largest_gated_changes():
    base = {"bert/a": np.ones(4, np.float32)}
    first = {
        "diff_pruning/bert/a/diff": np.array([4.0, 3.0, -2.0, 1.0]),
        # sigmoid(-9) 3 - 1.5 is below 0: closed. sigmoid(9): open.
        "diff_pruning/bert/a/gate": np.array([-9.0, 9.0, 9.0, 9.0]),
        "diff_pruning/bert/a/group": np.array(0.0),
        "head": np.array([7.0]),
    }

    def second_start():
        return parse("diff_pruning(sparsity=0.5)").second_start(
            list(base), ["head"], base.__getitem__, first.__getitem__
        )

    # The group's gate is sigmoid(0) 3 - 1.5 = 0.
    assert_allclose(second_start()["bert/a"], [1, 1, 1, 1])
    first["diff_pruning/bert/a/group"] = np.array(9.0)
    start = second_start()
    assert_array_equal(start["mask/bert/a"], [0, 1, 1, 0])
    assert_allclose(start["bert/a"], [1, 4, -1, 1])
    assert_array_equal(start["head"], [7])


def gates(gate, group=None, weight=2.0):
    """Gate hooks of one variable of ones, changed by ten."""
    added = {"diff": tf.fill([1000], 10.0), "gate": tf.fill([1000], gate)}
    if group is not None:
        added["group"] = tf.constant(group)
    values = {f"diff_pruning/bert/a/{name}": x for name, x in added.items()}
    return GateHooks(Gates(penalty=weight), None, values)


def context(training, step=0):
    seed = tf.constant([3, step])
    return Context(tf.ones([1, 1], tf.int32), training, seed, step_seed=seed)


def test_gates_are_sampled_in_training_and_fixed_outside():
    variable = tf.Variable(tf.ones([1000]))
    hooks = gates(0.0)
    fixed = hooks.parameter("bert/a", variable, context(False)).numpy()
    assert_allclose(fixed, 1 + 10 * 0.0, atol=1e-5)
    sampled = hooks.parameter("bert/a", variable, context(True)).numpy()
    # P(z = 0) = P(sigmoid(noise) < 1/2) = 1/2 and P(z = 1) = P(> 5/6) = 1/6.
    assert abs((sampled == 1.0).mean() - 1 / 2) < 0.06
    assert abs((sampled == 11.0).mean() - 1 / 6) < 0.06
    again = hooks.parameter("bert/a", variable, context(True)).numpy()
    assert_array_equal(sampled, again)
    other = hooks.parameter("bert/a", variable, context(True, 1)).numpy()
    assert (sampled != other).any()


def test_the_penalty_is_the_expected_number_of_changes():
    assert np.isclose(gates(0.0).penalty(context(True)), 2.0 * 1000 * 0.5)
    closed = gates(0.0, group=-30.0).penalty(context(True))
    assert closed < 1e-6
    # P(z > 0), where a stretched sigmoid leaves 0: P(logistic + a > 0).
    a = 1.3
    expected = 1 / (1 + np.exp(-a))
    assert np.isclose(gates(a, weight=1e-3).penalty(context(True)), expected)
