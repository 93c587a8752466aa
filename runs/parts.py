"""The trained adapters that a composition is made of: which, and where."""

import dataclasses
import os
import re
from typing import Any, Dict, List, Mapping, Optional

import files
import modeling
from errors import UserError
from methods import parsing
from methods.base import Part, TuningMethod
from modeling import BertConfig
from tokenization import FullTokenizer
from weights import adapter_artifact, parts, pretrained
from weights.adapter_artifact import Artifact
from weights.base import Base, Weights


@dataclasses.dataclass(frozen=True)
class Found:
    """A method whose adapters are known.

    Attributes:
        method: it, with the method of each adapter.
        folders: of the adapters, by name; not of those that lie within what
            was trained.
        hashes: SHA-256 of each adapter's weights, by name.
    """

    method: TuningMethod
    folders: Mapping[str, str]
    hashes: Mapping[str, str]


def exchange(method: TuningMethod, pairs: Mapping[str, str]) -> TuningMethod:
    """A method with adapters in the places of others, as another language's.

    Args:
        method: a composition.
        pairs: the new adapter by the name of the one that it replaces.

    Raises:
        UserError: there is nothing to replace.
    """
    names = [part.name for part in method.parts if part.name]
    for old in pairs:
        if old not in names:
            raise UserError(
                f"--exchange_part names {old!r}, but {method.name} is made of "
                f"these adapters: {', '.join(names) or 'none'}"
            )
    if not pairs:
        return method
    replaced = (
        Part(pairs[part.name], None) if part.name in pairs else part
        for part in method.parts
    )
    return dataclasses.replace(method, parts=tuple(replaced))


def by_name(method: TuningMethod, trained: TuningMethod) -> TuningMethod:
    """A method with the adapters that a trained one has by these names."""
    if not method.parts:
        return method
    known = {part.name: part for part in trained.parts if part.name}
    return dataclasses.replace(
        method,
        parts=tuple(
            part if part.method else known.get(part.name, part)
            for part in method.parts
        ),
    )


def find(
    method: TuningMethod,
    library: str,
    places: Mapping[str, str],
    trained: Optional[Mapping[str, Any]] = None,
) -> Found:
    """Finds the adapters that a method is made of.

    Args:
        method: what was asked for; adapters are names of those in the library,
            or folders.
        library: folder of adapters; "" for none.
        places: folders where adapters lay before, by name.
        trained: the description of something that was trained with such a
            method; its adapters are not looked for.

    Raises:
        UserError: an adapter is not found or damaged, or is not of the method
            that the text says.
    """
    held: Dict[str, str] = (trained or {}).get("parts") or {}
    if trained:
        method = by_name(method, parsing.parse(trained["method"]))
    found, folders, hashes = [], {}, {}
    for part in method.parts:
        known = part
        if part.method and part.name in held:
            hashes[part.name] = held[part.name]
        elif part.name:
            folder = _folder(method, part.name, library, places)
            config = adapter_artifact.read_config(folder)
            known = Part(
                _short_name(part.name),
                parsing.parse(config["method"]).as_part,
            )
            folders[known.name] = files.absolute(folder)
            hashes[known.name] = str(config.get("sha256"))
        if part.method not in (None, known.method):
            raise UserError(
                f"{method.name}: the adapter {part.name} was trained with "
                f"{known.method}, but --tuning_method says {part.method}"
            )
        found.append(known)
    if found:
        method = dataclasses.replace(method, parts=tuple(found))
    return Found(method, folders, hashes)


def _folder(
    method: TuningMethod, name: str, library: str, places: Mapping[str, str]
) -> str:
    """The folder of an adapter.

    Raises:
        UserError: there is none.
    """
    candidates = [os.path.join(library, name)] if library else []
    candidates += [places.get(name, ""), name, os.path.join(name, "adapter")]
    for folder in filter(None, candidates):
        if files.exists(os.path.join(folder, adapter_artifact.CONFIG_FILE)):
            return folder
    known = ", ".join(parts.adapters_in(library)) if library else ""
    where = f"the library {library} has: {known or 'none'}"
    if not library:
        where = "pass the folder that holds it as --library"
    raise UserError(
        f"{method.name}: {name!r} is neither a trained adapter nor a tuning "
        f"method; {where}"
    )


def _short_name(name: str) -> str:
    """A name for an adapter that may be named by its folder."""
    *rest, last = [part for part in name.split(os.sep) if part not in ("", ".")]
    if last == "adapter" and rest:
        last = rest[-1]
    return re.sub(r"[^A-Za-z0-9._-]", "-", last)


def open_weights(
    found: Found,
    base: Base,
    weights: Weights,
    config: BertConfig,
    tokenizer: FullTokenizer,
) -> Optional[Weights]:
    """The values of the adapters that have folders, or None.

    Args:
        found: the adapters.
        base: the BERT that they must have been trained upon.
        weights: its values.
        config: its sizes.
        tokenizer: its vocabulary.

    Raises:
        UserError: one is damaged, or was trained upon another BERT.
    """
    own = modeling.list_variables(config)
    opened: List[Weights] = []
    for name, folder in found.folders.items():
        artifact = adapter_artifact.read(folder, weights)
        pretrained.check_same_model(
            artifact.config, artifact.weights.source, base, config, tokenizer
        )
        artifact = parts.complete(
            artifact, [os.path.dirname(folder)], weights, own
        )
        opened.append(parts.as_part(name, artifact, weights, own))
    return parts.join(opened)


def complete(
    trained: Artifact,
    folders: List[str],
    weights: Weights,
    config: BertConfig,
) -> Weights:
    """What was trained, with the adapters that it was trained upon.

    Args:
        trained: an adapter or a checkpoint, with its description.
        folders: of libraries where those adapters may be.
        weights: of the BERT.
        config: its sizes.

    Raises:
        UserError: an adapter is not found.
    """
    own = modeling.list_variables(config)
    return parts.complete(trained, folders, weights, own).weights
