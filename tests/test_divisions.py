"""Rows are divided by their texts, which may have several rows."""

import numpy as np
import pytest

from adapter_bert.commands import audit
from adapter_bert.data.divisions import HeldOut, Texts, number_texts
from adapter_bert.training import calibrating


def test_folds_have_their_share_of_every_label():
    labels = np.repeat([0, 1, 2], [50, 21, 4])
    texts = Texts(range(75), labels[:, np.newaxis].tolist())
    fold = texts.folds(5, seed=1)
    counts = np.array(
        [np.bincount(fold[labels == x], minlength=5) for x in range(3)]
    )
    assert (np.ptp(counts, axis=1) <= 1).all()
    assert np.ptp(counts.sum(axis=0)) <= 1
    assert (texts.folds(5, seed=1) == fold).all()
    assert (texts.folds(5, seed=2) != fold).any()


def test_texts_are_numbered_by_their_words():
    pairs = [("a b", "c"), ("a", "b c"), (" a\tb", "c "), ("a b", "")]
    assert number_texts(pairs).tolist() == [0, 1, 0, 2]


WAYS = {
    "dev share": lambda texts, sets: HeldOut(0.3, 1).choose(texts, sets),
    "halves": calibrating.measured_rows,
    "folds": lambda texts, sets: Texts(texts, sets).folds(5, 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_text_stay_together(way, caplog):
    """Three workers a text, who disagree now and then."""
    caplog.set_level("INFO", "absl")
    texts = [f"text {n // 3}" for n in range(120)]
    rng = np.random.default_rng(0)
    order = rng.permutation(120)
    texts = [texts[n] for n in order]
    sets = [(str(label),) for label in rng.integers(0, 3, 120)]
    chosen = WAYS[way](texts, sets)
    side: dict = {}
    assert all(side.setdefault(x, y) == y for x, y in zip(texts, chosen))
    assert len(set(side.values())) == (5 if way == "folds" else 2)
    assert "40 of 40 texts have several rows (120)" in caplog.text


def test_rows_of_a_label_that_no_other_fold_has_are_no_suspects():
    labels, fold = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 0, 1, 1])
    guessed = np.full((5, 3), [0.8, 0.1, 0.1])
    suspects = audit.trusting(guessed, labels, fold)
    right = np.eye(3)
    assert suspects.tolist() == [
        *guessed[:2].tolist(),
        *right[[1, 2, 2]].tolist(),
    ]
