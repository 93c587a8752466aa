"""Gives a reader a valid input with random changes, and judges the outcome.

A reader may take an input, or refuse it in one line. Anything else is a defect:
another exception, more than a second of the processor's time, more memory than
`most_memory`, a file that is left behind.
"""

import copy
import dataclasses
import gc
import json
import pathlib
import random
import resource
import shutil
import time
from collections.abc import Mapping
from typing import Any, Callable

from adapter_bert.errors import UserError

LONGEST = 1.0  # seconds of the processor
# Bytes of memory for each byte of an input, and whatever its size.
MEMORY_FACTOR, MEMORY_BESIDE = 100, 2**27
# Bytes of a grown input, at most.
GROWN = 2**18
TAKEN, REFUSED = "taken", "refused"


@dataclasses.dataclass(frozen=True)
class Reader:
    """A function that reads one kind of input.

    Attributes:
        files: the files of a folder that it takes, by name.
        changed: the name of the one that is changed.
        read: takes the folder.
        raises: the exceptions by which it refuses an input.
        grows: whether some of its inputs are large.
    """

    files: Mapping[str, bytes]
    changed: str
    read: Callable[[pathlib.Path], Any]
    raises: tuple[type[BaseException], ...] = (UserError,)
    grows: bool = True

    def write(self, folder: pathlib.Path) -> None:
        """Writes its right files into a folder."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def input_of(seed: int, name: str, reader: Reader, number: int) -> bytes:
    """Draws the input of a number from a seed; the first is the right one."""
    content = reader.files[reader.changed]
    if not number:
        return content
    chance = random.Random(f"{seed}/{name}/{number}")
    return change(content, chance, reader.grows)


def try_input(reader: Reader, folder: pathlib.Path, content: bytes) -> str:
    """Reads one input: `taken`, `refused`, or what is wrong.

    Args:
        reader: that reads it.
        folder: with the reader's files.
        content: of the one that is changed.
    """
    before = set(folder.iterdir())
    (folder / reader.changed).write_bytes(content)
    # The peak begins anew. Source: Linux, `proc(5)`, `clear_refs`.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    has = _peak()
    # Collecting what others have left is not the reader's time.
    gc.freeze()
    began = time.process_time()
    try:
        reader.read(folder)
        outcome = TAKEN
    except reader.raises as error:
        outcome = REFUSED
        if "\n" in str(error) or not str(error):
            outcome = (
                f"a message of several lines or none: {str(error)[:200]!r}"
            )
    except KeyboardInterrupt:
        raise
    # Libraries in other languages have errors that are no `Exception`.
    except BaseException as error:  # noqa: BLE001
        outcome = f"{type(error).__name__}: {str(error)[:200]}"
    took = time.process_time() - began
    gc.unfreeze()
    more = _peak() - has
    if more > most_memory(len(content)):
        outcome = f"{more >> 20} MB for {len(content)} bytes: {outcome[:200]}"
    for path in set(folder.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if outcome == REFUSED:
            outcome = f"{path.name} is left behind"
    return outcome if took < LONGEST else f"{took:.1f} s for: {outcome[:200]}"


def most_memory(size: int) -> int:
    """Bytes that reading an input of a size may take."""
    return MEMORY_FACTOR * size + MEMORY_BESIDE


def _peak() -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def limit_memory(more: int) -> None:
    """Lets this process take so many bytes more than it has."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


ODD_BYTES = (
    b"\0", b"\n", b"\r\n", b"\t", b'"', b"'", b"\\", b"{", b"}", b"[", b"]",
    b",", b":", b"(", b")", b"\xef\xbb\xbf", b"\xff", b"\xed\xa0\x80",
    b"\\ud800", b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"true",
    b"9" * 30, b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b"A" * 3000, b"[" * 2000,
    b"../", b"/", b"-DOCSTART-", b"B-", b"__import__", b"**", b"%s", b"#",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
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


def _place(content: bytes, chance: random.Random) -> tuple[int, int]:
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


CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _cut, _drop, _repeat, _insert, _insert, _scatter,
)  # fmt: skip


def _change_value(value: Any, chance: random.Random) -> Any:
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
