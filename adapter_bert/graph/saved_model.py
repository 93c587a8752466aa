"""A text model as a folder that TensorFlow and its servers load.

    <folder>/<version>/saved_model.pb, variables/
    <folder>/<version>/assets.extra/tasks.json
    <folder>/<version>/assets.extra/tf_serving_warmup_requests

Sources: TensorFlow's SavedModel, TensorFlow Serving's guide to warm-up.
"""

import os
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tokenizers
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import LoadedTask, describe
from adapter_bert.errors import UserError
from adapter_bert.graph.exported import (
    EMBED,
    EXTRA,
    SIGNATURE,
    TASKS,
    TEXTS,
    Row,
    choice_count,
    columns,
    digest,
    example,
    is_version,
)
from adapter_bert.graph.text_model import TextModel

# Held while a version is written; servers ignore it.
LOCK_FILE = ".lock"
# Folder that a killed export leaves.
UNFINISHED = files.NEW_FOLDER.format("[0-9]+")
# Bytes of the graph, and more.
GRAPH_SIZE = 2**24
# Rows of the greatest warm-up request.
WARM_UP_ROWS = 32
# Field numbers of TensorFlow Serving's `PredictionLog`, `PredictLog`,
# `PredictRequest` and `ModelSpec`, and of an entry of a map.
PREDICT_LOG, REQUEST, MODEL_SPEC, REQUEST_INPUTS = 6, 1, 1, 2
SPEC_NAME, SPEC_SIGNATURE = 1, 3
ENTRY_KEY, ENTRY_VALUE = 1, 2


def export(
    model: TextModel,
    bert: FrozenBert,
    tasks: Mapping[str, LoadedTask],
    folder: str,
) -> str:
    """Writes a model as the next version in a folder, which is made if missing.

    Returns the version's folder, which appears when all of it is written.
    """
    # Refuses a remote folder before it is made.
    next_version(folder)
    try:
        files.make_folder(folder)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}") from error
    with folder_lock.hold(folder, LOCK_FILE, True, UNFINISHED):
        version = os.path.join(folder, str(next_version(folder)))
        with files.new_folder(version) as place:
            _write(model, bert, tasks, place)
    return version


def _write(
    model: TextModel,
    bert: FrozenBert,
    tasks: Mapping[str, LoadedTask],
    place: str,
) -> None:
    files.check_disk_space(place, model.size + GRAPH_SIZE)
    # TensorFlow would log hundreds of names.
    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        signatures = {SIGNATURE: model.serve}
        if model.form:
            signatures[EMBED] = model.embed
        # Nothing is trained there, and TensorFlow would never let go of a
        # loaded model whose gradients it knows.
        options = tf.saved_model.SaveOptions(
            experimental_custom_gradients=False
        )
        tf.saved_model.save(
            model, place, signatures=signatures, options=options
        )
    finally:
        logging.set_verbosity(before)
    extra = os.path.join(place, EXTRA)
    os.makedirs(extra)
    of_tasks = [describe(name, task) for name, task in tasks.items()]
    described = {
        "base": bert.base.describe(),
        "tasks": of_tasks,
        "versions": {
            "python": sys.version.split()[0],
            "tensorflow": tf.__version__,
            "tokenizers": tokenizers.__version__,
            "unicode": unicodedata.unidata_version,
        },
    }
    if model.form:
        dense = [layer.describe() for layer in model.form.dense]
        described["embeddings"] = {**vars(model.form), "dense": dense}
    path = os.path.join(extra, "tf_serving_warmup_requests")
    with tf.io.TFRecordWriter(path) as writer:
        for request in warm_up_requests(of_tasks):
            writer.write(request)
    written = sorted(
        os.path.relpath(os.path.join(folder, name), place)
        for folder, _, names in os.walk(place)
        for name in names
    )
    described["files"] = {
        name: digest(os.path.join(place, name)) for name in written
    }
    files.write_sealed(os.path.join(extra, TASKS), described)


def next_version(folder: str) -> int:
    """Finds a folder's next version, from 1; refuses other files there."""
    files.check_local(folder)
    if not os.path.lexists(folder):
        return 1
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is a file; choose another --output_dir")
    names = files.plain_names(folder)
    for name in names:
        if not is_version(name):
            raise UserError(
                f"{folder} holds {name}, which is no version of an exported "
                "model; choose another --output_dir"
            )
    return 1 + max(map(int, names), default=0)


def warm_up_requests(described: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yields `PredictionLog`s that a server computes before other requests.

    The first has one row, the second a row for each of some described tasks.
    """
    rows = list(map(example, described))
    names = Row._fields if any(map(choice_count, described)) else TEXTS
    spec = _field(SPEC_NAME, b"default")
    spec += _field(SPEC_SIGNATURE, SIGNATURE.encode())
    for some in (rows[:1], rows[:WARM_UP_ROWS]):
        request = _field(MODEL_SPEC, spec)
        for name, values in columns(some, names).items():
            proto = tf.make_tensor_proto(values.numpy(), tf.string)
            entry = _field(ENTRY_KEY, name.encode())
            entry += _field(ENTRY_VALUE, proto.SerializeToString())
            request += _field(REQUEST_INPUTS, entry)
        yield _field(PREDICT_LOG, _field(REQUEST, request))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes([value])
    return bytes([value & 127 | 128]) + _varint(value >> 7)
