"""The adapter artifact: a trained task as a folder of a few megabytes.

`adapter_config.json` says what was trained upon which base;
`adapter.safetensors` holds what the method keeps of its trained variables, by
default all, under their names in checkpoints, and nothing else. Of a method
that changes few entries of BERT's own variables, it holds those entries:
`<variable>/indices`, int32 into the flattened variable, and
`<variable>/values`, what is there now. So are the changes stored of adapters
that are parts of the method, if most of them are zero.
"""

import dataclasses
import hashlib
import os
from typing import Any, Callable, Container, Dict, List, Optional, Tuple

import numpy as np
import safetensors.numpy

from adapter_bert import files
from adapter_bert.checkpoints import run_record
from adapter_bert.checkpoints.weights import (
    UNREADABLE_TENSORS,
    Weights,
    as_floats,
)
from adapter_bert.errors import UserError
from adapter_bert.methods.base import changed_by

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter.safetensors"

BERT = "bert/"
INDICES, VALUES = "/indices", "/values"


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A trained task: megabytes to put beside a frozen BERT.

    Attributes:
        config: `adapter_config.json`: method, task, labels, base fingerprint,
            versions, file hash.
        weights: the trained variables.
    """

    config: Dict[str, Any]
    weights: Weights


def changes(
    values: Dict[str, np.ndarray],
    base: Callable[[str], np.ndarray],
    own: Container[str],
) -> Dict[str, np.ndarray]:
    """BERT's own variables as the entries that differ from the base's.

    Args:
        values: trained variables by name.
        base: reads one of BERT's own as it was pretrained.
        own: the names of those; adapters within BERT are none.

    Returns:
        `<variable>/indices` and `<variable>/values` of those that differ
        anywhere; what BERT itself does not have as it is.
    """
    found: Dict[str, np.ndarray] = {}
    for name, value in values.items():
        if name not in own:
            found[name] = value
            continue
        # Not equal as bits, so that nothing is lost, not even a sign of zero.
        flat = np.ascontiguousarray(value, np.float32).ravel()
        before = np.ascontiguousarray(base(name), np.float32).ravel()
        indices = np.flatnonzero(flat.view(np.int32) != before.view(np.int32))
        if indices.size:
            found[name + INDICES] = indices.astype(np.int32)
            found[name + VALUES] = flat[indices]
    return found


def few(values: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Parts' values, those that are mostly zero as the entries that are not."""
    found: Dict[str, np.ndarray] = {}
    for name, value in values.items():
        indices = np.flatnonzero(value)
        if changed_by(name) and 2 * indices.size < value.size:
            found[name + INDICES] = indices.astype(np.int32)
            found[name + VALUES] = value.ravel()[indices]
        else:
            found[name] = value
    return found


def count(values: Dict[str, np.ndarray]) -> int:
    """How many numbers an artifact holds, the places of changes left out."""
    return sum(
        value.size
        for name, value in values.items()
        if not name.endswith(INDICES)
    )


def _apply(stored: Dict[str, np.ndarray], base: Weights, path: str) -> Weights:
    """The variables whose changes are stored.

    Raises:
        UserError: a change is of a variable or place that the base lacks.
    """
    changed = [n[: -len(INDICES)] for n in stored if n.endswith(INDICES)]
    shapes = {
        name: value.shape
        for name, value in stored.items()
        if not name.endswith((INDICES, VALUES))
    }
    for variable in changed:
        # That of BERT, which a part may change.
        original = changed_by(variable) or variable
        shapes[variable] = base.shapes.get(original, ())
        _check_changes(variable, shapes[variable], stored, base, path)
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


def _check_changes(variable, shape, stored, base, path) -> None:
    """Compares the places of changes with the base's variable."""
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
            "trained upon"
        )


def write(
    folder: str, config: Dict[str, Any], values: Dict[str, np.ndarray]
) -> None:
    """Writes `adapter.safetensors`, then `adapter_config.json` with its hash.

    Raises:
        UserError: a file cannot be written.
    """
    content = safetensors.numpy.save(
        {name: np.ascontiguousarray(value) for name, value in values.items()}
    )
    config = dict(config, sha256=hashlib.sha256(content).hexdigest())
    files.write_bytes(os.path.join(folder, WEIGHTS_FILE), content)
    files.write_sealed(os.path.join(folder, CONFIG_FILE), config)


def read_config(folder: str) -> Dict[str, Any]:
    """Reads `adapter_config.json` alone.

    Raises:
        UserError: it is missing or damaged.
    """
    path = os.path.join(folder, CONFIG_FILE)
    if not files.exists(path):
        near = list(filter(_is_adapter, _near(folder)))
        if near:
            raise UserError(
                f"{folder} is no folder of an adapter, expected "
                f"{CONFIG_FILE} in it; pass {' or '.join(near)[:500]}"
            )
    return run_record.read_description(path, "the adapter's description")


def _is_adapter(folder: str) -> bool:
    return files.exists(os.path.join(folder, CONFIG_FILE))


def _near(folder: str) -> List[str]:
    """Where an adapter may be meant: in a run, a shelf, or by its file."""
    if files.is_folder(folder):
        inner = [os.path.join(folder, name) for name in files.folders(folder)]
        return inner + [os.path.join(place, "adapter") for place in inner]
    is_file = files.exists(folder)
    return [os.path.dirname(folder) or os.curdir] if is_file else []


def read(folder: str, base: Optional[Weights] = None) -> Artifact:
    """Reads an adapter artifact.

    Args:
        folder: of the two files.
        base: the pretrained model, to which stored changes are applied;
            without one there are only its other variables.

    Raises:
        UserError: a file is missing or damaged, or the two do not belong
            together.
    """
    path = os.path.join(folder, WEIGHTS_FILE)

    def read_both(config: Dict[str, Any]) -> Tuple[Dict[str, Any], bytes]:
        content = files.read_bytes(path, "the adapter's weights")
        if hashlib.sha256(content).hexdigest() != config.get("sha256"):
            raise UserError(
                f"{path} is damaged or was written with another "
                f"{CONFIG_FILE}; copy the adapter again, or wait for the run "
                "that writes it"
            )
        return config, content

    # Another adapter may come into the folder between the two files.
    config, content = files.read_newest(lambda: read_config(folder), read_both)
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
