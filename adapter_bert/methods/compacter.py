"""Compacter: adapters of Kronecker products with shared factors."""

import dataclasses
from typing import ClassVar

import tensorflow as tf

from adapter_bert.bert import encoder, functional
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.base import FROZEN_BERT, LAYER_NORMS, TuningMethod
from adapter_bert.methods.houlsby import SCOPES, SITES, AdapterHooks

# What A starts from, as in the published code.
SHARED_SCALE = 1e-4


class KroneckerMatrix(tf.Module):
    """`W = sum_i A_i (x) (s_i t_i)` and a bias; inputs + 2 outputs numbers.

    Source: Karimi Mahabadi et al. 2021, section 3.2; s and t start as Glorot
    and Bengio's values of matrices [inputs / n, 1] and [1, outputs / n].
    """

    def __init__(self, scope, inputs, outputs, count, shared, create):
        """Creates `<scope>/{left,right,bias}`.

        Args:
            scope: of the variables.
            inputs: a multiple of `count`.
            outputs: a multiple of `count`.
            count: n, the number of products.
            shared: A, float32 [n, n, n].
            create: makes a variable.
        """
        self.shared = shared
        self.left, self.right, self.bias = (
            create(f"{scope}/{name}", shape, initializer)
            for name, shape, initializer in (
                ("left", (count, inputs // count, 1), base.glorot_uniform),
                ("right", (count, 1, outputs // count), base.glorot_uniform),
                ("bias", (outputs,), encoder.zeros),
            )
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """float32 [R, inputs] -> float32 [R, outputs]."""
        kernel = tf.einsum(
            "iab,ip,iq->apbq",
            self.shared,
            self.left[..., 0],
            self.right[:, 0],
        )
        kernel = tf.reshape(kernel, [x.shape[-1], self.bias.shape[0]])
        return tf.nn.bias_add(
            tf.matmul(x, tf.cast(kernel, x.dtype)), tf.cast(self.bias, x.dtype)
        )


class KroneckerAdapter(tf.Module):
    """The inner part of an adapter, `up(gelu(down(h)))`, without the sum."""

    def __init__(self, scope, hidden, size, count, shared, create):
        """Creates `<scope>/compacter/{down,up}/...`."""
        self.down, self.up = (
            KroneckerMatrix(
                f"{scope}/compacter/{name}", *sizes, count, shared, create
            )
            for name, sizes in (
                ("down", (hidden, size)),
                ("up", (size, hidden)),
            )
        )

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        """float32 [B, T, D] -> float32 [B, T, D]."""
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])  # [B T, D]
        outputs = self.up(functional.gelu(self.down(flat)))
        outputs = tf.reshape(outputs, tf.shape(hidden))
        outputs.set_shape(hidden.shape)
        return outputs


class KroneckerHooks(AdapterHooks):
    """Their matrices are made of factors, which are one task's."""

    takes_rows = False


@dataclasses.dataclass(frozen=True)
class Compacter(TuningMethod):
    """Houlsby's adapters with matrices of few parameters.

    BERT-base: for each adapter 2 (768 + M) of s and t, 768 + M biases; n^3 of
    the A that all share. 24 x 2,376 + 64 = 57,088 at M = 24 and n = 4, and
    38,400 of LayerNorm. With sites="ffn", Compacter++, 12 x 2,376 + 64 =
    28,576.

    Attributes:
        size: bottleneck size M, a multiple of n.
        n: number of Kronecker products, a divisor of BERT's hidden size.
        sites: after which sublayers: `attention`, `ffn` or `both`.

    Raises:
        UserError: a size or n below 1, or n does not divide both sizes.

    Source: Karimi Mahabadi et al. 2021, sections 3.2 and 3.3.
    """

    name: ClassVar[str] = "compacter"
    # A third of the paper's 3e-3, with which Adam without bias correction
    # learned nothing on CoLA (docs/methods.md).
    learning_rate: ClassVar[float] = 1e-3
    size: int = 24
    n: int = 4
    sites: str = "both"

    def __post_init__(self):
        base.check_positive(self, "size", "n")
        base.check_choice(self, "sites", tuple(SITES))
        if self.size % self.n:
            raise UserError(
                f"compacter: size is {self.size}, expected a multiple of n, "
                f"which is {self.n}"
            )

    def check(self, config):
        """Compares n with the hidden size."""
        if config.hidden_size % self.n:
            raise UserError(
                f"compacter: n is {self.n}, expected a divisor of the model's "
                f"hidden size {config.hidden_size}"
            )

    def rules(self, config):
        """The adapters, what they share, every LayerNorm."""
        return (
            (r"(bert/.*/)?compacter/.*", True),
            LAYER_NORMS,
            FROZEN_BERT,
        )

    def build(self, config, create, pooler):
        """Creates `compacter/shared` and the adapters."""
        shared = create(
            "compacter/shared", (self.n,) * 3, base.normal(SHARED_SCALE)
        )
        return KroneckerHooks(
            {
                (layer, site): KroneckerAdapter(
                    f"bert/encoder/layer_{layer}/{SCOPES[site]}",
                    config.hidden_size,
                    self.size,
                    self.n,
                    shared,
                    create,
                )
                for layer in range(config.num_hidden_layers)
                for site in SITES[self.sites]
            }
        )
