"""Tasks over tables of texts, or of pairs of texts; the shape of their heads.

Heads trained here have one matrix on BERT's pooled output. Heads of other
programs may have more layers, or read the first token itself.
"""

import abc
import collections
import dataclasses
import itertools
import json
import os
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder, functional
from adapter_bert.bert.hooks import Context, dropout
from adapter_bert.data.input_pipeline import Texts
from adapter_bert.data.tables import (
    NONE_NAMED,
    READERS,
    HeldOut,
    Layout,
    Rows,
    SplitFiles,
    list_labels,
    read_rows,
)
from adapter_bert.data.tokenization import TextTokenizer, in_chunks
from adapter_bert.errors import UserError
from adapter_bert.tasks.metrics import METRICS
from adapter_bert.tasks.task import SplitNames, Task, results_path

MAX_LAYERS = 16


@dataclasses.dataclass(frozen=True)
class HeadShape:
    """The layers of a head; the defaults are BERT's own head.

    Attributes:
        layers: dense layers, the last one included.
        activation: between them, a name of `functional.ACTIVATIONS`.
        pooler: whether the first layer reads BERT's pooled output; else it
            reads the first token, or for questions every token.
        bias: whether the last layer has one.
    """

    layers: int = 1
    activation: str = "tanh"
    pooler: bool = True
    bias: bool = True

    def upon(self, config: encoder.BertConfig) -> "HeadShape":
        """The shape on a model: a new layer replaces a missing pooler.

        Source: transformers, `RobertaClassificationHead`.

        Raises:
            UserError: there is no pooler, and no layer can replace it.
        """
        if config.has_pooler or not self.pooler:
            return self
        if self.layers > 1 and self.activation != "tanh":
            raise UserError(
                f"a head of {self.layers} layers with {self.activation} reads "
                "a pooler, but this RoBERTa has none"
            )
        return dataclasses.replace(
            self, layers=self.layers + 1, activation="tanh", pooler=False
        )

    def describe(self) -> Dict[str, Any]:
        """`head` of a task's description, unless it is the default."""
        return {} if self == POOLED else {"head": dataclasses.asdict(self)}

    @classmethod
    def restore(
        cls, description: Mapping[str, Any], source: str
    ) -> "HeadShape":
        """Reads `head` of a task's description.

        Raises:
            UserError: it is no shape; the message opens with `source`.
        """
        found = description.get("head", {})
        default = dataclasses.asdict(cls())
        if (
            not isinstance(found, dict)
            or not set(found) <= set(default)
            or any(type(v) is not type(default[k]) for k, v in found.items())
            or not 1 <= found.get("layers", 1) <= MAX_LAYERS
        ):
            raise UserError(
                f"{source}: task.head is {found!r}, expected values like "
                f"{default}"
            )
        shape = cls(**found)
        functional.activation(shape.activation)
        return shape


# BERT's own heads of texts and of questions.
POOLED = HeadShape()
SPANS = HeadShape(pooler=False)


class HiddenLayers(tf.Module):
    """The layers of a head before its last: dense, activation, dropout.

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
        self.layers = [
            (
                create(
                    f"{scope}hidden_weights_{i}",
                    (hidden_size, hidden_size),
                    encoder.truncated_normal(0.02),
                ),
                create(
                    f"{scope}hidden_bias_{i}", (hidden_size,), encoder.zeros
                ),
            )
            for i in range(shape.layers - 1)
        ]

    def __call__(self, inputs: tf.Tensor, context: Context) -> tf.Tensor:
        """float32 [..., D] -> float32 [..., D]."""
        outputs = inputs
        for number, (weights, bias) in enumerate(self.layers):
            flat = tf.reshape(outputs, [-1, inputs.shape[-1]])
            flat = tf.matmul(flat, weights, transpose_b=True) + bias
            outputs = tf.reshape(self.activation(flat), tf.shape(inputs))
            outputs.set_shape(inputs.shape)
            outputs = dropout(outputs, 0.1, f"head/hidden_{number}", context)
        return outputs


# Names of a row's texts for any task.
TEXT_COLUMNS = ("text", "text_b")


@dataclasses.dataclass(frozen=True)
class TextTask(Task[Rows]):
    """A task that reads a text, or a pair of texts.

    Attributes:
        labelled: layout of the training and dev files.
        unlabelled: layout of the test files; default: the same without labels.
        columns: names of a row's texts; default: those of `labelled`, or
            `TEXT_COLUMNS` where that has numbers.
        metrics: names of `metric_table`, the main one first.
        held_out: the part of the training file that is the dev set, or None
            where that is a file of its own.
        trained_as: the task whose heads serve this one too, itself without a
            training set; or None.
        head: the layers of the head.
        names_rows: whether predictions are for the user's own eyes, with what
            names a row, instead of GLUE's.
        split_files: files of splits that were named one by one.
        is_complete: whether nothing has still to be read from the task's data.
        metric_table: functions of (labels, predictions) by name.
    """

    labelled: Layout
    unlabelled: Optional[Layout] = None
    columns: Tuple[str, ...] = ()
    metrics: Tuple[str, ...] = ("accuracy",)
    dev_splits: SplitNames = (("", "dev"),)
    test_splits: SplitNames = (("", "test"),)
    held_out: Optional[HeldOut] = None
    trained_as: Optional[str] = None
    head: HeadShape = POOLED
    names_rows: bool = False
    split_files: SplitFiles = NONE_NAMED

    reading = "texts"
    is_complete = True
    metric_table = METRICS

    def __post_init__(self):
        """Completes `columns` and `unlabelled`.

        Raises:
            ValueError: `columns` has more or fewer than `labelled`.
        """
        layout = self.labelled
        texts = zip(TEXT_COLUMNS, (layout.text_a, layout.text_b))
        choices = enumerate(layout.choices)
        derived = tuple(
            place if isinstance(place, str) else usual
            for usual, place in (
                *texts,
                *((f"choice{number}", place) for number, place in choices),
            )
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
        """The task's own spelling of a label that a file has.

        Raises:
            UserError: the label is none; the message opens with `where`.
        """

    @abc.abstractmethod
    def label_features(self, labels: Sequence[str]) -> Dict[str, np.ndarray]:
        """The head's feature of these labels, [rows]."""

    def strata(self, rows: Rows) -> Sequence[Sequence[Any]]:
        """The labels of each row, which both parts of a split should have.

        Raises:
            UserError: a row's labels are malformed.
        """
        return [(label,) for label in rows.label]

    def describe(self):
        """Whether texts are pairs, which rows were held out, the head."""
        description: Dict[str, Any] = {
            "pairs": self.labelled.text_b is not None,
            **self.head.describe(),
        }
        if self.held_out:
            description["held_out"] = dataclasses.asdict(self.held_out)
        return description

    def restore(self, description, source):
        trained = f"{source} was trained on the task {description['name']}"
        own, before = self.describe(), description.get("held_out")
        if before and self.held_out and before != own["held_out"]:
            raise UserError(
                f"{trained} with --dev_share={before['share']} "
                f"--split_seed={before['seed']}; pass the same, since another "
                "choice would hold rows that it was trained on"
            )
        if self.held_out and not before:
            logging.warning(
                "%s without --dev_share: if it was on this training file, it "
                "has seen the rows that are held out now",
                trained,
            )
        # Other programs do not say it.
        pairs = description.get("pairs")
        if pairs not in (None, own["pairs"]):
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
        """The columns of the user's own tables.

        `column_numbers` has their numbers in files without a header.
        """
        settings: Dict[str, Any] = {"columns": list(self.columns)}
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
    def head_kind(self):
        return type(self), self.head

    @property
    def least_length(self):
        """For a pair, room for a token of each text and a second `[SEP]`."""
        return 3 if self.labelled.text_b is None else 5

    def make_rows(self, texts):
        text_a, *text_b = map(list, zip(*texts))
        return Rows(
            "", np.arange(len(texts)), text_a, text_b[0] if text_b else None
        )

    @property
    def score_names(self):
        return (*self.metrics, "loss")

    def first(self, rows: Rows, count: int):
        return rows.take(np.arange(len(rows)) < count)

    def complete(self, train: Rows) -> "TextTask":
        """This task, completed from the training rows.

        Raises:
            UserError: the rows cannot be used.
        """
        return self

    @property
    def train_file(self):
        """As `split_files` names it."""
        return self.split_files.train

    def check_files(self, data_dir, splits):
        for split in splits:
            self._find(data_dir, split)

    def read(self, data_dir, splits):
        """Reads the files that were named, or files of the folder.

        The latter are `<data_dir>/<split>.tsv`, `.csv` or `.jsonl`.
        """
        rows: Dict[str, Rows] = {}
        whole: Optional[Rows] = None
        if self.held_out and {"train", "dev"} & set(splits):
            whole = self._read(data_dir, "train")
            rows = self._divide(whole)
        for split in splits:
            if split not in rows:
                rows[split] = self._read(data_dir, split)
        task = self
        if not self.is_complete:
            # All rows that have a label of several may have been held out.
            train = rows.get("train") if whole is None else whole
            if train is None:
                train = self._read_labels(data_dir)
            task = self.complete(train)
        return task, {split: task._check(rows[split]) for split in splits}

    def _read_labels(self, data_dir: str) -> Rows:
        """The labels of the training file, without its texts."""
        if not data_dir and not self.train_file:
            raise UserError(
                f"the labels of the task {self.name} come from its data: pass "
                "--train_file or --data_dir, or the --adapter of a trained one"
            )
        path = self.split_files.find(data_dir, "train", READERS)
        return read_rows(path, self.labelled.labels_only())

    def _check(self, rows: Rows) -> Rows:
        """Checks rows, and gives their labels the task's own spelling."""
        if rows.label is None:
            return rows
        own: Dict[str, str] = {}
        for row, label in enumerate(rows.label):
            if label not in own:
                own[label] = self.check_label(label, rows.where(row))
        return dataclasses.replace(rows, label=[own[x] for x in rows.label])

    def _divide(self, rows: Rows) -> Dict[str, Rows]:
        """Both parts of the training file, neither of them empty.

        Rows are held out by the rarest label of each, so that rare ones are
        divided too. Source: Sechidis et al. 2011, section 3, its first step.
        """
        sets = self.strata(rows)
        counts = collections.Counter(label for of in sets for label in of)
        rarest = [
            min(of, key=lambda x: (counts[x], x), default="") for of in sets
        ]
        held_out = self.held_out.choose(rarest, sets)
        if not held_out.any():
            raise UserError(
                f"{rows.path}: of {len(rows)} rows --dev_share="
                f"{self.held_out.share} takes none; pass a larger share, or "
                "more rows of a label"
            )
        for name, side in (("training", ~held_out), ("dev", held_out)):
            has = {x for of in itertools.compress(sets, side) for x in of}
            if lost := set(counts) - has:
                logging.warning(
                    "%s: of --dev_share's two parts, no %s row has the labels "
                    "%s, which have too few rows",
                    rows.path,
                    name,
                    list_labels(sorted(lost)),
                )
        return {"train": rows.take(~held_out), "dev": rows.take(held_out)}

    def _find(self, data_dir: str, split: str) -> str:
        """The file of a split, which may be a part of the training file."""
        if self.held_out and split in ("train", "dev"):
            found = self.split_files.found(data_dir, "dev", READERS)
            if found:
                raise UserError(
                    f"{found[0]} is there, so no part of the training file is "
                    "needed as dev set; leave out --dev_share"
                )
            split = "train"
        if self.trained_as and split == "train":
            raise UserError(
                f"the task {self.name} has no training set; train "
                f"{self.trained_as} and pass that as --init_checkpoint"
            )
        return self.split_files.find(data_dir, split, READERS)

    def _read(self, data_dir: str, split: str) -> Rows:
        """Reads the rows of a file."""
        unlabelled = split in dict(self.test_splits).values()
        layout = self.unlabelled if unlabelled else self.labelled
        rows = read_rows(self._find(data_dir, split), layout)
        _check_ids(rows)
        return rows

    def featurize(self, rows: Rows, tokenizer: TextTokenizer, max_seq_length):
        """`[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, and the labels."""
        labels = {}
        if rows.label is not None:
            labels = self.label_features(rows.label)
        return Texts.from_texts(
            _make_rows(rows, tokenizer, max_seq_length), labels
        )

    def keep(self, rows: Rows):
        """Labelled rows; of a test set, which may be large, the rows' names."""
        if rows.label is not None:
            return rows
        return dataclasses.replace(
            rows, text_a=None, text_b=None, label=None, choices=()
        )

    @abc.abstractmethod
    def compare(
        self,
        labels: Mapping[str, np.ndarray],
        predictions: Mapping[str, np.ndarray],
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labels and predictions as metrics read them, and losses.

        Args:
            labels: of `label_features`.
            predictions: of `decode`.

        Returns:
            Labels [rows, ...]; predictions of the same shape; losses in
            float64, [rows] or [rows, C].
        """

    def evaluate(self, rows, features, predictions):
        right, given, losses = self.compare(features.labels, predictions)
        scores: Dict[str, float] = {
            name: self.metric_table[name](right, given) for name in self.metrics
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

        `test_results.tsv`: `results`, no header; `test_results.json` names the
        columns. `test_predictions.tsv`: `index`, `prediction` with a header;
        for the user's own files `id` and all of `cells`.
        """
        path = results_path(output_dir, "test_results", suffix)
        numbers = self.results(predictions).tolist()
        write_table(path, (map(str, row) for row in numbers))
        shown = json.dumps(self.result_columns, ensure_ascii=False)
        logging.info("columns of %s, in order: %s", path, shown[:500])
        described = f"{os.path.splitext(path)[0]}.json"
        files.write_json(described, {"columns": list(self.result_columns)})
        names = rows.row_id or map(str, range(len(rows)))
        lines = []
        for name, answer in zip(names, self.answer(rows, predictions)):
            cells = self.cells(answer)
            first = {"index": name, "prediction": next(iter(cells.values()))}
            lines.append({"id": name, **cells} if self.names_rows else first)
        table = results_path(output_dir, "test_predictions", suffix)
        write_table(table, [lines[0], *map(dict.values, lines)])
        return path, table

    @property
    @abc.abstractmethod
    def result_columns(self) -> Sequence[str]:
        """Names of the columns of `results`, in order."""

    @abc.abstractmethod
    def results(self, predictions: Mapping[str, np.ndarray]) -> np.ndarray:
        """Probabilities or numbers, float64 [rows, C]."""

    def cells(self, answer: Dict[str, Any]) -> Dict[str, str]:
        """The cells of an answer in a table, the answer itself first."""
        chosen = next(iter(answer.values()))
        return {
            "label": str(chosen),
            "probability": str(answer["probability"]),
        }


def write_table(path: str, rows: Iterable[Iterable[str]]) -> str:
    """Writes rows of cells without tabs and line breaks; returns `path`."""
    files.write_text(path, "".join("\t".join(row) + "\n" for row in rows))
    return path


def _check_ids(rows: Rows) -> None:
    """Refuses ids that cannot name a row, or that name two."""
    places: Dict[str, int] = {}
    for row, row_id in enumerate(rows.row_id or ()):
        if row_id and ("\t" in row_id or row_id.splitlines() != [row_id]):
            raise UserError(
                f"{rows.where(row)}: the row's id {row_id[:80]!r} holds a tab "
                "or a line break; is it the right --id_column?"
            )
        first = places.setdefault(row_id, row)
        if first != row:
            raise UserError(
                f"{rows.where(row)}: the id {row_id[:80]!r} is also that of "
                f"line {rows.lines[first] + 1}; ids must be unique"
            )


def _make_rows(
    rows: Rows, tokenizer: TextTokenizer, max_seq_length: int
) -> Iterator[Tuple[List[int], List[int], bool]]:
    """Tokens and segments of each row, and whether it was cut."""
    texts_a = in_chunks(tokenizer.encode_ids, rows.text_a)
    texts_b: Iterator[Optional[List[int]]] = itertools.repeat(None)
    if rows.text_b is not None:
        texts_b = in_chunks(tokenizer.encode_ids, rows.text_b)
    for a, b in zip(texts_a, texts_b):
        added = 2 if b is None else 2 + len(tokenizer.between)
        is_cut = len(a) + len(b or ()) + added > max_seq_length
        yield *make_row(a, b, tokenizer, max_seq_length), is_cut


def fit(len_a: int, len_b: int, room: int) -> Tuple[int, int]:
    """Tokens of a pair's texts that are read, the longer text cut first.

    While both exceed half of the room they are cut in turn, b first.
    """
    if len_a + len_b > room:
        len_a = min(len_a, max(room - len_b, room - room // 2))
        len_b = room - len_a
    return len_a, len_b


def make_row(
    a: List[int],
    b: Optional[List[int]],
    tokenizer: TextTokenizer,
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
    between = tokenizer.between
    len_a, len_b = fit(len(a), len(b), max_seq_length - 2 - len(between))
    tokens = start + a[:len_a] + between + b[:len_b] + end
    return tokens, [0] * (len_a + 1 + len(between)) + [
        tokenizer.second_segment
    ] * (len_b + 1)
