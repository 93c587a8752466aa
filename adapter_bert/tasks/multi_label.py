"""Classification where a text, or a pair of texts, has any number of labels."""

import dataclasses
from typing import Optional

import numpy as np
import tensorflow as tf

from adapter_bert.data.table_flags import SEPARATOR
from adapter_bert.data.tables import join_labels, split_labels, warn_of_lists
from adapter_bert.errors import UserError
from adapter_bert.flags import PROBABILITY
from adapter_bert.tasks import kinds, metrics
from adapter_bert.tasks.metrics import LABEL_SET_METRICS
from adapter_bert.tasks.task import has_numbers, results_path, write_table
from adapter_bert.tasks.text_classification import (
    ClassificationHead,
    TextClassification,
)

THRESHOLD = 0.5
# Name of fitted thresholds in an adapter's settings.
FITTED = "label_thresholds"


class MultiLabelHead(ClassificationHead):
    """A classifier's head with a sigmoid for each label."""

    def loss(self, predictions, features):
        """Mean of the C labels' binary cross entropies in nats, float32 [B].

        A mean, unlike a sum, suits one learning rate for few and many labels.
        Source: PyTorch's `BCEWithLogitsLoss`, as in Hugging Face's models.
        """
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(features["label_sets"], tf.float32),
            logits=predictions["logits"],
        )
        return tf.reduce_mean(losses, axis=1)

    def distillation_loss(self, predictions, outputs, temperature):
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.sigmoid(outputs["logits"] / temperature),
            logits=predictions["logits"] / temperature,
        )
        return tf.reduce_mean(losses, axis=1) * temperature**2


@dataclasses.dataclass(frozen=True)
class MultiLabel(TextClassification):
    """A classification task whose rows have any number of labels, or none.

    `separator` stands between a cell's labels; `threshold` is the least
    probability of a predicted label, None for the training's. `thresholds` are
    fitted ones of each label.
    """

    metrics: tuple[str, ...] = tuple(LABEL_SET_METRICS)
    separator: str = SEPARATOR
    threshold: Optional[float] = None
    thresholds: Optional[tuple[float, ...]] = None

    kind = kinds.KINDS[kinds.MULTI_LABEL]
    has_sets = True
    chooses_one = False
    metric_table = LABEL_SET_METRICS

    def describe(self):
        return {
            "multi_label": True,
            "label_threshold": self.least_probability,
            **super().describe(),
        }

    @property
    def least_probability(self) -> float:
        return THRESHOLD if self.threshold is None else self.threshold

    @property
    def least_probabilities(self) -> np.ndarray:
        """Least probability of each label that is given, float64 [C]."""
        usual = [self.least_probability] * len(self.labels)
        return np.array(self.thresholds or usual)

    def with_fitted(self, settings, source):
        fitted = settings.get(FITTED)
        if fitted is None:
            return self
        if not has_numbers(fitted, self.labels, 0, 1):
            raise UserError(
                f"{source}: task_settings.{FITTED} is {str(fitted)[:200]}, "
                "expected a probability for each label"
            )
        thresholds = tuple(float(fitted[label]) for label in self.labels)
        return dataclasses.replace(self, thresholds=thresholds)

    def restore(self, description, source):
        task = super().restore(description, source)
        join_labels(task.labels, self.separator, source)
        if task.threshold is None:
            before = description.get("label_threshold")
            if before is not None and not PROBABILITY.holds(before):
                raise UserError(
                    f"{source}: task.label_threshold is {before!r}, "
                    f"{PROBABILITY.problem}"
                )
            task = dataclasses.replace(task, threshold=before)
        return task

    @property
    def settings(self):
        least = {"label_threshold": self.least_probability}
        if self.thresholds:
            least = {FITTED: dict(zip(self.labels, self.thresholds))}
        separator = {"label_separator": self.separator}
        return {**super().settings, **separator, **least}

    def _split(self, cell: str, where: str = ""):
        return split_labels(cell, self.separator, where)

    def complete(self, train):
        sets = self.strata(train)
        labels = {label for of in sets for label in of}
        if not labels:
            raise UserError(
                f"{train.path}: no row of the column {self.labelled.label!r} "
                "holds a label"
            )
        warn_of_lists(labels, self.separator, train.path)
        from adapter_bert.data import hints

        hints.of_labels(labels, train.path)
        hints.of_sets(sets, train.path, self.separator)
        return self.with_labels(labels, train.path)

    def check_label(self, label, where):
        check = super().check_label
        labels = [check(one, where) for one in self._split(label, where)]
        return join_labels(labels, self.separator, where)

    def label_features(self, labels):
        """`label_sets`, int32 [rows, C]: 1 for a row's labels."""
        numbers = self.numbers()
        sets = np.zeros((len(labels), len(self.labels)), np.int32)
        for row, cell in enumerate(labels):
            sets[row, [numbers[label] for label in self._split(cell)]] = 1
        return {"label_sets": sets}

    def strata(self, rows):
        return [
            self._split(cell, rows.where(row))
            for row, cell in enumerate(rows.label)
        ]

    def build_head(self, config, create):
        return MultiLabelHead(len(self.labels), config, create, self.head)

    def compare(self, labels, predictions):
        """Sets of labels, bool [rows, C], and binary cross entropies."""
        right = labels["label_sets"].astype(bool)
        losses = metrics.binary_cross_entropy(predictions["logits"], right)
        chosen = self.results(predictions) >= self.least_probabilities
        return right, chosen, losses

    @property
    def score_names(self):
        return (*self.metrics, *metrics.RANKINGS, "macro_roc_auc", "loss")

    def evaluate(self, rows, features, predictions):
        right = features.answer_labels["label_sets"].astype(bool)
        return {
            **super().evaluate(rows, features, predictions),
            **metrics.ranking_scores(right, self.results(predictions)),
        }

    def write_report(self, output_dir, rows, features, predictions, suffix=""):
        right, chosen, _ = self.compare(features.answer_labels, predictions)
        path = results_path(output_dir, "eval_labels", suffix)
        return (write_table(path, self.label_table(right, chosen)),)

    def results(self, predictions):
        return metrics.sigmoid(predictions["logits"])

    def answer(self, rows, predictions):
        least = dict(zip(self.labels, self.least_probabilities.tolist()))
        rows_of_scores = (
            dict(zip(self.labels, row))
            for row in self.results(predictions).tolist()
        )
        return [
            {
                "labels": [x for x, p in of.items() if p >= least[x]],
                "scores": of,
            }
            for of in rows_of_scores
        ]

    @property
    def client_facts(self):
        return {**super().client_facts, "label_separator": self.separator}

    def runtime_outputs(self, outputs, rows):
        return {"scores": tf.sigmoid(outputs["logits"])}

    def cells(self, answer):
        shares = {
            f"probability_{label}": f"{share:.4f}"
            for label, share in answer["scores"].items()
        }
        labels = join_labels(answer["labels"], self.separator, self.name)
        return {"labels": labels, **shares}
