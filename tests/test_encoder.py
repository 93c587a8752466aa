"""What BERT's layers promise."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from tiny_model import create_variable

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Hooks


@pytest.fixture
def bert(tiny_config):
    values = encoder.make_variables(
        encoder.declare(tiny_config), create_variable
    )
    return encoder.Bert(tiny_config, values, Hooks())


def encode(bert, ids, mask):
    context = Context(tf.constant(mask))
    return bert(tf.constant(ids), tf.zeros_like(ids), context).sequence_output


def test_padding_does_not_change_tokens(bert):
    """So a row gives the same whatever batch it is in."""
    short = encode(bert, [[2, 5, 6, 3]], [[1, 1, 1, 1]])
    padded = encode(bert, [[2, 5, 6, 3, 0, 0]], [[1, 1, 1, 1, 0, 0]])
    assert_allclose(padded[:, :4], short, atol=1e-5)


def test_every_position_is_seen_by_every_other(bert):
    ids = [[2, 5, 6, 3]]
    other = [[2, 5, 7, 3]]
    mask = [[1, 1, 1, 1]]
    difference = np.abs(encode(bert, ids, mask) - encode(bert, other, mask))
    assert (difference.max(axis=-1) > 1e-6).all()


def test_layer_norm_has_mean_zero_and_deviation_one(tiny_config):
    values = {
        "x/LayerNorm/beta": tf.zeros(64),
        "x/LayerNorm/gamma": tf.ones(64),
    }
    modules = encoder.Modules(tiny_config, values, Hooks())
    x = tf.random.stateless_normal([5, 64], [1, 2]) * 7 + 3
    y = modules.layer_norm("x", x, Context(tf.ones([5, 1], tf.int32))).numpy()
    assert_allclose(y.mean(axis=-1), 0, atol=1e-5)
    assert_allclose(y.std(axis=-1), 1, atol=1e-5)
