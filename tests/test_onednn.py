"""oneDNN's kernels compute what several of TensorFlow's operations do."""

import dataclasses
import os
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, run_command
from engine_jobs import make_job
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal

from adapter_bert.bert import functional, onednn
from adapter_bert.bert.gradients import differentiable
from adapter_bert.training import training_step

DTYPES = [tf.float32, tf.bfloat16]
# Of values near 1; oneDNN adds the bias before it rounds to bfloat16.
CLOSE = {tf.float32: 2e-6, tf.bfloat16: 0.04}
SPECIAL = {"_FusedMatMul", "_MklFusedBatchMatMulV2", "_MklLayerNorm"}
here = pytest.mark.skipif(
    not onednn.is_available("bfloat16"),
    reason="this TensorFlow has no oneDNN kernels",
)


def draw(*shape, dtype=tf.float32, seed=0):
    rng = default_rng([seed, *shape])
    return tf.cast(rng.normal(size=shape).astype(np.float32), dtype)


def built(function, *tensors, step=onednn.PREDICTION):
    """What a graph of a step, or without kernels, gives, and its operations."""

    @tf.function(autograph=False)
    def compute(*tensors):
        with onednn.built_for(step):
            return function(*tensors)

    graph = compute.get_concrete_function(*tensors).graph
    return compute(*tensors), types_of(graph)


def types_of(graph):
    """The types of all operations, of functions too."""
    library = graph.as_graph_def().library.function
    nodes = [node.op for function in library for node in function.node_def]
    return {op.type for op in graph.get_operations()} | set(nodes)


def both(function, *tensors):
    """The results with and without the kernels, which only one graph has."""
    fused, operations = built(function, *tensors)
    plain, others = built(function, *tensors, step=None)
    assert SPECIAL & operations and not SPECIAL & others
    assert fused.dtype == plain.dtype and fused.shape == plain.shape
    return tf.cast(fused, tf.float32), tf.cast(plain, tf.float32)


def check_fused(function, *tensors, factor=1.0):
    fused, plain = both(function, *tensors)
    tolerance = CLOSE[tensors[0].dtype] * factor
    assert_allclose(fused, plain, atol=tolerance)


def check_dense(x, kernel, bias, name):
    def dense(*tensors):
        return functional.dense(*tensors, name)

    check_fused(dense, x, kernel, bias)


@here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*onednn.ACTIVATIONS, "tanh", "linear"])
def test_a_dense_layer_is_that_of_plain_operations(name, dtype):
    x, bias = draw(33, 24, dtype=dtype), draw(40, dtype=dtype)
    check_dense(x, draw(24, 40, dtype=dtype) * 0.2, bias, name)


@here
@settings(max_examples=20)
@given(
    st.integers(0, 9),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(DTYPES),
    st.sampled_from(["linear", "gelu_erf"]),
)
def test_dense_layers_have_every_size(rows, inputs, outputs, dtype, name):
    kernel = tf.cast(draw(inputs, outputs) * 0.1, dtype)
    x, bias = draw(rows, inputs, dtype=dtype), draw(outputs, dtype=dtype)
    check_dense(x, kernel, bias, name)


@here
@pytest.mark.parametrize("name", ["linear", "relu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_may_be_variables(dtype, name):
    """As the parts of compositions are."""
    kernel, bias = (tf.Variable(draw(*s, dtype=dtype)) for s in ((8, 4), (4,)))
    check_fused(
        lambda x: functional.dense(x, kernel, bias, name),
        draw(3, 8, dtype=dtype),
    )


@here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape, scales, biases",
    [
        ((7, 24), (24,), (24,)),
        ((3, 5, 24), (24,), (24,)),
        ((0, 5, 24), (24,), (24,)),
        # Of rows with their own.
        ((3, 5, 24), (3, 24), (24,)),
        ((3, 5, 24), (3, 24), (3, 24)),
    ],
)
def test_layer_norm_is_that_of_plain_operations(shape, scales, biases, dtype):
    """In bfloat16 too, whose steps are larger than some scales differ by."""
    gamma, beta = 1 + 1e-3 * draw(*scales), draw(*biases, seed=1)
    x = draw(*shape, dtype=dtype)
    check_fused(functional.layer_norm, x, gamma, beta, factor=0.5)


@pytest.mark.parametrize(
    "shapes",
    [[(6, 8), (8, 4), (3, 4)], [(3, 2, 8), (3, 8, 4), (3, 1, 4)]],
    ids=["biases", "kernels"],
)
def test_rows_with_their_own_biases_or_kernels_have_plain_operations(shapes):
    tensors = [draw(*shape) for shape in shapes]
    fused, operations = built(functional.dense, *tensors)
    assert not SPECIAL & operations
    x, kernel, bias = (tensor.numpy() for tensor in tensors)
    if len(shapes[0]) == 2:
        bias = np.repeat(bias, 2, axis=0)
    assert_allclose(fused, x @ kernel + bias, atol=1e-5)


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

    plain, _ = built(gradients, *tensors, step=None)
    fused, operations = built(gradients, *tensors, step=onednn.TRAINING)
    assert "_MklFusedBatchMatMulV2" in operations
    saving, _ = built(
        lambda *tensors: gradients(
            *tensors, function=differentiable(dense, specs, [0, 1, 2])
        ),
        *tensors,
        step=onednn.TRAINING,
    )
    for one, other, third in zip(fused, plain, saving):
        assert_allclose(one, other, atol=0.1, rtol=0.03)
        assert_array_equal(one, third)


@here
def test_a_training_in_float32_has_plain_operations():
    """They have gradients, and the products decide."""
    _, operations = built(functional.dense, *PLAIN, step=onednn.TRAINING)
    assert {"MatMul", "BiasAdd"} <= operations


PLAIN = draw(4, 8), draw(8, 8), draw(8)


@pytest.mark.parametrize("step", [None, onednn.TRAINING])
def test_gradients_of_biases_are_added_up_in_float32(step):
    """In bfloat16, 256 and 1 would make 256."""
    if step and not onednn.is_available("bfloat16"):
        pytest.skip("this TensorFlow has no oneDNN kernels")
    x, kernel = (tf.ones([2000, 8], tf.bfloat16), tf.eye(8, dtype=tf.bfloat16))

    def gradient(bias):
        with tf.GradientTape() as tape:
            tape.watch(bias)
            outputs = functional.dense(x, kernel, bias)
        return tape.gradient(outputs, bias)

    summed, _ = built(gradient, tf.zeros([8], tf.bfloat16), step=step)
    assert_array_equal(tf.cast(summed, tf.float32), [2000.0] * 8)


def test_graphs_have_none_of_them_unless_asked():
    dense = tf.function(functional.dense).get_concrete_function(*PLAIN)
    assert not SPECIAL & types_of(dense.graph)


@here
def test_there_is_an_error_without_a_graph():
    with pytest.raises(RuntimeError, match="outside of a graph"):
        onednn.dense(*PLAIN)


METHODS = ["houlsby(size=4)", "lora(rank=2)", "ia3"]


@here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_a_model_predicts_the_same(method, dtype, tiny_config, tmp_path):
    """The inner products are computed with their gelu."""
    job = make_job(
        tiny_config, tmp_path, method, compute_dtype=dtype.name, use_onednn=True
    )
    ids = default_rng(0).integers(4, 30, (6, 9)).astype(np.int32)
    features = dict.fromkeys(("input_ids", "segment_ids", "input_mask"), ids)
    features.update(segment_ids=0 * ids, input_mask=0 * ids + 1)

    def predict(job):
        model = job.build_model(
            lambda name, *_: tf.Variable(job.initial_values[name]() + 0.02)
        )
        compute = tf.function(
            lambda: training_step.predict(job, model, features), autograph=False
        )
        graph = compute.get_concrete_function().graph.as_graph_def()
        nodes = [n for f in graph.library.function for n in f.node_def]
        fused = [
            list(node.attr["fused_ops"].list.s)
            for node in [*graph.node, *nodes]
            if node.op == "_FusedMatMul"
        ]
        return compute()["logits"].numpy(), fused

    outputs, fused = predict(job)
    plain, others = predict(dataclasses.replace(job, use_onednn=False))
    assert [b"BiasAdd", b"GeluApproximate"] in fused and not others
    assert_allclose(outputs, plain, atol=CLOSE[dtype])


@pytest.mark.gate
@here
def test_the_environment_turns_them_off():
    program = (
        "from adapter_bert.bert import onednn; "
        "print(onednn.is_available('float32'))"
    )
    variables = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"}
    done = run_command(sys.executable, "-c", program, env=variables, cwd=ROOT)
    assert done.stdout.split()[-1] == "False", done.stderr


def fail(*_, **__):
    raise tf.errors.UnimplementedError(None, None, "no such instructions")


def create(name, made=onednn._create, **arguments):
    return made("_NoSuchOp", **arguments)


@pytest.mark.parametrize(
    "owner, name, stand_in",
    [
        (tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"]),
        (onednn, "dense", fail),
        (onednn, "_create", create),
    ],
    ids=["a GPU", "a kernel fails", "no such operation"],
)
def test_none_is_available_with(monkeypatch, owner, name, stand_in):
    monkeypatch.setattr(owner, name, stand_in)
    onednn.is_available.cache_clear()
    assert not onednn.is_available("float32")
    onednn.is_available.cache_clear()
