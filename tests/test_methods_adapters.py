"""Houlsby's adapters and their variants, and those after them."""

import numpy as np
import pytest
import tensorflow as tf
from tiny_model import TASK, TinyModel

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Hooks
from adapter_bert.errors import UserError
from adapter_bert.methods.base import (
    glorot_uniform,
    layer_numbers,
    layer_sizes,
)
from adapter_bert.methods.houlsby import Bottleneck
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model


def test_houlsby_computes_the_papers_formula():
    wide = encoder.truncated_normal(0.5)
    adapter = Bottleneck(4, 3, wide, wide, "gelu")
    values = {
        name: tf.random.stateless_normal(one.shape, [4, number])
        for number, (name, one) in enumerate(adapter.variables("x").items())
    }
    down, down_bias, up, up_bias = values.values()
    h = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    inner = h @ down.numpy() + down_bias.numpy()
    inner = (
        0.5
        * inner
        * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
    )
    expected = inner @ up.numpy() + up_bias.numpy()
    np.testing.assert_allclose(
        adapter(values, "x", tf.constant(h)), expected, atol=1e-6
    )


def test_init_scale_is_the_deviation_and_cuts_at_two():
    values = encoder.initial_values(
        "w", (300, 300), encoder.truncated_normal(0.01), seed=1
    )
    assert abs(values).max() <= 0.02
    # A normal cut at two deviations keeps 0.8796 of its deviation.
    assert abs(values.std() - 0.008796) < 1e-4


def test_glorots_limit_is_of_the_last_two_axes():
    """sqrt(6 / (30 + 120)), whatever is before them."""
    values = encoder.initial_values("w", (3, 30, 120), glorot_uniform, seed=1)
    assert 0.199 < abs(values).max() <= 0.2


@pytest.mark.parametrize(
    "text,numbers",
    [
        ("0", [0]),
        ("6-11", [6, 7, 8, 9, 10, 11]),
        ("0,2,6-8", [0, 2, 6, 7, 8]),
        ("6-7,10,0", [0, 6, 7, 10]),
        ("3-3", [3]),
    ],
)
def test_layers_are_numbers_and_inclusive_ranges(text, numbers):
    assert layer_numbers(text) == numbers


@pytest.mark.parametrize("layers", ["2", "0,9", "1-2", "999"])
def test_adapters_beyond_the_model_are_refused(tiny_config, layers):
    with pytest.raises(UserError, match=f"'{layers}'.* only the layers 0 to 1"):
        task_model.list_parameters(
            tiny_config, parse(f"houlsby(layers={layers!r})"), TASK.build_head
        )


@pytest.mark.parametrize(
    "text, sizes",
    [("", {}), ("1:7", {1: 7}), ("0-2:16,4:8", {0: 16, 1: 16, 2: 16, 4: 8})],
)
def test_sizes_are_of_layers_and_ranges(text, sizes):
    assert layer_sizes(text) == sizes


@pytest.mark.parametrize(
    "text", ["1", "1:0", "1:x", "0-1:3,1:4", ":3", "1:3,", "1:-3", "2-1:3"]
)
def test_sizes_that_are_none_are_refused(text):
    with pytest.raises(UserError, match="layers are|sizes of adap") as raised:
        parse(f"pfeiffer(sizes={text!r})")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("more", ["sizes='2:3'", "layers='0', sizes='1:3'"])
def test_a_size_of_a_layer_without_adapters_is_refused(tiny_config, more):
    with pytest.raises(UserError, match="sizes is .* layer [12] has no adapt"):
        parse(f"pfeiffer({more})").check(tiny_config)


@pytest.mark.older_stack
def test_each_layer_has_the_size_that_is_named(tiny_config):
    method = parse("houlsby(size=5, sizes='1:3')")
    sizes = {
        name: one.shape[1]
        for name, one in method.variables(tiny_config).items()
        if name.endswith("weights1")
    }
    assert list(sizes.values()) == [5, 5, 3, 3]
    assert str(method.widened()) == str(parse("houlsby(size=8, sizes='1:4')"))


def test_all_layers_go_without_saying():
    """Texts of runs and adapters from before `layers` name the same method."""
    text = "houlsby(size=64, init_scale=0.01)"
    assert parse(text) == parse("houlsby(layers='all')")
    assert str(parse("houlsby(layers='all')")) == text
    assert str(parse("houlsby(layers='0,2')")) == (
        "houlsby(size=64, init_scale=0.01, layers='0,2')"
    )


def names_outside_head(parameters):
    return {p.name for p in parameters if p.group != "head"}


def test_all_layers_train_every_adapter_and_every_layer_norm(tiny_config):
    table = TinyModel(tiny_config, parse("houlsby(size=4, layers='all')")).table
    scopes = [
        f"bert/encoder/layer_{layer}/{place}"
        for layer in (0, 1)
        for place in ("attention/output", "output")
    ]
    assert names_outside_head(table.trained) == {
        f"{scope}/adapters/{name}"
        for scope in scopes
        for name in ("weights1", "biases1", "weights2", "biases2")
    } | {
        f"{scope}/LayerNorm/{name}"
        for scope in ["bert/embeddings", *scopes]
        for name in ("beta", "gamma")
    }


@pytest.mark.parametrize("layer", [0, 1])
def test_a_named_layer_alone_has_adapters_and_is_trained(tiny_config, layer):
    every = TinyModel(tiny_config, parse("houlsby(size=4)"))
    some = TinyModel(tiny_config, parse(f"houlsby(size=4, layers='{layer}')"))
    scope = f"bert/encoder/layer_{layer}/"
    assert names_outside_head(some.table.trained) == {
        name
        for name in names_outside_head(every.table.trained)
        if name.startswith(scope)
    }
    assert set(some.variables) == {
        name
        for name in every.variables
        if "/adapters/" not in name or name.startswith(scope)
    }
    for name, variable in some.variables.items():
        assert np.array_equal(variable, every.variables[name]), name


def test_all_layers_named_leave_only_the_embeddings_layer_norm(tiny_config):
    every = TinyModel(tiny_config, parse("houlsby(size=4)"))
    named = TinyModel(tiny_config, parse("houlsby(size=4, layers='0-1')"))
    assert [p.name for p in every.table.parameters] == [
        p.name for p in named.table.parameters
    ]
    assert names_outside_head(every.table.trained) - names_outside_head(
        named.table.trained
    ) == {f"bert/embeddings/LayerNorm/{name}" for name in ("beta", "gamma")}
    assert not names_outside_head(named.table.trained) - names_outside_head(
        every.table.trained
    )
    assert np.array_equal(every.logits(), named.logits())


def test_a_layer_without_adapters_computes_what_berts_does(tiny_config):
    tiny = TinyModel(tiny_config, parse("houlsby(layers='1')"))
    plain = encoder.Bert(tiny_config, tiny.variables, Hooks())
    ids, segments = tiny.features["input_ids"], tiny.features["segment_ids"]
    expected = plain(ids, segments, tiny.context()).layer_outputs
    actual = tiny.model.bert(ids, segments, tiny.context()).layer_outputs
    assert np.array_equal(actual[0], expected[0])
    assert not np.array_equal(actual[1], expected[1])


@pytest.mark.parametrize(
    "layers,lowest", [("all", 0), ("0-1", 1), ("0", 1), ("1", 2)]
)
def test_the_gradient_ends_at_the_lowest_adapter(tiny_config, layers, lowest):
    """Of the outputs of embeddings and layers, it reaches those from there."""
    tiny = TinyModel(tiny_config, parse(f"houlsby(size=4, layers='{layers}')"))
    trained = [tiny.variables[p.name] for p in tiny.table.trained]
    context = tiny.context(training=True)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(trained)
        output = tiny.model.bert(
            tiny.features["input_ids"], tiny.features["segment_ids"], context
        )
        predictions = tiny.model.head(
            tiny.model.bert, output.sequence_output, context
        )
        loss = tf.reduce_mean(tiny.model.head.loss(predictions, tiny.features))
    outputs = [output.embedding_output, *output.layer_outputs]
    of_trained, of_outputs = tape.gradient(loss, [trained, outputs])
    for parameter, gradient in zip(tiny.table.trained, of_trained):
        assert np.any(gradient), parameter.name
    reached = [gradient is not None for gradient in of_outputs]
    assert reached == [place >= lowest for place in range(3)]
