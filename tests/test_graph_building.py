"""Gradients that TensorFlow registers are forgotten with their graphs."""

import contextlib
import gc

import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

from adapter_bert.bert import functional


def registered():
    gc.collect()
    return set(ops.gradient_registry.list())


@pytest.mark.parametrize(
    "tapes", [contextlib.nullcontext, functional.without_tapes]
)
def test_a_gradient_leaves_with_its_graph(tapes):
    before = registered()
    with tf.Graph().as_default() as graph:
        x = tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            with tapes():
                y = functional.gelu(x)
        assert registered() - before
        # The graph's own gradient reads the registry.
        gradients = tf.compat.v1.gradients(y, x)
        with tf.compat.v1.Session() as session:
            [[slope, _]] = session.run(gradients)
    assert slope == pytest.approx(1.083, abs=1e-3)
    del graph, x, y, tape, gradients, session
    assert registered() == before
