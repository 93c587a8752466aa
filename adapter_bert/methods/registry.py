"""Reads what `--tuning_method` says, as `houlsby(size=64)`."""

import ast
import collections
import dataclasses
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

from adapter_bert.errors import UserError

if TYPE_CHECKING:
    from adapter_bert.methods.base import Part, TuningMethod

# Longest description of a method, in characters.
MAX_TEXT = 100_000
KEYWORD_OR_POSITION = inspect.Parameter.POSITIONAL_OR_KEYWORD
# What reading a text may come to that is none.
UNREADABLE = (
    SyntaxError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    MemoryError,
)


def parse(
    text: str, defaults: Optional[dict[str, Any]] = None
) -> "TuningMethod":
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
) -> "TuningMethod":
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
    positions = call.args if call else []
    arguments = {k: v for k, v in (defaults or {}).items() if k in kinds}
    if kinds.pop("parts", None):
        parts = [part for node in positions for part in _parts(node)]
        if parts:
            arguments["parts"] = tuple(parts)
        positions = []
    takes = [inspect.Parameter(k, KEYWORD_OR_POSITION) for k in kinds]
    keywords = call.keywords if call else []
    try:
        if len({word.arg for word in keywords}) < len(keywords):
            raise TypeError("an argument is given twice")
        bound = inspect.Signature(takes).bind_partial(
            *map(_value, positions),
            **{word.arg: _value(word.value) for word in keywords},
        )
    except TypeError as error:
        raise UserError(
            f"{name}: {error}; it takes: {', '.join(kinds) or 'none'}"
        ) from error
    for key, value in bound.arguments.items():
        arguments[key] = _as_type(name, key, kinds[key], value)
    return METHODS[name](**arguments)


def _parts(node: ast.expr) -> Iterator["Part"]:
    from adapter_bert.methods.base import Part

    if isinstance(node, ast.Dict):
        for name, method in zip(node.keys, node.values):
            yield Part(ast.literal_eval(name), _method(method))
    elif isinstance(node, ast.Call) or (
        getattr(node, "id", "") in (*METHODS, *PRESETS)
    ):
        yield Part("", _method(node))
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


class _Methods(collections.UserDict):
    def __getitem__(self, name: str) -> type["TuningMethod"]:
        place = self.data[name]
        if isinstance(place, str):
            place = pkgutil.resolve_name(f"adapter_bert.methods.{place}")
        return place


METHODS: Mapping[str, type["TuningMethod"]] = _Methods(
    houlsby="houlsby:Houlsby",
    pfeiffer="adapter_variants:Pfeiffer",
    bapna="adapter_variants:Bapna",
    parallel="adapter_variants:Parallel",
    adapterdrop="adapter_variants:AdapterDrop",
    compacter="compacter:Compacter",
    mad_x="invertible:MadX",
    pals="pals:Pals",
    lora="lora:Lora",
    dora="dora:Dora",
    vera="vera:Vera",
    adalora="adalora:AdaLora",
    prefix="prefix:Prefix",
    prompt="prompt:Prompt",
    loreft="reft:LoReft",
    ia3="ia3:Ia3",
    bitfit="fine_tuning:BitFit",
    layernorm="fine_tuning:LayerNormOnly",
    diff_pruning="sparse:DiffPruning",
    lt_sft="sparse:LtSft",
    full="fine_tuning:Full",
    top_layers="fine_tuning:TopLayers",
    head="fine_tuning:HeadOnly",
    new_words="new_words:NewWords",
    stack="composition:Stack",
    union="composition:Union",
    average="composition:Average",
    fusion="fusion:Fusion",
    per_task="per_task:PerTask",
)
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
