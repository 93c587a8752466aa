"""Exact match and F1 of SQuAD 1.1 and 2.0, by the official rules."""

import collections
import re
import string
from typing import Dict, List, Sequence, Tuple

import numpy as np

# Right answers of one question; none where it cannot be answered.
Answers = Sequence[str]
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-cases and drops punctuation, articles and superfluous spaces.

    Source: the official scorers of SQuAD 1.1 and 2.0.
    """
    text = text.lower().translate(PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(answer: str, prediction: str) -> float:
    """1 if both are equal after normalization, else 0."""
    return float(normalize_answer(answer) == normalize_answer(prediction))


def words_f1(answer: str, prediction: str) -> float:
    """F1 of the words that both share, 0 to 1; 0 where they share none."""
    answer_words = normalize_answer(answer).split()
    prediction_words = normalize_answer(prediction).split()
    shared = sum(
        (
            collections.Counter(answer_words)
            & collections.Counter(prediction_words)
        ).values()
    )
    if not shared:
        return 0.0
    precision = shared / len(prediction_words)
    recall = shared / len(answer_words)
    return 2 * precision * recall / (precision + recall)


def squad_1_scores(
    answers: Sequence[Answers], predictions: Sequence[str]
) -> Dict[str, float]:
    """Scores of SQuAD 1.1, in percent.

    Args:
        answers: at least one right answer for each question.
        predictions: one for each question.

    Returns:
        `exact_match` and `f1`, each question's best over its answers.

    Source: Rajpurkar et al. 2016, the official `evaluate-v1.1.py`.
    """
    exact, f1s = _best_scores(answers, predictions)
    return {
        "exact_match": 100.0 * sum(exact) / len(exact),
        "f1": 100.0 * sum(f1s) / len(f1s),
    }


def squad_2_scores(
    answers: Sequence[Answers],
    predictions: Sequence[str],
    null_odds: np.ndarray,
) -> Dict[str, float]:
    """Scores of SQuAD 2.0, in percent.

    Args:
        answers: the right answers of each question; none where it cannot be
            answered.
        predictions: one for each question, `""` for "no answer".
        null_odds: float64 [N], how much "no answer" is preferred.

    Returns:
        `exact`, `f1` and `total`; the same of answerable (`HasAns_`) and of
        other questions (`NoAns_`), where there are any; `best_exact` and
        `best_f1`, what `predictions` would score if those with null odds above
        `best_exact_thresh` or `best_f1_thresh` were "no answer".

    Source: Rajpurkar et al. 2018, the official `evaluate-v2.0.py`.
    """
    has_answer = np.array([bool(texts) for texts in answers])
    # An answer of nothing but articles and punctuation is no text to match.
    answers = [[a for a in texts if normalize_answer(a)] for texts in answers]
    exact, f1s = _best_scores(
        [texts or [""] for texts in answers], predictions, both_empty=1.0
    )
    exact, f1s = np.array(exact), np.array(f1s)
    scores: Dict[str, float] = {}
    for prefix, chosen in (
        ("", np.ones(len(exact), bool)),
        ("HasAns_", has_answer),
        ("NoAns_", ~has_answer),
    ):
        if chosen.any():
            count = int(chosen.sum())
            scores[f"{prefix}exact"] = 100.0 * sum(exact[chosen]) / count
            scores[f"{prefix}f1"] = 100.0 * sum(f1s[chosen]) / count
            scores[f"{prefix}total"] = count
    refused = np.array([not text for text in predictions])
    for name, values in (("exact", exact), ("f1", f1s)):
        # By how much a question's being answered changes the sum.
        gains = np.where(has_answer, values, np.where(refused, 0.0, -1.0))
        best, threshold = _best_threshold(
            gains, null_odds, int((~has_answer).sum())
        )
        scores[f"best_{name}"] = 100.0 * best / len(values)
        scores[f"best_{name}_thresh"] = threshold
    return scores


def _best_threshold(
    gains: np.ndarray, null_odds: np.ndarray, unanswered: int
) -> Tuple[float, float]:
    """The best sum of scores over all thresholds, and the least such one."""
    best, threshold, score = float(unanswered), 0.0, float(unanswered)
    for i in np.argsort(null_odds, kind="stable"):
        score += float(gains[i])
        if score > best:
            best, threshold = score, float(null_odds[i])
    return best, threshold


def _best_scores(
    answers: Sequence[Answers],
    predictions: Sequence[str],
    both_empty: float = 0.0,
) -> Tuple[List[float], List[float]]:
    """Exact match and F1 of each question, the best over its answers.

    Args:
        answers: at least one for each question.
        predictions: one for each question.
        both_empty: F1 where neither an answer nor the prediction has words.
    """

    def f1_score(answer: str, prediction: str) -> float:
        if not (normalize_answer(answer) or normalize_answer(prediction)):
            return both_empty
        return words_f1(answer, prediction)

    exact, f1s = [], []
    for texts, prediction in zip(answers, predictions):
        exact.append(max(exact_match(text, prediction) for text in texts))
        f1s.append(max(f1_score(text, prediction) for text in texts))
    return exact, f1s
