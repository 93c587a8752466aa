"""Other programs' adapters, read as this project's, and written from them.

A program is a module with

- `MARK`, a key that only its descriptions have;
- `read(path, config, options)` of a description, the BERT and `HeadOptions`,
  which returns the method, its float32 variables, the head, and the origin;
- `write(exported)`, which returns the files' contents by name: a value for
  JSON, bytes, or tensors by name.

Both raise UserError for what the other side cannot compute.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig, list_variables
from adapter_bert.checkpoints import written_form
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.data.table_flags import is_one_cell
from adapter_bert.errors import UserError
from adapter_bert.exchange import adapterhub, peft
from adapter_bert.exchange.foreign_base import (
    Exported,
    Foreign,
    as_exchanged,
    for_all_layers,
    task_of,
)
from adapter_bert.exchange.foreign_heads import HeadOptions, masked_lm_shapes
from adapter_bert.exchange.peft import LAYER_NORM
from adapter_bert.methods.fine_tuning import LayerNormOnly
from adapter_bert.tasks.kinds import MASKED_LM
from adapter_bert.tasks.masked_lm import WORD_EMBEDDINGS

PROGRAMS: dict[str, Any] = {"adapterhub": adapterhub, "peft": peft}
CONFIG_FILE = "adapter_config.json"
# Of AdapterHub's folders of adapters that answer together.
COMPOSITIONS = "adapter_setup.json", "adapter_fusion_config.json"


def detect(folder: str) -> Optional[str]:
    """Names the program that has written an adapter, if one has."""
    path = os.path.join(folder, CONFIG_FILE)
    if files.exists(path):
        config = files.read_json(path, "an adapter's description")
        for name, program in PROGRAMS.items():
            if isinstance(config, dict) and program.MARK in config:
                return name
    return None


def choose(folder: str, name: str = "") -> str:
    """Chooses the folder of an adapter: that one, or one in it.

    Programs save several adapters in a folder for each, peft the first of them
    outside. `name` is that of a folder, or of an adapter in its description.
    """
    inner = sorted(files.folders(folder)) if files.is_folder(folder) else []
    places = [folder, *(os.path.join(folder, below) for below in inner)]
    places = list(filter(detect, places))
    if not name and (folder in places or not places):
        return folder
    names = {place: [os.path.basename(place)] for place in places}
    for place, of_place in names.items():
        path = os.path.join(place, CONFIG_FILE)
        described = files.read_json(path, "an adapter's description")
        of_place.append(str(described.get("name", of_place[0])))
    meant = [place for place in places if not name or name in names[place]]
    if len(meant) != 1:
        shown = ", ".join(last for *_, last in names.values())
        raise UserError(
            f"{folder} holds {len(places)} adapters, {shown[:200]}; "
            f"{len(meant)} are meant; name one (--adapter), or pass a --name "
            "for each, with commas between them"
        )
    return meant[0]


def read_all(
    folder: str,
    config: BertConfig,
    pairs: Optional[bool] = None,
    labels: Sequence[str] = (),
    multi_label: bool = False,
    several: bool = False,
) -> dict[str, Foreign]:
    """Reads the adapter of a folder, or those in it, with a head each.

    Args:
        folder: of the other program's files.
        config: of the BERT that they were trained on.
        pairs: whether texts are pairs, None for either.
        labels: of a head, in the order of the logits; by default the files'.
        multi_label: whether rows have any number of labels, which not all
            files say.
        several: whether folders in one that holds an adapter are read too.

    Returns:
        The adapters, by the names that the other program has for them.
    """
    places = [folder]
    if (several or not detect(folder)) and files.is_folder(folder):
        places += [os.path.join(folder, name) for name in files.folders(folder)]
    options = HeadOptions(tuple(labels), multi_label)
    adapters: dict[str, Foreign] = {}
    for place in places:
        for name in COMPOSITIONS:
            if files.exists(os.path.join(place, name)):
                raise UserError(
                    f"{place} holds a composition ({name}), which is not read; "
                    "name one of its adapters (--adapter), or save each alone"
                )
        program = detect(place)
        if program:
            foreign = _read(program, place, config, pairs, options)
            name = foreign.origin.get("name") or os.path.basename(place)
            if name in adapters:
                raise UserError(
                    f"{folder} holds two adapters that are called "
                    f"{name[:80]!r}; name the folder of one (--adapter)"
                )
            adapters[name] = foreign
    if not adapters:
        raise UserError(
            f"{folder} is no adapter of {' or '.join(PROGRAMS)}: there is no "
            f"{CONFIG_FILE} of theirs"
        )
    return adapters


def _read(
    program: str,
    folder: str,
    config: BertConfig,
    pairs: Optional[bool],
    options: HeadOptions,
) -> Foreign:
    path = os.path.join(folder, CONFIG_FILE)
    # Values that are not finite are refused when the adapter is written.
    with np.errstate(over="ignore", invalid="ignore"):
        method, values, head, origin = PROGRAMS[program].read(
            path, as_exchanged(config), options
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
    method.check(config)
    return Foreign(
        method,
        task,
        {**for_all_layers(values, config), **head_values},
        {"program": program, **origin},
        head.words,
        head.pooled.max_seq_length if head.pooled else None,
    )


def complete(foreign: Foreign, weights: Weights, config: BertConfig) -> Foreign:
    """Adds what an adapter has of its BERT.

    That is the head of masked words, if it has none, and LayerNorms.
    """
    if foreign.words is not None and not np.array_equal(
        foreign.words, weights.read(WORD_EMBEDDINGS)
    ):
        raise UserError(
            "the adapter was saved with other word embeddings than those of "
            f"{weights.source}; expected the BERT of the adapter, whose own "
            "they are"
        )
    if isinstance(foreign.method, LayerNormOnly):
        # LayerNorms that were not trained are those of the BERT.
        names = (n for n in list_variables(config) if LAYER_NORM in n)
        pretrained = {name: weights.read(name) for name in names}
        values = {**pretrained, **foreign.values}
        foreign = dataclasses.replace(foreign, values=values)
    if foreign.task["name"] != MASKED_LM:
        return foreign
    of_adapter, of_bert = (
        [name for name in masked_lm_shapes(config) if name in names]
        for names in (foreign.values, weights.shapes)
    )
    if of_adapter:
        return foreign
    if not of_bert:
        raise UserError(
            f"neither the adapter nor {weights.source} has a head of masked "
            "words; expected a BERT with its pretrained head"
        )
    pretrained = {name: weights.read(name) for name in of_bert}
    return dataclasses.replace(foreign, values={**foreign.values, **pretrained})


def write(
    program: str,
    folder: str,
    exported: Exported,
    card: str,
) -> None:
    """Writes an adapter, with a card, for one of `PROGRAMS`."""
    reason = PROGRAMS[program].lack(exported)
    if reason:
        others = [
            f"; write it for {name}"
            for name, other in PROGRAMS.items()
            if exported.head is not None and not other.lack(exported)
        ]
        raise UserError(
            f"{exported.source} is not written for {program}: {reason}"
            f"{''.join(others)}"
        )
    contents = PROGRAMS[program].write(exported)
    with files.new_folder(folder) as place:
        written_form.write_files(place, contents)
        files.write_text(os.path.join(place, "README.md"), card)
