"""TensorFlow 1 graphs of the tests of upstream's names."""

import contextlib

import numpy as np
import tensorflow as tf

from adapter_bert.upstream import modeling, optimization

v1 = tf.compat.v1
INPUTS = ("input_ids", "input_mask", "segment_ids")


@contextlib.contextmanager
def session(seed=1):
    """A graph, and a session with which its values are computed."""
    with tf.Graph().as_default(), v1.Session() as opened:
        v1.set_random_seed(seed)
        yield opened


def initialize(opened):
    opened.run(v1.global_variables_initializer())


def small_config(**changes):
    sizes = {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 20,
        "max_position_embeddings": 24,
        "type_vocab_size": 2,
        **changes,
    }
    return modeling.BertConfig(**sizes)


def batch(config, rows=3, length=7):
    """ids, mask and segments, the last row of them shorter."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, config.vocab_size, (rows, length))
    mask = np.ones_like(ids)
    mask[-1, length // 2 :] = 0
    segments = np.tile(np.arange(length) % 2, (rows, 1))
    return [tf.constant(x, tf.int32) for x in (ids, mask, segments)]


def small_model(config=None, is_training=True, **flags):
    config = config or small_config()
    return modeling.BertModel(config, is_training, *batch(config), **flags)


def names(variables):
    return {variable.op.name for variable in variables}


def trained():
    return names(optimization.trained_variables())
