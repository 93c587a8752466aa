"""MAD-X against what AdapterHub's `adapters` 1.3 has computed."""

# Fixtures are arguments of the same names.
# ruff: noqa: F811

import numpy as np
import pytest
import tensorflow as tf
from conftest import module_fixture
from numpy.testing import assert_allclose
from test_golden_compositions import RESULTS, below, golden  # noqa: F401
from test_golden_methods import CONFIG

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.masked_lm import MaskedLMHead


@module_fixture
def case(golden):
    """The variables of the case, and what was computed, by name."""
    return below(golden, "mad_x/")


@pytest.fixture
def values(golden, case):
    """Of all that the model reads: BERT's without its pooler, and its own."""
    base = {
        name: value
        for name, value in golden.items()
        if name.startswith("bert/") and "/pooler/" not in name
    }
    added = {k: v for k, v in case.items() if not k.startswith(RESULTS)}
    return {name: tf.Variable(v) for name, v in {**base, **added}.items()}


def compute(golden, values):
    """BERT's output, the logits float32 [B, T, V] and the loss, float32 []."""
    used = set()

    def create(name, shape, initializer):
        used.add(name)
        assert values[name].shape == tuple(shape), name
        return values[name]

    method = parse("mad_x(size=4, inverse_size=4)")
    for name, one in method.variables(CONFIG, pooler=False).items():
        create(name, one.shape, one.initializer)
    hooks = method.hooks(CONFIG, values)
    held = encoder.make_variables(encoder.declare(CONFIG, False), create)
    bert = encoder.Bert(CONFIG, held, hooks)
    head = MaskedLMHead(CONFIG, create)
    assert used == set(values)
    ids, segments, mask, masked = (
        tf.constant(golden[f"inputs/{name}"])
        for name in ("input_ids", "segment_ids", "input_mask", "masked_ids")
    )
    context = Context(mask)
    output = bert(ids, segments, context)
    # Every token is read; where there is nothing to guess, the id says so.
    everywhere = tf.broadcast_to(tf.range(ids.shape[1]), ids.shape)
    outputs = head(bert, output.sequence_output, context, everywhere, masked)
    count = tf.reduce_sum(tf.cast(masked >= 0, tf.float32))
    weights = tf.fill([len(ids)], len(ids) / count)
    losses = head.loss(
        outputs, {"masked_ids": masked, "masked_weights": weights}
    )
    return output, outputs["logits"], tf.reduce_mean(losses)


def test_mad_x_computes_what_adapterhubs_does(golden, case, values):
    mask = golden["inputs/input_mask"].astype(bool)
    output, logits, loss = compute(golden, values)
    for name, value in (
        ("embedding_output", output.embedding_output),
        ("sequence_output", output.sequence_output),
        ("logits", logits),
    ):
        expected = case[f"outputs/{name}"]
        assert_allclose(
            value.numpy()[mask], expected[mask], atol=1e-5, err_msg=name
        )
    assert_allclose(loss, case["outputs/loss"], rtol=1e-5)


def test_its_gradients_are_adapterhubs(golden, case, values):
    """Of the adapters and the head; there its bias per word is frozen."""
    recorded = below(case, "gradients/")
    assert len(recorded) == 8 + 8 + 4
    with tf.GradientTape() as tape:
        loss = compute(golden, values)[2]
    gradients = tape.gradient(loss, {name: values[name] for name in recorded})
    for name, expected in recorded.items():
        assert_allclose(
            gradients[name],
            expected,
            atol=1e-5 * np.linalg.norm(expected),
            err_msg=name,
        )
