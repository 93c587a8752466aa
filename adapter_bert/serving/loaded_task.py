"""A trained task in memory, and the rows that it reads."""

import dataclasses
import functools
import threading
from typing import Any, Mapping, Optional, Tuple, Union

import tensorflow as tf

from adapter_bert.checkpoints import (
    adapter_artifact,
    parts,
    run_record,
    sources,
)
from adapter_bert.checkpoints.weights import choose_initial_values
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.serving.frozen_bert import FrozenBert, TaskKind, Values
from adapter_bert.serving.mixed_bert import MixedBert, Place, can_mix
from adapter_bert.tasks.restored import restore_task
from adapter_bert.tasks.task import Task
from adapter_bert.training import parts as method_parts

# A text, or the words of one that is divided already.
Text = Union[str, Tuple[str, ...]]
# The texts of a row: one, a pair, or a question's with its choices.
Row = Tuple[Text, ...]


class TaskValues:
    """The values of a task: its own, or those of a row of tables.

    They are in memory once. Several threads may get and move them.
    """

    def __init__(self, values: Values):
        """Takes float32 tensors by name."""
        self._values: Optional[Values] = values
        self._place: Optional[Place] = None
        self._lock = threading.Lock()

    @property
    def is_placed(self) -> bool:
        """Whether they are in tables."""
        return self._place is not None

    def get(self) -> Values:
        """The values, float32 by name."""
        values = self._values
        return self._place.values() if values is None else values

    def place(self, kind: TaskKind, tables: MixedBert) -> Place:
        """Moves them into tables, unless they are there."""
        with self._lock:
            if self._place is None:
                self._place = tables.put(kind, self._values)
                self._values = None
        return self._place


@dataclasses.dataclass(frozen=True)
class LoadedTask:
    """A trained task in memory, to which nothing of BERT belongs.

    Attributes:
        task: what is asked and answered.
        numbers_of_texts: of a row.
        kind: what computes it.
        values: all that the kind's BERT lacks.
        tokenizer: what it was trained with.
        max_seq_length: longest input in tokens.
    """

    task: Task
    numbers_of_texts: Tuple[int, ...]
    kind: TaskKind
    values: TaskValues
    tokenizer: TextTokenizer
    max_seq_length: int

    @property
    def can_mix(self) -> bool:
        """Whether its rows can be in a batch with those of other tasks."""
        return can_mix(self.kind.table)


def load_task(
    bert: FrozenBert,
    folder: str,
    max_seq_length: Optional[int],
    library: str = "",
    exchanged: Optional[Mapping[str, str]] = None,
) -> LoadedTask:
    """Reads a trained adapter.

    Args:
        bert: that it was trained upon.
        folder: of the adapter.
        max_seq_length: longest input in tokens, or None for what the adapter
            was trained with.
        library: folder of adapters, where parts are looked for that it does
            not hold; "" for none. They may also lie around it, or where they
            lay in its training.
        exchanged: adapters that take the places of others, by the names of
            those.

    Raises:
        UserError: it or one of its parts is missing or damaged, or was trained
            upon another BERT; BERT has fewer positions, or the task needs room
            for more tokens.
    """
    artifact = adapter_artifact.read(folder, bert.weights)
    config, source = artifact.config, artifact.weights.source
    tokenizer = bert.tokenizer(bool(config["tokenizer"].get("do_lower_case")))
    sources.check_same_model(config, source, bert.base, bert.config, tokenizer)
    around = parts.places(folder)
    found = method_parts.find(
        registry.parse(config["method"]),
        exchanged or {},
        library,
        run_record.places_of_parts(around[0]),
        config,
    )
    part_weights = method_parts.open_weights(
        found, bert.base, bert.weights, bert.config, tokenizer
    )
    trained = method_parts.complete(
        artifact, found, [library, *around], bert.weights, bert.config
    )
    task = restore_task(config["task"], config.get("task_settings", {}), source)
    kind = bert.kind(found.method, task)
    first_values = choose_initial_values(
        kind.table.parameters,
        bert.weights,
        trained,
        seed=0,
        parts=part_weights,
    )
    values = {
        # A constant alone would keep numpy's array in memory beside its own.
        p.name: tf.identity(tf.constant(first_values[p.name](), tf.float32))
        for p in kind.table.parameters
        if p.trained or p.is_added
    }
    trained_with = config.get("training", {}).get("max_seq_length")
    either = "pairs" in config["task"] and config["task"]["pairs"] is None
    positions = bert.config.max_tokens
    length = max_seq_length or trained_with or positions
    if length > positions:
        setting = f"{source}: training.max_seq_length"
        if max_seq_length:
            setting = "--max_seq_length"
        raise UserError(
            f"{setting} is {length}, but the model has only {positions} "
            "positions"
        )
    least = task.least_length + tokenizer.between_count - 1
    if length < least:
        raise UserError(
            f"{source}: inputs are cut to {length} tokens, but the task "
            f"{task.name} needs room for {least}; pass a greater "
            "--max_seq_length"
        )
    return LoadedTask(
        task=task,
        numbers_of_texts=(1, 2) if either else task.numbers_of_texts,
        kind=kind,
        values=TaskValues(values),
        tokenizer=tokenizer,
        max_seq_length=length,
    )


def task_name(folder: str) -> str:
    """The name of the task that an adapter was trained on.

    Raises:
        UserError: there is no adapter.
    """
    return adapter_artifact.read_config(folder)["task"]["name"]


@functools.singledispatch
def as_row(texts: Any) -> Row:
    """The texts of a row.

    Raises:
        UserError: it is no text, no pair of texts and no list of words.
    """
    raise UserError(
        f"a row is a {type(texts).__name__}, expected a text, a tuple of two "
        "or, where words are tagged, a list of words"
    )


@as_row.register
def _(texts: str) -> Row:
    return (texts,)


@as_row.register
def _(texts: tuple) -> Row:
    return texts


@as_row.register
def _(texts: list) -> Row:
    return (tuple(texts),)


def check_row(row: Row, loaded: LoadedTask, where: str) -> None:
    """Compares a row with what a task reads.

    Raises:
        UserError: it has more or fewer texts, one that is none or that the
            task does not take, or words where the task reads texts only.
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
        if isinstance(text, tuple) and not loaded.task.takes_tokens:
            raise UserError(
                f"{where}: found a list of words, but the task "
                f"{loaded.task.name} reads texts"
            )
        for part in text if isinstance(text, tuple) else (text,):
            _check_text(part, where)
    loaded.task.check_texts(row, where)


def _check_text(text: Any, where: str) -> None:
    """Refuses what is no text, or cannot be written.

    Raises:
        UserError: it is.
    """
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
