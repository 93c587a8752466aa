"""AdapterFusion: its initial values, and what dropped layers leave."""

from dataclasses import replace

import numpy as np
import pytest
import refusals
import tensorflow as tf
from numpy.testing import assert_array_equal
from tiny_model import shaken

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Hooks
from adapter_bert.methods.fusion import near_identity
from adapter_bert.methods.registry import parse

PARTS = "{'a': pfeiffer(size=4), 'b': pfeiffer(size=6)}"


def test_values_begin_near_the_identity():
    value = near_identity(None, (3, 3))
    assert value.dtype == np.float32
    assert_array_equal(np.diag(value), 1)
    assert_array_equal(value[~np.eye(3, dtype=bool)], np.float32(1e-6))


def test_below_the_first_layer_there_are_no_adapters(tiny_config):
    robust = parse(f"fusion({PARTS}, robust=true)")
    tiny = shaken(tiny_config, str(robust), frozen=True)

    def hidden(hooks):
        bert = encoder.Bert(tiny_config, tiny.variables, hooks)
        return tiny.encode(bert=bert).layer_outputs

    plain = hidden(Hooks())
    for first, differs in ((0, [True, True]), (1, [False, True])):
        method = replace(robust, first=first)
        fused = hidden(method.hooks(tiny_config, tiny.variables))
        for one, other, is_other in zip(fused, plain, differs):
            assert (abs(one - other).numpy().max() > 1e-3) == is_other
        layers = [layer for layer, _ in method.places(tiny_config)]
        assert layers == [*range(first, 2)]


@pytest.mark.parametrize(
    "first, second, name",
    [
        ("pfeiffer", "lora", "b"),
        ("pfeiffer", "parallel", "b"),
        ("lora", "lora", "a"),
        ("mad_x", "mad_x", "a"),
    ],
)
def test_adapters_that_do_not_read_the_same_are_not_fused(
    tiny_config, first, second, name
):
    method = parse(f"fusion({{'a': {first}, 'b': {second}}})")
    refusals.check(
        lambda: method.check(tiny_config),
        f"{name} is an adapter of {second}",
        "that read the same",
    )


@pytest.mark.parametrize("text", ["houlsby", "adapterdrop(1, robust=true)"])
def test_adapters_that_change_bert_are_not_fused(tiny_config, text):
    method = parse(f"fusion({{'a': {text}, 'b': {text}}})")
    refusals.check(lambda: method.check(tiny_config), "changes BERT itself")


def test_a_robust_fusion_fits_every_first_layer():
    robust, robust_first, first, plain = (
        parse(f"fusion({PARTS}{more})")
        for more in (", robust=true", ", robust=true, first=1", ", first=1", "")
    )
    assert robust_first.fits(robust)
    assert not first.fits(robust) and not first.fits(plain)


def test_a_robust_fusion_drops_in_training_what_the_seed_says(tiny_config):
    tiny = shaken(tiny_config, f"fusion({PARTS}, robust=true)", frozen=True)
    hooks = tiny.model.bert.hooks
    x = tf.constant(
        np.random.default_rng(1).normal(size=(4, 9, 16)), tf.float32
    )
    dropped = set()
    for step in range(20):
        context = tiny.context(True, step)
        added = [
            hooks.before_norm(layer, "ffn", x, x, lambda h: h, context)
            for layer in range(2)
        ]
        zero = [not tf.reduce_any(tf.not_equal(one, 0)) for one in added]
        # The uppermost layer is never dropped.
        assert not zero[1]
        dropped.add(bool(zero[0]))
    assert dropped == {True, False}
