"""Classification where a text, or a pair of texts, has any number of labels."""

import collections
import dataclasses
from typing import Optional

import numpy as np
import tensorflow as tf

from adapter_bert.data.tables import (
    SEPARATOR,
    check_threshold,
    join_labels,
    split_labels,
    warn_of_lists,
)
from adapter_bert.errors import UserError
from adapter_bert.tasks import metrics
from adapter_bert.tasks.task import results_path
from adapter_bert.tasks.text_classification import (
    ClassificationHead,
    TextClassification,
)
from adapter_bert.tasks.text_task import write_table

THRESHOLD = 0.5


class MultiLabelHead(ClassificationHead):
    """A classifier's head, each of whose logits says yes or no by itself."""

    def loss(self, predictions, features):
        """Mean of the C labels' binary cross entropies in nats, float32 [B].

        The mean and not the sum: so a loss, and with it the learning rate that
        suits, is about the same for few labels as for many. Source: PyTorch's
        `BCEWithLogitsLoss`, which Hugging Face's models take.
        """
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(features["label_sets"], tf.float32),
            logits=predictions["logits"],
        )
        return tf.reduce_mean(losses, axis=1)


@dataclasses.dataclass(frozen=True)
class MultiLabel(TextClassification):
    """A classification task whose rows have any number of labels, or none.

    Attributes:
        separator: stands between the labels of a cell.
        threshold: the probability from which on a row is given a label; None
            for that of the training, or `THRESHOLD`.
    """

    separator: str = SEPARATOR
    threshold: Optional[float] = None

    has_sets = True
    least_labels = 1

    def describe(self):
        """The labels, that rows have sets of them, what all such tasks tell."""
        return {
            "multi_label": True,
            "label_threshold": self.least_probability,
            **super().describe(),
        }

    @property
    def least_probability(self) -> float:
        """From which on a row is given a label."""
        return THRESHOLD if self.threshold is None else self.threshold

    def restore(self, description, source):
        """This task, with the labels of a trained head."""
        task = super().restore(description, source)
        join_labels(task.labels, self.separator, source)
        if task.threshold is None:
            before = description.get("label_threshold")
            if before is not None:
                check_threshold(before, f"{source}: task.label_threshold")
            task = dataclasses.replace(task, threshold=before)
        return task

    @property
    def settings(self):
        """What stands between labels, and who gets one."""
        return {
            **super().settings,
            "label_separator": self.separator,
            "label_threshold": self.least_probability,
        }

    def _split(self, cell: str, where: str = ""):
        return split_labels(cell, self.separator, where)

    def complete(self, train):
        """This task, with the training rows' labels if it has none."""
        # Equal cells are looked at once.
        cells = dict(zip(reversed(train.label), range(len(train))[::-1]))
        found = {
            label
            for cell, row in cells.items()
            for label in self._split(cell, train.where(row))
        }
        if not found:
            raise UserError(
                f"{train.path}: no row of the column {self.labelled.label!r} "
                "holds a label"
            )
        warn_of_lists(found, self.separator, train.path)
        return self.with_labels(found, train.path)

    def spelling(self, label, where):
        """That of each label in a cell."""
        spell = super().spelling
        own = [spell(one, where) for one in self._split(label, where)]
        return join_labels(own, self.separator, where)

    def check_label(self, label, where):
        """All labels of a cell must be known."""
        for one in self._split(label, where):
            super().check_label(one, where)

    def label_features(self, labels):
        """`label_sets`, int32 [rows, C]: 1 for labels that a row has."""
        numbers = self.numbers()
        found = np.zeros((len(labels), len(self.labels)), np.int32)
        for row, cell in enumerate(labels):
            found[row, [numbers[label] for label in self._split(cell)]] = 1
        return {"label_sets": found}

    def _divide(self, rows):
        """Both parts; a cell that cannot be split is named by its place."""
        for row, cell in enumerate(rows.label):
            self._split(cell, rows.where(row))
        return super()._divide(rows)

    def held_out_groups(self, labels):
        """By the rarest label of each row, so that rare ones are divided too.

        Source: Sechidis et al. 2011, section 3, its first step.
        """
        sets = [self._split(cell) for cell in labels]
        counts = collections.Counter(label for of in sets for label in of)
        return [
            min(of, key=lambda x: (counts[x], x), default="") for of in sets
        ]

    def held_out_sets(self, labels):
        """All labels of each row."""
        return [self._split(cell) for cell in labels]

    def summarize(self, rows):
        """How many rows each label has, by columns, and how many none."""
        cells = map(self._split, rows.label or ())
        found = (label for of in cells for label in of or ("(no label)",))
        return self._shares(found, len(rows))

    def build_head(self, config, create):
        """One logit for each label."""
        return MultiLabelHead(len(self.labels), config, create, self.head)

    def _chosen(self, predictions) -> np.ndarray:
        """bool [rows, C], which labels rows are given."""
        return metrics.sigmoid(predictions["logits"]) >= self.least_probability

    def evaluate(self, rows, features, predictions):
        """The task's metrics, and the mean binary cross entropy in nats."""
        labels = features.labels["label_sets"].astype(bool)
        chosen = self._chosen(predictions)
        scores = {
            name: metrics.LABEL_SET_METRICS[name](labels, chosen)
            for name in self.metrics
        }
        losses = metrics.binary_cross_entropy(predictions["logits"], labels)
        scores["loss"] = float(losses.mean())
        return scores

    def write_report(self, output_dir, rows, features, predictions, suffix=""):
        """Writes `eval_labels.tsv`: precision, recall and F1 of each label."""
        path = results_path(output_dir, "eval_labels", suffix)
        labels = features.labels["label_sets"].astype(bool)
        write_table(path, self.label_table(labels, self._chosen(predictions)))
        return (path,)

    def answer(self, rows, predictions):
        """`labels`, and `scores`, the probability of each label."""
        return [
            {
                "labels": [
                    x for x, p in scores.items() if p >= self.least_probability
                ],
                "scores": scores,
            }
            for scores in (
                dict(zip(self.labels, row))
                for row in metrics.sigmoid(predictions["logits"]).tolist()
            )
        ]

    def answers(self, predictions):
        """Probabilities, and the labels that rows are given, in one cell."""
        joined = [
            join_labels(
                [x for x, chosen in zip(self.labels, row) if chosen],
                self.separator,
                self.name,
            )
            for row in self._chosen(predictions).tolist()
        ]
        return metrics.sigmoid(predictions["logits"]), joined

    def named_columns(self, numbers, answers):
        """`labels`, and `probability_<label>` of each."""
        shares = {
            f"probability_{label}": [f"{share:.4f}" for share in column]
            for label, column in zip(self.labels, numbers.T.tolist())
        }
        return {"labels": answers, **shares}
