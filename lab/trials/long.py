"""Works long, and tells whether memory, open files or threads grow.

    .venv/bin/python -m lab.trials.long --rows=100000 --steps=20000

Rows go through `adapter-bert predict` and, over HTTP, through `adapter-bert
serve`, after as many that warm them up; a training has so many steps on each
engine. All have a tiny BERT. The table goes into docs/reliability.md, all
samples into `long.json` in `--output_dir`. The exit code is 1 if anything
grows.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import http.client
import json
import pathlib
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Sequence,
    Tuple,
)

import adapter_bert.start_tensorflow  # noqa: F401

import tensorflow as tf

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from adapter_bert.training import cpu_cores
from lab.trials import material, memory, report, runs, starts
from lab.trials.memory import Growth, Sample

PREDICTOR, SERVER = "predict", "serve"
NAME = "it"
# Shares of all rows and of all steps that warm up.
ROWS_WARM_UP, STEPS_WARM_UP = 0.5, 0.1
# Samples of a work, and rows of a training's data.
SAMPLES = 200
TRAIN_ROWS = 4000
# Clients that ask at once, the most rows of a request, and requests after
# which a client connects anew.
CLIENTS, MOST_ROWS, REQUESTS = 4, 16, 50
SECONDS = 120


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
        for done, count in _portions(rows):
            texts = [_text(chance) for _ in range(count)]
            process.stdin.write("\n".join(texts) + "\n")
            process.stdin.flush()
            for _ in texts:
                if "probability" not in process.stdout.readline():
                    raise UserError(f"{PREDICTOR} ended: {_said(place)}")
            samples.append(memory.sample(process.pid, done))
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
    with (
        _started(command, place) as process,
        concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool,
    ):
        port = _port(process, place)
        clients = [_Client(port, seed) for seed in range(CLIENTS)]
        for done, count in _portions(rows):
            shares = [count // CLIENTS] * CLIENTS
            shares[0] += count % CLIENTS
            list(pool.map(_Client.ask, clients, shares))
            samples.append(memory.sample(process.pid, done))
        for client in clients:
            client.close()
        process.terminate()
        process.wait(SECONDS)
    return samples


class _Client:
    """Asks rows, a few a request, and connects anew now and then."""

    def __init__(self, port: int, seed: int):
        self._chance = random.Random(f"{SERVER} {seed}")
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", port, timeout=SECONDS
        )
        self._requests = 0

    def ask(self, rows: int) -> None:
        """Asks rows.

        Raises:
            UserError: they are not answered.
        """
        while rows > 0:
            count = min(self._chance.randint(1, MOST_ROWS), rows)
            rows -= count
            instances = [
                {"task": NAME, "text": _text(self._chance)}
                for _ in range(count)
            ]
            self._connection.request(
                "POST",
                "/v1/models/adapter_bert:predict",
                json.dumps({"instances": instances}),
            )
            answer = self._connection.getresponse()
            found = json.loads(answer.read())
            if len(found.get("predictions", ())) != count:
                raise UserError(f"{SERVER} answered {answer.status}: {found}")
            self._requests += 1
            if self._requests % REQUESTS == 0:
                self.close()

    def close(self) -> None:
        """Closes the connection; the next request opens one."""
        self._connection.close()


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
        # The steps of a checkpoint begin its sample; the start is none.
        while process.poll() is None:
            done = _step(out) / steps
            with contextlib.suppress(OSError):
                samples.append(memory.sample(process.pid, done))
            pause = (time.monotonic() - began) / SAMPLES
            time.sleep(min(max(pause, 0.05), 1.0))
    if _step(out) != steps:
        raise UserError(f"the training has not ended: {_said(place)}")
    return samples


def _step(out: pathlib.Path) -> int:
    """Of the newest checkpoint."""
    found = [
        int(path.suffixes[-2].rpartition("-")[2])
        for path in out.glob("model.ckpt-*.index")
    ]
    return max(found, default=0)


def _portions(rows: int) -> Iterator[Tuple[float, int]]:
    """(share of the rows that is done then, rows) up to each sample."""
    count = min(SAMPLES, rows)
    for number in range(count):
        before, after = (rows * n // count for n in (number, number + 1))
        yield after / rows, after - before


def _text(chance: random.Random) -> str:
    """One to three sentences; of the words one in ten is none that is known."""
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
    with open(place / "stderr", "w") as said:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=starts.ROOT,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdin else subprocess.DEVNULL,
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
    """Where a server listens, as soon as it does."""
    while process.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", _said(place))
        if found:
            return int(found[1])
        time.sleep(0.1)
    raise UserError(f"{SERVER} ended: {_said(place)}")


def rows_of(found: Dict[str, Dict[str, Any]]) -> List[List[str]]:
    """The table.

    Args:
        found: of each work `amount`, `seconds` and `growth`.
    """
    table = [
        [
            "work",
            "amount",
            "minutes",
            "MB after warm-up",
            "MB at the end",
            "MB at most",
            "growth",
            "open files",
            "threads",
        ]
    ]
    for name, of in found.items():
        growth = Growth(**of["growth"])
        table.append(
            [
                name,
                of["amount"],
                f"{of['seconds'] / 60:.1f}",
                *(f"{n / 1e6:.1f}" for n in (*growth.memory, growth.peak)),
                f"{100 * growth.share:.2f}%",
                *(
                    " to ".join(f"{n:g}" for n in counts)
                    for counts in (growth.files, growth.threads)
                ),
            ]
        )
    return table


class Work(NamedTuple):
    """What is done for long.

    Attributes:
        amount: of it, after the warm-up.
        warm_up: share of all.
        do: gives the samples.
    """

    amount: str
    warm_up: float
    do: Callable[[], List[Sample]]


def works(place: pathlib.Path, rows: int, steps: int) -> Dict[str, Work]:
    """What is done with this TensorFlow, by name.

    Args:
        place: a folder with a BERT, data and an adapter.
        rows: after the warm-up.
        steps: of a training.
    """
    total = round(rows / (1 - ROWS_WARM_UP))
    amount = f"{rows:,} rows"
    found = {
        PREDICTOR: Work(amount, ROWS_WARM_UP, lambda: predict(place, total)),
        SERVER: Work(amount, ROWS_WARM_UP, lambda: serve(place, total)),
    }
    for engine in runs.ENGINES:
        if engine != runs.ENGINES[0] or starts.has_estimator():
            found[f"training, {engine}"] = Work(
                f"{steps:,} steps",
                STEPS_WARM_UP,
                functools.partial(train, place, engine, steps),
            )
    return found


def _prepare(place: pathlib.Path) -> None:
    """Makes a BERT, its data, and an adapter.

    Raises:
        UserError: it cannot be trained.
    """
    material.make(place)
    # More rows, of which each epoch has an order of its own.
    table = place / material.TABLE
    for path in table.iterdir():
        path.unlink()
    table.rmdir()
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
    """Does what the command line says.

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
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        _prepare(place)
        for name, work in works(place, arguments.rows, arguments.steps).items():
            if arguments.only in (None, name):
                report.say(name)
                began = time.monotonic()
                samples = work.do()
                found[name] = {
                    "amount": work.amount,
                    "seconds": time.monotonic() - began,
                    "growth": memory.growth(samples, work.warm_up)._asdict(),
                    "samples": samples,
                }
    about = {
        "processor": cpu_cores.name(),
        "cores": cpu_cores.count(),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
    }
    table = rows_of(found)
    files.write_json(str(folder / "long.json"), {**about, "works": found})
    print(report.plain(table), end="")
    if not arguments.only:
        report.write_page(
            f"{about['cores']} cores ({about['processor']}), TensorFlow "
            f"{about['tensorflow']}.\n\n{report.markdown_table(table)}",
            "long",
        )
    growing = [
        name for name, of in found.items() if not Growth(**of["growth"]).is_flat
    ]
    if growing:
        raise SystemExit(f"these grow: {', '.join(growing)}")


if __name__ == "__main__":
    command_line.run(main)
