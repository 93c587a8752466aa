"""Fuzzing of everything that reads others' files, guided by coverage.

    make fuzz MINUTES=60
    .venv/bin/python -m lab.trials.fuzz --reader=squad --minutes=5

libFuzzer (of Atheris) mutates inputs that have reached new code.
`fuzz_inputs.py` defines defects; crashes, and a minute without an answer, are
defects too. Inputs that reach lines of their own are kept in `tests/corpora/`:
later runs begin with them, and tests read them. `--output_dir` gets all inputs
that reached new code, and the input of each defect. A seed does not repeat a
run.
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
import subprocess
import sys
import tempfile
import time
from concurrent import futures
from types import FrameType
from typing import Any, Callable

from adapter_bert import command_line
from adapter_bert.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = os.path.join(sys.prefix, "atheris")
KEPT = ROOT / "tests" / "corpora"
READERS = "lab.trials.fuzz_targets"
# An input may become so many times as long as the right one, or so long.
GROWTH, SHORT = 4, 2**12
# Bytes that a process may take in addition to its first ones.
MOST_MEMORY = 2**30
# Deaths of a reader's processes, after which it is left.
MOST_DEATHS = 20
SETTINGS = "-rss_limit_mb=0 -timeout=60 -detect_leaks=0 -print_final_stats=1"


def load(packages: str = PACKAGES, module: str = READERS) -> Any:
    """Imports a module of readers so that libFuzzer sees the lines they run."""
    if packages not in sys.path:
        sys.path.append(packages)
    try:
        atheris = importlib.import_module("atheris")
    except ImportError as error:
        raise UserError(f"{error}; `make fuzz` installs Atheris") from error
    # Atheris tells of each module.
    with (
        contextlib.redirect_stderr(io.StringIO()),
        atheris.instrument_imports(
            include=["adapter_bert"], enable_loader_override=False
        ),
    ):
        return importlib.import_module(module)


def lead(name: str, reader: Any, output: pathlib.Path, words: Any) -> None:
    """Has libFuzzer find inputs of a reader, and ends the process.

    All inputs and defects go into the folder `output`; `words` are for
    libFuzzer.
    """
    import atheris

    from lab.trials import fuzz_inputs

    folder = pathlib.Path(tempfile.mkdtemp())
    reader.write(folder)
    defects: set[str] = {defect for defect, _ in defects_of(output, name)}

    def read(content: bytes) -> None:
        outcome = fuzz_inputs.try_input(reader, folder, content)
        outcome = outcome.replace(str(folder), "")
        if outcome not in (fuzz_inputs.TAKEN, fuzz_inputs.REFUSED, *defects):
            defects.add(outcome)
            note(output, name, outcome, content)

    def change(content: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return atheris.Mutate(content, most)
        return fuzz_inputs.change(content, chance, grows=False)[:most]

    fuzz_inputs.limit_memory(MOST_MEMORY)
    atheris.Setup(["fuzz", *words], read, custom_mutator=change)
    atheris.Fuzz()


def note(output: pathlib.Path, name: str, defect: str, content: bytes) -> None:
    """Writes down a defect, and its input."""
    digest = hashlib.sha256(content).hexdigest()[:8]
    path = output / f"{file_name(name)}-{digest}"
    path.write_bytes(content)
    with open(output / f"{file_name(name)}.jsonl", "a") as file:
        file.write(json.dumps([defect, str(path)]) + "\n")


def defects_of(output: pathlib.Path, name: str) -> list[list[str]]:
    """Returns the defects of a reader, and the files of their inputs."""
    path = output / f"{file_name(name)}.jsonl"
    return [*map(json.loads, path.open())] if path.exists() else []


def try_reader(name: str, reader: Any, arguments: Any, seconds: float) -> int:
    """Leads inputs of a reader for some seconds; returns their number."""
    output, inputs = arguments.output_dir, 0
    corpus = output / file_name(name)
    corpus.mkdir(parents=True, exist_ok=True)
    (output / f"{file_name(name)}.jsonl").unlink(missing_ok=True)
    right = reader.files[reader.changed]
    for number, content in enumerate([right, *read_kept(arguments.kept, name)]):
        (corpus / f"kept-{number}").write_bytes(content)
    until = time.monotonic() + seconds
    for turn in range(MOST_DEATHS):
        left = until - time.monotonic()
        if left < 1 or inputs >= arguments.inputs:
            break
        with tempfile.TemporaryDirectory() as scratch:
            words = [
                str(corpus),
                f"-seed={(arguments.seed + turn) % 2**32 or 1}",
                f"-max_len={max(GROWTH * len(right), SHORT)}",
                f"-max_total_time={int(min(left, 1e6)) + 1}",
                f"-runs={arguments.inputs - inputs}",
                f"-artifact_prefix={scratch}/",
                *SETTINGS.split(),
            ]
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "lab.trials.fuzz"),
                    *(f"--packages={arguments.packages}", f"--lead={name}"),
                    f"--readers={arguments.readers}",
                    *(f"--output_dir={output}", *words),
                ],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": scratch},
                capture_output=True,
                text=True,
                errors="replace",
            )
            counted = re.search(r"executed_units: (\d+)", done.stderr)
            inputs += int(counted[1]) if counted else 0
            died = [p for p in pathlib.Path(scratch).glob("*-*") if p.is_file()]
            for path in died:
                kind = path.name.partition("-")[0]
                defect = f"the process ended: {kind}"
                if defect not in dict(defects_of(output, name)):
                    note(output, name, defect, path.read_bytes())
        if not done.returncode:
            break
        if not died:
            raise UserError(f"{name}: {done.stderr[-500:]}")
    return inputs


def keep(
    name: str, reader: Any, output: pathlib.Path, kept: pathlib.Path
) -> None:
    """Keeps the inputs of the folder `output` that lead to lines of their own.

    Those that were kept before come first, then the shortest.
    """
    from lab.trials import fuzz_inputs

    right = reader.files[reader.changed]
    contents = {f.read_bytes() for f in (output / file_name(name)).iterdir()}
    before = read_kept(kept, name)
    contents -= {right, *before}
    new = sorted(contents, key=lambda content: (len(content), content))
    reached: set[tuple[str, int]] = set()
    chosen = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        reader.write(folder)
        for content in [right, *before, *new]:
            lines = lines_of(
                functools.partial(
                    fuzz_inputs.try_input, reader, folder, content
                )
            )
            if lines - reached and content != right:
                chosen.append(content)
            reached |= lines
    write_kept(kept, name, chosen)


def lines_of(work: Callable[[], Any]) -> set[tuple[str, int]]:
    """Returns the package's lines that are run, by file and number."""
    lines: set[tuple[str, int]] = set()
    package = str(ROOT / "adapter_bert") + os.sep

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(package):
            return None
        if event == "line":
            lines.add((name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def file_name(name: str) -> str:
    """A reader's name, for files."""
    return re.sub(r"\W+", "_", name)


def read_kept(folder: pathlib.Path, name: str) -> list[bytes]:
    """Inputs of a reader that were kept; each letter in the file is a byte."""
    path = folder / f"{file_name(name)}.json"
    if not path.exists():
        return []
    return [text.encode("latin-1") for text in json.loads(path.read_text())]


def write_kept(folder: pathlib.Path, name: str, contents: list[bytes]) -> None:
    """Writes inputs as `read_kept` reads them, one on each line."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(c.decode("latin-1")) for c in contents)
    (folder / f"{file_name(name)}.json").write_text(f"[\n{lines}\n]\n")


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """Reads the command line; what it does not know is for libFuzzer."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reader", default="", help="name of one of them")
    parser.add_argument(
        "--minutes", type=float, help="for all readers together"
    )
    parser.add_argument("--inputs", type=int, help="of each reader, at most")
    parser.add_argument("--jobs", type=int, default=1, help="readers at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output_dir", default="out/fuzz", type=pathlib.Path)
    parser.add_argument(
        "--kept", default=KEPT, type=pathlib.Path, help="folder of kept inputs"
    )
    parser.add_argument("--packages", default=PACKAGES, help="of Atheris")
    parser.add_argument("--readers", default=READERS, help="their module")
    parser.add_argument("--lead", help=argparse.SUPPRESS)
    arguments, words = parser.parse_known_args()
    if words and not arguments.lead:
        raise UserError(f"unknown: {' '.join(words)}")
    if not (arguments.minutes or arguments.inputs or arguments.lead):
        raise UserError("it does not end without --minutes or --inputs")
    if arguments.jobs < 1 or (arguments.minutes or 1) <= 0:
        raise UserError(
            f"--jobs={arguments.jobs} --minutes={arguments.minutes} tries "
            "nothing; expected more than 0"
        )
    return arguments, words


def main() -> None:
    """Tries inputs, keeps some, and fails if there is a defect."""
    arguments, words = parse_arguments()
    if arguments.lead:
        readers = load(arguments.packages, arguments.readers).readers()
        reader = readers[arguments.lead]
        lead(arguments.lead, reader, arguments.output_dir, words)
    from adapter_bert.progress import Progress
    from lab import report

    readers = importlib.import_module(arguments.readers).readers()
    chosen = {
        name: reader
        for name, reader in readers.items()
        if arguments.reader in ("", name)
    }
    if not chosen:
        raise UserError(
            f"no reader is called {arguments.reader!r}; there are: "
            f"{', '.join(readers)}"
        )
    if not os.path.isdir(arguments.packages):
        raise UserError(
            f"no {arguments.packages}; `make fuzz` installs Atheris"
        )
    output = arguments.output_dir = arguments.output_dir.resolve()
    minutes = arguments.minutes or 1e6
    arguments.inputs = arguments.inputs or 10**9
    seconds = 60 * minutes * arguments.jobs / len(chosen)
    progress = Progress("fuzz", len(chosen), "readers")
    results: dict[str, int] = {}

    def work(name: str) -> None:
        reader = chosen[name]
        results[name] = try_reader(name, reader, arguments, seconds)
        progress.update(1, name)

    with futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(work, chosen))
    progress.close()
    for name, reader in chosen.items():
        keep(name, reader, output, arguments.kept)
    by_reader = {name: defects_of(output, name) for name in chosen}
    table = [["reader", "inputs", "defects"]]
    for name, defects in by_reader.items():
        table.append([name, f"{results[name]:,}", str(len(defects))])
    print(report.markdown(table))
    list_of_defects = [
        f"{n}: {text}: {p}" for n in by_reader for text, p in by_reader[n]
    ]
    print("\n".join(list_of_defects))
    if list_of_defects:
        raise UserError(
            f"{len(list_of_defects)} kinds of defects, as shown above"
        )


if __name__ == "__main__":
    with command_line.run():
        main()
