"""DoRA: low-rank updates of directions, with trained lengths of columns."""

import dataclasses

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.base import Declared
from adapter_bert.methods.lora import Lora, LoraHooks, place_of


class DoraHooks(LoraHooks):
    """Gives the columns of `W + scale A B` the lengths m.

    Reads A, B and m: `<kernel's scope>/lora_a`, `lora_b` and `dora_m`.
    """

    def project(self, name, inputs, dense, context):
        outputs = super().project(name, inputs, dense, context)
        if f"{name}/dora_m" not in self.values:
            return outputs
        length = self._length(name, dense.read("kernel"))
        # A constant for the gradient, section 4.3.
        wanted = tf.cast(self.values[f"{name}/dora_m"], tf.float32)
        # A column of zeros stays one.
        factor = tf.math.divide_no_nan(wanted, tf.stop_gradient(length))
        factor, bias = (
            base.over_tokens(tf.cast(x, outputs.dtype))
            for x in (factor, dense.read("bias"))
        )
        return (outputs - bias) * factor + bias

    def _length(self, name: str, kernel: tf.Tensor) -> tf.Tensor:
        """Of the columns, float32 [outputs], or [B, outputs] of rows' own.

        By `|w + u|^2 = w^2 + 2 w u + u^2`, so that no row needs the sum.
        """
        kernel = tf.cast(kernel, tf.float32)
        scale = self.method.matrix(place_of(name)).scale
        down, up = (
            tf.cast(self.values[f"{name}/lora_{factor}"], tf.float32)
            for factor in "ab"
        )
        mixed = tf.matmul(down, kernel, transpose_a=True)  # [R, outputs]
        square = tf.matmul(tf.matmul(down, down, transpose_a=True), up)
        added = scale * up * (2.0 * mixed + scale * square)
        squares = tf.reduce_sum(tf.square(kernel), axis=0)
        return tf.sqrt(squares + tf.reduce_sum(added, axis=-2))


@dataclasses.dataclass(frozen=True)
class Dora(Lora):
    """LoRA of directions alone: `m (W + scale A B) / |W + scale A B|`.

    `| |` are the lengths of columns, as many as a kernel has outputs. BERT-base
    has them next to LoRA's updates: 12 x 2 x (8 (768 + 768) + 768) = 313,344 at
    rank 8 for queries and values. The output at the start is plain BERT's but
    for rounding, since m begins with the lengths of W, which do not decay.
    Over a part that changes W it is that part's, but for these lengths.

    Source: Liu et al. 2024, equation 5; the lengths are constants of the
    gradient, section 4.3.
    """

    name = "dora"
    hooks_class = DoraHooks

    def __post_init__(self):
        super().__post_init__()
        if self.gating:
            raise UserError(
                "dora: gating is True, but its updates have no gates; leave "
                "gating out, or take lora"
            )

    def variables(self, config, pooler=True):
        shapes = encoder.list_variables(config)
        declared = super().variables(config, pooler)
        for scope in self.matrices(config):
            kernel = config.variable(f"{scope}/kernel")
            declared[f"{scope}/dora_m"] = Declared(
                shapes[kernel][1:],
                encoder.OfPretrained(
                    lambda read, kernel=kernel: np.linalg.norm(
                        read(kernel), axis=0
                    )
                ),
                decays=False,
            )
        return declared

    def merge(self, config, read, values):
        merged = super().merge(config, read, values)
        for name, kernel in merged.items():
            length = np.linalg.norm(kernel, axis=0)
            wanted = values[f"{name.removesuffix('/kernel')}/dora_m"]
            factor = np.divide(
                wanted, length, out=np.zeros_like(wanted), where=length > 0
            )
            merged[name] = kernel * factor
        return merged
