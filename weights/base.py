"""What weights are: named tensors; where each variable's first value is from.

Readers of the publishers' layouts (`google.py`, `hugging_face.py`) give all
names as Google's checkpoints have them.
"""

import dataclasses
import functools
import hashlib
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np
from absl import logging

import modeling
from errors import UserError


@dataclasses.dataclass(frozen=True)
class Weights:
    """Named tensors that are read when they are asked for.

    Attributes:
        source: where they come from, for messages.
        shapes: shape by Google's variable name.
        read: name -> float32 array of that shape.
        gelu: what the publisher computes where the config says `gelu`, a name
            of `functional.ACTIVATIONS`.
    """

    source: str
    shapes: Mapping[str, Tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    gelu: str = "gelu"


def fingerprint(weights: Weights, table: Any) -> str:
    """SHA-256 of a BERT's own variables: equal in every file format.

    Args:
        weights: holds every BERT variable of the table.
        table: a `ParameterTable`; adapters and head do not count.

    Raises:
        UserError: a variable is missing, of another shape, or unreadable.
    """
    digest = hashlib.sha256()
    for p in sorted(table.parameters, key=lambda p: p.name):
        if not p.is_added:
            check_shape(weights, p)
            digest.update(p.name.encode() + b"\0")
            digest.update(np.ascontiguousarray(weights.read(p.name)).data)
    return digest.hexdigest()


def check_shape(weights: Weights, parameter: Any) -> None:
    """Compares what a source holds with what the model needs.

    Raises:
        UserError: the variable is missing or of another shape.
    """
    name = parameter.name
    found = weights.shapes.get(name)
    if found is None:
        raise UserError(
            f"{weights.source} lacks the variable {name}: it is no checkpoint "
            "of this BERT config"
        )
    if found != parameter.shape:
        raise UserError(
            f"{weights.source}: {name} has the shape {list(found)}, but the "
            f"config and method need {list(parameter.shape)}; check "
            "--bert_config_file, the labels and the adapter size"
        )


InitialValues = Dict[str, Callable[[], np.ndarray]]


def choose_initial_values(
    table: Any,
    base: Weights,
    trained: Optional[Weights],
    seed: int,
    fresh_head: bool = False,
) -> InitialValues:
    """Says for every variable where its first value comes from.

    Args:
        table: a `ParameterTable`.
        base: the pretrained model; may hold adapters and a head as well.
        trained: an adapter artifact or a training checkpoint, or None; must
            hold every trained variable.
        seed: of fresh adapters and heads.
        fresh_head: whether a head of the base that has another shape is
            replaced by a fresh one, to be trained.

    Returns:
        Name -> function that makes the float32 array.

    Raises:
        UserError: a variable is missing or of another shape.
    """

    def choose(p: Any) -> Callable[[], np.ndarray]:
        fresh = functools.partial(
            modeling.initial_values, p.name, p.shape, p.initializer, seed
        )
        if p.trained and trained is not None:
            source = trained
        elif not p.is_added:
            source = base
        elif p.name not in base.shapes:
            return fresh
        elif (
            fresh_head and p.group == "head" and base.shapes[p.name] != p.shape
        ):
            logging.info("%s: fresh, the base's has another shape", p.name)
            return fresh
        else:
            logging.info("%s: taken from %s", p.name, base.source)
            source = base
        check_shape(source, p)
        return functools.partial(source.read, p.name)

    return {p.name: choose(p) for p in table.parameters}


def start_fingerprint(
    table: Any, base: Weights, trained: Optional[Weights]
) -> Optional[str]:
    """SHA-256 of what a training starts from beside BERT, or None.

    Reads every such tensor, so that damage is found before training.

    Raises:
        UserError: a tensor cannot be read.
    """
    digest, found = hashlib.sha256(), False
    for p in table.parameters:
        source = trained if p.trained and trained is not None else base
        if source is base and (not p.is_added or p.name not in base.shapes):
            continue
        found = True
        digest.update(p.name.encode() + b"\0")
        digest.update(np.ascontiguousarray(source.read(p.name)).data)
    return digest.hexdigest() if found else None
