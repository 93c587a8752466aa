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
    return np.divide(part, whole, out=np.zeros(whole.shape), where=whole > 0)


def _accuracy(tables: np.ndarray) -> np.ndarray:
    right = np.trace(tables, axis1=-2, axis2=-1)
    return _share(right, tables.sum((-2, -1)))


def _f1(tables: np.ndarray) -> np.ndarray:
    both = tables[..., 1, 1]
    return _share(
        2 * both, tables[..., 1, :].sum(-1) + tables[..., :, 1].sum(-1)
    )


def _matthews(tables: np.ndarray) -> np.ndarray:
    (a, b), (c, d) = np.moveaxis(tables, (-2, -1), (0, 1))
    spread = np.sqrt((a + b) * (c + d) * (a + c) * (b + d))
    return _share(a * d - b * c, spread)


def _pearson(
    times: np.ndarray, labels: np.ndarray, answers: np.ndarray
) -> np.ndarray:
    """[draws, kinds], [kinds], [runs, kinds] -> correlations [draws, runs]."""
    labels = labels - labels.mean()
    answers = answers - answers.mean(axis=1, keepdims=True)
    times = times / times.sum(axis=1, keepdims=True)
    x, y = times @ labels[:, np.newaxis], times @ answers.T
    spread_x = times @ np.square(labels)[:, np.newaxis] - np.square(x)
    spread_y = times @ np.square(answers).T - np.square(y)
    both = times @ (answers * labels).T - x * y
    return _share(both, np.sqrt(np.maximum(spread_x * spread_y, 0)))


# Of counts, float64 [..., C, C], by label and prediction: fractions [...], 0
# where undefined, as of `tasks.metrics`. The last two are for two classes.
SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews_correlation": _matthews,
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
    all runs, and of each method as many seeds as it has, with replacement.
    Source: the bootstrap (Efron 1979), over two crossed factors (Owen 2007).

    Args:
        score: a name of `SCORES`, or `pearson`.
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
        if score == "pearson":
            return 100 * _pearson(times, kinds[0], kinds[1:])
        count = 1 + max(kinds.max(), 1)
        cells = np.eye(count * count)[kinds[0] * count + kinds[1:]]
        tables = np.einsum("dk,skc->dsc", times, cells, optimize=True)
        tables = tables.reshape(*tables.shape[:2], count, count)
        return 100 * SCORES[score](tables)

    def resampled(scores: np.ndarray) -> np.ndarray:
        """float64 [draws, seeds] -> means over drawn seeds, [draws]."""
        chosen = rng.integers(scores.shape[1], size=scores.shape)
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
