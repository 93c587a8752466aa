"""What some methods compute, written out in numpy."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import refusals
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose
from tiny_model import TinyModel, shaken, table_of

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Hooks
from adapter_bert.methods import lora
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.squad import SpanHead


def arrays(tiny, scope, *names):
    return [tiny.variables[f"{scope}/{name}"].numpy() for name in names]


def layer_norm(x):
    """A LayerNorm with gamma 1 and beta 0."""
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12)


# What layer 1's second sublayer reads and computes, and what the layer reads.
X, F, H = (
    default_rng(seed).normal(size=(2, 3, 16)).astype(np.float32)
    for seed in (2, 3, 5)
)


def sublayer(tiny, context):
    """Computes a feed-forward sublayer with the method's hooks."""
    hooks, outputs = tiny.model.bert.hooks, F
    added = hooks.before_norm(
        1,
        "ffn",
        tf.constant(X),
        tf.constant(F),
        lambda x: tf.constant(layer_norm(x.numpy())),
        context,
    )
    if added is not None:
        outputs = F + added.numpy()
    hidden = layer_norm(X + outputs)
    added = hooks.after_norm(1, "ffn", tf.constant(hidden), context)
    return hidden if added is None else hidden + added.numpy()


def test_bapna_adds_to_the_finished_layer(tiny_config):
    tiny = shaken(tiny_config, "bapna(size=4)")
    hidden, scope = layer_norm(X + F), "bert/encoder/layer_1/output/adapters"
    gamma, beta = arrays(tiny, f"{scope}/LayerNorm", "gamma", "beta")
    normed = layer_norm(hidden) * gamma + beta
    names = ("weights1", "biases1", "weights2", "biases2")
    w1, b1, w2, b2 = arrays(tiny, scope, *names)
    expected = hidden + np.maximum(normed @ w1 + b1, 0) @ w2 + b2
    actual = sublayer(tiny, tiny.context())
    assert_allclose(actual, expected, atol=1e-5)


def test_pals_attend_over_what_the_layer_reads(tiny_config):
    tiny = shaken(tiny_config, "pals(size=6, heads=2)")
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    context = Context(tf.constant(mask), layer_input=tf.constant(H))

    def dense(name, x):
        kernel, bias = arrays(tiny, f"pals/{name}", "kernel", "bias")
        return x @ kernel + bias

    encoded = dense("encoder", H)
    q, k, v = (
        dense(f"layer_1/{part}", encoded).reshape(2, 3, 2, 3)
        for part in ("query", "key", "value")
    )
    scores = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(3)
    scores += np.where(mask == 1, 0, -10000.0)[:, None, None]
    attended = np.einsum("bnts,bsnh->btnh", tf.nn.softmax(scores).numpy(), v)
    decoded = dense("decoder", attended.reshape(2, 3, 6))
    extra = tf.nn.gelu(decoded, approximate=True).numpy()
    actual = sublayer(tiny, context)
    assert_allclose(actual, layer_norm(X + F + extra), atol=1e-5)


def test_lora_drops_out_what_a_reads(tiny_config):
    tiny = shaken(tiny_config, "lora(rank=2, dropout=0.5)")
    name = "bert/encoder/layer_0/attention/self/query"
    a, b = arrays(tiny, name, "lora_a", "lora_b")
    full, dropped = (
        tiny.model.bert.hooks.project(
            name, tf.ones([1, 500, 16]), tf.zeros_like, tiny.context(training)
        ).numpy()
        for training in (False, True)
    )
    assert_allclose(full[0, 0], np.ones(16) @ a @ b * 4, rtol=1e-4)
    assert len(np.unique(dropped[0], axis=0)) > 100
    assert_allclose(dropped.mean(1), full.mean(1), atol=0.2)


def test_patterns_give_matrices_ranks_and_scales_of_their_own():
    method = parse(
        "lora(4, 6.0, rank_pattern='1.query:0, 0-1:2', "
        "alpha_pattern='query:3, 2.value:1.5')"
    )
    matrices = {
        place: method.matrix(place)
        for place in itertools.product(range(3), ("query", "value"))
    }
    assert matrices == {
        (0, "query"): (2, 3.0, 1.5),
        (0, "value"): (2, 6.0, 3.0),
        (1, "query"): (0, 3.0, 0.0),
        (1, "value"): (2, 6.0, 3.0),
        (2, "query"): (4, 3.0, 0.75),
        (2, "value"): (4, 1.5, 0.375),
    }
    stable = replace(method, rs=True)
    assert stable.matrix((2, "query")) == (4, 3.0, 1.5)
    # Older texts say nothing of it.
    assert str(parse("lora")) == (
        "lora(rank=8, alpha=8.0, targets='query,value', dropout=0.0)"
    )


@given(
    st.dictionaries(
        st.sampled_from(list(lora.places(lora.NAMES, range(12)))),
        st.one_of(st.integers(0, 9), st.floats(1e-20, 3e38)),
    )
)
def test_a_pattern_is_read_as_it_is_written(numbers):
    text = lora.write_pattern(numbers, 5, 12, lora.NAMES)
    entries = lora.read_pattern(text)
    for place in lora.places(lora.NAMES, range(12)):
        named = [entry.number for entry in entries if entry.names(place)]
        assert named in ([], [numbers.get(place, 5)])
        assert named or numbers.get(place, 5) == 5


def test_vera_takes_no_gradient_of_its_matrices(tiny_config):
    tiny = shaken(tiny_config, "vera(rank=5, targets='query')")
    hooks, context = tiny.model.bert.hooks, tiny.context(training=True)
    handed_on = hooks.begin(context)
    context = replace(context, handed_on=handed_on)
    name = "bert/encoder/layer_0/attention/self/query"
    with tf.GradientTape() as tape:
        tape.watch(handed_on)
        outputs = hooks.project(name, tf.ones([4, 9, 16]), tf.identity, context)
    slopes = tape.gradient(
        outputs, [*handed_on.values(), tiny.variables[f"{name}/vera_d"]]
    )
    assert slopes[:-1] == [None, None]
    assert np.abs(slopes[-1]).min() > 0


class TestAdapterDrop:
    """Specialized: fewer adapters. Robust: dropped by chance in training."""

    @pytest.mark.parametrize("over", ["houlsby", "pfeiffer"])
    def test_specialized_is_the_method_without_lower_layers(
        self, tiny_config, over
    ):
        dropped, upper = (
            TinyModel(tiny_config, text)
            for text in (
                f"adapterdrop(first=1, over='{over}', size=4)",
                f"{over}(size=4, layers='1')",
            )
        )
        assert set(dropped.variables) == set(upper.variables)
        assert np.array_equal(dropped.logits(), upper.logits())

    def test_robust_drops_as_many_layers_as_asked_for_in_prediction(
        self, tiny_config
    ):
        robust, every, plain = (
            shaken(tiny_config, text)
            for text in (
                "adapterdrop(first=1, size=4, robust=True)",
                "adapterdrop(first=0, size=4, robust=True)",
                "houlsby(size=4)",
            )
        )
        assert np.array_equal(every.logits(), plain.logits())
        assert not np.array_equal(robust.logits(), plain.logits())
        bare = encoder.Bert(tiny_config, robust.variables, Hooks())
        bare = robust.encode(bert=bare).layer_outputs[0]
        for tiny, is_bare in ((robust, True), (plain, False)):
            lowest = tiny.encode().layer_outputs[0]
            assert np.array_equal(lowest, bare) == is_bare

    def test_robust_drops_a_random_number_for_each_batch(self, steady_config):
        tiny = shaken(
            steady_config, "adapterdrop(first=0, size=4, robust=True)"
        )
        seen = {
            tiny.encode(tiny.context(True, step))
            .sequence_output.numpy()
            .tobytes()
            for step in range(12)
        }
        assert len(seen) == 2  # None, or layer 0's.

    def test_robust_adapters_fit_any_first_layer(self):
        robust = parse("adapterdrop(first=1, size=4, robust=True)")
        other = replace(robust, first=0)
        special = replace(robust, robust=False)
        assert robust.fits(other) and other.fits(robust)
        for one, another in (
            (robust, replace(other, size=8)),
            (special, replace(special, first=0)),
            (robust, special),
            (special, robust),
        ):
            assert not one.fits(another)

    def test_they_do_beside_other_parts(self):
        """As new words, which make a stack of each method."""

        def stack(first, more="new_words(count=2)"):
            one = f"adapterdrop(first={first}, size=4, robust=True)"
            return parse(f"stack({one}, {more})")

        assert stack(0).fits(stack(1)) and stack(1).fits(stack(0))
        assert not stack(0).fits(stack(1, "new_words(count=3)"))
        assert not stack(0).fits(stack(1, "new_words(count=2), lora"))
        assert not stack(0).fits(parse("union(lora, ia3)"))


NO_LAYER = ("only the layers 0 to 1",)


@pytest.mark.parametrize(
    "text, parts",
    {
        "adapterdrop(first=2)": NO_LAYER,
        "vera(layers='2')": NO_LAYER,
        "top_layers(3)": ["only 2 layers"],
        "compacter(n=3, size=6)": ["a divisor of the model's hidden"],
        "lora(rank=17)": ["rank is 17", "query", "at most 16"],
        "lora(rank=17, targets='pooler')": ["rank is 17 at bert/pooler"],
        "dora(rank=2, rank_pattern='1.value:17')": [
            "rank is 17",
            "1/",
            "value",
        ],
        "adalora(init_rank=17)": ["init_rank is 17", "at most"],
        "lora(rank_pattern='1-2:3')": ["'1-2:3'", "no matrix"],
        "lora(rank_pattern='key:3')": ["'key:3'", "targets of 'query,value'"],
        "lora(alpha_pattern='1:3, 1.query:4')": ["'1.query:4'", "each once"],
        "lora(rank_pattern='query:0, value:0')": ["leaves no matrix"],
        "lora(targets='pooler', rank_pattern='0-1.pooler:3')": [
            "'0-1.pooler:3'",
            "no matrix",
        ],
        "lora(targets='query,pooler', gating=True)": ["gating", "pooler reads"],
        "lt_sft(sparsity=1e-9)": ["expected at least 1", "e-04"],
        "loreft(prefix=0)": ["not both 0"],
        "loreft(prefix=-1, suffix=2)": ["prefix is -1"],
        "loreft(layers='x')": ["neither a layer"],
        "loreft(layers='2')": NO_LAYER,
        "loreft(rank=16)": ["rank is 16"],
        "adalora(rank=12)": ["adalora", "expected rank below init_rank"],
        "adalora(tinit=0.5)": ["adalora", "tinit + tfinal below 1"],
    }.items(),
)
def test_arguments_out_of_range_or_beyond_the_model_are_refused(
    tiny_config, text, parts
):
    refusals.check(lambda: table_of(tiny_config, text), *parts)


@pytest.mark.parametrize("method", ["lora", "dora", "vera", "adalora"])
def test_an_update_of_a_pooler_that_is_not_there_is_refused(
    tiny_config, method
):
    """As of heads that read each token, and of a RoBERTa."""
    head = partial(SpanHead, 4)
    text = f"{method}(rank=2, targets='query,pooler')"
    call = partial(task_model.list_parameters, tiny_config)
    refusals.check(lambda: call(parse(text), head), "leave pooler out")
    # A trained part stays as it is.
    assert call(parse(f"stack({{'a': {text}}}, pfeiffer(size=4))"), head)
    roberta = replace(tiny_config, first_position=2)
    refusals.check(lambda: parse(text).check(roberta), method, "has no pooler")
