"""Has inputs lead readers to code that no input has led to before.

    make fuzz MINUTES=60
    .venv/bin/python -m lab.trials.guided --reader=squad --minutes=5

`fuzz.py` draws inputs at random. Here libFuzzer (of Atheris) sees to which
code of the project an input leads, and changes those further that have led to
new code. Inputs that reach lines of their own are kept in `tests/corpora/`:
later runs begin with them, and tests read them. `--output_dir` has all that
led to something new, and the input of each defect. A seed may come to other
inputs the next time.
"""

import argparse
import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time
from types import FrameType, ModuleType
from typing import Any, Callable, List, Mapping, Set, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import tensorflow as tf  # noqa: F401

from adapter_bert import command_line
from adapter_bert.errors import UserError
from lab.trials.children import feed, limit_memory

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = os.path.join(sys.prefix, "atheris")
KEPT = ROOT / "tests" / "corpora"
# An input may become so many times as long as the right one, or so long.
GROWTH, SHORT = 4, 2**12
# Of inputs, where only the time is limited.
ENDLESS = 10**9
KEPT_SOME = "kept"
# Signals are to end the process, as `soak.children` expects, and memory and
# time have limits of our own.
SETTINGS = ["-rss_limit_mb=0", "-timeout=86400", "-detect_leaks=0"] + [
    f"-handle_{name}=0"
    for name in ("abrt", "bus", "fpe", "ill", "int", "segv", "term", "xfsz")
]


def load(packages: str = PACKAGES) -> ModuleType:
    """Imports `lab.trials.fuzz`, and has what it gives inputs to looked at.

    Raises:
        UserError: Atheris is not installed.
    """
    if packages not in sys.path:
        sys.path.append(packages)
    try:
        atheris = importlib.import_module("atheris")
    except ImportError as error:
        raise UserError(f"{error}; `make fuzz` installs Atheris") from error
    # It tells of each module.
    with (
        contextlib.redirect_stderr(io.StringIO()),
        atheris.instrument_imports(
            include=["adapter_bert"], enable_loader_override=False
        ),
    ):
        return importlib.import_module("lab.trials.fuzz")


class Session:
    """Where the inputs of readers lie.

    Attributes:
        fuzz: the module that tries an input.
        output: folder of all that has led to something new.
        kept: folder of what is kept of it.
    """

    def __init__(
        self, fuzz: ModuleType, output: pathlib.Path, kept: pathlib.Path
    ):
        """Takes the module that tries inputs, and two folders."""
        self.fuzz, self.output, self.kept = fuzz, output, kept

    def folder(self, name: str) -> pathlib.Path:
        """A reader's folder, of one input a file."""
        return self.output / file_name(name)

    def begin(self, name: str, reader: Any) -> None:
        """Puts there the right input, and those that were kept."""
        folder = self.folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        right = reader.files[reader.changed]
        for number, content in enumerate([right, *read_kept(self.kept, name)]):
            (folder / f"kept-{number}").write_bytes(content)

    def try_inputs(
        self,
        name: str,
        reader: Any,
        numbers: range,
        seed: int,
        tell: Callable[[int, str], None],
        until: float,
    ) -> None:
        """Has libFuzzer find inputs, and ends the process.

        Args:
            name: the reader's.
            reader: a `lab.trials.readers.Reader`.
            numbers: of the inputs, one after the other.
            seed: of what is drawn.
            tell: as for `lab.trials.fuzz.fuzz`.
            until: when to stop, by `time.monotonic`.
        """
        import atheris

        scratch = tempfile.mkdtemp(prefix="fuzz-")
        folder = pathlib.Path(scratch) / "input"
        folder.mkdir()
        for file, content in reader.files.items():
            (folder / file).write_bytes(content)
        left = iter(numbers)
        known: Set[str] = set()

        def read(content: bytes) -> None:
            number = next(left, None)
            if number is None or time.monotonic() > until:
                # libFuzzer would end it by itself, too, but not leave Python.
                shutil.rmtree(scratch)
                os._exit(0)
            # There when the process dies of it.
            digest = hashlib.sha256(content).hexdigest()[:8]
            path = self.output / f"{file_name(name)}-{number}-{digest}"
            path.write_bytes(content)
            tell(number, "")
            found = self.fuzz.try_input(reader, folder, content)
            found = found.replace(scratch, "")
            # The first of each kind of defect stays.
            if found in ("taken", "refused", *known):
                path.unlink()
            else:
                known.add(found)
            tell(number, found)

        size = len(reader.files[reader.changed])
        words = [
            str(self.folder(name)),
            # Another one for what goes on after an input that ends a process.
            f"-seed={(seed + numbers.start) % 2**32 or 1}",
            f"-max_len={max(GROWTH * size, SHORT)}",
            f"-artifact_prefix={scratch}/",
            *SETTINGS,
        ]
        atheris.Setup(["fuzz", *words], read, custom_mutator=_change)
        with open(self.output / f"{file_name(name)}.log", "a") as log:
            os.dup2(log.fileno(), 2)
        atheris.Fuzz()

    def keep_all(self, chosen: Mapping[str, Any], jobs: int) -> None:
        """Keeps some of each reader's inputs, in processes that have limits.

        An input may need more memory where its lines are counted. Then
        nothing new is kept of its reader.
        """

        def work(name: str, _: range, tell: Callable[[int, str], None]) -> None:
            limit_memory(self.fuzz.MOST_MEMORY)
            self.keep(name, chosen[name], lambda: tell(0, ""))
            tell(0, KEPT_SOME)

        def note(name: str, _: int, outcome: str) -> None:
            if outcome not in ("", KEPT_SOME):
                print(f"{name}: nothing is kept: {outcome}", file=sys.stderr)

        told = {name: functools.partial(note, name) for name in chosen}
        numbers = dict.fromkeys(chosen, range(1))
        for _ in feed(numbers, work, told, jobs):
            pass

    def keep(
        self, name: str, reader: Any, goes_on: Callable[[], None] = lambda: None
    ) -> None:
        """Keeps those inputs that lead to lines of their own.

        What was kept before stays, if it does.

        Args:
            name: the reader's.
            reader: that reads them.
            goes_on: is called before each.
        """
        right = reader.files[reader.changed]
        contents = {f.read_bytes() for f in self.folder(name).iterdir()}
        before = read_kept(self.kept, name)
        contents -= {right, *before}
        new = sorted(contents, key=lambda content: (len(content), content))
        known: Set[Tuple[str, int]] = set()
        kept = []
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            for file, content in reader.files.items():
                (folder / file).write_bytes(content)
            for content in [right, *before, *new]:
                goes_on()
                lines = lines_of(
                    functools.partial(
                        self.fuzz.try_input, reader, folder, content
                    )
                )
                if lines - known and content != right:
                    kept.append(content)
                known |= lines
        write_kept(self.kept, name, kept)


def _change(content: bytes, most: int, seed: int) -> bytes:
    """What is tried next: an input as libFuzzer changes it, or as we do."""
    import atheris

    from lab.trials.inputs import change

    chance = random.Random(seed)
    if chance.random() < 0.5:
        return atheris.Mutate(content, most)
    return change(content, chance, grows=False)[:most]


def lines_of(work: Callable[[], Any]) -> Set[Tuple[str, int]]:
    """The lines of the project's readers that are run, by file and number."""
    found: Set[Tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not _is_led_to(name):
            return None
        if event == "line":
            found.add((name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return found


@functools.lru_cache(None)
def _is_led_to(name: str) -> bool:
    """Whether a file is of the project, and one that readers may reach."""
    path = pathlib.Path(name)
    return ROOT / "adapter_bert" in path.parents


def file_name(name: str) -> str:
    """Of a reader's name."""
    return re.sub(r"\W+", "_", name)


def read_kept(folder: pathlib.Path, name: str) -> List[bytes]:
    """Inputs of a reader that were kept: a letter of theirs is a byte."""
    path = folder / f"{file_name(name)}.json"
    if not path.exists():
        return []
    return [text.encode("latin-1") for text in json.loads(path.read_text())]


def write_kept(folder: pathlib.Path, name: str, contents: List[bytes]) -> None:
    """As `read_kept` reads them; one on each line."""
    # Imported before `load`, it would not be looked at.
    from adapter_bert import files

    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(c.decode("latin-1")) for c in contents)
    path = folder / f"{file_name(name)}.json"
    files.write_text(str(path), f"[\n{lines}\n]\n")


def main() -> None:
    """Tries inputs, keeps some, and fails if there is a defect.

    Raises:
        UserError: as `load` and `fuzz.parse_arguments`; or there is a
            defect.
    """
    fuzz = load()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output_dir", default="out/fuzz", type=pathlib.Path)
    parser.add_argument(
        "--kept", default=KEPT, type=pathlib.Path, help="folder of kept inputs"
    )
    parser.set_defaults(first=0)
    arguments = fuzz.parse_arguments(parser, ENDLESS)
    if not arguments.minutes and arguments.inputs == ENDLESS:
        raise UserError("it does not end without --minutes or --inputs")
    session = Session(fuzz, arguments.output_dir, arguments.kept)
    chosen = fuzz.chosen_readers(arguments)
    for name, reader in chosen.items():
        session.begin(name, reader)
    try:
        fuzz.try_readers(arguments, chosen, session.try_inputs)
    finally:
        session.keep_all(chosen, arguments.jobs)


if __name__ == "__main__":
    command_line.run(main)
