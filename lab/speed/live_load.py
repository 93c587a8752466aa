"""Loads `adapter-bert serve --library`: rows a second, latency, changes.

    .venv/bin/python -m lab.speed.live_load --minutes=30

A server with MiniLM answers from a library of random adapters. Three parts,
of which `--only` names one:

- `throughput`: as many rows as it can answer, next to a plain `Predictor`,
  which takes turns with it;
- `latency`: requests at scheduled times, at 80% of the rows that it can answer;
- `changes`: for `--minutes` adapters come, are replaced and go, once a second.
  Every answer is compared with that of its adapter alone.

The exit code is 1 if an answer is wrong or a request is lost.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import random
import re
import tempfile
import threading
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
from absl import logging

from adapter_bert import command_line
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.commands import minilm
from adapter_bert.errors import UserError
from adapter_bert.progress import Progress
from adapter_bert.serving.library import AdapterLibrary
from adapter_bert.serving.predictor import Predictor
from lab import report
from lab.live_server import Client, LiveServer, body_of
from lab.random_adapters import make_artifact
from lab.speed import measuring

PARTS = THROUGHPUT, LATENCY, CHANGES = ("throughput", "latency", "changes")
NAME = "live"
# Numbers of words, from and to. Every word is a token, and [CLS] and [SEP] are
# two more.
TEXTS = {"short": (8, 16), "long": (98, 98)}
METHOD = f"houlsby(size={measuring.ADAPTER_SIZE})"
TASK = {"name": "custom", "labels": list("abcde"), "pairs": False}
# Rows of a request, and clients that saturate the server with such requests.
CLIENTS = {32: 8, 256: 4}
# Rows of the server's largest batch and of one computation, its defaults.
BATCH_ROWS, COMPUTED_ROWS = 128, 32
# Of the rows that the server can answer, those that come in the part `latency`,
# and the threads that send them.
LOAD, SENDERS = 0.8, 128
# Rows of a request in the part `latency`, most and in the middle.
MOST_ROWS, MIDDLE_ROWS = 8, 4
# Seconds of such requests before those that are measured.
WARM_UP_S = 20.0
# Names of the library that changes, of which the first ones always stay, and
# the adapters of each.
NAMES, STAYING, VERSIONS = 24, 6, 2
# Texts of which all answers are known, and clients that ask them.
KNOWN_TEXTS, ASKING = 24, 4
# Scores may differ by so much from those of an adapter alone; and those of two
# adapters, or of two texts, differ by far more.
TOLERANCE, APART = 1e-5, 1e-4
# Seconds from one change to the next, of a measurement of memory, and until a
# change must be served.
CHANGE_S, MEMORY_S, SERVED_S = 1.0, 10.0, 10.0

Rows = List[Tuple[str, str]]
# Scores by label, by an adapter's SHA-256 and a text.
Known = Dict[Tuple[str, str], Mapping[str, float]]


def read_words(model: str) -> List[str]:
    """The words of a BERT's vocabulary that are one token each."""
    path = pathlib.Path(model) / "vocab.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    return [word for word in lines if re.fullmatch("[a-z]+", word)]


def make_texts(
    words: Sequence[str], kind: str, count: int, seed: int
) -> List[str]:
    """Texts of a kind of `TEXTS`, drawn from a seed."""
    chance = random.Random(f"{kind} {seed}")
    fewest, most = TEXTS[kind]
    return [
        " ".join(chance.choices(words, k=chance.randint(fewest, most)))
        for _ in range(count)
    ]


def make_adapters(
    folder: pathlib.Path, model: str, names: Sequence[str]
) -> Dict[str, str]:
    """Writes a random adapter for each name; returns their folders."""
    for seed, name in enumerate(names):
        settings = {"max_seq_length": measuring.MAX_LENGTH}
        make_artifact(
            folder / name, model, METHOD, None, TASK, seed, training=settings
        )
    return {name: str(folder / name) for name in names}


@contextlib.contextmanager
def serving(
    folder: pathlib.Path, model: str, shelf: AdapterLibrary
) -> Iterator[LiveServer]:
    """A server of a library, with its log in a folder."""
    with LiveServer(folder, server_flags(model, shelf)) as server:
        yield server


def server_flags(model: str, shelf: AdapterLibrary) -> List[str]:
    """The flags of a server of a library."""
    flags = [f"--init_checkpoint={model}", f"--library={shelf.path}"]
    return [*flags, "--poll_seconds=1"]


class ServerLoad:
    """Asks a server rows, several clients at once; a worker of `in_turn`."""

    def __init__(self, port: int, rows: Rows, size: int, clients: int):
        """Takes rows, of which each request has `size`."""
        self._bodies = [
            body_of(rows[n : n + size]) for n in range(0, len(rows), size)
        ]
        self._count, self._clients = len(rows), clients
        self._port = port

    def measure(self) -> Dict[str, float]:
        """Answers all rows once: `examples` and `seconds`.

        Raises:
            UserError: an answer is none.
        """
        left = iter(self._bodies)
        lock = threading.Lock()

        def work() -> int:
            client, answered = Client(self._port), 0
            while True:
                with lock:
                    body = next(left, None)
                if body is None:
                    client.close()
                    return answered
                code, found = client.ask(body)
                if code != 200:
                    raise UserError(f"the server answered {code}: {found!r}")
                answered += len(json.loads(found)["answers"])

        began = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(self._clients) as pool:
            working = [pool.submit(work) for _ in range(self._clients)]
            answered = sum(one.result() for one in working)
        seconds = time.perf_counter() - began
        if answered != self._count:
            raise UserError(f"{answered} answers to {self._count} rows")
        return {"examples": answered, "seconds": seconds}

    def stop(self) -> None:
        """Nothing has to end: a measurement closes its connections."""


def mixed_rows(texts: Sequence[str], names: Sequence[str]) -> Rows:
    """A row of each text, the tasks in turn."""
    return [(names[n % len(names)], text) for n, text in enumerate(texts)]


class Setting(NamedTuple):
    """The material of the parts that a still library answers.

    Attributes:
        words: of which texts are made.
        adapters: folders by name.
        rows: of a measurement.
    """

    folder: pathlib.Path
    model: str
    server: LiveServer
    words: Sequence[str]
    adapters: Dict[str, str]
    rows: int

    def load(self, kind: str, tasks: int) -> Rows:
        """The rows of a measurement, of a kind of texts and so many tasks."""
        # Long texts take some five times as long.
        count = self.rows if kind == "short" else self.rows // 4
        texts = make_texts(self.words, kind, count, tasks)
        return mixed_rows(texts, [*self.adapters][:tasks])


def measure_throughput(
    setting: Setting, counts: Sequence[int], rounds: int
) -> List[Dict[str, Any]]:
    """Rows a second of the server and of the predictor, and their ratio."""
    found = []
    cases = [
        (n, kind, size) for n in counts for kind in TEXTS for size in CLIENTS
    ]
    progress = Progress(THROUGHPUT, len(cases), "cases")
    for tasks, kind, size in cases:
        rows = setting.load(kind, tasks)
        path = setting.folder / "rows.json"
        path.write_text(json.dumps(rows))
        options = {
            "model": setting.model,
            "adapters": dict([*setting.adapters.items()][:tasks]),
            "rows": str(path),
            "batch": size,
        }
        workers = {
            "server": ServerLoad(
                setting.server.port, rows, size, CLIENTS[size]
            ),
            "predictor": measuring.Worker(
                [*measuring.OURS[:2], "lab.speed.predictor_worker"], options
            ),
        }
        rates = measuring.rates(measuring.in_turn(workers, rounds))
        ratio = measuring.ratio(rates["server"], rates["predictor"])
        case = {"tasks": tasks, "texts": kind, "request_rows": size}
        spreads = measuring.spreads(rates)
        found.append({**case, **spreads, "ratio": ratio})
        progress.update(1, f"{ratio['median']:.2f} of the predictor's rate")
    progress.close()
    return found


def schedule(
    rows: Rows, rate: float, seconds: float, seed: int
) -> List[Tuple[float, Rows]]:
    """Requests of 1 to 8 rows, and when they are sent.

    Args:
        rows: taken in turn.
        rate: rows a second, on average.
        seconds: that the schedule lasts.
        seed: of the gaps, which are exponential, and of the sizes.

    Returns:
        Seconds from the beginning, in order, and the rows of each request.
    """
    chance = random.Random(seed)
    found, now, first = [], 0.0, 0
    # Requests have 4.5 rows on average.
    while (now := now + chance.expovariate(rate / 4.5)) < seconds:
        size = chance.randint(1, MOST_ROWS)
        asked = [rows[(first + n) % len(rows)] for n in range(size)]
        found.append((now, asked))
        first += size
    return found


def ask_on_time(port: int, planned: List[Tuple[float, Rows]]) -> List[float]:
    """Seconds from each request's scheduled time to its answer.

    A request that is sent late, since all senders wait, counts from when it
    should have been sent.

    Raises:
        UserError: an answer is none.
    """
    requests = [(when, body_of(rows)) for when, rows in planned]
    left, lock = iter(requests), threading.Lock()
    took: List[float] = []
    began = time.perf_counter() + 0.5

    def work() -> None:
        client = Client(port)
        while True:
            with lock:
                when, body = next(left, (0.0, None))
            if body is None:
                client.close()
                return
            time.sleep(max(0.0, began + when - time.perf_counter()))
            code, found = client.ask(body)
            took.append(time.perf_counter() - began - when)
            if code != 200:
                raise UserError(f"the server answered {code}: {found!r}")

    with concurrent.futures.ThreadPoolExecutor(SENDERS) as pool:
        for one in [pool.submit(work) for _ in range(SENDERS)]:
            one.result()
    return took


def measure_latency(
    setting: Setting, counts: Sequence[int], seconds: float
) -> List[Dict[str, Any]]:
    """Median and 99th percentile, in ms, at a share of the possible rate."""
    found = []
    cases = [(tasks, kind) for tasks in counts for kind in TEXTS]
    progress = Progress(LATENCY, len(cases), "cases")
    for tasks, kind in cases:
        rows = setting.load(kind, tasks)
        load = ServerLoad(setting.server.port, rows, MIDDLE_ROWS, SENDERS)
        # The first one traces graphs.
        load.measure()
        whole = load.measure()
        rate = whole["examples"] / whole["seconds"]
        planned = schedule(rows, LOAD * rate, seconds, tasks)
        # Small batches have shapes of their own, new ones are slower.
        warm_up = schedule(rows, LOAD * rate, WARM_UP_S, -tasks)
        ask_on_time(setting.server.port, warm_up)
        took = ask_on_time(setting.server.port, planned)
        median, most = 1000 * np.percentile(took, (50, 99))
        found.append(
            {
                "tasks": tasks,
                "texts": kind,
                "possible_rows_per_second": rate,
                "requests": len(took),
                "p50_ms": float(median),
                "p99_ms": float(most),
                "batch_ms": {
                    str(size): 1000 * size / rate
                    for size in (COMPUTED_ROWS, BATCH_ROWS)
                },
            }
        )
        progress.update(1, f"99% within {most:.0f} ms")
    progress.close()
    return found


class Shelf:
    """A library that changes, and which names were there at what time.

    Attributes:
        library: the library.
        all_names: those that are there at times.
        counts: of changes that were made.
    """

    def __init__(
        self,
        library: AdapterLibrary,
        versions: Mapping[str, Sequence[str]],
        staying: int,
        seed: int,
    ):
        """Adds the first version of each name.

        Args:
            library: that is empty.
            versions: folders of adapters, by name.
            staying: how many of the names, the first ones, never change.
            seed: of the changes.
        """
        self.library, self._versions = library, versions
        self._chance = random.Random(seed)
        self.all_names = [*versions]
        self._changing = self.all_names[staying:]
        self._next = dict.fromkeys(versions, 0)
        # When a name was last away: until infinity if it still is.
        self._away_until = dict.fromkeys(versions, float("-inf"))
        self.counts = {"added": 0, "replaced": 0, "removed": 0}
        for name in versions:
            self._add(name)

    @property
    def names(self) -> List[str]:
        """Those that are there."""
        return [
            name
            for name, until in self._away_until.items()
            if until < float("inf")
        ]

    def change(self) -> None:
        """Adds, replaces or removes an adapter, on average each as often."""
        name = self._chance.choice(self._changing)
        if name not in self.names:
            self._add(name)
            self.counts["added"] += 1
            return
        self._away_until[name] = float("inf")
        self.library.remove(name)
        if self._chance.random() < 0.5:
            self._add(name)
            self.counts["replaced"] += 1
        else:
            self.counts["removed"] += 1

    def _add(self, name: str) -> None:
        versions = self._versions[name]
        self.library.add(versions[self._next[name] % len(versions)], name)
        self._next[name] += 1
        self._away_until[name] = time.monotonic()

    def was_away(self, name: str, asked: float) -> bool:
        """Whether a server may not have had a name.

        `asked` is when it was asked, by `time.monotonic()`; it has `SERVED_S`
        seconds to find an adapter that has come.
        """
        return self._away_until.get(name, 0.0) > asked - SERVED_S


def is_right(
    answer: Mapping[str, Any], row: Tuple[str, str], known: Known
) -> bool:
    """Whether an answer is that of the adapter that it names, alone."""
    task, text = row
    scores = known.get((answer.get("adapter", ""), text))
    if answer.get("task") != task or scores is None:
        return False
    given = answer.get("scores", {})
    return given.keys() == scores.keys() and all(
        abs(given[label] - score) <= TOLERANCE
        for label, score in scores.items()
    )


def missing_task(code: int, found: bytes) -> Optional[str]:
    """The task that a refusal says is unknown; None for other answers."""
    if code != 400:
        return None
    named = re.search(r"unknown task (\S+?)[;,:]?(?=\s|$)", _error(found))
    return named[1] if named else None


def _error(found: bytes) -> str:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(found)["error"])
    return ""


def slope(points: Sequence[Tuple[float, float]]) -> float:
    """The slope of the line nearest to points by least squares.

    Args:
        points: x and y; 0 is the slope of fewer than two different x.
    """
    x, y = np.array(points, float).reshape(-1, 2).T
    if len(set(x)) < 2:
        return 0.0
    x = x - x.mean()
    return float(x @ (y - y.mean()) / (x @ x))


def known_answers(
    model: str, folders: Mapping[str, str], texts: Sequence[str]
) -> Known:
    """The scores of each adapter alone, for each text.

    Raises:
        UserError: two of them are so near that a wrong one could pass.
    """
    known: Known = {}
    predictor = Predictor.load(model, folders)
    for name, folder in folders.items():
        sha = adapter_artifact.read_config(folder)["sha256"]
        # One by one, so that nothing else is in its batch.
        for text in texts:
            known[sha, text] = predictor(name, text)["scores"]
    values = np.array([[*scores.values()] for scores in known.values()])
    for number, one in enumerate(values[1:], 1):
        if np.abs(values[:number] - one).max(1).min() < APART:
            raise UserError("two adapters or texts have the same answer")
    return known


class Asking:
    """Clients of a library that changes, and what came of their requests."""

    def __init__(
        self, port: int, shelf: Shelf, texts: Sequence[str], known: Known
    ):
        """Takes a server's port, and all that its answers may be."""
        self._port, self._shelf = port, shelf
        self._texts, self._known = texts, known
        self._lock = threading.Lock()
        self.counts = {"answers": 0, "wrong": 0, "refused": 0, "lost": 0}
        # Answers that ended in the middle.
        self.cut_off = 0
        self.faults: List[str] = []

    def work(self, seed: int, is_over: Callable[[], bool]) -> None:
        """Asks until the end, requests of 1 to 8 rows."""
        chance, client = random.Random(seed), Client(self._port)
        names = self._shelf.all_names
        while not is_over():
            # Mostly what should be there.
            there = names if chance.random() < 0.1 else self._shelf.names
            some = chance.choices(there, k=2)
            size = chance.randint(1, 8)
            rows = [
                (chance.choice(some), chance.choice(self._texts))
                for _ in range(size)
            ]
            asked = time.monotonic()
            try:
                code, found = client.ask(body_of(rows))
            except http.client.IncompleteRead:
                self.cut_off += 1
                continue
            except (OSError, http.client.HTTPException) as error:
                self._count(lost=1, fault=f"{type(error).__name__}: {error}")
                continue
            self.judge(rows, asked, code, found)
        client.close()

    def judge(self, rows: Rows, asked: float, code: int, found: bytes) -> None:
        """Counts what came of a request that was sent at a time."""
        if code == 200:
            answers = json.loads(found)["answers"]
            wrong = [
                (row, answer)
                for row, answer in zip(rows, answers)
                if not is_right(answer, row, self._known)
            ]
            missing = ""
            if len(answers) != len(rows):
                missing = f"{len(answers)} answers to {len(rows)} rows"
            self._count(
                answers=len(answers),
                wrong=len(wrong),
                lost=int(bool(missing)),
                fault=f"{wrong[0]}" if wrong else missing,
            )
            return
        name = missing_task(code, found)
        asked_for = {task for task, _ in rows}
        if name in asked_for and self._shelf.was_away(str(name), asked):
            self._count(refused=1)
        else:
            self._count(lost=1, fault=f"{code} {found[:200]!r}")

    def _count(self, fault: str = "", **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self.counts[name] += count
            if fault and len(self.faults) < 20:
                self.faults.append(fault)


def make_shelf(
    folder: pathlib.Path, model: str
) -> Tuple[Shelf, List[str], Known]:
    """A library that can change, texts, and all that its answers may be."""
    names = [f"task{n}" for n in range(NAMES)]
    made = [f"{name}.{n}" for name in names for n in range(VERSIONS)]
    logging.info("%d adapters are made, and answer alone", len(made))
    folders = make_adapters(folder / "versions", model, made)
    texts = make_texts(read_words(model), "short", KNOWN_TEXTS, 0)
    known = known_answers(model, folders, texts)
    library = AdapterLibrary(str(folder / "changing"), create=True)
    versions = {
        name: [folders[f"{name}.{n}"] for n in range(VERSIONS)]
        for name in names
    }
    return Shelf(library, versions, STAYING, seed=1), texts, known


def measure_changes(
    folder: pathlib.Path, model: str, seconds: float
) -> Dict[str, Any]:
    """Changes a library while clients ask, and compares every answer."""
    shelf, texts, known = make_shelf(folder, model)
    with serving(folder, model, shelf.library) as server:
        asking = Asking(server.port, shelf, texts, known)
        memory = change_and_ask(server, shelf, asking, seconds)
        log = server.log()
    half = memory[len(memory) // 2 :]
    return {
        "seconds": seconds,
        **asking.counts,
        "cut_off": asking.cut_off,
        "changes": sum(shelf.counts.values()),
        **shelf.counts,
        "loaded_by_the_server": len(
            re.findall(r"(?:added|replaced) task", log)
        ),
        "tracebacks": log.count("Traceback"),
        "memory_mb": {
            "first": memory[0][1],
            "last": memory[-1][1],
            "per_1000_changes": 1000 * slope(half),
            "all": memory,
        },
        "faults": asking.faults,
    }


class HasMemory(Protocol):
    """A server, or several."""

    def memory_mb(self) -> float:
        """The resident memory, in MB."""


def change_and_ask(
    server: HasMemory, shelf: Shelf, asking: Asking, seconds: float
) -> List[Tuple[int, float]]:
    """Lets clients ask, and changes the library meanwhile.

    Returns:
        The number of changes and the server's memory in MB, each `MEMORY_S`.
    """
    memory = [(0, server.memory_mb())]
    progress = Progress(CHANGES, max(1, int(seconds / CHANGE_S)), "changes")
    over = threading.Event()
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(ASKING) as pool:
        working = [
            pool.submit(asking.work, seed, over.is_set)
            for seed in range(ASKING)
        ]
        try:
            while (now := time.monotonic() - began) < seconds:
                done = sum(shelf.counts.values())
                if done < now / CHANGE_S:
                    shelf.change()
                    progress.update(1, str(asking.counts))
                else:
                    time.sleep(0.01)
                if now >= MEMORY_S * len(memory):
                    memory.append((done, server.memory_mb()))
        finally:
            over.set()
        for one in working:
            one.result()
    memory.append((sum(shelf.counts.values()), server.memory_mb()))
    progress.close()
    return memory


def tables(results: Mapping[str, Any]) -> List[report.Table]:
    """A table of docs/performance.md for each part that was measured."""
    found: List[report.Table] = []
    if THROUGHPUT in results:
        header = ["tasks", "texts", "rows of a request"]
        rows = [[*header, "server, rows/s", "`Predictor`, rows/s", "ratio"]]
        rows += [
            [
                *(str(one[key]) for key in ("tasks", "texts", "request_rows")),
                measuring.cell(one["server"]),
                measuring.cell(one["predictor"]),
                measuring.ratio_cell(one["ratio"]),
            ]
            for one in results[THROUGHPUT]
        ]
        found.append(rows)
    if LATENCY in results:
        header = ["tasks", "texts", "requests", "p50, ms", "p99, ms"]
        sizes = [str(size) for size in (COMPUTED_ROWS, BATCH_ROWS)]
        batches = [f"p99 in batches of {size}" for size in sizes]
        rows = [[*header, *batches]]
        rows += [
            [
                *(str(one[key]) for key in ("tasks", "texts")),
                f"{one['requests']:,}",
                *(f"{one[key]:.0f}" for key in ("p50_ms", "p99_ms")),
                *(
                    f"{one['p99_ms'] / one['batch_ms'][size]:.1f}"
                    for size in sizes
                ),
            ]
            for one in results[LATENCY]
        ]
        found.append(rows)
    if CHANGES in results:
        one = results[CHANGES]
        keys = ("changes", "answers", "wrong", "refused", "lost")
        memory = one["memory_mb"]
        rows = [
            ["minutes", *keys, "MB at first, at last", "MB per 1,000 changes"],
            [
                f"{one['seconds'] / 60:.1f}",
                *(f"{one[key]:,}" for key in keys),
                f"{memory['first']:.0f}, {memory['last']:.0f}",
                f"{memory['per_1000_changes']:.1f}",
            ],
        ]
        found.append(rows)
    return found


def earlier() -> Dict[str, Any]:
    """The results of the last run, or none."""
    path = report.RESULTS / f"{NAME}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def parse() -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UserError: it asks for nothing.
    """
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--tasks", default="1,10,100", help="mixed in requests")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2048, help="of each round")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of each latency"
    )
    parser.add_argument("--model", help="a pretrained BERT's folder")
    arguments = parser.parse_args()
    given = arguments.tasks.split(",")
    if not all(re.fullmatch("[1-9][0-9]{0,3}", count) for count in given):
        raise UserError(
            f"--tasks={arguments.tasks}: expected numbers with commas between "
            "them, as 1,10,100"
        )
    arguments.tasks = [*map(int, given)]
    for name in ("minutes", "rounds", "rows", "seconds"):
        if not getattr(arguments, name) > 0:
            raise UserError(f"--{name} measures nothing; expected more than 0")
    return arguments


def main() -> None:
    """Measures, and writes results and tables.

    Raises:
        UserError: the command line asks for nothing, or the server does not
            start, or does not answer.
        SystemExit: an answer was wrong, or a request was lost.
    """
    arguments = parse()
    logging.set_verbosity(logging.INFO)
    model = arguments.model or minilm.folder()
    parts = [arguments.only] if arguments.only else PARTS
    results = earlier() if arguments.only else {}
    results.update(report.environment())
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        if {THROUGHPUT, LATENCY} & {*parts}:
            names = [f"task{n}" for n in range(max(arguments.tasks))]
            adapters = make_adapters(folder / "adapters", model, names)
            shelf = AdapterLibrary(str(folder / "shelf"), create=True)
            for name, adapter in adapters.items():
                shelf.add(adapter, name)
            with serving(folder, model, shelf) as server:
                setting = Setting(
                    folder,
                    model,
                    server,
                    read_words(model),
                    adapters,
                    arguments.rows,
                )
                if THROUGHPUT in parts:
                    results[THROUGHPUT] = measure_throughput(
                        setting, arguments.tasks, arguments.rounds
                    )
                if LATENCY in parts:
                    results[LATENCY] = measure_latency(
                        setting, arguments.tasks, arguments.seconds
                    )
        if CHANGES in parts:
            results[CHANGES] = measure_changes(
                folder, model, 60 * arguments.minutes
            )
    first, *others = tables(results)
    about = f"adapters of size {measuring.ADAPTER_SIZE}"
    text = measuring.table(results, about, first)
    text = "\n".join([text, *map(report.markdown, others)])
    print(text)
    measuring.publish(NAME, results, text)
    found = results.get(CHANGES, {}) if CHANGES in parts else {}
    kinds = ("wrong", "lost", "cut_off", "tracebacks")
    if any(found.get(kind) for kind in kinds):
        for fault in found["faults"]:
            print(fault)
        raise SystemExit(
            f"{found['wrong']} answers were wrong, {found['lost']} requests "
            f"lost; {found['tracebacks']} tracebacks in the log"
        )


if __name__ == "__main__":
    command_line.run(main)
