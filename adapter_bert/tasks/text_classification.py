"""Classification of a text, or of a pair of texts."""

import collections
import contextlib
import dataclasses
import json
from typing import (
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Tuple,
    Union,
)

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert.bert.hooks import dropout
from adapter_bert.data.tables import (
    Rows,
    is_one_cell,
    list_labels,
    shown,
    warn_of_lookalikes,
)
from adapter_bert.errors import UserError
from adapter_bert.tasks import metrics
from adapter_bert.tasks.task import Head, Task, results_path
from adapter_bert.tasks.text_task import (
    POOLED,
    TEXT_COLUMNS,
    HiddenLayers,
    TextTask,
    write_table,
)

# `TextClassification.weighting` by how common labels are.
BALANCED = "balanced"
# The greatest weight.
FLOAT_MAX = float(np.finfo(np.float32).max)
# Rows of `eval_hardest.tsv`.
HARDEST = 50


class ClassificationHead(Head):
    """Logits from the first token, pooled if nothing else is said.

    Parameters: C D + C, and those of `HiddenLayers`. Source:
    google-research/bert, `run_classifier.py`, `create_model`.
    """

    reads_first_token = True

    def __init__(self, classes, config, create, shape=POOLED, weights=None):
        """Creates `output_weights` [C, D] and `output_bias` [C].

        Args:
            classes: C.
            config: of the BERT.
            create: makes variables.
            shape: its layers. A RoBERTa has no pooler: there the head has a
                layer more.
            weights: C floats, by which the loss of a class's rows is
                multiplied, or None.
        """
        shape = shape.upon(config)
        self.class_weights = weights
        self.needs_pooler = shape.pooler
        self.hidden = HiddenLayers(shape, "", config.hidden_size, create)
        self.create_last(classes, config, create, has_bias=shape.bias)

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
        """Cross entropy in nats, float32 [B], times the class's weight."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=features["label_ids"], logits=predictions["logits"]
        )
        if self.class_weights is None:
            return losses
        weights = tf.constant(self.class_weights, tf.float32)
        return losses * tf.gather(weights, features["label_ids"])


@dataclasses.dataclass(frozen=True)
class TextClassification(TextTask):
    """A classification task.

    Attributes:
        labels: the classes, in the order of the logits; None to take those
            that the training file holds, sorted.
        weighting: weights of the labels in training by name, of all others 1;
            or `BALANCED`; or None.
        class_weights: what that comes to, in the order of the logits.
        has_sets: whether a row has any number of labels.
        least_labels: how many labels there must be.
    """

    labels: Optional[Tuple[str, ...]] = None
    weighting: Union[None, str, Mapping[str, float]] = None
    class_weights: Optional[Tuple[float, ...]] = None

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
            if not is_one_cell(label):
                raise UserError(
                    f"{path}: the label {label[:80]!r} holds a tab or a line "
                    "break; is it the right column?"
                )
        warn_of_lookalikes(found, path)
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
                f"{trained} for the labels {list_labels(labels)}, but the "
                f"task {self.name} has {list_labels(self.labels)}"
            )
        return dataclasses.replace(
            super().restore(description, source), labels=labels
        )

    def check_label(self, label, where):
        """It must be one of the labels."""
        if label not in self.labels:
            raise UserError(
                f"{where}: unknown label {label!r}, expected one of "
                f"{list_labels(self.labels)}"
            )

    def spelling(self, label, where):
        """Of JSON's `true` and a table's `True` the one that is a label."""
        if label in self.labels or label.lower() not in ("true", "false"):
            return label
        own = [x for x in self.labels if x.lower() == label.lower()]
        return own[0] if len(own) == 1 else label

    def numbers(self) -> Dict[str, int]:
        """The place of each label among the logits."""
        return {label: i for i, label in enumerate(self.labels)}

    def label_features(self, labels):
        """`label_ids`, int32 [rows]: what `numbers` gives."""
        numbers = self.numbers()
        return {
            "label_ids": np.array([numbers[label] for label in labels], "int32")
        }

    def summarize(self, rows):
        """How many rows each label has, in the order of the columns."""
        return self._shares(rows.label or (), len(rows))

    def _shares(self, labels: Iterable[str], count: int) -> str:
        """How many of some rows have each of their labels."""
        counts = collections.Counter(labels)
        names = shown(counts)
        return ", ".join(
            f"{names[label]} {counts[label]:,} ({counts[label] / count:.1%})"
            for label in (*self.labels, *sorted(set(counts) - {*self.labels}))
            if counts[label]
        )[:500]

    @property
    def result_columns(self):
        """The labels."""
        return self.labels

    def build_head(self, config, create):
        """One logit for each label."""
        return ClassificationHead(
            len(self.labels), config, create, self.head, self.class_weights
        )

    def learn(self, rows):
        """This task, with its classes' weights.

        Balanced ones are inverse to how common a label is, and 1 on the
        average of the rows, as scikit-learn has them.
        """
        if self.weighting is None:
            return self
        counts = collections.Counter(rows.label)
        if self.weighting == BALANCED:
            # A label that no row has is never weighed.
            weights = [
                len(rows) / (len(counts) * max(1, counts[label]))
                for label in self.labels
            ]
        else:
            for label in self.weighting:
                if label not in self.labels:
                    raise UserError(
                        f"--class_weights names the label {label!r}, expected "
                        f"one of {list_labels(self.labels)}"
                    )
            weights = [self.weighting.get(label, 1.0) for label in self.labels]
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
        """How classes are weighed."""
        return {"class_weights": self.weighting}

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
        """Writes how each label did, and which rows were hardest.

        `eval_labels.tsv` has precision, recall and F1 of each label;
        `eval_confusion.tsv` the number of rows of each label that were given
        each label; `eval_hardest.tsv` the rows with the greatest losses.
        """
        labels, logits = features.labels["label_ids"], predictions["logits"]
        chosen = logits.argmax(axis=-1)
        # Slow to load, and of no use to a run that only trains.
        from sklearn.metrics import confusion_matrix

        has = np.eye(len(self.labels), dtype=bool)
        counted = confusion_matrix(
            labels, chosen, labels=range(len(self.labels))
        )
        confusion = [("label", *self.labels)]
        for label, counts in zip(self.labels, counted):
            confusion.append((label, *map(str, counts)))
        tables = {
            "eval_labels": self.label_table(has[labels], has[chosen]),
            "eval_confusion": confusion,
            "eval_hardest": self._hardest(rows, labels, logits),
        }
        paths = []
        for name, table in tables.items():
            paths.append(results_path(output_dir, name, suffix))
            write_table(paths[-1], table)
        return tuple(paths)

    def _hardest(
        self, rows: Rows, labels: np.ndarray, logits: np.ndarray
    ) -> List[Tuple[str, ...]]:
        """The rows with the greatest losses; int [rows], float32 [rows, C]."""
        losses = metrics.cross_entropy(logits, labels)
        table = [
            ("line", "label", "predicted", "probability_of_label", "loss")
            + TEXT_COLUMNS[: 1 + (rows.text_b is not None)]
        ]
        for row in np.argsort(-losses, kind="stable")[:HARDEST]:
            texts = [x[row] for x in (rows.text_a, rows.text_b) if x]
            table.append(
                (
                    str(rows.lines[row] + 1),
                    self.labels[labels[row]],
                    self.labels[logits[row].argmax()],
                    f"{np.exp(-losses[row]):.6f}",
                    f"{losses[row]:.4f}",
                    # A cell holds no tab and no line break.
                    *(" ".join(text.split()) for text in texts),
                )
            )
        return table

    def label_table(
        self, labels: np.ndarray, chosen: np.ndarray
    ) -> List[Tuple[str, ...]]:
        """A table of each label's precision, recall and F1.

        Args:
            labels: bool [rows, C], which labels a row has.
            chosen: bool [rows, C], which it was given.
        """
        table = [
            ("label", "examples", "predicted", "precision", "recall", "f1")
        ]
        for label, count, times, *scores in zip(
            self.labels,
            labels.sum(axis=0),
            chosen.sum(axis=0),
            *metrics.label_scores(labels, chosen),
        ):
            shown = (f"{score:.4f}" for score in scores)
            table.append((label, str(count), str(times), *shown))
        return table

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


def weigh_classes(task: Task, text: str) -> TextClassification:
    """A task whose classes are weighed in training.

    Args:
        task: of classification.
        text: `BALANCED`, or a JSON object of weights by label.

    Raises:
        UserError: the task has no classes, or the text says something else.
    """
    if not isinstance(task, TextClassification) or task.has_sets:
        raise UserError(
            "--class_weights is for tasks with one label for each row, which "
            f"{task.name} with these flags has not"
        )
    if text == BALANCED:
        return dataclasses.replace(task, weighting=text)
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict) and all(
            type(weight) in (int, float) and 0 < weight <= FLOAT_MAX
            for weight in found.values()
        ):
            return dataclasses.replace(task, weighting=found)
    raise UserError(
        f"--class_weights is {text[:80]!r}, expected {BALANCED} or an object "
        'of positive numbers, as {"spam": 2.5}'
    )
