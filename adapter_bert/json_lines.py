"""Lines of files, and objects and texts in JSON."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from adapter_bert.errors import UserError, first_line

BYTE_ORDER_MARK = "\ufeff"
# Python's values for numbers such as 1e400.
INFINITE = (math.inf, -math.inf)


def check_writable(value: Any, path: str, what: str) -> None:
    """Refuses a value, read from JSON, that cannot be written again.

    Python reads NaN, half a character and levels that it cannot write. `path`
    and the file's kind, `what`, are for messages.
    """
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not {what}: it holds what JSON does not have, as NaN, "
            f"or too many levels ({first_line(error)[:80]})"
        ) from error


def plain_lines(lines: Iterator[str], name: str) -> Iterator[str]:
    """Lines without byte-order marks, which joined files have in the middle."""
    first = list(itertools.islice(lines, 1))
    if first and "\r" in first[0].rstrip("\r\n"):
        # Only now, since a second line may have to be waited for.
        first += itertools.islice(lines, 1)
        if len(first) == 1:
            raise UserError(
                f"{name}: its lines end with a carriage return (CR) alone; "
                "end lines with a line feed, or with both"
            )
    for line in itertools.chain(first, lines):
        yield line.lstrip(BYTE_ORDER_MARK)


def parse_object(line: str) -> dict[str, Any]:
    """Parses a line's object; ValueError for other JSON or repeated keys."""
    value = _parsed(line)
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object, as {...}")
    return value


def parse_array(text: str) -> list[dict[str, Any]]:
    """Parses the objects of an array; raises as `parse_object`."""
    values = _parsed(text)
    if not isinstance(values, list):
        raise ValueError("expected a JSON array, as [{...}, {...}]")
    for number, value in enumerate(values, 1):
        if not isinstance(value, dict):
            raise ValueError(f"row {number} is no JSON object, as {{...}}")
    return values


def _parsed(text: str) -> Any:
    try:
        return json.loads(
            text,
            parse_constant=_refuse_constant,
            object_pairs_hook=unique_keys,
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def _refuse_constant(text: str) -> None:
    """Refuses `NaN` and `Infinity`, which Python reads and JSON lacks."""
    raise ValueError(f"{text} is no value")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object for `json.loads`; raises ValueError for repeated keys."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"a key is given twice among {list_keys(values)}")
    return values


def list_keys(keys: Iterable[str]) -> str:
    """Quotes names for messages, to show blanks."""
    return ", ".join(map(repr, keys))[:200] or "none"


def text_at(values: Mapping[str, Any], name: str) -> str:
    """Reads an object's text or number, as text; raises ValueError without."""
    return _as_text(name, _value_at(values, name))


def labels_at(values: Mapping[str, Any], name: str) -> list[str]:
    """Reads an object's list of texts or numbers, as texts, or ValueError."""
    value = _value_at(values, name)
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"{name!r} is {_shown(value)}, expected a list of labels, "
            'as ["a", "b"]'
        )
    return [_as_text(name, label) for label in value]


def texts_at(values: Mapping[str, Any], name: str) -> list[str]:
    """Reads an object's list of texts; raises ValueError without one."""
    value = _value_at(values, name)
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(text, str) for text in value
    ):
        raise ValueError(
            f"{name!r} is {_shown(value)}, expected a list of texts"
        )
    return [_check(name, text) for text in value]


def _value_at(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise ValueError(f"no key {name!r}, found {list_keys(values)}")
    return values[name]


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float)) or value in INFINITE:
        raise ValueError(
            f"{name!r} is {_shown(value)}, expected a text or a number"
        )
    return _check(name, str(value))


def _shown(value: Any) -> str:
    return json.dumps(value, default=repr)[:80]


def _check(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name!r} holds half a character ({error.reason})"
        ) from error
    return text
