"""Flags that a caller in Python gives, as keywords or as words."""

import contextlib
import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl.flags import FlagValues, IllegalFlagValueError

from adapter_bert.errors import UserError
from adapter_bert.flags import (
    as_current,
    at_home,
    define,
    of_wrong_value,
    parse,
)


@contextlib.contextmanager
def of_keywords(
    classes: Sequence[type],
    keywords: Mapping[str, Any],
    caller: str,
    fixed: Mapping[str, Any] = {},
) -> Iterator[None]:
    """Makes code in the block read these keywords as its flags.

    The flags of the process are neither read nor changed. Other threads keep
    theirs.

    Args:
        classes: dataclasses that declare the flags.
        keywords: values by the flags' names, as a command line has them, or
            in Python's own types. None stands for the default. A mapping
            stands for NAME=VALUE pairs, or for JSON where a flag is one text.
        caller: name of the function that was called, for messages.
        fixed: further values, which the function's arguments say. They may be
            of any type, as rows in memory.
    """
    values = define(classes, FlagValues())
    values.mark_as_parsed()
    # What is fixed comes last: its flag may have been set by an alias.
    for name, value in (*keywords.items(), *fixed.items()):
        if name not in values:
            near = difflib.get_close_matches(name, values, 1)
            raise UserError(
                f"{caller} takes no keyword {name!r}"
                + (f" (did you mean {near[0]}?)" if near else "")
                + "; docs/flags.md lists the keywords of each task"
            )
        if value is None:
            continue
        flag = values[name]
        if name in fixed and (
            keywords.get(name) is not None or flag.value != flag.default
        ):
            raise UserError(
                f"{caller} takes no keyword {name!r}: its arguments, or "
                "load_bert(), say it"
            )
        argument = _as_argument(name, value, flag.flag_type())
        try:
            if name in fixed and flag.flag_type() == "string":
                flag.value = argument
            else:
                flag.parse(argument)
        except IllegalFlagValueError as error:
            raise of_wrong_value(values, error) from error
        # Of a list that is empty too.
        flag.present = 1
        flag.value = at_home(flag.value)
    with as_current(values):
        yield


@contextlib.contextmanager
def of_words(
    classes: Sequence[type], program: str, words: Sequence[str]
) -> Iterator[None]:
    """Makes code in the block read a command line's words as its flags.

    Else as `of_keywords`.

    Args:
        classes: dataclasses that declare the flags.
        program: name of the program, for messages.
        words: all that follows the program's name.
    """
    values = define(classes, FlagValues())
    parse(values, [program, *words])
    with as_current(values):
        yield


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _as_argument(name: str, value: Any, kind: str) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        if kind == "string":
            # Of numpy, which JSON does not take.
            pairs = [map(_plain, pair) for pair in value.items()]
            return json.dumps(dict(pairs), ensure_ascii=False)
        return [f"{name}={part}" for name, part in value.items()]
    # Of numpy and pandas: arrays, columns and numbers.
    value = _plain(value)
    if kind == "string" and type(value) is int:
        return str(value)
    if isinstance(value, (tuple, range)):
        value = list(value)
    is_list = "list" in kind or kind.startswith("multi")
    if not is_list or isinstance(value, str):
        return value
    parts = []
    for part in map(_plain, value if isinstance(value, list) else [value]):
        if type(part) in (int, float):
            part = str(part)
        if not isinstance(part, (str, os.PathLike)):
            raise UserError(
                f"--{name} has a {type(part).__name__}, expected a list of "
                "texts or numbers"
            )
        parts.append(os.fspath(part))
    return parts
