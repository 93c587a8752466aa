"""Malformed requests over the wire to a running `adapter-bert serve`.

    .venv/bin/python -m lab.trials.wire --requests=200000 --seed=1
    .venv/bin/python -m lab.trials.wire --seed=1 --number=4711

Each request is a right one with something wrong: in its body, gzip, headers,
chunks, token, method, path, or in the bytes of it all. It may come slowly, end
too early, or follow a right one at once. It is drawn from the seed and its
number, which `--number` sends alone. Several connections send at once, many
requests each.

An answer must be 4xx, with one line of JSON, or 2xx where the request is still
right. A good client asks meanwhile, and its answers must stay right. The log
must have no traceback, silent connections must be cut off, and the server must
be alive at the end, without much more memory. `--output_dir` gets the
results (`wire.json`) and the server's log.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import gzip
import http.client
import json
import pathlib
import random
import re
import select
import socket
import tempfile
import threading
import time
import zlib
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from absl import logging

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from adapter_bert.progress import Progress
from adapter_bert.serving.library import AdapterLibrary
from adapter_bert.serving.predictor import Predictor
from lab import report
from lab.live_server import ANSWER, NAME, Client, LiveServer
from lab.random_adapters import make_artifact
from lab.trials import fuzz_inputs, tiny_files

TOKEN = "a-token-of-the-wire-0123456789"
# Tasks of the server, by name: method, task, texts of a row.
TASKS: Dict[str, Tuple[str, Dict[str, Any], Tuple[str, ...]]] = {
    "one": (
        "houlsby(size=4)",
        {"name": "custom", "labels": ["bad", "good"], "pairs": False},
        ("text",),
    ),
    "two": (
        "lora(rank=2)",
        {"name": "custom", "labels": ["no", "yes"], "pairs": True},
        ("text", "text_b"),
    ),
    "words": (
        "pfeiffer(size=4)",
        {"name": "tagging", "tags": ["O", "B-NOUN"]},
        ("text",),
    ),
}
# What is wrong with a request; the last three kinds change how one of the
# others is sent: in pieces, not to its end, or behind a right one.
SINGLE = (
    *("body", "gzip", "header", "length", "chunks", "token", "method"),
    *("path", "bytes"),
)
SLOW, HALF, TWO = "slow", "half", "two"
KINDS = (*SINGLE, SLOW, HALF, TWO)
METHODS = (
    *("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"),
    *("post", "PRI", "P" * 3000, "POST POST", "", "P\0ST", "{}"),
)
MODEL = f"/v1/models/{NAME}"
PATHS = (
    *("/", "/tasks", "/tasks/", "/tasks?model=%00", "/tasks?model=x", "//"),
    *("/healthz", "/readyz", "/metrics", "/page.js", "/../etc/passwd", "*"),
    *(MODEL, f"{MODEL}/metadata", f"{MODEL}:predict", f"{MODEL}:embed"),
    *(f"{MODEL}:answer/", f"{MODEL}/versions/1:answer", f"{MODEL}/versions/2"),
    *(f"{MODEL}/versions/{'9' * 5000}:predict", f"{MODEL}/versions/-1"),
    *(f"{MODEL}/labels/a:answer", f"{MODEL}/labels/%ff", "/v1/models/a:answer"),
    *(f"{MODEL}:", f"{MODEL}%3Aanswer", f"http://a.example{ANSWER}", "/%"),
    *(f"{ANSWER}?a=b#c", f"{ANSWER}%00", f"{ANSWER}{'/a' * 9000}", "/admin/"),
    *("/admin/models", "/admin/reload", "/page.html", "/%2e%2e/%2e%2e/x", ""),
)
HEADERS = (
    *("Host", "Content-Type", "Content-Encoding", "Accept-Encoding", "Range"),
    *("Transfer-Encoding", "Connection", "Expect", "Upgrade", "Origin", "TE"),
    *("Authorization", "If-None-Match", "If-Range", "Cookie", "Trailer", "A"),
    *("Access-Control-Request-Method", "Sec-WebSocket-Key", "HTTP2-Settings"),
)
VALUES = (
    *("", "a", "gzip", "GZIP", "br", "gzip, gzip", "identity", "chunked"),
    *("chunked, chunked", "close", "keep-alive", "upgrade", "websocket", "h2c"),
    *("100-continue", "bytes=0-1", "bytes=9-1", "bytes=a", "*", "\xff", "\t"),
    *("-1", "1e9", "9" * 5000, "x" * 30000, "null", "GET", "a\0b", "a\rb"),
    *("https://a.example", "Bearer", "text/plain; charset=\xe9", "," * 2000),
)
LENGTHS = ("-1", "+1", "0", "1", "9" * 30, "1, 1", "0x10", "1e3", "", " ", "a")
CHUNK_SIZES = (
    *("-1", "0x5", "fffffffffffffffff", "5;a=b", "5;" + "x" * 9000, "", "zz"),
    *("00000000005", "5 ", "0"),
)
# A gzip of so many bytes for each one.
BOMB = gzip.compress(bytes(10**8))
# Seconds of a request at the server, of patience with its answer, and without
# one until a request's end is sent where the server may wait for more.
TIMEOUT_S, ANSWER_S, MORE_S = 8, 60.0, 0.05
# Silent connections that are kept open at a time.
SILENT = 32
# MB by which the server may grow after its warm-up, and of held bodies.
GROWTH_MB, HELD_MB = 200.0, 32
SERVER_FLAGS = (
    f"--timeout_s={TIMEOUT_S}",
    f"--max_held_mb={HELD_MB}",
    "--cors_origins=https://a.example",
)
TOLERANCE = 1e-5

Headers = List[Tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Wire:
    """What is sent of a request.

    Attributes:
        kind: of `KINDS`.
        method: by which its answer is read.
        parts: bytes that are sent one after another.
        pause: seconds between them.
        is_framed: whether it has one answer, after which another request may
            come; else the end of what is sent may be needed, and nothing
            follows.
        may_succeed: whether an answer other than a refusal can be right.
    """

    kind: str
    method: str
    parts: Tuple[bytes, ...]
    pause: float = 0.0
    is_framed: bool = True
    may_succeed: bool = True


def right_body(chance: random.Random) -> bytes:
    """A body that the server takes, of one to four rows."""
    rows = []
    for name in chance.choices([*TASKS], k=chance.randint(1, 4)):
        texts = TASKS[name][2]
        row = {key: " ".join(tiny_files.sentence(chance)) for key in texts}
        rows.append({"task": name, **row})
    if chance.random() < 0.3:
        keys = ("task", "text", "text_b")
        columns = {key: [row.get(key, "") for row in rows] for key in keys}
        return json.dumps({"inputs": columns}).encode()
    return json.dumps({"instances": rows}).encode()


def as_bytes(
    method: str, path: str, headers: Sequence[Tuple[str, str]], body: bytes
) -> bytes:
    """A request as it is sent; texts are Latin-1."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{a}: {b}" for a, b in headers)]
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode("latin-1", "replace") + body


def request_of(seed: int, number: int) -> Wire:
    """The request of a number, drawn from a seed."""
    chance = random.Random(f"{seed}/{number}")
    kind = chance.choice(KINDS)
    if kind not in (SLOW, HALF, TWO):
        return _single(kind, chance)
    wire = _single(chance.choice(SINGLE), chance)
    (whole,) = wire.parts
    if kind == SLOW:
        parts = _pieces(whole, chance.randint(2, 12), chance)
        pause = chance.choice((0.001, 0.02))
        return dataclasses.replace(wire, kind=kind, parts=parts, pause=pause)
    if kind == HALF:
        whole = whole[: chance.randrange(len(whole) + 1)]
    else:
        headers = [("Host", "a"), ("Authorization", f"Bearer {TOKEN}")]
        whole = as_bytes("GET", "/tasks", headers, b"") + whole
    method = "GET" if kind == TWO else wire.method
    return Wire(kind, method, (whole,), is_framed=False)


def _single(kind: str, chance: random.Random) -> Wire:
    """A request that is sent at once."""
    body, path, method = right_body(chance), ANSWER, "POST"
    headers = [("Host", "a"), ("Authorization", f"Bearer {TOKEN}")]
    if chance.random() < 0.2:
        headers.append(("Accept-Encoding", "gzip"))
    length: Optional[str] = None
    is_framed = may_succeed = True
    if kind == "body":
        body = fuzz_inputs.change(body, chance)
    elif kind == "gzip":
        headers.append(("Content-Encoding", "gzip"))
        body = _odd_gzip(body, chance)
        may_succeed = _unpacks(body)
    elif kind == "header":
        for _ in range(chance.choice((1, 1, 2, 200))):
            name, value = chance.choice(HEADERS), chance.choice(VALUES)
            if chance.random() < 0.2:
                odd = chance.choice(fuzz_inputs.ODD_BYTES).decode("latin-1")
                name, value = chance.choice(((odd, value), (name, odd)))
            headers.insert(chance.randint(0, len(headers)), (name, value))
        # Perhaps no request at all, or one with another body.
        is_framed = False
    elif kind == "length":
        length = chance.choice((*LENGTHS, str(len(body) + 9)))
        if chance.random() < 0.3:
            headers.append(("Content-Length", str(len(body))))
        is_framed = False
    elif kind == "token":
        given = _odd_token(chance)
        headers[1] = ("Authorization", given)
        scheme, _, token = given.partition(" ")
        may_succeed = scheme.lower() == "bearer" and token.strip() == TOKEN
    elif kind == "method":
        method = chance.choice(METHODS)
        is_framed = False
    elif kind == "path":
        path, method = chance.choice(PATHS), chance.choice(("GET", "POST"))
        if chance.random() < 0.3:
            odd = fuzz_inputs.change(path.encode(), chance, grows=False)
            path = odd.decode("latin-1")
        # Other paths may be answered before the body has come.
        is_framed = False
    elif kind == "chunks":
        headers.append(("Transfer-Encoding", "chunked"))
        body, is_framed = _odd_chunks(body, chance), False
        if chance.random() < 0.3:
            path = chance.choice(PATHS)
    if kind != "chunks":
        headers.append(("Content-Length", length or str(len(body))))
    whole = as_bytes(method, path, headers, body)
    if kind == "bytes":
        whole, is_framed = fuzz_inputs.change(whole, chance), False
    return Wire(
        kind,
        method,
        (whole,),
        is_framed=is_framed,
        may_succeed=may_succeed,
    )


def _pieces(
    whole: bytes, count: int, chance: random.Random
) -> Tuple[bytes, ...]:
    """The same bytes in at most so many pieces, of which none is empty."""
    inner = range(1, len(whole))
    places = sorted(chance.sample(inner, min(len(inner), count - 1)))
    return tuple(
        whole[a:b] for a, b in zip([0, *places], [*places, len(whole)])
    )


def _odd_gzip(body: bytes, chance: random.Random) -> bytes:
    packed = gzip.compress(body, mtime=0)
    if chance.random() < 0.02:
        return BOMB
    return chance.choice(
        (
            lambda: body,
            lambda: packed[: chance.randrange(len(packed))],
            lambda: packed + packed,
            lambda: packed + b"a",
            lambda: gzip.compress(packed, mtime=0),
            lambda: gzip.compress(fuzz_inputs.change(body, chance), mtime=0),
            lambda: fuzz_inputs.change(packed, chance, grows=False),
            lambda: b"",
        )
    )()


def _unpacks(body: bytes) -> bool:
    """Whether it is a gzip of JSON."""
    try:
        json.loads(gzip.decompress(body))
    except (OSError, EOFError, ValueError, zlib.error):
        return False
    return True


def _odd_token(chance: random.Random) -> str:
    odd = fuzz_inputs.change(TOKEN.encode(), chance, grows=False)
    # A line of its own would be another header.
    text = re.sub(r"[\0\r\n]", "", odd.decode("latin-1"))
    schemes = ("Bearer ", "bearer ", "Basic ", "", "Bearer  ", "Bearer")
    return (chance.choice(schemes) + text).strip(" \t\x0b\x0c")


def _odd_chunks(body: bytes, chance: random.Random) -> bytes:
    found = []
    for piece in _pieces(body, chance.randint(1, 6), chance):
        size = f"{len(piece):x}"
        if chance.random() < 0.2:
            size = chance.choice(CHUNK_SIZES)
        end = b"\r\n" if chance.random() < 0.95 else b"\n"
        found.append(size.encode() + b"\r\n" + piece + end)
    last = (
        b"0\r\n\r\n",
        b"0\r\nA: b\r\n\r\n",
        b"0\r\n",
        b"",
        b"0\r\n\0\r\n\r\n",
    )
    weights = (6, 1, 1, 1, 1)
    return b"".join(found) + chance.choices(last, weights)[0]


def judge(
    code: int, content: bytes, method: str = "POST", may_succeed: bool = True
) -> str:
    """Why an answer is a defect; "" for a right one.

    Args:
        code: HTTP's.
        content: the answer's body, unpacked.
        method: of the request; HEAD's answers have no body.
        may_succeed: whether an answer other than a refusal can be right.
    """
    if not (200 <= code < 300 or 400 <= code < 500):
        return f"the code {code}"
    if 200 <= code < 300 and not may_succeed:
        return f"the code {code} for what should be refused"
    if 200 <= code < 300 or method == "HEAD":
        return ""
    try:
        is_json = isinstance(json.loads(content)["error"], str)
    except (ValueError, TypeError, KeyError):
        is_json = False
    if not is_json or b"\n" in content.strip():
        return f"{code} without a line of JSON: {content[:100]!r}"
    return ""


class _Stream:
    """A connection's answers for `http.client`, one after another."""

    def __init__(self, connection: socket.socket):
        self._file = connection.makefile("rb")

    def makefile(self, *_: Any) -> "_Stream":
        """The stream itself, whose buffer may hold the next answer."""
        return self

    def close(self) -> None:
        """Does nothing: more answers may come."""

    def end(self) -> None:
        """Closes it."""
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Connection:
    """A connection that sends requests until the server ends it."""

    def __init__(self, port: int):
        """Opens it; raises OSError if the server does not take it."""
        self._socket = socket.create_connection(
            ("127.0.0.1", port), timeout=ANSWER_S
        )
        self._stream = _Stream(self._socket)
        self.is_open = True

    def send(self, wire: Wire) -> List[Tuple[int, bytes]]:
        """Sends a request; returns the codes and bodies of its answers.

        Raises:
            TimeoutError: there is no answer, and no end.
            http.client.HTTPException: an answer is no HTTP.
        """
        # A server may refuse, and close, before it has read all.
        with contextlib.suppress(ConnectionError):
            for number, part in enumerate(wire.parts):
                if number and wire.pause:
                    time.sleep(wire.pause)
                self._socket.sendall(part)
        if wire.is_framed:
            found = self._read(wire.method)
            return [found] if found else []
        ready, _, _ = select.select([self._socket], [], [], MORE_S)
        first = self._read(wire.method) if ready else None
        answers = [first] if first else []
        if ready and not first:
            return []
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        while self.is_open and (found := self._read(wire.method)):
            answers.append(found)
        self.close()
        return answers

    def _read(self, method: str) -> Optional[Tuple[int, bytes]]:
        """The next answer, or None where the server has ended."""
        response = http.client.HTTPResponse(self._stream, method=method)
        try:
            response.begin()
            content = response.read()
        # The server resets a connection that has sent more than it read.
        except (ConnectionError, http.client.IncompleteRead):
            self.close()
            return None
        if response.will_close:
            self.close()
        if response.headers.get("Content-Encoding") == "gzip" and content:
            content = gzip.decompress(content)
        return response.status, content

    def close(self) -> None:
        """Ends it."""
        self.is_open = False
        self._stream.end()
        self._socket.close()


def make_server(folder: pathlib.Path) -> Dict[str, str]:
    """Writes a tiny BERT, a library, and a file of tokens.

    Returns:
        Folders of the adapters by task.
    """
    tiny_files.write_bert(folder / "bert")
    shelf = AdapterLibrary(str(folder / "shelf"), create=True)
    made = {}
    for name, (method, task, _) in TASKS.items():
        place = folder / "adapters" / name
        make_artifact(place, folder / "bert", method, None, task)
        shelf.add(str(place), name)
        made[name] = str(place)
    (folder / "tokens").write_text(TOKEN + "\n")
    return made


def is_same(found: Any, expected: Any) -> bool:
    """Whether two answers have equal words and nearly equal numbers."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            is_same(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, float):
        return abs(found - expected) <= TOLERANCE
    return found == expected


class Trial:
    """Requests that several connections send to one server, and their ends.

    Attributes:
        ends: how often a kind of request ended in a way.
        faults: defects, and numbers of their requests.
        right: answers of the good client.
    """

    def __init__(self, server: LiveServer, seed: int, count: int):
        """Takes a server, and the seed and the number of its requests."""
        self._server, self._seed, self._count = server, seed, count
        self._next, self._lock = 0, threading.Lock()
        self._silent: List[socket.socket] = []
        self._progress = Progress("wire", count, "requests")
        self.ends: Counter = Counter()
        self.faults: List[Tuple[int, str]] = []
        self.right = 0
        self.memory_mb = [server.memory_mb()]

    def run(self, connections: int, good: Callable[[], None]) -> None:
        """Sends all requests, while the good client asks again and again."""
        over = threading.Event()

        def ask() -> None:
            client = 0
            while not over.wait(0.02):
                try:
                    good()
                    client += 1
                except Exception as error:  # noqa: BLE001 - told as a fault.
                    self.note(-1, f"the good client: {error!r}")
            self.right = client

        with concurrent.futures.ThreadPoolExecutor(connections + 1) as pool:
            asking = pool.submit(ask)
            try:
                sending = [pool.submit(self._send) for _ in range(connections)]
                for one in sending:
                    one.result()
            finally:
                over.set()
            asking.result()
        self._progress.close()

    def _send(self) -> None:
        connection: Optional[Connection] = None
        while True:
            with self._lock:
                number = self._next
                self._next += 1
            if number >= self._count:
                break
            if not self._server.is_alive:
                self.note(number, "the server has ended")
                break
            if connection is None or not connection.is_open:
                connection = Connection(self._server.port)
            wire = request_of(self._seed, number)
            try:
                answers = connection.send(wire)
            except (OSError, http.client.HTTPException, EOFError) as error:
                self.note(number, f"{type(error).__name__}: {error}")
                connection.close()
                continue
            self.count(number, wire, answers)
            if not number % 200:
                self._keep_silent(wire.parts[0][:50])
        if connection is not None:
            connection.close()

    def count(
        self, number: int, wire: Wire, answers: Sequence[Tuple[int, bytes]]
    ) -> None:
        """Counts what came of a request, and notes defects."""
        for code, content in answers:
            fault = judge(code, content, wire.method, wire.may_succeed)
            if fault:
                self.note(number, f"{wire.kind}: {fault}")
        if wire.is_framed and not answers:
            self.note(number, f"{wire.kind}: no answer")
        end = str(answers[0][0]) if answers else "none"
        with self._lock:
            self.ends[wire.kind, end] += 1
            self._progress.update(1, f"{len(self.faults)} faults")
            if not number % 1000:
                self.memory_mb.append(self._server.memory_mb())

    def note(self, number: int, fault: str) -> None:
        """Writes down a defect."""
        with self._lock:
            self.faults.append((number, fault))
        logging.warning("request %d: %s", number, fault)

    def _keep_silent(self, begin: bytes) -> None:
        """Opens a connection that begins a request, and does not go on."""
        silent = socket.create_connection(("127.0.0.1", self._server.port))
        silent.sendall(begin)
        with self._lock:
            self._silent.append(silent)
            oldest = self._silent.pop(0) if len(self._silent) > SILENT else None
        if oldest:
            oldest.close()

    def check_silent(self) -> None:
        """Waits until the server must have ended silent connections."""
        until = time.monotonic() + 2 * TIMEOUT_S + 5
        for silent in self._silent:
            silent.settimeout(max(0.1, until - time.monotonic()))
            try:
                while silent.recv(4096):
                    pass
            except TimeoutError:
                self.note(-1, "a silent connection is not ended")
            except OSError:
                # It was reset.
                pass
            silent.close()

    def check_server(self) -> None:
        """Notes what is wrong with the server at the end."""
        if not self._server.is_alive:
            self.note(-1, "the server has ended")
            return
        self.memory_mb.append(self._server.memory_mb())
        # The first tenth is a warm-up.
        first = self.memory_mb[len(self.memory_mb) // 10]
        if self.memory_mb[-1] > first + GROWTH_MB:
            self.note(-1, f"memory grew from {first} to {self.memory_mb[-1]}")
        log = self._server.log()
        if "Traceback" in log:
            place = log.index("Traceback")
            self.note(-1, f"the log has {log[place : place + 2000]}")


def good_client(
    port: int, model: str, adapters: Dict[str, str]
) -> Callable[[], None]:
    """A function that asks right rows; raises UserError for wrong answers."""
    chance = random.Random("good")
    questions = [
        (name, tuple(" ".join(tiny_files.sentence(chance)) for _ in texts))
        for name, (_, _, texts) in TASKS.items()
        for _ in range(4)
    ]
    expected = Predictor.load(model, adapters).ask(questions)
    rows = [
        {"task": name, **dict(zip(TASKS[name][2], texts))}
        for name, texts in questions
    ]
    body = json.dumps({"instances": rows}).encode()
    client = Client(port, {"Authorization": f"Bearer {TOKEN}"})

    def ask() -> None:
        code, found = client.ask(body)
        if code != 200:
            raise UserError(f"{code} {found[:200]!r}")
        answers = json.loads(found)["answers"]
        for answer, (name, _), right in zip(answers, questions, expected):
            answer.pop("adapter")
            if not is_same(answer, {"task": name, **right}):
                raise UserError(f"{answer} instead of {right}")

    return ask


def rows_of(ends: Counter) -> report.Table:
    """A table of kinds of requests and the codes of their answers."""
    codes = sorted({end for _, end in ends})
    table = [["kind", "requests", *codes]]
    for kind in (*KINDS, "all"):
        of_kind: Counter = Counter()
        for (one, end), count in ends.items():
            if kind in (one, "all"):
                of_kind[end] += count
        numbers = [sum(of_kind.values()), *(of_kind[code] for code in codes)]
        table.append([kind, *(f"{number:,}" for number in numbers)])
    return table


def parse() -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UserError: it sends nothing.
    """
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=200000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, help="of the one to send")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--output_dir", default="out/wire", type=pathlib.Path)
    arguments = parser.parse_args()
    for name in ("requests", "connections"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name} sends nothing; expected more than 0")
    return arguments


def send_one(port: int, seed: int, number: int) -> None:
    """Sends one request alone, and prints it and its answers."""
    wire = request_of(seed, number)
    print(wire.kind, *wire.parts, sep="\n")
    connection = Connection(port)
    for code, content in connection.send(wire):
        fault = judge(code, content, wire.method, wire.may_succeed)
        print(code, content, fault)
    connection.close()


def main() -> None:
    """Sends requests, and writes and prints what came of them.

    Raises:
        UserError: the command line sends nothing, or the server does not start.
        SystemExit: there were defects.
    """
    arguments = parse()
    logging.set_verbosity(logging.INFO)
    output = arguments.output_dir.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        adapters = make_server(folder)
        flags = [
            f"--init_checkpoint={folder / 'bert'}",
            f"--library={folder / 'shelf'}",
            f"--token_file={folder / 'tokens'}",
            *SERVER_FLAGS,
        ]
        with LiveServer(output, flags) as server:
            if arguments.number is not None:
                send_one(server.port, arguments.seed, arguments.number)
                return
            good = good_client(server.port, str(folder / "bert"), adapters)
            trial = Trial(server, arguments.seed, arguments.requests)
            began = time.monotonic()
            trial.run(arguments.connections, good)
            seconds = time.monotonic() - began
            trial.check_silent()
            trial.check_server()
    results = {
        **report.environment(),
        "seed": arguments.seed,
        "requests": arguments.requests,
        "seconds": seconds,
        "right_answers": trial.right,
        "ends": [[*end, count] for end, count in sorted(trial.ends.items())],
        "memory_mb": trial.memory_mb,
        "faults": trial.faults,
    }
    files.write_json(str(output / "wire.json"), results)
    print(report.plain(rows_of(trial.ends)), end="")
    print(
        f"{trial.right} right answers; {trial.memory_mb[0]:.0f} MB at first, "
        f"{trial.memory_mb[-1]:.0f} at the end"
    )
    if trial.faults or not trial.right:
        raise SystemExit(f"{len(trial.faults)} defects, in {output}/wire.json")


if __name__ == "__main__":
    command_line.run(main)
