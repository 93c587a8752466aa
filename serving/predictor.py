"""Texts in, answers out, by any of the tasks that are loaded.

from serving.predictor import Predictor

predictor = Predictor.load("bert_base", {"mrpc": "out/mrpc/adapter"})
predictor("mrpc", ("He sat down.", "He took a seat."))
# {"label": "1", "probability": 0.97, "scores": {"0": 0.03, "1": 0.97}}
"""

import dataclasses
import functools
import itertools
import threading
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
    Union,
)

import tensorflow as tf

import input_pipeline
from engines.prediction import Outputs, check_finite
from errors import UserError
from input_pipeline import Features
from methods import parsing
from serving.frozen_bert import FrozenBert, TaskKind
from serving.row_stream import CHUNK
from tasks.base import Task
from tasks.restored import restore_task
from tokenization import FullTokenizer
from weights import adapter_artifact, pretrained
from weights.base import choose_initial_values

# The texts of a row, one or a pair.
Row = Tuple[str, ...]
# A JSON object, as docs/prediction.md has it.
Answer = Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class LoadedTask:
    """A trained task in memory, to which nothing of BERT belongs.

    Attributes:
        task: what is asked and answered.
        numbers_of_texts: of a row.
        kind: what computes it.
        values: float32 tensors by name, all that the kind's BERT lacks.
        tokenizer: what it was trained with.
        max_seq_length: longest input in tokens.
    """

    task: Task
    numbers_of_texts: Tuple[int, ...]
    kind: TaskKind
    values: Mapping[str, tf.Tensor]
    tokenizer: FullTokenizer
    max_seq_length: int


class Predictor:
    """Answers with any number of adapters upon one BERT.

    Several threads may call it, also while adapters are added and removed.
    """

    def __init__(
        self,
        bert: FrozenBert,
        batch_size: int = 32,
        max_seq_length: Optional[int] = None,
    ):
        """Takes a BERT.

        Args:
            bert: that all adapters were trained upon.
            batch_size: rows that are computed at once.
            max_seq_length: longest input in tokens; default: what each adapter
                was trained with.

        Raises:
            UserError: BERT has fewer positions.
        """
        positions = bert.config.max_position_embeddings
        if max_seq_length and max_seq_length > positions:
            raise UserError(
                f"--max_seq_length is {max_seq_length}, but the model has only "
                f"{positions} positions"
            )
        self._bert = bert
        self._batch_size = batch_size
        self._max_seq_length = max_seq_length
        self._loaded: Dict[str, LoadedTask] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        bert: str,
        adapters: Union[Mapping[str, str], Iterable[str]] = (),
        **options: Any,
    ) -> "Predictor":
        """Opens a BERT and adapters.

        Args:
            bert: as `--init_checkpoint` names it.
            adapters: folders of adapters by the names that they are to have,
                or folders alone, which get their tasks' names.
            **options: of the predictor.

        Raises:
            UserError: the BERT or an adapter is missing or damaged, they do
                not belong together, or a name is taken twice.
        """
        predictor = cls(FrozenBert.open(bert), **options)
        if isinstance(adapters, Mapping):
            for name, folder in adapters.items():
                predictor.add(folder, name)
            return predictor
        for folder in adapters:
            name = task_name(folder)
            if name in predictor.names:
                raise UserError(
                    f"two adapters are of the task {name}; give each a name, "
                    "as first=FOLDER"
                )
            predictor.add(folder, name)
        return predictor

    @property
    def names(self) -> List[str]:
        """The names of the tasks that are loaded."""
        return list(self._loaded)

    def task(self, name: str) -> LoadedTask:
        """A task that is loaded.

        Raises:
            UserError: none has this name.
        """
        loaded = self._loaded.get(name)
        if loaded is None:
            known = ", ".join(self.names)[:200] or "none"
            raise UserError(f"no adapter is called {name!r}; loaded: {known}")
        return loaded

    def add(self, folder: str, name: Optional[str] = None) -> str:
        """Loads an adapter, or puts it in the place of one of its name.

        Args:
            folder: of the adapter.
            name: that it is asked by; default: its task's.

        Returns:
            The name.

        Raises:
            UserError: the adapter is missing or damaged, or was trained upon
                another BERT.
        """
        loaded = self._read(folder)
        name = name or loaded.task.name
        with self._lock:
            # A new dictionary: others may be reading the old one.
            self._loaded = {**self._loaded, name: loaded}
        return name

    def remove(self, name: str) -> None:
        """Lets go of an adapter.

        Raises:
            UserError: none has this name.
        """
        with self._lock:
            self.task(name)
            self._loaded = {
                n: loaded for n, loaded in self._loaded.items() if n != name
            }

    def _read(self, folder: str) -> LoadedTask:
        bert = self._bert
        artifact = adapter_artifact.read(folder, bert.weights)
        config, source = artifact.config, artifact.weights.source
        tokenizer = bert.tokenizer(
            bool(config["tokenizer"].get("do_lower_case"))
        )
        pretrained.check_same_model(
            config, source, bert.base, bert.config, tokenizer
        )
        task = restore_task(
            config["task"], config.get("task_settings", {}), source
        )
        kind = bert.kind(parsing.parse(config["method"]), task)
        first_values = choose_initial_values(
            kind.table.parameters, bert.weights, artifact.weights, seed=0
        )
        values = {
            p.name: tf.constant(first_values[p.name](), tf.float32)
            for p in kind.table.parameters
            if p.trained or p.is_added
        }
        trained_with = config.get("training", {}).get("max_seq_length")
        either = "pairs" in config["task"] and config["task"]["pairs"] is None
        return LoadedTask(
            task=task,
            numbers_of_texts=(1, 2) if either else task.numbers_of_texts,
            kind=kind,
            values=values,
            tokenizer=tokenizer,
            max_seq_length=self._max_seq_length
            or trained_with
            or bert.config.max_position_embeddings,
        )

    def __call__(
        self, name: str, texts: Union[str, Row, List, Iterable]
    ) -> Union[Answer, List[Answer], Iterator[Answer]]:
        """Answers texts.

        Args:
            name: of the task.
            texts: a text, or a pair of texts as a tuple; a list of such; or
                any other iterable of such, of which `CHUNK` are read at a
                time.

        Returns:
            An answer, a list of answers, or an iterator of answers. Of a
            classification `label`, `probability` and `scores`; of a regression
            `value`; of a question `answer`, `start`, `end`, `score` and
            `null_score`.

        Raises:
            UserError: no task has this name, or a row is not as it reads them.
        """
        loaded = self.task(name)
        if isinstance(texts, (str, tuple)):
            return self.answer(loaded, [_as_row(texts)])[0]
        if isinstance(texts, list):
            return self.answer(loaded, list(map(_as_row, texts)))
        return self._answer_each(loaded, iter(texts))

    def _answer_each(
        self, loaded: LoadedTask, texts: Iterator
    ) -> Iterator[Answer]:
        while True:
            rows = list(map(_as_row, itertools.islice(texts, CHUNK)))
            if not rows:
                return
            yield from self.answer(loaded, rows)

    def answer(self, loaded: LoadedTask, rows: Sequence[Row]) -> List[Answer]:
        """Answers rows by a task of `task`, in their order.

        Raises:
            UserError: a row is not as the task reads them; the message names
                it by its number from 1.
        """
        if not rows:
            return []
        for number, row in enumerate(rows, 1):
            check_row(row, loaded, f"row {number}")
        answers: List[Optional[Answer]] = [None] * len(rows)
        # Only where a task takes both are there two groups.
        for count in sorted(set(map(len, rows))):
            places = [i for i, row in enumerate(rows) if len(row) == count]
            found = self._answer_alike(loaded, [rows[i] for i in places])
            for place, answer in zip(places, found):
                answers[place] = answer
        return answers

    def _answer_alike(
        self, loaded: LoadedTask, rows: Sequence[Row]
    ) -> List[Answer]:
        """Answers rows that have equally many texts."""
        task = loaded.task
        made = task.make_rows(rows)
        features = task.featurize(made, loaded.tokenizer, loaded.max_seq_length)
        outputs: Outputs = {}
        # There are no rows of features where no context has a token.
        if len(features):
            outputs = self._compute(loaded, features)
            check_finite(outputs, task.name)
        return task.answer(made, task.decode(made, features, outputs))

    def _compute(self, loaded: LoadedTask, features: Features) -> Outputs:
        """The head's outputs [rows, ...] by name, in row order."""
        batches = input_pipeline.sorted_batches(features, self._batch_size)
        found = [
            loaded.kind.compute(
                loaded.values, input_pipeline.make_batch(features, rows, None)
            )
            for rows in batches
        ]
        return {
            name: input_pipeline.restore_order(
                batches, [outputs[name].numpy() for outputs in found]
            )
            for name in found[0]
        }


@functools.singledispatch
def _as_row(texts: Any) -> Row:
    """The texts of a row.

    Raises:
        UserError: it is neither a text nor a pair of texts.
    """
    raise UserError(
        f"a row is a {type(texts).__name__}, expected a text or a tuple of two"
    )


@_as_row.register
def _(texts: str) -> Row:
    return (texts,)


@_as_row.register
def _(texts: tuple) -> Row:
    return texts


def check_row(row: Row, loaded: LoadedTask, where: str) -> None:
    """Compares a row with what a task reads.

    Raises:
        UserError: it has more or fewer texts, or one that is none.
    """
    expected = loaded.numbers_of_texts
    if len(row) not in expected:
        columns = " and ".join(loaded.task.columns)
        raise UserError(
            f"{where}: found {len(row)} texts, but the task "
            f"{loaded.task.name} reads {' or '.join(map(str, expected))}: "
            f"{columns}"
        )
    for text in row:
        if not isinstance(text, str):
            raise UserError(
                f"{where}: found a {type(text).__name__}, expected a text"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{where}: the text holds half a character ({error.reason})"
            ) from error


def task_name(folder: str) -> str:
    """The name of the task that an adapter was trained on.

    Raises:
        UserError: there is no adapter.
    """
    return adapter_artifact.read_config(folder)["task"]["name"]
