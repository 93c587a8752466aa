"""Values that were read of JSON, and can be written as JSON again."""

import json
from typing import Any

from errors import UserError, first_line

# Of lists and objects in one another.
MOST_LEVELS = 100


def check(value: Any, path: str, what: str) -> None:
    """Checks that what was read of a JSON file can be written as JSON again.

    Args:
        value: that Python has read.
        path: of the file, for messages.
        what: what the file is, for messages.

    Raises:
        UserError: it cannot: Python reads NaN and half a character, which JSON
            does not have, and goes deeper than it writes.
    """
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [
            part
            for outer in level
            if isinstance(outer, (dict, list))
            for part in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if level:
        raise UserError(
            f"{path} is not {what}: it has more than {MOST_LEVELS} levels"
        )
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError as error:
        raise UserError(
            f"{path} is not {what}: it holds what JSON does not have, as NaN "
            f"or half a character ({first_line(error)[:80]})"
        ) from error
