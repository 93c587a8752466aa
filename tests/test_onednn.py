"""oneDNN's kernels compute what several of TensorFlow's operations do."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_bert.bert import functional, onednn
from adapter_bert.bert.gradients import differentiable

DTYPES = [tf.float32, tf.bfloat16]
# Of values near 1; oneDNN adds the bias before it rounds to bfloat16.
CLOSE = {tf.float32: 2e-6, tf.bfloat16: 0.04}
here = pytest.mark.skipif(
    not onednn.is_there(), reason="this TensorFlow has no oneDNN kernels"
)


def draw(*shape, dtype=tf.float32, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return tf.cast(rng.normal(size=shape).astype(np.float32), dtype)


def built(function, *tensors, wanted=True, training=False):
    """What a graph with, or without, the kernels gives, and its operations."""

    @tf.function(autograph=False)
    def compute(*tensors):
        with onednn.used(wanted, training):
            return function(*tensors)

    graph = compute.get_concrete_function(*tensors).graph
    return compute(*tensors), {op.type for op in graph.get_operations()}


def both(function, *tensors, **more):
    """The results with and without the kernels, which only one graph has."""
    found, operations = built(function, *tensors, **more)
    plain, others = built(function, *tensors, wanted=False)
    special = {"_FusedMatMul", "_MklFusedBatchMatMulV2", "_MklLayerNorm"}
    assert special & operations and not special & others
    assert found.dtype == plain.dtype and found.shape == plain.shape
    return tf.cast(found, tf.float32), tf.cast(plain, tf.float32)


@here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*onednn.ACTIVATIONS, "tanh", "linear"])
def test_a_dense_layer_is_that_of_plain_operations(name, dtype):
    x, bias = draw(33, 24, dtype=dtype), draw(40, dtype=dtype)
    kernel = draw(24, 40, dtype=dtype) * 0.2
    found, plain = both(
        lambda *tensors: functional.dense(*tensors, name), x, kernel, bias
    )
    np.testing.assert_allclose(found, plain, atol=CLOSE[dtype])


@here
@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 9),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(DTYPES),
)
def test_dense_layers_have_every_size(rows, inputs, outputs, dtype):
    x, kernel = draw(rows, inputs, dtype=dtype), draw(inputs, outputs)
    kernel, bias = tf.cast(kernel * 0.1, dtype), draw(outputs, dtype=dtype)
    found, plain = both(functional.dense, x, kernel, bias)
    np.testing.assert_allclose(found, plain, atol=CLOSE[dtype])


@here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 24), (3, 5, 24), (0, 5, 24)])
def test_layer_norm_is_that_of_plain_operations(shape, dtype):
    """In bfloat16 too, whose steps are larger than some scales differ by."""
    gamma, beta = 1 + 1e-3 * draw(24), draw(24, seed=1)
    found, plain = both(
        functional.layer_norm, draw(*shape, dtype=dtype), gamma, beta
    )
    np.testing.assert_allclose(found, plain, atol=CLOSE[dtype] / 2)


@here
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_their_own_scales_and_biases(dtype):
    x, gamma = draw(3, 5, 24, dtype=dtype), 1 + 0.1 * draw(3, 24)
    found, plain = both(functional.layer_norm, x, gamma, draw(24, seed=1))
    np.testing.assert_allclose(found, plain, atol=CLOSE[dtype] / 2)


@here
def test_a_product_in_training_has_the_gradients_of_a_product():
    """In bfloat16; of a function whose gradient saves what it reads, too."""
    tensors = [
        draw(9, 24, dtype=tf.bfloat16),
        draw(24, 16, dtype=tf.bfloat16) * 0.2,
        draw(16, dtype=tf.bfloat16),
    ]
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in tensors]

    def dense(*tensors):
        return functional.dense(*tensors, "gelu")

    def gradients(*tensors, function=dense):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = tf.cast(function(*tensors), tf.float32)
            loss = tf.reduce_sum(outputs * draw(9, 16, seed=2))
        return [tf.cast(g, tf.float32) for g in tape.gradient(loss, tensors)]

    plain, _ = built(gradients, *tensors, wanted=False)
    found, operations = built(gradients, *tensors, training=True)
    assert "_MklFusedBatchMatMulV2" in operations
    saving, _ = built(
        lambda *tensors: gradients(
            *tensors, function=differentiable(dense, specs, [0, 1, 2])
        ),
        *tensors,
        training=True,
    )
    for one, other, third in zip(found, plain, saving):
        np.testing.assert_allclose(one, other, atol=0.1, rtol=0.03)
        np.testing.assert_array_equal(one, third)


@here
def test_a_training_in_float32_has_plain_operations():
    """They have gradients, and the products decide."""
    _, operations = built(
        functional.dense, draw(4, 8), draw(8, 8), draw(8), training=True
    )
    assert {"MatMul", "BiasAdd"} <= operations


def test_graphs_have_none_of_them_unless_asked():
    found = tf.function(functional.dense).get_concrete_function(
        draw(4, 8), draw(8, 8), draw(8)
    )
    types = {op.type for op in found.graph.get_operations()}
    assert not any(name.startswith("_") for name in types)


@pytest.mark.parametrize("value, found", [("0", "False"), ("1", "True")])
@here
def test_the_environment_turns_them_off(value, found):
    program = "from adapter_bert.bert import onednn; print(onednn.is_there())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": value},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == found


def test_none_is_there_with_a_gpu(monkeypatch):
    onednn.is_there.cache_clear()
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"]
    )
    try:
        assert not onednn.is_there()
    finally:
        onednn.is_there.cache_clear()


def test_none_is_there_where_a_kernel_fails(monkeypatch):
    onednn.is_there.cache_clear()

    def fail(*arguments):
        raise tf.errors.UnimplementedError(None, None, "no such instructions")

    monkeypatch.setattr(onednn, "dense", fail)
    try:
        assert not onednn.is_there()
    finally:
        onednn.is_there.cache_clear()
