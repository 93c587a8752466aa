"""One traced layer for all: the same numbers, and as few traces as there are
kinds."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from test_methods import METHOD_TEXTS
from tiny_model import TinyModel

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Hooks
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.registry import parse

pytestmark = pytest.mark.older_stack

LAYERS = 4
FIRST_PHASES = [
    phase for phase in (parse(t).first_phase for t in METHOD_TEXTS) if phase
]
METHODS = {
    str(method): method for method in (*map(parse, METHOD_TEXTS), *FIRST_PHASES)
}


@pytest.fixture
def deep(tiny_config):
    return dataclasses.replace(tiny_config, num_hidden_layers=LAYERS)


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


@pytest.mark.gate
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("text", METHODS)
def test_shared_layers_compute_what_each_would_compute(deep, text, training):
    """Of every method; dropout keeps the same, and gradients are the same."""
    tiny = moved(deep, METHODS[text])
    shared, shared_gradients = results(tiny, training)
    tiny.is_shared = False
    built, built_gradients = results(tiny, training)
    np.testing.assert_allclose(shared, built, rtol=1e-4, atol=1e-5)
    for name, gradient in built_gradients.items():
        np.testing.assert_allclose(
            shared_gradients[name], gradient, 1e-3, 1e-4, err_msg=name
        )


def count_traces(monkeypatch, tiny, training):
    """How many layers a forward pass traces."""
    traced = []
    run = encoder.Layer.__call__

    def note(layer, *arguments):
        traced.append(layer.layer)
        return run(layer, *arguments)

    monkeypatch.setattr(encoder.Layer, "__call__", note)
    table = tf.TensorSpec([None, None], tf.int32)
    names = ("input_ids", "segment_ids", "input_mask")

    @tf.function(input_signature=[{name: table for name in names}])
    def step(features):
        tiny.features = {**tiny.features, **features}
        return results(tiny, training)

    step.get_concrete_function()
    return traced


@pytest.mark.gate
@pytest.mark.parametrize(
    "text,training,layers",
    [
        # The last layer computes the first token alone.
        ("houlsby(size=4)", True, [0, 3]),
        ("houlsby(size=4)", False, [0, 3]),
        ("houlsby(size=4, layers='1,3')", False, [0, 1, 3]),
        # With and without adapters, below what is trained and above it.
        ("houlsby(size=4, layers='1,3')", True, [0, 1, 2, 3]),
        ("adapterdrop(first=3, size=4)", True, [0, 3]),
        ("adapterdrop(first=2, size=4, robust=True)", True, [0, 3]),
        ("adapterdrop(first=2, size=4, robust=True)", False, [0, 2, 3]),
        ("diff_pruning(sparsity=0.05)", True, [0, 3]),
        ("prefix(length=3, inner_size=8)", True, [0, 1, 3]),
        ("prefix(length=3, inner_size=8)", False, [0, 3]),
        ("compacter(size=8, n=4)", True, [0, 3]),
        ("mad_x(size=4, inverse_size=3)", True, [0, 3]),
        ("full", True, [0, 3]),
        # Each token reads all others.
        ("pals(size=4, heads=2)", False, [0]),
    ],
)
def test_each_kind_of_layer_is_traced_once(
    deep, monkeypatch, text, training, layers
):
    tiny = moved(deep, parse(text))
    assert count_traces(monkeypatch, tiny, training) == layers


@pytest.mark.gate
def test_a_method_is_traced_once(deep):
    for text, method in METHODS.items():
        hooks = TinyModel(deep, method).model.bert.hooks
        kinds = {hooks.layer_kind(layer, True) for layer in range(LAYERS)}
        # Where not all have an adapter, these attend and others do not.
        some = text.startswith("fusion") and "layers='1'" in text
        assert len(kinds) == (2 if some else 1), text


class Scaling(Hooks):
    """Tells layers apart, and says nothing of it."""

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        return outputs * layer


@dataclasses.dataclass(frozen=True)
class Scaled(TuningMethod):
    name = "scaled"

    def trains(self, config):
        return "bert/.*"

    def hooks(self, config, values):
        return Scaling()


@pytest.mark.gate
def test_hooks_that_say_nothing_have_each_layer_traced(deep, monkeypatch):
    tiny = moved(deep, Scaled())
    expected = results(tiny, True)[0]
    assert count_traces(monkeypatch, moved(deep, Scaled()), True) == [
        0,
        1,
        2,
        3,
    ]
    tiny.is_shared = False
    np.testing.assert_allclose(expected, results(tiny, True)[0], 1e-4, 1e-5)


class Relay(Hooks):
    """Hands on from layer to layer, and says nothing of it."""

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        if site != "ffn":
            return None
        before = context.handed_on.get("sum", tf.zeros_like(outputs))
        context.handed_on["sum"] = outputs + before
        return before


def test_hooks_that_say_nothing_hand_on_from_layer_to_layer(deep):
    method = Scaled()
    object.__setattr__(method, "hooks", lambda *_: Relay())
    tiny = moved(deep, method)
    shared, _ = results(tiny, True)
    tiny.is_shared = False
    np.testing.assert_array_equal(shared, results(tiny, True)[0])


@pytest.mark.gate
@pytest.mark.parametrize(
    "text,layers",
    [
        # The embeddings' LayerNorm is trained below the first layer.
        ("houlsby(size=4)", [0, 3]),
        # So is the invertible adapter there.
        ("mad_x(size=4, inverse_size=3)", [0, 3]),
        ("mad_x(4, 3, layers='2')", [0, 2, 3]),
        # The input of the first layer needs no gradient.
        ("lora(rank=2)", [0, 1, 3]),
        # Nothing is trained in the lower layers, nor below the third.
        ("adapterdrop(first=2, size=4)", [0, 2, 3]),
        ("top_layers(1)", [0, 3]),
        ("head", [0, 3]),
        # What all layers share is read in the first of them, not before it.
        ("pals(size=4, heads=2)", [0, 1]),
        ("prefix(length=3, inner_size=8)", [0, 1, 3]),
    ],
)
def test_no_gradient_is_computed_that_nobody_needs(
    deep, monkeypatch, text, layers
):
    tiny = TinyModel(deep, parse(text), is_shared=True)
    assert count_traces(monkeypatch, tiny, True) == layers
