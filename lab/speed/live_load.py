"""Loads `adapter-bert serve --library`: rows a second, latency, changes.

    .venv/bin/python -m lab.speed.live_load --minutes=30

A server with MiniLM answers from a library of random adapters: as many rows as
it can, next to a plain `Predictor`; then at 80% of that rate, at scheduled
times; then for `--minutes` an adapter comes and one goes each second, and every
answer is compared with that of the adapter that it names, alone. The exit code
is 1 if an answer is wrong or missing.
"""

import argparse
import concurrent.futures
import contextlib
import json
import pathlib
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import command_line
from adapter_bert.answering.predictor import Predictor
from adapter_bert.checkpoints import adapter_artifact, packaged_models
from adapter_bert.errors import UserError
from adapter_bert.library.adapter_library import AdapterLibrary
from lab import report
from lab.live_server import Client, LiveServer, body_of
from lab.random_adapters import make_artifact
from lab.speed import measuring

NAME = "live"
METHOD = f"houlsby(size={measuring.ADAPTER_SIZE})"
TASK = {"name": "custom", "labels": list("abcde"), "pairs": False}
# Words of a text, from and to: each is a token.
WORDS = (8, 16)
# Rows of a request; clients of the part without a schedule, then with one.
REQUEST_ROWS, CLIENTS, SENDERS = 32, 8, 128
# Share of the possible rate that the schedule asks for.
LOAD = 0.8
# Scores may differ by so much from those of the adapter alone.
TOLERANCE = 1e-5
# Of the part that changes: adapters, of which a new one may be asked after some
# changes, and one that will go is not asked for as many.
ADAPTERS, LAG, CHANGE_S, TEXTS = 32, 12, 1.0, 24
# Seconds of the schedule, of which the last part counts: new shapes of small
# batches are slower at first.
SCHEDULED_S = 10.0, 30.0

TextPairs = list[tuple[str, str]]


def make_texts(model: str, count: int) -> list[str]:
    """Draws texts of words that are one token each."""
    lines = pathlib.Path(model, "vocab.txt").read_text("utf-8").splitlines()
    words = [word for word in lines if re.fullmatch("[a-z]+", word)]
    chance = random.Random(count)
    return [
        " ".join(chance.choices(words, k=chance.randint(*WORDS)))
        for _ in range(count)
    ]


def make_adapters(
    folder: pathlib.Path, model: str, names: Sequence[str]
) -> dict[str, str]:
    """Writes a random adapter for each name, and returns their folders."""
    for seed, name in enumerate(names):
        settings = {"max_seq_length": measuring.MAX_LENGTH}
        make_artifact(
            folder / name, model, METHOD, None, TASK, seed, training=settings
        )
    return {name: str(folder / name) for name in names}


@contextlib.contextmanager
def serving(
    folder: pathlib.Path, model: str, adapters: dict[str, str]
) -> Iterator[tuple[LiveServer, AdapterLibrary]]:
    """Starts a server of a library with these adapters."""
    library = AdapterLibrary(str(folder / "shelf"), create=True)
    for name, adapter in adapters.items():
        library.add(adapter, name)
    flags = [f"--init_checkpoint={model}", f"--library={library.path}"]
    with LiveServer(folder, [*flags, "--poll_seconds=1"]) as server:
        yield server, library


def ask(
    port: int,
    requests: Iterator[tuple[float, TextPairs]],
    senders: int,
    check: Callable[[TextPairs, int, bytes], None],
) -> list[float]:
    """Sends requests at their times, and returns the seconds of each answer.

    A time is in seconds from now. A request that all senders are too busy to
    send counts from its time on.
    """
    lock, took, began = threading.Lock(), [], time.perf_counter()

    def work() -> None:
        client = Client(port)
        while True:
            with lock:
                when, rows = next(requests, (0.0, []))
            if not rows:
                return client.close()
            time.sleep(max(0.0, began + when - time.perf_counter()))
            code, body = client.ask(body_of(rows))
            took.append(time.perf_counter() - began - when)
            check(rows, code, body)

    with concurrent.futures.ThreadPoolExecutor(senders) as pool:
        for one in [pool.submit(work) for _ in range(senders)]:
            one.result()
    return took


def check_count(rows: TextPairs, code: int, body: bytes) -> None:
    """Refuses an answer that is not one of each row."""
    if code != 200 or len(json.loads(body)["answers"]) != len(rows):
        raise UserError(f"the server answered {code}: {body[:200]!r}")


class ServerLoad:
    """Asks a server all rows, several clients at once: for `in_turn`."""

    def __init__(self, port: int, rows: TextPairs):
        """Takes the port and the rows of a measurement."""
        self._port, self._rows = port, rows

    def measure(self) -> dict[str, float]:
        """Answers all rows once."""
        rows, size = self._rows, REQUEST_ROWS
        requests = (
            (0.0, rows[n : n + size]) for n in range(0, len(rows), size)
        )
        began = time.perf_counter()
        ask(self._port, requests, CLIENTS, check_count)
        return {
            "examples": len(rows),
            "seconds": time.perf_counter() - began,
        }

    def stop(self) -> None:
        """Ends nothing: connections end with a measurement."""


def measure_rates(
    folder: pathlib.Path,
    port: int,
    model: str,
    adapters: dict[str, str],
    rows: TextPairs,
    rounds: int,
) -> dict[str, Any]:
    """Measures rows a second of server and predictor, in turns."""
    path = folder / "rows.json"
    path.write_text(json.dumps(rows))
    options = {"model": model, "adapters": adapters, "rows": str(path)}
    options["batch"] = REQUEST_ROWS
    predictor = [*measuring.OURS[:2], "lab.speed.predictor_worker"]
    workers = {
        "server": ServerLoad(port, rows),
        "predictor": measuring.Worker(predictor, options),
    }
    rates = measuring.rates(measuring.in_turn(workers, rounds))
    ratio = measuring.ratio(rates["server"], rates["predictor"])
    return {**measuring.spreads(rates), "ratio": ratio}


def schedule(rows: TextPairs, rate: float, seconds: float) -> list:
    """Plans requests of 1 to 8 rows at random times, `rate` rows a second."""
    chance, planned, now = random.Random(1), [], 0.0
    while (now := now + chance.expovariate(rate / 4.5)) < seconds:
        first = chance.randrange(max(1, len(rows) - 8))
        planned.append((now, rows[first : first + chance.randint(1, 8)]))
    return planned


def known_scores(
    model: str, folders: Sequence[str], texts: Sequence[str]
) -> dict[tuple[str, str], dict[str, float]]:
    """Computes each adapter's scores of each text alone, by its SHA-256."""
    predictor = Predictor.load(model, {folder: folder for folder in folders})
    return {
        (adapter_artifact.read_config(folder)["sha256"], text): predictor(
            folder, text
        )["scores"]
        for folder in folders
        for text in texts
    }


class Checker:
    """Compares answers with known scores, and counts them."""

    def __init__(self, scores: dict[tuple[str, str], dict[str, float]]):
        """Takes the scores by an adapter's SHA-256 and a text."""
        self._scores, self._lock = scores, threading.Lock()
        self.answers, self.wrong = 0, 0
        self.fault: Optional[str] = None

    def __call__(self, rows: TextPairs, code: int, body: bytes) -> None:
        """Counts the answers to a request."""
        answers = json.loads(body)["answers"] if code == 200 else []
        right = sum(map(self.is_right, rows, answers))
        with self._lock:
            self.answers += len(answers)
            self.wrong += len(rows) - right
            if right < len(rows):
                self.fault = f"{code} {body[:300]!r} to {rows}"

    def is_right(self, row: tuple[str, str], answer: dict[str, Any]) -> bool:
        """Compares an answer with that of the adapter that it names, alone."""
        scores = self._scores.get((answer.get("adapter", ""), row[1]), {})
        values = answer.get("scores", {})
        return (
            answer.get("task") == row[0]
            and bool(scores)
            and values.keys() == scores.keys()
            and all(abs(values[x] - scores[x]) <= TOLERANCE for x in scores)
        )


def measure_changes(
    folder: pathlib.Path, model: str, seconds: float
) -> dict[str, Any]:
    """Changes a library that answers, and checks every answer.

    Each `CHANGE_S` the oldest task goes and a new one comes.
    """
    names = [f"task{n}" for n in range(ADAPTERS)]
    folders = [*make_adapters(folder / "all", model, names).values()]
    texts = make_texts(model, TEXTS)
    check = Checker(known_scores(model, folders, texts))
    chance, changes, until = random.Random(1), 0, 0.0

    def requests() -> Iterator[tuple[float, TextPairs]]:
        while time.monotonic() < until:
            # Neither one that comes nor one that goes.
            task = f"task{changes + chance.randrange(LAG, ADAPTERS - LAG)}"
            texts_of_task = chance.choices(texts, k=chance.randint(1, 8))
            yield 0.0, [(task, text) for text in texts_of_task]

    with serving(folder, model, dict(zip(names, folders))) as (server, library):
        until = time.monotonic() + seconds
        memory = [server.memory_mb()]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, server.port, requests(), 4, check)
            while not asking.done():
                library.remove(f"task{changes}")
                newest = f"task{changes + ADAPTERS}"
                library.add(folders[changes % ADAPTERS], newest)
                changes += 1
                time.sleep(CHANGE_S)
            asking.result()
        memory.append(server.memory_mb())
        log = server.log()
    return {
        "seconds": seconds,
        "changes": changes,
        "answers": check.answers,
        "wrong": check.wrong,
        "tracebacks": log.count("Traceback"),
        "memory_mb": memory,
        "fault": check.fault,
    }


def main() -> None:
    """Measures, and writes results and tables.

    Raises:
        SystemExit: an answer was wrong or missing.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2048, help="of a round")
    parser.add_argument("--model", help="a pretrained BERT's folder")
    options = parser.parse_args()
    model = options.model or packaged_models.folder("minilm")
    results = report.environment()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        names = [f"task{n}" for n in range(options.tasks)]
        adapters = make_adapters(folder / "adapters", model, names)
        texts = make_texts(model, options.rows)
        rows = [(names[n % len(names)], x) for n, x in enumerate(texts)]
        with serving(folder, model, adapters) as (server, _):
            rates = measure_rates(
                folder, server.port, model, adapters, rows, options.rounds
            )
            rate = LOAD * rates["server"]["median"]
            for seconds in SCHEDULED_S:
                planned = iter(schedule(rows, rate, seconds))
                took = ask(server.port, planned, SENDERS, check_count)
        changing = folder / "changing"
        changing.mkdir()
        changes = measure_changes(changing, model, 60 * options.minutes)
    median, most = 1000 * np.percentile(took, (50, 99))
    results.update(rates=rates, p50_ms=median, p99_ms=most, changes=changes)
    header = ["tasks", "server, rows/s", "`Predictor`, rows/s", "ratio"]
    header += ["p50, ms", "p99, ms", "changes", "answers", "wrong"]
    line = [str(options.tasks)]
    line += [measuring.cell(rates[x]) for x in ("server", "predictor")]
    line += [measuring.ratio_cell(rates["ratio"])]
    line += [f"{median:.0f}", f"{most:.0f}"]
    line += [f"{changes[x]:,}" for x in ("changes", "answers", "wrong")]
    about = f"adapters of size {measuring.ADAPTER_SIZE}"
    text = measuring.table(results, about, [header, line])
    print(text)
    measuring.publish(NAME, results, text)
    if changes["wrong"] or changes["tracebacks"]:
        raise SystemExit(
            f"{changes['wrong']} answers were wrong or missing: "
            f"{changes['fault']}; {changes['tracebacks']} tracebacks in the log"
        )


if __name__ == "__main__":
    with command_line.run():
        main()
