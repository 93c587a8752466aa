"""Interface of a task: what it reads, learns, scores and writes."""

import abc
import dataclasses
import os
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Callable, Generic, TypeVar

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.bert.encoder import (
    BertConfig,
    CreateVariable,
    truncated_normal,
    zeros,
)
from adapter_bert.bert.hooks import Context
from adapter_bert.data.input_pipeline import (
    Features,
    Plan,
    TrainPlan,
    count_train_steps,
)
from adapter_bert.data.tables import NONE_NAMED
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError
from adapter_bert.methods.base import below
from adapter_bert.tasks import kinds

# The rows of a split as its file has them; they have a length.
RowsType = TypeVar("RowsType")
# Scores by name; fingerprints of rows by split.
ScoresAndData = tuple[dict[str, float], dict[str, str]]
# (suffix of the results' names, split) for each set of one kind.
SplitNames = tuple[tuple[str, str], ...]


def scoped(task: str, name: str) -> str:
    """Names a variable or feature of one task among several."""
    return f"tasks.{task}/{name}"


def unscoped(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Selects a task's own values, by its own names; see `scoped`."""
    return below(scoped(task, ""), values)


class Head(tf.Module, abc.ABC):
    """Layers on BERT's output that compute a task's predictions and loss."""

    # Whether it reads BERT's pooled output.
    needs_pooler = True
    # Whether it reads only the pooled output or the first token.
    reads_first_token = False
    # Names of a batch's features that `__call__` is given by keyword.
    reads: tuple[str, ...] = ()
    # Names of its variables that do not decay.
    undecayed: tuple[str, ...] = ()
    # Names of the two sides of a row, its first text and its others, if BERT
    # reads each with trained values of its own. The head's variables exist
    # once.
    sides: tuple[str, ...] = ()

    def create_last(
        self,
        outputs: int,
        config: BertConfig,
        create: CreateVariable,
        scope: str = "",
        has_bias: bool = True,
    ) -> None:
        """Creates `<scope>output_weights` [n, D] and `output_bias` [n]."""
        shape = outputs, config.hidden_size
        name = f"{scope}output_weights"
        self.weights = create(name, shape, truncated_normal(0.02))
        self.bias = None
        if has_bias:
            self.bias = create(f"{scope}output_bias", shape[:1], zeros)

    @abc.abstractmethod
    def __call__(
        self,
        bert: Any,
        sequence_output: tf.Tensor,
        context: Context,
        **read: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Computes predictions, arrays [B, ...] by name.

        `sequence_output` is float32 [B, T, D]; `bert`, an `encoder.Bert`, has
        the pooler and variables; the features of `reads`, [B, ...], come by
        keyword.
        """

    def select(self, predictions: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Chooses the predictions that evaluation and answers need."""
        return predictions

    @abc.abstractmethod
    def loss(
        self, predictions: Mapping[str, tf.Tensor], features: Mapping
    ) -> tf.Tensor:
        """Computes the loss of each row, float32 [B]."""


# Features that a step adds for a `BatchHead`: the losses of the rows, float32
# [B], and their gradient by the vectors, float32 [B, C, D].
ROW_LOSSES, VECTOR_GRADIENTS = "row_losses", "vector_gradients"


class BatchHead(Head):
    """A head whose loss compares the vectors of all rows of a batch.

    Predictions are `vectors`, float32 [B C, D] of C texts of each row, or of
    two sides [B, C, D]; `width` is D. A step computes those of all rows,
    wherever they are, and the gradient of `batch_loss` by them. Then it
    computes each part of the rows again, with a loss that has that gradient. So
    memory grows with the part. Source: Gao et al. 2021, "Scaling Deep
    Contrastive Learning Batch Size under Memory Limited Setup", section 3.
    """

    width: int
    # Names of the features that `batch_loss` reads.
    compares: tuple[str, ...]

    @abc.abstractmethod
    def batch_loss(
        self, vectors: tf.Tensor, features: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        """Computes the losses of all rows, float32 [B], whose mean is learned.

        `vectors` are float32 [B, C, D], `features` those of `compares`.
        """

    def loss(self, predictions, features):
        gradients = features[VECTOR_GRADIENTS]
        vectors = tf.reshape(predictions["vectors"], tf.shape(gradients))
        # Adds nothing but the gradient.
        change = (vectors - tf.stop_gradient(vectors)) * gradients
        return features[ROW_LOSSES] + tf.reduce_sum(change, axis=[1, 2])


class Reading(abc.ABC, Generic[RowsType]):
    """What a task reads: its files, rows and features."""

    # `SplitNames` of the dev sets and of the test sets.
    dev_splits = (("", "dev"),)
    test_splits = (("", "test"),)
    # Whether both are one file, which is predicted once for both.
    test_is_dev = False
    # Whether a text may also be a list of words.
    takes_tokens = False
    # The last texts of a row, of which it chooses one.
    choice_count = 0
    # Entries of the column of second texts, and what is read in their place.
    questions: tuple[tuple[str, str], ...] = ()
    # Whether a row's tokens are the same in every step.
    rows_are_fixed = True
    # Flag of the length at which a row is cut.
    cut_at = "max_seq_length"
    # Files of splits that the user named one by one.
    split_files = NONE_NAMED
    # The part of the training file that is the dev set, if any.
    held_out = None
    # Names of a row's texts, in order.
    columns = ("text",)
    # The task whose heads serve this one, which has no training set.
    trained_as = None
    # Texts before first texts, and before all others.
    prompts: tuple[str, ...] = ()
    # Whether its texts may be read in windows, and tokens between these; 0
    # cuts texts off.
    can_have_windows = False
    window_stride = 0
    # Equal for tasks that make equal features of equal texts; None is shared
    # with no other task.
    reading = None

    # Endings of names of the files that `find` finds.
    endings: Collection[str] = ()

    def check_files(self, data_dir: str, splits: Sequence[str]) -> None:
        """Looks for the files of splits, before any long step; see `read`."""
        for split in splits if self.endings else ():
            self.find(data_dir, split)

    def find(self, data_dir: str, split: str) -> str:
        """Finds the file of a split."""
        if self.trained_as and split == "train":
            raise UserError(
                f"the task {self.name} has no training set; train "
                f"{self.trained_as} and pass that as --init_checkpoint"
            )
        return self.split_files.find(
            data_dir, split, self.endings, self.held_out
        )

    @property
    def train_file(self) -> str:
        return self.split_files.train

    def check_has_training_file(self, data_dir: str, what: str) -> None:
        if not data_dir and not self.train_file:
            raise UserError(
                f"the {what} of the task {self.name} come from its data: pass "
                "--train_file or --data_dir, or the --adapter of a trained one"
            )

    @abc.abstractmethod
    def read(
        self, data_dir: str, splits: Sequence[str]
    ) -> tuple["Task", dict[str, RowsType]]:
        """Reads splits, each file once; without splits, only labels.

        `data_dir` is a folder, or "" where the user named the files. Returns
        this task, completed from its data, and each split's rows.
        """

    def first(self, rows: RowsType, count: int) -> RowsType:
        return rows.first(count)

    def check_texts(self, texts: Sequence[str], where: str) -> None:
        return

    def make_rows(self, texts: Sequence[tuple[str, ...]]) -> RowsType:
        """Makes rows without labels, of equally many texts each.

        Where `takes_tokens`, a text may be a tuple of words.
        """
        raise NotImplementedError

    @property
    def least_length(self) -> int:
        """Least `--max_seq_length`: room for `[CLS]`, a token, `[SEP]`."""
        return 3

    @abc.abstractmethod
    def featurize(
        self, rows: RowsType, tokenizer: TextTokenizer, max_seq_length: int
    ) -> Features:
        """Tokenizes rows, each to at most `max_seq_length` tokens."""

    def keep(self, rows: RowsType) -> RowsType:
        """Keeps the part of rows that is needed once features are made."""
        return rows

    def summarize(self, rows: RowsType) -> str:
        """Describes a split for the log, next to its size; or ""."""
        return ""


class Learning(abc.ABC):
    """What a task learns: its head, its batches, what a training keeps."""

    # Whether the head is a `BatchHead`.
    compares_rows = False

    def learn(self, rows: RowsType) -> "Task":
        """Adds statistics of the training rows, as class weights."""
        return self

    def go_on(self, description: Mapping[str, Any], source: str) -> "Task":
        """Adds what an unfinished run's `learn` found."""
        return self

    def fit_base(self, opened: Any) -> "Task":
        """Adds what a BERT's own files (`Pretrained`) say of it."""
        return self

    def fit_tokenizer(self, tokenizer: Any, max_seq_length: int) -> "Task":
        """Adds what depends on how its texts become tokens."""
        return self

    def begin_head(self, base: Any) -> Any:
        """Turns `checkpoints/weights.py` weights into ones for this head."""
        return base

    def begin_from(self, trained: Any) -> Any:
        """Turns trained weights into ones for this head."""
        return trained

    @property
    def training_settings(self) -> dict[str, Any]:
        """Settings of the task's training, as JSON values."""
        return {}

    @abc.abstractmethod
    def build_head(self, config: BertConfig, create: CreateVariable) -> Head:
        """Creates the head's variables."""

    @property
    def head_kind(self) -> Hashable:
        """Equal for heads that compute alike if their variables are alike."""
        return type(self)

    def count_train_steps(
        self, features: Features, batch_size: int, epochs: float
    ) -> int:
        if not len(features):
            path = self.train_file or "the training file"
            raise UserError(f"{path} holds nothing to learn from")
        return count_train_steps(len(features), batch_size, epochs)

    def plan(
        self,
        features: Features,
        batch_size: int,
        num_steps: int,
        seed: int,
        pool_batches: int,
    ) -> Plan:
        """Chooses the rows of every training batch; see `TrainPlan`."""
        return TrainPlan(
            features.lengths, batch_size, num_steps, seed, pool_batches
        )

    @property
    def members(self) -> dict[str, "Task"]:
        """Tasks that are learned, by their folders within the run's."""
        return {"": self}

    @property
    def trained_together(self) -> tuple[str, ...]:
        """Names of several tasks that are learned at once; else none."""
        return ()

    def values_of(
        self, folder: str, values: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Selects the trained values of one of `members`, by its own names."""
        if not self.trained_together:
            return dict(values)
        scopes = tuple(scoped(name, "") for name in self.trained_together)
        shared = {n: v for n, v in values.items() if not n.startswith(scopes)}
        return {**shared, **unscoped(os.path.basename(folder), values)}


class Answering(abc.ABC, Generic[RowsType]):
    """What a task answers, and how answers are scored and written."""

    kind: kinds.Kind
    # Whether a trained adapter answers texts.
    answers_texts = True
    # Whether it answers with the likeliest of several labels or choices.
    chooses_one = False
    # Whether an answer may have a novelty, and the sketch that tells it.
    scores_novelty = False
    novelty = None

    def decode(
        self,
        rows: RowsType,
        features: Features,
        outputs: Mapping[str, np.ndarray],
    ) -> Any:
        """Turns outputs into predictions, as the methods below take them.

        `rows` are as `keep` left them; `outputs` are the head's, [rows of the
        features, ...], all finite.
        """
        return outputs

    @property
    @abc.abstractmethod
    def score_names(self) -> tuple[str, ...]:
        """Names of the scores of `evaluate`, the main one first."""

    @property
    def dev_score_names(self) -> tuple[str, ...]:
        return tuple(
            with_suffix(name, suffix)
            for suffix, _ in self.dev_splits
            for name in self.score_names
        )

    @abc.abstractmethod
    def evaluate(
        self, rows: RowsType, features: Features, predictions: Any
    ) -> dict[str, float]:
        """Scores labelled rows: `score_names`, and `loss` in nats if any."""

    def score_tables(
        self, scores: Mapping[str, Mapping[str, float]], data: Mapping[str, str]
    ) -> dict[str, ScoresAndData]:
        """Makes the contents of `eval_results.json`, by folder of `members`.

        `scores` are `evaluate`'s by the dev set's suffix, `data` the
        fingerprints of the dev rows by split.
        """
        named = {
            with_suffix(name, suffix): value
            for suffix, measured in scores.items()
            for name, value in measured.items()
        }
        return {"": (named, dict(data))}

    def write_report(
        self,
        output_dir: str,
        rows: RowsType,
        features: Features,
        predictions: Any,
        suffix: str = "",
    ) -> tuple[str, ...]:
        """Writes tables about an evaluation, and returns their paths."""
        return ()

    def answer(self, rows: RowsType, predictions: Any) -> list[dict[str, Any]]:
        """Makes a JSON object for each row."""
        raise NotImplementedError

    @property
    def client_facts(self) -> dict[str, Any]:
        """Tells what clients must know of the answers, as JSON values."""
        return {}

    def runtime_outputs(
        self, outputs: Mapping[str, tf.Tensor], rows: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Turns a head's outputs of int32 [] rows into `kind.runtime`'s."""
        raise NotImplementedError

    def write_predictions(
        self,
        output_dir: str,
        rows: RowsType,
        predictions: Any,
        suffix: str = "",
    ) -> tuple[str, ...]:
        """Writes the predictions of a test set."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Task(Reading[RowsType], Learning, Answering[RowsType]):
    """Declares a task: what it reads, learns and answers.

    A run reads all splits that it needs. Then it makes the features of each
    split, and keeps of the rows, which may be large, only what `keep` returns.
    """

    # Lower-case, as `--task_name` takes it.
    name: str

    @classmethod
    def from_settings(
        cls,
        recorded: Callable[[type], dict[str, Any]],
        settings: Mapping[str, Any],
        source: str,
    ) -> "Task":
        """Makes the task that a trained head's `settings` describe.

        `recorded` reads those that a dataclass declares, by its fields.
        """
        return cls(**recorded(cls))

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Lists facts that a trained head depends on, as JSON values.

        Facts that are not yet read from the task's data are left out.
        """

    def describe_named(self) -> dict[str, Any]:
        """Describes the task, its name first, as `restore` takes it."""
        return {"name": self.name, **self.describe()}

    def restore(self, description: Mapping[str, Any], source: str) -> "Task":
        """Completes this task with a trained head's description.

        `description` is the trained task's name and `describe()`.
        """
        self.check_name(description, source)
        return self

    def check_name(self, description: Mapping[str, Any], source: str) -> None:
        if description["name"] != self.name:
            raise UserError(
                f"{source} was trained on the task {description['name']}, not "
                f"on {self.name}"
            )

    def check_held_out(
        self, description: Mapping[str, Any], source: str
    ) -> None:
        if not self.held_out:
            return
        trained = f"{source} was trained on the task {description['name']}"
        before = description.get("held_out")
        if not before:
            logging.warning(
                "%s without --dev_share: if it was on this training file, it "
                "has seen the rows that are held out now",
                trained,
            )
        elif before != dataclasses.asdict(self.held_out):
            raise UserError(
                f"{trained} with --dev_share={before['share']} "
                f"--split_seed={before['seed']}; pass the same, since another "
                "choice would hold rows that it was trained on"
            )

    def with_fitted(self, settings: Mapping[str, Any], source: str) -> "Task":
        """Adds what `settings`, as of `restore_task`, have of dev rows."""
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """Describes how rows are read and answered, as JSON values.

        A trained head also works with other settings (`restore_task`).
        """
        return {}


def with_values(weights: Any, values: Mapping[str, np.ndarray]) -> Any:
    """Adds tensors to `Weights`, or puts them in the place of others."""
    shapes = {name: value.shape for name, value in values.items()}
    read = weights.read
    return dataclasses.replace(
        weights,
        shapes={**weights.shapes, **shapes},
        read=lambda name: values[name] if name in values else read(name),
    )


def has_numbers(
    recorded: Any, names: Iterable[str], least: float, most: float
) -> bool:
    """Tells whether JSON is an object with a number for each name."""
    return (
        isinstance(recorded, dict)
        and sorted(recorded) == sorted(names)
        and all(
            type(number) in (int, float) and least <= number <= most
            for number in recorded.values()
        )
    )


def with_suffix(name: str, suffix: str) -> str:
    """Names a split's result, as `accuracy_mismatched`."""
    return f"{name}_{suffix}" if suffix else name


def results_path(output_dir: str, name: str, suffix: str) -> str:
    """Names a table of results, as `test_results_mismatched.tsv`."""
    return os.path.join(output_dir, f"{with_suffix(name, suffix)}.tsv")


def cell(text: str) -> str:
    """Makes a text for `write_table`: a space for each tab and line break."""
    return " ".join(text.split())


def write_table(path: str, rows: Iterable[Iterable[str]]) -> str:
    """Writes rows of cells without tabs and line breaks; returns `path`."""
    files.write_text(path, "".join("\t".join(row) + "\n" for row in rows))
    return path
