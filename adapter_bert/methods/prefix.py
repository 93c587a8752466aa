"""Prefix tuning: trained keys and values before those of the tokens."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Hooks
from adapter_bert.methods import base, gate
from adapter_bert.methods.base import (
    Declared,
    Tensors,
    TuningMethod,
    added_later,
)

PARTS = ("key", "value")
NETWORK = (
    "prefix/embedding",
    "prefix/inner/kernel",
    "prefix/inner/bias",
    "prefix/outer/kernel",
    "prefix/outer/bias",
)


class PrefixHooks(Hooks):
    """Puts P keys and values before those of the tokens, never masked."""

    alike = True
    by_token = True
    by_values = True

    def prefix(self, layer: int, context: Context) -> Sequence[tf.Tensor]:
        """Keys and values of a layer, twice float32 [P, D]."""
        return [
            tf.convert_to_tensor(self.values[f"{_scope(layer)}/{part}"])
            for part in PARTS
        ]

    def key_value(self, layer, key, value, attention_bias, context):
        batch = tf.shape(key)[0]
        heads = [-1, self.config.num_attention_heads, self.config.head_size]

        def before(prefix, tokens, opened):
            prefix = tf.reshape(tf.cast(prefix, tokens.dtype), heads)
            prefix = tf.transpose(prefix, [1, 0, 2])[tf.newaxis]
            # [1, N, P, H] -> [B, N, P, H]
            prefix = tf.tile(prefix, [batch, 1, 1, 1])
            if opened is not None:
                prefix *= tf.cast(opened, tokens.dtype)
            return tf.concat([prefix, tokens], axis=2)

        keys, values = self.prefix(layer, context)
        if self.method.gating:
            gates = gate.opened(
                self.values, _scope(layer), context.layer_input, context
            )
            # Of keys and of values, [B, 1, 1, 1] each.
            gates = tf.expand_dims(gates, -1)
            opened = gates[:, :, :1], gates[:, :, -1:]
        else:
            opened = None, None
        return (
            before(keys, key, opened[0]),
            before(values, value, opened[1]),
            tf.pad(attention_bias, [[0, 0]] * 3 + [[keys.shape[0], 0]]),
        )


def prefixes(values: Tensors, layers: int, library: Any) -> dict[str, Any]:
    """Gives the keys and values that a network makes, float32 [P, D] each.

    `library` is numpy or TensorFlow.
    """
    embedding, kernel_1, bias_1, kernel_2, bias_2 = (
        values[name] for name in NETWORK
    )
    inner = library.tanh(library.matmul(embedding, kernel_1) + bias_1)
    outputs = library.matmul(inner, kernel_2) + bias_2
    names = prefix_variables(layers)
    return dict(zip(names, library.split(outputs, len(names), axis=1)))


class PerceptronPrefixHooks(PrefixHooks):
    """A prefix that a small network makes of an embedding."""

    def begin(self, context):
        return prefixes(self.values, self.config.num_hidden_layers, tf)

    def prefix(self, layer, context):
        scope = _scope(layer)
        return [context.handed_on[f"{scope}/{part}"] for part in PARTS]


@dataclasses.dataclass(frozen=True)
class Prefix(TuningMethod):
    """Trained keys and values before those of the tokens; BERT is frozen.

    BERT-base: 12 x 2 P 768, 552,960 at P = 30; while a network of inner size m
    makes them, P 768 + (768 + 1) m + (m + 1) 12 x 2 x 768 are trained,
    9,872,384 at P = 30 and m = 512. The output at the start is not BERT's.

    Attributes:
        reparameterize: whether the prefix is the output of a network, which
            makes its training stable; the artifact holds that output only.
        gating: whether each layer's prefix has a gate (`gate.py`), 12 x
            (768 + 1) parameters.
        shared_gating: whether the gate is of both keys and values; else there
            are two, and twice as many parameters.

    Source: Li and Liang 2021, sections 4.2 and 4.3.
    """

    name = "prefix"
    # The highest tried that learned anything (results/methods.md).
    learning_rate = 1e-4
    positive = ("length", "inner_size")
    length: int = 30
    reparameterize: bool = True
    inner_size: int = 512
    gating: bool = added_later(False)
    shared_gating: bool = added_later(True)

    def variables(self, config, pooler=True):
        size, inner = config.hidden_size, self.inner_size
        layers, gates = config.num_hidden_layers, {}
        for layer in range(layers) if self.gating else ():
            count = 1 if self.shared_gating else 2
            gates.update(gate.variables(_scope(layer), size, count))
        names = prefix_variables(layers)
        if not self.reparameterize:
            normal = encoder.truncated_normal(config.initializer_range)
            key = Declared((self.length, size), normal)
            return {**dict.fromkeys(names, key), **gates}
        outputs = len(names) * size
        declared = (
            Declared((self.length, size), base.normal(1.0)),
            Declared((size, inner), base.uniform_by_inputs),
            Declared((inner,), encoder.zeros),
            Declared((inner, outputs), base.uniform_by_inputs),
            Declared((outputs,), encoder.zeros),
        )
        return {**dict(zip(NETWORK, declared)), **gates}

    @property
    def hooks_class(self):
        return PerceptronPrefixHooks if self.reparameterize else PrefixHooks

    def finish(self, config, values):
        if not self.reparameterize:
            return self, values
        kept = {k: v for k, v in values.items() if k not in NETWORK}
        kept.update(prefixes(values, config.num_hidden_layers, np))
        return dataclasses.replace(self, reparameterize=False), kept


def _scope(layer: int) -> str:
    return f"bert/encoder/layer_{layer}/attention/self/prefix"


def prefix_variables(layers: int) -> list[str]:
    """Names each layer's keys and values, in the order of the outputs."""
    return [
        f"{_scope(layer)}/{part}" for layer in range(layers) for part in PARTS
    ]
