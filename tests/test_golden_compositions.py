"""Compositions against what AdapterHub's `adapters` 1.3 has computed."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import below, module_fixture
from numpy.testing import assert_allclose
from test_golden_methods import CONFIG

from adapter_bert.bert.hooks import Context
from adapter_bert.data.tables import Layout
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.text_classification import TextClassification

TASK = TextClassification("t", Layout(0), Layout(0), labels=("a", "b", "c"))
PFEIFFER = "{'a': pfeiffer(4), 'b': pfeiffer(8), 'c': pfeiffer(2)}"
HOULSBY = ", ".join(
    f"'{name}': houlsby({size}, layer_norms=false)"
    for name, size in (("a", 4), ("b", 8), ("c", 2))
)
FUSIONS = {
    "fusion_pfeiffer": f"fusion({PFEIFFER})",
    "fusion_houlsby": f"fusion({{{HOULSBY}}})",
    "fusion_static": f"fusion({PFEIFFER}, value=false)",
}
METHODS = {
    **FUSIONS,
    "stack_pfeiffer": "stack({'a': pfeiffer(4), 'b': pfeiffer(8)})",
    "stack_houlsby": "stack({'a': houlsby(4, layer_norms=false), "
    "'b': houlsby(8, layer_norms=false)})",
    "stack_mad_x": "stack({'a': mad_x(4, 4), 'b': pfeiffer(8)})",
    "average_pfeiffer": "average({'a': pfeiffer(4), 'b': pfeiffer(8)}, "
    "weights='0.7,0.3')",
}
# What is recorded next to the variables.
RESULTS = ("outputs/", "gradients/", "after/")


@module_fixture
def golden(recording):
    return recording("compositions")


class Composed:
    """A recorded case as a model of this project."""

    def __init__(self, golden, case, text=None):
        self.recorded = below(golden, f"{case}/")
        values = {
            **{k: v for k, v in golden.items() if k.startswith("bert/")},
            **{
                name: value
                for name, value in self.recorded.items()
                if not name.startswith(RESULTS)
            },
        }
        self.variables, method = {}, parse(text or METHODS[case])

        def create(name, shape, initializer):
            # What is recorded without a head, or without a pooler.
            value = values.pop(name, np.zeros(shape, np.float32))
            assert value.shape == tuple(shape), name
            self.variables[name] = tf.Variable(value)
            return self.variables[name]

        method.check(CONFIG)
        self.model = task_model.TaskModel(
            CONFIG, method, TASK.build_head, create
        )
        assert not values
        self.features = {
            name: tf.constant(value)
            for name, value in below(golden, "inputs/").items()
        }
        self.seen = {}
        self.context = Context(
            self.features["input_mask"], show=self.seen.__setitem__
        )

    def states(self):
        """float32 [B, T, D]."""
        ids, segments = self.features["input_ids"], self.features["segment_ids"]
        return self.model.bert(ids, segments, self.context).sequence_output

    def outputs(self, name):
        return self.recorded[f"outputs/{name}"]


@pytest.mark.parametrize(
    "case, halved",
    [
        *((case, "") for case in METHODS),
        # With normalized weights it is half of the mean, inputs included.
        ("average_pfeiffer", "halved_"),
    ],
)
def test_a_composition_computes_what_adapterhubs_does(golden, case, halved):
    text = METHODS[case]
    if halved:
        text = text.replace("')", "', scale=0.5)")
    composed = Composed(golden, case, text)
    mask = golden["inputs/input_mask"].astype(bool)
    actual = composed.states().numpy()[mask]
    expected = composed.outputs(f"{halved}sequence_output")[mask]
    assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("case", FUSIONS)
def test_tokens_attend_as_adapterhubs(golden, case):
    composed = Composed(golden, case)
    composed.states()
    shown = composed.model.bert.hooks.observe(composed.seen, composed.context)
    mask = golden["inputs/input_mask"][..., np.newaxis]
    scopes = below(composed.recorded, "outputs/attention/")
    expected = [
        (weights * mask).sum(axis=1) / mask.sum(axis=1)
        for weights in scopes.values()
    ]
    actual = shown["fusion_attention"].numpy()
    assert_allclose(actual, np.stack(expected, 1), atol=1e-5)
    # Not what it is at the start.
    assert abs(actual - 1 / 3).max() > 0.05


@pytest.mark.parametrize("case", ["fusion_pfeiffer", "fusion_houlsby"])
def test_a_step_of_a_fusion_is_adapterhubs(golden, case):
    composed = Composed(golden, case)
    gradients = below(composed.recorded, "gradients/")
    names = [name for name in composed.variables if name in gradients]
    table = task_model.list_parameters(
        CONFIG, parse(METHODS[case]), TASK.build_head
    )
    assert set(names) == {p.name for p in table.trained} == set(gradients)
    variables = [composed.variables[name] for name in names]
    with tf.GradientTape() as tape:
        predictions = composed.model(composed.features, composed.context)
        losses = composed.model.head.loss(predictions, composed.features)
        penalty = composed.model.bert.hooks.penalty(composed.context)
        loss = tf.reduce_mean(losses) + penalty
    assert_allclose(
        predictions["logits"], composed.outputs("logits"), atol=1e-5
    )
    assert_allclose(penalty, composed.outputs("penalty"), rtol=1e-5)
    assert_allclose(loss, composed.outputs("loss"), rtol=1e-5)
    for name, actual in zip(names, tape.gradient(loss, variables)):
        expected = gradients[name]
        # That of a key's bias is zero but for rounding.
        atol = 1e-5 * max(np.linalg.norm(expected), 1e-2)
        assert_allclose(actual, expected, atol=atol, err_msg=name)
