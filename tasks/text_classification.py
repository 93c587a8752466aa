"""Classification of a text, or of a pair of texts, from TSV files."""

import dataclasses
import os
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

import files
import metrics
import modeling
from errors import UserError
from hooks import dropout
from input_pipeline import Features
from tasks.base import Head, Task
from tokenization import FullTokenizer

# Texts that are tokenized at once: enough for all cores, bounded in memory.
CHUNK = 4096


@dataclasses.dataclass(frozen=True)
class Example:
    """One row.

    Attributes:
        guid: `<split>-<line>`, the line counted from 0.
        text_a: the text.
        text_b: the second text of a pair, or None.
        label: one of the task's labels, or None in a test set.
    """

    guid: str
    text_a: str
    text_b: Optional[str] = None
    label: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a TSV file keeps what; columns by number from 0 or by name.

    Attributes:
        text_a: column of the text.
        text_b: column of the second text, or None.
        label: column of the label, or None for a file without labels.
        header: whether the first line holds the columns' names.
    """

    text_a: Union[int, str]
    text_b: Union[int, str, None] = None
    label: Union[int, str, None] = None
    header: bool = True


def read_rows(path: str, layout: Layout) -> List[Tuple[int, List[str]]]:
    """Reads the layout's columns (text_a, text_b, label, those it has).

    Quotation marks are ordinary characters, as in the GLUE files. Empty lines
    at the end are passed over, except in a file of one column, where they are
    empty texts.

    Returns:
        (line number from 0, the columns' texts) for each row.

    Raises:
        UserError: the file is missing, not UTF-8 or empty, lacks a named
            column, or has a row with too few columns.
    """
    lines = files.read_text(path, "the data file").split("\n")
    if not lines[-1]:
        lines.pop()
    while lines and "\t" in lines[0] and not lines[-1].strip("\r"):
        lines.pop()
    if not lines:
        raise UserError(f"{path} is empty")
    columns = [
        column
        for column in (layout.text_a, layout.text_b, layout.label)
        if column is not None
    ]
    if any(isinstance(column, str) for column in columns):
        names = lines[0].rstrip("\r").split("\t")
        for column in columns:
            if isinstance(column, str) and column not in names:
                raise UserError(
                    f"{path}:1: no column is named {column!r}; the header "
                    f"names {', '.join(names)[:200]}"
                )
        columns = [
            names.index(column) if isinstance(column, str) else column
            for column in columns
        ]
    rows = []
    for number, line in enumerate(lines):
        if number == 0 and layout.header:
            continue
        cells = line.rstrip("\r").split("\t")
        if len(cells) <= max(columns):
            raise UserError(
                f"{path}:{number + 1}: found {len(cells)} tab-separated "
                f"columns, expected at least {max(columns) + 1}"
            )
        rows.append((number, [cells[column] for column in columns]))
    if not rows:
        raise UserError(f"{path} holds no rows")
    return rows


class ClassificationHead(Head):
    """Logits from the pooled first token.

    Parameters: C D + C. Source: google-research/bert, `run_classifier.py`,
    `create_model`.
    """

    def __init__(self, classes, config, create):
        """Creates `output_weights` [C, D] and `output_bias` [C]."""
        self.weights = create(
            "output_weights",
            (classes, config.hidden_size),
            modeling.truncated_normal(0.02),
        )
        self.bias = create("output_bias", (classes,), modeling.zeros)

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"logits": float32 [B, C]}."""
        pooled = bert.pooled_output(sequence_output, context)
        pooled = dropout(pooled, 0.1, "head", context)
        logits = tf.matmul(pooled, self.weights, transpose_b=True) + self.bias
        return {"logits": logits}

    def loss(self, predictions, features):
        """Cross entropy in nats, float32 [B]."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=features["label_ids"], logits=predictions["logits"]
        )


@dataclasses.dataclass(frozen=True)
class TextClassification(Task[Example]):
    """A classification task.

    Attributes:
        labels: the classes, in the order of the logits; None to take those
            that the training file holds, sorted.
        labelled: layout of `train.tsv` and `dev.tsv`.
        unlabelled: layout of `test.tsv`.
        metrics: names of `metrics.METRICS`, the main one first.
    """

    labels: Optional[Tuple[str, ...]]
    labelled: Layout
    unlabelled: Layout
    metrics: Tuple[str, ...] = ("accuracy",)

    def describe(self):
        """The labels, in the logits' order, and whether texts are pairs."""
        return {
            "labels": list(self.labels or ()),
            "pairs": self.labelled.text_b is not None,
        }

    @property
    def is_complete(self):
        """Whether the labels are known."""
        return self.labels is not None

    def complete(self, data_dir):
        """This task, with labels from its training file if it has none."""
        if self.is_complete:
            return self
        path = os.path.join(data_dir, "train.tsv")
        found = {row[-1] for _, row in read_rows(path, self.labelled)}
        if len(found) < 2:
            raise UserError(
                f"{path}: the column {self.labelled.label!r} holds only the "
                f"label {found.pop()!r}, expected at least two labels"
            )
        return dataclasses.replace(self, labels=tuple(sorted(found)))

    def restore(self, description, source):
        """This task, with the labels of a trained head."""
        trained = f"{source} was trained on the task {description['name']}"
        labels = description.get("labels")
        if not isinstance(labels, list) or len(labels) < 2:
            raise UserError(f"{trained}, without labels; not on {self.name}")
        labels = tuple(map(str, labels))
        if self.labels not in (None, labels):
            raise UserError(
                f"{trained} for the labels {', '.join(labels)[:200]}, but the "
                f"task {self.name} has {', '.join(self.labels)[:200]}"
            )
        restored = dataclasses.replace(self, labels=labels)
        if description.get("pairs") != restored.describe()["pairs"]:
            raise UserError(
                f"{trained}, with pairs: {description.get('pairs')}; give it "
                "the same kind of input (--text_b_column)"
            )
        # The user's own files may well hold rows of a declared task.
        if "custom" not in (self.name, description["name"]) and (
            self.name != description["name"]
        ):
            raise UserError(f"{trained}, not on {self.name}")
        return restored

    def examples(self, data_dir, split):
        """Reads `<data_dir>/<split>.tsv`."""
        path = os.path.join(data_dir, f"{split}.tsv")
        layout = self.unlabelled if split == "test" else self.labelled
        known = set(self.labels)
        examples = []
        for number, cells in read_rows(path, layout):
            label = cells.pop() if layout.label is not None else None
            if label is not None and label not in known:
                raise UserError(
                    f"{path}:{number + 1}: unknown label {label!r}, expected "
                    f"one of {', '.join(self.labels)[:200]}"
                )
            text_b = cells[1] if layout.text_b is not None else None
            examples.append(
                Example(f"{split}-{number}", cells[0], text_b, label)
            )
        return examples

    def featurize(self, examples, tokenizer: FullTokenizer, max_seq_length):
        """`[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, and `label_ids`."""
        rows = []
        for first in range(0, len(examples), CHUNK):
            chunk = examples[first : first + CHUNK]
            texts_a = tokenizer.encode([e.text_a for e in chunk])
            texts_b = tokenizer.encode([e.text_b or "" for e in chunk])
            for example, a, b in zip(chunk, texts_a, texts_b):
                pair = None if example.text_b is None else b.ids
                rows.append(make_row(a.ids, pair, tokenizer, max_seq_length))
        labels = {}
        if examples and examples[0].label is not None:
            numbers = {label: i for i, label in enumerate(self.labels)}
            labels["label_ids"] = np.array(
                [numbers[e.label] for e in examples], np.int32
            )
        return Features.from_rows(rows, labels)

    def build_head(self, config, create):
        """One logit for each label."""
        return ClassificationHead(len(self.labels), config, create)

    def evaluate(self, examples, features, predictions):
        """Cross entropy and the task's metrics."""
        logits, labels = predictions["logits"], features.labels["label_ids"]
        chosen = logits.argmax(axis=-1)
        scores: Dict[str, float] = {
            name: metrics.METRICS[name](labels, chosen) for name in self.metrics
        }
        scores["loss"] = float(metrics.cross_entropy(logits, labels).mean())
        return scores

    def write_predictions(
        self,
        output_dir: str,
        examples: Sequence[Example],
        predictions: Mapping[str, np.ndarray],
    ):
        """Writes probabilities as BERT does, and label words as GLUE takes.

        `test_results.tsv`: a row of C probabilities for each example, no
        header. `test_predictions.tsv`: `index`, `prediction` with a header.
        """
        logits = predictions["logits"]
        probabilities = np.exp(metrics.log_softmax(logits))
        results = os.path.join(output_dir, "test_results.tsv")
        files.write_text(
            results,
            "".join(
                "\t".join(str(p) for p in row) + "\n"
                for row in probabilities.tolist()
            ),
        )
        words = os.path.join(output_dir, "test_predictions.tsv")
        files.write_text(
            words,
            "index\tprediction\n"
            + "".join(
                f"{i}\t{self.labels[choice]}\n"
                for i, choice in enumerate(logits.argmax(axis=-1))
            ),
        )
        return results, words


def make_row(
    a: List[int],
    b: Optional[List[int]],
    tokenizer: FullTokenizer,
    max_seq_length: int,
) -> Tuple[List[int], List[int]]:
    """Adds special tokens, cutting the longer text of a pair first.

    Returns:
        (tokens, segments) of at most `max_seq_length` entries.

    Source: google-research/bert, `run_classifier.py`,
    `convert_single_example` and `_truncate_seq_pair`.
    """
    start, end = [tokenizer.classify_id], [tokenizer.separate_id]
    if b is None:
        tokens = start + a[: max_seq_length - 2] + end
        return tokens, [0] * len(tokens)
    room = max_seq_length - 3
    # While both exceed half of the room they are cut in turn, b first.
    len_a, len_b = len(a), len(b)
    if len_a + len_b > room:
        len_a = min(len_a, max(room - len_b, room - room // 2))
        len_b = room - len_a
    tokens = start + a[:len_a] + end + b[:len_b] + end
    return tokens, [0] * (len_a + 2) + [1] * (len_b + 1)
