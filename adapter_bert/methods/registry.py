"""Reads what `--tuning_method` says, as `houlsby(size=64)`."""

import ast
import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

from adapter_bert.errors import UserError
from adapter_bert.methods.adalora import AdaLora
from adapter_bert.methods.adapter_variants import (
    AdapterDrop,
    Bapna,
    Parallel,
    Pfeiffer,
)
from adapter_bert.methods.base import Part, TuningMethod
from adapter_bert.methods.compacter import Compacter
from adapter_bert.methods.composition import Average, Stack, Union
from adapter_bert.methods.dora import Dora
from adapter_bert.methods.fine_tuning import (
    BitFit,
    Full,
    HeadOnly,
    LayerNormOnly,
    TopLayers,
)
from adapter_bert.methods.fusion import Fusion
from adapter_bert.methods.houlsby import Houlsby
from adapter_bert.methods.ia3 import Ia3
from adapter_bert.methods.invertible import MadX
from adapter_bert.methods.lora import Lora
from adapter_bert.methods.new_words import NewWords
from adapter_bert.methods.pals import Pals
from adapter_bert.methods.per_task import PerTask
from adapter_bert.methods.prefix import Prefix
from adapter_bert.methods.prompt import Prompt
from adapter_bert.methods.reft import LoReft
from adapter_bert.methods.sparse import DiffPruning, LtSft
from adapter_bert.methods.vera import Vera

# Longest description of a method, in characters.
MAX_TEXT = 100_000
# What reading a text may come to that is none.
UNREADABLE = (
    SyntaxError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    MemoryError,
)


def parse(text: str, defaults: Optional[dict[str, Any]] = None) -> TuningMethod:
    """Reads a method with its arguments, as `houlsby(size=64)` or `head`.

    Arguments are Python literals; words and a layer's number need no quotation
    marks, and true and false may be written as in other flags. A composition
    takes parts by position: methods, names of trained adapters, or, as the text
    of a method has them, `{name: method}`. `defaults` are for arguments that
    the text leaves out, if the method has them.
    """
    if len(text) > MAX_TEXT:
        raise UserError(
            f"the tuning method is {len(text)} characters long, expected at "
            f"most {MAX_TEXT}"
        )
    try:
        return _method(ast.parse(text.strip(), mode="eval").body, defaults)
    except UNREADABLE as error:
        raise UserError(
            f"tuning method {text[:200]!r} cannot be read; expected one of "
            f"{NAMES}, with arguments as in houlsby(size=64) or "
            "houlsby(layers='6-11'), and names of adapters that are no plain "
            "words in quotation marks, as in stack('sst-2', pfeiffer)"
        ) from error


def _method(
    node: ast.expr, defaults: Optional[dict[str, Any]] = None
) -> TuningMethod:
    call = node if isinstance(node, ast.Call) else None
    name = (call.func if call else node).id
    if name in PRESETS:
        if call:
            raise UserError(
                f"{name} takes no arguments; write its parts with others, "
                f"{PRESETS[name]}"
            )
        return parse(PRESETS[name])
    if name not in METHODS:
        raise UserError(
            f"unknown tuning method {name!r}; expected one of {NAMES}"
        )
    kinds = {f.name: f.type for f in dataclasses.fields(METHODS[name])}
    arguments = {k: v for k, v in (defaults or {}).items() if k in kinds}
    positions = call.args if call else []
    if kinds.pop("parts", None):
        parts = [part for node in positions for part in _parts(node)]
        if parts:
            arguments["parts"] = tuple(parts)
        positions = []
    takes = ", ".join(kinds) or "none"
    if len(positions) > len(kinds):
        raise UserError(
            f"{name} was given {len(positions)} arguments; it takes: {takes}"
        )
    pairs = list(zip(kinds, map(_value, positions)))
    pairs += [(k.arg, _value(k.value)) for k in (call.keywords if call else ())]
    for number, (key, value) in enumerate(pairs):
        if key not in kinds:
            raise UserError(
                f"{name} has no argument {key!r}; it takes: {takes}"
            )
        if key in dict(pairs[:number]):
            raise UserError(f"{name} was given {key} twice")
        arguments[key] = value
    for key, kind in kinds.items():
        if key in arguments:
            arguments[key] = _as_type(name, key, kind, arguments[key])
    return METHODS[name](**arguments)


def _parts(node: ast.expr) -> Iterator[Part]:
    if isinstance(node, ast.Dict):
        for name, method in zip(node.keys, node.values):
            yield Part(ast.literal_eval(name), _method(method))
    elif isinstance(node, ast.Call) or getattr(node, "id", "") in METHODS:
        yield Part("", _method(node))
    elif getattr(node, "id", "") in PRESETS:
        raise UserError(
            f"{node.id} is a union, and no part of another method; write its "
            f"parts out: {PRESETS[node.id]}"
        )
    else:
        yield Part(_value(node), None)


def _as_type(method: str, argument: str, kind: type, value: Any) -> Any:
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise UserError(f"{method}: {argument} is too large") from error
    if kind is str and type(value) is int:
        # The number of a layer.
        return str(value)
    if type(value) is not kind:
        raise UserError(
            f"{method}: {argument} is {value!r}, expected a value of type "
            f"{kind.__name__}"
        )
    return value


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return {"true": True, "false": False}.get(node.id, node.id)
    return ast.literal_eval(node)


METHODS: dict[str, type[TuningMethod]] = {
    method.name: method
    for method in (
        Houlsby,
        Pfeiffer,
        Bapna,
        Parallel,
        AdapterDrop,
        Compacter,
        MadX,
        Pals,
        Lora,
        Dora,
        Vera,
        AdaLora,
        Prefix,
        Prompt,
        LoReft,
        Ia3,
        BitFit,
        LayerNormOnly,
        DiffPruning,
        LtSft,
        Full,
        TopLayers,
        HeadOnly,
        NewWords,
        Stack,
        Union,
        Average,
        Fusion,
        PerTask,
    )
}
# Unions of the literature, with the sizes of AdapterHub's for BERT-base.
PRESETS = {
    # He et al. 2022.
    "mam": "union(prefix(length=30, inner_size=800), "
    "parallel(size=384, scale=4.0))",
    # Mao et al. 2022.
    "unipelt": "union(lora(rank=8, gating=true), "
    "prefix(length=10, gating=true), pfeiffer(size=48, gating=true))",
}
# For messages.
NAMES = ", ".join([*METHODS, *PRESETS])
