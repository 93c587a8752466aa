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
        ([0, 0, 1, 1], [0, 2, 1, 1], (2 / 3 + 1 + 0) / 3),
        # One that neither has does not.
        ([0, 0, 3, 3], [0, 0, 3, 3], 1),
        ([2, 2], [2, 2], 1),
        ([0, 0], [1, 1], 0),
        ([0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 2], 2 / 3),
    ],
)
def test_macro_f1_is_that_of_scikit_learn(labels, predictions, value):
    from sklearn.metrics import f1_score

    score = metrics.macro_f1(np.array(labels), np.array(predictions))
    assert score == pytest.approx(value)
    expected = f1_score(labels, predictions, average="macro", zero_division=0)
    assert score == expected


@pytest.mark.parametrize(
    "name, worst",
    [
        ("accuracy", 0),
        ("f1", 0),
        ("macro_f1", 0),
        ("matthews_correlation", -1),
        ("pearson", -1),
        ("spearman", -1),
    ],
)
def test_right_predictions_score_one_and_inverted_ones_worst(name, worst):
    score = metrics.METRICS[name]
    assert score(LABELS, LABELS) == 1.0
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


@pytest.mark.filterwarnings("ignore:A single label was found")
@PROPERTY
@hypothesis.given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1))
def test_scores_agree_with_the_confusion_matrix(pairs):
    labels, predictions = np.array(pairs, int).T
    both = int(np.sum(labels & predictions))
    wrong = int(np.sum((1 - labels) & predictions))
    missed = int(np.sum(labels & (1 - predictions)))
    right = len(pairs) - both - wrong - missed
    assert metrics.accuracy(labels, predictions) == pytest.approx(
        (both + right) / len(pairs)
    )
    f1 = 2 * both / max(1, 2 * both + wrong + missed)
    assert metrics.f1(labels, predictions) == pytest.approx(f1)
    if len(set(labels)) == len(set(predictions)) == 2:
        correlation = np.corrcoef(labels, predictions)[0, 1]
    else:
        correlation = 0.0
    assert metrics.matthews_correlation(labels, predictions) == pytest.approx(
        correlation, abs=1e-12
    )


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
