"""What dropout keeps: how much, which bits, and of which seed."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from ways_to_compute import WAYS

from adapter_bert.bert import functional


def draw(shape, rate, seed=(1, 2)):
    return functional.keep_mask(
        tf.constant(shape, tf.int32), rate, tf.constant(seed)
    ).numpy()


@pytest.mark.parametrize(
    "rate",
    [
        0.0,
        0.001,
        0.003,
        1 / 256,
        0.1,
        0.15,
        0.2,
        0.3,
        0.5,
        0.9,
        0.99,
        255 / 256,
    ],
)
def test_the_share_that_is_dropped_is_the_rate(rate):
    """Within five standard deviations of the mean over many calls."""
    calls, size = 2000, 2001

    @tf.function
    def shares():
        seeds = tf.stack([tf.range(calls), tf.range(calls) // 7], axis=1)
        return tf.map_fn(
            lambda seed: (
                1.0
                - tf.reduce_mean(
                    tf.cast(
                        functional.keep_mask([size], rate, seed), tf.float64
                    )
                )
            ),
            seeds,
            fn_output_signature=tf.float64,
        )

    found = shares().numpy()
    # A call drops elements with one of the two multiples of 1/256 beside the
    # rate, which it draws: its share varies by both.
    lower, upper = math.floor(rate * 256) / 256, math.ceil(rate * 256) / 256
    chance = (rate - lower) * 256
    variance = chance * (1 - chance) / 256**2
    variance += (
        (1 - chance) * lower * (1 - lower) + chance * upper * (1 - upper)
    ) / size
    assert abs(found.mean() - rate) <= 5 * math.sqrt(variance / calls)
    spread = 5 * math.sqrt(1 / (4 * size))
    assert found.min() >= lower - spread and found.max() <= upper + spread


def plain_keep_mask(shape, rate, seed):
    """All in int32, as on a CPU one may."""
    size = math.prod(shape)
    words = tf.random.stateless_uniform(
        [(size + 3) // 4 + 1], seed, None, None, tf.int32, alg="philox"
    )
    lower = int(rate * 256)
    is_upper = words[-1] < int((rate * 256 - lower) * 2**32) - 2**31
    threshold = lower + int(is_upper)
    octets = tf.reshape(tf.bitcast(words, tf.uint8), [-1])[:size]
    return tf.reshape(octets, shape).numpy() >= threshold


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.3, 0.5, 255 / 256])
@pytest.mark.parametrize("shape", [[0], [1], [4], [3, 7], [2, 3, 5, 5]])
def test_bits_are_those_of_plain_operations(shape, rate):
    for step in range(20):
        expected = plain_keep_mask(shape, rate, [step, 7])
        found = draw(shape, rate, [step, 7])
        np.testing.assert_array_equal(found, expected)


def test_no_word_that_is_drawn_goes_to_the_host():
    """Where operations on int32 are computed, beside a GPU."""
    graph = tf.function(functional.keep_mask).get_concrete_function(
        tf.TensorSpec([None], tf.int32), 0.1, tf.TensorSpec([2], tf.int32)
    )
    found, waiting = set(), []
    for operation in graph.graph.get_operations():
        if "Uniform" in operation.type:
            waiting += operation.outputs
    assert waiting
    while waiting:
        tensor = waiting.pop()
        for operation in tensor.consumers():
            if tensor.dtype == tf.int32:
                found.add(operation.type)
            waiting += operation.outputs
    assert found == {"Bitcast", "Cast"}


@pytest.mark.parametrize("rate", [-0.1, 0.997, 1.0, float("nan")])
def test_a_rate_that_no_byte_decides_is_a_defect(rate):
    with pytest.raises(ValueError, match="not in"):
        draw([4], rate)


def test_bits_are_a_function_of_the_seed():
    base = draw([100], 0.5)
    np.testing.assert_array_equal(draw([100], 0.5), base)
    for seed in ((2, 2), (1, 3), (2, 1), (-1, 2)):
        other = draw([100], 0.5, seed)
        assert 20 < (other != base).sum() < 80


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(0, 9), max_size=4),
    rate=st.floats(0, 0.99),
    seed=st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 2),
)
def test_a_mask_has_every_shape_and_its_bits_lie_in_order(shape, rate, seed):
    """Also shapes whose size is no multiple of four, and of one element."""
    mask = draw(shape, rate, seed)
    assert mask.dtype == bool and mask.shape == tuple(shape)
    flat = draw([math.prod(shape)], rate, seed)
    np.testing.assert_array_equal(mask.ravel(), flat)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_compute_draws_the_same_bits(way):
    shape, rate, seed = [7, 13, 3], 0.1, np.int32([3, -4])
    expected = draw(shape, rate, seed)
    if way == "unknown dimensions":
        mask = tf.function(
            lambda shape, seed: functional.keep_mask(shape, rate, seed),
            input_signature=[
                tf.TensorSpec([3], tf.int32),
                tf.TensorSpec([2], tf.int32),
            ],
        )(tf.constant(shape), seed)
    else:
        mask = WAYS[way](
            lambda seed: functional.keep_mask(tf.constant(shape), rate, seed),
            [seed],
        )
    np.testing.assert_array_equal(mask, expected)
    assert 0 < expected.mean() < 1


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_neighbours_do_not_depend_on_each_other(rate):
    """Elements nearby, and those of the next step and of another site."""
    size = 2**20
    bits = draw([size], rate).astype(np.float64)
    pairs = [(bits[:-lag], bits[lag:]) for lag in (1, 2, 3, 4, 5, 8, 16, 1024)]
    pairs += [
        (bits, draw([size], rate, seed).astype(np.float64))
        for seed in ((1, 3), (2, 2), (1 ^ 16, 2), (-2, 2))
    ]
    for one, other in pairs:
        correlation = np.corrcoef(one, other)[0, 1]
        assert abs(correlation) < 5 / math.sqrt(size)
