"""Dropout, and that each hook acts where it says."""

import pytest
import tensorflow as tf
from numpy.testing import assert_array_equal
from tiny_model import create_variable

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Hooks, dropout
from adapter_bert.tasks.masked_lm import MaskedLMHead

MASK = tf.ones([1, 4], tf.int32)


def training(seed=(1, 2)):
    return Context(MASK, training=True, seed=tf.constant(seed))


def test_dropout_depends_on_seed_step_and_site_only():
    """And acts in training alone."""
    x = tf.ones([100])
    base = dropout(x, 0.5, "site", training())
    assert {*base.numpy()} == {0, 2}
    assert_array_equal(base, dropout(x, 0.5, "site", training()))
    assert_array_equal(x, dropout(x, 0.5, "site", Context(MASK)))
    for site, seed in (("another", (1, 2)), ("site", (3, 2)), ("site", (1, 3))):
        other = dropout(x, 0.5, site, training(seed))
        assert (base.numpy() != other.numpy()).any()


class Halving(Hooks):
    """Halves what one hook is given, and writes down its calls."""

    def __init__(self, hook):
        self.calls, self.places = [], frozenset({hook})

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


def run(config, *all_hooks):
    """Logits of masked tokens of BERT with each of some hooks."""
    variables = encoder.make_variables(encoder.declare(config), create_variable)
    head = MaskedLMHead(config, create_variable)
    ids, places = tf.constant([[2, 5, 6, 3]]), tf.constant([[1, 2]])
    for hooks in all_hooks:
        bert = encoder.Bert(config, variables, hooks)
        hidden = bert(ids, tf.zeros_like(ids), Context(MASK)).sequence_output
        outputs = head(bert, hidden, Context(MASK), places, ids[:, 1:3])
        yield outputs["logits"].numpy()


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
    halved, plain = run(tiny_config, hooks, Hooks())
    assert len(hooks.calls) == calls and (halved != plain).any()
