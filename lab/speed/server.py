"""Loads a server of an exported model, as many and as bad clients do.

    .venv/bin/python -m lab.speed.server

Parts, one after the other against the same server: clients that keep asking; a
thousand connections at once; clients that keep asking among others that send
nonsense, or go away in the middle, or ask a thousand rows at a time. Every
answer is compared with the answer of the model alone. Without `--model` the
model is MiniLM with ten adapters of random values. Writes
`lab/results/server.json` and a table in docs/performance.md.
"""

import asyncio
import contextlib
import dataclasses
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
from typing import (
    Any,
    Awaitable,
    Callable,
    Dict,
    Iterator,
    List,
    Optional,
    Tuple,
)

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import command_line
from adapter_bert.commands import minilm
from adapter_bert.errors import UserError
from adapter_bert.serving.exported import ExportedModel, Row
from adapter_bert.serving.frozen_bert import FrozenBert
from lab import report
from lab.report import ROOT
from lab.speed import measuring
from lab.speed.predictor import write_artifacts

TASKS, METHOD = 10, "houlsby(size=64)"
TEXTS = ROOT / "data" / "customer_intents" / "train.tsv"
PATH = "/v1/models/adapter_bert:predict"
PROGRAM = (sys.executable, "-m", "adapter_bert")
# Texts of each task, clients that keep asking, rows of their requests.
TEXTS_PER_TASK, CLIENTS, MOST_ROWS = 50, 32, 8
CONNECTIONS = 1000
# Rows of a large request: the most that the server takes.
GREAT_ROWS = 1024
# Requests that are nonsense.
NONSENSE = (b"", b"{", b"[" * 100_000, b"\xff" * 1000, b'{"instances": [1]}')
# Differences of numbers that are rounding.
ROUNDING = 1e-5


@dataclasses.dataclass
class Client:
    """A connection that is kept.

    Attributes:
        port: of the server.
        seconds: that each answer took.
        rows: that were answered.
        refused: how often the server was too busy.
    """

    port: int
    seconds: List[float] = dataclasses.field(default_factory=list)
    rows: int = 0
    refused: int = 0
    _streams: Optional[Tuple[Any, Any]] = None

    async def connect(self) -> None:
        """Opens the connection."""
        self._streams = await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, rows: List[Dict[str, Any]]) -> None:
        """Asks rows, and compares the answers with `expected` of each.

        Raises:
            UserError: an answer is wrong, or is none.
        """
        instances = [row["instance"] for row in rows]
        began = time.monotonic()
        status, found = await self.send(json.dumps({"instances": instances}))
        if status == 429:
            self.refused += 1
            return
        if status != 200:
            raise UserError(f"a lawful request got {status}: {found}")
        self.seconds.append(time.monotonic() - began)
        self.rows += len(rows)
        for answer, row in zip(found["predictions"], rows):
            if not is_equal(answer, row["expected"]):
                raise UserError(
                    f"{row['instance']}: got {answer}, expected "
                    f"{row['expected']}"
                )

    async def send(self, body: Any) -> Tuple[int, Any]:
        """The code and the content of an answer."""
        if self._streams is None:
            await self.connect()
        reader, writer = self._streams
        content = body.encode() if isinstance(body, str) else body
        writer.write(_head(len(content)) + content)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(re.search(r"content-length: (\d+)", head, re.I)[1])
        found = json.loads(await reader.readexactly(length))
        return int(head.split()[1]), found

    async def leave(self, body: bytes) -> None:
        """Sends a part of a request, and resets the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(_head(len(body)) + body[: len(body) // 2])
        await writer.drain()
        socket = writer.get_extra_info("socket")
        linger = struct.pack("ii", 1, 0)
        socket.setsockopt(1, 13, linger)  # SOL_SOCKET, SO_LINGER
        writer.close()

    def close(self) -> None:
        """Closes the connection."""
        if self._streams:
            self._streams[1].close()


def _head(length: int) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


def is_equal(found: Any, expected: Any) -> bool:
    """Whether words are equal, and numbers nearly."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            is_equal(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            map(is_equal, found, expected)
        )
    if isinstance(expected, float):
        return abs(found - expected) <= ROUNDING * max(1.0, abs(expected))
    return found == expected


def make_rows(model: ExportedModel) -> List[Dict[str, Any]]:
    """Rows for every task, with the answers of the model alone."""
    lines = TEXTS.read_text().splitlines()[1:]
    texts = [line.split("\t")[0] for line in lines]
    chance = random.Random(0)
    rows = []
    for name, task in model.tasks.items():
        for _ in range(TEXTS_PER_TASK):
            text, text_b = chance.sample(texts, 2)
            instance = {"task": name, "text": text}
            if max(task["texts"]) > 1:
                instance["text_b"] = text_b
            rows.append({"instance": instance})
    for row in rows:
        one = {"text_b": "", **row["instance"]}
        asked = Row(*(one[name].encode() for name in Row._fields))
        (row["expected"],) = model.answers([asked])
    return rows


@contextlib.contextmanager
def serving(model: str) -> Iterator[Tuple[int, int]]:
    """A server's process: its number and its port.

    Raises:
        UserError: it ends before it serves.
    """
    process = subprocess.Popen(
        [*PROGRAM, "serve", f"--model={model}", "--port=0"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr:
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
            if found:
                break
        else:
            raise UserError(f"the server ended: {line.strip()}")
        yield process.pid, int(found[1])
    finally:
        process.terminate()
        process.communicate()


def memory(pid: int) -> float:
    """MB that a process holds."""
    with open(f"/proc/{pid}/status") as status:
        (line,) = [x for x in status if x.startswith("VmRSS")]
    return int(line.split()[1]) / 1e3


Rows = List[Dict[str, Any]]


async def keep_asking(port: int, rows: Rows, seconds: float) -> List[Client]:
    """Asks by clients that ask again as soon as they are answered."""
    until = time.monotonic() + seconds

    async def work(seed: int) -> Client:
        chance, client = random.Random(seed), Client(port)
        while time.monotonic() < until:
            count = chance.randint(1, MOST_ROWS)
            await client.ask(chance.choices(rows, k=count))
        client.close()
        return client

    return await asyncio.gather(*map(work, range(CLIENTS)))


async def connect_many(port: int, rows: Rows, seconds: float) -> List[Client]:
    """Asks a row on each connection; all are open before the first asks."""
    clients = [Client(port) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(client.connect() for client in clients))
    chance = random.Random(0)
    await asyncio.gather(*(c.ask(chance.choices(rows)) for c in clients))
    for client in clients:
        client.close()
    return clients


async def ask_badly(port: int, rows: Rows, chance: random.Random) -> None:
    """Sends nonsense, or disconnects in the middle of a request.

    Raises:
        UserError: nonsense is not refused.
    """
    client = Client(port)
    if chance.random() < 0.5:
        status, _ = await client.send(chance.choice(NONSENSE))
        if status != 400:
            raise UserError(f"nonsense got {status}")
    else:
        chosen = [row["instance"] for row in chance.choices(rows, k=8)]
        await client.leave(json.dumps({"instances": chosen}).encode())
    client.close()
    await asyncio.sleep(0.01)


async def ask_much(port: int, rows: Rows, chance: random.Random) -> None:
    """Asks as many rows as a request may have."""
    client = Client(port)
    await client.ask(chance.choices(rows, k=GREAT_ROWS))
    client.close()


def among(other: Callable[..., Awaitable[None]], divisor: int) -> Callable:
    """The part `keep_asking` beside other clients, one for so many of its."""

    async def part(port: int, rows: Rows, seconds: float) -> List[Client]:
        chance, done = random.Random(1), asyncio.Event()

        async def work() -> None:
            while not done.is_set():
                await other(port, rows, chance)

        others = [
            asyncio.ensure_future(work()) for _ in range(CLIENTS // divisor)
        ]
        found = await keep_asking(port, rows, seconds)
        done.set()
        await asyncio.gather(*others)
        return found

    return part


PARTS = {
    "32 clients": keep_asking,
    "1,000 connections": connect_many,
    "32 clients among bad ones": among(ask_badly, 2),
    "32 clients beside great requests": among(ask_much, 16),
    "32 clients again": keep_asking,
}


def run_part(
    part: Any, pid: int, port: int, rows: Rows, seconds: float
) -> Dict[str, Any]:
    """Rates, times and memory of a part."""
    before, began = memory(pid), time.monotonic()
    clients = asyncio.run(part(port, rows, seconds))
    took = time.monotonic() - began
    times = np.array([x for client in clients for x in client.seconds])
    return {
        "rows_per_second": sum(client.rows for client in clients) / took,
        "answered": len(times),
        "too_busy": sum(client.refused for client in clients),
        "p50_ms": float(np.percentile(times, 50)) * 1e3,
        "p99_ms": float(np.percentile(times, 99)) * 1e3,
        "memory_before_mb": before,
        "memory_after_mb": memory(pid),
    }


def to_markdown(results: Dict[str, Any]) -> str:
    """The table of all parts."""
    header = "; rows/s; requests answered; p50, ms; p99, ms; refused, 429; "
    rows = [f"{header}memory before, after, MB".split("; ")]
    for name, of in results["parts"].items():
        rows.append(
            [
                name,
                f"{of['rows_per_second']:.0f}",
                f"{of['answered']:,}",
                f"{of['p50_ms']:.0f}",
                f"{of['p99_ms']:.0f}",
                str(of["too_busy"]),
                f"{of['memory_before_mb']:.0f}, {of['memory_after_mb']:.0f}",
            ]
        )
    about = f"{results['tasks']} tasks; {results['seconds']:g} s a part"
    return measuring.table(results, about, rows)


def export(folder: pathlib.Path) -> str:
    """Exports MiniLM with adapters of random values; returns the folder."""
    model = minilm.folder()
    adapters = write_artifacts(folder, FrozenBert.open(model), METHOD, TASKS)
    exported = str(folder / "exported")
    flags = [f"--init_checkpoint={model}", f"--output_dir={exported}"]
    flags += [f"--adapter=task{n}={path}" for n, path in enumerate(adapters)]
    subprocess.run([*PROGRAM, "export", *flags], cwd=ROOT, check=True)
    return exported


def main() -> None:
    """Measures all parts, one after the other."""
    parser = measuring.make_parser(__doc__)
    parser.add_argument("--model", help="a folder of adapter-bert export")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a part")
    arguments = measuring.parse(parser)
    parts = {}
    with tempfile.TemporaryDirectory() as folder:
        exported = arguments.model or export(pathlib.Path(folder))
        model = ExportedModel(exported)
        rows = make_rows(model)
        with serving(exported) as (pid, port):
            for name, part in PARTS.items():
                found = run_part(part, pid, port, rows, arguments.seconds)
                parts[name] = found
                print(name, json.dumps(found, indent=1), flush=True)
    results = {
        **report.environment(),
        "tasks": len(model.tasks),
        "seconds": arguments.seconds,
        "parts": parts,
    }
    measuring.publish("server", results, to_markdown(results))


if __name__ == "__main__":
    command_line.run(main)
