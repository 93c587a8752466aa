"""A model that `adapter-bert export` has written, loaded for answers.

TensorFlow alone computes it, without BERT or this project's methods. This
module defines the names and the layout of a model's files.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from adapter_bert import files
from adapter_bert.errors import UserError, first_line
from adapter_bert.tasks.kinds import find_kind
from adapter_bert.tasks.tagging_files import APART, cut_words

SIGNATURE = "serving_default"
# The signature of vectors, and its output.
EMBED, EMBEDDING = "embed", "embedding"
# TensorFlow's folder for files of other programs.
EXTRA, TASKS = "assets.extra", "tasks.json"
GRAPH = "saved_model.pb"
# A version's folder in messages.
WHAT = "the exported model"
DESCRIPTION = {
    "tasks": list,
    "tasks.[]": dict,
    "tasks.[].name": str,
    "tasks.[].kind": str,
    "tasks.[].columns": list,
    "tasks.[].texts": list,
    "files": dict,
    "files.*": str,
}
# Limits of messages: names of tasks, and characters of a name.
SHOWN, LONGEST_NAME = 20, 80
# TensorFlow's message about a refused row.
REFUSAL = re.compile(r"assertion failed: \[(?:row \d+: )?(.*)\]")
# Descriptions in `tasks.json`, by the task's name.
Tasks = Mapping[str, Mapping[str, Any]]


class Row(NamedTuple):
    """A row of a request, UTF-8; other bytes are left out.

    Attributes:
        text: a text; before `join_words` words may be one.
        text_b: the second text; empty if there is none.
        task: its name.
        choices: texts of a multiple choice.
    """

    text: Union[bytes, tuple[bytes, ...]]
    text_b: bytes = b""
    task: bytes = b""
    choices: tuple[bytes, ...] = ()


# Names of inputs: those of every model, and that of one with choices.
*TEXTS, CHOICES = Row._fields


def is_version(name: str) -> bool:
    """True if a file's name is a model's version."""
    return bool(re.fullmatch("[1-9][0-9]*", name))


def shown_names(names: Sequence[str]) -> str:
    """Lists tasks for messages."""
    shown = ", ".join(names[:SHOWN])
    if len(names) > SHOWN:
        shown += f" and {len(names) - SHOWN} more"
    return shown


def unknown(tasks: Tasks, name: str) -> Optional[str]:
    """Says that a task is not there, or None."""
    if name in tasks:
        return None
    shown = shown_names(list(tasks)) or "none"
    return f"unknown task {name[:LONGEST_NAME]}; there are: {shown}"


def problem(tasks: Tasks, row: Row, for_vector: bool = False) -> Optional[str]:
    """Says what is wrong with a row for an answer, or a vector, or None."""
    name = row.task.decode("utf-8", "replace")
    if reason := unknown(tasks, name):
        return reason
    task = tasks[name]
    count = choice_count(task)
    if row.text_b and max(task["texts"]) - count < 2:
        return f"the task {name} reads one text, but text_b is not empty"
    if not for_vector and len(row.choices) != count:
        if not count:
            return f"the task {name} has no choices, but the row has"
        return (
            f"the task {name} has {count} choices, but the row has "
            f"{len(row.choices)}"
        )
    for number, choice in enumerate(() if for_vector else row.choices):
        if not choice.decode("utf-8", "ignore").strip():
            label = task["labels"][number]
            return f"the choice {label!r} is empty"
    questions = task.get("questions")
    text_b = row.text_b.decode("utf-8", "ignore")
    if questions and not for_vector and text_b not in questions:
        return (
            f"text_b is {text_b[:LONGEST_NAME]!r}, expected "
            f"{' or '.join(questions)}"
        )
    return None


def choice_count(task: Mapping[str, Any]) -> int:
    """Counts the choices of a described task's row."""
    has_choices = "kind" in task and find_kind(task["kind"]).has_choices
    return len(task["labels"]) if has_choices else 0


def join_words(task: Mapping[str, Any], words: Sequence[str]) -> str:
    """Makes a sentence of words, which a model cuts out of it again.

    Raises:
        ValueError: the model of the described task would cut a word.
    """
    apart = APART in task
    for word in words:
        if cut_words(word, apart) != [(0, len(word))]:
            raise ValueError(
                f"the word {word[:LONGEST_NAME]!r} is empty or holds white "
                f"space{' or punctuation' * apart}, where an exported model "
                "splits"
            )
    return " ".join(words)


def example(task: Mapping[str, Any]) -> Row:
    """Makes a row that a described task reads."""
    count = choice_count(task)
    text_b = "another text" * (max(task["texts"]) - count > 1)
    text_b = next(iter(task.get("questions", ())), text_b)
    return Row(
        b"a text",
        text_b.encode(),
        task["name"].encode(),
        (b"a choice",) * count,
    )


class ExportedModel:
    """A version of an exported model.

    Attributes:
        version: its number.
        tasks: descriptions by name.
        signature: inputs and outputs, as JSON of TensorFlow's `SignatureDef`.
        vector_signature: those of `vectors`, or None if the model has none.
    """

    vector_signature: Optional[dict[str, Any]] = None

    def __init__(self, folder: str, version: str = ""):
        """Loads a version, by default the newest."""
        self.version = version or _newest(folder)
        self._place = place = os.path.join(folder, self.version)
        path = os.path.join(place, EXTRA, TASKS)
        manifest = files.read_object(path, WHAT, DESCRIPTION)
        self.tasks: Tasks = {task["name"]: task for task in manifest["tasks"]}
        for name, task in self.tasks.items():
            try:
                choice_count(task)
            except KeyError as error:
                raise UserError(
                    f"{path}: the task {name} is of the kind {error}, which "
                    "this version does not know; update it, or export again"
                ) from error
        # The seal covers all but the line break at the end.
        if not files.read_text(path, WHAT).endswith("\n"):
            raise _damaged(path, "it is cut off")
        for name, expected in manifest["files"].items():
            file = os.path.join(place, name)
            if digest(file) != expected:
                raise _damaged(file, "its SHA-256 is another one")
        graph = os.path.join(place, GRAPH)
        try:
            saved = saved_model_pb2.SavedModel()
            saved.ParseFromString(files.read_bytes(graph, WHAT))
            signatures = saved.meta_graphs[0].signature_def
            self.signature = _as_json(signatures[SIGNATURE])
            if EMBED in signatures:
                self.vector_signature = _as_json(signatures[EMBED])
            # Added once, however often.
            logging.getLogger("absl").addFilter(_is_of_use)
            self._loaded = tf.saved_model.load(place)
            self._answer = self._loaded.signatures[SIGNATURE]
        # TensorFlow raises errors of many classes.
        except Exception as error:
            raise _damaged(graph, first_line(error)) from error

    def answers(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Gives the outputs for rows without a `problem`, by name.

        Raises:
            tf.errors.InvalidArgumentError: an output is no number.
        """
        outputs = {
            name: _plain(values.numpy().tolist())
            for name, values in self._answer(
                **columns(rows, self.signature["inputs"])
            ).items()
        }
        names = sorted(outputs)
        return [dict(zip(names, row)) for row in zip(*map(outputs.get, names))]

    def vectors(self, rows: Sequence[Row]) -> list[list[float]]:
        """Gives the vectors of such rows, and raises the same error."""
        embed = self._loaded.signatures[EMBED]
        inputs = columns(rows, self.vector_signature["inputs"])
        return embed(**inputs)[EMBEDDING].numpy().tolist()

    def warm_up(self) -> None:
        """Answers a row of each task; refuses tasks that cannot."""
        rows = list(map(example, self.tasks.values()))
        try:
            self.answers(rows)
            if self.vector_signature:
                self.vectors(rows)
        except tf.errors.InvalidArgumentError as error:
            raise UserError(
                f"{self._place}: {refusal(error)}; export it without that task"
            ) from error


def columns(rows: Sequence[Row], names: Iterable[str]) -> dict[str, tf.Tensor]:
    """Makes inputs of these names, string [N], and `choices` string [N, C]."""
    fields = dict(zip(Row._fields, zip(*rows))) if rows else {}
    fields[CHOICES] = choice_table(rows)
    return {
        name: tf.constant(fields.get(name, []), tf.string) for name in names
    }


def choice_table(rows: Sequence[Row]) -> np.ndarray:
    """Pads rows' choices, object [N, C], by b"" at the end."""
    widest = max((len(row.choices) for row in rows), default=0)
    table = np.full((len(rows), widest), b"", object)
    for cells, row in zip(table, rows):
        cells[: len(row.choices)] = row.choices
    return table


def _as_json(signature: Any) -> dict[str, Any]:
    return json_format.MessageToDict(
        signature, preserving_proto_field_name=True
    )


def _is_of_use(record: logging.LogRecord) -> bool:
    return "unsaved custom gradients" not in str(record.msg)


def digest(path: str) -> str:
    """Computes a file's SHA-256."""
    sha256 = hashlib.sha256()
    for block in files.blocks(path, WHAT):
        sha256.update(block)
    return sha256.hexdigest()


def _damaged(path: str, why: str) -> UserError:
    return UserError(
        f"{path} is damaged, or is of no exported model ({why}); copy the "
        "model again, or export it again"
    )


def refusal(error: tf.errors.InvalidArgumentError) -> str:
    """Gives a model's reason in one line, without the row's number."""
    line = first_line(error)
    match = REFUSAL.fullmatch(line)
    return match.group(1) if match else line


def _newest(folder: str) -> str:
    names = files.names(folder) if files.is_folder(folder) else []
    versions = sorted(filter(is_version, names), key=int)
    if not versions:
        raise UserError(
            f"{folder} holds no version of an exported model; pass the "
            "--output_dir of adapter-bert export"
        )
    return versions[-1]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(x) for x in value]
    return value.decode() if isinstance(value, bytes) else value
