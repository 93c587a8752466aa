"""Methods against what `adapters` 1.3 and peft 0.21 have computed."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import below
from numpy.testing import assert_allclose

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.methods.prefix import prefix_variables
from adapter_bert.methods.registry import parse

CONFIG = encoder.BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
METHODS = {
    # AdapterHub's recipe of this name differs, its formula does not.
    "houlsby": "houlsby(size=4)",
    "pfeiffer": "pfeiffer(size=4)",
    "parallel": "parallel(size=4, scale=4.0)",
    "compacter": "compacter(size=8, n=4)",
    "lora": "lora(rank=2, alpha=6.0, "
    "targets='query,key,value,intermediate,output')",
    "prefix": "prefix(length=3, inner_size=8)",
    # There the inner activations are scaled before gelu, so they are not here.
    "ia3": "ia3",
}
PREFIX = "prefix(length=3, inner_size=8"
# Gates, unions, prompts and ReFT.
UNIONS = {
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
OF_PEFT = {
    "rslora": "lora(5, 7.0, 'query,attention_output,intermediate', rs=true, "
    "rank_pattern='1.query:2', alpha_pattern='intermediate:3')",
    "dora": "dora(rank=3, alpha=7.0, targets='value,intermediate')",
    "vera": "vera(rank=5, seed=11, targets='query,intermediate')",
    "adalora": "adalora(init_rank=4, rank=2, alpha=7.0, "
    "targets='query,intermediate', orth_reg_weight=0.3)",
}


def compute(golden, text, values):
    """float32 [B, T, D] of a method with these values, and its hooks."""
    method = parse(text)
    declared = method.variables(CONFIG, pooler=False)
    assert {name: tuple(value.shape) for name, value in values.items()} == {
        name: one.shape for name, one in declared.items()
    }
    hooks = method.hooks(CONFIG, values)
    weights = {k: v for k, v in golden.items() if k.startswith("bert/")}
    ids, segments, mask = (
        tf.constant(golden[f"inputs/{key}"])
        for key in ("input_ids", "segment_ids", "input_mask")
    )
    bert = encoder.Bert(CONFIG, weights, hooks)
    return bert(ids, segments, Context(mask)).sequence_output, hooks


@pytest.mark.parametrize("name", METHODS)
def test_a_method_computes_what_adapterhubs_does(recording, name):
    golden = recording("methods")
    values = below(golden, f"{name}/")
    expected = values.pop("output")
    if name == "ia3":
        for layer in range(2):
            scale = f"bert/encoder/layer_{layer}/output/dense/ia3_scale"
            values[scale] = np.ones(32, np.float32)
    mask = golden["inputs/input_mask"].astype(bool)
    actual, _ = compute(golden, METHODS[name], values)
    assert_allclose(actual[mask], expected[mask], atol=1e-5)
    # The method matters, so plain BERT is far from it.
    plain, _ = compute(golden, "head", {})
    assert abs(plain[mask] - expected[mask]).numpy().max() > 0.1


@pytest.mark.parametrize("name", OF_PEFT)
def test_a_method_computes_and_learns_what_pefts_does(recording, name):
    golden = recording("lora")
    values, gradients = (
        below(golden, f"{name}/{part}/") for part in ("values", "gradients")
    )
    trained = {key: tf.Variable(value) for key, value in values.items()}
    with tf.GradientTape() as tape:
        output, hooks = compute(golden, OF_PEFT[name], trained)
        loss = tf.reduce_mean(output * golden["inputs/direction"])
        penalty = hooks.penalty(None)
        if penalty is not None:
            loss += penalty
    mask = golden["inputs/input_mask"].astype(bool)
    assert_allclose(output[mask], golden[f"{name}/output"][mask], atol=1e-5)
    computed = tape.gradient(loss, trained)
    for key, expected in gradients.items():
        assert computed[key].shape == expected.shape, key
        error = np.linalg.norm(computed[key] - expected)
        assert error < 1e-4 * np.linalg.norm(expected), key


def recorded(golden, start):
    """The values of a method's variables, or their gradients, by name."""
    case = {
        name: value
        for name, value in below(golden, start).items()
        if name.startswith(("bert/", "prefix/"))
    }
    flat = case.pop("prefix/flat", None)
    if flat is not None:
        names = prefix_variables(CONFIG.num_hidden_layers)
        table = flat.reshape(3, -1)
        case.update(zip(names, np.split(table, len(names), axis=1)))
    return case


@pytest.mark.newer_stack
@pytest.mark.parametrize("name", UNIONS)
def test_outputs_and_gradients_are_adapterhubs(recording, name):
    unions = recording("unions")
    values = {
        key: tf.Variable(value)
        for key, value in recorded(unions, f"{name}/").items()
    }
    seen = unions["inputs/input_mask"].astype(np.float32)[..., np.newaxis]
    with tf.GradientTape() as tape:
        output = compute(unions, UNIONS[name], values)[0] * seen
        loss = tf.reduce_sum(output * unions["weights"])
    assert_allclose(output, unions[f"{name}/output"], atol=1e-5)
    gradients = tape.gradient(loss, values)
    for variable, expected in recorded(unions, f"{name}/gradient/").items():
        assert_allclose(
            gradients[variable], expected, 1e-4, 1e-4, err_msg=variable
        )
