"""Gates, unions, prompts and ReFT, as AdapterHub's `adapters` 1.3 has them."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import module_fixture
from numpy.testing import assert_allclose
from test_golden_methods import CONFIG

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.methods.prefix import prefix_variables
from adapter_bert.methods.registry import parse

pytestmark = pytest.mark.newer_stack

PREFIX = "prefix(length=3, inner_size=8"
METHODS = {
    "houlsby": "houlsby(size=4, gating=true)",
    "parallel": "parallel(size=4, scale=4.0, sizes='0:2', gating=true)",
    "prefix": "prefix(3, false, gating=true, shared_gating=false)",
    "mam": f"union({PREFIX}), parallel(size=4, scale=4.0))",
    "unipelt": f"union({PREFIX}, gating=true), pfeiffer(4, gating=true), "
    "lora(2, targets='query,value,intermediate', gating=true))",
    "prompt": "prompt(length=3, heads_read='prompt')",
    "loreft": "loreft(rank=2, prefix=2, suffix=2)",
    "direft": "loreft(rank=2, orthogonal=false, subtract=false, "
    "nonlinearity='tanh')",
}


@module_fixture
def golden(recording):
    return recording("unions")


def recorded(golden, name, part=""):
    """The values of a method's variables, or their gradients, by name."""
    start = f"{name}/{part}"
    case = {
        key[len(start) :]: value
        for key, value in golden.items()
        if key.startswith((f"{start}bert/", f"{start}prefix/"))
    }
    flat = case.pop("prefix/flat", None)
    if flat is not None:
        names = prefix_variables(CONFIG.num_hidden_layers)
        table = flat.reshape(3, -1)
        case.update(zip(names, np.split(table, len(names), axis=1)))
    return case


@pytest.mark.parametrize("name", METHODS)
def test_outputs_and_gradients_are_adapterhubs(golden, name):
    method = parse(METHODS[name])
    values = {k: tf.Variable(v) for k, v in recorded(golden, name).items()}
    declared = method.variables(CONFIG, pooler=False)
    assert {k: tuple(v.shape) for k, v in values.items()} == {
        k: one.shape for k, one in declared.items()
    }
    weights = {k: v for k, v in golden.items() if k.startswith("bert/")}
    ids, mask, segments = (
        tf.constant(golden[f"inputs/{key}"])
        for key in ("input_ids", "input_mask", "segment_ids")
    )
    seen = tf.cast(mask, tf.float32)[..., tf.newaxis]
    with tf.GradientTape() as tape:
        bert = encoder.Bert(CONFIG, weights, method.hooks(CONFIG, values))
        output = bert(ids, segments, Context(mask)).sequence_output * seen
        loss = tf.reduce_sum(output * golden["weights"])
    assert_allclose(output, golden[f"{name}/output"], atol=1e-5)
    gradients = tape.gradient(loss, values)
    for variable, expected in recorded(golden, name, "gradient/").items():
        assert_allclose(
            gradients[variable], expected, 1e-4, 1e-4, err_msg=variable
        )
