"""Compacter: adapters of Kronecker products with shared factors."""

import dataclasses

import tensorflow as tf

from adapter_bert.bert import encoder, functional
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.base import LAYER_NORMS, Declared, Tensors
from adapter_bert.methods.houlsby import SITES, AdapterHooks, PlacedMethod

# A, and the deviation of its initial values, as in the published code.
SHARED = "compacter/shared"
SHARED_SCALE = 1e-4


def project(values: Tensors, scope: str, x: tf.Tensor) -> tf.Tensor:
    """float32 [R, inputs] -> float32 [R, outputs], by the matrix of a scope."""
    left, right, bias = (
        values[f"{scope}/{name}"] for name in ("left", "right", "bias")
    )
    kernel = tf.einsum(
        "iab,ip,iq->apbq", values[SHARED], left[..., 0], right[:, 0]
    )
    kernel = tf.reshape(kernel, [x.shape[-1], bias.shape[0]])
    return functional.dense(x, tf.cast(kernel, x.dtype), tf.cast(bias, x.dtype))


class KroneckerHooks(AdapterHooks):
    """`up(gelu(down(h)))` with `W = sum_i A_i (x) (s_i t_i)`."""

    # Matrices are made of factors, which are one task's.
    takes_rows = False

    def adapt(self, place, hidden):
        scope = self.scopes[place]
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])  # [B T, D]
        inner = functional.gelu(project(self.values, f"{scope}/down", flat))
        outputs = project(self.values, f"{scope}/up", inner)
        return functional.shaped_as(outputs, hidden)


@dataclasses.dataclass(frozen=True)
class Compacter(PlacedMethod):
    """Houlsby's adapters with matrices of few parameters.

    BERT-base: for each adapter 2 (768 + M) of s and t, 768 + M biases; n^3 of
    the A that all share. 24 x 2,376 + 64 = 57,088 at M = 24 and n = 4, and
    38,400 of LayerNorm. With sites="ffn", Compacter++, 12 x 2,376 + 64 =
    28,576.

    Attributes:
        size: bottleneck size M, a multiple of n.
        n: number of Kronecker products, a divisor of BERT's hidden size.
        sites: after which sublayers: `attention`, `ffn` or `both`.

    Source: Karimi Mahabadi et al. 2021, sections 3.2 and 3.3.
    """

    name = "compacter"
    # A third of the paper's 3e-3, with which Adam without bias correction
    # learned nothing on CoLA (results/methods.md).
    learning_rate = 1e-3
    trained_names = LAYER_NORMS
    factored = True
    hooks_class = KroneckerHooks
    scope = "compacter"
    positive = ("size", "n")
    choices = {"sites": SITES}
    size: int = 24
    n: int = 4
    sites: str = "both"

    def __post_init__(self):
        super().__post_init__()
        if self.size % self.n:
            raise UserError(
                f"compacter: size is {self.size}, expected a multiple of n, "
                f"which is {self.n}"
            )

    def check(self, config):
        if config.hidden_size % self.n:
            raise UserError(
                f"compacter: n is {self.n}, expected a divisor of the model's "
                f"hidden size {config.hidden_size}"
            )

    def declare(self, config, scope):
        """Declares `<scope>/{down,up}/{left,right,bias}`.

        s and t start as Glorot and Bengio's values of matrices [inputs / n, 1]
        and [1, outputs / n].
        """
        declared, hidden = {}, config.hidden_size
        for name, inputs, outputs in (
            ("down", hidden, self.size),
            ("up", self.size, hidden),
        ):
            left = self.n, inputs // self.n, 1
            right = self.n, 1, outputs // self.n
            declared[f"{scope}/{name}/left"] = Declared(
                left, base.glorot_uniform
            )
            declared[f"{scope}/{name}/right"] = Declared(
                right, base.glorot_uniform
            )
            declared[f"{scope}/{name}/bias"] = Declared(
                (outputs,), encoder.zeros
            )
        return declared

    def variables(self, config, pooler=True):
        shared = Declared((self.n,) * 3, base.normal(SHARED_SCALE))
        return {SHARED: shared, **super().variables(config, pooler)}
