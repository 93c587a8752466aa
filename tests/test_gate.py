"""The gates of adapters, updates and prefixes, written out in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from tiny_model import shaken

from adapter_bert.bert.hooks import Kernel
from adapter_bert.methods.registry import parse

MASK = np.array([[1, 1, 1], [1, 0, 0]])
ATTENTION = "bert/encoder/layer_1/attention/self"


def gated(config, text):
    tiny = shaken(config, text)
    mask = tf.constant(MASK, tf.int32)
    return tiny, replace(tiny.context(), input_mask=mask)


@pytest.fixture
def x():
    return np.random.default_rng(2).normal(size=(2, 3, 16)).astype(np.float32)


def openings(tiny, scope, x):
    """[B, 1, gates]: the mean of the three tokens of one row, of one token."""
    kernel, bias = (
        tiny.variables[f"{scope}/gate/{name}"].numpy()
        for name in ("kernel", "bias")
    )
    each = 1 / (1 + np.exp(-(x @ kernel + bias)))
    return np.stack([each[0].mean(0), each[1, 0]])[:, np.newaxis]


@pytest.mark.newer_stack
def test_an_adapters_gate_reads_what_the_adapter_reads(tiny_config, x):
    """The inputs of a parallel adapter, and no padding."""
    tiny, context = gated(tiny_config, "parallel(size=4, gating=true)")
    hooks = tiny.model.bert.hooks
    arguments = 1, "ffn", tf.constant(x), tf.constant(2 * x), None, context
    added = hooks.before_norm(*arguments)
    values = dict(hooks.values)
    scope = "bert/encoder/layer_1/output/adapters"
    without = parse("parallel(size=4)").hooks(tiny_config, values)
    assert_allclose(
        added,
        without.before_norm(*arguments) * openings(tiny, scope, x),
        atol=1e-5,
    )


@pytest.mark.newer_stack
def test_a_gate_of_lora_takes_the_place_of_its_scale(tiny_config, x):
    tiny, context = gated(tiny_config, "lora(rank=2, alpha=64, gating=true)")
    name = f"{ATTENTION}/query"
    dense = Kernel(lambda x: 3 * x, lambda name: None)
    update = tiny.model.bert.hooks.project(name, tf.constant(x), dense, context)
    down, up = (tiny.variables[f"{name}/lora_{f}"].numpy() for f in "ab")
    expected = 3 * x + x @ down @ up * openings(tiny, name, x)
    assert_allclose(update, expected, atol=1e-4)


@pytest.mark.newer_stack
@pytest.mark.parametrize("shared", [True, False])
def test_gates_of_a_prefix_read_the_layers_inputs(tiny_config, x, shared):
    text = f"prefix(2, false, gating=true, shared_gating={shared})"
    tiny, context = gated(tiny_config, text)
    context = replace(context, layer_input=tf.constant(x))
    tokens, bias = tf.zeros([2, 2, 3, 8]), tf.zeros([2, 1, 1, 3])
    key, value, _ = tiny.model.bert.hooks.key_value(
        1, tokens, tokens, bias, context
    )
    gates = openings(tiny, f"{ATTENTION}/prefix", x)
    assert gates.shape == (2, 1, 1 if shared else 2)
    for lengthened, part, opened in (
        (key, "key", gates[..., 0]),
        (value, "value", gates[..., -1]),
    ):
        prefix = tiny.variables[f"{ATTENTION}/prefix/{part}"].numpy()
        by_heads = prefix.reshape(2, 2, 8).transpose(1, 0, 2)
        assert_allclose(
            lengthened[:, :, :2],
            by_heads * opened[:, :, np.newaxis, np.newaxis],
            atol=1e-6,
        )
        assert not np.any(lengthened[:, :, 2:])


@pytest.mark.older_stack
def test_a_row_without_tokens_gets_nothing(tiny_config, x):
    """Rows that fill up a batch are no numbers that spoil it."""
    tiny, context = gated(tiny_config, "parallel(size=4, gating=true)")
    context = replace(context, input_mask=tf.zeros([2, 3]))
    x = tf.constant(x)
    assert not np.any(
        tiny.model.bert.hooks.before_norm(1, "ffn", x, x, None, context)
    )
