"""Finds the matrices of BERT that peft's descriptions name.

peft finds modules by the ends of their names, or by patterns of whole names.
"""

import itertools
import re
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints.hugging_face_heads import from_bert
from adapter_bert.errors import UserError, first_line
from adapter_bert.exchange.foreign_base import module_of
from adapter_bert.exchange.specs import Adapter
from adapter_bert.methods.lora import NAMES, OF_POOLER, Place, places, scope_of

# Before the names of modules in those of tensors.
ROOT = "base_model.model."
ALL_LINEAR = "all-linear"
# Of a field, and letters of each; a large BERT has 144 matrices.
MOST_PATTERNS, LONGEST_PATTERN = 500, 500


def targets(adapter: Adapter) -> dict[Place, str]:
    """Finds the matrices that a description names, as peft does.

    Source: peft, `check_target_module_exists`.
    """
    fields, config, path = adapter.fields, adapter.config, adapter.path
    matrices = {
        place: their_module(scope_of(place), config)
        for place in places(NAMES, range(config.num_hidden_layers))
    }
    # A model for questions has no pooler, nor has its adapter.
    pooler = f"{ROOT}{matrices[OF_POOLER]}."
    if not any(name.startswith(pooler) for name in adapter.tensors.names):
        del matrices[OF_POOLER]
    modules = list(matrices.values())

    def matching(key: str, names: Any) -> set[str]:
        return _matching(names, key, modules, path)

    names = fields["target_modules"]
    if isinstance(names, str) and names.lower() == ALL_LINEAR:
        names = ".*"
    chosen = matching("target_modules", names)
    layers = _listed(fields.get("layers_to_transform", []))
    if layers and isinstance(names, str):
        raise UserError(
            f"{path}: layers_to_transform is {layers!r:.80}, which peft takes "
            "only where target_modules is a list"
        )
    if layers:
        before = "|".join(_listed(fields.get("layers_pattern") or r"[^.]*"))
        within = matching(
            "layers_pattern", rf"(.*\.)?({before})\.({'|'.join(layers)})\..*"
        )
        # A whole name stands for itself, in any layer.
        chosen &= within.union(map(str, names))
    chosen -= matching("exclude_modules", fields.get("exclude_modules") or [])
    if not chosen:
        raise UserError(
            f"{path}: target_modules is {str(names)[:80]!r}, which with its "
            "limits names no matrix of this BERT; is it of another model?"
        )
    return {place: one for place, one in matrices.items() if one in chosen}


def _listed(value: Any) -> list[str]:
    return list(map(str, value if isinstance(value, list) else [value]))


def _matching(
    names: Any, key: str, modules: Sequence[str], path: str
) -> set[str]:
    """Finds the modules that match a pattern, or end with listed names."""
    # RE2, TensorFlow's engine, takes linear time. Python's engine could take
    # exponential time.
    # Counted repetitions may take a tenth of a second.
    is_limited = key.endswith("_pattern") and isinstance(names, str)
    if is_limited and (len(names) > LONGEST_PATTERN or "{" in names):
        raise UserError(
            f"{path}: {key} has {names[:80]!r}, expected at most "
            f"{LONGEST_PATTERN} letters, without {{}}"
        )
    if isinstance(names, (list, tuple)):
        ends = tuple(f".{end}" for end in names)
        return {one for one in modules if f".{one}".endswith(ends)}
    try:
        # Functions of `tf.strings` keep all patterns in memory.
        matches = tf.raw_ops.RegexFullMatch(input=modules, pattern=names)
    except (tf.errors.OpError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: {key} is {str(names)[:80]!r}, expected a list of names, "
            f"or a regular expression: {first_line(error)[:200]}"
        ) from error
    return set(itertools.compress(modules, matches.numpy()))


def by_pattern(
    adapter: Adapter, key: str, default: Any, matrices: dict[Place, str]
) -> dict[Place, Any]:
    """Finds the number of each matrix: that of the first pattern, or another.

    Source: peft, `get_pattern_key`: the first pattern that ends the name holds.
    """
    numbers: dict[str, Any] = {}
    patterns = adapter.fields.get(key) or {}
    if len(patterns) > MOST_PATTERNS:
        raise UserError(
            f"{adapter.path}: {key} has {len(patterns)} patterns, expected at "
            f"most {MOST_PATTERNS}"
        )
    for pattern, number in patterns.items():
        left = [one for one in matrices.values() if one not in numbers]
        if left:
            fits = _matching(rf"(.*\.)?({pattern})", key, left, adapter.path)
            numbers.update(dict.fromkeys(fits, number))
    return {
        place: numbers.get(module, default)
        for place, module in matrices.items()
    }


def modules_of(scopes: Collection[str], config: BertConfig) -> Any:
    """Names the modules of scopes as peft does: by short endings if it can."""
    scopes = list(scopes)
    inner = [scope for scope in scopes if scope != encoder.POOLER]
    places = list(dict.fromkeys(scope.split("/", 3)[3] for scope in inner))
    if len(inner) != len(places) * config.num_hidden_layers:
        return [ending_of(scope, config) for scope in scopes]
    first = "bert/encoder/layer_0/"
    layer = ending_of(first, config)
    ends = [
        ending_of(first + place, config).removeprefix(layer) for place in places
    ]
    pooler = ["pooler.dense"] * (len(inner) < len(scopes))
    # As an ending, `output.dense` would match the attention's module, too.
    if "output.dense" in ends and "attention.output.dense" not in ends:
        choices = "|".join(map(re.escape, ends))
        pattern = rf".*\.layer\.\d+\.({choices})"
        return "|".join([pattern, *(rf".*{re.escape(p)}" for p in pooler)])
    return [end.replace("attention.self.", "") for end in (*ends, *pooler)]


def their_module(scope: str, config: BertConfig) -> str:
    """Names the module that has a scope's variables in a model."""
    return from_bert(module_of(scope), config.model_type)


def ending_of(scope: str, config: BertConfig) -> str:
    """Cuts a module's name, from the layer or the pooler on."""
    prefix = ARCHITECTURES[config.model_type].prefix
    name = their_module(scope, config).removeprefix(prefix)
    return name.removeprefix("encoder.")
