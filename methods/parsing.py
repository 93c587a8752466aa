"""Reads what `--tuning_method` says, as `houlsby(size=64)`."""

import ast
import dataclasses
from typing import Any, Dict, Optional

from errors import UserError
from methods.base import TuningMethod
from methods.registry import METHODS

# Longest description of a method, in characters.
MAX_TEXT = 1000


def parse(text: str, defaults: Optional[Dict[str, Any]] = None) -> TuningMethod:
    """Reads a method with its arguments, as `houlsby(size=64)` or `head`.

    Args:
        text: a name of `METHODS`, with Python literals for its arguments, by
            position or by keyword; words and a layer's number need no
            quotation marks, and true and false may be written as in other
            flags.
        defaults: values for arguments that the text leaves out; those that
            the method does not have are ignored.

    Returns:
        The method.

    Raises:
        UserError: no such method, no such argument, or a value of the wrong
            type or range; the message names the choices.
    """
    choices = ", ".join(METHODS)
    if len(text) > MAX_TEXT:
        raise UserError(
            f"the tuning method is {len(text)} characters long, expected at "
            f"most {MAX_TEXT}"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        call = tree if isinstance(tree, ast.Call) else None
        name = (call.func if call else tree).id
        values = [_value(node) for node in call.args] if call else []
        keywords = call.keywords if call else []
        pairs = [(word.arg, _value(word.value)) for word in keywords]
        named = dict(pairs)
    except (
        SyntaxError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise UserError(
            f"tuning method {text!r} cannot be read; expected one of "
            f"{choices}, with arguments as in houlsby(size=64) or "
            "houlsby(layers='6-11')"
        ) from error
    if len(named) < len(pairs):
        raise UserError(f"tuning method {text!r}: an argument is given twice")
    if name not in METHODS:
        raise UserError(
            f"unknown tuning method {name!r}; expected one of {choices}"
        )
    fields = {field.name: field for field in dataclasses.fields(METHODS[name])}
    takes = ", ".join(fields) or "none"
    if len(values) > len(fields):
        raise UserError(
            f"{name} was given {len(values)} arguments; it takes: {takes}"
        )
    arguments = {
        key: value for key, value in (defaults or {}).items() if key in fields
    }
    arguments.update(zip(fields, values))
    for key in list(fields)[: len(values)]:
        if key in named:
            raise UserError(f"{name} was given {key} twice")
    arguments.update(named)
    for key, value in arguments.items():
        if key not in fields:
            raise UserError(
                f"{name} has no argument {key!r}; it takes: {takes}"
            )
        kind = fields[key].type
        if kind is float and type(value) is int:
            try:
                arguments[key] = float(value)
            except OverflowError as error:
                raise UserError(f"{name}: {key} is too large") from error
        elif kind is str and type(value) is int:
            # The number of a layer.
            arguments[key] = str(value)
        elif type(value) is not kind:
            raise UserError(
                f"{name}: {key} is {value!r}, expected a value of type "
                f"{kind.__name__}"
            )
    return METHODS[name](**arguments)


def _value(node: ast.expr) -> Any:
    """The value of an argument as it is written."""
    if isinstance(node, ast.Name):
        return {"true": True, "false": False}.get(node.id, node.id)
    return ast.literal_eval(node)
