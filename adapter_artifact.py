"""The adapter artifact: a trained task as a folder of a few megabytes.

`adapter_config.json` says what was trained upon which base;
`adapter.safetensors` holds every trained variable, under its name in
checkpoints, and nothing else.
"""

import dataclasses
import hashlib
import os
from typing import Any, Dict

import numpy as np
import safetensors
import safetensors.numpy

import checkpoints
import files
import run_record
from errors import UserError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter.safetensors"


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A trained task: megabytes to put beside a frozen BERT.

    Attributes:
        config: `adapter_config.json`: method, task, labels, base fingerprint,
            versions, file hash.
        weights: the trained variables.
    """

    config: Dict[str, Any]
    weights: checkpoints.Weights


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
    files.write_json(os.path.join(folder, CONFIG_FILE), config)


def read(folder: str) -> Artifact:
    """Reads an adapter artifact.

    Raises:
        UserError: a file is missing or damaged, or the two do not belong
            together.
    """
    config_path = os.path.join(folder, CONFIG_FILE)
    config = run_record.read_description(
        config_path, "the adapter's description"
    )
    path = os.path.join(folder, WEIGHTS_FILE)
    content = files.read_bytes(path, "the adapter's weights")
    if hashlib.sha256(content).hexdigest() != config.get("sha256"):
        raise UserError(
            f"{path} is damaged or was written with another "
            f"{CONFIG_FILE}; copy the adapter again"
        )
    try:
        values = {
            name: np.asarray(value, np.float32)
            for name, value in safetensors.numpy.load(content).items()
        }
    except (safetensors.SafetensorError, TypeError, KeyError) as error:
        raise UserError(f"{path} is no safetensors file: {error}") from error
    shapes = {name: value.shape for name, value in values.items()}
    return Artifact(
        config, checkpoints.Weights(path, shapes, values.__getitem__)
    )
