"""Named tensors, and where each variable's first value is from.

Readers of the publishers' layouts (`google.py`, `hugging_face.py`) give all
names as Google's checkpoints have them.
"""

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.bert.encoder import BertConfig, Shape
from adapter_bert.errors import UserError
from adapter_bert.tasks.task_model import Parameter

# Before the name of a repository of Hugging Face's hub.
HUB = "hf:"
POOLER = "bert/pooler/"
# Variables with a row for each label; all variables of such a head.
OUTPUTS = ("output_weights", "output_bias")
HEAD = re.compile(r"output_(weights|bias)|hidden_(weights|bias)_\d+")


@dataclasses.dataclass(frozen=True)
class Weights:
    """Named tensors, each read on demand.

    Attributes:
        source: their path, for messages.
        shapes: shape by Google's variable name.
        read: name -> float32 array of that shape.
        gelu: name in `functional.ACTIVATIONS` of the function that the
            publisher's configs call `gelu`.
        hub: name of their repository and commit at Hugging Face's hub, as
            `hugging_face_hub` has it, or "".
    """

    source: str
    shapes: Mapping[str, Shape]
    read: Callable[[str], np.ndarray]
    gelu: str = "gelu"
    hub: str = ""

    def read_all(self) -> dict[str, np.ndarray]:
        """Reads every tensor."""
        return {name: self.read(name) for name in self.shapes}


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """Holds a pretrained BERT, and what its own files say next to its weights.

    Attributes:
        path: as given, with a folder resolved to the file or prefix in it.
        folder: where the vocabulary and the config lie by default.
        weights: of the BERT.
        config: its sizes, or None if a file next to it has them.
        vocab_file: path of its vocabulary; "" for the file next to it.
        do_lower_case: whether texts are lower-cased; None if no file says.
        num_attention_heads: as its weights' shapes tell, or None.
        labels: of its head's outputs, in order; none if no file says.
        head: its config's fields about its head, under Hugging Face's names.
        read_pooled: reads how its vectors are made, if it lies in a folder of
            sentence-transformers.
        trained: own variables of a training checkpoint at `path`, else None.
        run: `run.json` of that training, else None.
    """

    path: str
    folder: str
    weights: Weights
    config: Optional[BertConfig] = None
    vocab_file: str = ""
    do_lower_case: Optional[bool] = None
    num_attention_heads: Optional[int] = None
    labels: tuple[str, ...] = ()
    head: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    read_pooled: Optional[Callable[[], Any]] = None
    trained: Optional[Weights] = None
    run: Optional[dict[str, Any]] = None

    @property
    def pooled(self) -> Optional[Any]:
        """Reads the `Pooled` of its vectors, or gives None."""
        return self.read_pooled and self.read_pooled()


@dataclasses.dataclass(frozen=True)
class Base:
    """Identifies a pretrained BERT.

    Attributes:
        path: of its weights on this machine.
        fingerprint: SHA-256 of its variables, equal in every file format.
        hub: the same as in its `Weights`.
    """

    path: str
    fingerprint: str
    hub: str = ""

    def describe(self) -> dict[str, str]:
        """Tells the identity on any machine, and the folder's name."""
        if self.hub:
            name = os.path.basename(self.hub.partition("@")[0])
            identity = {"name": name, "fingerprint": self.fingerprint}
            return {**identity, "hub": self.hub}
        folder, name = os.path.split(os.path.dirname(files.absolute(self.path)))
        if name.isdigit():  # The version of a module.
            name = os.path.basename(folder)
        return {"name": name, "fingerprint": self.fingerprint}


def identify(weights: Weights, variables: Mapping[str, Shape]) -> Base:
    """Reads a whole BERT, whose pooler may be missing, for its fingerprint.

    `variables` are those of `encoder.list_variables`.
    """
    digest = hashlib.sha256()
    has_pooler = any(name.startswith(POOLER) for name in weights.shapes)
    for name in sorted(variables):
        if has_pooler or not name.startswith(POOLER):
            check_shape(weights, name, variables[name])
            digest.update(name.encode() + b"\0")
            digest.update(np.ascontiguousarray(weights.read(name)).data)
    source = files.absolute(weights.source)
    return Base(source, digest.hexdigest(), weights.hub)


def check_shape(weights: Weights, name: str, shape: Shape) -> None:
    """Refuses a variable that is missing or of another shape."""
    actual = weights.shapes.get(name)
    if actual is None:
        if name.startswith(POOLER) and not any(
            other.startswith(POOLER) for other in weights.shapes
        ):
            raise UserError(
                f"{weights.source} lacks the variable {name}: it was saved "
                "without BERT's pooler, which this task's head reads; take the "
                "BERT that it was made of"
            )
        raise UserError(
            f"{weights.source} lacks the variable {name}: it is no checkpoint "
            "of this BERT config"
        )
    if actual != shape:
        raise UserError(
            f"{weights.source}: {name} has the shape {list(actual)}, but the "
            f"config and method need {list(shape)}; check "
            "--bert_config_file, the labels and the adapter size"
        )


def as_floats(value: np.ndarray) -> np.ndarray:
    """Converts real numbers to float32; raises TypeError for other types."""
    if value.dtype.kind == "c":
        raise TypeError(f"{value.dtype} is no type of real numbers")
    # Too large numbers become infinite; callers check for that.
    with np.errstate(over="ignore"):
        return np.asarray(value, np.float32)


def widened(halves: np.ndarray) -> np.ndarray:
    """Reads uint16 values of bfloat16 as float32."""
    return (halves.astype(np.uint32, order="C") << 16).view(np.float32)


InitialValues = dict[str, Callable[[], np.ndarray]]


def choose_initial_values(
    variables: Iterable[Parameter],
    base: Weights,
    trained: Optional[Weights],
    seed: int,
    fresh_head: bool = False,
    parts: Optional[Weights] = None,
    new_head: bool = False,
) -> InitialValues:
    """Chooses the source of every variable's first value.

    Returns functions that make the float32 arrays, by name.

    Args:
        variables: of the model.
        base: the pretrained model; may hold adapters and a head as well.
        trained: an adapter artifact or a training checkpoint with all trained
            variables, or None.
        seed: of fresh adapters and heads.
        fresh_head: whether a fresh head replaces the base's of another shape.
        parts: of trained adapters in a composition; else they must be in
            `trained`.
        new_head: whether the head is not that of `trained`.
    """

    def choose(p: Parameter) -> Callable[[], np.ndarray]:
        source = _source(p, base, trained, new_head)
        if p.group == "parts":
            candidates = [w for w in (parts, trained) if w is not None] or [
                base
            ]
            source = next(
                (w for w in candidates if p.name in w.shapes), candidates[0]
            )
        elif source is base and p.is_added:
            if (
                fresh_head
                and p.group == "head"
                and base.shapes[p.name] != p.shape
            ):
                logging.info("%s: fresh, the base's has another shape", p.name)
                source = None
            else:
                logging.info("%s: taken from %s", p.name, base.source)
        if source is None:
            return functools.partial(
                encoder.initial_values,
                p.begins_as,
                p.shape,
                p.initializer,
                seed,
                base.read,
            )
        name = _name_in(source, p)
        check_shape(source, name, p.shape)
        return functools.partial(source.read, name)

    return {p.name: choose(p) for p in variables}


def start_fingerprint(
    variables: Iterable[Parameter],
    base: Weights,
    trained: Optional[Weights],
    new_head: bool = False,
) -> Optional[str]:
    """Hashes what a training starts from besides BERT; None for nothing.

    Reads each of them, so that damage is found before training.
    """
    digest, is_any = hashlib.sha256(), False
    for p in variables:
        source = _source(p, base, trained, new_head)
        is_of_bert = source is base and not p.is_added
        if p.group != "parts" and source is not None and not is_of_bert:
            is_any = True
            value = source.read(_name_in(source, p))
            digest.update(p.name.encode() + b"\0")
            digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest() if is_any else None


def _source(
    p: Parameter, base: Weights, trained: Optional[Weights], new_head: bool
) -> Optional[Weights]:
    """Finds what holds a variable's first value; None if it is drawn."""
    is_new = not p.trained or new_head and p.group == "head"
    if trained is not None and not is_new:
        return trained
    return base if not p.is_added or p.begins_as in base.shapes else None


def _name_in(source: Weights, p: Parameter) -> str:
    return p.name if p.name in source.shapes else p.begins_as
