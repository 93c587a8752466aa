"""Scores of texts, or of pairs of texts, from a scale."""

import dataclasses
import math
import re
from typing import Optional, Tuple

import numpy as np
import tensorflow as tf

import metrics
from errors import UserError
from tasks.head_shape import POOLED
from tasks.text_classification import ClassificationHead
from tasks.text_task import TextTask

# Python's own rule takes more: 1_000, infinity, digits of any script.
NUMBER = re.compile(r" *[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)? *")
FLOAT_MAX = float(np.finfo(np.float32).max)


class RegressionHead(ClassificationHead):
    """A classifier's head with a single logit, the score."""

    def __init__(self, config, create, shape=POOLED):
        """Creates `output_weights` [1, D] and `output_bias` [1]."""
        super().__init__(1, config, create, shape)

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"scores": float32 [B]}."""
        logits = super().__call__(bert, sequence_output, context)["logits"]
        return {"scores": tf.squeeze(logits, axis=1)}

    def loss(self, predictions, features):
        """Squared error, float32 [B]."""
        return tf.math.squared_difference(
            predictions["scores"], features["label_scores"]
        )


@dataclasses.dataclass(frozen=True)
class TextRegression(TextTask):
    """A regression task.

    Attributes:
        scale: least and greatest score, both possible, or None for any.
    """

    metrics: Tuple[str, ...] = ("pearson", "spearman")
    scale: Optional[Tuple[float, float]] = None

    def describe(self):
        """That it is a regression, and what all such tasks tell."""
        return {"regression": True, **super().describe()}

    def restore(self, description, source):
        """This task, if the head gives a number."""
        if not description.get("regression"):
            raise UserError(
                f"{source} was trained on the task {description['name']}, "
                f"which gives labels; not on {self.name}, which gives a number"
            )
        return super().restore(description, source)

    def check_label(self, label, where):
        """It must be a number of the scale."""
        score = float(label) if NUMBER.fullmatch(label) else math.nan
        low, high = self.scale or (-FLOAT_MAX, FLOAT_MAX)
        if not low <= score <= high:
            expected = f" from {low:g} to {high:g}" if self.scale else ""
            raise UserError(
                f"{where}: the score is {label[:80]!r}, expected a number"
                f"{expected}"
            )

    def label_features(self, labels):
        """`label_scores`, float32 [rows]."""
        return {"label_scores": np.array([float(x) for x in labels], "float32")}

    def held_out_groups(self, labels):
        """All rows alike."""
        return [None] * len(labels)

    def summarize(self, rows):
        """The scores' range and mean."""
        if rows.label is None:
            return ""
        scores = np.array([float(label) for label in rows.label])
        return (
            f"scores from {scores.min():g} to {scores.max():g}, mean "
            f"{scores.mean():.3g}"
        )

    def build_head(self, config, create):
        """One number."""
        return RegressionHead(config, create, self.head)

    def evaluate(self, rows, features, predictions):
        """The task's metrics, and the mean squared error as loss."""
        scores, labels = predictions["scores"], features.labels["label_scores"]
        results = {
            name: metrics.METRICS[name](labels, scores) for name in self.metrics
        }
        errors = scores.astype(np.float64) - labels
        results["loss"] = float(np.mean(errors**2))
        return results

    def answer(self, rows, predictions):
        """`value`, within the task's scale if it has one."""
        values = predictions["scores"].astype(np.float64)
        if self.scale:
            values = np.clip(values, *self.scale)
        return [{"value": value} for value in values.tolist()]

    def answers(self, predictions):
        """The scores as they are; within a scale, if any, to three places."""
        scores = predictions["scores"].astype(np.float64)
        if self.scale:
            shown = [f"{score:.3f}" for score in np.clip(scores, *self.scale)]
        else:
            shown = [f"{score:.7g}" for score in scores]
        return scores[:, np.newaxis], shown
