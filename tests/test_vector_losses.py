"""Losses of vectors: the published formulas, and what is no negative."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.random import default_rng
from numpy.testing import assert_allclose
from ways_to_compute import in_graph

from adapter_bert.tasks import vector_losses
from adapter_bert.tasks.vectors import Vectors, layout_of_columns

pytestmark = pytest.mark.newer_stack

OTHERS = np.arange(21, dtype=np.int32).reshape(7, 3)
SCORED = layout_of_columns("a", "b", (), "s")


class Config:
    hidden_size = 24


@pytest.mark.parametrize("temperature", [0.05, 0.7])
@pytest.mark.parametrize(
    "name, count, settings",
    [
        ("pairs", 2, {}),
        ("triples", 3, {}),
        ("cosent", 2, {"layout": SCORED}),
        ("matryoshka", 3, {"sizes": [5, 24, 8]}),
    ],
)
def test_losses_and_gradients_are_sentence_transformers(
    recording, name, count, settings, temperature
):
    recorded = recording("vectors")
    features = {"text_ids": OTHERS[:, :count]}
    if name == "cosent":
        features = {"label_scores": recorded["scores"]}
    task = Vectors(temperature=temperature, **settings)
    head = task.build_head(Config, None)
    assert set(features) == set(head.compares)
    vectors = tf.constant(recorded["triples"])
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        losses = head.batch_loss(vectors[:, :count], features)
        loss = tf.reduce_mean(losses)
    gradient = tape.gradient(loss, vectors)
    assert losses.shape == [7]
    key = f"{name}/{temperature}"
    assert_allclose(loss, recorded[f"{key}/loss"], rtol=1e-6)
    assert_allclose(gradient, recorded[f"{key}/gradient"], atol=2e-6)


def test_equal_texts_are_no_negatives():
    """Another row's equal match, the text itself, its other matches."""
    vectors = default_rng(0).normal(size=(5, 2, 8)).astype(np.float32)
    vectors[1, 1] = vectors[0, 1]
    vectors[2, 1] = vectors[3, 0]
    vectors[4, 0] = vectors[2, 0]
    ids = np.array([[0, 1], [2, 1], [3, 4], [4, 5], [3, 6]], np.int32)
    losses = vector_losses.info_nce(vectors, ids, 0.5)
    # As TPUEstimator computes.
    again = in_graph(
        lambda *both: vector_losses.info_nce(*both, 0.5), (vectors, ids)
    )
    assert_allclose(again, losses, rtol=1e-5)
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    logits = unit[:, 0].astype(np.float64) @ unit[:, 1].T / 0.5
    for row, candidates in enumerate(
        ([0, 2, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 3, 4], [0, 1, 3, 4])
    ):
        expected = np.log(np.exp(logits[row, candidates]).sum())
        expected -= logits[row, row]
        assert losses[row].numpy() == pytest.approx(expected, abs=1e-5)


def test_another_match_is_no_negative_where_it_is_hard_for_another_row():
    vectors = default_rng(0).normal(size=(3, 3, 8)).astype(np.float32)
    ids = np.array([[0, 1, 5], [0, 2, 6], [3, 4, 2]], np.int32)
    losses = vector_losses.info_nce(vectors, ids, 0.5)
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    # Texts 1, 2, 4, then 5, 6, 2; the first text's other match is 2.
    candidates = unit[:, 1:].transpose(1, 0, 2).reshape(6, 8)
    logits = unit[0, 0].astype(np.float64) @ candidates.T / 0.5
    expected = np.log(np.exp(logits[[0, 2, 3, 4]]).sum()) - logits[0]
    assert losses[0].numpy() == pytest.approx(expected, abs=1e-5)


def test_vectors_of_zeros_have_a_loss():
    zeros = tf.zeros([3, 2, 4])
    ids = np.arange(6, dtype=np.int32).reshape(3, 2)
    losses = vector_losses.info_nce(zeros, ids, 0.05)
    assert_allclose(losses, np.log(3), rtol=1e-6)
    losses = vector_losses.cosent(zeros, tf.constant([1.0, 2.0, 2.0]), 0.05)
    assert losses.numpy() == pytest.approx(np.log(3))


@pytest.mark.parametrize("labels", [[2, 0, 2, 1, 0, 2], [1, 1, 1], [0, 1]])
def test_labels_of_a_batch_are_scores_of_all_its_pairs(labels):
    """In both the loss and its gradient; without two kinds it is zero."""
    vectors = tf.Variable(
        default_rng(3).normal(size=(len(labels), 4)), dtype="float32"
    )
    first, second = np.triu_indices(len(labels), 1)
    equal = np.equal(*np.take(labels, [first, second])).astype(np.float32)
    with tf.GradientTape(persistent=True) as tape:
        losses = vector_losses.by_labels(vectors, tf.constant(labels), 0.5)
        pairs = tf.stack([tf.gather(vectors, x) for x in (first, second)], 1)
        expected = vector_losses.cosent(pairs, equal, 0.5)
    assert_allclose(losses, [expected] * len(labels), rtol=1e-5)
    assert (expected.numpy() > 0) == (len(set(equal)) == 2)
    gradient, right = (
        tf.convert_to_tensor(tape.gradient(loss, vectors))
        for loss in (losses, expected)
    )
    assert_allclose(gradient / len(labels), right, atol=1e-5)
