"""Tasks over tables of texts, or of pairs of texts."""

import abc
import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from absl import logging

import files
from errors import UserError
from input_pipeline import Features
from tasks.base import Splits, Task, results_path
from tasks.table_files import Layout, find_table, read_rows
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
        label: as the file has it, or None in a test set.
        row_id: what names the row for its user, or None.
    """

    guid: str
    text_a: str
    text_b: Optional[str] = None
    label: Optional[str] = None
    row_id: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A part of the training file that serves as the dev set.

    Attributes:
        share: of the rows, between 0 and 1.
        seed: of their choice.
    """

    share: float
    seed: int

    def choose(self, labels: Sequence[Any]) -> np.ndarray:
        """Which rows are held out, bool [N]: the share of each label's rows.

        A label with a single row stays in the training set.

        Args:
            labels: N, of the rows.
        """
        chosen = np.zeros(len(labels), bool)
        rng = np.random.default_rng(self.seed)
        places: Dict[Any, List[int]] = {}
        for place, label in enumerate(labels):
            places.setdefault(label, []).append(place)
        for label in sorted(places):
            own = rng.permutation(places[label])
            count = round(self.share * len(own))
            chosen[own[: min(count, len(own) - 1)]] = True
        return chosen


@dataclasses.dataclass(frozen=True)
class TextTask(Task[Example]):
    """A task that reads a text, or a pair of texts.

    Attributes:
        labelled: layout of the training and dev files.
        unlabelled: layout of the test files.
        metrics: names of `metrics.METRICS`, the main one first.
        dev_splits: (suffix of its results, split) of each dev file.
        test_splits: the same of each test file.
        held_out: what of the training file is the dev set, or None where
            that is a file of its own.
        trained_as: the task whose heads serve this one too, itself without a
            training set; or None.
        names_rows: whether predictions are for the user's own eyes, with what
            names a row, instead of GLUE's.
    """

    labelled: Layout
    unlabelled: Layout
    metrics: Tuple[str, ...] = ("accuracy",)
    dev_splits: Splits = (("", "dev"),)
    test_splits: Splits = (("", "test"),)
    held_out: Optional[HeldOut] = None
    trained_as: Optional[str] = None
    names_rows: bool = False

    @abc.abstractmethod
    def check_label(self, label: str, where: str) -> None:
        """Checks a label as a file has it.

        Raises:
            UserError: it is none; the message opens with `where`.
        """

    @abc.abstractmethod
    def label_features(self, labels: Sequence[str]) -> Dict[str, np.ndarray]:
        """The head's feature of these labels, [rows]."""

    def held_out_groups(self, labels: Sequence[str]) -> Sequence[Any]:
        """By what the held-out share is taken equally: the labels."""
        return labels

    def describe(self):
        """Whether texts are pairs, and which rows were held out."""
        description: Dict[str, Any] = {
            "pairs": self.labelled.text_b is not None
        }
        if self.held_out:
            description["held_out"] = dataclasses.asdict(self.held_out)
        return description

    def restore(self, description, source):
        """This task, if the head was trained on it."""
        trained = f"{source} was trained on the task {description['name']}"
        before = description.get("held_out")
        if before and self.held_out and before != self.describe()["held_out"]:
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
        if description.get("pairs") != self.describe()["pairs"]:
            raise UserError(
                f"{trained}, with pairs: {description.get('pairs')}; give it "
                "the same kind of input (--text_b_column)"
            )
        # The user's own files may well hold rows of a declared task.
        if "custom" not in (self.name, description["name"]) and (
            description["name"] not in (self.name, self.trained_as)
        ):
            raise UserError(f"{trained}, not on {self.name}")
        return self

    def examples(self, data_dir, split):
        """Reads `<data_dir>/<split>.tsv`, `.csv` or `.jsonl`."""
        if self.trained_as and split == "train":
            raise UserError(
                f"the task {self.name} has no training set; train "
                f"{self.trained_as} and pass that as --init_checkpoint"
            )
        if self.held_out and split in ("train", "dev"):
            return self._held_out_examples(data_dir, split)
        return self._read(find_table(data_dir, split), split)

    def _held_out_examples(self, data_dir: str, split: str) -> List[Example]:
        """The rows of the training file that belong to a split."""
        path = find_table(data_dir, "dev")
        if files.exists(path):
            raise UserError(
                f"{path} is there, so no part of the training file is needed "
                "as dev set; leave out --dev_share"
            )
        path = find_table(data_dir, "train")
        examples = self._read(path, "train")
        held_out = self.held_out.choose(
            self.held_out_groups([example.label for example in examples])
        )
        if not held_out.any():
            raise UserError(
                f"{path}: of {len(examples)} rows --dev_share="
                f"{self.held_out.share} takes none; pass a larger share, or "
                "more rows of a label"
            )
        return [
            example
            for example, chosen in zip(examples, held_out)
            if chosen == (split == "dev")
        ]

    def _read(self, path: str, split: str) -> List[Example]:
        """Reads the examples of a file."""
        unlabelled = split in dict(self.test_splits).values()
        layout = self.unlabelled if unlabelled else self.labelled
        examples = []
        for number, cells in read_rows(path, layout):
            where = f"{path}:{number + 1}"
            rest = iter(cells)
            text_a = next(rest)
            text_b = None if layout.text_b is None else next(rest)
            label = None if layout.label is None else next(rest)
            row_id = None if layout.row_id is None else next(rest)
            if label is not None:
                self.check_label(label, where)
            if row_id and row_id.splitlines() != [row_id]:
                raise UserError(f"{where}: the row's id holds a line break")
            examples.append(
                Example(f"{split}-{number}", text_a, text_b, label, row_id)
            )
        return examples

    def featurize(self, examples, tokenizer: FullTokenizer, max_seq_length):
        """`[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, and the labels."""
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
            labels = self.label_features([e.label for e in examples])
        return Features.from_rows(rows, labels)

    def write_predictions(
        self,
        output_dir: str,
        examples: Sequence[Example],
        predictions: Mapping[str, np.ndarray],
        suffix: str = "",
    ):
        """Writes numbers as BERT does, and answers as GLUE takes them.

        `test_results.tsv`: the head's numbers for each example, no header.
        `test_predictions.tsv`: `index`, `prediction` with a header; for the
        user's own files `id`, `label` and, of classes, `probability`.
        """
        numbers, answers = self.answers(predictions)
        results = results_path(output_dir, "test_results", suffix)
        _write_table(results, (map(str, row) for row in numbers.tolist()))
        table = results_path(output_dir, "test_predictions", suffix)
        names = [
            str(place) if example.row_id is None else example.row_id
            for place, example in enumerate(examples)
        ]
        if not self.names_rows:
            rows = [("index", "prediction"), *zip(names, answers)]
        elif numbers.shape[1] == 1:
            rows = [("id", "label"), *zip(names, answers)]
        else:
            sure = map(str, numbers.max(axis=1).tolist())
            rows = [
                ("id", "label", "probability"),
                *zip(names, answers, sure),
            ]
        _write_table(table, rows)
        return results, table

    @abc.abstractmethod
    def answers(
        self, predictions: Mapping[str, np.ndarray]
    ) -> Tuple[np.ndarray, List[str]]:
        """What to write of predictions.

        Returns:
            float64 [rows, C], probabilities or one number; [rows] answers.
        """


def _write_table(path: str, rows: Any) -> None:
    """Writes rows of texts, tabs within them as spaces."""
    lines = ("\t".join(c.replace("\t", " ") for c in row) for row in rows)
    files.write_text(path, "".join(f"{line}\n" for line in lines))


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
