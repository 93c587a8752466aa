"""Additions of several tasks to a BERT that is trained for all of them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import refusals
import tensorflow as tf
from engine_jobs import MULTI, make_job
from numpy.testing import assert_allclose
from tiny_model import TinyModel, create_variable

from adapter_bert.data.input_pipeline import (
    Features,
    batch_signature,
    make_batch,
)
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.multi_task import of_one_task
from adapter_bert.training import training_step

pytestmark = pytest.mark.newer_stack

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
    outputs = []
    for number, task in enumerate("xyz"):
        context = replace(tiny.context(), task=tf.constant(number))
        actual = tiny.model(tiny.features, context)["logits"]
        method, values = parse(f"per_task({text}, tasks='x,y,z')").of_task(
            tiny_config, task, trained
        )
        assert str(method).startswith("stack(full, ")
        alone = TinyModel(tiny_config, parse(str(method)))
        assert {p.name for p in alone.table.trained} == set(values)
        for name, variable in alone.variables.items():
            variable.assign(values[name])
        assert_allclose(alone.logits(), actual, atol=1e-5)
        outputs.append(actual.numpy())
    assert abs(outputs[0] - outputs[1]).max() > 1e-3


def test_a_batch_of_fewer_rows_than_lanes_is_predicted(tiny_config, tmp_path):
    """Lanes without a row have no task either."""
    method = parse("per_task(lora(rank=2))").for_tasks(MULTI.trained_together)
    job = make_job(tiny_config, tmp_path, method, task=MULTI)
    model = job.build_model(partial(create_variable, seed=1))
    rows = of_one_task(Features.from_rows([([2, 5, 3], [0] * 3)], {}), 1)
    batch = make_batch(rows, np.array([0]), None)
    outputs = []
    for lanes in (1, 3):
        predict = tf.function(
            partial(
                training_step.predict, training_step.Prediction(lanes), model
            ),
            input_signature=[batch_signature(rows, None, None)],
            autograph=False,
        )
        outputs.append(predict(batch))
    assert outputs[0]["tasks.scores/scores"].shape == [1]
    for name, value in outputs[0].items():
        assert_allclose(outputs[1][name], value, atol=1e-6)


@pytest.mark.parametrize(
    "text,words",
    [
        ("per_task(pals)", "--task_name=mrpc,rte"),
        ("per_task(full)", "takes one method that adds to BERT"),
        ("per_task(pals, lora)", "takes one method that adds to BERT"),
        ("per_task(lt_sft)", "takes one method that adds to BERT"),
        ("per_task()", "has no parts"),
    ],
)
def test_what_is_no_addition_is_refused(tiny_config, text, words):
    refusals.check(lambda: parse(text).check(tiny_config), words)
