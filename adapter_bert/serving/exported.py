"""A model that `adapter-bert export` has written, loaded for answers.

TensorFlow alone computes it, without BERT or this project's methods. This
module defines the names and the layout of a model's files.
"""

import functools
import hashlib
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from adapter_bert import files, folder_lock
from adapter_bert.errors import UserError, first_line

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
    """A model's inputs for one row; UTF-8, other bytes are left out."""

    text: bytes
    text_b: bytes
    task: bytes


def is_version(name: str) -> bool:
    """Whether a file's name is a model's version."""
    return bool(re.fullmatch("[1-9][0-9]*", name))


def shown_names(names: Sequence[str]) -> str:
    """Names of tasks for messages."""
    shown = ", ".join(names[:SHOWN])
    if len(names) > SHOWN:
        shown += f" and {len(names) - SHOWN} more"
    return shown


def problem(tasks: Tasks, row: Row) -> Optional[str]:
    """The fault of a row, in the words of the model of these tasks."""
    name = row.task.decode("utf-8", "replace")
    task = tasks.get(name)
    if task is None:
        known = shown_names(list(tasks))
        return f"unknown task {name[:LONGEST_NAME]}; there are: {known}"
    if row.text_b and max(task["texts"]) < 2:
        return f"the task {name} reads one text, but text_b is not empty"
    return None


class ExportedModel:
    """A version of an exported model.

    Attributes:
        version: its number.
        tasks: descriptions by name.
        signature: inputs and outputs, as JSON of TensorFlow's `SignatureDef`.
        vector_signature: those of `vectors`, or None if the model has none.
    """

    vector_signature: Optional[Dict[str, Any]] = None

    def __init__(self, folder: str, version: str = ""):
        """Loads a version, by default the newest; raises UserError."""
        # Another export may delete the newest.
        folder_lock.read_beside_writer(
            lambda: version or _newest(folder),
            functools.partial(self._load, folder),
        )

    def _load(self, folder: str, version: str) -> None:
        self.version = version
        place = os.path.join(folder, version)
        path = os.path.join(place, EXTRA, TASKS)
        told = files.read_object(path, WHAT, DESCRIPTION)
        self.tasks: Tasks = {task["name"]: task for task in told["tasks"]}
        # The seal covers all but the line break at the end.
        if not files.read_text(path, WHAT).endswith("\n"):
            raise _damaged(path, "it is cut off")
        for name, expected in told["files"].items():
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
            self._loaded = tf.saved_model.load(place)
            self._answer = self._loaded.signatures[SIGNATURE]
        # TensorFlow raises errors of many classes.
        except Exception as error:
            raise _damaged(graph, first_line(error)) from error
        self._place = place

    def problem(self, row: Row) -> Optional[str]:
        """The fault of a row, in the words of the model."""
        return problem(self.tasks, row)

    def answers(self, rows: Sequence[Row]) -> List[Dict[str, Any]]:
        """The signature's outputs for rows without a `problem`, by name.

        Raises:
            tf.errors.InvalidArgumentError: an output is no number.
        """
        found = {
            name: _plain(values.numpy().tolist())
            for name, values in self._answer(**_columns(rows)).items()
        }
        names = sorted(found)
        return [dict(zip(names, row)) for row in zip(*map(found.get, names))]

    def vectors(self, rows: Sequence[Row]) -> List[List[float]]:
        """The vectors of rows without a `problem`, if the model has any.

        Raises:
            tf.errors.InvalidArgumentError: an output is no number.
        """
        embed = self._loaded.signatures[EMBED]
        return embed(**_columns(rows))[EMBEDDING].numpy().tolist()

    def warm_up(self) -> None:
        """Answers a row of each task; raises UserError if one cannot answer."""
        rows = [
            Row(b"a text", b"b" * (max(task["texts"]) > 1), name.encode())
            for name, task in self.tasks.items()
        ]
        try:
            self.answers(rows)
            if self.vector_signature:
                self.vectors(rows)
        except tf.errors.InvalidArgumentError as error:
            raise UserError(
                f"{self._place}: {refusal(error)}; export it without that task"
            ) from error


def _columns(rows: Sequence[Row]) -> Dict[str, tf.Tensor]:
    """A signature's inputs, string [N]."""
    return {
        name: tf.constant([getattr(row, name) for row in rows], tf.string)
        for name in Row._fields
    }


def _as_json(signature: Any) -> Dict[str, Any]:
    """A `SignatureDef` as JSON values."""
    return json_format.MessageToDict(
        signature, preserving_proto_field_name=True
    )


def digest(path: str) -> str:
    """A file's SHA-256; raises UserError if it cannot be read."""
    found = hashlib.sha256()
    for block in files.blocks(path, WHAT):
        found.update(block)
    return found.hexdigest()


def _damaged(path: str, why: str) -> UserError:
    return UserError(
        f"{path} is damaged, or is of no exported model ({why}); copy the "
        "model again, or export it again"
    )


def refusal(error: tf.errors.InvalidArgumentError) -> str:
    """A model's reason in one line, without the row's number in the batch."""
    line = first_line(error)
    found = REFUSAL.fullmatch(line)
    return found.group(1) if found else line


def _newest(folder: str) -> str:
    """The greatest version; raises UserError without any."""
    names = files.names(folder) if files.is_folder(folder) else []
    versions = list(filter(is_version, names))
    if not versions:
        raise UserError(
            f"{folder} holds no version of an exported model; pass the "
            "--output_dir of adapter-bert export"
        )
    return max(versions, key=int)


def _plain(value: Any) -> Any:
    """A value with text for bytes."""
    if isinstance(value, list):
        return [_plain(x) for x in value]
    return value.decode() if isinstance(value, bytes) else value
