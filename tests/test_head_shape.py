"""Heads of more layers than BERT's own."""

import dataclasses

import numpy as np
import pytest
import refusals
import tensorflow as tf
from numpy.random import default_rng
from tiny_model import create_variable

from adapter_bert.bert.hooks import Context
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.tasks.text_task import POOLED, HeadShape, HiddenLayers


def test_the_usual_head_is_not_described():
    """So that runs of before are what they were."""
    assert POOLED.describe() == {}
    assert HeadShape.restore({}, "x") == POOLED
    task = restore_task({"name": "custom", "labels": ["a", "b"]}, {}, "x")
    assert "head" not in task.describe()


@pytest.mark.parametrize(
    "shape",
    [
        HeadShape(layers=3, activation="relu", pooler=False, bias=False),
        HeadShape(layers=2),
        HeadShape(bias=False),
        HeadShape(pooler=False, mean=True),
    ],
)
def test_a_description_gives_the_same_head_again(shape):
    described = shape.describe()
    assert HeadShape.restore(described, "x") == shape
    task = restore_task(
        {"name": "custom", "labels": ["a", "b"], **described}, {}, "x"
    )
    assert task.head == shape
    described = dict(task.describe()["head"])
    # Without a mean, descriptions are as in earlier versions.
    assert described.pop("mean", None) is (shape.mean or None)
    assert {**described, "mean": shape.mean} == dataclasses.asdict(shape)


@pytest.mark.parametrize(
    "head, message",
    [
        *(
            (head, "task.head is ")
            for head in (
                7,
                {"layers": 0},
                {"layers": True},
                {"x": 1},
                {"bias": 1},
            )
        ),
        ({"layers": 2, "activation": "x"}, "unknown activation 'x'"),
    ],
)
def test_what_is_no_head_is_refused(head, message):
    refusals.check(lambda: HeadShape.restore({"head": head}, "file"), message)


def test_layers_are_dense_and_the_activation():
    layers = HiddenLayers(
        HeadShape(layers=3, activation="relu"),
        "scope/",
        4,
        lambda name, shape, _: tf.Variable(
            default_rng(len(name)).normal(size=shape), dtype="float32"
        ),
    )
    assert len(layers.layers) == 2
    inputs = default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    expected = inputs
    for weights, bias in layers.layers:
        expected = np.maximum(expected @ weights.numpy().T + bias.numpy(), 0)
    mask = tf.ones([2, 3], tf.int32)
    outputs = layers(tf.constant(inputs), Context(mask))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_hidden_layers_are_drawn_as_berts_own_are():
    layers = HiddenLayers(HeadShape(layers=2), "", 64, create_variable)
    ((weights, bias),) = layers.layers
    assert not bias.numpy().any()
    # Normal values of 0.02, none of them beyond twice that.
    assert np.abs(weights.numpy()).max() <= 0.04
    assert 0.015 < weights.numpy().std() < 0.02


@pytest.mark.parametrize(
    "shape, layers",
    [(POOLED, 2), (HeadShape(activation="relu"), 2), (HeadShape(layers=2), 3)],
)
def test_a_layer_stands_for_a_pooler_that_is_not_there(
    tiny_config, shape, layers
):
    roberta = dataclasses.replace(tiny_config, first_position=2)
    assert shape.fitted_to(tiny_config) == shape
    assert shape.fitted_to(roberta) == HeadShape(layers=layers, pooler=False)
    without = HeadShape(layers=2, activation="relu", pooler=False)
    assert without.fitted_to(roberta) == without


def test_a_layer_of_another_activation_is_no_pooler(tiny_config):
    roberta = dataclasses.replace(tiny_config, first_position=2)
    shape = HeadShape(layers=2, activation="relu")
    assert shape.fitted_to(tiny_config) == shape
    refusals.check(
        lambda: shape.fitted_to(roberta), "2 layers with relu reads a pooler"
    )


@pytest.mark.parametrize("pooler", [False, True])
def test_a_head_without_pooler_has_none_in_the_model(tiny_config, pooler):
    shape = HeadShape(layers=2, pooler=pooler)
    task = restore_task(
        {"name": "custom", "labels": ["a", "b"], **shape.describe()}, {}, "x"
    )
    names = []

    def create(name, shape, initializer):
        names.append(name)
        return create_variable(name, shape, initializer)

    TaskModel(tiny_config, parse("head"), task.build_head, create)
    assert any("pooler" in name for name in names) == pooler
    assert {"hidden_weights_0", "hidden_bias_0", "output_bias"} < set(names)
