"""Trained adapters that a composition is made of: which, and where."""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import adapter_artifact, part_values, same_model
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.weights import Base, Weights
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.base import Part, TuningMethod


@dataclasses.dataclass(frozen=True)
class PartFolders:
    """Holds a method with its adapters found.

    Attributes:
        folders: by name, but for adapters that the trained composition holds.
        hashes: SHA-256 of each adapter's weights, by name.
        library: folder of adapters that these are made of, or "".
    """

    method: TuningMethod
    folders: Mapping[str, str]
    hashes: Mapping[str, str]
    library: str


def exchanged(texts: Sequence[str]) -> dict[str, str]:
    """Reads `--exchange_part`: the new adapter by the name of the old one."""
    pairs: dict[str, str] = {}
    for text in texts:
        old, _, new = text.partition("=")
        if not old or not new or old in pairs:
            raise UserError(
                f"--exchange_part has {text!r}, expected OLD=NEW, each OLD once"
            )
        pairs[old] = new
    return pairs


def by_name(
    method: TuningMethod, trained: TuningMethod, hashes: Mapping[str, str]
) -> TuningMethod:
    """Gives a method the adapters that a trained one has under its names."""
    trained_parts = {part.name: part for part in trained.parts if part.name}
    parts = []
    for part in method.parts:
        if part.name and not part.method:
            short = _short_name(part.name)
            folder = _adapter_in([part.name])
            if short in trained_parts and os.sep in part.name and folder:
                config = adapter_artifact.read_config(folder)
                if config.get("sha256") != hashes.get(short):
                    raise UserError(
                        f"{folder} is not the adapter {short} of the training; "
                        "to use it in its place pass --exchange_part="
                        f"{short}={part.name}"
                    )
            part = trained_parts.get(short, part)
        parts.append(part)
    if not parts:
        return method
    return dataclasses.replace(method, parts=tuple(parts))


def find(
    method: TuningMethod,
    exchanged: Mapping[str, str],
    library: str,
    places: Mapping[str, str],
    trained: Optional[Mapping[str, Any]] = None,
) -> PartFolders:
    """Finds the adapters that a method is made of.

    These are names in the library, or folders; `places` are folders where they
    lay before, by name. A new adapter of `exchanged` is looked for even if it
    has the old one's name. `trained` describes a composition that holds some.
    """
    held: dict[str, str] = (trained or {}).get("parts") or {}
    if trained:
        method = by_name(method, registry.parse(trained["method"]), held)
    names = [part.name for part in method.parts if part.name]
    for old in exchanged:
        if old not in names:
            raise UserError(
                f"--exchange_part names {old!r}, but {method.name} is made of "
                f"these adapters: {', '.join(names) or 'none'}"
            )
    parts, folders, hashes = [], {}, {}
    for part in method.parts:
        if part.name in exchanged:
            part = Part(exchanged[part.name], None)
        resolved = part
        if part.method and part.name in held:
            hashes[part.name] = held[part.name]
        elif part.name:
            folder = _folder(method, part.name, library, places)
            config = adapter_artifact.read_config(folder)
            resolved = Part(
                _short_name(part.name),
                registry.parse(config["method"]).as_part,
            )
            folders[resolved.name] = files.absolute(folder)
            hashes[resolved.name] = str(config.get("sha256"))
        if part.method not in (None, resolved.method):
            raise UserError(
                f"{method.name}: the adapter {part.name} was trained with "
                f"{resolved.method}, but --tuning_method says {part.method}"
            )
        parts.append(resolved)
    names = [part.name for part in parts if part.name]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{method.name}: two adapters are called {name}; expected "
                "folders of different names, since these tell adapters apart"
            )
    if parts:
        method = dataclasses.replace(method, parts=tuple(parts))
    if len(str(method)) > registry.MAX_TEXT:
        raise UserError(
            f"{method.name}: the description of {len(parts)} parts is "
            f"{len(str(method))} characters long, expected at most "
            f"{registry.MAX_TEXT}; use fewer"
        )
    return PartFolders(method, folders, hashes, library)


def _folder(
    method: TuningMethod, name: str, library: str, places: Mapping[str, str]
) -> str:
    candidates = [os.path.join(library, name)] if library else []
    folder = _adapter_in([*candidates, places.get(name, ""), name])
    if folder:
        return folder
    names = ", ".join(part_values.adapters_in(library)) if library else ""
    where = f"the library {library} has: {names or 'none'}"
    if not library:
        where = "pass the folder that holds it as --library"
    raise UserError(
        f"{method.name}: {name!r} is neither a trained adapter nor a tuning "
        f"method; {where}"
    )


def _adapter_in(folders: Iterable[str]) -> Optional[str]:
    adapters = map(part_values.adapter_in, filter(None, folders))
    return next(filter(None, adapters), None)


def _short_name(name: str) -> str:
    if os.sep in name or name in (os.curdir, os.pardir):
        name = files.absolute(name)
    *rest, last = [part for part in name.split(os.sep) if part] or [name]
    if last == "adapter" and rest:
        last = rest[-1]
    return re.sub(r"[^A-Za-z0-9._-]", "-", last)


def open_weights(
    parts: PartFolders,
    trained: Optional[Artifact],
    libraries: list[str],
    base: Base,
    weights: Weights,
    config: BertConfig,
    tokenizer: TextTokenizer,
) -> tuple[Optional[Weights], Optional[Weights]]:
    """Reads the values of adapters that have folders, and of a composition.

    Gives None where there are none of the first, or no composition that is
    `trained`. What this lacks, and what is not in `parts`, is looked for in
    `libraries`.
    """
    shapes = encoder.list_variables(config)
    opened: list[Weights] = []
    for name, folder in parts.folders.items():
        artifact = adapter_artifact.read(folder, weights)
        # `run.json` has this hash.
        part_values.check_same(
            folder, parts.hashes[name], artifact.config.get("sha256")
        )
        same_model.check(
            artifact.config, artifact.weights.source, base, config, tokenizer
        )
        around = [parts.library, *part_values.places(folder)]
        artifact = part_values.complete(artifact, around, weights, shapes)
        opened.append(part_values.as_part(name, artifact, weights, shapes))
    if trained is None:
        return part_values.join(opened), None
    needed = {part.name for part in parts.method.parts} - set(parts.folders)
    held = trained.config.get("parts") or {}
    kept = {name: held[name] for name in held if name in needed}
    described = Artifact({**trained.config, "parts": kept}, trained.weights)
    completed = part_values.complete(described, libraries, weights, shapes)
    return part_values.join(opened), completed.weights
