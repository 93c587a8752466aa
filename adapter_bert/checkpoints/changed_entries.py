"""Stores trained values as (index, value) pairs where few entries differ."""

from collections.abc import Container
from typing import Callable

import numpy as np

from adapter_bert.bert.encoder import WORD_EMBEDDINGS
from adapter_bert.checkpoints.adapter_artifact import INDICES, VALUES
from adapter_bert.methods.base import changed_by


def changes(
    values: dict[str, np.ndarray],
    base: Callable[[str], np.ndarray],
    base_names: Container[str],
) -> dict[str, np.ndarray]:
    """Gives trained values, and of BERT's own variables the changed entries.

    `base` reads one of BERT's own variables, whose names are `base_names`, as
    pretrained. A changed one is `<variable>/indices` and `<variable>/values`.
    """
    changed: dict[str, np.ndarray] = {}
    for name, value in values.items():
        if name not in base_names:
            changed[name] = value
            continue
        # Compared as bits, so that not even a sign of zero is lost.
        now, before = (
            np.ascontiguousarray(x, np.float32).ravel().view(np.int32)
            for x in (value, base(name))
        )
        indices = np.flatnonzero(now != before)
        if indices.size:
            changed.update(_entries(name, value, indices))
    is_changed = any(name.endswith(INDICES) for name in changed)
    if WORD_EMBEDDINGS in values and not is_changed:
        # Without an entry readers would miss all of BERT's variables.
        none, value = np.zeros(0, np.int32), values[WORD_EMBEDDINGS]
        changed.update(_entries(WORD_EMBEDDINGS, value, none))
    return changed


def _entries(
    name: str, value: np.ndarray, indices: np.ndarray
) -> dict[str, np.ndarray]:
    entries = np.asarray(value, np.float32).ravel()[indices]
    return {name + INDICES: indices.astype(np.int32), name + VALUES: entries}


def few(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stores changes by parts as nonzero entries where these are few."""
    stored: dict[str, np.ndarray] = {}
    for name, value in values.items():
        indices = np.flatnonzero(value)
        if changed_by(name) and 2 * indices.size < value.size:
            stored.update(_entries(name, value, indices))
        else:
            stored[name] = value
    return stored
