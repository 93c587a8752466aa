"""LoReFT's subspaces: how a basis is made, and which tokens are moved."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose
from tiny_model import shaken

from adapter_bert.methods.reft import random_reflectors, reflected

pytestmark = pytest.mark.newer_stack

LAYER = "bert/encoder/layer_1/output/reft"


@given(st.integers(2, 9), st.data())
@settings(max_examples=30)
def test_a_basis_is_orthonormal_and_the_one_of_lapack(size, data):
    """Whatever is drawn on the diagonal and above it."""
    rank = data.draw(st.integers(1, size - 1))
    rng = default_rng(data.draw(st.integers(0, 99)))
    matrix = rng.standard_normal((size, rank))
    packed, factors = np.linalg.qr(matrix, mode="raw")
    # A reflector of nothing is left out there.
    assert np.all(factors[: size - 1] != 0)
    basis = reflected(packed.T.astype(np.float32), np)
    expected, _ = np.linalg.qr(matrix)
    assert_allclose(basis, expected, atol=1e-5)
    assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-5)
    other = packed.T + np.triu(rng.standard_normal((size, rank)))
    again = reflected(tf.constant(other, tf.float32), tf)
    assert_allclose(again, expected, atol=1e-5)


def test_any_subspace_may_be_the_first():
    """The mean of many projections onto one prefers no direction."""
    rng = default_rng(0)
    projections = []
    for _ in range(300):
        basis = reflected(random_reflectors(rng, (6, 2)), np)
        projections.append(basis @ basis.T)
    mean = np.mean(projections, axis=0)
    assert_allclose(mean, 2 / 6 * np.eye(6), atol=0.06)


def moved(tiny_config, text, lengths, training=False):
    """Where of ones in rows of these lengths something is added."""
    tiny = shaken(tiny_config, f"loreft({text}, dropout=0.5)")
    mask = tf.sequence_mask(lengths, 6, tf.int32)
    context = dataclasses.replace(tiny.context(training), input_mask=mask)
    hidden = tf.ones([len(lengths), 6, 16])
    hooks = tiny.model.bert.hooks
    assert hooks.after_norm(1, "attention", hidden, context) is None
    return hooks.after_norm(1, "ffn", hidden, context).numpy(), tiny


@pytest.mark.parametrize("tied", [False, True])
def test_the_first_and_the_last_tokens_are_moved(tiny_config, tied):
    text = f"rank=2, prefix=2, suffix=1, tied={tied}"
    added, tiny = moved(tiny_config, text, [6, 4, 2, 1])
    is_moved = np.any(added, axis=-1)
    assert is_moved.tolist() == [
        [True, True, False, False, False, True],
        [True, True, False, True, False, False],
        [True, True, False, False, False, False],
        # The second is no token, and nobody reads it.
        [True, True, False, False, False, False],
    ]
    first, last = added[0, 0], added[0, 5]
    assert np.allclose(first, last) == tied
    # A token that is first and last is moved as a last one.
    assert_allclose(added[3, 0], last, atol=1e-6)
    scope = f"{LAYER}/{'both' if tied else 'first'}"
    basis = tiny.model.bert.hooks.basis(scope).numpy()
    kernel, bias = (
        tiny.variables[f"{scope}/source/{name}"].numpy()
        for name in ("kernel", "bias")
    )
    ones = np.ones(16)
    expected = (ones @ kernel + bias - ones @ basis) @ basis.T
    assert_allclose(first, expected, atol=1e-5)


def test_the_last_tokens_alone_may_be_moved(tiny_config):
    added, _ = moved(tiny_config, "prefix=0, suffix=2", [4])
    assert np.any(added, axis=-1).tolist() == [
        [False] * 2 + [True] * 2 + [False] * 2
    ]


def test_dropout_is_of_what_a_token_becomes(tiny_config):
    added, _ = moved(tiny_config, "prefix=2", [6], training=True)
    still, _ = moved(tiny_config, "prefix=2", [6])
    becomes = 1.0 + added[0, :2]
    kept = becomes != 0.0
    assert 0.2 < kept.mean() < 0.8
    assert_allclose(becomes[kept], 2 * (1 + still[0, :2])[kept], rtol=1e-5)
    assert not np.any(added[0, 2:])
