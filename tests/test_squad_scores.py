"""SQuAD's scores: values counted by hand, and a slow search."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from adapter_bert.tasks import squad

pytestmark = pytest.mark.older_stack

PROPERTY = hypothesis.settings(derandomize=True, deadline=None, max_examples=50)


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
    assert squad.normalize_answer(text) == expected


@pytest.mark.parametrize(
    "answer,prediction,exact,f1",
    [
        ("the Cat", "cat!", 1, 1),
        # 2 of 3 predicted words, 2 of 2 right ones: 2 * 2/3 / (5/3).
        ("slow dog", "slow dog ran", 0, 0.8),
        ("slow dog ran", "slow dog", 0, 0.8),
        # Any white space separates words, but what is not seen joins them.
        ("slow\u00a0dog", "slow dog", 1, 1),
        ("slow dog ran", "\u3000slow\u2009\u2028dog\x0b", 0, 0.8),
        ("a\u00a0cat", "cat", 1, 1),
        ("slow\u200bdog", "slow dog", 0, 0),
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
    assert squad.exact_match(answer, prediction) == exact
    assert squad.words_f1(answer, prediction) == pytest.approx(f1, abs=1e-12)
    scores = squad.squad_1_scores([[answer]], [prediction])
    assert list(scores) == ["exact_match", "f1"]
    assert list(scores.values()) == pytest.approx([100 * exact, 100 * f1])


def test_the_best_of_several_answers_counts():
    answers = [["slow dog ran", "slow dog", "cat"], ["cat", "dog"], ["x"]]
    scores = squad.squad_1_scores(answers, ["a slow dog", "slow dog", ""])
    # Exact: 1, 0, 0. F1: 1, 2 * 1/2 * 1 / (3/2), 0.
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["f1"] == pytest.approx(100 * (1 + 2 / 3) / 3)


def test_scores_of_version_2_are_those_counted_by_hand():
    answers = [["slow dog", "dog"], ["cat"], ["the mat"], [], []]
    predictions = ["slow dog ran", "cat", "", "film", ""]
    null_odds = np.array([-3.0, 2.0, 1.0, -1.0, -4.0])
    scores = squad.squad_2_scores(answers, predictions, null_odds)
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
    scores = squad.squad_2_scores(answers, predictions, null_odds)
    # From 1, all refused: +1 at -2, +1 at 0.5, +0 at 0.75, -1 at 7.
    assert scores["exact"] == scores["f1"] == 50.0
    assert scores["best_exact"] == scores["best_f1"] == 75.0
    assert scores["best_exact_thresh"] == scores["best_f1_thresh"] == 0.5


def test_thresholds_of_exact_match_and_f1_differ():
    answers = [["slow dog"], ["cat"]]
    predictions = ["slow dog ran", "cat"]
    scores = squad.squad_2_scores(answers, predictions, np.array([3.0, 1.0]))
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
    scores = squad.squad_2_scores(answers, ["cat", ""], np.zeros(2))
    assert f"{kind}_total" in scores
    assert scores[f"{kind}_exact"] == scores["exact"] == 50.0
    assert not [name for name in scores if name.startswith(other)]


def test_an_answer_of_articles_only_is_matched_by_no_answer():
    answers = [["The"], ["the", "cat"], ["a", "!"]]
    odds = np.zeros(3)
    scores = squad.squad_2_scores(answers, ["", "cat", ""], odds)
    # It is an answer, though one of no words.
    assert (scores["exact"], scores["f1"]) == (100.0, 100.0)
    assert scores["HasAns_total"] == 3
    scores = squad.squad_2_scores(answers, ["an", "the", "cat"], odds)
    assert scores["exact"] == scores["f1"] == pytest.approx(100 / 3)
    # Beside another answer it does not count.
    scores = squad.squad_2_scores([["the", "cat"]], [""], odds[:1])
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
    scores = squad.squad_2_scores(answers, predictions, np.array(odds, float))
    for name in ("exact", "f1"):
        # All thresholds, the first of which refuses every question.
        found = []
        for threshold in (-9, *sorted(odds)):
            total = 0.0
            for texts, prediction, odd in rows:
                if odd > threshold:
                    total += 100.0 * (not texts)
                else:
                    one = squad.squad_2_scores(
                        [texts], [prediction], np.zeros(1)
                    )
                    # Only an empty text leaves a question unanswered.
                    wrong = not texts and prediction != ""
                    total += 0.0 if wrong else one[name]
            found.append(round(total / len(rows), 6))
        assert scores[f"best_{name}"] == pytest.approx(max(found), abs=1e-6)
        best = found.index(max(found))
        assert scores[f"best_{name}_thresh"] == [0.0, *sorted(odds)][best]
