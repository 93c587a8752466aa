"""Scores of a search, against definitions written out."""

import collections
import functools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.random import default_rng

from adapter_bert.tasks import retrieval


def by_definition(queries, corpus, relevant):
    """The scores, from a ranking that is written out.

    `relevant` has the gains of each query's texts by their places.
    """
    totals = collections.defaultdict(list)
    for query, gains_of in zip(queries, relevant):
        scores = [float(np.dot(query, text)) for text in corpus]
        ranking = sorted(range(len(corpus)), key=lambda n: (-scores[n], n))
        hits = [text in gains_of for text in ranking]
        totals["mrr"].append(1 / (1 + hits.index(True)))
        precisions = (
            sum(hits[: n + 1]) / (n + 1) for n, hit in enumerate(hits) if hit
        )
        totals["map"].append(sum(precisions) / len(gains_of))
        for most in (1, 10, 100):
            totals[f"recall_at_{most}"].append(sum(hits[:most]) / len(gains_of))
        gains = [gains_of.get(text, 0) for text in ranking[:10]]
        best = sorted(gains_of.values(), reverse=True)[:10]
        gain, greatest = (
            sum(x / math.log2(n + 2) for n, x in enumerate(ranked))
            for ranked in (gains, best)
        )
        totals["ndcg_at_10"].append(gain / greatest)
    return {name: sum(x) / len(x) for name, x in totals.items()}


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 6))
def test_scores_are_those_of_their_definitions(seed, size, count):
    rng = default_rng(seed)
    # Few directions, so that cosines are equal and exact.
    corpus = np.eye(4, dtype=np.float32)[rng.integers(0, 4, size)]
    queries = rng.permutation(np.eye(4, dtype=np.float32))[
        rng.integers(0, 4, count)
    ]
    relevant = [
        {
            place: rng.choice([0.5, 1.0, 3.0])
            for place in rng.permutation(size)[: rng.integers(1, size + 1)]
        }
        for _ in range(count)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "BLOCK", 7)
        patch.setattr(retrieval, "CHUNK", 2)
        # Lengths count for nothing.
        longer = corpus * rng.choice([0.5, 1, 2], (size, 1))
        scores = retrieval.retrieval_scores(queries, longer, relevant)
    assert scores == pytest.approx(by_definition(queries, corpus, relevant))


@pytest.mark.older_stack
def test_a_query_does_not_find_itself_unless_that_is_right(monkeypatch):
    monkeypatch.setattr(retrieval, "BLOCK", 2)
    corpus = np.array([[0, 1, 0], [0.9, 0.1, 0], [1, 0, 0], [0, 0, 1]])
    search = functools.partial(
        retrieval.retrieval_scores, np.eye(3)[[0]], corpus
    )
    scores = search([{1: 1.0}], [[2]])
    assert scores["mrr"] == scores["ndcg_at_10"] == scores["recall_at_1"] == 1
    assert search([{1: 1.0}])["mrr"] < 1
    scores = search([{1: 1.0, 2: 1.0}], [[2]])
    assert scores["mrr"] == scores["ndcg_at_10"] == 1
    assert scores["recall_at_1"] == 0.5


@pytest.mark.older_stack
def test_cosines_of_vectors_and_of_zeros():
    first = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]], np.float32)
    second = np.array([[4.0, 3.0], [1.0, 1.0], [-2.0, 0.0]], np.float32)
    np.testing.assert_allclose(
        retrieval.cosines(first, second), [0.96, 0.0, -1.0]
    )
