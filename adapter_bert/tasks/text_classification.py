"""Classification of a text, or of a pair of texts."""

import collections
import contextlib
import dataclasses
import itertools
import json
from collections.abc import Collection, Mapping
from typing import (
    Any,
    Optional,
    Union,
)

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert.bert import functional
from adapter_bert.bert.hooks import Context, dropout
from adapter_bert.data.table_flags import is_one_cell
from adapter_bert.data.tables import (
    Rows,
    list_labels,
    shown,
    spelled,
    warn_of_lookalikes,
)
from adapter_bert.errors import UserError
from adapter_bert.tasks import kinds, metrics
from adapter_bert.tasks.task import (
    Head,
    Task,
    cell,
    results_path,
    write_table,
)
from adapter_bert.tasks.text_task import (
    POOLED,
    TEXT_COLUMNS,
    HiddenLayers,
    TextTask,
)

# `TextClassification.weighting` by how common labels are.
BALANCED = "balanced"
# The greatest weight, and the greatest score of a regression.
FLOAT_MAX = float(np.finfo(np.float32).max)
# Rows of `eval_hardest.tsv`.
HARDEST = 50


class ClassificationHead(Head):
    """Logits from the first token, pooled by default, or from the mean.

    Parameters: C D + C, and those of `HiddenLayers`. Source:
    google-research/bert, `run_classifier.py`, `create_model`.
    """

    def __init__(self, classes, config, create, shape=POOLED, weights=None):
        """Creates `output_weights` [C, D] and `output_bias` [C].

        `weights` are C floats that multiply the losses of each class.
        """
        shape = shape.fitted_to(config)
        self.class_weights = weights
        self.needs_pooler = shape.pooler
        self.takes_mean = shape.mean
        self.reads_first_token = not shape.mean
        self.hidden = HiddenLayers(shape, "", config.hidden_size, create)
        self.create_last(classes, config, create, has_bias=shape.bias)

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"logits": float32 [B, C]}."""
        read = self.read(bert, sequence_output, context)
        return {"logits": self.logits(read, self.weights, self.bias)}

    def read(
        self, bert: Any, sequence_output: tf.Tensor, context: Context
    ) -> tf.Tensor:
        """Computes the last layer's input: [B, T, D] -> float32 [B, D]."""
        read = sequence_output[:, 0]
        if self.needs_pooler:
            read = bert.pooled_output(sequence_output, context)
        if self.takes_mean:
            from adapter_bert.tasks.vector_form import unit_mean

            read = unit_mean(sequence_output, context.input_mask)
        read = dropout(read, 0.1, "head", context)
        return self.hidden(read, context)

    @staticmethod
    def logits(
        read: tf.Tensor, weights: tf.Tensor, bias: Optional[tf.Tensor]
    ) -> tf.Tensor:
        """Applies the last layer, [C, D] and [C] or None, to [B, D]."""
        logits = tf.matmul(read, weights, transpose_b=True)
        return logits if bias is None else logits + bias

    def loss(self, predictions, features):
        """Cross entropy in nats, float32 [B], times the class's weight."""
        losses = functional.cross_entropy(
            predictions["logits"], features["label_ids"]
        )
        if self.class_weights is None:
            return losses
        weights = tf.constant(self.class_weights, tf.float32)
        return losses * tf.gather(weights, features["label_ids"])

    def distillation_loss(
        self,
        predictions: Mapping[str, tf.Tensor],
        outputs: Mapping[str, tf.Tensor],
        temperature: float,
    ) -> tf.Tensor:
        """Computes the distance from another head's outputs, float32 [B].

        Here the cross entropy with its probabilities, both at a temperature,
        times the square of it, so that gradients keep their size. Arrays are
        float32 [B, ...]. Source: Hinton et al. 2015, section 2.
        """
        losses = tf.nn.softmax_cross_entropy_with_logits(
            labels=tf.nn.softmax(outputs["logits"] / temperature),
            logits=predictions["logits"] / temperature,
        )
        return losses * temperature**2


@dataclasses.dataclass(frozen=True)
class TextClassification(TextTask):
    """A classification task.

    `labels` are in the order of the logits, None for the training file's,
    sorted. `weighting` is the labels' weights in training by name, else 1, or
    `BALANCED`; `class_weights` are the resulting ones. `has_sets` tells whether
    a row has any number of labels.
    """

    labels: Optional[tuple[str, ...]] = None
    weighting: Union[None, str, Mapping[str, float]] = None
    class_weights: Optional[tuple[float, ...]] = None

    kind = kinds.KINDS[kinds.CLASSIFICATION]
    has_sets = False
    chooses_one = True
    scores_novelty = True

    def describe(self):
        labels = {"labels": list(self.labels)} if self.is_complete else {}
        return {**labels, **super().describe()}

    @property
    def is_complete(self):
        return self.labels is not None

    def complete(self, train):
        labels = self.labels_in(train)
        if len(labels) < 2:
            raise UserError(
                f"{train.path}: the column {self.labelled.label!r} holds only "
                f"the label {labels.pop()!r}, expected at least two labels"
            )
        from adapter_bert.data import hints

        hints.of_labels(labels, train.path)
        return self.with_labels(labels, train.path)

    def labels_in(self, rows: Rows) -> set[str]:
        labels = set(rows.label)
        if empty := [label for label in labels if not label.strip()]:
            where = rows.where(rows.label.index(empty[0]))
            raise UserError(f"{where}: the label is empty")
        return labels

    def with_labels(
        self, labels: Collection[str], path: str
    ) -> "TextClassification":
        for label in labels:
            if not is_one_cell(label):
                raise UserError(
                    f"{path}: the label {label[:80]!r} holds a tab or a line "
                    "break; is it the right column?"
                )
        warn_of_lookalikes(labels, path)
        return dataclasses.replace(self, labels=tuple(sorted(labels)))

    def restore(self, description, source):
        self.check_kind(description, source)
        trained = f"{source} was trained on the task {description['name']}"
        labels = description.get("labels")
        least = 1 if self.has_sets else 2
        if not isinstance(labels, list) or len(labels) < least:
            raise UserError(f"{trained}, without labels; not on {self.name}")
        labels = tuple(map(str, labels))
        if self.labels not in (None, labels):
            raise UserError(
                f"{trained} for the labels {list_labels(labels)}, but the "
                f"task {self.name} has {list_labels(self.labels)}"
            )
        return dataclasses.replace(
            super().restore(description, source), labels=labels
        )

    def check_label(self, label, where):
        if (spelling := spelled(label, self.labels)) is not None:
            return spelling
        raise UserError(
            f"{where}: unknown label {label!r}, expected one of "
            f"{list_labels(self.labels)}"
        )

    def label_features(self, labels):
        """`label_ids`, int32 [rows]: places among the logits."""
        numbers = self.numbers()
        return {"label_ids": np.array([numbers[x] for x in labels], np.int32)}

    def numbers(self) -> dict[str, int]:
        return {label: i for i, label in enumerate(self.labels)}

    def summarize(self, rows):
        if rows.label is None:
            return ""
        counts = collections.Counter(
            x for of in self.strata(rows) for x in of or ("(no label)",)
        )
        names = shown(counts)
        return ", ".join(
            f"{names[x]} {counts[x]:,} ({counts[x] / len(rows):.1%})"
            for x in (*self.labels, *sorted(set(counts) - {*self.labels}))
            if counts[x]
        )[:500]

    @property
    def result_columns(self):
        return self.labels

    def build_head(self, config, create):
        return ClassificationHead(
            len(self.labels), config, create, self.head, self.class_weights
        )

    def learn(self, rows):
        """Computes the classes' weights.

        Balanced weights are inverse to a label's frequency, with mean 1 over
        the rows, as in scikit-learn.
        """
        if self.weighting is None:
            return self
        counts = collections.Counter(rows.label)
        if self.weighting == BALANCED:
            # The weight of a label without rows is never used.
            weights = [
                len(rows) / (len(counts) * max(1, counts[label]))
                for label in self.labels
            ]
        else:
            weights_of = {
                self.check_label(label, "--class_weights"): weight
                for label, weight in self.weighting.items()
            }
            weights = [weights_of.get(label, 1.0) for label in self.labels]
        logging.info(
            "weights of the classes: %s",
            ", ".join(
                f"{label} {weight:.4g}"
                for label, weight in zip(shown(self.labels).values(), weights)
            ),
        )
        return dataclasses.replace(self, class_weights=tuple(weights))

    @property
    def training_settings(self):
        return {**super().training_settings, "class_weights": self.weighting}

    def compare(self, labels, predictions):
        logits = predictions["logits"].astype(np.float64)
        logits /= self.calibration.temperature
        right = labels["label_ids"]
        losses = metrics.cross_entropy(logits, right)
        return right, logits.argmax(axis=-1), losses

    def write_report(self, output_dir, rows, features, predictions, suffix=""):
        compared = self.compare(features.answer_labels, predictions)
        labels, chosen, losses = compared
        # Slow to load, and of no use to a run that only trains.
        from sklearn.metrics import confusion_matrix

        names = self.labels
        has = np.eye(len(names), dtype=bool)
        counts = confusion_matrix(labels, chosen, labels=range(len(names)))
        # Of 5,000 labels, all cells as texts would take gigabytes.
        confusion = itertools.chain(
            [("label", *names)],
            ((name, *map(str, row)) for name, row in zip(names, counts)),
        )
        texts = list(rows.texts)
        hardest = [
            ("line", "label", "predicted", "probability_of_label", "loss")
            + TEXT_COLUMNS[: 1 + (rows.text_b is not None)]
        ]
        hardest += [
            (
                str(rows.lines[row] + 1),
                names[labels[row]],
                names[chosen[row]],
                f"{np.exp(-losses[row]):.6f}",
                f"{losses[row]:.4f}",
                *map(cell, texts[row]),
            )
            for row in np.argsort(-losses, kind="stable")[:HARDEST]
        ]
        tables = {
            "eval_labels": self.label_table(has[labels], has[chosen]),
            "eval_confusion": confusion,
            "eval_hardest": hardest,
        }
        return tuple(
            write_table(results_path(output_dir, name, suffix), table)
            for name, table in tables.items()
        )

    def label_table(
        self, labels: np.ndarray, chosen: np.ndarray
    ) -> list[list[str]]:
        """Tabulates each label's scores, from bool [rows, C] of both labels."""
        table = ["label examples predicted precision recall f1".split()]
        counts = labels.sum(axis=0), chosen.sum(axis=0)
        scored = zip(
            self.labels, *counts, *metrics.label_scores(labels, chosen)
        )
        for label, count, times, *scores in scored:
            shares = (f"{score:.4f}" for score in scores)
            table.append([label, str(count), str(times), *shares])
        return table

    def results(self, predictions):
        logits = predictions["logits"].astype(np.float64)
        logits /= self.calibration.temperature
        return np.exp(metrics.log_softmax(logits))

    def answer(self, rows, predictions):
        least = self.calibration.abstain_below
        return [
            {
                "label": self.labels[place] if max(row) >= least else None,
                "probability": max(row),
                "scores": dict(zip(self.labels, row)),
            }
            for place, row in zip(
                predictions["logits"].argmax(axis=-1),
                self.results(predictions).tolist(),
            )
        ]

    @property
    def client_facts(self):
        return {"labels": list(self.labels), **self.calibration.client_facts}

    def runtime_outputs(self, outputs, rows):
        logits = outputs["logits"]
        if self.calibration.temperature != 1:
            logits /= self.calibration.temperature
        return {"scores": tf.nn.softmax(logits)}


def check_one_label(task: Task, flag: str) -> None:
    """Refuses a flag for a task whose rows have no or several labels."""
    if not isinstance(task, TextClassification) or task.has_sets:
        raise UserError(
            f"--{flag} is for tasks with one label for each row, which "
            f"{task.name} with these flags has not"
        )


def weigh_classes(task: Task, text: str) -> TextClassification:
    """Weighs classes in training: `BALANCED`, or JSON weights by label."""
    check_one_label(task, "class_weights")
    if text == BALANCED:
        return dataclasses.replace(task, weighting=text)
    with contextlib.suppress(ValueError, RecursionError):
        weights = json.loads(text)
        if isinstance(weights, dict) and all(
            type(weight) in (int, float) and 0 < weight <= FLOAT_MAX
            for weight in weights.values()
        ):
            return dataclasses.replace(task, weighting=weights)
    raise UserError(
        f"--class_weights is {text[:80]!r}, expected {BALANCED} or an object "
        'of positive numbers, as {"spam": 2.5}'
    )
