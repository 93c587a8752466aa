"""Other programs' adapters, read as this project's, and written from them.

A program is a module with

- `MARK`, a key that only its descriptions have;
- `read(path, config, labels)` of a description, the BERT and the labels, which
  returns the method, its float32 variables by name, the head, and the origin;
- `write(exported)`, which returns the files' contents by name: an object for
  JSON, or tensors by name.

Both raise UserError for what the other side cannot compute.
"""

import os
from typing import Any, Dict, Optional, Sequence

import numpy as np
import safetensors.numpy

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import adapterhub, peft
from adapter_bert.checkpoints.foreign_base import (
    Exported,
    Foreign,
    check_is_bert,
    task_of,
)
from adapter_bert.data.tables import is_one_cell
from adapter_bert.errors import UserError

PROGRAMS: Dict[str, Any] = {"adapterhub": adapterhub, "peft": peft}
CONFIG_FILE = "adapter_config.json"


def detect(folder: str) -> Optional[str]:
    """The name of the program that has written an adapter, or None."""
    path = os.path.join(folder, CONFIG_FILE)
    if files.exists(path):
        config = files.read_json(path, "an adapter's description")
        for name, program in PROGRAMS.items():
            if isinstance(config, dict) and program.MARK in config:
                return name
    return None


def read(
    folder: str,
    config: BertConfig,
    pairs: Optional[bool] = None,
    labels: Sequence[str] = (),
) -> Foreign:
    """Reads the adapter of a folder, that was trained on the BERT of a config.

    `pairs` says whether texts are pairs, None for either; `labels` are in the
    order of the logits, by default the files'. Raises UserError if no known
    program has written it, it cannot be read, a label is no name, or the
    model is a RoBERTa.
    """
    check_is_bert(config, folder)
    program = detect(folder)
    if program is None:
        raise UserError(
            f"{folder} is no adapter of {' or '.join(PROGRAMS)}: there is no "
            f"{CONFIG_FILE} of theirs"
        )
    path = os.path.join(folder, CONFIG_FILE)
    # Values that are not finite are refused when the adapter is written.
    with np.errstate(over="ignore", invalid="ignore"):
        method, values, head, origin = PROGRAMS[program].read(
            path, config, tuple(labels)
        )
    if labels and not head.labels:
        raise UserError(
            f"{folder} has a head without labels; leave out --label"
        )
    if len(set(head.labels)) < len(head.labels):
        raise UserError(f"{folder}: two labels have one name")
    for label in head.labels:
        # Labels are cells of tables.
        if not is_one_cell(label):
            raise UserError(
                f"{folder}: the label {label[:80]!r} is empty, or holds a tab "
                "or a line break; name the labels yourself (--label)"
            )
    task, head_values = task_of(head, pairs)
    origin = {"program": program, **origin}
    return Foreign(method, task, {**values, **head_values}, origin)


def write(program: str, folder: str, exported: Exported, card: str) -> None:
    """Writes an adapter, with a card, for one of `PROGRAMS`.

    Raises UserError if the program cannot compute it, or the folder is not
    empty.
    """
    contents = PROGRAMS[program].write(exported)
    with files.new_folder(folder) as place:
        for name, content in contents.items():
            path = os.path.join(place, name)
            if name.endswith(".json"):
                files.write_json(path, content)
            else:
                tensors = {k: v.copy(order="C") for k, v in content.items()}
                # transformers and its kin look for the framework.
                data = safetensors.numpy.save(tensors, {"format": "pt"})
                files.write_bytes(path, data)
        files.write_text(os.path.join(place, "README.md"), card)
