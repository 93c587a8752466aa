"""Metrics: values counted by hand, and other ways to compute them."""

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

import metrics

PROPERTY = hypothesis.settings(derandomize=True, deadline=None, max_examples=50)

# Of class 1: two found, one wrongly found, one missed.
LABELS = np.array([0, 0, 1, 1, 1])
PREDICTIONS = np.array([0, 1, 1, 1, 0])


@pytest.mark.parametrize(
    "name, value",
    [
        ("accuracy", 3 / 5),
        ("f1", 2 / 3),
        ("macro_f1", (2 / 3 + 1 / 2) / 2),
        ("matthews_correlation", (2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2)),
    ],
)
def test_scores_are_those_counted_by_hand(name, value):
    score = metrics.METRICS[name](LABELS, PREDICTIONS)
    assert isinstance(score, float)
    assert score == pytest.approx(value, abs=1e-12)


def test_scores_of_three_classes_are_those_counted_by_hand():
    labels = np.array([0, 0, 1, 1, 2, 2])
    predictions = np.array([0, 1, 1, 1, 1, 2])
    # F1 by class: 2 / 3, 4 / 6, 2 / 3.
    assert metrics.macro_f1(labels, predictions) == pytest.approx(2 / 3)
    assert metrics.accuracy(labels, predictions) == pytest.approx(4 / 6)


def test_a_class_without_examples_is_no_part_of_the_mean():
    labels = np.array([0, 0, 1, 1])
    predictions = np.array([0, 2, 1, 1])
    # F1 by class: 2 / 3, 1.
    assert metrics.macro_f1(labels, predictions) == pytest.approx(5 / 6)


@pytest.mark.parametrize("name", sorted(metrics.METRICS))
def test_perfect_predictions_score_one(name):
    assert metrics.METRICS[name](LABELS, LABELS) == 1.0


@pytest.mark.parametrize(
    "name, worst",
    [
        ("accuracy", 0),
        ("f1", 0),
        ("macro_f1", 0),
        ("matthews_correlation", -1),
    ],
)
def test_inverted_predictions_score_worst(name, worst):
    assert metrics.METRICS[name](LABELS, 1 - LABELS) == worst


@pytest.mark.filterwarnings("error")
def test_undefined_scores_are_zero():
    zeros = np.zeros(4, int)
    assert metrics.f1(zeros, zeros) == 0.0
    assert metrics.f1(LABELS, 0 * LABELS) == 0.0
    assert metrics.matthews_correlation(LABELS, 0 * LABELS + 1) == 0.0


def test_f1_is_that_of_class_1():
    assert metrics.f1(1 - LABELS, 1 - PREDICTIONS) == pytest.approx(1 / 2)


@pytest.mark.filterwarnings("ignore:A single label was found")
@PROPERTY
@hypothesis.given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1))
def test_scores_agree_with_the_confusion_matrix(pairs):
    labels, predictions = np.array(pairs, int).T
    found = int(np.sum(labels & predictions))
    wrong = int(np.sum((1 - labels) & predictions))
    missed = int(np.sum(labels & (1 - predictions)))
    right = len(pairs) - found - wrong - missed
    assert metrics.accuracy(labels, predictions) == pytest.approx(
        (found + right) / len(pairs)
    )
    f1 = 2 * found / max(1, 2 * found + wrong + missed)
    assert metrics.f1(labels, predictions) == pytest.approx(f1)
    if len(set(labels)) == len(set(predictions)) == 2:
        correlation = np.corrcoef(labels, predictions)[0, 1]
    else:
        correlation = 0.0
    assert metrics.matthews_correlation(labels, predictions) == pytest.approx(
        correlation, abs=1e-12
    )


LOGITS = hypothesis.extra.numpy.arrays(
    np.float32, (5, 3), elements=st.floats(-50, 50, width=32)
)


@PROPERTY
@hypothesis.given(LOGITS)
def test_cross_entropy_agrees_with_tensorflow(logits):
    labels = np.array([0, 1, 2, 0, 1], np.int32)
    computed = metrics.cross_entropy(logits, labels)
    expected = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits.astype(np.float64)
    )
    np.testing.assert_allclose(computed, expected, rtol=1e-9, atol=1e-12)


@PROPERTY
@hypothesis.given(LOGITS)
def test_log_softmax_holds_logarithms_of_probabilities(logits):
    log_probabilities = metrics.log_softmax(logits)
    assert log_probabilities.dtype == np.float64
    np.testing.assert_allclose(np.exp(log_probabilities).sum(axis=-1), 1.0)
    # Differences of logits are odds.
    np.testing.assert_allclose(
        np.diff(log_probabilities), np.diff(logits.astype(float)), atol=1e-9
    )


def test_cross_entropy_of_equal_logits_is_the_logarithm_of_the_classes():
    computed = metrics.cross_entropy(np.full((2, 4), 7, np.float32), [0, 3])
    np.testing.assert_allclose(computed, np.log([4.0, 4.0]), rtol=1e-12)


def test_cross_entropy_of_extreme_logits_is_finite():
    logits = np.array([[1000, 0], [1000, 0]], np.float32)
    np.testing.assert_allclose(
        metrics.cross_entropy(logits, np.array([1, 0])), [1000.0, 0.0]
    )


# Question answering


@pytest.mark.parametrize(
    "text,expected",
    [
        ("The Cat", "cat"),
        ("an apple a day", "apple day"),
        ("theatre another", "theatre another"),
        ("  two \t words\n", "two words"),
        ("U.S. (1895-1943)!", "us 18951943"),
        ("The, a; an...", ""),
        ("", ""),
        # Punctuation goes first, articles after it.
        ("a-cat a.", "acat"),
        # Other languages' punctuation stays.
        ("\u00abthe cat\u00bb \u2014", "\u00ab cat\u00bb \u2014"),
    ],
)
def test_answers_are_normalized(text, expected):
    assert metrics.normalize_answer(text) == expected


@pytest.mark.parametrize(
    "answer,prediction,exact,f1",
    [
        ("the Cat", "cat!", 1, 1),
        # 2 of 3 predicted words, 2 of 2 right ones: 2 * 2/3 / (5/3).
        ("slow dog", "slow dog ran", 0, 0.8),
        ("slow dog ran", "slow dog", 0, 0.8),
        # A word counts as often as both have it: 1 of 1, 1 of 3.
        ("cat cat cat", "cat", 0, 0.5),
        ("cat cat dog", "dog cat cat", 0, 1),
        ("cat", "dog", 0, 0),
        ("cat", "", 0, 0),
        ("cat", "the", 0, 0),
        ("the", "cat", 0, 0),
        # As the official scorer of 1.1 has it.
        ("the", "a", 1, 0),
    ],
)
def test_answers_score_as_counted_by_hand(answer, prediction, exact, f1):
    assert metrics.exact_match(answer, prediction) == exact
    assert metrics.words_f1(answer, prediction) == pytest.approx(f1, abs=1e-12)
    scores = metrics.squad_1_scores([[answer]], [prediction])
    assert list(scores) == ["exact_match", "f1"]
    assert list(scores.values()) == pytest.approx([100 * exact, 100 * f1])


def test_the_best_of_several_answers_counts():
    answers = [["slow dog ran", "slow dog", "cat"], ["cat", "dog"], ["x"]]
    scores = metrics.squad_1_scores(answers, ["a slow dog", "slow dog", ""])
    # Exact: 1, 0, 0. F1: 1, 2 * 1/2 * 1 / (3/2), 0.
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["f1"] == pytest.approx(100 * (1 + 2 / 3) / 3)


def test_scores_of_version_2_are_those_counted_by_hand():
    answers = [["slow dog", "dog"], ["cat"], ["the mat"], [], []]
    predictions = ["slow dog ran", "cat", "", "film", ""]
    null_odds = np.array([-3.0, 2.0, 1.0, -1.0, -4.0])
    scores = metrics.squad_2_scores(answers, predictions, null_odds)
    # Exact: 0, 1, 0, 0, 1. F1: 0.8, 1, 0, 0, 1.
    assert scores == {
        "exact": pytest.approx(40),
        "f1": pytest.approx(56),
        "total": 5,
        "HasAns_exact": pytest.approx(100 / 3),
        "HasAns_f1": pytest.approx(60),
        "HasAns_total": 3,
        "NoAns_exact": pytest.approx(50),
        "NoAns_f1": pytest.approx(50),
        "NoAns_total": 2,
        # From 2, all refused, by rising odds: +0, +0, -1, +0, +1. Never
        # better than 2, whose threshold is 0 by definition.
        "best_exact": pytest.approx(40),
        "best_exact_thresh": 0.0,
        # From 2: +0, +0.8, -1, +0, +1; 2.8 after the second and at the end,
        # of which the first counts.
        "best_f1": pytest.approx(56),
        "best_f1_thresh": -3.0,
    }


def test_the_best_threshold_is_the_least_that_reaches_the_best_score():
    answers = [["cat"], ["dog"], [], ["mat"]]
    predictions = ["cat", "dog", "film", "cat"]
    null_odds = np.array([0.5, -2.0, 7.0, 0.75])
    scores = metrics.squad_2_scores(answers, predictions, null_odds)
    # From 1, all refused: +1 at -2, +1 at 0.5, +0 at 0.75, -1 at 7.
    assert scores["exact"] == scores["f1"] == 50.0
    assert scores["best_exact"] == scores["best_f1"] == 75.0
    assert scores["best_exact_thresh"] == scores["best_f1_thresh"] == 0.5


def test_thresholds_of_exact_match_and_f1_differ():
    answers = [["slow dog"], ["cat"]]
    predictions = ["slow dog ran", "cat"]
    scores = metrics.squad_2_scores(answers, predictions, np.array([3.0, 1.0]))
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50.0, 1.0)
    assert scores["best_f1"] == pytest.approx(90)
    assert scores["best_f1_thresh"] == 3.0


@pytest.mark.parametrize(
    "answers,kind,other",
    [([["cat"], ["dog"]], "HasAns", "NoAns"), ([[], []], "NoAns", "HasAns")],
)
def test_questions_of_one_kind_have_no_scores_of_the_other(
    answers, kind, other
):
    scores = metrics.squad_2_scores(answers, ["cat", ""], np.zeros(2))
    assert f"{kind}_total" in scores
    assert scores[f"{kind}_exact"] == scores["exact"] == 50.0
    assert not [name for name in scores if name.startswith(other)]


def test_an_answer_of_articles_only_is_matched_by_no_answer():
    answers = [["The"], ["the", "cat"], ["a", "!"]]
    odds = np.zeros(3)
    scores = metrics.squad_2_scores(answers, ["", "cat", ""], odds)
    # It is an answer, though one of no words.
    assert (scores["exact"], scores["f1"]) == (100.0, 100.0)
    assert scores["HasAns_total"] == 3
    scores = metrics.squad_2_scores(answers, ["an", "the", "cat"], odds)
    assert scores["exact"] == scores["f1"] == pytest.approx(100 / 3)
    # Beside another answer it does not count.
    scores = metrics.squad_2_scores([["the", "cat"]], [""], odds[:1])
    assert (scores["exact"], scores["f1"]) == (0.0, 0.0)


SQUAD_TEXTS = st.sampled_from(["", "the", "cat", "a cat", "slow cat", "dog"])


@hypothesis.settings(PROPERTY, max_examples=200)
@hypothesis.given(
    st.lists(
        st.tuples(
            st.lists(SQUAD_TEXTS, max_size=2),
            SQUAD_TEXTS,
            # One of a kind: equal odds are taken one by one.
            st.integers(-3, 3),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda row: row[2],
    )
)
def test_best_scores_are_those_of_a_slow_search(rows):
    answers, predictions, odds = zip(*rows)
    scores = metrics.squad_2_scores(answers, predictions, np.array(odds, float))
    for name in ("exact", "f1"):
        # All thresholds, the first of which refuses every question.
        found = []
        for threshold in (-9, *sorted(odds)):
            total = 0.0
            for texts, prediction, odd in rows:
                if odd > threshold:
                    total += 100.0 * (not texts)
                else:
                    one = metrics.squad_2_scores(
                        [texts], [prediction], np.zeros(1)
                    )
                    # Only an empty text leaves a question unanswered.
                    wrong = not texts and prediction != ""
                    total += 0.0 if wrong else one[name]
            found.append(round(total / len(rows), 6))
        assert scores[f"best_{name}"] == pytest.approx(max(found), abs=1e-6)
        best = found.index(max(found))
        assert scores[f"best_{name}_thresh"] == [0.0, *sorted(odds)][best]
