"""Names of a Hugging Face model where a BERT is written in its layout."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from adapter_bert.bert.architectures import (
    ARCHITECTURES,
    FIRST_OF_HEAD,
    Architecture,
)
from adapter_bert.bert.encoder import POOLER
from adapter_bert.checkpoints.hugging_face import (
    HEAD_CLASSES,
    RERANK,
    SCOPES,
    _renaming,
)
from adapter_bert.checkpoints.weights import Weights

# The first layer of a head -> the pooler, transposed.
POOLER_OF_LAYER = {
    FIRST_OF_HEAD.format(end="weights"): f"{POOLER}/kernel",
    FIRST_OF_HEAD.format(end="bias"): f"{POOLER}/bias",
}


def pooler_of(model: Architecture) -> str:
    """Names the module of the pooler, in full."""
    scopes = {ours: theirs for theirs, ours, _ in (*SCOPES, *model.scopes)}
    return model.prefix + scopes[f"{POOLER}/{{end}}"]


@functools.cache
def _modules(model_type: str, to_bert: bool) -> Callable[[str], Optional[str]]:
    """Renames modules of an architecture to BERT's in their place, or back."""
    # Modules within others come first.
    model = ARCHITECTURES[model_type]
    pairs = list(model.modules.items())
    for theirs, ours, _ in model.scopes:
        if ours.startswith("bert/"):
            ours = ours[len("bert/") : -len("/{end}")]
            ours = re.sub(r"(layer|group)_", "layer/", ours)
            pairs.append((ours.replace("/", "."), theirs))
    pairs.sort(key=lambda pair: -len(pair[0]))
    if to_bert:
        pairs = [(theirs, ours) for ours, theirs in pairs]
    return _renaming(pairs, ".", r"(?![^.])")


def as_bert(name: str, model_type: str) -> str:
    """Gives the name of a module or tensor in a BERT; others stay.

    Shared layers are the layer 0.
    """
    rest = name.removeprefix(ARCHITECTURES[model_type].prefix)
    module = _modules(model_type, to_bert=True)(rest)
    if module is None and rest == name:
        return name
    return f"bert.{module or rest}"


def from_bert(name: str, model_type: str) -> str:
    """Inverts `as_bert`."""
    if not name.startswith("bert."):
        return name
    rest = name.removeprefix("bert.")
    module = _modules(model_type, to_bert=False)(rest)
    return ARCHITECTURES[model_type].prefix + (module or rest)


def describe_head(
    kind: str, labels: Sequence[str], model_type: str = "bert"
) -> dict[str, Any]:
    """Fields of a head of a kind of `HEAD_CLASSES` in transformers' config.

    `labels` are those of the outputs, in order, if these have any.
    """
    end, problem = HEAD_CLASSES[kind]
    [name, *_] = ARCHITECTURES[model_type].classes
    fields: dict[str, Any] = {"architectures": [f"{name}{end}"]}
    if problem:
        fields["problem_type"] = problem
    if kind in ("regression", RERANK):
        labels = ["LABEL_0"]
    if labels:
        fields["num_labels"] = len(labels)
        fields["id2label"] = {str(i): label for i, label in enumerate(labels)}
        fields["label2id"] = {label: i for i, label in enumerate(labels)}
    return fields


def with_pooler_as_layer(weights: Weights) -> Weights:
    """Adds the pooler as the first layer of a head, which reads it so."""

    def read(name: str) -> np.ndarray:
        value = weights.read(POOLER_OF_LAYER.get(name, name))
        is_layer = name in POOLER_OF_LAYER
        return np.ascontiguousarray(value.T) if is_layer else value

    shapes = {
        name: weights.shapes[source][::-1]
        for name, source in POOLER_OF_LAYER.items()
        if source in weights.shapes
    }
    shapes.update(weights.shapes)
    return dataclasses.replace(weights, shapes=shapes, read=read)


def pooler_of_layer(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Names the first layer of a head as the pooler, float32 arrays by name."""
    return {
        POOLER_OF_LAYER.get(name, name): value.T
        if name in POOLER_OF_LAYER
        else value
        for name, value in values.items()
    }
