"""The values of trained adapters that are parts of another method."""

import contextlib
import os
from typing import Container, Dict, Iterable, List, Optional

import numpy as np

import files
from errors import UserError
from methods.base import CHANGES, PARTS
from weights import adapter_artifact
from weights.adapter_artifact import Artifact
from weights.base import Weights


def adapters_in(folder: str) -> List[str]:
    """The names of the adapters' folders that lie in a folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        name
        for name in names
        if not name.startswith(".")
        and files.exists(
            os.path.join(folder, name, adapter_artifact.CONFIG_FILE)
        )
    )


def as_part(
    name: str, artifact: Artifact, base: Weights, own: Container[str]
) -> Weights:
    """An adapter's weights as those of a part.

    Args:
        name: of the part.
        artifact: the adapter, read with its base.
        base: the pretrained model.
        own: the names of BERT's own variables.

    Returns:
        Its variables by the names that a composition has for them; of those
        of BERT's own what has changed, float32.
    """
    weights, scope = artifact.weights, f"{PARTS}{name}/"
    original = {
        f"{scope}{CHANGES if variable in own else ''}{variable}": variable
        for variable in weights.shapes
    }

    def read(name: str) -> np.ndarray:
        variable = original[name]
        value = weights.read(variable)
        return value - base.read(variable) if variable in own else value

    shapes = {name: weights.shapes[old] for name, old in original.items()}
    return Weights(weights.source, shapes, read)


def join(several: Iterable[Weights]) -> Optional[Weights]:
    """All of some weights, of which no two have a name; None for none."""
    of = {name: weights for weights in several for name in weights.shapes}
    if not of:
        return None
    return Weights(
        ", ".join(dict.fromkeys(weights.source for weights in of.values())),
        {name: weights.shapes[name] for name, weights in of.items()},
        lambda name: of[name].read(name),
    )


def complete(
    artifact: Artifact,
    libraries: Iterable[str],
    base: Weights,
    own: Container[str],
) -> Artifact:
    """An adapter with the parts that it names and does not hold.

    Args:
        artifact: the adapter.
        libraries: folders of adapters, in which these are looked for by their
            SHA-256.
        base: the pretrained model.
        own: the names of BERT's own variables.

    Raises:
        UserError: a part is nowhere, or is damaged.
    """
    parts = artifact.config.get("parts", {})
    if not parts or artifact.config.get("carries_parts"):
        return artifact
    by_hash: Dict[str, str] = {}
    for library in libraries:
        for name in adapters_in(library):
            folder = os.path.join(library, name)
            # What is damaged is none that is looked for.
            with contextlib.suppress(UserError):
                config = adapter_artifact.read_config(folder)
                by_hash[config["sha256"]] = folder
    found = [artifact.weights]
    for name, sha256 in parts.items():
        if sha256 not in by_hash:
            raise UserError(
                f"{artifact.weights.source} needs the adapter {name} (SHA-256 "
                f"{sha256[:12]}), which it does not hold; found none such in "
                f"{' and '.join(libraries)}; add it to the library"
            )
        read = adapter_artifact.read(by_hash[sha256], base)
        found.append(as_part(name, read, base, own))
    joined = join(found)
    return Artifact(
        artifact.config,
        Weights(artifact.weights.source, joined.shapes, joined.read),
    )
