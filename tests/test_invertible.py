"""Invertible adapters: there and back, and where MAD-X has them."""

import hypothesis.strategies as st
import numpy as np
import refusals
import tensorflow as tf
from hypothesis import given
from numpy.testing import assert_allclose
from tiny_model import table_of

from adapter_bert.bert import encoder, functional
from adapter_bert.methods.base import normal
from adapter_bert.methods.houlsby import Bottleneck
from adapter_bert.methods.invertible import SCOPE, InvertibleAdapter


def make(hidden, size, nonlinearity="relu", scale=0.5, seed=0):
    """An invertible adapter whose biases are not zero either."""

    bottleneck = Bottleneck(
        hidden // 2, size, normal(scale), normal(scale), nonlinearity
    )
    return InvertibleAdapter(
        bottleneck,
        {
            name: tf.Variable(
                encoder.initial_values(name, one.shape, normal(scale), seed)
            )
            for half in ("F", "G")
            for name, one in bottleneck.variables(f"{SCOPE}/{half}").items()
        },
    )


def draw(seed, *shape):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape).astype(np.float32)


@given(
    half=st.integers(1, 9),
    size=st.integers(1, 9),
    nonlinearity=st.sampled_from(list(functional.ACTIVATIONS)),
    shape=st.tuples(st.integers(0, 3), st.integers(0, 5)),
    seed=st.integers(0, 99),
)
def test_the_inverse_undoes_the_adapter(half, size, nonlinearity, shape, seed):
    adapter = make(2 * half, size, nonlinearity, seed=seed)
    x = draw(seed, *shape, 2 * half)
    there = adapter(tf.constant(x))
    assert there.shape == x.shape
    assert_allclose(adapter.inverse(there), x, atol=1e-5, rtol=1e-5)
    back = adapter.inverse(tf.constant(x))
    assert_allclose(adapter(back), x, atol=1e-5, rtol=1e-5)


def test_bfloat16_undoes_what_it_has_done():
    """But for the rounding of sums: 8 bits, of numbers around 1."""
    adapter, x = make(32, 8, scale=0.1), draw(0, 4, 5, 32)
    there = adapter(tf.cast(x, tf.bfloat16))
    back = adapter.inverse(there)
    assert there.dtype == back.dtype == tf.bfloat16
    assert abs(tf.cast(there, tf.float32) - x).numpy().max() > 0.1
    assert_allclose(tf.cast(back, tf.float32), x, atol=0.03)


# In BERT


def test_an_odd_hidden_size_is_refused():
    config = encoder.BertConfig(30, hidden_size=15, num_attention_heads=3)
    refusals.check(lambda: table_of(config, "mad_x"), "size 15", "even")
