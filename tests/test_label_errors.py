"""Confident learning: margins, suggestions, the count of wrong labels."""

import numpy as np
import pytest
from conftest import read_json
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal

from adapter_bert.reports import label_errors

pytestmark = pytest.mark.newer_stack

PROBABILITIES = np.array(
    [[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6], [0.4, 0.4, 0.2]]
)
LABELS = np.array([0, 0, 2, 1])


def test_suggestions_of_a_few_rows():
    labels = label_errors.suggested(PROBABILITIES, LABELS)
    assert labels.tolist() == [1, 1, 1, 0]


def test_a_label_without_rows_is_no_class():
    joint = label_errors.joint(PROBABILITIES, np.array([0, 0, 1, 1]))
    assert not joint[:, 2].any() and not joint[2].any()
    assert joint.sum() == 4


def test_scores_and_counts_are_cleanlab_s(golden_dir):
    path = golden_dir / "label_errors.json"
    for case in read_json(path):
        probabilities = np.array(case["probabilities"])
        labels = np.array(case["labels"])
        margins = label_errors.margins(probabilities, labels)
        assert_allclose(margins, case["normalized_margin"], atol=1e-12)
        counted = label_errors.joint(probabilities, labels)
        wrong = counted.sum() - np.trace(counted)
        # Cleanlab rounds each cell so that rows keep their sums.
        assert abs(wrong - case["off_diagonal_calibrated"]) <= 1
        assert_array_equal(np.argsort(margins)[:5], case["worst"])


@pytest.mark.parametrize(
    "rows, classes, seed, wrong",
    [(60, 20, 0, 24.5), (60, 20, 1, 29.7), (40, 15, 2, 21.7)],
)
def test_wrong_labels_among_rare_ones_are_cleanlab_s(
    rows, classes, seed, wrong
):
    """By cleanlab 2.9's joint, scaled to the labels' numbers of rows."""
    rng = default_rng(seed)
    probabilities = rng.dirichlet(np.full(classes, 0.3), rows)
    labels = rng.integers(0, classes, rows)
    right = rng.random(rows) < 0.5
    labels[right] = probabilities.argmax(axis=1)[right]
    counted = label_errors.joint(probabilities, labels)
    assert counted.sum() - np.trace(counted) == pytest.approx(wrong, abs=0.051)


@given(st.data())
def test_rows_of_a_label_keep_their_number(data):
    rows = data.draw(st.integers(1, 12))
    labels = np.array(
        data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    )
    rng = default_rng(data.draw(st.integers(0, 2**32)))
    probabilities = rng.dirichlet([0.5, 0.5, 0.5], rows)
    sizes = label_errors.joint(probabilities, labels).sum(axis=1)
    assert_allclose(sizes, np.bincount(labels, minlength=3))
    margins = label_errors.margins(probabilities, labels)
    assert ((margins >= 0) & (margins <= 1)).all()
    chosen = probabilities.argmax(axis=1)
    assert ((margins < 0.5) == (chosen != labels)).all()
