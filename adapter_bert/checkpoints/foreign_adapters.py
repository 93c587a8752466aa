"""Other programs' adapters, read as this project's, and written from them.

A program is a module with

- `MARK`, a key that only its descriptions have;
- `read(path, config, told)` of a description, the BERT and a `Told`, which
  returns the method, its float32 variables by name, the head, and the origin;
- `write(exported)`, which returns the files' contents by name: an object for
  JSON, or tensors by name.

Both raise UserError for what the other side cannot compute.
"""

import dataclasses
import os
from typing import Any, Dict, Optional, Sequence

import numpy as np
import safetensors.numpy

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import adapterhub, peft
from adapter_bert.checkpoints.foreign_base import (
    MASKED_LM_SCOPE,
    Exported,
    Foreign,
    check_is_bert,
    task_of,
)
from adapter_bert.checkpoints.foreign_heads import Told
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.data.tables import is_one_cell
from adapter_bert.errors import UserError
from adapter_bert.tasks.kinds import MASKED_LM
from adapter_bert.tasks.masked_lm import WORD_EMBEDDINGS

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


def choose(folder: str, name: str = "") -> str:
    """The folder of an adapter: that one, or one of the folders in it.

    Programs save several adapters in a folder for each, peft the first of them
    outside. `name` is that of a folder, or of an adapter in its description.

    Raises UserError if no adapter, or not one alone, has the name.
    """
    places: Dict[str, str] = {}
    inner = sorted(files.folders(folder)) if files.is_folder(folder) else []
    for place in (folder, *(os.path.join(folder, part) for part in inner)):
        if detect(place):
            path = os.path.join(place, CONFIG_FILE)
            own = files.read_json(path, "an adapter's description").get("name")
            places[place] = own if isinstance(own, str) else ""
    if not name and (folder in places or not places):
        return folder
    found = [
        place
        for place, own in places.items()
        if not name or name in (own, os.path.basename(place))
    ]
    if len(found) != 1:
        names = (own or os.path.basename(p) for p, own in places.items())
        raise UserError(
            f"{folder} holds {len(places)} adapters, {', '.join(names)[:200]}; "
            f"{len(found)} are meant; name one (--adapter)"
        )
    return found[0]


def read(
    folder: str,
    config: BertConfig,
    pairs: Optional[bool] = None,
    labels: Sequence[str] = (),
    multi_label: bool = False,
) -> Foreign:
    """Reads the adapter of a folder, that was trained on the BERT of a config.

    `pairs` says whether texts are pairs, None for either; `labels` are in the
    order of the logits, by default the files'; `multi_label` says that rows
    have any number of labels, which not all files say. Raises UserError if no
    known program has written it, it cannot be read, a label is no name, or the
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
            path, config, Told(tuple(labels), multi_label)
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
    values = {**values, **head_values}
    return Foreign(method, task, values, origin, head.words)


def complete(foreign: Foreign, weights: Weights) -> Foreign:
    """An adapter of masked words with its BERT's own head, if it has none.

    Raises UserError if the head was saved with other word embeddings than
    those of the BERT's `weights`, or neither has a head.
    """
    if foreign.task["name"] != MASKED_LM:
        return foreign
    if foreign.words is not None and not np.array_equal(
        foreign.words, weights.read(WORD_EMBEDDINGS)
    ):
        raise UserError(
            "the adapter's head of masked words has other word embeddings than "
            f"{weights.source}; expected the BERT of the adapter, whose own "
            "they are"
        )
    of_adapter, of_bert = (
        [name for name in names if name.startswith(MASKED_LM_SCOPE)]
        for names in (foreign.values, weights.shapes)
    )
    if of_adapter:
        return foreign
    if not of_bert:
        raise UserError(
            f"neither the adapter nor {weights.source} has a head of masked "
            "words; expected a BERT with its pretrained head"
        )
    own = {name: weights.read(name) for name in of_bert}
    return dataclasses.replace(foreign, values={**foreign.values, **own})


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
