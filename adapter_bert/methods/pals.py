"""PALs: projected attention layers beside BERT's own."""

import dataclasses
from typing import ClassVar, Dict, List, Tuple

import tensorflow as tf

from adapter_bert.bert import encoder as encoder_module
from adapter_bert.bert import functional
from adapter_bert.bert.hooks import Hooks, keep_mask
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.base import FROZEN_BERT, TuningMethod

PARTS = ("query", "key", "value")
# Kernel and bias.
Projection = Tuple[tf.Variable, tf.Variable]


def _project(x: tf.Tensor, projection: Projection) -> tf.Tensor:
    """[R, inputs] -> [R, outputs]."""
    kernel, bias = (tf.cast(variable, x.dtype) for variable in projection)
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


class PalHooks(Hooks):
    """`LN(x + f + gelu(decode(attend(encode(h)))))`, h the layer's input."""

    alike = True
    by_values = True

    def __init__(
        self,
        config: encoder_module.BertConfig,
        heads: int,
        encoder: Projection,
        decoder: Projection,
        layers: List[Dict[str, Projection]],
    ):
        """Takes what all layers share, and each layer's projections."""
        self.rate = config.attention_probs_dropout_prob
        self.heads = heads
        self.encoder, self.decoder, self.layers = encoder, decoder, layers

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        """Shapes as in `Hooks`."""
        if site == "attention":
            # What the layer reads; its feed-forward sublayer is not given it.
            context.handed_on["pals"] = inputs
            return None
        return self._attend(layer, context.handed_on["pals"], context)

    def _attend(self, layer, hidden, context):
        """float32 [B, T, D] -> float32 [B, T, D]."""
        shape = tf.shape(hidden)
        encoded = _project(
            tf.reshape(hidden, [-1, hidden.shape[-1]]), self.encoder
        )
        heads = [shape[0], shape[1], self.heads, -1]
        query, key, value = (
            # [B T, size] -> [B, N, T, H]
            tf.transpose(
                tf.reshape(_project(encoded, self.layers[layer][part]), heads),
                [0, 2, 1, 3],
            )
            for part in PARTS
        )
        size = self.encoder[0].shape[1] // self.heads
        for tensor in (query, key, value):
            tensor.set_shape([None, self.heads, None, size])
        mask = tf.cast(context.input_mask, hidden.dtype)
        bias = ((1.0 - mask) * encoder_module.MASKED_SCORE)[
            :, tf.newaxis, tf.newaxis
        ]
        keep = keep_mask(
            tf.stack([shape[0], self.heads, shape[1], shape[1]]),
            self.rate,
            f"pals/layer_{layer}",
            context,
        )
        attended = functional.attend(query, key, value, bias, keep, self.rate)
        attended = tf.transpose(attended, [0, 2, 1, 3])
        attended = tf.reshape(attended, [-1, self.encoder[0].shape[1]])
        decoded = functional.gelu(_project(attended, self.decoder))
        decoded = tf.reshape(decoded, shape)
        decoded.set_shape(hidden.shape)
        return decoded


@dataclasses.dataclass(frozen=True)
class Pals(TuningMethod):
    """A small attention layer beside each layer; BERT is frozen.

    BERT-base: (768 + 1) S + (S + 1) 768 of encoder and decoder, which all
    layers share, and 12 x 3 (S + 1) S: 1,819,836 at S = 204.

    Attributes:
        size: S, of the small attention layers.
        heads: of each, a divisor of S.

    Raises:
        UserError: a size or number of heads below 1, or heads that do not
            divide the size.

    Source: Stickland and Murray 2019, section 3.3, in the form of their code:
    beside the feed-forward sublayer, with gelu after the decoder and 6 heads.
    They train BERT with it, on all tasks at once.
    """

    name: ClassVar[str] = "pals"
    # As of houlsby; the paper trains BERT too, at 2e-5.
    learning_rate: ClassVar[float] = 3e-4
    size: int = 204
    heads: int = 6

    def __post_init__(self):
        base.check_positive(self, "size", "heads")
        if self.size % self.heads:
            raise UserError(
                f"pals: size is {self.size}, expected a multiple of heads, "
                f"which is {self.heads}"
            )

    def rules(self, config):
        """What is added."""
        return ((r"pals/.*", True), FROZEN_BERT)

    def build(self, config, create, pooler):
        """Creates `pals/encoder`, `pals/decoder` and `pals/layer_<i>/...`."""
        initializer = encoder_module.truncated_normal(config.initializer_range)

        def dense(name, inputs, outputs):
            return (
                create(f"pals/{name}/kernel", (inputs, outputs), initializer),
                create(f"pals/{name}/bias", (outputs,), encoder_module.zeros),
            )

        hidden, size = config.hidden_size, self.size
        return PalHooks(
            config,
            self.heads,
            dense("encoder", hidden, size),
            dense("decoder", size, hidden),
            [
                {
                    part: dense(f"layer_{layer}/{part}", size, size)
                    for part in PARTS
                }
                for layer in range(config.num_hidden_layers)
            ],
        )
