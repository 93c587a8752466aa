"""AdapterFusion: its initial values, and what dropped layers leave."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tiny_model import TinyModel

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Hooks
from adapter_bert.errors import UserError
from adapter_bert.methods.fusion import near_identity
from adapter_bert.methods.registry import parse

PARTS = "{'a': pfeiffer(size=4), 'b': pfeiffer(size=6)}"


def shaken(config, text):
    """A fusion whose variables are all random."""
    tiny = TinyModel(config, parse(text))
    tiny.shake(frozen=True)
    return tiny


def states(tiny, hooks=None):
    ids, segments = tiny.features["input_ids"], tiny.features["segment_ids"]
    bert = tiny.model.bert
    if hooks is not None:
        bert = encoder.Bert(bert.config, tiny.variables, hooks)
    return bert(ids, segments, tiny.context()).layer_outputs


def test_values_begin_near_the_identity():
    value = near_identity(None, (3, 3))
    assert value.dtype == np.float32
    np.testing.assert_array_equal(np.diag(value), 1)
    np.testing.assert_array_equal(
        value[~np.eye(3, dtype=bool)], np.float32(1e-6)
    )


def test_what_is_observed_are_means_over_tokens(tiny_config):
    """Those of padding do not count."""
    tiny = shaken(tiny_config, f"fusion({PARTS})")
    mask = np.tri(*tiny.features["input_ids"].shape, 3, dtype=np.int32)
    tiny.features["input_mask"] = tf.constant(mask)
    seen = {}
    context = dataclasses.replace(tiny.context(), show=seen.__setitem__)
    ids, segments = tiny.features["input_ids"], tiny.features["segment_ids"]
    tiny.model.bert(ids, segments, context)
    shown = tiny.model.bert.hooks.observe(seen, context)
    shown = shown["fusion_attention"].numpy()
    assert shown.shape == (len(mask), 2, 2)
    for place, weights in enumerate(seen.values()):
        means = [
            row.numpy()[: m.sum()].mean(0) for row, m in zip(weights, mask)
        ]
        np.testing.assert_allclose(shown[:, place], means, atol=1e-6)


def test_below_the_first_layer_there_are_no_adapters(tiny_config):
    whole = shaken(tiny_config, f"fusion({PARTS}, robust=true)")
    plain = states(whole, Hooks())
    for first, differs in ((0, True), (1, False)):
        method = dataclasses.replace(
            parse(f"fusion({PARTS}, robust=true)"), first=first
        )
        hooks = method.hooks(tiny_config, whole.variables)
        hidden = states(whole, hooks)
        assert (abs(hidden[0] - plain[0]).numpy().max() > 1e-3) == differs
        assert abs(hidden[1] - plain[1]).numpy().max() > 1e-3
        assert [layer for layer, _ in method.places(tiny_config)] == list(
            range(first, 2)
        )


@pytest.mark.parametrize(
    "first,second,words",
    [
        ("pfeiffer", "lora", "b is an adapter of lora, a of pfeiffer"),
        ("pfeiffer", "parallel", "b is an adapter of parallel, a of pfeiffer"),
        ("lora", "lora", "a is an adapter of lora"),
        ("mad_x", "mad_x", "a is an adapter of mad_x"),
    ],
)
def test_adapters_that_do_not_read_the_same_are_not_fused(
    tiny_config, first, second, words
):
    method = parse(f"fusion({{'a': {first}, 'b': {second}}})")
    with pytest.raises(UserError, match=f"{words}.*that read the same"):
        method.check(tiny_config)


def test_a_robust_fusion_fits_every_first_layer():
    robust = parse(f"fusion({PARTS}, robust=true)")
    other = parse(f"fusion({PARTS}, robust=true, first=1)")
    assert other.fits(robust)
    assert not parse(f"fusion({PARTS}, first=1)").fits(robust)
    assert not parse(f"fusion({PARTS}, first=1)").fits(
        parse(f"fusion({PARTS})")
    )


def test_a_robust_fusion_drops_in_training_what_the_seed_says(tiny_config):
    tiny = shaken(tiny_config, f"fusion({PARTS}, robust=true)")
    hooks = tiny.model.bert.hooks
    x = tf.constant(
        np.random.default_rng(1).normal(size=(4, 9, 16)), tf.float32
    )
    dropped = set()
    for step in range(20):
        context = dataclasses.replace(tiny.context(True, step))
        added = [
            hooks.before_norm(layer, "ffn", x, x, lambda h: h, context)
            for layer in range(2)
        ]
        zero = [not tf.reduce_any(tf.not_equal(one, 0)) for one in added]
        # The uppermost layer is never dropped.
        assert not zero[1]
        dropped.add(bool(zero[0]))
    assert dropped == {True, False}


def test_few_steps_lower_the_penalty(tiny_config):
    tiny = shaken(tiny_config, f"fusion({PARTS}, penalty=10.0)")
    hooks, context = tiny.model.bert.hooks, tiny.context()
    values = [
        v.numpy() for n, v in tiny.variables.items() if "/fusion/value/" in n
    ]
    expected = 10.0 * sum(((v - np.eye(16)) ** 2).sum() for v in values)
    before = hooks.penalty(context).numpy()
    assert before == pytest.approx(expected, rel=1e-5)
    for step in range(5):
        tiny.train_one_step(step)
    assert hooks.penalty(context).numpy() < before
