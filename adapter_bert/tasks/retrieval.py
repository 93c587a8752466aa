"""Scores of a search by vectors: whether a text finds what belongs to it."""

import collections
from typing import Dict, List

import numpy as np

# Queries compared with the corpus at once.
CHUNK = 256


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1, float64 [..., D]; zeros stay zeros."""
    wide = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    return wide / np.where(lengths > 0, lengths, 1)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosine of each pair of vectors [N, D], float64 [N], -1 to 1."""
    return np.sum(unit(first) * unit(second), axis=-1)


def retrieval_scores(
    queries: np.ndarray, corpus: np.ndarray, relevant: List[List[int]]
) -> Dict[str, float]:
    """Means over the queries of how high their relevant texts are ranked.

    Ranks are those of cosines over the whole corpus; of equal cosines the
    corpus's order decides.

    Args:
        queries: float32 [Q, D].
        corpus: float32 [N, D].
        relevant: places in the corpus of each query's relevant texts, at
            least one.

    Returns:
        `ndcg_at_10`, of binary gains (Jarvelin and Kekalainen 2002); `mrr`, of
        the first relevant text over the whole corpus; `recall_at_1` and
        `recall_at_10`, the share of the relevant texts among the first ones. 0
        to 1.
    """
    texts = unit(corpus)
    places = np.arange(len(texts))
    found: Dict[str, List[float]] = collections.defaultdict(list)
    for first in range(0, len(queries), CHUNK):
        compared = unit(queries[first : first + CHUNK]) @ texts.T
        for scores, own in zip(compared, relevant[first : first + CHUNK]):
            mine = scores[own][:, np.newaxis]
            is_before = (scores == mine) & (places < np.array(own)[:, None])
            ranks = np.sort(1 + np.sum((scores > mine) | is_before, axis=1))
            best = np.arange(1, min(len(own), 10) + 1)
            gain = np.sum(1 / np.log2(1 + ranks[ranks <= 10]))
            found["ndcg_at_10"].append(gain / np.sum(1 / np.log2(1 + best)))
            found["mrr"].append(1 / ranks[0])
            for most in (1, 10):
                found[f"recall_at_{most}"].append(np.mean(ranks <= most))
    return {name: float(np.mean(values)) for name, values in found.items()}
