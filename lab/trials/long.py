"""Works long, and tells whether memory, open files or threads grow.

    .venv/bin/python -m lab.trials.long --rows=100000 --steps=20000

Rows go through `adapter-bert predict` and, over HTTP, through `adapter-bert
serve`, after as many that warm them up; a training has so many steps on each
engine. All have a tiny BERT. The table goes into docs/reliability.md, all
samples into `long.json` in `--output_dir`. The exit code is 1 if anything
grows.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent import futures
from functools import partial
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from lab import report
from lab.trials import material, runs

PREDICTOR, SERVER = "predict", "serve"
NAME = "it"
# Shares of all rows and of all steps that warm up. Of the work after them, the
# first and the last part are compared.
ROWS_WARM_UP, STEPS_WARM_UP, COMPARED = 0.5, 0.1, 0.1
# Growth of the memory from which on it is a leak.
MOST_GROWTH = 0.02
# Samples of a work, and rows of a training's data.
SAMPLES = 200
TRAIN_ROWS = 4000
# Clients that ask at once, and the most rows of a request.
CLIENTS, MOST_ROWS = 4, 16
SECONDS = 120


class Sample(NamedTuple):
    """What a process holds when a share of its work is done.

    `memory` and `peak` are bytes: those that are resident, and the most that
    were. `files` are open, and `threads` run.
    """

    done: float
    memory: int
    peak: int
    files: int
    threads: int


class Growth(NamedTuple):
    """Medians of the samples after the warm-up, and at the end.

    `memory` is in bytes, as is `peak`, the most memory at any time.
    """

    memory: Sequence[float]
    files: Sequence[float]
    threads: Sequence[float]
    peak: int

    @property
    def share(self) -> float:
        """The growth of the memory, as a share."""
        before, after = self.memory
        return after / before - 1

    @property
    def is_flat(self) -> bool:
        """Whether nothing grows."""
        counts = (self.files, self.threads)
        return self.share < MOST_GROWTH and all(
            after <= before for before, after in counts
        )


def sample(process: int, done: float) -> Sample:
    """What a process holds now, as Linux tells.

    Raises:
        OSError: it has ended.
    """
    with open(f"/proc/{process}/status") as file:
        lines = (line.split(":", 1) for line in file)
        status: Dict[str, str] = {name: text for name, text in lines}
    # A process that has ended, and was not waited for, holds nothing.
    if "VmRSS" not in status:
        raise ProcessLookupError(f"process {process} has ended")
    memory, peak = (
        int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")
    )
    open_files = len(os.listdir(f"/proc/{process}/fd"))
    return Sample(done, memory, peak, open_files, int(status["Threads"]))


def growth(samples: Sequence[Sample], warm_up: float) -> Growth:
    """Compares the end of a work with its beginning after the warm-up.

    Args:
        samples: of a whole work.
        warm_up: share of the work that is left out.

    Raises:
        ValueError: one part has no samples.
    """
    part = COMPARED * (1 - warm_up)
    parts = [
        [s for s in samples if begin <= s.done <= end]
        for begin, end in ((warm_up, warm_up + part), (1 - part, 1.0))
    ]
    if not all(parts):
        raise ValueError(f"{len(samples)} samples are too few")
    medians = (
        [statistics.median(getattr(s, name) for s in part) for part in parts]
        for name in ("memory", "files", "threads")
    )
    return Growth(*medians, max(s.peak for s in samples))


def predict(place: pathlib.Path, rows: int) -> List[Sample]:
    """Sends rows through a pipe to `adapter-bert predict`.

    Raises:
        UserError: it does not answer.
    """
    command = [
        PREDICTOR,
        f"--init_checkpoint={place / material.BERT}",
        f"--adapter={place / runs.TRAINED / 'adapter'}",
    ]
    chance = random.Random(PREDICTOR)
    samples = []
    with _started(command, place, stdin=True) as process:
        for done, count in portions(rows):
            texts = [make_text(chance) for _ in range(count)]
            process.stdin.write("\n".join(texts) + "\n")
            process.stdin.flush()
            for _ in texts:
                if "probability" not in process.stdout.readline():
                    raise UserError(f"{PREDICTOR} ended: {_said(place)}")
            samples.append(sample(process.pid, done))
        process.stdin.close()
        process.wait(SECONDS)
    return samples


def serve(place: pathlib.Path, rows: int) -> List[Sample]:
    """Asks a server of an exported model, by several clients at a time.

    Raises:
        UserError: it does not answer.
    """
    exported = place / "exported"
    export = [
        "export",
        f"--init_checkpoint={place / material.BERT}",
        f"--adapter={NAME}={place / runs.TRAINED / 'adapter'}",
        f"--output_dir={exported}",
    ]
    with _started(export, place) as process:
        process.wait()
    command = [SERVER, f"--model={exported}", "--port=0"]
    samples = []
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(_started(command, place))
        pool = stack.enter_context(futures.ThreadPoolExecutor(CLIENTS))
        port = _port(process, place)
        for done, count in portions(rows):
            shares = [count // CLIENTS] * CLIENTS
            shares[0] += count % CLIENTS
            seeds = [f"{done} {client}" for client in range(CLIENTS)]
            list(pool.map(partial(_ask, port), shares, seeds))
            samples.append(sample(process.pid, done))
        process.terminate()
        process.wait(SECONDS)
    return samples


def _ask(port: int, rows: int, seed: str) -> None:
    """Asks rows on a new connection, a few a request.

    Raises:
        UserError: they are not answered.
    """
    chance = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    with contextlib.closing(connection):
        while rows > 0:
            count = min(chance.randint(1, MOST_ROWS), rows)
            rows -= count
            texts = [make_text(chance) for _ in range(count)]
            body = {"instances": [{"task": NAME, "text": t} for t in texts]}
            path = "/v1/models/adapter_bert:predict"
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            found = json.loads(answer.read())
            if len(found.get("predictions", ())) != count:
                raise UserError(f"{SERVER} answered {answer.status}: {found}")


def train(place: pathlib.Path, engine: str, steps: int) -> List[Sample]:
    """Trains, with checkpoints and scores now and then.

    Raises:
        UserError: the training fails.
    """
    out = place / engine
    batch = 8
    run = runs.training(
        "long",
        "run_classifier",
        engine,
        **runs.table(material.TABLE),
        output_dir=str(out),
        train_batch_size=batch,
        num_train_epochs=steps * batch / TRAIN_ROWS,
        save_checkpoints_steps=max(steps // 40, 1),
        eval_steps=max(steps // 20, 1),
        keep_best="loss",
    )
    samples = []
    with _started(run.command(place, place), place) as process:
        began = time.monotonic()
        # The share that is done is told by the newest checkpoint.
        while process.poll() is None:
            with contextlib.suppress(OSError):
                samples.append(sample(process.pid, _step(out) / steps))
            pause = (time.monotonic() - began) / SAMPLES
            time.sleep(min(max(pause, 0.05), 1.0))
    if _step(out) != steps:
        raise UserError(f"the training has not ended: {_said(place)}")
    return samples


def _step(out: pathlib.Path) -> int:
    """The step of the newest checkpoint."""
    names = [path.stem for path in out.glob("model.ckpt-*.index")]
    return max((int(n.rpartition("-")[2]) for n in names), default=0)


def portions(rows: int) -> Iterator[Tuple[float, int]]:
    """(share of the rows that is done then, rows) up to each sample."""
    count = min(SAMPLES, rows)
    for number in range(count):
        before, after = (rows * n // count for n in (number, number + 1))
        yield after / rows, after - before


def make_text(chance: random.Random) -> str:
    """One to three sentences, in which one word in ten is unknown."""
    words = []
    for _ in range(chance.randint(1, 3)):
        words += material.sentence(chance)
    return " ".join(
        word if chance.random() < 0.9 else f"w{chance.randrange(10**6)}"
        for word in words
    )


@contextlib.contextmanager
def _started(
    command: Sequence[str], place: pathlib.Path, stdin: bool = False
) -> Iterator[subprocess.Popen]:
    """A program as a user starts it, which ends when the block is left.

    Raises:
        UserError: it has failed.
    """
    pipe = subprocess.PIPE if stdin else subprocess.DEVNULL
    with open(place / "stderr", "w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "adapter_bert", *command],
            cwd=report.ROOT,
            stdin=pipe,
            stdout=pipe,
            stderr=said,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
    if process.returncode > 0:
        raise UserError(f"{command[0]} ended: {_said(place)}")


def _said(place: pathlib.Path) -> str:
    return (place / "stderr").read_text()[-1000:]


def _port(process: subprocess.Popen, place: pathlib.Path) -> int:
    """The port of a server, as soon as it listens."""
    while process.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", _said(place))
        if found:
            return int(found[1])
        time.sleep(0.1)
    raise UserError(f"{SERVER} ended: {_said(place)}")


def rows_of(found: Dict[str, Dict[str, Any]]) -> List[List[str]]:
    """The table.

    Args:
        found: `amount`, `seconds` and `growth` of each work.
    """
    header = "work, amount, minutes, MB after warm-up, MB at the end, MB at "
    table = [f"{header}most, growth, open files, threads".split(", ")]
    for name, of in found.items():
        grown = Growth(**of["growth"])
        sizes = (f"{n / 1e6:.1f}" for n in (*grown.memory, grown.peak))
        counts = (
            " to ".join(f"{n:g}" for n in pair)
            for pair in (grown.files, grown.threads)
        )
        minutes, share = f"{of['seconds'] / 60:.1f}", f"{grown.share:.2%}"
        table.append([name, of["amount"], minutes, *sizes, share, *counts])
    return table


def works(place: pathlib.Path, rows: int, steps: int) -> Dict[str, Any]:
    """The works that this TensorFlow can do: amount, warm-up and function.

    Args:
        place: a folder with a BERT, data and an adapter.
        rows: after the warm-up.
        steps: of a training.
    """
    total = round(rows / (1 - ROWS_WARM_UP))
    found: Dict[str, Any] = {
        name: (f"{rows:,} rows", ROWS_WARM_UP, partial(do, place, total))
        for name, do in ((PREDICTOR, predict), (SERVER, serve))
    }
    for engine in runs.ENGINES:
        if engine != runs.ENGINES[0] or report.has_estimator():
            do = partial(train, place, engine, steps)
            found[f"training, {engine}"] = f"{steps:,} steps", STEPS_WARM_UP, do
    return found


def _prepare(place: pathlib.Path) -> None:
    """Makes a BERT, its data, and an adapter.

    Raises:
        UserError: it cannot be trained.
    """
    material.make(place)
    # More rows, which each epoch puts into an order of its own.
    table = place / material.TABLE
    shutil.rmtree(table)
    material.write_table(table, random.Random("long"), train_rows=TRAIN_ROWS)
    run = runs.training(
        "adapter",
        "run_classifier",
        runs.ENGINES[1],
        **runs.table(material.TABLE),
        output_dir=str(place / runs.TRAINED),
        num_train_epochs=0.1,
    )
    with _started(run.command(place, place), place) as process:
        process.wait()


def main() -> None:
    """Does the work that the command line names.

    Raises:
        UserError: a program fails.
        SystemExit: something grows.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20_000)
    names = [PREDICTOR, SERVER, *(f"training, {e}" for e in runs.ENGINES)]
    parser.add_argument("--only", choices=names)
    parser.add_argument("--output_dir", default="out/soak")
    arguments = parser.parse_args()
    folder = pathlib.Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    found: Dict[str, Dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        place = pathlib.Path(scratch)
        _prepare(place)
        chosen = works(place, arguments.rows, arguments.steps)
        for name, (amount, warm_up, do) in chosen.items():
            if arguments.only in (None, name):
                print(name, file=sys.stderr, flush=True)
                began = time.monotonic()
                samples = do()
                found[name] = {
                    "amount": amount,
                    "seconds": time.monotonic() - began,
                    "growth": growth(samples, warm_up)._asdict(),
                    "samples": samples,
                }
    about = report.environment()
    machine, table = about["machine"], rows_of(found)
    files.write_json(
        str(folder / "long.json"),
        {**machine, **about["versions"], "works": found},
    )
    print(report.plain(table), end="")
    if not arguments.only:
        report.write(
            report.RELIABILITY,
            "long",
            f"{machine['cores']} cores ({machine['processor']}), TensorFlow "
            f"{about['versions']['tensorflow']}.\n\n"
            f"{report.markdown(table, '---:')}",
        )
    growing = [
        n for n, of in found.items() if not Growth(**of["growth"]).is_flat
    ]
    if growing:
        raise SystemExit(f"these grow: {', '.join(growing)}")


if __name__ == "__main__":
    command_line.run(main)
