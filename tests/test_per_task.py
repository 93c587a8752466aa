"""Additions of several tasks to a BERT that is trained for all of them."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tiny_model import TinyModel

from errors import UserError
from methods.parsing import parse
from methods.per_task import SCOPE

METHODS = (
    "pals(6, 2)",
    "houlsby(size=4)",
    "lora(rank=2)",
    "prefix(3, false)",
    "bapna(size=4)",
)


@pytest.mark.parametrize("text", METHODS)
def test_each_task_is_computed_as_what_is_kept_of_it(tiny_config, text):
    tiny = TinyModel(tiny_config, parse(f"per_task({text}, tasks='x,y,z')"))
    tiny.shake(0.2)
    trained = {
        p.name: tiny.variables[p.name].numpy() for p in tiny.table.trained
    }
    found = []
    for number, task in enumerate("xyz"):
        context = dataclasses.replace(tiny.context(), task=tf.constant(number))
        actual = tiny.model(tiny.features, context)["logits"]
        method, values = parse(f"per_task({text}, tasks='x,y,z')").of_task(
            tiny_config, task, trained
        )
        assert str(method).startswith("stack(full, ")
        alone = TinyModel(tiny_config, parse(str(method)))
        assert {p.name for p in alone.table.trained} == set(values)
        for name, variable in alone.variables.items():
            variable.assign(values[name])
        np.testing.assert_allclose(alone.logits(), actual, atol=1e-5)
        found.append(actual.numpy())
    assert abs(found[0] - found[1]).max() > 1e-3


def test_a_step_of_one_task_has_no_gradient_for_the_others(tiny_config):
    tiny = TinyModel(tiny_config, parse("per_task(pals(6, 2), tasks='x,y')"))
    tiny.shake(0.2)
    own = {n: v for n, v in tiny.variables.items() if n.startswith(SCOPE)}
    context = dataclasses.replace(tiny.context(), task=tf.constant(1))
    with tf.GradientTape() as tape:
        predictions = tiny.model(tiny.features, context)
        losses = tiny.model.head.loss(predictions, tiny.features)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, list(own.values()))
    for name, gradient in zip(own, gradients):
        gradient = tf.convert_to_tensor(gradient).numpy()
        assert not gradient[0].any(), name
        # That of a key's bias is zero: softmax ignores it.
        assert gradient[1].any() or name.endswith("key/bias"), name


@pytest.mark.parametrize(
    "text,words",
    [
        ("per_task(pals)", "--task_name=mrpc,rte"),
        ("per_task(full)", "takes one method that adds to BERT"),
        ("per_task(a)", "takes one method that adds to BERT"),
        ("per_task(pals, lora)", "takes one method that adds to BERT"),
        ("per_task(lt_sft)", "takes one method that adds to BERT"),
        ("per_task()", "has no parts"),
    ],
)
def test_what_is_no_addition_is_refused(tiny_config, text, words):
    with pytest.raises(UserError, match=words):
        parse(text).check(tiny_config)
