"""Scores of a search by vectors: whether a text finds what belongs to it."""

import collections
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

# Texts of the corpus that are compared at once; as many queries are as have so
# many cosines.
BLOCK, MOST_QUERIES, MOST_COSINES = 8192, 256, 2**27


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1, float64 [..., D]; zeros stay zeros."""
    wide = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    return wide / np.where(lengths > 0, lengths, 1)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosine of each pair of vectors [N, D], float64 [N], -1 to 1."""
    return np.sum(unit(first) * unit(second), axis=-1)


def _compare(queries: np.ndarray, corpus: np.ndarray) -> Iterator[np.ndarray]:
    """Yields each query's cosines to the whole corpus, float64 [N]."""
    count = max(1, min(MOST_QUERIES, MOST_COSINES // max(1, len(corpus))))
    firsts = range(0, len(corpus), BLOCK)
    for start in range(0, len(queries), count):
        some = unit(queries[start : start + count])
        blocks = [some @ unit(corpus[n : n + BLOCK]).T for n in firsts]
        yield from np.concatenate(blocks, axis=1)


def retrieval_scores(
    queries: np.ndarray,
    corpus: np.ndarray,
    relevant: Sequence[Mapping[int, float]],
    copies: Sequence[Collection[int]] = (),
) -> dict[str, float]:
    """Averages over queries how high their relevant texts are ranked.

    Ranks are those of cosines over the whole corpus; of equal cosines the
    corpus's order decides.

    Takes float32 queries [Q, D] and corpus [N, D], places and gains above 0 of
    each query's relevant texts, at least one, and places of its copies, which
    are left out unless they are relevant. Gives, 0 to 1, `ndcg_at_10`, of gains
    that are not raised (Jarvelin and Kekalainen 2002, equation 2; as in
    trec_eval); `mrr`, of the first relevant text over the whole corpus;
    `recall_at_1` and `recall_at_10`, the share of the relevant texts among the
    first ones.
    """
    measured: dict[str, list[float]] = collections.defaultdict(list)
    for cosines_of, gains_of, copies_of in itertools.zip_longest(
        _compare(queries, corpus), relevant, copies, fillvalue=()
    ):
        left_out = [place for place in copies_of if place not in gains_of]
        cosines_of[left_out] = -np.inf
        before = [
            np.count_nonzero(cosines_of > cosines_of[place])
            + np.count_nonzero(cosines_of[:place] == cosines_of[place])
            for place in gains_of
        ]
        order = np.argsort(before)
        ranks, gains = 1 + np.sort(before), np.array(list(gains_of.values()))
        best = -np.sort(-gains)[:10]
        is_high = ranks <= 10
        gain = np.sum(gains[order][is_high] / np.log2(1 + ranks[is_high]))
        greatest = np.sum(best / np.log2(2 + np.arange(len(best))))
        measured["ndcg_at_10"].append(gain / greatest)
        measured["mrr"].append(1 / ranks[0])
        for most in (1, 10):
            measured[f"recall_at_{most}"].append(np.mean(ranks <= most))
    return {name: float(np.mean(values)) for name, values in measured.items()}
