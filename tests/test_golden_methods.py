"""Methods against what `adapters` 1.3 and peft 0.21 have computed."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import module_fixture
from numpy.testing import assert_allclose

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.methods.base import below
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


@module_fixture
def golden(recording):
    return recording("methods")


def compute(golden, name, values):
    """float32 [B, T, D] of a method with these values."""
    used = set()

    def create(variable, shape, initializer):
        if variable in values:
            used.add(variable)
            value = values[variable]
        else:
            assert variable.endswith("output/dense/ia3_scale"), variable
            value = np.ones(shape, np.float32)
        assert value.shape == tuple(shape), variable
        return tf.Variable(value)

    method = parse(METHODS.get(name, "head"))
    added = method.variables(CONFIG, pooler=False)
    hooks = method.hooks(
        CONFIG,
        {n: create(n, one.shape, one.initializer) for n, one in added.items()},
    )
    weights = encoder.make_variables(encoder.declare(CONFIG, False), create)
    bert = encoder.Bert(CONFIG, weights, hooks)
    assert used == set(values)
    inputs = {
        key: tf.constant(golden[f"inputs/{key}"])
        for key in ("input_ids", "segment_ids", "input_mask")
    }
    return bert(
        inputs["input_ids"],
        inputs["segment_ids"],
        Context(inputs["input_mask"]),
    ).sequence_output.numpy()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_computes_what_adapterhubs_does(golden, name):
    base = {k: v for k, v in golden.items() if k.startswith("bert/")}
    added = {
        key[len(name) + 1 :]: value
        for key, value in golden.items()
        if key.startswith(f"{name}/") and key != f"{name}/output"
    }
    expected = golden[f"{name}/output"]
    mask = golden["inputs/input_mask"].astype(bool)
    actual = compute(golden, name, {**base, **added})
    assert_allclose(actual[mask], expected[mask], atol=1e-5)
    # The method matters, so plain BERT is far from it.
    plain = compute(golden, None, base)
    assert abs(plain[mask] - expected[mask]).max() > 0.1


OF_PEFT = {
    "rslora": "lora(5, 7.0, 'query,attention_output,intermediate', rs=true, "
    "rank_pattern='1.query:2', alpha_pattern='intermediate:3')",
    "dora": "dora(rank=3, alpha=7.0, targets='value,intermediate')",
    "vera": "vera(rank=5, seed=11, targets='query,intermediate')",
    "adalora": "adalora(init_rank=4, rank=2, alpha=7.0, "
    "targets='query,intermediate', orth_reg_weight=0.3)",
}


@pytest.mark.parametrize("name", OF_PEFT)
def test_a_method_computes_and_learns_what_pefts_does(recording, name):
    golden = recording("lora")
    values, gradients = (
        below(f"{name}/{part}/", golden) for part in ("values", "gradients")
    )
    method = parse(OF_PEFT[name])
    assert set(method.variables(CONFIG, pooler=False)) == set(values)
    trained = {key: tf.Variable(value) for key, value in values.items()}
    weights = {
        key: tf.constant(golden[key]) for key in golden if "bert/" == key[:5]
    }
    bert = encoder.Bert(CONFIG, weights, method.hooks(CONFIG, trained))
    ids, segments, mask, direction = (
        tf.constant(golden[f"inputs/{key}"])
        for key in ("input_ids", "segment_ids", "input_mask", "direction")
    )
    with tf.GradientTape() as tape:
        output = bert(ids, segments, Context(mask)).sequence_output
        loss = tf.reduce_mean(output * direction)
        penalty = bert.hooks.penalty(Context(mask))
        if penalty is not None:
            loss += penalty
    shown = golden["inputs/input_mask"].astype(bool)
    expected = golden[f"{name}/output"]
    assert_allclose(output[shown], expected[shown], atol=1e-5)
    computed = tape.gradient(loss, trained)
    for key, expected in gradients.items():
        assert computed[key].shape == expected.shape, key
        error = np.linalg.norm(computed[key] - expected)
        assert error < 1e-4 * np.linalg.norm(expected), key
