"""Gives damaged and odd inputs to all that reads what others wrote.

    .venv/bin/python -m soak.fuzz --inputs=1000000

An input is a small right one, changed in a few places at random: bytes, and
values where it is JSON. A reader may take it or refuse it in its own words.
Anything else is a defect: another exception, more than a second of the
processor's time, more memory than `MOST_MEMORY`, a file that is left behind.
`--only=NAME --first=N --inputs=1` does one input again.
"""

import argparse
import copy
import json
import pathlib
import random
import resource
import shutil
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

import start_tensorflow  # noqa: F401

import command_line
import files
from errors import UserError
from progress import Progress
from soak.readers import Reader, readers

LONGEST = 1.0  # seconds of the processor
# Beside what the process has when it begins.
MOST_MEMORY = 2**30
MOST_SHOWN = 20

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


def change(content: bytes, chance: random.Random) -> bytes:
    """Some bytes of it changed, or a value if it is JSON."""
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


def input_of(seed: int, name: str, reader: Reader, number: int) -> bytes:
    """The input of a number; the first one is as it should be."""
    content = reader.files[reader.changed]
    if not number:
        return content
    return change(content, random.Random(f"{seed}/{name}/{number}"))


def try_input(reader: Reader, folder: pathlib.Path, content: bytes) -> str:
    """Reads one input: `taken`, `refused`, or what is wrong with it.

    Args:
        reader: that reads it.
        folder: with the reader's files.
        content: of the one that is changed.
    """
    before = set(folder.iterdir())
    (folder / reader.changed).write_bytes(content)
    began = time.process_time()
    try:
        reader.read(folder)
        found = "taken"
    except reader.raises as error:
        found = "refused"
        if "\n" in str(error) or not str(error):
            found = f"a message of several lines or none: {str(error)[:200]!r}"
    except Exception as error:  # noqa: BLE001
        found = f"{type(error).__name__}: {str(error)[:200]}"
    took = time.process_time() - began
    for path in set(folder.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if found == "refused":
            found = f"{path.name} is left behind"
    return found if took < LONGEST else f"{took:.1f} s for: {found[:200]}"


def fuzz(
    name: str, reader: Reader, numbers: range, seed: int
) -> Dict[str, Any]:
    """Tries inputs of one reader.

    Args:
        name: the reader's.
        reader: that reads them.
        numbers: of the inputs.
        seed: of all of them.

    Returns:
        How many were `taken` and `refused`; `defects`, the first of each
        kind, with their numbers.
    """
    counts = {"taken": 0, "refused": 0}
    defects: Dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "input"
        folder.mkdir()
        for file, content in reader.files.items():
            (folder / file).write_bytes(content)
        for number in numbers:
            content = input_of(seed, name, reader, number)
            found = try_input(reader, folder, content)
            if found in counts:
                counts[found] += 1
            elif len(defects) < MOST_SHOWN:
                defects.setdefault(found.replace(scratch, ""), number)
    shown = [{"number": n, "found": text} for text, n in defects.items()]
    return {"inputs": len(numbers), **counts, "defects": shown}


def to_table(results: Dict[str, Dict[str, Any]]) -> str:
    """A row for each reader, in Markdown."""
    lines = ["| reader | inputs | taken | refused | defects |"]
    lines.append("|---|---|---|---|---|")
    for name, found in results.items():
        cells = [f"{found[k]:,}" for k in ("inputs", "taken", "refused")]
        row = [name, *cells, str(len(found["defects"]))]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UserError: there is no such reader, or nothing to try.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--inputs", type=int, default=100_000, help="of all readers together"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number to begin")
    parser.add_argument("--only", default="", help="name of a reader")
    parser.add_argument("--output", default="", help="file of JSON")
    arguments = parser.parse_args()
    known = readers()
    if arguments.only and arguments.only not in known:
        raise UserError(
            f"no reader is called {arguments.only!r}; there are: "
            f"{', '.join(known)}"
        )
    if arguments.inputs < 1 or arguments.first < 0:
        raise UserError(
            f"--inputs={arguments.inputs} --first={arguments.first}: expected "
            "at least one input, from 0 on"
        )
    return arguments


def limit_memory() -> None:
    """Lets this process take `MOST_MEMORY` more than it has, and no more."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    """Tries all inputs, prints a table, and fails if there is a defect.

    Raises:
        UserError: as `parse_arguments`; or there is a defect.
    """
    arguments = parse_arguments()
    chosen = {
        name: reader
        for name, reader in readers().items()
        if arguments.only in ("", name)
    }
    count = -(-arguments.inputs // len(chosen))
    numbers = range(arguments.first, arguments.first + count)
    limit_memory()
    results = {}
    progress = Progress("fuzz", count * len(chosen), "inputs")
    for name, reader in chosen.items():
        results[name] = fuzz(name, reader, numbers, arguments.seed)
        progress.update(count, name)
    progress.close()
    print(to_table(results))
    found: List[str] = [
        f"{name}: input {defect['number']}: {defect['found']}"
        for name, result in results.items()
        for defect in result["defects"]
    ]
    print("\n".join(found))
    if arguments.output:
        record = {"seed": arguments.seed, "readers": results}
        files.write_json(arguments.output, record)
    if found:
        raise UserError(f"{len(found)} kinds of defects, as shown above")


if __name__ == "__main__":
    command_line.run(main)
