"""Odd inputs: a right one, changed in a few places at random."""

import copy
import json
import random
from typing import Any, Callable, Tuple

# What a grown input has at most, in bytes.
GROWN = 2**18

ODD_BYTES = (
    b"\0", b"\n", b"\r\n", b"\t", b'"', b"'", b"\\", b"{", b"}", b"[", b"]",
    b",", b":", b"(", b")", b"\xef\xbb\xbf", b"\xff", b"\xed\xa0\x80",
    b"\\ud800", b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"true",
    b"9" * 30, b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b"A" * 3000, b"[" * 2000,
    b"../", b"/", b"-DOCSTART-", b"B-", b"__import__", b"**", b"%s", b"#",
)  # fmt: skip
ODD_VALUES: Tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 10**30, "", "a", "\0",
    "\ud800", "x" * 3000, "../../x", "(", [], [[]], [None], {}, {"a": {}},
    [1, "a"], {"": ""}, "houlsby(size=1)", "custom", "tagging", "squad",
)  # fmt: skip


def change(content: bytes, chance: random.Random, grows: bool = True) -> bytes:
    """Some bytes of it changed, or a value if it is JSON.

    Args:
        content: that is right.
        chance: what is changed, and into what.
        grows: whether it may become large.
    """
    if chance.random() < 0.005 and grows:
        return grow(content, chance)
    if chance.random() < 0.5:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            pass
        else:
            for _ in range(chance.choice((1, 1, 1, 2, 3))):
                value = _change_value(value, chance)
            return json.dumps(value).encode("utf-8", "surrogatepass")
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        content = chance.choice(CHANGES)(content, chance)
    return content


def _place(content: bytes, chance: random.Random) -> Tuple[int, int]:
    first = chance.randrange(len(content) + 1)
    most = chance.choice((1, 4, 16, len(content)))
    return first, min(len(content), first + chance.randint(0, most))


def _flip(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return content
    place = chance.randrange(len(content))
    bits = content[place] ^ 1 << chance.randrange(8)
    return content[:place] + bytes([bits]) + content[place + 1 :]


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _drop(content: bytes, chance: random.Random) -> bytes:
    first, last = _place(content, chance)
    return content[:first] + content[last:]


def _repeat(content: bytes, chance: random.Random) -> bytes:
    first, last = _place(content, chance)
    times = chance.choice((1, 1, 2, 50)) if last - first < 100 else 1
    return content[:last] + content[first:last] * times + content[last:]


def _insert(content: bytes, chance: random.Random) -> bytes:
    first, last = _place(content, chance)
    # In the place of what was there, or before it.
    rest = content[chance.choice((first, last)) :]
    return content[:first] + chance.choice(ODD_BYTES) + rest


def _scatter(content: bytes, chance: random.Random) -> bytes:
    first, last = _place(content, chance)
    return content[:first] + chance.randbytes(last - first) + content[last:]


def grow(content: bytes, chance: random.Random) -> bytes:
    """Much of it: all of it, or a part, again and again."""
    first, last = _place(content, chance)
    part = content[first:last] or chance.choice(ODD_BYTES)
    times = (GROWN - len(content)) // len(part)
    return content[:first] + part * max(1, times) + content[first:]


CHANGES: Tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _cut, _drop, _repeat, _insert, _insert, _scatter,
)  # fmt: skip


def _change_value(value: Any, chance: random.Random) -> Any:
    """The same with something within it changed, at any depth."""
    inside = value if isinstance(value, (dict, list)) and value else None
    if inside is None or chance.random() < 0.1:
        return copy.deepcopy(chance.choice(ODD_VALUES))
    value = copy.copy(inside)
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = chance.choice(keys)
    what = chance.random()
    if what < 0.1:
        del value[key]
    elif what < 0.2 and isinstance(value, dict):
        value[str(chance.choice(ODD_VALUES))[:50]] = value.pop(key)
    elif what < 0.3 and isinstance(value, list):
        value.append(value[key])
    else:
        value[key] = _change_value(value[key], chance)
    return value
