"""Scores of a search by vectors: whether a text finds what belongs to it."""

import collections
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

# Queries and texts of the corpus that are compared at once.
CHUNK, BLOCK = 256, 8192
RECALLS = 1, 10, 100


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1, float64 [..., D]; zeros stay zeros."""
    wide = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    return wide / np.where(lengths > 0, lengths, 1)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosine of each pair of vectors [N, D], float64 [N], -1 to 1."""
    return np.sum(unit(first) * unit(second), axis=-1)


def _compare(
    queries: np.ndarray, corpus: np.ndarray
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yields a query, a block's first text, cosines, float64 [block]."""
    for first in range(0, len(corpus), BLOCK):
        texts = unit(corpus[first : first + BLOCK]).T
        for start in range(0, len(queries), CHUNK):
            compared = unit(queries[start : start + CHUNK]) @ texts
            for place, scores in enumerate(compared, start):
                yield place, first, scores


def nearest(
    queries: np.ndarray, blocks: Iterable[np.ndarray], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the `count` texts with the greatest cosines to each query.

    Memory does not grow with the corpus, whose vectors come in `blocks`,
    float32 [N, D]; `queries` are float32 [Q, D].

    Returns:
        Cosines, float32 [Q, count], the greatest first, of equal ones in the
        corpus's order; and places, int64. -inf and -1 if there are fewer texts.
    """
    queries = unit(queries).astype(np.float32)
    scores = np.full((len(queries), count), -np.inf, np.float32)
    places = np.full(scores.shape, -1)
    first = 0
    for block in blocks:
        texts = unit(block).astype(np.float32).T
        for start in range(0, len(queries), CHUNK):
            compared = queries[start : start + CHUNK] @ texts
            least = scores[start : start + CHUNK, -1:]
            rows, columns = np.nonzero(compared > least)
            chosen, begins = np.unique(rows, return_index=True)
            for row, new in zip(chosen.tolist(), np.split(columns, begins[1:])):
                query = start + row
                joined = np.append(scores[query], compared[row, new])
                order = np.argsort(-joined, kind="stable")[:count]
                scores[query] = joined[order]
                places[query] = np.append(places[query], first + new)[order]
        first += len(block)
    return scores, places


def retrieval_scores(
    queries: np.ndarray,
    corpus: np.ndarray,
    relevant: Sequence[Mapping[int, float]],
    copies: Sequence[Collection[int]] = (),
) -> dict[str, float]:
    """Averages over queries how high their relevant texts are ranked.

    Ranks are those of cosines over the whole corpus; of equal cosines the
    corpus's order decides. Memory does not grow with the corpus. So all cosines
    are computed twice: first for the relevant texts, then to count the texts
    before them.

    Takes float32 queries [Q, D] and corpus [N, D], places and gains above 0 of
    each query's relevant texts, at least one, and places of its copies, which
    are left out unless they are relevant. A place below 0 is of a text that no
    search finds. Gives, 0 to 1, `ndcg_at_10`, of gains
    that are not raised (Jarvelin and Kekalainen 2002, equation 2; as in
    trec_eval); `mrr`, of the first relevant text, and `map`, the mean of
    precisions at relevant texts, over the whole corpus; `recall_at_1`, `_10`,
    `_100`, the share of the relevant texts among the first ones.
    """
    gains_of_queries = [np.array(list(gains), np.int64) for gains in relevant]
    left_out = [
        np.array([x for x in places if x not in gains], np.int64)
        for places, gains in zip(
            copies or [()] * len(gains_of_queries), relevant
        )
    ]
    cosines_of = [np.zeros(len(places)) for places in gains_of_queries]
    for query, first, scores in _compare(queries, corpus):
        places = gains_of_queries[query] - first
        is_here = (places >= 0) & (places < len(scores))
        cosines_of[query][is_here] = scores[places[is_here]]
    before = [np.zeros(len(places), np.int64) for places in gains_of_queries]
    for query, first, scores in _compare(queries, corpus):
        mine = cosines_of[query][:, np.newaxis]
        is_earlier = (
            first + np.arange(len(scores))
            < gains_of_queries[query][:, np.newaxis]
        )
        is_before = (scores > mine) | (scores == mine) & is_earlier
        places = left_out[query] - first
        is_here = (places >= 0) & (places < len(scores))
        is_before[:, places[is_here]] = False
        before[query] += np.count_nonzero(is_before, axis=1)
    measured: dict[str, list[float]] = collections.defaultdict(list)
    for counts, places, gains_of in zip(before, gains_of_queries, relevant):
        ranks = np.where(places < 0, np.inf, 1 + counts)
        order = np.argsort(ranks)
        ranks, gains = ranks[order], np.array(list(gains_of.values()))
        best = -np.sort(-gains)[:10]
        is_high = ranks <= 10
        gain = np.sum(gains[order][is_high] / np.log2(1 + ranks[is_high]))
        greatest = np.sum(best / np.log2(2 + np.arange(len(best))))
        measured["ndcg_at_10"].append(gain / greatest)
        measured["mrr"].append(1 / ranks[0])
        precisions = np.arange(1, 1 + len(ranks)) / ranks
        measured["map"].append(np.mean(precisions))
        for most in RECALLS:
            measured[f"recall_at_{most}"].append(np.mean(ranks <= most))
    return {name: float(np.mean(values)) for name, values in measured.items()}


def rerank_scores(
    labels: Sequence[np.ndarray], scores: Sequence[np.ndarray]
) -> dict[str, float]:
    """Averages over queries how high a reranker ranks their right documents.

    Takes each query's labels, float [C], above 0 for right documents, and the
    scores of its C documents. Of equal scores the last comes first in
    `mrr_at_10`; `ndcg_at_10`, whose gains are the labels, averages over their
    orders; `map` takes the precision behind all of them. A query without a
    right document counts as 0.

    Source: sentence-transformers 5.7.0, `CrossEncoderRerankingEvaluator`.
    """
    # Slow to load, and of no use to a run that only trains.
    from sklearn.metrics import average_precision_score, ndcg_score

    measured = np.zeros((len(labels), 3))
    for row, of_query, ranked in zip(measured, labels, scores):
        gains = np.maximum(np.asarray(of_query, np.float64), 0)
        is_right = gains > 0
        if not is_right.any():
            continue
        # scikit-learn refuses a single document.
        row[0] = len(gains) == 1 or ndcg_score([gains], [ranked], k=10)
        order = np.argsort(ranked, kind="stable")[::-1]
        first = np.flatnonzero(is_right[order])[0]
        row[1] = 1 / (1 + first) if first < 10 else 0
        row[2] = average_precision_score(is_right, ranked)
    names = "ndcg_at_10", "mrr_at_10", "map"
    return dict(zip(names, measured.mean(axis=0).tolist()))
