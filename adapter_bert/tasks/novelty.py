"""Novelty: how unlike the training rows a text is, by frozen BERT's features.

Features are of BERT without the adapter (`training/frozen_features.py`).
Training rows are described by a mean and a few directions. A text's distance is
the squared Mahalanobis distance of probabilistic principal components, times
the variance of what the directions leave out. Its novelty is the share of
training rows that are nearer.

Sources: Lee et al. 2018, "A Simple Unified Framework for Detecting
Out-of-Distribution Samples", section 2.1, with one class in place of each
label's; Tipping and Bishop 1999, "Probabilistic Principal Component Analysis",
section 3.
"""

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert.data.divisions import number_texts
from adapter_bert.data.input_pipeline import Features
from adapter_bert.errors import UserError

# Name in an adapter's `task_settings`, and in an answer.
NOVELTY = "novelty"
# Settings of adapters that other programs do not know.
UNTOLD = {
    NOVELTY: "scores the novelty of texts",
    "label_thresholds": "has a threshold for each label",
    "window_stride": "reads long texts in windows",
}
# The most directions, and rows for each.
COMPONENTS, ROWS_EACH = 32, 4
# Parts of the rows; each part's distances are measured by the other parts.
FOLDS = 5
LEAST_ROWS = 2 * FOLDS
# Rows that a sketch is made of, evenly spaced.
MOST_ROWS = 10_000
# The variance that directions leave, at least, of the mean variance.
SMALLEST_SHARE = 1e-6
# Distances are kept of these shares of rows.
QUANTILES = 101
# In files, whatever the machine's.
FLOATS = np.dtype("<f4")


def evenly_spaced(rows: int) -> np.ndarray:
    """Chooses at most `MOST_ROWS` of all rows, int64 [N], rising."""
    count = min(rows, MOST_ROWS)
    return np.arange(count) * rows // max(count, 1)


def distinct(texts: Features) -> np.ndarray:
    """Finds the first row of each text, int64 [N], rising.

    Copies of a text would be in all folds, so that nothing tells how far it is
    from texts that were not described.
    """
    ends = zip(texts.starts[:-1], texts.starts[1:])
    places = (slice(*pair) for pair in ends)
    keys = (
        (texts.tokens[x].tobytes(), texts.segments[x].tobytes()) for x in places
    )
    return np.unique(number_texts(keys), return_index=True)[1]


@dataclasses.dataclass(frozen=True, eq=False)
class Sketch:
    """Training rows in short.

    Attributes:
        mean: float32 [D], of their features.
        directions: float32 [K, D]; along each, the rows' variance shortens a
            distance.
        quantiles: float32 [Q], distances of evenly spaced shares of rows.
    """

    mean: np.ndarray
    directions: np.ndarray
    quantiles: np.ndarray

    def shares(self, features: np.ndarray) -> list[float]:
        return shares(features, **vars(self)).numpy().tolist()

    @property
    def settings(self) -> dict[str, Any]:
        """Gives JSON: base64 of little-endian float32, row by row."""
        return {
            name: base64.b64encode(array.astype(FLOATS).tobytes()).decode()
            for name, array in vars(self).items()
        }

    @classmethod
    def restore(cls, recorded: Any, source: str) -> "Sketch":
        names = [field.name for field in dataclasses.fields(cls)]
        try:
            if sorted(recorded) != sorted(names):
                raise ValueError
            mean, directions, quantiles = (
                np.frombuffer(
                    base64.b64decode(recorded[name], validate=True), FLOATS
                ).astype(np.float32)
                for name in names
            )
            # Without a mean, the form is none.
            directions = directions.reshape(-1, len(mean) or -1)
            values = np.concatenate([mean, directions.ravel(), quantiles])
            if (
                len(quantiles) != QUANTILES
                or not np.isfinite(values).all()
                or (np.diff(quantiles) < 0).any()
            ):
                raise ValueError
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{source}: task_settings.{NOVELTY} is damaged, expected "
                f"{', '.join(names)} as base64 of float32; copy the adapter "
                "again"
            ) from error
        return cls(mean, directions, quantiles)


def with_novelty(task: Any, settings: Mapping[str, Any], source: str) -> Any:
    """Restores a task's sketch from `task_settings` of `source`."""
    if not task.scores_novelty or NOVELTY not in settings:
        return task
    sketch = Sketch.restore(settings[NOVELTY], source)
    return dataclasses.replace(task, novelty=sketch)


def warn_of_loss(settings: Mapping[str, Any], source: str) -> None:
    """Tells what other programs' files have no place for."""
    for name, about in UNTOLD.items():
        if name in settings:
            logging.warning(
                "%s %s, for which other programs' files have no place",
                source,
                about,
            )


def distances(
    features: np.ndarray, mean: np.ndarray, directions: np.ndarray
) -> np.ndarray:
    """Computes squared distances from a mean, float64 [N]; see `Sketch`."""
    apart = features.astype(np.float64) - mean
    return (apart**2).sum(axis=1) - ((apart @ directions.T) ** 2).sum(axis=1)


def _describe(
    features: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Finds a mean [D], `count` directions [K, D], and the variance left."""
    mean = features.mean(axis=0)
    apart = features - mean
    variances, axes = np.linalg.eigh(apart.T @ apart / len(features))
    split = len(mean) - count
    # Few or equal rows leave nothing, by which no distance can be divided.
    least = SMALLEST_SHARE * variances.mean() + np.finfo(float).tiny
    rest = max(variances[:split].mean(), least)
    kept = np.maximum(variances[split:], rest)
    return mean, (axes[:, split:] * np.sqrt(1 - rest / kept)).T, rest


def fit(features: np.ndarray) -> Sketch:
    """Sketches distinct texts, whose features are float32 [N, D].

    A row's distance for the quantiles is by rows of other folds, since rows are
    near to a sketch that was made of them.
    """
    features = features.astype(np.float64)
    rows, size = features.shape
    count = min(COMPONENTS, rows // ROWS_EACH, size // 2)
    folds = min(FOLDS, rows)
    fold = np.arange(rows) % folds
    spreads = np.empty(rows)
    mean, directions, rest = _describe(features, count)
    for number in range(folds):
        in_fold = fold == number
        others = features[~in_fold] if folds > 1 else features
        *place, spread = _describe(others, count)
        # One text has no spread.
        spread = spread if len(others) > 1 else rest
        spreads[in_fold] = distances(features[in_fold], *place) / spread
    quantiles = rest * np.quantile(spreads, np.linspace(0, 1, QUANTILES))
    made = mean, directions, quantiles
    return Sketch(*(values.astype(np.float32) for values in made))


def shares(
    features: tf.Tensor,
    mean: tf.Tensor,
    directions: tf.Tensor,
    quantiles: tf.Tensor,
) -> tf.Tensor:
    """Computes the share of training rows nearer than each text, 0 to 1.

    Takes float32 features [N, D], and `Sketch`'s arrays, of all or of each text
    ([N, ...]). Gives float32 [N], interpolated between quantiles.
    """
    apart = features - mean
    along = tf.linalg.matvec(directions, apart)
    distance = tf.reduce_sum(apart**2, axis=1, keepdims=True)
    distance -= tf.reduce_sum(along**2, axis=1, keepdims=True)
    low, high = quantiles[..., :-1], quantiles[..., 1:]
    steps = tf.math.divide_no_nan(distance - low, high - low)
    # Steps of no width are passed, or not.
    steps = tf.where(high > low, steps, tf.cast(distance > low, tf.float32))
    return tf.reduce_mean(tf.clip_by_value(steps, 0.0, 1.0), axis=1)
