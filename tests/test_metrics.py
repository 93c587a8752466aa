"""Metrics: values counted by hand, and other ways to compute them."""

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from adapter_bert.tasks import metrics

pytestmark = pytest.mark.older_stack

PROPERTY = hypothesis.settings(max_examples=50)

# Of class 1: two found, one wrongly found, one missed.
LABELS = np.array([0, 0, 1, 1, 1])
PREDICTIONS = np.array([0, 1, 1, 1, 0])


@pytest.mark.parametrize(
    "labels, predictions, value",
    [
        # A class that was predicted alone counts: F1 by class 6 / 11, 0.
        ([1] * 8, [1, 1, 1, 0, 0, 0, 0, 0], 3 / 11),
        # One that neither has does not.
        ([0, 0, 3, 3], [0, 0, 3, 3], 1),
    ],
)
def test_macro_f1_counts_the_classes_that_occur(labels, predictions, value):
    score = metrics.macro_f1(np.array(labels), np.array(predictions))
    assert score == pytest.approx(value)


@pytest.mark.parametrize(
    "name, value, worst",
    [
        ("accuracy", 3 / 5, 0),
        ("f1", 2 / 3, 0),
        ("macro_f1", (2 / 3 + 1 / 2) / 2, 0),
        ("matthews_correlation", 1 / 6, -1),
        ("pearson", 1 / 6, -1),
        ("spearman", 1 / 6, -1),
    ],
)
def test_scores_by_hand(name, value, worst):
    """Of the predictions, of right ones, and of the others."""
    score = metrics.METRICS[name]
    assert score(LABELS, PREDICTIONS) == pytest.approx(value)
    assert score(LABELS, LABELS) == pytest.approx(1)
    assert score(LABELS, 1 - LABELS) == pytest.approx(worst)


@pytest.mark.filterwarnings("error")
def test_undefined_scores_are_zero():
    zeros = np.zeros(4, int)
    assert metrics.f1(zeros, zeros) == 0.0
    assert metrics.f1(LABELS, 0 * LABELS) == 0.0
    for name in ("matthews_correlation", "pearson", "spearman"):
        assert metrics.METRICS[name](LABELS, 0 * LABELS + 1) == 0.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "scores", [[3e38, 3e38, -1e38], [2.5 + 2**-20, 2.5 + 2**-20, 2.5]]
)
def test_a_correlation_is_exact_wherever_the_scores_lie(scores):
    """Great ones, and some that differ in the last places of float32."""
    labels = np.array([1, 2, 3], np.float32)
    score = metrics.pearson(labels, np.array(scores, np.float32))
    assert score == pytest.approx(-np.sqrt(3) / 2)


LOGITS = hypothesis.extra.numpy.arrays(
    np.float32, (5, 3), elements=st.floats(-1000, 1000, width=32)
)


@PROPERTY
@hypothesis.given(LOGITS)
def test_cross_entropy_agrees_with_tensorflow(logits):
    labels = np.array([0, 1, 2, 0, 1], np.int32)
    computed = metrics.cross_entropy(logits, labels)
    expected = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits.astype(np.float64)
    )
    assert_allclose(computed, expected, rtol=1e-9, atol=1e-12)


# Sets of labels

NONE = np.zeros((7, 3), bool)


@PROPERTY
@hypothesis.example(NONE, NONE)
@hypothesis.given(*2 * [hypothesis.extra.numpy.arrays(bool, NONE.shape)])
def test_scores_of_sets_are_scikit_learns(labels, predictions):
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    *expected, _ = precision_recall_fscore_support(
        labels, predictions, zero_division=0
    )
    assert_allclose(metrics.label_scores(labels, predictions), expected)
    for average in ("micro", "macro"):
        score = metrics.LABEL_SET_METRICS[f"{average}_f1"](labels, predictions)
        mean = precision_recall_fscore_support(
            labels, predictions, average=average, zero_division=0
        )
        assert score == pytest.approx(mean[2])
    assert metrics.subset_accuracy(labels, predictions) == (
        accuracy_score(labels, predictions)
    )


def test_a_sigmoid_of_any_logits():
    logits = np.array([[-1e30, -1000, 0, 1000]], np.float32)
    assert metrics.sigmoid(logits).tolist() == [[0, 0, 0.5, 1]]
