"""Invertible adapters: there and back, and where MAD-X has them."""

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
import tensorflow as tf
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal
from test_masked_lm import expected_logits, random_head
from tiny_model import TASK, TinyModel, table_of

from adapter_bert.bert import encoder, functional
from adapter_bert.bert.hooks import Context, Hooks
from adapter_bert.methods.base import normal
from adapter_bert.methods.houlsby import Bottleneck
from adapter_bert.methods.invertible import SCOPE, InvertibleAdapter
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.masked_lm import WORD_EMBEDDINGS, MaskedLM

MASKED_LM = MaskedLM()
TEXT = "mad_x(size=4, inverse_size=3)"


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


def parts_of(subnet):
    """The function's two matrices, each with its bias."""
    values, scope = subnet.args
    return [
        (values[f"{scope}/weights{n}"], values[f"{scope}/biases{n}"])
        for n in "12"
    ]


def draw(seed, *shape):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape).astype(np.float32)


SHAPES = st.tuples(st.integers(0, 3), st.integers(0, 5))
ADAPTERS = {
    "half": st.integers(1, 9),
    "size": st.integers(1, 9),
    "nonlinearity": st.sampled_from(list(functional.ACTIVATIONS)),
    "shape": SHAPES,
    "seed": st.integers(0, 99),
}


@given(**ADAPTERS)
def test_the_inverse_undoes_the_adapter(half, size, nonlinearity, shape, seed):
    adapter = make(2 * half, size, nonlinearity, seed=seed)
    x = draw(seed, *shape, 2 * half)
    there = adapter(tf.constant(x))
    assert there.shape == x.shape
    assert_allclose(adapter.inverse(there), x, atol=1e-5, rtol=1e-5)
    back = adapter.inverse(tf.constant(x))
    assert_allclose(adapter(back), x, atol=1e-5, rtol=1e-5)


@pytest.mark.gate
@pytest.mark.newer_stack
@given(**{**ADAPTERS, "shape": st.tuples(st.integers(1, 3), st.integers(1, 5))})
def test_gradients_flow_both_ways(half, size, nonlinearity, shape, seed):
    """There and back is the identity, so is its gradient."""
    adapter = make(2 * half, size, nonlinearity, seed=seed)
    x = tf.constant(draw(seed, *shape, 2 * half))
    weights = draw(seed + 1, *x.shape)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        back = tf.reduce_sum(weights * adapter.inverse(adapter(x)))
        there = tf.reduce_sum(weights * adapter(x))
        inverse = tf.reduce_sum(weights * adapter.inverse(x))
    assert_allclose(tape.gradient(back, x), weights, atol=1e-4)
    biases = [parts_of(subnet)[1][1] for subnet in (adapter.f, adapter.g)]
    for target in (there, inverse):
        for gradient in tape.gradient(target, biases):
            assert np.any(gradient)


def test_it_computes_the_papers_formula():
    adapter, x = make(8, 5), draw(1, 2, 3, 8)

    def subnet(bottleneck, h):
        (down, down_bias), (up, up_bias) = (
            [value.numpy() for value in pair] for pair in parts_of(bottleneck)
        )
        assert (down.shape, up.shape) == ((4, 5), (5, 4))
        return np.maximum(h @ down + down_bias, 0) @ up + up_bias

    x1, x2 = x[..., :4], x[..., 4:]
    y1 = x1 + subnet(adapter.f, x2)
    y2 = x2 + subnet(adapter.g, y1)
    expected = np.concatenate([y1, y2], axis=-1)
    assert_allclose(adapter(tf.constant(x)), expected, atol=1e-5)
    assert abs(expected - x).mean() > 0.1


def test_bfloat16_undoes_what_it_has_done():
    """But for the rounding of sums: 8 bits, of numbers around 1."""
    adapter, x = make(32, 8, scale=0.1), draw(0, 4, 5, 32)
    there = adapter(tf.cast(x, tf.bfloat16))
    back = adapter.inverse(there)
    assert there.dtype == back.dtype == tf.bfloat16
    assert abs(tf.cast(there, tf.float32) - x).numpy().max() > 0.1
    assert_allclose(tf.cast(back, tf.float32), x, atol=0.03)


# In BERT


def moved(config, task=TASK):
    """MAD-X with values far from those at the start, by name."""
    return {
        p.name: draw(number, *p.shape) * 0.3
        for number, p in enumerate(table_of(config, TEXT, task).parameters)
    }


def test_the_first_layer_reads_what_the_adapter_makes(tiny_config):
    values = moved(tiny_config)
    values = {name: tf.Variable(x) for name, x in values.items()}
    hooks = parse(TEXT).hooks(tiny_config, values)
    adapted, plain = (
        encoder.Bert(tiny_config, values, h) for h in (hooks, Hooks())
    )
    ids = tf.constant([[2, 5, 6, 3]])
    context = Context(tf.ones_like(ids))
    outputs = [b(ids, tf.zeros_like(ids), context) for b in (adapted, plain)]
    expected = hooks.invertible(outputs[1].embedding_output)
    assert_array_equal(outputs[0].embedding_output, expected)
    assert_allclose(
        hooks.invertible.inverse(outputs[0].embedding_output),
        outputs[1].embedding_output,
        atol=1e-5,
    )


def test_the_inverse_comes_before_the_vocabulary(tiny_config):
    """After dense layer, activation and LayerNorm of the head."""
    config = dataclasses.replace(tiny_config, hidden_act="gelu_erf")
    values = {**moved(config, MASKED_LM), **random_head(config)}

    def create(name, shape, initializer):
        return tf.Variable(values[name])

    model = task_model.TaskModel(
        config, parse(TEXT), MASKED_LM.build_head, create
    )
    hidden, places = draw(7, 2, 5, 16), np.array([[0, 3], [4, 1]])
    context = Context(tf.ones([2, 5], tf.int32))
    outputs = model.head(
        model.bert, tf.constant(hidden), context, tf.constant(places), places
    )["logits"]
    read = np.take_along_axis(hidden, places[..., np.newaxis], axis=1)
    # The published head, with the identity for a vocabulary.
    bias = values["cls/predictions/output_bias"]
    alone = {
        **values,
        WORD_EMBEDDINGS: np.eye(16),
        "cls/predictions/output_bias": 0.0,
    }
    transformed = expected_logits(read.astype(float), alone)
    turned = model.bert.hooks.invertible.inverse(
        tf.constant(transformed, tf.float32)
    )
    expected = turned.numpy() @ values[WORD_EMBEDDINGS].T + bias
    assert_allclose(outputs, expected, atol=2e-5)
    plain = expected_logits(read, values)
    assert abs(plain - expected).max() > 0.1


def gradients(config, task, features):
    """By name, of the loss of a task in training."""
    values = moved(config, task)
    variables = {name: tf.Variable(value) for name, value in values.items()}
    model = task_model.TaskModel(
        config, parse(TEXT), task.build_head, lambda name, *_: variables[name]
    )
    seed = tf.constant([1, 2])
    context = Context(features["input_mask"], True, seed, step_seed=seed)
    with tf.GradientTape() as tape:
        predictions = model(features, context)
        loss = tf.reduce_mean(model.head.loss(predictions, features))
    return tape.gradient(loss, variables)


def test_every_task_moves_the_invertible_adapter(tiny_config):
    """Classification too, which reads no vocabulary."""
    features = TinyModel(tiny_config, "head").features
    ids = features["input_ids"]
    masked = {
        **features,
        "masked_positions": tf.constant([[1], [2], [3], [4]]),
        "masked_ids": ids[:, :1],
        "masked_weights": tf.ones([4]),
    }
    scope = f"{SCOPE}/"
    for task, batch in ((TASK, features), (MASKED_LM, masked)):
        slopes = gradients(tiny_config, task, batch)
        of_adapter = {n: g for n, g in slopes.items() if n.startswith(scope)}
        assert len(of_adapter) == 8
        for name, gradient in of_adapter.items():
            assert np.any(gradient), (task.name, name)


def test_an_odd_hidden_size_is_refused():
    config = encoder.BertConfig(30, hidden_size=15, num_attention_heads=3)
    refusals.check(lambda: table_of(config, "mad_x"), "size 15", "even")
