"""Gates: how much of what a method adds each text gets, as it needs.

A gate is one number from 0 to 1 for each row.

Source: Mao et al. 2022 (UniPELT), section 3.2; AdapterHub's `use_gating`, whose
mean is over padding too. Here it is over the row's tokens.
"""

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.methods import base
from adapter_bert.methods.base import Declared, Tensors


def variables(scope: str, inputs: int, gates: int = 1) -> dict[str, Declared]:
    """Declares the `gates` that read `inputs` values of each token."""
    kernel = Declared((inputs, gates), base.normal(0.02))
    return {
        f"{scope}/gate/kernel": kernel,
        f"{scope}/gate/bias": Declared((gates,), encoder.zeros),
    }


def opened(
    values: Tensors, scope: str, hidden: tf.Tensor, context: Context
) -> tf.Tensor:
    """Gives the mean of `sigmoid(h W + b)` over the tokens of each row.

    Takes float32 [B, T, inputs], and values of all rows or [B, ...] of each.
    Gives [B, 1, gates], of the type of `hidden`.
    """
    kernel, bias = (
        tf.convert_to_tensor(values[f"{scope}/gate/{name}"])
        for name in ("kernel", "bias")
    )
    scores = tf.matmul(tf.cast(hidden, tf.float32), kernel)
    scores += base.over_tokens(bias)
    mask = tf.expand_dims(tf.cast(context.input_mask, tf.float32), 2)
    # A row without tokens, which fills up a batch, has no mean.
    mean = tf.math.divide_no_nan(
        tf.reduce_sum(tf.sigmoid(scores) * mask, axis=1, keepdims=True),
        tf.reduce_sum(mask, axis=1, keepdims=True),
    )
    return tf.cast(mean, hidden.dtype)
