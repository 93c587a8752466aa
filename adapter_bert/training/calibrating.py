"""Fits an adapter's calibration to dev rows, or reads the one that it has.

Source: Guo et al. 2017, "On Calibration of Modern Neural Networks": temperature
scaling (section 4.2), expected calibration error (equation 3), reliability
diagrams (section 2).
"""

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.data.divisions import HeldOut
from adapter_bert.errors import UserError
from adapter_bert.tasks import metrics
from adapter_bert.tasks.calibration import (
    COLDEST,
    HOTTEST,
    Calibration,
    calibrated,
)
from adapter_bert.tasks.task import Task
from adapter_bert.training.extras import Fitting
from adapter_bert.training.run import Answers, Run

# Bins of probabilities of equal width.
BINS = 15
# Rows that each half needs.
LEAST_ROWS = 2
# Share and seed of the dev rows that measure and do not fit.
MEASURED = HeldOut(0.5, 1)
# Draws of the measured rows, for the interval of the error.
RESAMPLES = 1000
# Halvings of the range of temperatures; float64 has no finer steps.
HALVINGS = 64


class Calibrating(Fitting):
    """Makes the probabilities of a task's answers say how often it is right."""

    flag, setting = "calibrate", "calibration"

    def check_rows(self, run: Run) -> None:
        self._measured_rows(run)

    def _measured_rows(self, run: Run) -> tuple[str, np.ndarray]:
        _, name = run.dev[0]
        rows = run.rows[name]
        return name, measured_rows(rows.texts, run.task.strata(rows))

    def fit(self, run: Run, answers: Answers) -> Task:
        name, measured = self._measured_rows(run)
        fitted, record = fit(
            answers.by_split[name]["logits"],
            run.features[name].answer_labels["label_ids"],
            measured,
            run.experiment.classification.abstain_at,
        )
        path = self.path(run)
        files.write_json(path, record)
        _log(record, path)
        return dataclasses.replace(run.task, calibration=fitted)

    def restore(self, run: Run, settings: dict[str, Any], folder: str) -> Task:
        return calibrated(run.task, settings, folder)


def _log(record: dict[str, Any], path: str) -> None:
    logging.info(
        "calibration: temperature %.4g; expected calibration error %.4f, was "
        "%.4f; more is in %s",
        record["temperature"] or 1,
        record["after"],
        record["before"],
        path,
    )
    if record["temperature"] is None:
        logging.warning(
            "no temperature that fits one half of the dev rows lowers the log "
            "loss of the other, of whose answers %.1f%% are right: the "
            "probabilities stay as they are; pass more dev rows, and look at "
            "their labels if few answers are right",
            100 * record["accuracy"],
        )
    if record.get("abstain_below", 0) is None:
        logging.warning(
            "no least probability gives %d dev rows a precision of %g: the "
            "adapter answers all rows; lower --abstain_at",
            record["rows_fitted"],
            record["abstain_at"],
        )


def measured_rows(
    texts: Iterable[Hashable], strata: Sequence[Sequence[Any]]
) -> np.ndarray:
    """Chooses dev rows that measure, bool [N]; the others fit.

    `texts` and `strata` are each row's text and labels; each half gets its
    share of each label.
    """
    labels = [label for label, *_ in strata]
    if len(set(labels)) == 1 and labels[0] is not None:
        raise UserError(
            f"--calibrate: all {len(labels)} dev rows have the label "
            f"{labels[0]!r}; expected rows of two labels or more"
        )
    chosen = MEASURED.choose(texts, strata)
    counts = int(np.sum(~chosen)), int(np.sum(chosen))
    if min(counts) < LEAST_ROWS:
        raise UserError(
            "--calibrate fits to one half of the dev rows and measures on the "
            f"other: found {counts[0]} and {counts[1]} rows, expected at least "
            f"{LEAST_ROWS} each; pass more dev rows"
        )
    return chosen


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> Optional[float]:
    """Finds the temperature with the least cross entropy, by its slope.

    It is convex in the temperature's inverse. `logits` are float32 [N, C],
    `labels` int [N]. None if no temperature from `COLDEST` to `HOTTEST` is the
    best one, as where all rows are right.
    """
    logits = logits.astype(np.float64)
    right = logits[np.arange(len(labels)), labels]

    def slope(inverse: float) -> float:
        probabilities = np.exp(metrics.log_softmax(logits * inverse))
        return float(np.mean((probabilities * logits).sum(axis=1) - right))

    low, high = 1 / HOTTEST, 1 / COLDEST
    if not slope(low) < 0 < slope(high):
        return None
    for _ in range(HALVINGS):
        # The mean of logarithms.
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / low


def reliability(
    probabilities: np.ndarray, is_right: np.ndarray
) -> list[dict[str, float]]:
    """Computes a reliability diagram's points, by rising probability.

    Takes probabilities of answers, float64 [N], and `is_right`, bool [N]. A bin
    with rows gives `rows`, the mean `probability`, the `accuracy`.
    """
    # A bin has its upper edge.
    bins = np.clip(np.ceil(probabilities * BINS).astype(int) - 1, 0, BINS - 1)
    return [
        {
            "rows": int(np.sum(bins == number)),
            "probability": float(probabilities[bins == number].mean()),
            "accuracy": float(is_right[bins == number].mean()),
        }
        for number in np.unique(bins)
    ]


def calibration_error(points: Sequence[Mapping[str, float]]) -> float:
    """Computes the expected calibration error, 0 to 1, of `reliability`."""
    rows = sum(point["rows"] for point in points)
    return sum(
        point["rows"] / rows * abs(point["accuracy"] - point["probability"])
        for point in points
    )


def error_interval(
    probabilities: np.ndarray, is_right: np.ndarray
) -> list[float]:
    """Computes an interval of the calibration error, by a bootstrap.

    Draws the rows `RESAMPLES` times, with replacement. Errors of draws are too
    high, as the rows' error is, so percentiles are mirrored at it: the basic
    bootstrap (Davison and Hinkley 1997, section 5.2). In simulations it
    held the true error in 60% (near 0) to 90% of cases.
    """
    rng = np.random.default_rng(MEASURED.seed)
    count = len(is_right)
    errors = [
        calibration_error(reliability(probabilities[rows], is_right[rows]))
        for rows in (rng.integers(0, count, count) for _ in range(RESAMPLES))
    ]
    error = calibration_error(reliability(probabilities, is_right))
    bounds = 2 * error - np.percentile(errors, [97.5, 2.5])
    return np.maximum(bounds, 0).tolist()


def choose_threshold(
    probabilities: np.ndarray, is_right: np.ndarray, precision: float
) -> Optional[float]:
    """Finds the threshold that leaves out fewest rows for a precision.

    It lies halfway between two rows' probabilities, and is 0 if all rows may be
    answered; None if none reaches `precision`, the least share of right ones
    among answered rows. Arrays are as in `reliability`.
    """
    order = np.argsort(-probabilities, kind="stable")
    falling = probabilities[order]
    shares = np.cumsum(is_right[order]) / np.arange(1, len(order) + 1)
    # Equal probabilities are answered alike.
    ends = np.append(falling[1:] < falling[:-1], True)
    reached = np.flatnonzero(ends & (shares >= precision))
    if not reached.size:
        return None
    last = reached[-1]
    if last == len(order) - 1:
        return 0.0
    return float((falling[last] + falling[last + 1]) / 2)


def fit(
    logits: np.ndarray,
    labels: np.ndarray,
    measured: np.ndarray,
    abstain_at: Optional[float],
) -> tuple[Calibration, dict[str, Any]]:
    """Fits a calibration to some dev rows, and measures it on the others.

    A temperature that does not lower the others' cross entropy is not kept.
    `logits` are float32 [N, C], `labels` int [N], `measured` bool [N];
    `abstain_at` is the wanted precision, or None to answer all.

    Returns the calibration and the content of `calibration.json`: `before` and
    `after`, the expected calibration error, with `interval_`, `loss_` (cross
    entropy in nats) and `points_` (`reliability`) of both; `temperature`, None
    if none is kept; `rows_fitted`, `rows_measured`, `accuracy` of the latter.
    With `abstain_at` also `abstain_below`, None if no threshold reaches it, and
    the threshold's `coverage` and `precision`, None without answered rows.
    """

    def loss_of(scaled: np.ndarray) -> float:
        losses = metrics.cross_entropy(scaled[measured], labels[measured])
        return float(losses.mean())

    temperature = fit_temperature(logits[~measured], labels[~measured])
    fitted = logits.astype(np.float64) / (temperature or 1)
    if temperature is None or loss_of(fitted) >= loss_of(logits):
        temperature, fitted = None, logits.astype(np.float64)
    calibration = Calibration(temperature) if temperature else Calibration()
    record: dict[str, Any] = {}
    for when, scaled in (("before", logits), ("after", fitted)):
        probabilities = np.exp(metrics.log_softmax(scaled)).max(axis=1)
        is_right = scaled.argmax(axis=1) == labels
        points = reliability(probabilities[measured], is_right[measured])
        record[when] = calibration_error(points)
        record[f"interval_{when}"] = error_interval(
            probabilities[measured], is_right[measured]
        )
        record[f"loss_{when}"] = loss_of(scaled)
        record[f"points_{when}"] = points
    record["temperature"] = temperature
    record["rows_fitted"] = int(np.sum(~measured))
    record["rows_measured"] = int(np.sum(measured))
    record["accuracy"] = float(is_right[measured].mean())
    if abstain_at is None:
        return calibration, record
    least = choose_threshold(
        probabilities[~measured], is_right[~measured], abstain_at
    )
    record.update(abstain_at=abstain_at, abstain_below=least)
    if least is not None:
        calibration = dataclasses.replace(calibration, abstain_below=least)
        is_answered = probabilities[measured] >= least
        right = is_right[measured][is_answered]
        record["coverage"] = float(is_answered.mean())
        record["precision"] = float(right.mean()) if right.size else None
    return calibration, record
