"""Difference of adapters and full fine-tuning, with its interval.

Both were trained with several seeds and have predicted the same rows. The
interval covers the choice of seeds and of rows. Scores are in points
of 100.
"""

import dataclasses
from typing import Callable

import numpy as np

# Points by which adapters may stay below full fine-tuning (Houlsby et al. 2019,
# abstract: "within 0.4%").
CLAIM = 0.4
DRAWS = 10_000
DRAW_SEED = 1
CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "undecided"


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """`part / whole`, and 0 where that is undefined."""
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)


def _accuracy(
    times: np.ndarray, labels: np.ndarray, answers: np.ndarray
) -> np.ndarray:
    return times @ (answers == labels).T / times.sum(axis=1, keepdims=True)


def _f1(
    times: np.ndarray, labels: np.ndarray, answers: np.ndarray
) -> np.ndarray:
    both = times @ (answers * labels).T
    return _share(2 * both, times @ labels.T + times @ answers.T)


def _correlation(
    times: np.ndarray, labels: np.ndarray, answers: np.ndarray
) -> np.ndarray:
    # What never differs is 0 exactly, and has no spread.
    labels, answers = labels - labels[:, :1], answers - answers[:, :1]
    count = times.sum(axis=1, keepdims=True)

    def spread(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return count * (times @ (x * y).T) - (times @ x.T) * (times @ y.T)

    both = spread(labels, labels) * spread(answers, answers)
    return _share(spread(labels, answers), np.sqrt(np.maximum(both, 0)))


# Of float64 [draws, kinds], how often each kind of row was drawn, labels
# [1, kinds] and answers [runs, kinds]: fractions [draws, runs], 0 where
# undefined, as in `tasks.metrics`. F1 and Matthews' correlation, which is
# Pearson's of the classes 0 and 1, are for two classes.
SCORES: dict[str, Callable[..., np.ndarray]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews_correlation": _correlation,
    "pearson": _correlation,
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Adapters against full fine-tuning on the same rows.

    Attributes:
        adapters: float64 [seeds], their score of each seed in points.
        full: float64 [seeds], full fine-tuning's.
        draws: float64 [draws], differences of resampled means in points.
    """

    adapters: np.ndarray
    full: np.ndarray
    draws: np.ndarray

    @property
    def difference(self) -> float:
        """Subtracts the mean of full fine-tuning from adapters', in points."""
        return float(self.adapters.mean() - self.full.mean())


def compare(
    score: str,
    labels: np.ndarray,
    adapters: np.ndarray,
    full: np.ndarray,
    draws: int = DRAWS,
    seed: int = DRAW_SEED,
) -> Comparison:
    """Compares predictions of the same rows, and resamples both kinds of luck.

    A draw takes as many rows as there are, with replacement and the same for
    all runs. Of a method with n seeds it takes n - 1 with replacement, whose
    means vary as means of n seeds do. Source: the bootstrap (Efron 1979), over
    two crossed factors (Owen 2007); n - 1 as Rao and Wu 1988.

    Args:
        score: a name of `SCORES`.
        labels: int [rows], from 0; float64 for `pearson`.
        adapters: [seeds, rows], their predictions, in the labels' dtype.
        full: [seeds, rows], full fine-tuning's; may have other seeds.
        draws: how many differences to draw.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    # Rows that all runs answered alike are drawn together.
    kinds, times = np.unique(
        np.vstack([labels, adapters, full]), axis=1, return_counts=True
    )
    weights = rng.multinomial(len(labels), times / len(labels), size=draws)

    def scored(times: np.ndarray) -> np.ndarray:
        """int [draws, kinds] -> scores, float64 [draws, runs]."""
        return 100 * SCORES[score](times.astype(float), kinds[:1], kinds[1:])

    def resampled(scores: np.ndarray) -> np.ndarray:
        """float64 [draws, seeds] -> means over drawn seeds, [draws]."""
        draws, seeds = scores.shape
        chosen = rng.integers(seeds, size=(draws, max(1, seeds - 1)))
        return np.take_along_axis(scores, chosen, axis=1).mean(axis=1)

    difference = scored(times[np.newaxis])[0]
    drawn = scored(weights)
    middle = len(adapters)
    return Comparison(
        adapters=difference[:middle],
        full=difference[middle:],
        draws=resampled(drawn[:, :middle]) - resampled(drawn[:, middle:]),
    )


def interval(draws: np.ndarray) -> tuple[float, float]:
    """Returns the 95% interval of float64 [draws], by percentiles."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)


def verdict(bounds: tuple[float, float]) -> str:
    """Tells what an interval of the difference says of the paper's claim.

    The claim is that adapters stay at most `CLAIM` points below full
    fine-tuning.
    """
    low, high = bounds
    if low > -CLAIM:
        return CONFIRMED
    return REFUTED if high < -CLAIM else UNDECIDED
