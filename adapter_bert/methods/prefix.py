"""Prefix tuning: trained keys and values before those of the tokens."""

import abc
import dataclasses
from typing import ClassVar, Dict, Sequence, Tuple

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Hooks
from adapter_bert.methods import base
from adapter_bert.methods.base import FROZEN_BERT, TuningMethod

PARTS = ("key", "value")


class PrefixHooks(Hooks, abc.ABC):
    """Puts P keys and values before those of the tokens, never masked."""

    alike = True
    by_token = True
    by_values = True

    def __init__(self, config: encoder.BertConfig):
        """Takes the sizes of the heads."""
        self.heads = [-1, config.num_attention_heads, config.head_size]

    @abc.abstractmethod
    def prefix(self, layer: int, context) -> Sequence[tf.Tensor]:
        """Keys and values of a layer, twice float32 [P, D]."""

    def key_value(self, layer, key, value, attention_bias, context):
        """Shapes as in `Hooks`, P positions longer."""
        batch = tf.shape(key)[0]

        def before(prefix, tokens):
            prefix = tf.reshape(tf.cast(prefix, tokens.dtype), self.heads)
            prefix = tf.transpose(prefix, [1, 0, 2])[tf.newaxis]
            # [1, N, P, H] -> [B, N, P, H]
            prefix = tf.tile(prefix, [batch, 1, 1, 1])
            return tf.concat([prefix, tokens], axis=2)

        keys, values = self.prefix(layer, context)
        seen = tf.zeros([batch, 1, 1, keys.shape[0]], attention_bias.dtype)
        return (
            before(keys, key),
            before(values, value),
            tf.concat([seen, attention_bias], axis=3),
        )


class DirectPrefixHooks(PrefixHooks):
    """A prefix that is stored as it is."""

    def __init__(self, config, prefixes: Dict[Tuple[int, str], tf.Variable]):
        """Takes [P, D] by layer and part."""
        super().__init__(config)
        self.prefixes = prefixes

    def prefix(self, layer, context):
        """As stored."""
        return [
            tf.convert_to_tensor(self.prefixes[layer, part]) for part in PARTS
        ]


class PerceptronPrefixHooks(PrefixHooks):
    """A prefix that a small network makes of an embedding."""

    def __init__(self, config, variables: Sequence[tf.Variable]):
        """Takes an embedding, then two layers' kernels and biases."""
        super().__init__(config)
        self.variables = variables
        self.layers = config.num_hidden_layers

    def embeddings(self, hidden, context):
        """Lets the network make the prefixes of all layers."""
        embedding, kernel_1, bias_1, kernel_2, bias_2 = map(
            tf.convert_to_tensor, self.variables
        )
        inner = tf.tanh(tf.matmul(embedding, kernel_1) + bias_1)
        outputs = tf.matmul(inner, kernel_2) + bias_2
        scopes = [
            _scope(layer, part)
            for layer in range(self.layers)
            for part in PARTS
        ]
        prefixes = tf.split(outputs, len(scopes), axis=1)
        context.handed_on.update(zip(scopes, prefixes))
        return hidden

    def prefix(self, layer, context):
        """Slices of what the network has made."""
        return [context.handed_on[_scope(layer, part)] for part in PARTS]


@dataclasses.dataclass(frozen=True)
class Prefix(TuningMethod):
    """Trained keys and values before those of the tokens; BERT is frozen.

    BERT-base: 12 x 2 P 768, 552,960 at P = 30; while a network of inner size m
    makes them, P 768 + (768 + 1) m + (m + 1) 12 x 2 x 768 are trained,
    9,872,384 at P = 30 and m = 512. The output at the start is not BERT's.

    Attributes:
        length: positions P of the prefix.
        reparameterize: whether the prefix is the output of a network, which
            makes its training stable; the artifact holds that output only.
        inner_size: m.

    Raises:
        UserError: a length or size below 1.

    Source: Li and Liang 2021, sections 4.2 and 4.3.
    """

    name: ClassVar[str] = "prefix"
    # The highest tried that learned anything (docs/methods.md).
    learning_rate: ClassVar[float] = 1e-4
    length: int = 30
    reparameterize: bool = True
    inner_size: int = 512

    def __post_init__(self):
        base.check_positive(self, "length", "inner_size")

    def rules(self, config):
        """The prefix, or the network."""
        return ((r"(bert/.*/)?prefix/.*", True), FROZEN_BERT)

    def build(self, config, create, pooler):
        """Creates `prefix/...`, or `<layer's attention>/prefix/key, value`."""
        size = config.hidden_size
        if not self.reparameterize:
            return DirectPrefixHooks(
                config,
                {
                    (layer, part): create(
                        _scope(layer, part),
                        (self.length, size),
                        encoder.truncated_normal(config.initializer_range),
                    )
                    for layer in range(config.num_hidden_layers)
                    for part in PARTS
                },
            )
        outputs = config.num_hidden_layers * len(PARTS) * size
        return PerceptronPrefixHooks(
            config,
            [
                create(f"prefix/{name}", shape, initializer)
                for name, shape, initializer in (
                    ("embedding", (self.length, size), base.normal(1.0)),
                    (
                        "inner/kernel",
                        (size, self.inner_size),
                        base.uniform_by_inputs,
                    ),
                    ("inner/bias", (self.inner_size,), encoder.zeros),
                    (
                        "outer/kernel",
                        (self.inner_size, outputs),
                        base.uniform_by_inputs,
                    ),
                    ("outer/bias", (outputs,), encoder.zeros),
                )
            ],
        )

    def finish(self, config, values):
        """Keeps what the network makes, and not the network."""
        if not self.reparameterize:
            return self, values
        kept = {k: v for k, v in values.items() if not k.startswith("prefix/")}
        inner = np.tanh(
            values["prefix/embedding"] @ values["prefix/inner/kernel"]
            + values["prefix/inner/bias"]
        )
        outputs = inner @ values["prefix/outer/kernel"]
        outputs += values["prefix/outer/bias"]
        slices = np.split(
            outputs, config.num_hidden_layers * len(PARTS), axis=1
        )
        for number, prefix in enumerate(slices):
            layer, part = divmod(number, len(PARTS))
            kept[_scope(layer, PARTS[part])] = prefix
        return dataclasses.replace(self, reparameterize=False), kept


def _scope(layer: int, part: str) -> str:
    return f"bert/encoder/layer_{layer}/attention/self/prefix/{part}"
