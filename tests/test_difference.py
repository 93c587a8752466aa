"""The difference of two methods, and its interval over seeds and rows."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from adapter_bert.reports import difference
from adapter_bert.tasks import metrics

pytestmark = pytest.mark.newer_stack

NORMAL = NormalDist()
CLASSES = st.lists(st.tuples(*[st.integers(0, 1)] * 2), min_size=1, max_size=30)


@pytest.mark.parametrize("score", difference.SCORES)
@given(rows=CLASSES)
def test_scores_of_drawn_rows_are_those_of_rows(score, rows):
    labels, answers = np.array(rows).T
    expected = 100 * metrics.METRICS[score](labels, answers)
    compared = difference.compare(score, labels, [answers], [labels], 1)
    assert compared.adapters == pytest.approx(expected, abs=1e-9)


def test_accuracy_is_for_any_number_of_classes():
    labels = np.array([0, 1, 2, 2])
    runs = np.array([[0, 1, 2, 0]])
    comparison = difference.compare("accuracy", labels, runs, runs, draws=10)
    assert comparison.adapters == [75.0]


# Spreads of what makes an answer right, beside how good its method is: the row,
# the seed, and both together.
ROW, SEED, BOTH = 1.0, 0.15, 0.5


def known_case(number, rows=300, seeds=5, rates=(0.7, 0.8)):
    """A comparison whose true difference is -10 points."""
    rng = default_rng(number)
    labels = rng.integers(2, size=rows)
    easy = rng.normal(0, ROW, rows)
    spread = np.sqrt(ROW**2 + SEED**2 + BOTH**2)
    runs = []
    for rate in rates:
        good = spread * NORMAL.inv_cdf(rate)
        good += easy + rng.normal(0, SEED, (seeds, 1))
        right = good + rng.normal(0, BOTH, (seeds, rows)) > 0
        runs.append(np.where(right, labels, 1 - labels))
    return difference.compare("accuracy", labels, *runs, draws=500)


@pytest.mark.parametrize("rows, seeds", [(300, 5), (521, 3)])
def test_the_interval_holds_the_true_difference_about_as_often_as_it_says(
    rows, seeds
):
    bounds = [
        difference.interval(known_case(number, rows, seeds).draws)
        for number in range(200)
    ]
    held = sum(low < -10 < high for low, high in bounds)
    assert 180 <= held <= 198
    # Neither so wide that it would say nothing.
    assert np.median([high - low for low, high in bounds]) < 14


@pytest.mark.parametrize("luck", ["rows", "seeds"])
def test_the_interval_covers_rows_and_seeds(luck):
    labels = np.zeros(100, int)
    right, half = np.zeros(100, int), np.arange(100) % 2
    # Seeds that agree on every row, or that differ alike on all rows.
    runs = [half, half] if luck == "rows" else [right, 1 - right]
    comparison = difference.compare(
        "accuracy", labels, np.stack(runs), np.stack([right, right])
    )
    assert comparison.difference == -50
    low, high = difference.interval(comparison.draws)
    if luck == "seeds":
        assert (low, high) == (-100, 0)
    else:
        # Two standard errors of 100 rows at 0.5.
        assert (low, high) == pytest.approx((-60, -40), abs=1.5)


def test_equal_inputs_give_equal_draws_and_other_seeds_others():
    labels = np.arange(40) % 2
    runs = default_rng(0).integers(2, size=(2, 40))
    inputs = ("f1", labels, runs, runs[:1])
    first = difference.compare(*inputs)
    assert len(first.draws) == difference.DRAWS
    assert (first.draws == difference.compare(*inputs).draws).all()
    assert (first.draws != difference.compare(*inputs, seed=2).draws).any()


@pytest.mark.parametrize(
    "bounds, expected",
    [
        ((-0.39, 2), "confirmed"),
        ((-3, -0.41), "refuted"),
        ((-0.41, 2), "undecided"),
        ((-0.4, 1), "undecided"),
        ((-1, -0.4), "undecided"),
    ],
)
def test_the_verdict(bounds, expected):
    assert difference.verdict(bounds) == expected
