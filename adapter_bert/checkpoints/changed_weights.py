"""A model's weights with other labels, without a head, or rounded to int8."""

import dataclasses
from collections.abc import Container, Sequence

import numpy as np

from adapter_bert.checkpoints.weights import HEAD, OUTPUTS, Weights
from adapter_bert.errors import UserError


def with_labels(
    weights: Weights, named: Sequence[str], labels: Sequence[str]
) -> Weights:
    """Puts the outputs of a base's head in the order of a task's labels.

    The base is without its head if the labels that its head has (`named`) are
    others, by more than the case of letters. If the task's labels are the
    numbers from 0, each is the output of that number; else the base is as it is
    if one side is unknown or the head's labels are those numbers.
    """
    numbers = [str(number) for number in range(len(labels))]
    if {*numbers} == {*labels} != {*named}:
        # Sorted as texts, "10" comes before "2".
        named = numbers
    if not named or not labels:
        return weights
    theirs, ours = list(named), list(labels)
    if sorted(theirs) != sorted(ours):
        theirs, ours = ([x.lower() for x in some] for some in (named, labels))
    fits = all(
        weights.shapes[name][:1] == (len(theirs),)
        for name in OUTPUTS
        if name in weights.shapes
    )
    is_same = sorted(theirs) == sorted(ours) and len(set(ours)) == len(ours)
    if not is_same and {*numbers} == {*theirs}:
        return weights
    if not is_same or not fits:
        return without_head(weights)
    order = [theirs.index(label) for label in ours]

    def read(name: str) -> np.ndarray:
        value = weights.read(name)
        return value[order] if name in OUTPUTS else value

    return dataclasses.replace(weights, read=read)


def without_head(weights: Weights) -> Weights:
    """Leaves the head of a base out."""
    shapes = {
        name: shape
        for name, shape in weights.shapes.items()
        if not HEAD.fullmatch(name)
    }
    return dataclasses.replace(weights, shapes=shapes)


def rounded_to_int8(weights: Weights, names: Container[str]) -> Weights:
    """Rounds a base's matrices of some names to the values that int8 keeps.

    Reading raises UserError if a value is not finite.
    """
    from adapter_bert.bert import int8

    def read(name: str) -> np.ndarray:
        value = weights.read(name)
        if name not in names:
            return value
        try:
            kept = int8.quantize(name, value)
        except ValueError as error:
            raise UserError(
                f"{weights.source}: {error}; take another checkpoint"
            ) from error
        return kept.values * kept.scale

    return dataclasses.replace(weights, read=read)
