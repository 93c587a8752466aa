"""The server as its operator runs it, asked by many clients at once."""

import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import pytest
import uvicorn
from absl.testing import flagsaver
from conftest import ROOT, entry_point
from exported_models import mixed_questions
from sweep_stand_in import wait_for
from test_joint_answers import LIBRARY, assert_equal
from tiny_artifacts import make_artifact

from adapter_bert.commands import serve
from adapter_bert.errors import UserError
from adapter_bert.serving.batching import Bounds
from adapter_bert.serving.library import AdapterLibrary
from adapter_bert.serving.model_versions import VersionFolder
from adapter_bert.serving.predictor import Predictor
from adapter_bert.serving.request_core import Limits

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
    (port,) = next(
        found.groups() for found in map(address.search, lines) if found
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


def ask(port, instances, form="predict", path="adapter_bert"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"instances": instances})
    connection.request("POST", f"/v1/models/{path}:{form}", body)
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    return response.status, found


def leave(port, body):
    """Sends a part of a request, or all of it, and goes away."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = "POST /v1/models/adapter_bert:predict HTTP/1.1\r\nHost: a\r\n"
        head += f"Content-Length: {len(body) + 9}\r\n\r\n"
        connection.sendall(head.encode() + body)
        # The connection is reset, not closed in order.
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def test_many_clients_of_which_some_go_away(running, tiny_bert, tiny_adapters):
    process, port = running
    questions = mixed_questions()
    expected = Predictor.load(str(tiny_bert), tiny_adapters).ask(questions)
    instances = [
        dict(zip(("text", "text_b"), texts), task=name)
        for name, texts in questions
    ]

    def client(seed):
        chance = random.Random(seed)
        for _ in range(REQUESTS):
            places = range(len(questions))
            chosen = chance.choices(places, k=chance.randint(1, 9))
            asked = [instances[n] for n in chosen]
            kind = chance.random()
            if kind < 0.2:
                leave(port, json.dumps({"instances": asked}).encode())
            elif kind < 0.3:
                assert ask(port, [{"task": "nobody", "text": "a"}])[0] == 400
            else:
                status, found = ask(port, asked, "answer")
                assert status == 200
                assert len(found["answers"]) == len(asked)
                for one, n in zip(found["answers"], chosen):
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


def test_a_library_is_served_as_it_changes(tiny_bert, tmp_path):
    shelf = AdapterLibrary(str(tmp_path / "shelf"), create=True)
    expected, rows = {}, {}
    for name in ("small", "pair"):
        method, description, texts = LIBRARY[name]
        folder = str(tmp_path / name)
        make_artifact(tmp_path / name, tiny_bert, method, None, description)
        expected[name] = Predictor.load(str(tiny_bert), {name: folder})(
            name, texts[0]
        )
        texts = texts[0] if isinstance(texts[0], tuple) else texts[:1]
        rows[name] = [dict(zip(("text", "text_b"), texts), task=name)]
    shelf.add(str(tmp_path / "small"), "small")
    process, port = start(
        f"--init_checkpoint={tiny_bert}",
        f"--library={shelf.path}",
        "--poll_seconds=1",
    )
    try:

        def answers(name):
            status, found = ask(port, rows[name], "answer")
            if status == 400:
                assert f"row 1: unknown task {name}" in found["error"]
                return False
            (one,) = found["answers"]
            assert len(one.pop("adapter")) == 64
            assert_equal(one, {"task": name, **expected[name]})
            return True

        assert answers("small") and not answers("pair")
        shelf.add(str(tmp_path / "pair"), "pair")
        wait_for(lambda: answers("pair"))
        shelf.remove("small")
        wait_for(lambda: not answers("small"))
        assert answers("pair")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
        said = process.stderr.read()
        assert "added pair" in said and "removed small" in said
        assert "Traceback" not in said
    finally:
        end(process)


def test_a_shadow_is_compared_and_seen_by_no_client(tiny_bert, tmp_path):
    method, description, texts = LIBRARY["small"]
    folders = [str(tmp_path / name) for name in ("old", "new", "kept")]
    for seed, folder in enumerate(map(pathlib.Path, folders)):
        make_artifact(folder, tiny_bert, method, None, description, seed)
    expected, shelves = [], []
    for moved in folders[:2]:
        shelf = AdapterLibrary(f"{moved}_shelf", create=True)
        names = {"kept": folders[2], "moved": moved}
        for name, folder in names.items():
            shelf.add(folder, name)
        shelves.append(shelf.path)
        predictor = Predictor.load(str(tiny_bert), names)
        expected.append({name: predictor(name, texts) for name in names})
    counts = collections.Counter(
        (name, "equal" if one.label == other.label else "different")
        for name in names
        for one, other in zip(*(found[name] for found in expected))
    )
    assert counts["kept", "equal"] == len(texts)
    assert counts["moved", "different"] > 0
    process, port = start(
        f"--init_checkpoint={tiny_bert}",
        f"--library={shelves[0]}",
        f"--shadow={shelves[1]}",
        f"--shadow_init_checkpoint={tiny_bert}",
    )
    try:
        for name in names:
            rows = [{"task": name, "text": text} for text in texts]
            _, found = ask(port, rows, "answer")
            for one, answer in zip(found["answers"], expected[0][name]):
                assert len(one.pop("adapter")) == 64
                assert_equal(one, {"task": name, **answer})
        wait_for(lambda: outcomes(port) == counts)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
        said = process.stderr.read()
        assert f"{counts['moved', 'different']} different, 0 dropped" in said
        assert "Traceback" not in said
    finally:
        end(process)


def outcomes(port):
    """Counts of the shadow's rows, by task and what became of them."""
    found = re.findall(
        r'^adapter_bert_shadow_rows_total\{model="adapter_bert",'
        r'outcome="(\w+)",task="(\w+)"\} (\S+)$',
        metrics(port),
        re.M,
    )
    return {(task, one): int(float(x)) for one, task, x in found if float(x)}


TOKEN = "a-token-of-letters"


@pytest.mark.gate
def test_versions_come_while_it_runs(tiny_exported, tmp_path):
    """A file of models, gRPC, a look that is asked for, and lines of JSON."""
    grpc = pytest.importorskip("grpc")
    apis = "tensorflow_serving.apis."
    stubs = pytest.importorskip(apis + "model_service_pb2_grpc")
    messages = pytest.importorskip(apis + "get_model_status_pb2")
    place, config = tmp_path / "exported", tmp_path / "models"
    shutil.copytree(tiny_exported, place)
    config.write_text(
        "model_config_list { config { name: 'adapter_bert' "
        f"base_path: '{place}' version_labels {{ key: 'new' value: 2 }} }} }}"
    )
    (tmp_path / "tokens").write_text(TOKEN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        grpc_port = free.getsockname()[1]
    process, port = start(
        f"--model_config_file={config}",
        f"--grpc_port={grpc_port}",
        f"--admin_token_file={tmp_path / 'tokens'}",
        "--log_format=json",
        "--poll_seconds=1000",
    )
    try:
        asked, codes = [{"task": "small", "text": "a cat"}], set()
        _, found = ask(port, asked, "answer")
        (expected,) = found["answers"]

        def check(path="adapter_bert"):
            """Rows of other batches may differ in their last bits."""
            status, found = ask(port, asked, "answer", path)
            codes.add(status)
            assert_equal(found["answers"][0], expected)

        version = ask(port, asked, path="adapter_bert/labels/new")
        assert version[0] == 404
        # As an export: whole, from one moment to the next.
        shutil.copytree(tiny_exported / "1", place / ".2")
        (place / ".2").rename(place / "2")
        is_done = threading.Event()

        def client():
            while not is_done.is_set():
                check()
            return True

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(client) for _ in range(4)]
            try:
                found = reload(port)
            finally:
                is_done.set()
            assert all(one.result() for one in clients) and codes == {200}
        (model,) = found["models"]
        told = [
            (x["version"], x["state"]) for x in model["model_version_status"]
        ]
        assert told[0] == ("2", "AVAILABLE") and told[1][0] == "1"
        check("adapter_bert/labels/new")
        assert ask(port, asked, path="adapter_bert/versions/1")[0] == 404
        request = messages.GetModelStatusRequest()
        request.model_spec.name = "adapter_bert"
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            ask_state = stubs.ModelServiceStub(channel).GetModelStatus
            states = ask_state(request, timeout=60).model_version_status
        assert [x.version for x in states] == [2, 1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
        said = process.stderr.read()
        lines = [json.loads(x) for x in said.splitlines() if x[:1] == "{"]
        assert any("version 2 answers" in one["message"] for one in lines)
        assert not any("traceback" in one for one in lines)
    finally:
        end(process)


def reload(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    connection.request("POST", "/admin/reload", headers=headers)
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    assert response.status == 200, found
    return found


# The second batch and later ones do not end.
STUCK = """
import time
from adapter_bert.serving.exported import ExportedModel
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


@pytest.mark.gate
def test_connections_and_the_end_wait_as_they_are_told(tiny_exported):
    process, port = start(
        f"--model={tiny_exported}",
        "--timeout_s=1",
        "--keep_alive_s=4",
        "--drain_s=3",
    )

    def code(path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().status

    try:
        idle = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(idle):
            idle.request("GET", "/readyz")
            assert idle.getresponse().read() == b'{"status":"ready"}'
            began = time.monotonic()
            assert idle.sock.recv(1) == b""
            assert 3 < time.monotonic() - began < 30
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        wait_for(lambda: code("/readyz") == 503)
        while time.monotonic() - began < 2:
            assert code("/readyz") == 503 and code("/tasks") == 200
            time.sleep(0.1)
        assert process.wait(30) in (0, -signal.SIGTERM)
        assert time.monotonic() - began > 2.9
    finally:
        end(process)


def test_a_second_signal_ends_at_once():
    core = types.SimpleNamespace(is_ending=False, is_closed=False)
    server = serve.EndingServer(uvicorn.Config(None), core, 1000, drain=1000)
    server.handle_exit(signal.SIGINT, None)
    assert core.is_ending and not (core.is_closed or server.should_exit)
    server.handle_exit(signal.SIGINT, None)
    assert core.is_closed and server.should_exit and not server.force_exit


def metrics(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/monitoring/prometheus/metrics")
    found = connection.getresponse().read().decode()
    connection.close()
    return found


def waiting_rows(port):
    found = re.search(r"^adapter_bert_waiting_rows (\S+)$", metrics(port), re.M)
    return float(found.group(1))


def listening(process):
    """The addresses at which a process listens, as the system has them."""
    own = {
        os.readlink(path)
        for path in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()
        # One may be closed meanwhile.
        if os.path.lexists(path)
    }
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = pathlib.Path(f"/proc/{process.pid}/net/{table}")
        for line in path.read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if f"socket:[{inode}]" in own and state in ("0A", "07"):
                address, port = local.split(":")
                yield table, address, int(port, 16)


@pytest.mark.gate
@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="no Linux")
def test_by_default_it_is_reached_from_this_machine_alone(tiny_exported):
    """Who says nothing is cut off, and of who asks nothing is written."""
    process, port = start(
        f"--model={tiny_exported}", "--timeout_s=3", "--max_rows=1"
    )
    try:
        # 127.0.0.1, its bytes from the last to the first.
        assert list(listening(process)) == [("tcp", "0100007F", port)]
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as silent:
            asked = [{"task": "nobody", "text": "secret"}]
            assert ask(port, asked)[0] == 400
            many = ask(port, asked * 2)
            assert many == (400, {"error": "2 rows, of at most 1"})
            silent.settimeout(60)
            try:
                assert silent.recv(1) == b""
            except ConnectionResetError:
                pass
            # Twice the time that a request has.
            assert time.monotonic() - began > 5
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert "secret" not in said and ":predict" not in said
    finally:
        end(process)


def test_each_flag_is_the_limit_that_it_names():
    """In bytes, rows and seconds."""
    given = dict(max_body_mb=2, max_held_mb=3, max_rows=4, max_text_kb=5)
    given.update(max_waiting_rows=6, max_batch_rows=7, max_batch_kb=8)
    given.update(timeout_s=9)
    bounds = Bounds(batch_rows=7, batch_bytes=8000, waiting_rows=6)
    with entry_point(serve):
        with flagsaver.flagsaver(**given):
            assert serve.limits_from_flags() == Limits(
                2_000_000, 3_000_000, 4, 5000, bounds, 9
            )
        # What is equal has room.
        with flagsaver.flagsaver(**{**given, "max_rows": 6, "max_body_mb": 3}):
            assert serve.limits_from_flags().batching.waiting_rows == 6


@pytest.fixture
def run():
    with entry_point(serve) as run:
        yield run


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"model": ""}, "nothing to serve is named; pass --init_checkpoint a"),
        ({"library": "tests"}, "--library is for serving a library, and --mo"),
        ({"compute_dtype": "auto"}, "--compute_dtype is for serving a librar"),
        (
            {"model": "", "library": "tests"},
            "--init_checkpoint is missing: the pretrained BERT",
        ),
        (
            {"model": "", "library": "nowhere", "init_checkpoint": "tests"},
            "there is no library nowhere",
        ),
        (
            {"model": "", "library": "tests", "poll_seconds": 0},
            "--poll_seconds is 0, expected more",
        ),
        ({"model_config_file": "a"}, "--model and --model_config_file are b"),
        (
            {"model": "", "model_config_file": "a", "library": "tests"},
            "--library is for serving a library, and --model_config_file is p",
        ),
        (
            {"model": "", "model_config_file": "a", "name": "b"},
            "--name is passed, and --model_config_file has the models' names",
        ),
        (
            {"model": "", "model_config_file": "a", "model_versions": "1"},
            "--model_versions needs --model; pass --model too",
        ),
        (
            {"model": "", "model_config_file": "nowhere"},
            "nowhere",
        ),
        (
            {"model_version_policy": "specific"},
            "--model_version_policy=specific and --model_versions go together",
        ),
        ({"model_versions": "3"}, "=specific and --model_versions go toget"),
        (
            {"model_version_policy": "specific", "model_versions": "3,x"},
            "--model_versions has 'x', expected numbers with commas",
        ),
        (
            {"model_version_policy": "specific", "model_versions": "3"},
            "tests holds no version 3; there are: none",
        ),
        ({"grpc_port": -1}, "--grpc_port is -1, expected 0 to 65535"),
        ({"admin_token_file": "nowhere"}, "nowhere"),
        ({"token_requests": 9}, "--token_requests needs tokens; pass --token"),
        ({"token_file": "nowhere"}, "nowhere"),
        (
            {"ssl_keyfile": "key"},
            "--ssl_certfile and --ssl_keyfile go together",
        ),
        (
            {"ssl_keyfile": "nowhere", "ssl_certfile": "README.md"},
            "cannot use --ssl_certfile README.md with --ssl_keyfile nowhere",
        ),
        ({"name": "a/b"}, "--name is 'a/b', expected letters"),
        ({"cors_origins": "a.example"}, "--cors_origins has 'a.example'"),
        ({"max_rows": 0}, "--max_rows is 0, expected more"),
        ({"max_waiting_rows": 6}, "of --max_rows .1024. would ever be taken"),
        ({"max_rows": 9000}, "--max_waiting_rows is 8192, so .* or lower --ma"),
        ({"max_held_mb": 1, "max_body_mb": 2}, "of --max_body_mb .2. would"),
        ({"host": "nowhere.invalid"}, "cannot listen at nowhere.invalid"),
        ({"host": "127.0.0..1"}, "cannot listen at 127.0.0..1"),
        ({"port": 70000}, "--port is 70000, expected 0 to 65535"),
        ({"model": "tests"}, "tests holds no version of an exported model"),
        ({"shadow_init_checkpoint": "a"}, "_checkpoint needs --shadow"),
        (
            {"model": "", "model_config_file": "a", "shadow": "b"},
            "--shadow is for one model; pass --library or --model",
        ),
        ({"shadow": "nowhere"}, "--shadow is nowhere, where there is no fold"),
        ({"shadow": "tests/../tests"}, "--shadow and --model are one folder"),
        (
            {"model": "", "library": "docs", "shadow": "docs/"},
            "--shadow and --library are one folder, docs/",
        ),
        ({"shadow": "docs"}, "of a library pass --shadow_init_checkpoint too"),
    ],
)
def test_what_cannot_be_served(run, flags, message):
    with pytest.raises(UserError, match=message):
        run(**{"model": "tests", "port": 0, **flags})


def test_a_port_that_is_taken(run, tiny_exported, monkeypatch):
    """At the start, or while the model is loaded: two may have one address."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        message = f"cannot listen at 127.0.0.1, port {port}: .*in use"
        with pytest.raises(UserError, match=message):
            run(model="tests", port=port)
        message_of_grpc = f"port {port}: .* or --grpc_port"
        with pytest.raises(UserError, match=message_of_grpc):
            run(model="tests", port=0, grpc_port=port)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def load(*asked):
            other.listen()
            return VersionFolder(*asked)

        monkeypatch.setattr(serve, "VersionFolder", load)
        with pytest.raises(UserError, match=message):
            run(model=str(tiny_exported), port=port)


# Modules that need packages which others do not.
OPTIONAL = tuple(
    f"adapter_bert.serving.{name}" for name in ("grpc_api", "model_config")
)


@pytest.mark.parametrize(
    "flags, flag",
    [
        ({"model": "tests", "grpc_port": 0}, "grpc_port"),
        ({"model_config_file": "tests"}, "model_config_file"),
    ],
)
def test_packages_that_are_not_installed(run, flags, flag, monkeypatch):
    for module in list(sys.modules):
        if module.startswith(("tensorflow_serving", *OPTIONAL)):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    message = f"--{flag} needs the packages grpcio and tensorflow-serving-api"
    with pytest.raises(UserError, match=message) as found:
        run(port=0, **flags)
    assert "\n" not in str(found.value)


@pytest.mark.gate
def test_grpc_that_cannot_begin_is_one_line(tiny_exported):
    """Another program has taken its port while the model was loaded."""
    code = """
from adapter_bert.commands import serve
load = serve.VersionFolder
def folder(*asked):
    import socket
    other = socket.socket()
    other.bind(("127.0.0.1", PORT))
    other.listen()
    serve.kept = other
    return load(*asked)
serve.VersionFolder = folder
from adapter_bert import commands; commands.main()
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = subprocess.run(
        [sys.executable, "-c", code.replace("PORT", str(port)), "serve"]
        + [f"--model={tiny_exported}", "--port=0", f"--grpc_port={port}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert found.returncode == 1 and "Traceback" not in found.stderr
    expected = f"cannot listen at 127.0.0.1, port {port}, for gRPC; choose ano"
    assert expected in found.stderr.splitlines()[-1]
