"""One traced layer for all: the same numbers, and as few traces as there are
kinds."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from test_methods import METHOD_TEXTS
from tiny_model import TinyModel

from adapter_bert.bert import encoder
from adapter_bert.bert.architectures import RELATIVE_BIAS
from adapter_bert.bert.hooks import Hooks
from adapter_bert.methods.base import Declared, TuningMethod
from adapter_bert.methods.registry import parse

pytestmark = [pytest.mark.older_stack, pytest.mark.gate]

LAYERS = 4
# Of each class of hooks and of each composition one, with the words of
# whatever tells its layers apart.
TEXTS = (
    "houlsby(4, layers='1', depth=2, layer_norm=True)",
    "bapna(size=4)",
    "adapterdrop(first=1, size=4, robust=True)",
    "compacter(size=8, n=4)",
    "mad_x(size=4, inverse_size=3)",
    "lora(rank=2, targets='intermediate,output', dropout=0.1)",
    "pfeiffer(size=4, sizes='1:7,3:2', gating=true)",
    "union(lora(2, gating=true), prefix(3, inner_size=8, gating=true))",
    "lora(2, rs=true, rank_pattern='1:3', alpha_pattern='2-3.query:2')",
    "dora(rank=2, targets='query,output')",
    "vera(rank=5, targets='query,output', dropout=0.1)",
    "adalora(init_rank=3, rank=2, targets='query,output')",
    "prefix(length=3, inner_size=8)",
    "loreft(rank=2, suffix=2)",
    "prompt(length=3)",
    "ia3",
    "diff_pruning(sparsity=0.05)",
    "top_layers(1)",
    "stack({'a': lora(rank=2), 'b': pals(6, 2)}, pals(6, 2))",
    "stack({'a': prefix(3, false)}, diff_pruning(sparsity=0.05))",
    "average({'a': houlsby(4), 'b': lora(rank=2)}, weights='3,1')",
    "fusion({'a': houlsby(4, layer_norms=false, layers='1'), "
    "'b': houlsby(4, layer_norms=false)}, first=1, robust=true)",
    "per_task(prefix(3, inner_size=8), tasks='a')",
)
METHODS = {text: parse(text) for text in TEXTS}
METHODS["gates"] = METHODS["diff_pruning(sparsity=0.05)"].first_phase


class ScaleHooks(Hooks):
    alike = by_token = True

    def embeddings(self, hidden, context):
        return hidden * (1 + self.values["scale"])

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        return outputs * self.values["scale"]


@dataclass(frozen=True)
class Scale(TuningMethod):
    """A vector that all layers read, and what is below them."""

    name = "scale"
    hooks_class = ScaleHooks

    def variables(self, config, pooler=True):
        return {"scale": Declared((config.hidden_size,), encoder.ones)}


class ParameterHooks(ScaleHooks):
    def embeddings(self, hidden, context):
        return hidden

    def parameter(self, name, variable, context):
        is_read = name == "bert/embeddings/LayerNorm/gamma"
        return variable * self.values["scale"] if is_read else variable


class ParameterScale(Scale):
    hooks_class = ParameterHooks


METHODS["scale"], METHODS["scaled"] = Scale(), ParameterScale()


@pytest.fixture
def deep(tiny_config):
    return replace(tiny_config, num_hidden_layers=LAYERS)


@pytest.fixture
def mpnet(deep):
    return replace(
        deep,
        num_hidden_layers=3,
        type_vocab_size=0,
        first_position=2,
        relative_attention_num_buckets=32,
    )


def moved(config, method):
    """A model in which no two layers have equal values."""
    tiny = TinyModel(config, method, is_shared=True)
    rng = np.random.default_rng(2)
    for name, variable in tiny.variables.items():
        if not name.startswith("mask/"):
            values = rng.normal(0, 0.2, variable.shape)
            variable.assign_add(values.astype(np.float32))
    return tiny


def results(tiny, training):
    """The logits, and in training the gradients of their sum of squares."""
    names = [p.name for p in tiny.table.trained] if training else []
    with tf.GradientTape() as tape:
        logits = tiny.model(tiny.features, tiny.context(training))["logits"]
        loss = tf.reduce_sum(tf.square(logits))
    gradients = tape.gradient(
        loss,
        [tiny.variables[name] for name in names],
        # A branch that is not taken has none.
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    return logits, dict(zip(names, map(tf.convert_to_tensor, gradients)))


def check_shared(config, text):
    """Compares shared layers with layers of their own, whose gradients it
    returns: dropout keeps the same."""
    tiny = moved(config, METHODS.get(text) or parse(text))
    # In prediction few methods tell layers apart otherwise than in training.
    of_batch = "robust" in text or "prefix" in text
    for training in (True, False) if of_batch else (True,):
        tiny.is_shared = True
        shared, shared_gradients = results(tiny, training)
        tiny.is_shared = False
        built, built_gradients = results(tiny, training)
        assert_allclose(shared, built, rtol=1e-4, atol=1e-5)
        for name, gradient in built_gradients.items():
            assert_allclose(
                shared_gradients[name], gradient, 1e-3, 1e-4, err_msg=name
            )
    return built_gradients


@pytest.mark.parametrize("text", METHODS)
def test_shared_layers_compute_what_each_would_compute(deep, text):
    check_shared(deep, text)


@pytest.mark.parametrize(
    "text", ["full", "diff_pruning", "houlsby(4)", "stack(full, prompt(2))"]
)
def test_an_mpnets_scores_by_distance_are_shared_by_all_layers(mpnet, text):
    """Also their gradient, if a method trains them; dropout is on."""
    gradients = check_shared(mpnet, text)
    of_scores = [name for name in gradients if RELATIVE_BIAS in name]
    assert bool(of_scores) == (not text.startswith("houlsby"))
    assert all(np.abs(gradients[name]).max() > 1e-3 for name in of_scores)


def test_an_mpnets_scores_by_distance_have_their_gradient_under_xla(mpnet):
    tiny = moved(replace(mpnet, num_hidden_layers=2), parse("full"))
    [name] = [name for name in tiny.variables if RELATIVE_BIAS in name]
    _, plain = results(tiny, True)
    compiled = tf.function(
        lambda: results(tiny, True), autograph=False, jit_compile=True
    )()[1]
    assert_allclose(compiled[name], plain[name], 1e-3, 1e-4)


def count_traces(monkeypatch, tiny, training):
    """How many layers a forward pass traces."""
    traced = []
    run = encoder.Bert.layer

    def note(bert, number, *arguments):
        traced.append(number)
        return run(bert, number, *arguments)

    monkeypatch.setattr(encoder.Bert, "layer", note)
    table = tf.TensorSpec([None, None], tf.int32)
    names = ("input_ids", "segment_ids", "input_mask")

    @tf.function(
        input_signature=[{name: table for name in names}], autograph=False
    )
    def step(features):
        tiny.features = {**tiny.features, **features}
        return results(tiny, training)

    step.get_concrete_function()
    return traced


@pytest.mark.parametrize(
    "text,training,layers",
    [
        # The last layer computes the first token alone. The embeddings'
        # LayerNorm is trained below the first layer.
        ("houlsby(size=4)", True, [0, 3]),
        # With and without adapters, below the trained layers and above.
        ("houlsby(size=4, layers='1,3')", True, [0, 1, 2, 3]),
        ("adapterdrop(first=2, size=4, robust=True)", True, [0, 3]),
        ("adapterdrop(first=2, size=4, robust=True)", False, [0, 2, 3]),
        # All layers share values that the first of them reads, no earlier one.
        ("prefix(length=3, inner_size=8)", True, [0, 1, 3]),
        # Each token reads all others.
        ("pals(size=4, heads=2)", False, [0]),
        # The input of the first layer needs no gradient.
        ("lora(rank=2)", True, [0, 1, 3]),
        ("top_layers(1)", True, [0, 3]),
    ],
)
def test_each_kind_of_layer_is_traced_once(
    deep, monkeypatch, text, training, layers
):
    """No gradient is computed that nobody needs."""
    tiny = TinyModel(deep, text, is_shared=True)
    assert count_traces(monkeypatch, tiny, training) == layers


def test_a_method_is_traced_once(deep):
    for text in METHOD_TEXTS:
        hooks = parse(text).hooks(deep, {})
        kinds = {hooks.layer_kind(layer, True) for layer in range(LAYERS)}
        # Where not all have an adapter, these attend and others do not; or
        # a pattern tells layers apart.
        some = text.startswith("fusion") and "layers='1'" in text
        some |= "pattern" in text
        assert len(kinds) == (2 if some else 1), text


class Scaling(Hooks):
    """Tells layers apart, and says nothing of it."""

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        return outputs * layer


@dataclass(frozen=True)
class Scaled(TuningMethod):
    name = "scaled"

    def trains(self, config):
        return "bert/.*"

    def hooks(self, config, values):
        return Scaling()


def test_hooks_that_say_nothing_have_each_layer_traced(deep, monkeypatch):
    tiny = moved(deep, Scaled())
    expected = results(tiny, True)[0]
    traces = count_traces(monkeypatch, moved(deep, Scaled()), True)
    assert traces == [0, 1, 2, 3]
    tiny.is_shared = False
    assert_allclose(expected, results(tiny, True)[0], 1e-4, 1e-5)
