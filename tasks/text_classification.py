"""Classification of a text, or of a pair of texts."""

import collections
import dataclasses
from typing import Collection, Dict, Optional, Tuple

import numpy as np
import tensorflow as tf

import files
import metrics
import modeling
from errors import UserError
from hooks import dropout
from tasks.base import Head, results_path
from tasks.head_shape import POOLED, HiddenLayers
from tasks.text_task import TextTask


class ClassificationHead(Head):
    """Logits from the first token, pooled if nothing else is said.

    Parameters: C D + C, and those of `HiddenLayers`. Source:
    google-research/bert, `run_classifier.py`, `create_model`.
    """

    def __init__(self, classes, config, create, shape=POOLED):
        """Creates `output_weights` [C, D] and `output_bias` [C]."""
        self.needs_pooler = shape.pooler
        self.hidden = HiddenLayers(shape, "", config.hidden_size, create)
        self.weights = create(
            "output_weights",
            (classes, config.hidden_size),
            modeling.truncated_normal(0.02),
        )
        self.bias = None
        if shape.bias:
            self.bias = create("output_bias", (classes,), modeling.zeros)

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"logits": float32 [B, C]}."""
        read = sequence_output[:, 0]
        if self.needs_pooler:
            read = bert.pooled_output(sequence_output, context)
        read = dropout(read, 0.1, "head", context)
        read = self.hidden(read, context)
        logits = tf.matmul(read, self.weights, transpose_b=True)
        return {"logits": logits if self.bias is None else logits + self.bias}

    def loss(self, predictions, features):
        """Cross entropy in nats, float32 [B]."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=features["label_ids"], logits=predictions["logits"]
        )


@dataclasses.dataclass(frozen=True)
class TextClassification(TextTask):
    """A classification task.

    Attributes:
        labels: the classes, in the order of the logits; None to take those
            that the training file holds, sorted.
        has_sets: whether a row has any number of labels.
        least_labels: how many labels there must be.
    """

    labels: Optional[Tuple[str, ...]] = None

    has_sets = False
    least_labels = 2

    def describe(self):
        """The labels, in the logits' order, and what all such tasks tell."""
        known = {"labels": list(self.labels)} if self.is_complete else {}
        return {**known, **super().describe()}

    @property
    def is_complete(self):
        """Whether the labels are known."""
        return self.labels is not None

    def complete(self, train):
        """This task, with the training rows' labels if it has none."""
        found = set(train.label)
        for label in found:
            if not label.strip():
                where = train.where(train.label.index(label))
                raise UserError(f"{where}: the label is empty")
        if len(found) < 2:
            raise UserError(
                f"{train.path}: the column {self.labelled.label!r} holds only "
                f"the label {found.pop()!r}, expected at least two labels"
            )
        return self.with_labels(found, train.path)

    def with_labels(
        self, found: Collection[str], path: str
    ) -> "TextClassification":
        """This task with the labels of a file, sorted.

        Raises:
            UserError: one of them cannot be written into a table.
        """
        for label in found:
            if "\t" in label or label.splitlines() != [label]:
                raise UserError(
                    f"{path}: the label {label[:80]!r} holds a tab or a line "
                    "break; is it the right column?"
                )
        return dataclasses.replace(self, labels=tuple(sorted(found)))

    def restore(self, description, source):
        """This task, with the labels of a trained head."""
        trained = f"{source} was trained on the task {description['name']}"
        labels = description.get("labels")
        if not isinstance(labels, list) or len(labels) < self.least_labels:
            raise UserError(f"{trained}, without labels; not on {self.name}")
        several = bool(description.get("multi_label"))
        if several != self.has_sets:
            raise UserError(
                f"{trained}, whose rows have "
                + ("any number of labels" if several else "one label each")
                + f"; not on {self.name} with --multi_label={self.has_sets}"
            )
        labels = tuple(map(str, labels))
        if self.labels not in (None, labels):
            raise UserError(
                f"{trained} for the labels {', '.join(labels)[:200]}, but the "
                f"task {self.name} has {', '.join(self.labels)[:200]}"
            )
        return dataclasses.replace(
            super().restore(description, source), labels=labels
        )

    def check_label(self, label, where):
        """It must be one of the labels."""
        if label not in self.labels:
            raise UserError(
                f"{where}: unknown label {label!r}, expected one of "
                f"{', '.join(self.labels)[:200]}"
            )

    def label_features(self, labels):
        """`label_ids`, int32 [rows]: places in the task's labels."""
        numbers = {label: i for i, label in enumerate(self.labels)}
        return {
            "label_ids": np.array([numbers[label] for label in labels], "int32")
        }

    def summarize(self, rows):
        """How many rows each label has, the commonest first."""
        counts = collections.Counter(rows.label or ())
        return ", ".join(
            f"{label} {count:,} ({count / len(rows):.1%})"
            for label, count in counts.most_common()
        )[:500]

    def build_head(self, config, create):
        """One logit for each label."""
        return ClassificationHead(len(self.labels), config, create, self.head)

    def evaluate(self, rows, features, predictions):
        """Cross entropy and the task's metrics."""
        logits, labels = predictions["logits"], features.labels["label_ids"]
        chosen = logits.argmax(axis=-1)
        scores: Dict[str, float] = {
            name: metrics.METRICS[name](labels, chosen) for name in self.metrics
        }
        scores["loss"] = float(metrics.cross_entropy(logits, labels).mean())
        return scores

    def write_report(self, output_dir, rows, features, predictions, suffix=""):
        """Writes `eval_labels.tsv`: precision, recall and F1 of each label."""
        has = np.eye(len(self.labels), dtype=bool)
        return self.write_label_scores(
            results_path(output_dir, "eval_labels", suffix),
            has[features.labels["label_ids"]],
            has[predictions["logits"].argmax(axis=-1)],
        )

    def write_label_scores(
        self, path: str, labels: np.ndarray, chosen: np.ndarray
    ) -> Tuple[str, ...]:
        """Writes a table of each label's precision, recall and F1.

        Args:
            path: of the table.
            labels: bool [rows, C], which labels a row has.
            chosen: bool [rows, C], which it was given.

        Returns:
            The path.
        """
        lines = ["label\texamples\tpredicted\tprecision\trecall\tf1"]
        for label, *counts_and_scores in zip(
            self.labels,
            labels.sum(axis=0),
            chosen.sum(axis=0),
            *metrics.label_scores(labels, chosen),
        ):
            count, times, *scores = counts_and_scores
            shown = "\t".join(f"{score:.4f}" for score in scores)
            lines.append(f"{label}\t{count}\t{times}\t{shown}")
        files.write_text(path, "\n".join(lines) + "\n")
        return (path,)

    def answer(self, rows, predictions):
        """`label`, its `probability`, and `scores`, those of all labels."""
        probabilities, chosen = self.answers(predictions)
        return [
            {
                "label": label,
                "probability": max(row),
                "scores": dict(zip(self.labels, row)),
            }
            for label, row in zip(chosen, probabilities.tolist())
        ]

    def answers(self, predictions):
        """Probabilities, and the likeliest labels."""
        logits = predictions["logits"]
        chosen = [self.labels[place] for place in logits.argmax(axis=-1)]
        return np.exp(metrics.log_softmax(logits)), chosen
