"""Invertible adapters at the embeddings, and the language adapters of MAD-X."""

import dataclasses
import functools

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.errors import UserError
from adapter_bert.methods.adapter_variants import PfeifferHooks
from adapter_bert.methods.base import ALL_LAYERS, Tensors
from adapter_bert.methods.houlsby import Bottleneck, BottleneckMethod

SCOPE = "bert/embeddings/invertible"


class InvertibleAdapter:
    """Two couplings of the halves of the hidden size, and their inverse.

    `y1 = x1 + F(x2)`, `y2 = x2 + G(y1)`. Each half is moved by a function of
    the other, so what was added can be computed again and taken off. F and G
    are bottlenecks, and need no inverse. Parameters: 2 (D M + D / 2 + M).

    Source: Pfeiffer et al. 2020 (MAD-X), invertible adapters; Dinh et al. 2015
    (NICE), additive coupling layers.
    """

    def __init__(self, bottleneck: Bottleneck, values: Tensors):
        self.f, self.g = (
            functools.partial(bottleneck, values, f"{SCOPE}/{name}")
            for name in ("F", "G")
        )

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        first, second = tf.split(hidden, 2, axis=-1)
        first += self.f(second)
        second += self.g(first)
        return tf.concat([first, second], axis=-1)

    def inverse(self, hidden: tf.Tensor) -> tf.Tensor:
        """Undoes a call, float32 [..., D] -> float32 [..., D]."""
        first, second = tf.split(hidden, 2, axis=-1)
        second -= self.g(first)
        first -= self.f(second)
        return tf.concat([first, second], axis=-1)


class MadXHooks(PfeifferHooks):
    """Adapters in the layers, and an invertible one around all of them."""

    @property
    def invertible(self) -> InvertibleAdapter:
        bottleneck = self.method.invertible(self.config)
        return InvertibleAdapter(bottleneck, self.values)

    def embeddings(self, hidden, context):
        return self.invertible(hidden)

    def vocabulary(self, hidden, context):
        return self.invertible.inverse(hidden)


@dataclasses.dataclass(frozen=True)
class MadX(BottleneckMethod):
    """A language adapter: `pfeiffer`, and an invertible one at the embeddings.

    The invertible adapter acts on the embeddings that the first layer reads.
    Its inverse acts before the masked-LM head multiplies by the word
    embeddings; other tasks have no use for it. BERT is frozen.

    BERT-base: 12 (2 M 768 + 768 + M) and 2 (768 M' + 384 + M'), 7,091,712 +
    296,064 at M = 384 and M' = 192. These are a half of the hidden size and a
    quarter of it; MiniLM, of 384, has them with `mad_x(192, 96)`.

    Attributes:
        size: bottleneck size M of the adapters in the layers.
        inverse_size: bottleneck size M' of the invertible adapter.

    Source: Pfeiffer et al. 2020 (MAD-X), language and invertible adapters;
    AdapterHub's `seq_bn_inv`, which draws from a normal of 0.02.
    """

    name = "mad_x"
    # Pfeiffer et al. 2020, for language adapters.
    learning_rate = 1e-4
    hooks_class = MadXHooks
    positive = ("size", "inverse_size", "init_scale")
    size: int = 384
    inverse_size: int = 192
    nonlinearity: str = "relu"
    init_scale: float = 0.02
    layers: str = ALL_LAYERS

    def check(self, config):
        super().check(config)
        if config.embedding_width % 2:
            raise UserError(
                f"{self.name}: the model's embeddings have the size "
                f"{config.embedding_width}, expected an even number, since the "
                "invertible adapter acts on halves"
            )

    def invertible(self, config: encoder.BertConfig) -> Bottleneck:
        return dataclasses.replace(
            self.adapter(config),
            hidden=config.embedding_width // 2,
            size=self.inverse_size,
        )

    def variables(self, config, pooler=True):
        declared = super().variables(config, pooler)
        for name in ("F", "G"):
            declared.update(
                self.invertible(config).variables(f"{SCOPE}/{name}")
            )
        return declared
