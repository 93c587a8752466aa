"""Tasks over tables of texts, or of pairs of texts; the shape of their heads.

Heads trained here have one matrix on BERT's pooled output. Heads of other
programs may have more layers, or read the first token itself.
"""

import abc
import dataclasses
import itertools
import json
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder, functional
from adapter_bert.bert.hooks import Context, dropout
from adapter_bert.data.input_pipeline import Texts
from adapter_bert.data.table_flags import is_one_cell
from adapter_bert.data.tables import (
    NONE_NAMED,
    READERS,
    Layout,
    Rows,
    SplitFiles,
    list_labels,
    read_rows,
)
from adapter_bert.data.tokenization import TextTokenizer, join_texts
from adapter_bert.errors import UserError
from adapter_bert.tasks import kinds
from adapter_bert.tasks.metrics import METRICS
from adapter_bert.tasks.task import SplitNames, Task, results_path, write_table

MAX_LAYERS = 16
# Rows whose answers are made together.
AT_ONCE = 16_384
# Name in an adapter's `task_settings`.
CALIBRATION = "calibration"


@dataclasses.dataclass(frozen=True)
class HeadShape:
    """Layers of a head; the defaults are BERT's own head."""

    # Dense layers, the last one included.
    layers: int = 1
    # Between them, a name of `functional.ACTIVATIONS`.
    activation: str = "tanh"
    # Whether the first layer reads BERT's pooled output; else it reads the
    # first token, or for questions every token.
    pooler: bool = True
    # Whether the last layer has one.
    bias: bool = True
    # Whether the first layer reads the mean over all tokens, of length 1.
    mean: bool = False

    def fitted_to(self, config: encoder.BertConfig) -> "HeadShape":
        """Adds a layer in place of a missing pooler, as transformers has it."""
        if config.has_pooler or not self.pooler:
            return self
        activation = config.head_activation or "tanh"
        if self.layers > 1 and self.activation != activation:
            raise UserError(
                f"a head of {self.layers} layers with {self.activation} reads "
                "a pooler, but this model has none, and its heads have a layer "
                f"with {activation} instead"
            )
        return dataclasses.replace(
            self, layers=self.layers + 1, activation=activation, pooler=False
        )

    def describe(self, usual: Optional["HeadShape"] = None) -> dict[str, Any]:
        """Describes a head unless it is the `usual` one, else BERT's own."""
        if self == (usual or POOLED):
            return {}
        described = dataclasses.asdict(self)
        if not self.mean:
            # As in descriptions of versions that did not know it.
            del described["mean"]
        return {"head": described}

    @classmethod
    def restore(
        cls,
        description: Mapping[str, Any],
        source: str,
        usual: Optional["HeadShape"] = None,
    ) -> "HeadShape":
        if "head" not in description:
            return usual or POOLED
        recorded = description["head"]
        default = dataclasses.asdict(cls())
        if (
            not isinstance(recorded, dict)
            or not set(recorded) <= set(default)
            or any(type(v) is not type(default[k]) for k, v in recorded.items())
            or not 1 <= recorded.get("layers", 1) <= MAX_LAYERS
        ):
            raise UserError(
                f"{source}: task.head is {recorded!r}, expected values like "
                f"{default}"
            )
        shape = cls(**recorded)
        functional.activation(shape.activation)
        return shape


# BERT's own heads of texts and of questions.
POOLED = HeadShape()
SPANS = HeadShape(pooler=False)


class HiddenLayers(tf.Module):
    """Layers of a head before its last: dense, activation, dropout.

    Parameters: (layers - 1) (D D + D). Source: AdapterHub's heads.
    """

    def __init__(
        self,
        shape: HeadShape,
        scope: str,
        hidden_size: int,
        create: encoder.CreateVariable,
    ):
        """Creates `<scope>hidden_weights_<i>` [D, D], `hidden_bias_<i>` [D]."""
        self.activation = functional.activation(shape.activation)
        size, initial, layers = hidden_size, encoder.truncated_normal(0.02), []
        for i in range(shape.layers - 1):
            weights = create(
                f"{scope}hidden_weights_{i}", (size, size), initial
            )
            bias = create(f"{scope}hidden_bias_{i}", (size,), encoder.zeros)
            layers.append((weights, bias))
        self.layers = layers

    def __call__(self, inputs: tf.Tensor, context: Context) -> tf.Tensor:
        """float32 [..., D] -> float32 [..., D]."""
        outputs = inputs
        for number, (weights, bias) in enumerate(self.layers):
            flat = tf.reshape(outputs, [-1, inputs.shape[-1]])
            flat = tf.matmul(flat, weights, transpose_b=True) + bias
            outputs = functional.shaped_as(self.activation(flat), inputs)
            outputs = dropout(outputs, 0.1, f"head/hidden_{number}", context)
        return outputs


def divide(
    rows: Rows,
    held_out: Any,
    texts: Iterable[Hashable],
    sets: Sequence[Sequence[Any]],
) -> dict[str, Rows]:
    """Divides a file into `train` and `dev`, by each row's text and labels."""
    is_dev = held_out.choose(texts, sets)
    if not is_dev.any():
        raise UserError(
            f"{rows.path}: of {len(rows)} rows --dev_share={held_out.share} "
            "takes none; pass a larger share, or more rows of a label"
        )
    for name, side in (("training", ~is_dev), ("dev", is_dev)):
        has = {x for of in itertools.compress(sets, side) for x in of}
        if lost := {*itertools.chain(*sets)} - has:
            logging.warning(
                "%s: of --dev_share's two parts, no %s row has the labels %s, "
                "which have too few rows",
                rows.path,
                name,
                list_labels(sorted(lost)),
            )
    return {"train": rows.take(~is_dev), "dev": rows.take(is_dev)}


# Names of a row's texts for any task.
TEXT_COLUMNS = ("text", "text_b")


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What an adapter keeps of dev rows; the defaults change nothing.

    Logits are divided by `temperature`; `abstain_below` is the least
    probability of an answer.
    """

    temperature: float = 1.0
    abstain_below: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        is_fitted = self != Calibration()
        return {CALIBRATION: dataclasses.asdict(self)} if is_fitted else {}

    @property
    def client_facts(self) -> dict[str, Any]:
        least = self.abstain_below
        return {"abstain_below": least} if least else {}


@dataclasses.dataclass(frozen=True)
class TextTask(Task[Rows]):
    """A task that reads a text, or a pair of texts.

    Attributes:
        labelled: layout of the training and dev files.
        unlabelled: of the test files; default: the same without labels.
        columns: names of a row's texts; default: those of `labelled`, or
            `TEXT_COLUMNS` where that has numbers.
        metrics: names of `metric_table`, the main one first.
        trained_as: the task whose heads serve this one, without training set.
        names_rows: whether predictions name rows for users, unlike GLUE's.
    """

    labelled: Layout
    unlabelled: Optional[Layout] = None
    columns: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    dev_splits: SplitNames = (("", "dev"),)
    test_splits: SplitNames = (("", "test"),)
    held_out: Optional[Any] = None
    trained_as: Optional[str] = None
    head: HeadShape = POOLED
    calibration: Calibration = Calibration()
    novelty: Optional[Any] = None
    names_rows: bool = False
    split_files: SplitFiles = NONE_NAMED
    window_stride: int = 0
    pool_windows: str = "mean"

    can_have_windows = True
    endings = READERS
    is_complete = True
    metric_table = METRICS

    def __post_init__(self):
        """Completes `columns` and `unlabelled`; ValueError if counts differ."""
        layout = self.labelled
        numbers = range(len(layout.choices))
        usual = (*TEXT_COLUMNS, *map("choice{}".format, numbers))
        places = layout.text_a, layout.text_b, *layout.choices
        derived = tuple(
            place if isinstance(place, str) else name
            for name, place in zip(usual, places)
            if place is not None
        )
        if len(self.columns or derived) != len(derived):
            raise ValueError(
                f"{self.name} has the columns {self.columns}, but its files "
                f"have {len(derived)} texts"
            )
        object.__setattr__(self, "columns", self.columns or derived)
        if self.unlabelled is None:
            layout = dataclasses.replace(layout, label=None)
            object.__setattr__(self, "unlabelled", layout)

    @abc.abstractmethod
    def check_label(self, label: str, where: str) -> str:
        """Spells the label as the task does."""

    @abc.abstractmethod
    def label_features(self, labels: Sequence[str]) -> dict[str, np.ndarray]:
        """Makes the head's feature of these labels, [rows]."""

    def units(self, rows: Rows) -> Iterable[Hashable]:
        """Gives what keeps rows together when they are divided."""
        return rows.texts

    def strata(self, rows: Rows) -> Sequence[Sequence[Any]]:
        return [(label,) for label in rows.label]

    def describe(self):
        description: dict[str, Any] = {
            "pairs": self.labelled.text_b is not None,
            **self.head.describe(),
        }
        if self.held_out:
            description["held_out"] = dataclasses.asdict(self.held_out)
        return description

    def check_kind(self, description: Mapping[str, Any], source: str) -> None:
        """Refuses an adapter of another kind of task."""
        described = self.describe()
        if description.get("kind") != described.get("kind") or any(
            bool(description.get(fact)) != bool(described.get(fact))
            for fact in kinds.BY_FACT
        ):
            raise UserError(
                f"{source} was trained on the task {description['name']}, of "
                f"the kind {kinds.kind_of(description)}; not on {self.name}, "
                f"of the kind {self.kind.name} (--regression, --multi_label "
                "and --choice_columns choose the kind of your own tables)"
            )

    def restore(self, description, source):
        trained = f"{source} was trained on the task {description['name']}"
        self.check_kind(description, source)
        self.check_held_out(description, source)
        # Other programs do not say it.
        pairs = description.get("pairs")
        if pairs not in (None, self.describe()["pairs"]):
            raise UserError(
                f"{trained}, with pairs: {pairs}; give it "
                "the same kind of input (--text_b_column)"
            )
        # The user's own files may well hold rows of a declared task.
        if "custom" not in (self.name, description["name"]) and (
            description["name"] not in (self.name, self.trained_as)
        ):
            raise UserError(f"{trained}, not on {self.name}")
        head = HeadShape.restore(description, source)
        return dataclasses.replace(self, head=head)

    @property
    def settings(self):
        settings: dict[str, Any] = {
            "columns": list(self.columns),
            **self.calibration.settings,
            **self._windows,
        }
        if self.novelty:
            settings["novelty"] = self.novelty.settings
        if self.names_rows:
            layout = self.labelled
            if layout.label_columns:
                settings["label_columns"] = list(layout.label_columns)
            else:
                settings["label_column"] = layout.label
            if not layout.header:
                texts = (layout.text_a, layout.text_b, *layout.choices)
                settings["column_numbers"] = [x for x in texts if x is not None]
        return settings

    @property
    def _windows(self) -> dict[str, Any]:
        if not self.window_stride:
            return {}
        names = "window_stride", "pool_windows"
        return {name: getattr(self, name) for name in names}

    @property
    def training_settings(self):
        return self._windows

    @property
    def reading(self):
        return "texts", self.window_stride

    @property
    def head_kind(self):
        return type(self), self.head

    @property
    def least_length(self):
        """Leaves room for a token of each text, and a pair's second `[SEP]`."""
        return 3 if self.labelled.text_b is None else 5

    def make_rows(self, texts):
        text_a, *others = map(list, zip(*texts))
        is_pair = len(others) > len(self.labelled.choices)
        text_b = others.pop(0) if is_pair else None
        lines = np.arange(len(texts))
        return Rows("", lines, text_a, text_b, choices=tuple(others))

    @property
    def score_names(self):
        return (*self.metrics, "loss")

    def complete(self, train: Rows) -> "TextTask":
        return self

    def read(self, data_dir, splits):
        rows: dict[str, Rows] = {}
        whole: Optional[Rows] = None
        if self.held_out and {"train", "dev"} & set(splits):
            whole = self._read(data_dir, "train")
            texts, strata = self.units(whole), self.strata(whole)
            rows = divide(whole, self.held_out, texts, strata)
        for split in splits:
            if split not in rows:
                rows[split] = self._read(data_dir, split)
        task = self
        if not self.is_complete:
            # All rows that have a label of several may have been held out.
            train = rows.get("train") if whole is None else whole
            if train is None:
                self.check_has_training_file(data_dir, "labels")
                path = self.split_files.find(data_dir, "train", self.endings)
                layout = dataclasses.replace(
                    self.labelled, text_a=None, text_b=None, choices=()
                )
                train = read_rows(path, layout)
            task = self.complete(train)
        return task, {split: task._check(rows[split]) for split in splits}

    def _read(self, data_dir: str, split: str) -> Rows:
        is_test = split in dict(self.test_splits).values()
        layout = self.unlabelled if is_test else self.labelled
        rows = read_rows(self.find(data_dir, split), layout)
        for row, row_id in enumerate(rows.row_id or ()):
            if row_id and not is_one_cell(row_id):
                raise UserError(
                    f"{rows.where(row)}: the row's id {row_id[:80]!r} holds a "
                    "tab or a line break; is it the right --id_column?"
                )
        # Each document of a list has its query's.
        if not layout.has_lists:
            rows.places_by_id()
        if self.names_rows:
            from adapter_bert.data import hints

            hints.of_rows(rows)
        return rows

    def _check(self, rows: Rows) -> Rows:
        if rows.label is None:
            return rows
        spellings: dict[str, str] = {}
        for row, label in enumerate(rows.label):
            if label not in spellings:
                spellings[label] = self.check_label(label, rows.where(row))
        return dataclasses.replace(
            rows, label=[spellings[x] for x in rows.label]
        )

    def featurize(self, rows: Rows, tokenizer: TextTokenizer, max_seq_length):
        """Makes `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, and labels."""
        labels = {}
        if rows.label is not None:
            labels = self.label_features(rows.label)
        if self.window_stride:
            from adapter_bert.tasks.long_texts import cut_windows

            about = tokenizer, max_seq_length, self.window_stride
            return cut_windows(rows, labels, *about)
        texts = rows.text_a, rows.text_b
        return Texts.from_rows(
            join_texts(*texts, tokenizer, max_seq_length), labels
        )

    def decode(self, rows, features, outputs):
        # Rows of other features are an answer each.
        if not (self.window_stride and len(features) > len(rows)):
            return outputs
        return {
            name: features.pool(values, self.pool_windows)
            for name, values in outputs.items()
        }

    def keep(self, rows: Rows):
        if rows.label is not None:
            return rows
        return Rows(rows.path, rows.lines, row_id=rows.row_id)

    @abc.abstractmethod
    def compare(
        self,
        labels: Mapping[str, np.ndarray],
        predictions: Mapping[str, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Turns `label_features` and `decode` into what metrics read.

        Labels and predictions are [rows, ...], losses float64 [rows] or [rows,
        C].
        """

    def evaluate(self, rows, features, predictions):
        labels = features.answer_labels
        right, predicted, losses = self.compare(labels, predictions)
        scores: dict[str, float] = {
            name: self.metric_table[name](right, predicted)
            for name in self.metrics
        }
        return {**scores, "loss": float(losses.mean())}

    def write_predictions(
        self,
        output_dir: str,
        rows: Rows,
        predictions: Mapping[str, np.ndarray],
        suffix: str = "",
    ):
        """Writes results as BERT does, and answers as GLUE takes them.

        `test_results.tsv`: `results`, no header; `test_results.json` names its
        columns. `test_predictions.tsv`: `index`, `prediction`; for the user's
        own files `id` and all of `cells`.
        """
        path = results_path(output_dir, "test_results", suffix)
        numbers = self.results(predictions)
        write_table(path, (map(str, row.tolist()) for row in numbers))
        shown = json.dumps(self.result_columns, ensure_ascii=False)
        logging.info("columns of %s, in order: %s", path, shown[:500])
        described = f"{os.path.splitext(path)[0]}.json"
        files.write_json(described, {"columns": list(self.result_columns)})
        table = results_path(output_dir, "test_predictions", suffix)
        lines = self._lines(rows, predictions)
        first = next(lines)
        cells = map(dict.values, itertools.chain([first], lines))
        write_table(table, itertools.chain([first], cells))
        return path, table

    def _lines(
        self, rows: Rows, predictions: Mapping[str, np.ndarray]
    ) -> Iterator[dict[str, str]]:
        names = rows.row_id or list(map(str, range(len(rows))))
        # Answers of all rows would take many times the memory of predictions.
        for start in range(0, len(rows), AT_ONCE):
            few = slice(start, start + AT_ONCE)
            part = {name: values[few] for name, values in predictions.items()}
            chosen = np.zeros(len(rows), bool)
            chosen[few] = True
            answers = self.answer(rows.take(chosen), part)
            for name, answer in zip(names[few], answers):
                cells = self.cells(answer)
                first = {
                    "index": name,
                    "prediction": next(iter(cells.values())),
                }
                yield {"id": name, **cells} if self.names_rows else first

    @property
    @abc.abstractmethod
    def result_columns(self) -> Sequence[str]:
        """Names of the columns of `results`, in order."""

    @abc.abstractmethod
    def results(self, predictions: Mapping[str, np.ndarray]) -> np.ndarray:
        """Probabilities or numbers, float64 [rows, C]."""

    def cells(self, answer: dict[str, Any]) -> dict[str, str]:
        """Lists an answer's cells in a table, the answer itself first."""
        label, probability, *_ = answer.values()
        shown = "" if label is None else str(label)
        return {"label": shown, "probability": str(probability)}
