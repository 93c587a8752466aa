"""Values of trained adapters that are parts of a composition."""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import numpy as np

from adapter_bert import files
from adapter_bert.bert.encoder import Shape
from adapter_bert.checkpoints import adapter_artifact, run_record
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.weights import POOLER, Weights
from adapter_bert.errors import UserError
from adapter_bert.methods.base import CHANGES, PARTS, changed_by


def adapter_in(folder: str) -> Optional[str]:
    """Finds an adapter's folder, given that or its run's; or None."""
    for path in (folder, os.path.join(folder, "adapter")):
        if files.exists(os.path.join(path, adapter_artifact.CONFIG_FILE)):
            return path
    return None


def adapters_in(folder: str) -> dict[str, str]:
    """Folders of the adapters, or of their runs, in a folder, by name."""
    names = files.folders(folder) if files.is_folder(folder) else []
    folders = {}
    for name in names:
        # What may not be read, as a disk's `lost+found`, is passed over.
        with contextlib.suppress(UserError):
            path = adapter_in(os.path.join(folder, name))
            if path and not name.startswith("."):
                folders[name] = path
    return folders


def places(folder: str) -> list[str]:
    """Folders for an adapter's parts: around it, and where it was trained."""
    around = os.path.dirname(files.absolute(folder))
    lay = run_record.places_of_parts(around).values()
    return list(dict.fromkeys([around, *map(os.path.dirname, lay)]))


def lacking(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Lists the parts that an adapter only names: SHA-256 by name."""
    return {} if config.get("carries_parts") else config.get("parts") or {}


def as_part(
    name: str,
    artifact: Artifact,
    base: Optional[Weights],
    shapes: Mapping[str, Shape],
) -> Weights:
    """Renames an adapter's weights as a composition names them.

    The adapter was read with its base. BERT's own variables, whose shapes are
    `shapes`, become their changes, float32.
    """
    weights, scope = artifact.weights, f"{PARTS}{name}/"

    def read(variable: str) -> np.ndarray:
        value = weights.read(variable)
        return value - base.read(variable) if variable in shapes else value

    original = {
        f"{scope}{CHANGES if variable in shapes else ''}{variable}": variable
        for variable in weights.shapes
    }
    changed = dataclasses.replace(weights, read=read)
    return _renamed(changed, original, shapes)


def _renamed(
    weights: Weights, original: Mapping[str, str], of_bert: Mapping[str, Shape]
) -> Weights:
    """Renames a part's weights; `original` has the old names.

    A part that was trained without a pooler changes the pooler by zeros.
    """
    shapes = {name: weights.shapes[old] for name, old in original.items()}
    scopes = {
        name[: -len(changed_by(name))] for name in shapes if changed_by(name)
    }
    zeros = {
        f"{scope}{name}": shape
        for scope in scopes
        for name, shape in of_bert.items()
        if name.startswith(POOLER) and f"{scope}{name}" not in shapes
    }

    def read(name: str) -> np.ndarray:
        if name in zeros:
            return np.zeros(zeros[name], np.float32)
        return weights.read(original[name])

    return Weights(weights.source, {**shapes, **zeros}, read)


def join(several: Iterable[Weights]) -> Optional[Weights]:
    """Joins weights of different names; None for none."""
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
    base: Optional[Weights],
    shapes: Mapping[str, Shape],
) -> Artifact:
    """Adds to an adapter the parts that it only names.

    `libraries` are folders in which adapters are looked for by SHA-256;
    `shapes` are of BERT's own variables, none where parts that change these
    are refused anyway.
    """
    needed = lacking(artifact.config)
    if not needed:
        return artifact
    located = _locate(needed, artifact.weights.source, libraries)
    several = [artifact.weights]
    for name, (folder, held) in located.items():
        read = adapter_artifact.read(folder, base)
        hashes = {**read.config.get("parts", {}), "": read.config["sha256"]}
        check_same(folder, needed[name], hashes.get(held))
        if held:
            scope = f"{PARTS}{held}/"
            original = {
                f"{PARTS}{name}/{key[len(scope) :]}": key
                for key in read.weights.shapes
                if key.startswith(scope)
            }
            several.append(_renamed(read.weights, original, shapes))
        else:
            around = [*libraries, *places(folder)]
            read = complete(read, around, base, shapes)
            several.append(as_part(name, read, base, shapes))
    source = artifact.weights.source
    weights = dataclasses.replace(join(several), source=source)
    return Artifact(artifact.config, weights)


def check_parts(folder: str, libraries: Iterable[str] = ()) -> None:
    """Reads the parts that an adapter does not hold.

    Parts are looked for in `libraries`, and around the adapter.
    """
    libraries = [*libraries, *places(folder)]
    needed = lacking(adapter_artifact.read_config(folder))
    for part, _ in _locate(needed, folder, libraries).values():
        adapter_artifact.read(part)
        check_parts(part, libraries)


def _locate(
    needed: Mapping[str, str], source: str, libraries: Iterable[str]
) -> dict[str, tuple[str, str]]:
    """Finds places, as `by_hash` has them, of the parts that `source` needs."""
    libraries = list(dict.fromkeys(filter(None, libraries)))
    located = by_hash(libraries) if needed else {}
    for name, sha256 in needed.items():
        if sha256 not in located:
            where = " and ".join(libraries)
            raise UserError(
                f"{source} needs the adapter {name} (SHA-256 {sha256[:12]}), "
                "which it does not hold"
                + (f"; found none such in {where}" if where else "")
                + "; add it to the library, the folder that is passed as "
                "--library or in which the other one lies"
            )
    return {name: located[sha256] for name, sha256 in needed.items()}


def check_same(folder: str, expected: str, sha256: Optional[str]) -> None:
    """Refuses an adapter whose SHA-256 has changed."""
    if sha256 != expected:
        raise UserError(
            f"the adapter in {folder} was replaced while it was read; start "
            "the same command again"
        )


def by_hash(
    libraries: Iterable[str], without: str = ""
) -> dict[str, tuple[str, str]]:
    """Finds the adapters in `libraries`, by their SHA-256.

    A place is the adapter's folder, and ""; or the folder of an adapter that
    carries it as a part, and the part's name. The folder `without` is passed
    over.
    """
    located: dict[str, tuple[str, str]] = {}
    for library in libraries:
        for folder in adapters_in(library).values():
            if folder == without:
                continue
            # Damaged ones are passed over.
            with contextlib.suppress(UserError, KeyError):
                config = adapter_artifact.read_config(folder)
                located[config["sha256"]] = folder, ""
                if config.get("carries_parts"):
                    for part, sha256 in config["parts"].items():
                        located.setdefault(sha256, (folder, part))
    return located
