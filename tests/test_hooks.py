"""Dropout."""

import tensorflow as tf
from numpy.testing import assert_array_equal

from adapter_bert.bert.hooks import Context, dropout

MASK = tf.ones([1, 4], tf.int32)


def training(seed=(1, 2)):
    return Context(MASK, training=True, seed=tf.constant(seed))


def test_dropout_depends_on_seed_step_and_site_only():
    """And acts in training alone."""
    x = tf.ones([100])
    base = dropout(x, 0.5, "site", training())
    assert {*base.numpy()} == {0, 2}
    assert_array_equal(base, dropout(x, 0.5, "site", training()))
    assert_array_equal(x, dropout(x, 0.5, "site", Context(MASK)))
    for site, seed in (("another", (1, 2)), ("site", (3, 2)), ("site", (1, 3))):
        other = dropout(x, 0.5, site, training(seed))
        assert (base.numpy() != other.numpy()).any()
