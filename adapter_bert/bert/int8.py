"""BERT's frozen matrices in a byte a value, widened where they are read.

A kernel has a scale for each output, the word embeddings have one for each
word. Scales have 17 significant bits, values 7: so their products are exact in
float32, and a matrix that was widened is stored again with the same bits.
Source: Jacob et al. 2018, section 2.1, without zero points.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from adapter_bert.bert.encoder import WORD_EMBEDDINGS, Quantized

# The greatest value; -128 is not used.
GREATEST = 127
# Bits of a float32 that are zero in scales.
UNUSED_BITS = np.uint32((1 << 7) - 1)


def names(variables: Iterable[str]) -> frozenset[str]:
    """Chooses the names of matrices in int8 among BERT's own variables."""
    return frozenset(
        name
        for name in variables
        if name.endswith("/kernel") or name == WORD_EMBEDDINGS
    )


def quantize(name: str, matrix: np.ndarray) -> Quantized:
    """Rounds a variable, float32 [I, O] or [V, D], to arrays.

    Scales are rounded up. An error is at most half of a scale.

    Raises:
        ValueError: a value is not finite.
    """
    axis = _axis_of(name)
    greatest = np.abs(matrix).max(axis=axis, keepdims=True, initial=0.0)
    if not np.isfinite(greatest).all():
        raise ValueError(f"{name} holds a value that is no finite number")
    bits = (greatest.astype(np.float32) / np.float32(GREATEST)).view(np.uint32)
    scale = ((bits + UNUSED_BITS) & ~UNUSED_BITS).view(np.float32)
    # A channel of zeros has the scale zero.
    values = np.divide(
        matrix, scale, out=np.zeros_like(matrix), where=scale > 0
    )
    return Quantized(np.rint(values).astype(np.int8), scale)


def make_variables(name: str, matrix: np.ndarray) -> Quantized:
    """Gives variables of what `quantize` gives."""
    parts = quantize(name, matrix)
    return Quantized(*(tf.Variable(part, trainable=False) for part in parts))


def specs(name: str, shape: Sequence[int]) -> Quantized:
    """Dtypes and shapes of what `quantize` gives."""
    channels = list(shape)
    channels[_axis_of(name)] = 1
    return Quantized(
        tf.TensorSpec(shape, tf.int8), tf.TensorSpec(channels, tf.float32)
    )


def _axis_of(name: str) -> int:
    return 1 if name == WORD_EMBEDDINGS else 0
