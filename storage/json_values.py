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
    level, depth = [value], 0
    while level:
        outer = [part for part in level if isinstance(part, (dict, list))]
        depth += bool(outer)
        if depth > MOST_LEVELS:
            raise UserError(
                f"{path} is not {what}: it has more than {MOST_LEVELS} levels"
            )
        level = [
            inner
            for part in outer
            for inner in (part.values() if isinstance(part, dict) else part)
        ]
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError as error:
        raise UserError(
            f"{path} is not {what}: it holds what JSON does not have, as NaN "
            f"or half a character ({first_line(error)[:80]})"
        ) from error
