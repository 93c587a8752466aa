"""The gates of adapters, updates and prefixes, written out in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from tiny_model import shaken

MASK = np.array([[1, 1, 1], [1, 0, 0]])


def gated(config, text):
    tiny = shaken(config, text)
    mask = tf.constant(MASK, tf.int32)
    return tiny, replace(tiny.context(), input_mask=mask)


@pytest.fixture
def x():
    return np.random.default_rng(2).normal(size=(2, 3, 16)).astype(np.float32)


@pytest.mark.older_stack
def test_a_row_without_tokens_gets_nothing(tiny_config, x):
    """Rows that fill up a batch are no numbers that spoil it."""
    tiny, context = gated(tiny_config, "parallel(size=4, gating=true)")
    context = replace(context, input_mask=tf.zeros([2, 3]))
    x = tf.constant(x)
    assert not np.any(
        tiny.model.bert.hooks.before_norm(1, "ffn", x, x, None, context)
    )
