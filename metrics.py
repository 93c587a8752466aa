"""Scores from predictions: plain functions of numpy arrays.

Each of `METRICS` takes (labels, predictions), both [N], and returns a float
under the name that tasks and result files use. Those of question answering are
in `tasks/squad_scores.py`. SciPy and scikit-learn are loaded by those who need
them: that takes as long as several steps of training.
"""

from typing import Callable, Dict

import numpy as np

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of equal entries, 0 to 1."""
    return float(np.mean(labels == predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of class 1 against class 0, 0 to 1; 0 where it is undefined."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, zero_division=0))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean of each class's F1, 0 to 1, over the classes that `labels` has."""
    from sklearn.metrics import f1_score

    return float(
        f1_score(
            labels,
            predictions,
            labels=np.unique(labels),
            average="macro",
            zero_division=0,
        )
    )


def matthews_correlation(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation, -1 to 1; 0 where it is undefined."""
    if len(np.unique(labels)) < 2 or len(np.unique(predictions)) < 2:
        return 0.0
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Pearson correlation of scores, -1 to 1; 0 where it is undefined."""
    if len(np.unique(labels)) < 2 or len(np.unique(predictions)) < 2:
        return 0.0
    from scipy.stats import pearsonr

    # Where sums of great scores leave float32's range, too.
    with np.errstate(all="ignore"):
        found = float(pearsonr(labels, predictions)[0])
    return found if np.isfinite(found) else 0.0


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Spearman's rank correlation, -1 to 1; 0 where it is undefined."""
    if len(np.unique(labels)) < 2 or len(np.unique(predictions)) < 2:
        return 0.0
    from scipy.stats import spearmanr

    return float(spearmanr(labels, predictions)[0])


METRICS: Dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews_correlation": matthews_correlation,
    "pearson": pearson,
    "spearman": spearman,
}


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Negative log probability of the right class, in nats.

    Args:
        logits: float32 [N, C].
        labels: int [N], below C.

    Returns:
        float64 [N].
    """
    return -log_softmax(logits)[np.arange(len(labels)), labels]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log probabilities, float64 [N, C], of float32 logits [N, C]."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
