"""Trained tasks in memory, and checks of the rows that they read."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, Optional, Union

import tensorflow as tf

from adapter_bert.answering.frozen_bert import FrozenBert, TaskKind, Values
from adapter_bert.answering.task_tables import MixedBert, Place
from adapter_bert.checkpoints import (
    adapter_artifact,
    part_values,
    run_record,
    same_model,
    sources,
)
from adapter_bert.checkpoints.weights import choose_initial_values
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.base import changed_by
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.novelty import NOVELTY
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.text_task import TEXT_COLUMNS
from adapter_bert.training import composition_parts as method_parts

# A text, or its words.
Text = Union[str, tuple[str, ...]]
# One text, a pair, or a question with its choices.
TextRow = tuple[Text, ...]


class TaskValues:
    """A task's float32 values by name, as tensors or in rows of tables.

    The values are in memory once. Threads may get and move them.
    """

    def __init__(self, values: Values):
        self._values: Optional[Values] = values
        self._place: Optional[Place] = None
        self._lock = threading.Lock()

    @property
    def is_placed(self) -> bool:
        """True if the values are in tables."""
        return self._place is not None

    def get(self) -> Values:
        """Gives the values, float32 by name."""
        values = self._values
        return self._place.values() if values is None else values

    def place(self, kind: TaskKind, tables: MixedBert) -> Place:
        """Moves the values into tables, unless they are there."""
        with self._lock:
            if self._place is None:
                self._place = tables.put(kind, self._values)
                self._values = None
        return self._place


@dataclasses.dataclass(frozen=True)
class LoadedTask:
    """A trained task in memory, without BERT's own values.

    Attributes:
        numbers_of_texts: the numbers of texts that a row may have.
        max_seq_length: longest input in tokens.
        sha256: of the adapter's weights.
    """

    task: Task
    numbers_of_texts: tuple[int, ...]
    kind: TaskKind
    values: TaskValues
    tokenizer: TextTokenizer
    max_seq_length: int
    sha256: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all texts that a row may have."""
        usual = TEXT_COLUMNS[: max(self.numbers_of_texts)]
        return max(self.task.columns, usual, key=len)

    @property
    def can_mix(self) -> bool:
        """True if a batch may have rows of this task and of others.

        So no method, nor its hook `parameter`, changes BERT's matrices.
        """
        table = self.kind.table
        return "parameter" not in table.hooks.places and all(
            not changed_by(p.name)
            if p.is_added
            else not p.trained or len(p.shape) == 1
            for p in table.parameters
        )


def load_task(
    bert: FrozenBert,
    folder: str,
    max_seq_length: Optional[int],
    library: str = "",
    exchanged: Optional[Mapping[str, str]] = None,
) -> LoadedTask:
    """Reads a trained adapter, and missing parts from `library`.

    `max_seq_length` is None for the adapter's own; `exchanged` are adapters in
    the places of parts, by the parts' names.
    """
    artifact = adapter_artifact.read(folder, bert.weights)
    config, source = artifact.config, artifact.weights.source
    tokenizer = bert.tokenizer(
        bool(config["tokenizer"].get("do_lower_case")),
        run_record.new_tokens(config, source),
    )
    same_model.check(config, source, bert.base, bert.config, tokenizer)
    around = part_values.places(folder)
    composition = method_parts.find(
        registry.parse(config["method"]),
        exchanged or {},
        library,
        run_record.places_of_parts(around[0]),
        config,
    )
    part_weights, trained = method_parts.open_weights(
        composition,
        artifact,
        [library, *around],
        bert.base,
        bert.weights,
        bert.config,
        tokenizer,
    )
    task = restore_task(config["task"], config.get("task_settings", {}), source)
    length = max_seq_length or config.get("training", {}).get("max_seq_length")
    length = length or bert.config.max_tokens
    task = task.fit_tokenizer(tokenizer, length)
    kind = bert.kind(composition.method, task)
    first_values = choose_initial_values(
        kind.table.parameters, bert.weights, trained, seed=0, parts=part_weights
    )
    values = {
        # A constant alone would keep numpy's copy in memory as well.
        p.name: tf.identity(tf.constant(first_values[p.name](), tf.float32))
        for p in kind.table.parameters
        if p.trained or p.is_added
    }
    count = len(task.columns)
    either = "pairs" in config["task"] and config["task"]["pairs"] is None
    setting = "--max_seq_length"
    if not max_seq_length:
        setting = f"{source}: training.max_seq_length"
    sources.check_length(
        length, task.least_length, bert.config, tokenizer, setting
    )
    return LoadedTask(
        task=task,
        numbers_of_texts=(count, count + 1) if either else (count,),
        kind=kind,
        values=TaskValues(values),
        tokenizer=tokenizer,
        max_seq_length=length,
        sha256=config["sha256"],
    )


def kind_of(loaded: LoadedTask) -> str:
    """Finds the kind of a task's answers."""
    return loaded.task.kind.name


def describe(name: str, loaded: LoadedTask) -> dict[str, Any]:
    """Describes a task for clients.

    Returns:
        `texts`, the possible numbers of texts; `max_seq_length` in tokens;
        `adapter`, the SHA-256 of its weights; `abstain_below`, the least
        probability of an answer; `novelty`, true where answers have one;
        `types` of entities; `questions`, all second texts that it takes; and
        `name`, `kind`, `columns`, `method`, `labels`, `label_separator`.
    """
    task = loaded.task
    description = {
        "name": name,
        "kind": kind_of(loaded),
        "columns": list(loaded.columns),
        "texts": list(loaded.numbers_of_texts),
        "method": str(loaded.kind.method),
        "max_seq_length": loaded.max_seq_length,
        "adapter": loaded.sha256,
    }
    if task.novelty:
        description[NOVELTY] = True
    return {**description, **task.client_facts}


def task_name(folder: str) -> str:
    """Reads the name of an adapter's task."""
    return adapter_artifact.read_config(folder)["task"]["name"]


def as_row(texts: Any, where: str) -> TextRow:
    """Makes a row of a text, a tuple of texts or a list of words."""
    if isinstance(texts, tuple):
        return texts
    if isinstance(texts, list):
        return (tuple(texts),)
    if isinstance(texts, str):
        return (texts,)
    raise UserError(
        f"{where}: found a {type(texts).__name__}, expected a text, a tuple of "
        "two or, where words are tagged, a list of words"
    )


def check_row(row: TextRow, loaded: LoadedTask, where: str) -> None:
    """Refuses a row of another form; messages begin with `where`."""
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
        for word in text if isinstance(text, tuple) else (text,):
            check_text(word, where)
    loaded.task.check_texts(row, where)


def check_text(text: Any, where: str) -> None:
    """Refuses what is no text, or no text in UTF-8."""
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
