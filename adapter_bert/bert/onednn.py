"""Kernels of oneDNN that compute several operations in one pass over memory.

TensorFlow has these on x86 processors. Here they are asked for by name, so no
graph need have Grappler's pattern. Neither exported models nor other devices
know them, and `tf.vectorized_map` does not.
"""

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_library

from adapter_bert.graph_building import setting

PREDICTION, TRAINING = "prediction", "training"

# Names of `functional.ACTIVATIONS` -> oneDNN's.
ACTIVATIONS = {
    "gelu": "GeluApproximate",
    "gelu_new": "GeluApproximate",
    "gelu_erf": "GeluExact",
    "relu": "Relu",
}


@functools.cache
def is_available(dtype: str) -> bool:
    """Tells whether TensorFlow has these kernels here for a dtype.

    Not with a GPU, nor with TF_ENABLE_ONEDNN_OPTS=0 in the environment, nor on
    a processor without the instructions.
    """
    if tf.config.list_physical_devices("GPU"):
        return False
    try:
        from tensorflow.python.util import _pywrap_util_port

        if not _pywrap_util_port.IsMklEnabled():
            return False
        _try(tf.ones([2, 16], dtype))
    except (
        tf.errors.OpError,
        # An operation, or an attribute, that this TensorFlow does not know.
        AttributeError,
        ImportError,
        RuntimeError,
        TypeError,
        ValueError,
    ):
        return False
    return True


def _try(x: tf.Tensor) -> None:

    @tf.function(autograph=False)
    def compute(x):
        kernel, bias = tf.ones([16, 16], x.dtype), tf.ones([16], x.dtype)
        for activation in ("linear", *ACTIVATIONS):
            x = dense(x, kernel, bias, activation)
        x, bias = tf.cast(x, tf.float32), tf.cast(bias, tf.float32)
        return layer_norm(x, bias, bias, 1e-12)

    compute(x)


# Builds graphs of PREDICTION, without gradients, or TRAINING with these, whose
# kernels must be available; or of None, without them.
_step, built_for = setting(None)


def is_built_for(step: str) -> bool:
    """Tells whether a graph of this step is being built with these kernels."""
    return _step() == step


def dense(
    x: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    activation: str = "linear",
) -> tf.Tensor:
    """Gives `activation(x @ kernel + bias)`, like `x` [R, O].

    `x` is float32 or bfloat16 [R, I]; like it are `kernel` [I, O] and `bias`
    [O]. `activation` is one of `ACTIVATIONS`, or "linear".
    """
    rows, (inputs, size) = x.shape[0], kernel.shape
    if activation == "linear" and x.dtype == tf.bfloat16:
        # `_FusedMatMul` would bring the kernel into another order first, which
        # takes as long as the product.
        outputs = _create(
            "_MklFusedBatchMatMulV2",
            x=tf.reshape(x, [1, 1, -1, inputs]),
            y=tf.reshape(kernel, [1, 1, inputs, size]),
            args=[tf.ones([], x.dtype), tf.reshape(bias, [1, 1, 1, size])],
            fused_ops=["Mul", "Add"],
            adj_x=False,
            adj_y=False,
            epsilon=0.0,
            leakyrelu_alpha=0.0,
        )
        outputs = tf.reshape(outputs, [-1, size])
    else:
        named = [] if activation == "linear" else [ACTIVATIONS[activation]]
        outputs = _create(
            "_FusedMatMul",
            a=x,
            b=kernel,
            args=[bias],
            fused_ops=["BiasAdd", *named],
            transpose_a=False,
            transpose_b=False,
            epsilon=0.0,
            leakyrelu_alpha=0.0,
        )
    outputs.set_shape([rows, size])
    return outputs


def layer_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tf.Tensor:
    """Normalizes the last axis of float32 [..., D] by float32 [D].

    In bfloat16 this kernel would take gamma and beta in bfloat16 too, which
    nearly doubles the error of a model's probabilities.
    """
    flat = tf.reshape(x, [-1, x.shape[-1]])
    outputs = _create(
        "_MklLayerNorm", x=flat, scale=gamma, offset=beta, epsilon=epsilon
    )
    outputs = tf.reshape(outputs, tf.shape(x))
    outputs.set_shape(x.shape)
    return outputs


def _create(name: str, **arguments: Any) -> tf.Tensor:
    if tf.executing_eagerly():
        raise RuntimeError(f"{name} outside of a graph; use tf.function")
    # Names of nodes may not begin with the operation's underscore.
    return op_def_library.apply_op(name, name=name[1:], **arguments)
