"""The ways in which TensorFlow computes what a test has written once."""

import tensorflow as tf

v1 = tf.compat.v1


def in_graph(work, arguments):
    """Computes in a session of TensorFlow 1."""
    with tf.Graph().as_default(), v1.Session() as session:
        return session.run(work(*map(tf.constant, arguments)))


def with_unknown_dimensions(work, arguments):
    """As for batches of every length: only sizes of the model are known."""
    signature = [
        tf.TensorSpec([None] * (a.ndim - 1) + [a.shape[-1]], a.dtype)
        for a in arguments
    ]
    return tf.function(work, input_signature=signature)(*arguments)


WAYS = {
    "eager": lambda work, arguments: work(*map(tf.constant, arguments)),
    "function": lambda work, arguments: tf.function(work)(
        *map(tf.constant, arguments)
    ),
    "unknown dimensions": with_unknown_dimensions,
    "XLA": lambda work, arguments: tf.function(work, jit_compile=True)(
        *map(tf.constant, arguments)
    ),
    "TensorFlow 1": in_graph,
}
