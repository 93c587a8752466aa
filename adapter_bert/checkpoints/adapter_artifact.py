"""The adapter artifact: a trained task as a folder of a few megabytes.

`adapter_config.json` says what was trained on which base.
`adapter.safetensors` holds the trained variables that the method keeps, by
default all, under their names in checkpoints. A method that changes few entries
of BERT's own variables stores those alone: `<variable>/indices`, int32 into the
flattened variable, and `<variable>/values`, the new values. Changes by parts of
a composition are stored alike if most of them are zero.
"""

import dataclasses
import hashlib
import os
from typing import Any, Optional

import numpy as np
import safetensors.numpy

from adapter_bert import files, folder_lock
from adapter_bert.checkpoints import run_record
from adapter_bert.checkpoints.hugging_face import UNREADABLE_TENSORS
from adapter_bert.checkpoints.weights import Weights, as_floats
from adapter_bert.errors import UserError
from adapter_bert.methods.base import changed_by

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter.safetensors"

BERT = "bert/"
INDICES, VALUES = "/indices", "/values"


@dataclasses.dataclass(frozen=True)
class Artifact:
    """Holds a trained task: megabytes to put next to a frozen BERT.

    Attributes:
        config: `adapter_config.json`.
        weights: the trained variables.
    """

    config: dict[str, Any]
    weights: Weights


def count(values: dict[str, np.ndarray]) -> int:
    """Counts an artifact's numbers, without the indices of changes."""
    return sum(v.size for k, v in values.items() if not k.endswith(INDICES))


def _apply(stored: dict[str, np.ndarray], base: Weights, path: str) -> Weights:
    """Applies stored changes; raises UserError if they do not fit the base."""
    changed = [n[: -len(INDICES)] for n in stored if n.endswith(INDICES)]
    shapes = {
        name: value.shape
        for name, value in stored.items()
        if not name.endswith((INDICES, VALUES))
    }
    for variable in changed:
        # A part changes a variable of BERT, too.
        original = changed_by(variable) or variable
        shape = shapes[variable] = base.shapes.get(original, ())
        size = int(np.prod(shape)) if shape else 0
        indices = stored[variable + INDICES]
        values = stored.get(variable + VALUES)
        if (
            values is None
            or indices.ndim != 1
            or indices.dtype.kind not in "iu"
            or indices.shape != values.shape
            or (indices.size and not 0 <= indices.min() <= indices.max() < size)
        ):
            raise UserError(
                f"{path}: the changes of {variable} do not fit {base.source}, "
                f"which has {size} numbers there; pass the BERT that it was "
                "trained on"
            )
    if any(variable.startswith(BERT) for variable in changed):
        # The rest of BERT is as it was.
        for name, shape in base.shapes.items():
            if name.startswith(BERT):
                shapes.setdefault(name, shape)

    def read(name: str) -> np.ndarray:
        if name in stored:
            return stored[name]
        if name.startswith(BERT):
            value = np.array(base.read(name), np.float32)
        else:
            value = np.zeros(shapes[name], np.float32)
        if name + INDICES in stored:
            value.ravel()[stored[name + INDICES]] = stored[name + VALUES]
        return value

    return Weights(path, shapes, read)


def write(
    folder: str, config: dict[str, Any], values: dict[str, np.ndarray]
) -> None:
    """Writes `adapter.safetensors`, `adapter_config.json` with its hash."""
    content = safetensors.numpy.save(
        {name: np.ascontiguousarray(value) for name, value in values.items()}
    )
    config = dict(config, sha256=hashlib.sha256(content).hexdigest())
    files.write_bytes(os.path.join(folder, WEIGHTS_FILE), content)
    files.write_sealed(os.path.join(folder, CONFIG_FILE), config)


def change_settings(folder: str, settings: dict[str, Any]) -> None:
    """Replaces `task_settings` of an adapter; its weights stay."""
    config = {**read_config(folder), "task_settings": settings}
    files.write_sealed(os.path.join(folder, CONFIG_FILE), config)


def settings_of(folder: str) -> dict[str, Any]:
    """Reads `task_settings`; {} if the folder holds no adapter."""
    if not files.exists(os.path.join(folder, CONFIG_FILE)):
        return {}
    return read_config(folder).get("task_settings", {})


def read_config(folder: str) -> dict[str, Any]:
    """Reads `adapter_config.json` alone."""
    path = os.path.join(folder, CONFIG_FILE)
    if not files.exists(path):
        # The folder of a run, or a file of an adapter.
        for near in (os.path.join(folder, "adapter"), os.path.dirname(folder)):
            if files.exists(os.path.join(near, CONFIG_FILE)):
                raise UserError(
                    f"{folder} is no folder of an adapter, expected "
                    f"{CONFIG_FILE} in it; pass {near}"
                )
    return run_record.read_description(path, "the adapter's description")


def read(folder: str, base: Optional[Weights] = None) -> Artifact:
    """Reads an adapter artifact.

    Stored changes are applied to `base`, the pretrained model; None leaves them
    as they are.
    """
    path = os.path.join(folder, WEIGHTS_FILE)

    def read_content(config: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        content = files.read_bytes(path, "the adapter's weights")
        if hashlib.sha256(content).hexdigest() != config.get("sha256"):
            raise UserError(
                f"{path} is damaged or was written with another "
                f"{CONFIG_FILE}; copy the adapter again (in a library remove "
                "it first), or wait for the run that writes it"
            )
        return config, content

    config, content = folder_lock.read_beside_writer(
        lambda: read_config(folder), read_content
    )
    try:
        values = {
            name: value if name.endswith(INDICES) else as_floats(value)
            for name, value in safetensors.numpy.load(content).items()
        }
    except UNREADABLE_TENSORS as error:
        raise UserError(f"{path} is no safetensors file: {error}") from error
    if base is not None and any(name.endswith(INDICES) for name in values):
        return Artifact(config, _apply(values, base, path))
    shapes = {name: value.shape for name, value in values.items()}
    return Artifact(config, Weights(path, shapes, values.__getitem__))
