"""Scores from predictions: plain functions of numpy arrays.

A function of `METRICS` takes (labels, predictions), both [N], and returns a
float. A function of `LABEL_SET_METRICS` takes the labels of each row, both as
bool [N, C]. Functions load SciPy and scikit-learn when they are called, since
loading takes as long as several steps of training.
"""

from typing import Callable

import numpy as np

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Computes the share of equal entries, 0 to 1."""
    return float(np.mean(labels == predictions))


def f1(
    labels: np.ndarray, predictions: np.ndarray, average: str = "binary"
) -> float:
    """F1 of class 1 against class 0, 0 to 1; 0 where it is undefined."""
    from sklearn.metrics import f1_score

    return float(
        f1_score(labels, predictions, average=average, zero_division=0)
    )


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean of the F1 of all classes that occur, 0 to 1."""
    return f1(labels, predictions, "macro")


def _is_constant(*arrays: np.ndarray) -> bool:
    return any(len(np.unique(values)) < 2 for values in arrays)


def matthews_correlation(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation, -1 to 1; 0 where it is undefined."""
    if _is_constant(labels, predictions):
        return 0.0
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Pearson correlation of scores, -1 to 1; 0 where it is undefined."""
    if _is_constant(labels, predictions):
        return 0.0
    from scipy.stats import pearsonr

    # In float32 the mean of nearly equal scores has an error of their spread,
    # and sums of great ones leave its range.
    wide = (np.asarray(x, np.float64) for x in (labels, predictions))
    return float(pearsonr(*wide)[0])


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Spearman's rank correlation, -1 to 1; 0 where it is undefined."""
    if _is_constant(labels, predictions):
        return 0.0
    from scipy.stats import spearmanr

    return float(spearmanr(labels, predictions)[0])


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews_correlation": matthews_correlation,
    "pearson": pearson,
    "spearman": spearman,
}


def label_scores(
    labels: np.ndarray, predictions: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and F1 of each label, 0 where they are undefined.

    bool [N, C], the labels of each row -> three of float64 [C], 0 to 1.
    """
    right = np.sum(labels & predictions, axis=0)
    wanted, predicted = labels.sum(axis=0), predictions.sum(axis=0)
    return (
        right / np.maximum(predicted, 1),
        right / np.maximum(wanted, 1),
        2 * right / np.maximum(wanted + predicted, 1),
    )


def micro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of all labels of all rows together, 0 to 1; 0 where undefined."""
    flat = labels.reshape(-1, 1), predictions.reshape(-1, 1)
    return float(label_scores(*flat)[2][0])


def label_macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean of all labels' F1, 0 to 1, 0 for a label in no row."""
    return float(label_scores(labels, predictions)[2].mean())


def subset_accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of rows with exactly the right labels, 0 to 1."""
    return float(np.mean(np.all(labels == predictions, axis=1)))


LABEL_SET_METRICS: dict[str, Metric] = {
    "micro_f1": micro_f1,
    "macro_f1": label_macro_f1,
    "subset_accuracy": subset_accuracy,
}


# Names of `ranking_scores` that are always there.
RANKINGS = (
    "macro_average_precision",
    "micro_average_precision",
    "label_ranking_average_precision",
)


def ranking_scores(labels: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Scores the order of rows and labels, 0 to 1, as scikit-learn does.

    Takes bool [N, C] and probabilities, float64 [N, C]. A label in no row has
    the average precision 0. `macro_roc_auc` is of labels that some rows have
    and others have not, and left out without such labels.
    """
    from sklearn import metrics

    def precision(has_label: np.ndarray, of: np.ndarray) -> float:
        if not has_label.any():
            return 0.0
        return float(metrics.average_precision_score(has_label, of))

    columns = list(zip(labels.T, scores.T))
    values = (
        float(np.mean([precision(*column) for column in columns])),
        precision(labels.ravel(), scores.ravel()),
        float(metrics.label_ranking_average_precision_score(labels, scores)),
    )
    areas = [
        metrics.roc_auc_score(*column)
        for column in columns
        if not _is_constant(column[0])
    ]
    area = {"macro_roc_auc": float(np.mean(areas))} if areas else {}
    return {**dict(zip(RANKINGS, values)), **area}


def binary_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Losses of each label's presence or absence in nats, float64 [N, C].

    `logits` are float32 [N, C], `labels` bool [N, C].
    """
    logits = logits.astype(np.float64)
    return np.logaddexp(0, np.where(labels, -logits, logits))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Probabilities, float64 [N, C], of float32 logits [N, C]."""
    # Large negative logits overflow to the right limit, 0.
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits.astype(np.float64)))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Negative log probabilities of the right classes in nats, float64 [N].

    `logits` are float32 [N, C], `labels` int [N], below C.
    """
    return -log_softmax(logits)[np.arange(len(labels)), labels]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log probabilities, float64 [N, C], of float32 logits [N, C]."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
