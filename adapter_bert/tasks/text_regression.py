"""Scores of texts, or of pairs of texts, from a scale."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.data.tables import Layout
from adapter_bert.errors import UserError
from adapter_bert.tasks import kinds
from adapter_bert.tasks.task import has_numbers, with_values
from adapter_bert.tasks.text_classification import (
    FLOAT_MAX,
    ClassificationHead,
)
from adapter_bert.tasks.text_task import POOLED, TextTask

# Python's own rule takes more: 1_000, infinity, digits of any script.
NUMBER = re.compile(r" *[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)? *")
DECIMAL_COMMA = re.compile(" *[+-]?[0-9]+,[0-9]+ *")
# Or a comma between thousands.
AMBIGUOUS = re.compile(" *[+-]?[1-9][0-9]*,[0-9]{3} *")


class LabelUnit(NamedTuple):
    """Statistics of a head's training labels.

    The head computes (label - mean) / deviation, which is above 0. `low` and
    `high` are the least and the greatest label.
    """

    mean: float
    deviation: float
    low: float
    high: float

    @classmethod
    def of(cls, labels: np.ndarray, path: str) -> "LabelUnit":
        low, high = float(labels.min()), float(labels.max())
        unit = cls(float(labels.mean()), float(labels.std()), low, high)
        if low == high:
            raise UserError(
                f"{path}: every label of {len(labels)} rows is {low + 0.0:g}, "
                "expected numbers that differ; is it the right --label_column?"
            )
        greatest = np.float32(np.abs(labels).max())
        # A deviation of 20 steps of float32, which none rounds to 0.
        if unit.deviation < 20 * max(
            float(np.spacing(greatest)), float(np.finfo(np.float32).tiny)
        ):
            raise UserError(
                f"{path}: labels from {low!r} to {high!r} hardly differ in "
                "float32; subtract a number from all of them, or multiply them"
            )
        return unit

    @classmethod
    def restore(cls, description: Mapping[str, Any], source: str):
        recorded = description.get("label_unit")
        if recorded is None:
            return AS_IS
        if (
            not has_numbers(recorded, cls._fields, -FLOAT_MAX, FLOAT_MAX)
            or recorded["deviation"] < np.finfo(np.float32).tiny
        ):
            raise UserError(
                f"{source}: task.label_unit is {str(recorded)[:200]}, expected "
                f"numbers {', '.join(cls._fields)}, the deviation above 0"
            )
        return cls(**{name: float(x) for name, x in recorded.items()})

    def join(self, weights: np.ndarray, bias: Optional[np.ndarray]):
        """Turns a last layer in this unit into one without a unit.

        Takes and gives weights [1, D] and a bias [1], or takes None, float32.
        """
        if self == AS_IS:
            return weights, bias
        bias = (0.0 if bias is None else bias) * self.deviation + self.mean
        return (
            np.asarray(weights * self.deviation, np.float32),
            np.asarray(bias, np.float32).reshape(1),
        )


def check_number(
    text: str, where: str, scale: Optional[tuple[float, float]] = None
) -> None:
    """Refuses what is no number of float32, or outside the scale."""
    score = float(text) if NUMBER.fullmatch(text) else math.nan
    low, high = scale or (-FLOAT_MAX, FLOAT_MAX)
    if not low <= score <= high:
        expected = f" from {low:g} to {high:g}" if scale else ""
        raise UserError(
            f"{where}: the score is {text[:80]!r}, expected a number{expected}"
        )


# The unit of GLUE's heads, and of heads from other programs.
AS_IS = LabelUnit(0.0, 1.0, -math.inf, math.inf)


class RegressionHead(ClassificationHead):
    """A classifier's head with a single logit, the score."""

    def __init__(self, config, create, shape=POOLED, unit=AS_IS):
        """Creates `output_weights` [1, D] and `output_bias` [1]."""
        super().__init__(1, config, create, shape)
        self.unit = unit

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"scores": float32 [B]}."""
        logits = super().__call__(bert, sequence_output, context)["logits"]
        return {"scores": tf.squeeze(logits, axis=1)}

    def loss(self, predictions, features):
        """Squared error in the unit's deviations, float32 [B]."""
        labels = features["label_scores"]
        if self.unit != AS_IS:
            labels = (labels - self.unit.mean) / self.unit.deviation
        return tf.math.squared_difference(predictions["scores"], labels)

    def distillation_loss(self, predictions, outputs, temperature):
        return tf.math.squared_difference(
            predictions["scores"], outputs["scores"]
        )


@dataclasses.dataclass(frozen=True)
class TextRegression(TextTask):
    """A regression task.

    `scale` is the least and greatest score, or None for any; `unit` is None
    until it is known.
    """

    metrics: tuple[str, ...] = ("pearson", "spearman")
    scale: Optional[tuple[float, float]] = None
    unit: Optional[LabelUnit] = None

    kind = kinds.KINDS[kinds.REGRESSION]
    scores_novelty = True
    # Whether answers are sigmoids of the head's outputs.
    is_sigmoid = False

    def describe(self):
        facts = {"regression": True, **super().describe()}
        if self._is_scaled:
            facts["label_unit"] = self.unit._asdict()
        return facts

    @property
    def _is_scaled(self) -> bool:
        return self.unit not in (None, AS_IS)

    def restore(self, description, source):
        task = super().restore(description, source)
        return task.go_on(description, source)

    def go_on(self, description, source):
        return dataclasses.replace(
            self, unit=LabelUnit.restore(description, source)
        )

    def learn(self, rows):
        """Takes the unit of the training labels, unless it has one.

        The head of a task with a scale answers in the scale itself.
        """
        if self.scale:
            return self
        unit = LabelUnit.of(np.array(rows.label, float), rows.path)
        return self if self.unit else dataclasses.replace(self, unit=unit)

    def begin_head(self, base):
        if not self._is_scaled:
            return base
        shifts = {"output_weights": 0.0, "output_bias": self.unit.mean}
        values = {
            name: (base.read(name) - shift) / self.unit.deviation
            for name, shift in shifts.items()
            if name in base.shapes
        }
        return with_values(
            base, {name: np.float32(value) for name, value in values.items()}
        )

    def _read(self, data_dir, split):
        """Reads decimal commas, unless all may be between thousands."""
        rows = super()._read(data_dir, split)
        commas = [x for x in rows.label or () if "," in x]
        if (
            commas
            and all(map(DECIMAL_COMMA.fullmatch, commas))
            and not all(map(AMBIGUOUS.fullmatch, commas))
        ):
            labels = [x.replace(",", ".") for x in rows.label]
            rows = dataclasses.replace(rows, label=labels)
        return rows

    def check_label(self, label, where):
        check_number(label, where, self.scale)
        return label

    def label_features(self, labels):
        """`label_scores`, float32 [rows]."""
        return {"label_scores": np.array(labels, np.float32)}

    def strata(self, rows):
        return [(None,)] * len(rows)

    def summarize(self, rows):
        if rows.label is None:
            return ""
        scores = np.array(rows.label, float)
        least, most, mean = scores.min(), scores.max(), scores.mean()
        about = f"scores from {least:g} to {most:g}, mean {mean:g}"
        if self._is_scaled:
            _, deviation, low, high = self.unit
            is_far = (scores < low - deviation) | (scores > high + deviation)
            if is_far.any():
                about += (
                    f"; {is_far.sum()} far from the training's, {low:g} to "
                    f"{high:g} (the first: {rows.where(is_far.argmax())})"
                )
        return about

    @property
    def result_columns(self):
        return ("value",)

    def build_head(self, config, create):
        return RegressionHead(config, create, self.head, self.unit or AS_IS)

    def decode(self, rows, features, outputs):
        outputs = super().decode(rows, features, outputs)
        if not self._is_scaled:
            return outputs
        scores = outputs["scores"].astype(np.float64)
        return {"scores": scores * self.unit.deviation + self.unit.mean}

    def compare(self, labels, predictions):
        scores, right = predictions["scores"], labels["label_scores"]
        return right, scores, (scores.astype(np.float64) - right) ** 2

    def results(self, predictions):
        return predictions["scores"].astype(np.float64)[:, np.newaxis]

    def answer(self, rows, predictions):
        values = predictions["scores"].astype(np.float64)
        if self.scale:
            values = np.clip(values, *self.scale)
        return [{"value": value} for value in values.tolist()]

    def runtime_outputs(self, outputs, rows):
        unit = self.unit or AS_IS
        value = outputs["scores"] * unit.deviation + unit.mean
        if self.scale:
            value = tf.clip_by_value(value, *self.scale)
        return {"value": value}

    def cells(self, answer):
        form = ".3f" if self.scale else ".7g"
        return {"label": format(answer["value"], form)}


STS_B = TextRegression(
    "sts-b",
    labelled=Layout("sentence1", "sentence2", "score"),
    scale=(0.0, 5.0),
    unit=AS_IS,
)
