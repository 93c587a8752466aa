"""Dropout, and that each hook acts where it says."""

import numpy as np
import pytest
import tensorflow as tf
from tiny_model import create_variable

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Hooks, dropout
from adapter_bert.tasks.masked_lm import MaskedLMHead

MASK = tf.ones([1, 4], tf.int32)


def training(seed=(1, 2)):
    return Context(MASK, training=True, seed=tf.constant(seed))


def test_dropout_zeroes_its_share_and_keeps_the_mean():
    x = dropout(tf.ones([400, 500]), 0.1, "site", training()).numpy()
    assert abs((x == 0).mean() - 0.1) < 0.005
    np.testing.assert_allclose(x[x != 0], 1 / 0.9, rtol=1e-6)


def test_dropout_depends_on_seed_step_and_site_only():
    x = tf.ones([100])
    base = dropout(x, 0.5, "site", training())
    np.testing.assert_array_equal(base, dropout(x, 0.5, "site", training()))
    for other in (
        dropout(x, 0.5, "another", training()),
        dropout(x, 0.5, "site", training((3, 2))),
        dropout(x, 0.5, "site", training((1, 3))),
    ):
        assert (base.numpy() != other.numpy()).any()


def test_dropout_acts_in_training_only():
    x = tf.ones([100])
    np.testing.assert_array_equal(dropout(x, 0.5, "site", Context(MASK)), x)


class Halving(Hooks):
    """Halves what one hook is given, and writes down its calls."""

    def __init__(self, hook):
        self.calls = []

        def act(*arguments):
            self.calls.append(arguments)
            result = getattr(super(Halving, self), hook)(*arguments)
            if result is None:  # Added is what halves the sum.
                place = {"before_norm": 3, "after_norm": 2}[hook]
                return arguments[place] * -0.5
            if isinstance(result, tuple):
                return (result[0] * 0.5, *result[1:])
            return result * 0.5

        setattr(self, hook, act)


@pytest.mark.parametrize(
    "hook,calls",
    [
        ("embeddings", 1),
        # 3 embeddings, 16 of each of two layers, 2 of the first LayerNorm,
        # the vocabulary's matrix.
        ("parameter", 38),
        ("project", 12),
        ("key_value", 2),
        ("before_norm", 4),
        ("after_norm", 4),
        ("vocabulary", 1),
    ],
)
def test_every_hook_is_called_and_obeyed(tiny_config, hook, calls):
    """Of BERT with the head of masked tokens."""
    hooks = Halving(hook)
    variables = encoder.make_variables(
        encoder.declare(tiny_config), create_variable
    )
    head = MaskedLMHead(tiny_config, create_variable)
    halved, plain = (
        encoder.Bert(tiny_config, variables, one) for one in (hooks, Hooks())
    )
    ids = tf.constant([[2, 5, 6, 3]])
    places = tf.constant([[1, 2]])
    outputs = []
    for bert in (halved, plain):
        hidden = bert(ids, tf.zeros_like(ids), Context(MASK)).sequence_output
        results = head(bert, hidden, Context(MASK), places, ids[:, 1:3])
        outputs.append(results["logits"].numpy())
    assert len(hooks.calls) == calls
    assert (outputs[0] != outputs[1]).any()


def test_sublayers_are_told_layer_and_site(tiny_config):
    hooks = Halving("before_norm")
    values = encoder.make_variables(
        encoder.declare(tiny_config), create_variable
    )
    bert = encoder.Bert(tiny_config, values, hooks)
    ids = tf.constant([[2, 5, 6, 3]])
    bert(ids, tf.zeros_like(ids), Context(MASK))
    assert [call[:2] for call in hooks.calls] == [
        (0, "attention"),
        (0, "ffn"),
        (1, "attention"),
        (1, "ffn"),
    ]
