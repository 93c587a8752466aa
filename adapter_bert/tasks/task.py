"""What every task offers to the rest of the program."""

import abc
import dataclasses
import os
from typing import (
    Any,
    Dict,
    Generic,
    Hashable,
    List,
    Mapping,
    Sequence,
    Tuple,
    TypeVar,
)

import numpy as np
import tensorflow as tf

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
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError

# The rows of a split as its file has them; they have a length.
RowsType = TypeVar("RowsType")
# Scores by name; fingerprints of rows by split.
ScoresAndData = Tuple[Dict[str, float], Dict[str, str]]
# (suffix of the results' names, split) for each set of one kind.
SplitNames = Tuple[Tuple[str, str], ...]


class Head(tf.Module, abc.ABC):
    """What a task computes from BERT's output.

    Attributes:
        needs_pooler: whether it reads BERT's pooled output.
        reads_first_token: whether it reads nothing but that, or the first
            token of the sequence.
        reads: names of what else it reads of a batch, and is given by
            keyword; of what is there in prediction as well as in training.
    """

    needs_pooler = True
    reads_first_token = False
    # Tuple[str, ...]
    reads = ()

    def create_last(
        self,
        outputs: int,
        config: BertConfig,
        create: CreateVariable,
        scope: str = "",
        has_bias: bool = True,
    ) -> None:
        """Sets `weights` [outputs, D] and `bias` [outputs], or None.

        They are called `<scope>output_weights` and `<scope>output_bias`.
        """
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
    ) -> Dict[str, tf.Tensor]:
        """Computes predictions.

        Args:
            bert: the `modeling.Bert`, for its pooler and its variables.
            sequence_output: float32 [B, T, D].
            context: of this forward pass.
            **read: what `reads` names, [B, ...].

        Returns:
            Arrays [B, ...] by name.
        """

    def select(self, predictions: Dict[str, tf.Tensor]) -> Dict[str, tf.Tensor]:
        """What is kept of predictions where nothing is trained: here, all."""
        return predictions

    @abc.abstractmethod
    def loss(
        self, predictions: Mapping[str, tf.Tensor], features: Mapping
    ) -> tf.Tensor:
        """The loss of each row, float32 [B], from the labels in `features`."""


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC, Generic[RowsType]):
    """One frozen declaration of what is learned and how it is scored.

    A run reads all splits that it needs, then makes each one's features and
    keeps of its rows what it will still need, as these may be large.

    Attributes:
        name: lower-case, as `--task_name` takes it.
        dev_splits: (suffix of the results' names, split) of each dev set.
        test_splits: the same of each test set.
        columns: names of the texts that a row has, in order.
        test_is_dev: whether both sets are one file, which is then predicted
            once for evaluation and prediction.
        takes_tokens: whether instead of a text it reads a list of words, too.
        answers_texts: whether a trained one answers texts.
        rows_are_fixed: whether a row's tokens are the same in every step.
        cut_at: flag of the length at which a row is cut.
    """

    name: str

    # Both are `SplitNames`.
    dev_splits = (("", "dev"),)
    test_splits = (("", "test"),)
    test_is_dev = False
    takes_tokens = False
    answers_texts = True
    rows_are_fixed = True
    cut_at = "max_seq_length"
    # Tuple[str, ...]
    columns = ()

    @abc.abstractmethod
    def describe(self) -> Dict[str, Any]:
        """What a trained head depends on, as JSON values (labels, ...).

        What has still to be read from the task's data is left out.
        """

    @abc.abstractmethod
    def restore(self, description: Mapping[str, Any], source: str) -> "Task":
        """This task, as a trained head knows it.

        Args:
            description: name and `describe()` of the task that was trained.
            source: file of the head, for the error's text.

        Raises:
            UserError: the head is of another task.
        """

    def check_name(self, description: Mapping[str, Any], source: str) -> None:
        """Checks that a trained head is of this task; arguments of `restore`.

        Raises:
            UserError: the head is of another task.
        """
        if description["name"] != self.name:
            raise UserError(
                f"{source} was trained on the task {description['name']}, not "
                f"on {self.name}"
            )

    @property
    def named_train_file(self) -> str:
        """Path of the training file where the user named it; else ""."""
        return ""

    def check_files(self, data_dir: str, splits: Sequence[str]) -> None:
        """Looks for the files of splits, before anything takes long.

        What is not looked for here is found when it is read.

        Args:
            data_dir: as of `read`.
            splits: the same.

        Raises:
            UserError: one is missing, or there are two of one split.
        """
        return

    @abc.abstractmethod
    def read(
        self, data_dir: str, splits: Sequence[str]
    ) -> Tuple["Task", Dict[str, RowsType]]:
        """Reads splits, each file once.

        Args:
            data_dir: folder of the files, or "" where the user named them.
            splits: `train`, dev and test splits; none to read only what
                completes the task.

        Returns:
            This task, with what it takes from its data (labels); the splits'
            rows, in the order of `splits`.

        Raises:
            UserError: a file is missing or empty, or a row is malformed; the
                message names file, line and expectation.
        """

    def first(self, rows: RowsType, count: int) -> RowsType:
        """The first rows, at most `count`."""
        return rows[:count]

    def learn(self, rows: RowsType) -> "Task":
        """This task, with what it takes from the rows that it is trained on.

        Raises:
            UserError: the rows do not fit what was asked for.
        """
        return self

    def go_on(self, description: Mapping[str, Any], source: str) -> "Task":
        """This task, as a run's folder has it, whose training it goes on with.

        Args:
            description: as of `restore`.
            source: file of the run, for the error's text.

        Raises:
            UserError: it is damaged.
        """
        return self

    def begin_head(self, base: Any) -> Any:
        """A pretrained model (`checkpoints/weights.py`) for this task's head.

        Where it has a head, that is as this task's begins.
        """
        return base

    @property
    def training_settings(self) -> Dict[str, Any]:
        """What of its training the task itself decides, as JSON values."""
        return {}

    @property
    @abc.abstractmethod
    def score_names(self) -> Tuple[str, ...]:
        """Names of what `evaluate` gives of any labelled rows, main first."""

    @property
    def dev_score_names(self) -> Tuple[str, ...]:
        """Names of the scores of all dev sets, the main one first."""
        return tuple(
            with_suffix(name, suffix)
            for suffix, _ in self.dev_splits
            for name in self.score_names
        )

    @property
    def members(self) -> Dict[str, "Task"]:
        """The tasks that are learned, by the folder of each one's files.

        Folders are within that of the run, which is "".
        """
        return {"": self}

    @property
    def trained_together(self) -> Tuple[str, ...]:
        """The names of several tasks that are learned at once; else none."""
        return ()

    def values_of(
        self, folder: str, values: Mapping[str, np.ndarray]
    ) -> Dict[str, np.ndarray]:
        """What one of `members` has of trained values, as it names them."""
        return dict(values)

    def summarize(self, rows: RowsType) -> str:
        """What the log says of a split beside its size, or ""."""
        return ""

    @property
    def numbers_of_texts(self) -> Tuple[int, ...]:
        """How many texts a row may have."""
        return (len(self.columns),)

    @property
    def least_length(self) -> int:
        """Tokens that an input must have room for."""
        # [CLS], a token, [SEP].
        return 3

    @property
    def settings(self) -> Dict[str, Any]:
        """How rows are read and answered, as JSON values: `restore_task`.

        A trained head serves with others too.
        """
        return {}

    @property
    def head_kind(self) -> Hashable:
        """What tells heads apart whose variables have the same names.

        Tasks whose heads are of one kind, and have the same variables, are
        computed alike.
        """
        return type(self)

    @property
    @abc.abstractmethod
    def reading(self) -> Hashable:
        """What makes features of texts: equal where equal texts make equal."""

    def check_texts(self, texts: Sequence[str], where: str) -> None:
        """Checks the texts of a row, of which there are as many as are read.

        Raises:
            UserError: there is one that the task cannot take; the message
                opens with `where`.
        """
        return

    @abc.abstractmethod
    def make_rows(self, texts: Sequence[Tuple[str, ...]]) -> RowsType:
        """Rows without labels, of texts that come from no file.

        Args:
            texts: of each row as many as `numbers_of_texts` allows, of all
                rows equally many; each a text, or where `takes_tokens` a
                tuple of words.
        """

    @abc.abstractmethod
    def featurize(
        self, rows: RowsType, tokenizer: TextTokenizer, max_seq_length: int
    ) -> Features:
        """Tokenizes rows, each to at most `max_seq_length` tokens."""

    def keep(self, rows: RowsType) -> RowsType:
        """What evaluation and prediction need of rows beside their features."""
        return rows

    @abc.abstractmethod
    def build_head(self, config: BertConfig, create: CreateVariable) -> Head:
        """Creates the head's variables."""

    def count_train_steps(
        self, features: Features, batch_size: int, epochs: float
    ) -> int:
        """Steps of a training of so many epochs.

        Raises:
            UserError: too many to count, or nothing to train on.
        """
        return count_train_steps(len(features), batch_size, epochs)

    def plan(
        self,
        features: Features,
        batch_size: int,
        num_steps: int,
        seed: int,
        pool_batches: int,
    ) -> Plan:
        """Which rows are in which batch of a training; see `TrainPlan`."""
        return TrainPlan(
            features.lengths, batch_size, num_steps, seed, pool_batches
        )

    def decode(
        self,
        rows: RowsType,
        features: Features,
        outputs: Mapping[str, np.ndarray],
    ) -> Any:
        """What the head's outputs [rows of the features, ...] say of the rows.

        Args:
            rows: as `keep` left them. So are they in the methods below.
            features: of the rows.
            outputs: of the head, all finite.

        Returns:
            What `evaluate` and `write_predictions` read.
        """
        return outputs

    @abc.abstractmethod
    def evaluate(
        self, rows: RowsType, features: Features, predictions: Any
    ) -> Dict[str, float]:
        """Scores what was decoded of labelled rows.

        Returns:
            The task's metrics by name, the main one first, and `loss` in nats
            if the task has one.
        """

    def score_tables(
        self,
        scores: Mapping[str, Mapping[str, float]],
        data: Mapping[str, str],
    ) -> Dict[str, ScoresAndData]:
        """What is written of dev sets' scores, by folder as of `members`.

        Args:
            scores: what `evaluate` gave of each dev set, by its suffix.
            data: fingerprint of each dev set's rows, by its split.
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
    ) -> Tuple[str, ...]:
        """Writes more of an evaluation than its scores, if there is more.

        Args:
            output_dir: the run's folder.
            rows: that are labelled.
            features: of the rows.
            predictions: what was decoded of them.
            suffix: of the split's results.

        Returns:
            Paths of the files.
        """
        return ()

    @abc.abstractmethod
    def answer(self, rows: RowsType, predictions: Any) -> List[Dict[str, Any]]:
        """What was decoded, as a JSON object for each row."""

    @abc.abstractmethod
    def write_predictions(
        self,
        output_dir: str,
        rows: RowsType,
        predictions: Any,
        suffix: str = "",
    ) -> Tuple[str, ...]:
        """Writes what was decoded to the files that the task's users expect.

        Args:
            output_dir: the run's folder.
            rows: that were predicted.
            predictions: what was decoded of them.
            suffix: of the split's results.

        Returns:
            Their paths.
        """


class UnansweringTask(Task[RowsType]):
    """A task that answers no texts."""

    answers_texts = False

    def make_rows(self, *arguments, **more):
        """Raises a TypeError: there are no texts to answer."""
        raise TypeError(f"the task {self.name} answers no texts")

    answer = write_predictions = make_rows


def with_suffix(name: str, suffix: str) -> str:
    """The name of a split's result, as `accuracy_mismatched`."""
    return f"{name}_{suffix}" if suffix else name


def results_path(output_dir: str, name: str, suffix: str) -> str:
    """The path of a table of results, as `test_results_mismatched.tsv`."""
    return os.path.join(output_dir, f"{with_suffix(name, suffix)}.tsv")
