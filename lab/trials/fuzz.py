"""Gives damaged and odd inputs to all that reads what others wrote.

    .venv/bin/python -m lab.trials.fuzz --inputs=1000000

An input is a small right one, changed in a few places at random: bytes, and
values where it is JSON. A reader may take it or refuse it in its own words.
Anything else is a defect: another exception, the end of the process, more than
a second of the processor's time, more memory than `most_memory`, a file that is
left behind. `--reader=NAME --first=N --inputs=1` does one input again.
"""

import argparse
import pathlib
import random
import shutil
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from adapter_bert.progress import Progress
from lab.trials.children import feed, limit_memory
from lab.trials.flag_readers import flag_readers
from lab.trials.inputs import change
from lab.trials.model_readers import model_readers
from lab.trials.readers import Reader, text_readers

LONGEST = 1.0  # seconds of the processor
# Bytes of memory for each byte of an input, and whatever its size.
MEMORY_FACTOR, MEMORY_BESIDE = 100, 2**27
# That a process may take at most, beside what it has when it begins.
MOST_MEMORY = 2**30
MOST_SHOWN = 20


def readers() -> Dict[str, Reader]:
    """Every reader by its name."""
    return {**text_readers(), **model_readers(), **flag_readers()}


def input_of(seed: int, name: str, reader: Reader, number: int) -> bytes:
    """The input of a number; the first one is as it should be."""
    content = reader.files[reader.changed]
    if not number:
        return content
    chance = random.Random(f"{seed}/{name}/{number}")
    return change(content, chance, reader.grows)


def try_input(reader: Reader, folder: pathlib.Path, content: bytes) -> str:
    """Reads one input: `taken`, `refused`, or what is wrong with it.

    Args:
        reader: that reads it.
        folder: with the reader's files.
        content: of the one that is changed.
    """
    before = set(folder.iterdir())
    (folder / reader.changed).write_bytes(content)
    has = _forget_peak()
    began = time.process_time()
    try:
        reader.read(folder)
        found = "taken"
    except reader.raises as error:
        found = "refused"
        if "\n" in str(error) or not str(error):
            found = f"a message of several lines or none: {str(error)[:200]!r}"
    except KeyboardInterrupt:
        raise
    # Libraries in other languages have errors that are no `Exception`.
    except BaseException as error:  # noqa: BLE001
        found = f"{type(error).__name__}: {str(error)[:200]}"
    took = time.process_time() - began
    more = _peak() - has
    if more > most_memory(len(content)):
        found = f"{more >> 20} MB for {len(content)} bytes: {found[:200]}"
    for path in set(folder.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if found == "refused":
            found = f"{path.name} is left behind"
    return found if took < LONGEST else f"{took:.1f} s for: {found[:200]}"


def most_memory(size: int) -> int:
    """Bytes that reading an input of a size may take."""
    return MEMORY_FACTOR * size + MEMORY_BESIDE


def _forget_peak() -> int:
    """Bytes of memory that the process has; its peak begins anew with them.

    Source: Linux, `proc(5)`, `/proc/pid/clear_refs`.
    """
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _peak()


def _peak() -> int:
    """The most bytes of memory that the process had since then."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def fuzz(
    name: str,
    reader: Reader,
    numbers: range,
    seed: int,
    tell: Callable[[int, str], None],
    until: float = float("inf"),
) -> None:
    """Tries inputs of one reader.

    Args:
        name: the reader's.
        reader: that reads them.
        numbers: of the inputs.
        seed: of all of them.
        tell: is given the number of each input before it is read, with "",
            and afterwards with what came of it.
        until: when to stop, by `time.monotonic`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "input"
        folder.mkdir()
        for file, content in reader.files.items():
            (folder / file).write_bytes(content)
        for number in numbers:
            if time.monotonic() > until:
                return
            tell(number, "")
            content = input_of(seed, name, reader, number)
            found = try_input(reader, folder, content)
            tell(number, found.replace(scratch, ""))


class Found:
    """What came of a reader's inputs.

    Attributes:
        counts: how many were `taken` and `refused`.
        defects: the number of the first input of each kind of defect.
        inputs: how many have been read.
        began: when the first one was told of, by `time.monotonic`, or None.
    """

    def __init__(self):
        """Begins with nothing."""
        self.counts = {"taken": 0, "refused": 0}
        self.defects: Dict[str, int] = {}
        self.inputs = 0
        self.began: Optional[float] = None

    def tell(self, number: int, found: str) -> None:
        """Takes what `fuzz` tells."""
        if self.began is None:
            self.began = time.monotonic()
        if not found:
            return
        self.inputs += 1
        if found in self.counts:
            self.counts[found] += 1
        elif len(self.defects) < MOST_SHOWN:
            self.defects.setdefault(found, number)

    def describe(self) -> Dict[str, Any]:
        """For a file of JSON."""
        shown = [{"number": n, "found": t} for t, n in self.defects.items()]
        return {"inputs": self.inputs, **self.counts, "defects": shown}


def to_table(results: Dict[str, Dict[str, Any]]) -> str:
    """A row for each reader, in Markdown."""
    lines = ["| reader | inputs | taken | refused | defects |"]
    lines.append("|---|---|---|---|---|")
    for name, found in results.items():
        cells = [f"{found[k]:,}" for k in ("inputs", "taken", "refused")]
        row = [name, *cells, str(len(found["defects"]))]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def parse_arguments(
    parser: argparse.ArgumentParser, inputs: int
) -> argparse.Namespace:
    """Reads the command line.

    Args:
        parser: with what only its program knows.
        inputs: of each reader, where the command line does not say.

    Raises:
        UserError: there is no such reader, or nothing to try.
    """
    parser.add_argument(
        "--inputs", type=int, default=inputs, help="of each reader"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=0.0,
        help="for all readers together, after which no input is begun",
    )
    parser.add_argument("--jobs", type=int, default=1, help="readers at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", default="", help="name of one of them")
    parser.add_argument("--output", default="", help="file of JSON")
    arguments = parser.parse_args()
    known = readers()
    if arguments.reader and arguments.reader not in known:
        raise UserError(
            f"no reader is called {arguments.reader!r}; there are: "
            f"{', '.join(known)}"
        )
    if arguments.inputs < 1 or arguments.first < 0:
        raise UserError(
            f"--inputs={arguments.inputs} --first={arguments.first}: expected "
            "at least one input, from 0 on"
        )
    if arguments.jobs < 1 or not 0 <= arguments.minutes < 1e6:
        raise UserError(
            f"--jobs={arguments.jobs} --minutes={arguments.minutes}: expected "
            "at least one job, and no less than no time"
        )
    return arguments


def chosen_readers(arguments: argparse.Namespace) -> Dict[str, Reader]:
    """Those that the command line asks for, by name."""
    return {
        name: reader
        for name, reader in readers().items()
        if arguments.reader in ("", name)
    }


def try_readers(
    arguments: argparse.Namespace,
    chosen: Dict[str, Reader],
    try_inputs: Callable[..., None],
) -> None:
    """Tries all inputs, prints a table, and fails if there is a defect.

    Args:
        arguments: of the command line.
        chosen: the readers.
        try_inputs: `fuzz`, or what takes the same; it is called in a process
            of its own.

    Raises:
        UserError: there is a defect.
    """
    numbers = range(arguments.first, arguments.first + arguments.inputs)
    seconds = float("inf")
    if arguments.minutes:
        seconds = 60 * arguments.minutes * arguments.jobs / len(chosen)
    told = {name: Found() for name in chosen}
    progress = Progress("fuzz", len(chosen), "readers")

    def work(name: str, left: range, tell: Callable[[int, str], None]) -> None:
        limit_memory(MOST_MEMORY)
        # It goes on for one that has died: as a fork it knows what was told.
        until = (told[name].began or time.monotonic()) + seconds
        try_inputs(name, chosen[name], left, arguments.seed, tell, until)

    for name in feed(
        {name: numbers for name in chosen},
        work,
        {name: found.tell for name, found in told.items()},
        arguments.jobs,
    ):
        progress.update(1, name)
    progress.close()
    results = {name: found.describe() for name, found in told.items()}
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


def main() -> None:
    """Does what the command line says.

    Raises:
        UserError: as `parse_arguments` and `try_readers`.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="number to begin")
    arguments = parse_arguments(parser, 10_000)
    try_readers(arguments, chosen_readers(arguments), fuzz)


if __name__ == "__main__":
    command_line.run(main)
