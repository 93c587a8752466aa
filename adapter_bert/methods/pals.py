"""PALs: projected attention layers next to BERT's own."""

import dataclasses

import tensorflow as tf

from adapter_bert.bert import encoder, functional
from adapter_bert.bert.hooks import Hooks, keep_mask
from adapter_bert.errors import UserError
from adapter_bert.methods.base import TuningMethod

PARTS = ("query", "key", "value")


class PalHooks(Hooks):
    """`LN(x + f + gelu(decode(attend(encode(h)))))`, h the layer's input."""

    alike = True
    by_values = True

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        if site == "attention":
            return None
        return self._attend(layer, context.layer_input, context)

    def _project(self, name: str, x: tf.Tensor) -> tf.Tensor:
        kernel, bias = (
            tf.cast(self.values[f"pals/{name}/{part}"], x.dtype)
            for part in ("kernel", "bias")
        )
        return functional.dense(x, kernel, bias)

    def _attend(self, layer, hidden, context):
        shape, count = tf.shape(hidden), self.method.heads
        rate = self.config.attention_probs_dropout_prob
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])
        encoded = self._project("encoder", flat)

        def by_heads(part):
            # [B T, size] -> [B, N, T, H]
            projected = self._project(f"layer_{layer}/{part}", encoded)
            projected = tf.reshape(projected, [shape[0], shape[1], count, -1])
            projected = tf.transpose(projected, [0, 2, 1, 3])
            projected.set_shape([None, count, None, self.method.size // count])
            return projected

        query, key, value = map(by_heads, PARTS)
        mask = tf.cast(context.input_mask, hidden.dtype)
        bias = encoder.masked_scores(mask)
        keep = keep_mask(
            tf.stack([shape[0], count, shape[1], shape[1]]),
            rate,
            f"pals/layer_{layer}",
            context,
        )
        attended = functional.attend(query, key, value, bias, keep, rate)
        attended = tf.transpose(attended, [0, 2, 1, 3])
        attended = tf.reshape(attended, [-1, self.method.size])
        decoded = functional.gelu(self._project("decoder", attended))
        return functional.shaped_as(decoded, hidden)


@dataclasses.dataclass(frozen=True)
class Pals(TuningMethod):
    """A small attention layer next to each layer; BERT is frozen.

    BERT-base: (768 + 1) S + (S + 1) 768 of encoder and decoder, which all
    layers share, and 12 x 3 (S + 1) S: 1,819,836 at S = 204.

    Attributes:
        size: S, of the small attention layers.
        heads: of each, a divisor of S.

    Source: Stickland and Murray 2019, section 3.3, in the form of their code:
    next to the feed-forward sublayer, with gelu after the decoder and 6 heads.
    They train BERT with it, on all tasks at once.
    """

    name = "pals"
    # As of houlsby; the paper trains BERT too, at 2e-5.
    learning_rate = 3e-4
    hooks_class = PalHooks
    positive = ("size", "heads")
    size: int = 204
    heads: int = 6

    def __post_init__(self):
        super().__post_init__()
        if self.size % self.heads:
            raise UserError(
                f"pals: size is {self.size}, expected a multiple of heads, "
                f"which is {self.heads}"
            )

    def variables(self, config, pooler=True):
        hidden, size = config.hidden_size, self.size
        sizes = {"encoder": (hidden, size), "decoder": (size, hidden)}
        for layer in range(config.num_hidden_layers):
            for part in PARTS:
                sizes[f"layer_{layer}/{part}"] = (size, size)
        declared: dict[str, encoder.Declared] = {}
        for name, shape in sizes.items():
            declared |= encoder.declare_dense(f"pals/{name}", *shape, config)
        return declared
