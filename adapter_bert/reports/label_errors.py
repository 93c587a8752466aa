"""Finds labels that may be wrong: confident learning, from probabilities.

The probabilities of a row are of a model that has not seen the row.

Source: Northcutt et al. 2021, "Confident Learning: Estimating Uncertainty in
Dataset Labels", section 3. Labels are ranked as by cleanlab's
`get_label_quality_scores(method="normalized_margin")`, and counted as by
its `num_label_issues(estimation_method="off_diagonal_calibrated")`.
"""

import numpy as np

# As in cleanlab: of classes that no row has or may have, and for rounding.
LEAST_THRESHOLD, SLACK = 2e-6, 1e-6


def margins(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Scores how well labels fit, 0 (surely wrong) to 1, float64 [N].

    The probability of the label, less the greatest probability of another
    label, plus 1, halved. Below 0.5 another label is more probable.

    Args:
        probabilities: float [N, C].
        labels: int [N], places among the C.
    """
    probabilities = probabilities.astype(np.float64)
    rows = np.arange(len(labels))
    others = suggested(probabilities, labels)
    labelled, other = probabilities[rows, labels], probabilities[rows, others]
    return (labelled - other + 1) / 2


def suggested(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the most probable other label of each row, int64 [N]."""
    others = np.array(probabilities, np.float64)
    others[np.arange(len(labels)), labels] = -1
    return others.argmax(axis=1)


def joint(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Estimates how many rows have a label and belong to a class, [C, C].

    A row counts for the class that reaches its threshold: the mean probability
    of a class among the rows with its label. Of several, the row's most
    probable class counts; a row without any does not (equations 1 and 2). Of
    each label at least one row is taken as right, as in cleanlab, lest the few
    rows of a rare label all count as wrong. The rows of a label are then scaled
    to their number (the numerator of equation 3).

    Returns:
        float64, [label, class].
    """
    count = probabilities.shape[1]
    thresholds = np.array(
        [
            probabilities[labels == label, label].mean()
            if (labels == label).any()
            else np.inf
            for label in range(count)
        ]
    )
    thresholds = np.maximum(thresholds, LEAST_THRESHOLD)
    reached = probabilities >= thresholds - SLACK
    counts = np.zeros((count, count))
    rows = reached.any(axis=1)
    classes = np.where(
        reached.sum(axis=1) > 1,
        probabilities.argmax(axis=1),
        reached.argmax(axis=1),
    )
    np.add.at(counts, (labels[rows], classes[rows]), 1)
    sizes = np.bincount(labels, minlength=count)
    np.fill_diagonal(counts, counts.diagonal().clip(min=1))
    return counts / counts.sum(axis=1, keepdims=True) * sizes[:, np.newaxis]
