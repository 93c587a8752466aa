"""The server as its operator runs it, asked by many clients at once."""

import concurrent.futures
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import types
from contextlib import closing, suppress
from pathlib import Path

import pytest
import refusals
import uvicorn
from conftest import ROOT, entry_point, load_predictor, read_lines
from exported_models import mixed_questions
from sweep_stand_in import wait_for
from test_joint_answers import LIBRARY, assert_equal
from tiny_artifacts import make_adapters

from adapter_bert.commands import serve
from adapter_bert.graph.exported import ExportedModel
from adapter_bert.server.batching import Bounds
from adapter_bert.server.request_core import Limits

pytestmark = pytest.mark.newer_stack

CLIENTS, REQUESTS = 16, 12


def start(*flags, before=""):
    """A server's process and its port; `before` is run in it at first."""
    code = f"{before}\nfrom adapter_bert import commands; commands.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port=0", *flags],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = iter(process.stderr.readline, "")
    address = re.compile(r"http://127\.0\.0\.1:(\d+)/v1/models/adapter_bert")
    [port] = next(
        match.groups() for match in map(address.search, lines) if match
    )
    return process, int(port)


def end(process):
    process.kill()
    process.wait()
    process.stderr.close()


@pytest.fixture
def running(tiny_exported):
    process, port = start(f"--model={tiny_exported}")
    yield process, port
    end(process)


def get(port, path, body=None, **headers):
    """The code and the bytes of an answer; with a body it is posted."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("POST" if body else "GET", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()


def ask(port, instances, form="predict"):
    body = json.dumps({"instances": instances})
    status, content = get(port, f"/v1/models/adapter_bert:{form}", body)
    return status, json.loads(content)


def leave(port, body):
    """Sends a part of a request, or all of it, and goes away."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = "POST /v1/models/adapter_bert:predict HTTP/1.1\r\nHost: a\r\n"
        head += f"Content-Length: {len(body) + 9}\r\n\r\n"
        connection.sendall(head.encode() + body)
        # The connection is reset, not closed in order.
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


@pytest.mark.gate
def test_many_clients_of_which_some_go_away(running, tiny_bert, tiny_adapters):
    process, port = running
    questions = mixed_questions()
    expected = load_predictor(tiny_bert, tiny_adapters).ask(questions)
    instances = [
        dict(zip(("text", "text_b"), texts), task=name)
        for name, texts in questions
    ]

    def client(seed):
        chance = random.Random(seed)
        for _ in range(REQUESTS):
            places = range(len(questions))
            chosen = chance.choices(places, k=chance.randint(1, 9))
            some = [instances[n] for n in chosen]
            kind = chance.random()
            if kind < 0.2:
                leave(port, json.dumps({"instances": some}).encode())
            elif kind < 0.3:
                assert ask(port, [{"task": "nobody", "text": "a"}])[0] == 400
            else:
                status, content = ask(port, some, "answer")
                assert status == 200
                assert len(content["answers"]) == len(some)
                for one, n in zip(content["answers"], chosen):
                    name, _ = questions[n]
                    assert len(one.pop("adapter")) == 64
                    assert_equal(one, {"task": name, **expected[n]})
        return True

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        assert all(pool.map(client, range(CLIENTS)))

    # It is told to stop, and stops.
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) in (0, -signal.SIGTERM)
    assert "Traceback" not in process.stderr.read()


@pytest.mark.gate
def test_a_library_is_served_as_it_changes(tiny_bert, tmp_path, shelf):
    tasks = {name: LIBRARY[name][:2] for name in ("small", "pair")}
    folders = make_adapters(tmp_path, tiny_bert, tasks)
    predictor = load_predictor(tiny_bert, folders)
    expected, rows = {}, {}
    for name in folders:
        row = LIBRARY[name][2][0]
        expected[name] = predictor(name, row)
        texts = row if isinstance(row, tuple) else (row,)
        rows[name] = [dict(zip(("text", "text_b"), texts), task=name)]
    shelf.add(folders["small"], "small")
    token = "a-token-of-letters"
    (tmp_path / "tokens").write_text(token)
    process, port = start(
        f"--init_checkpoint={tiny_bert}",
        f"--library={shelf.path}",
        f"--admin_token_file={tmp_path / 'tokens'}",
        *("--poll_seconds=1", "--log_format=json"),
    )
    try:

        def answers(name):
            status, content = ask(port, rows[name], "answer")
            if status == 400:
                assert f"row 1: unknown task {name}" in content["error"]
                return False
            [one] = content["answers"]
            assert len(one.pop("adapter")) == 64
            assert_equal(one, {"task": name, **expected[name]})
            return True

        assert answers("small") and not answers("pair")
        shelf.add(folders["pair"], "pair")
        wait_for(lambda: answers("pair"))
        shelf.remove("small")
        wait_for(lambda: not answers("small"))
        assert answers("pair")
        assert get(port, "/admin/models")[0] == 401
        bearer = f"Bearer {token}"
        _, content = get(port, "/admin/models", Authorization=bearer)
        assert json.loads(content)["models"][0]["tasks"] == {"1": ["pair"]}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
        log = process.stderr.read()
        lines = [json.loads(x) for x in log.splitlines() if x[:1] == "{"]
        messages = " ".join(line["message"] for line in lines)
        assert "added pair" in messages and "removed small" in messages
        assert "raceback" not in log
    finally:
        end(process)


# The second batch and later ones do not end.
STUCK = """
import time
from adapter_bert.graph.exported import ExportedModel
answers, calls = ExportedModel.answers, []
def answer(model, rows):
    calls.append(rows)
    time.sleep(1000 * (len(calls) > 1))
    return answers(model, rows)
ExportedModel.answers = answer
"""


@pytest.mark.gate
def test_it_ends_in_time_whatever_is_computed(tiny_exported):
    process, port = start(f"--model={tiny_exported}", "--end_s=1", before=STUCK)
    try:
        body = json.dumps({"instances": [{"task": "small", "text": "a"}]})
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asking.request("POST", "/v1/models/adapter_bert:predict", body)
        wait_for(lambda: waiting_rows(port) == 1)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert process.wait(60) == 1
        assert 1 < time.monotonic() - began < 30
        assert "a batch did not end within 6 seconds" in process.stderr.read()
    finally:
        end(process)


def test_a_second_signal_ends_at_once():
    core = types.SimpleNamespace(is_ending=False)
    server = serve.EndingServer(uvicorn.Config(None), core, 1000, drain=1000)
    server.handle_exit(signal.SIGINT, None)
    assert core.is_ending and not server.should_exit
    server.handle_exit(signal.SIGINT, None)
    assert server.should_exit and not server.force_exit


def waiting_rows(port):
    _, metrics = get(port, "/monitoring/prometheus/metrics")
    [count] = re.findall(rb"^adapter_bert_waiting_rows (\S+)$", metrics, re.M)
    return float(count)


def listening(process):
    """The addresses at which a process listens, as the system has them."""
    sockets = set()
    for path in Path(f"/proc/{process.pid}/fd").iterdir():
        # One may be closed meanwhile.
        with suppress(FileNotFoundError):
            sockets.add(os.readlink(path))
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = Path(f"/proc/{process.pid}/net/{table}")
        for line in read_lines(path)[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if f"socket:[{inode}]" in sockets and state in ("0A", "07"):
                address, port = local.split(":")
                yield table, address, int(port, 16)


@pytest.mark.gate
@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="no Linux")
def test_it_is_reached_from_this_machine_alone_and_waits_as_it_is_told(
    tiny_exported,
):
    """Who says nothing is cut off, and of who asks nothing is written."""
    times = "--timeout_s=1", "--keep_alive_s=4", "--drain_s=3"
    process, port = start(f"--model={tiny_exported}", "--max_rows=1", *times)

    def code(path):
        return get(port, path)[0]

    try:
        # 127.0.0.1, its bytes from the last to the first.
        assert list(listening(process)) == [("tcp", "0100007F", port)]
        rows = [{"task": "nobody", "text": "secret"}]
        assert ask(port, rows)[0] == 400
        many = ask(port, rows * 2)
        assert many == (400, {"error": "2 rows, of at most 1"})
        idle = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        silent = socket.create_connection(("127.0.0.1", port), timeout=60)
        with closing(idle), silent:
            idle.request("GET", "/readyz")
            assert idle.getresponse().read() == b'{"status":"ready"}'
            began = time.monotonic()
            assert idle.sock.recv(1) == b""
            assert 3 < time.monotonic() - began < 30
            # It has the time of a request besides.
            with suppress(ConnectionResetError):
                assert silent.recv(1) == b""
            assert time.monotonic() - began > 4
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        wait_for(lambda: code("/readyz") == 503)
        while time.monotonic() - began < 2:
            assert code("/readyz") == 503 and code("/tasks") == 200
            time.sleep(0.1)
        assert process.wait(30) in (0, -signal.SIGTERM)
        assert time.monotonic() - began > 2.9
        log = process.stderr.read()
        assert "secret" not in log and ":predict" not in log
    finally:
        end(process)


def test_each_flag_is_the_limit_that_it_names():
    """In bytes, rows and seconds."""
    values = dict(max_body_mb=2, max_held_mb=2, max_rows=4, max_text_kb=5)
    values.update(max_waiting_rows=4, max_batch_rows=7, max_batch_kb=8)
    bounds = Bounds(batch_rows=7, batch_bytes=8000, waiting_rows=4)
    # What is equal has room.
    limits = Limits(2_000_000, 2_000_000, 4, 5000, bounds, 9)
    assert serve.limits_of(serve.Serving(**values, timeout_s=9)) == limits
    # What never has room is no request that may come again.
    values.update(max_body_mb=3, max_rows=5)
    assert serve.limits_of(serve.Serving(**values, timeout_s=9)) == limits


def refused(**flags):
    """A server's start."""

    def call():
        with entry_point(serve) as run:
            run(**{"model": "tests", "port": 0, **flags})

    return call


BERT = "--init_checkpoint"


@refusals.table(
    {
        "nothing": (refused(model=""), BERT, "--library", "--model"),
        "a library too": (refused(library="tests"), "--library", "--model"),
        "no BERT": (refused(model="", library="tests"), BERT),
        "no library": (
            refused(model="", library="nowhere", init_checkpoint="tests"),
            "nowhere",
        ),
        "no file of admins": (refused(admin_token_file="nowhere"), "nowhere"),
        "flags of a library": (
            refused(compute_dtype="bfloat16"),
            "--compute_dtype is for --library",
        ),
        "no tokens to count": (
            refused(token_requests=9),
            *("--token_requests", "--token_file"),
        ),
        "no file of tokens": (refused(token_file="nowhere"), "nowhere"),
        "a key alone": (
            refused(ssl_keyfile="key"),
            *("--ssl_keyfile", "--ssl_certfile"),
        ),
        "no certificate": (
            refused(ssl_keyfile="nowhere", ssl_certfile="README.md"),
            *("README.md", "nowhere"),
        ),
        "a name with a slash": (refused(name="a/b"), "--name", "a/b"),
        "no origin": (refused(cors_origins="a.example"), "'a.example'"),
        "no rows": (refused(max_rows=0), "--max_rows", 0),
        "no such host": (
            refused(host="nowhere.invalid"),
            *("nowhere.invalid", "--host"),
        ),
        "an empty part of a host": (refused(host="127.0.0..1"), "127.0.0..1"),
        "no exported model": (refused(), "tests", "adapter-bert export"),
    }
)
def test_what_cannot_be_served(call, parts):
    refusals.check(call, *parts)


def test_a_port_that_is_taken(tiny_exported, monkeypatch):
    """At the start, or while the model is loaded: two may have one address."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        parts = "127.0.0.1", port, "in use", "--port"
        refusals.check(refused(port=port), *parts)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def load(folder):
            other.listen()
            return ExportedModel(folder)

        monkeypatch.setattr(serve, "ExportedModel", load)
        model = str(tiny_exported)
        refusals.check(refused(model=model, port=port), *parts)
