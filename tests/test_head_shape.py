"""Heads of more layers than BERT's own."""

import dataclasses

import numpy as np
import pytest
import refusals
from tiny_model import create_variable

from adapter_bert.methods.registry import parse
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.tasks.text_task import POOLED, HeadShape, HiddenLayers


def task_of(shape):
    """A task with such a head, as its description gives it."""
    described = {"name": "custom", "labels": ["a", "b"], **shape.describe()}
    return restore_task(described, {}, "x")


def test_the_usual_head_is_not_described():
    """So that runs of before are what they were."""
    assert POOLED.describe() == {}
    assert HeadShape.restore({}, "x") == POOLED
    assert "head" not in task_of(POOLED).describe()


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
    task = task_of(shape)
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
    # A layer of another activation is none.
    relu = HeadShape(layers=2, activation="relu")
    assert relu.fitted_to(tiny_config) == relu
    refusals.check(
        lambda: relu.fitted_to(roberta), "2 layers with relu reads a pooler"
    )


@pytest.mark.parametrize("pooler", [False, True])
def test_a_head_without_pooler_has_none_in_the_model(tiny_config, pooler):
    shape = HeadShape(layers=2, pooler=pooler)
    task, names = task_of(shape), []

    def create(name, shape, initializer):
        names.append(name)
        return create_variable(name, shape, initializer)

    TaskModel(tiny_config, parse("head"), task.build_head, create)
    assert any("pooler" in name for name in names) == pooler
    assert {"hidden_weights_0", "hidden_bias_0", "output_bias"} < set(names)
