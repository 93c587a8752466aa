"""Fits a threshold for each of several labels, or reads an adapter's.

Source: Lipton et al. 2014, "Optimal Thresholding of Classifiers to Maximize F1
Measure"; here the best threshold of the rows, without a model of them.
"""

import dataclasses
from typing import Any

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.data.divisions import HeldOut
from adapter_bert.tasks import metrics
from adapter_bert.tasks.task import Task
from adapter_bert.training.extras import Fitting
from adapter_bert.training.run import Answers, Run

# Share and seed of the dev rows that one half of the thresholds is fitted to.
HALF = HeldOut(0.5, 1)


class Thresholds(Fitting):
    """Makes a task give each label from its own least probability on."""

    flag, setting = "fit_thresholds", "label_thresholds"

    def fit(self, run: Run, answers: Answers) -> Task:
        task, (_, name) = run.task, run.dev[0]
        scores = task.results(answers.by_split[name])
        right = run.features[name].answer_labels["label_sets"].astype(bool)
        least = task.least_probability
        fitted = fit(right, scores, least)
        rows = run.rows[name]
        half = HALF.choose(rows.texts, task.strata(rows))
        record = measure(right, scores, least, fitted, half)
        record["labels"] = dict(zip(task.labels, record["labels"]))
        path = self.path(run)
        files.write_json(path, record)
        logging.info(
            "thresholds of %d labels: macro F1 %.4f, was %.4f, on the dev "
            "rows that they are fitted to, %.4f on halves of these that "
            "they are not; more is in %s",
            len(fitted),
            record["macro_f1"]["after"],
            record["macro_f1"]["before"],
            record["macro_f1"]["held_out"],
            path,
        )
        return dataclasses.replace(task, thresholds=tuple(fitted))

    def restore(self, run: Run, settings: dict[str, Any], folder: str) -> Task:
        # --label_threshold is the user's own.
        if getattr(run.experiment.task, "threshold", None) is not None:
            return run.task
        return run.task.with_fitted(settings, folder)


def fit(labels: np.ndarray, scores: np.ndarray, usual: float) -> list[float]:
    """Finds each label's threshold with the greatest F1.

    `labels`, bool [N, C], are the rows' own, `scores` probabilities, float64
    [N, C]. A threshold lies halfway between two rows' probabilities. Of equal
    F1 the one nearest to `usual` counts, `usual` itself first, which also is
    that of a label in no row.
    """
    return [_fit_one(*label, usual) for label in zip(labels.T, scores.T)]


def _fit_one(has_label: np.ndarray, scores: np.ndarray, usual: float) -> float:
    positives = has_label.sum()
    if not positives:
        return usual
    order = np.argsort(-scores, kind="stable")
    falling = scores[order]
    counts = np.arange(1, len(order) + 1)
    f1 = 2 * np.cumsum(has_label[order]) / (counts + positives)
    # Equal probabilities are answered alike.
    lower = np.append(falling[1:], 0.0)
    f1[:-1][falling[1:] == falling[:-1]] = -1
    best = np.flatnonzero(f1 == f1.max())
    low, high = lower[best], falling[best]
    if np.any((low < usual) & (usual <= high)):
        return usual
    middle = (low + high) / 2
    middle = np.where(middle > low, middle, high)
    return float(middle[np.abs(middle - usual).argmin()])


def measure(
    labels: np.ndarray,
    scores: np.ndarray,
    usual: float,
    fitted: list[float],
    half: np.ndarray,
) -> dict[str, Any]:
    """Makes the content of `label_thresholds.json`.

    Arguments are as in `fit`, and `half`, bool [N], some of the rows. Macro and
    micro F1 are of all rows, `before` (the `usual` threshold), `after`, and
    `held_out`: either half by thresholds that are fitted to the other. Each
    label has its `threshold`, `rows` and F1.
    """
    held_out = np.empty(scores.shape)
    for side in (half, ~half):
        held_out[side] = fit(labels[~side], scores[~side], usual)
    limits = {"before": usual, "after": np.array(fitted), "held_out": held_out}
    chosen = {when: scores >= limit for when, limit in limits.items()}
    f1 = {n: metrics.label_scores(labels, x)[2] for n, x in chosen.items()}
    return {
        "rows": len(labels),
        "macro_f1": {n: float(values.mean()) for n, values in f1.items()},
        "micro_f1": {n: metrics.micro_f1(labels, x) for n, x in chosen.items()},
        "labels": [
            {
                "threshold": threshold,
                "rows": int(labels[:, number].sum()),
                "f1": {name: float(x[number]) for name, x in f1.items()},
            }
            for number, threshold in enumerate(fitted)
        ],
    }
