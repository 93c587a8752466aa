"""TensorFlow Serving's REST: answers, refusals, and slow clients."""

import base64
import http.client
import json
import socket
import threading
import time
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from functools import partial
from gzip import compress, decompress

import hypothesis
import hypothesis.strategies as st
import pytest
import tensorflow as tf
import uvicorn
from conftest import module_fixture
from sweep_stand_in import wait_for

from adapter_bert.graph.exported import ExportedModel, Row
from adapter_bert.server.batching import Bounds
from adapter_bert.server.http_api import PatientProtocol, RestServer, read_rows
from adapter_bert.server.request_core import Limits, Refused, RequestCore
from adapter_bert.server.shelf import ExportedShelf

pytestmark = pytest.mark.newer_stack

PREDICT = "/v1/models/tiny:predict"
LIMITS = Limits(
    max_body_bytes=2000,
    max_held_bytes=5000,
    max_rows=5,
    max_text_bytes=1850,
    batching=Bounds(batch_rows=4, batch_bytes=5000, waiting_rows=6),
    timeout=5.0,
)


class Echo(ExportedModel):
    """Tells what it was asked, when it may; `broken` is an answer of none."""

    def __init__(self):
        self.version = "3"
        self.signature = {"outputs": {"n": {}, "echo": {}}}
        self.tasks = {
            name: {"name": name, "kind": "classification", "texts": [texts]}
            for name, texts in (("one", 1), ("two", 2), ("broken", 1))
        }
        self.may_go = threading.Event()
        self.may_go.set()
        self.rows = []

    def answers(self, rows):
        self.rows += rows
        assert self.may_go.wait(10)
        if any(row.text == b"defect" for row in rows):
            raise RuntimeError("a defect")
        if any(row.task == b"broken" for row in rows):
            raise tf.errors.InvalidArgumentError(None, None, "no number\nat")
        return [
            {"echo": row.text.decode(), "n": len(row.text_b)} for row in rows
        ]


class Running:
    """A server of an application in a thread."""

    def __init__(self, app, **options):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        config = uvicorn.Config(app, log_config=None, **options)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(
            target=self.server.run, args=([self.socket],)
        )
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive(), "the server has ended"
            time.sleep(0.01)

    def close(self):
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()


class Server(Running):
    """A server of a model."""

    def __init__(self, limits=LIMITS, model=None, shelf=None, **options):
        self.model = model or Echo()
        shelf = shelf or ExportedShelf(self.model)
        self.core = RequestCore("tiny", shelf, limits)
        self.rest = RestServer(self.core, **options)
        protocol = partial(PatientProtocol, patience=60.0)
        super().__init__(self.rest.app, http=protocol)

    def send(self, body, method="POST", path=PREDICT, headers=()):
        """A connection on which a request was sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        text = body if isinstance(body, (str, bytes)) else json.dumps(body)
        connection.request(method, path, text, dict(headers))
        return connection

    def whole(self, *arguments, **options):
        """The code, the headers and the bytes of an answer."""
        with closing(self.send(*arguments, **options)) as connection:
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def ask(self, *arguments, **options):
        """The code and the content of an answer."""
        status, _, content = self.whole(*arguments, **options)
        return status, json.loads(content)

    def get(self, path):
        return self.ask("", "GET", path)

    def post(self, verb, *tasks, **more):
        """The code and the content of an answer to a row for each task."""
        path = f"/v1/models/tiny:{verb}"
        return self.ask({**self.rows(*tasks), **more}, path=path)

    def rows(self, *tasks):
        return {"instances": [{"task": t, "text": "x"} for t in tasks]}

    def answers(self):
        return self.ask(self.rows("one"))[0] == 200

    def wait_for_rows(self, count):
        """Until so many rows were given to the model."""
        wait_for(lambda: len(self.model.rows) >= count)

    def wait_for_metric(self, text):
        """Until `/metrics` tells a text."""
        wait_for(lambda: text in metrics(self))


def metrics(server):
    return server.whole("", "GET", "/metrics")[2]


def one(task="one", **row):
    """A request of a row."""
    return {"instances": [{"task": task, **row}]}


@module_fixture
def server():
    with closing(Server()) as made:
        yield made


@pytest.fixture
def slow():
    """A server whose model waits."""
    with closing(Server()) as made:
        made.model.may_go.clear()
        yield made
        made.model.may_go.set()


def test_rows_and_columns(server):
    instances = [
        {"task": "two", "text": "\u00e9", "text_b": "abc"},
        # An optional member may be null.
        {
            "task": "one",
            "text": {"b64": base64.b64encode(b"cat").decode()},
            "text_b": None,
            "choices": None,
        },
    ]
    expected = [{"echo": "\u00e9", "n": 3}, {"echo": "cat", "n": 0}]
    body = {"instances": instances, "signature_name": "serving_default"}
    assert server.ask(body) == (200, {"predictions": expected})
    path = "/v1/models/tiny/versions/3:predict"
    answer = server.ask({"instances": instances}, path=path)
    assert answer == (200, {"predictions": expected})
    columns = {"task": ["two", "one"], "text": ["\u00e9", "cat"]}
    columns.update(text_b=["abc", None], choices=[None, None])
    answer = server.ask({"inputs": columns})
    assert answer == (
        200,
        {"outputs": {"echo": ["\u00e9", "cat"], "n": [3, 0]}},
    )
    assert server.ask({"instances": []}) == (200, {"predictions": []})
    # Columns without rows keep their names.
    answer = server.ask({"inputs": {"task": [], "text": []}})
    assert answer == (200, {"outputs": {"echo": [], "n": []}})


def test_a_request_is_answered_by_one_adapter():
    """Tasks that change while its rows are accepted are read again."""

    class Replaced(ExportedShelf):
        accepted = 0

        def accept(self, row, kind="answer"):
            question = super().accept(row, kind)
            self.accepted += 1
            if self.accepted == 1:
                self._model.tasks = deepcopy(self._model.tasks)
            return question

    shelf = Replaced(Echo())
    row = Row(b"a", b"", b"one", ())
    questions = RequestCore("tiny", shelf, LIMITS).accept([row, row])
    assert [one.of is shelf.tasks["one"] for one in questions] == [True, True]
    assert shelf.accepted == 4


@pytest.mark.parametrize("text", ["YQ==", "YQ=", "YQ", "YWI", "YWJj"])
def test_base64_may_lack_its_padding(server, text):
    _, answer = server.ask(one(text={"b64": text}))
    expected = base64.b64decode(text + "==").decode()
    assert answer["predictions"][0]["echo"] == expected


def test_what_is_served(server):
    code, content = server.get("/v1/models/tiny")
    [status] = content["model_version_status"]
    assert (code, status["version"], status["state"]) == (200, "3", "AVAILABLE")
    assert server.get("/v1/models/tiny/versions/3") == (
        code,
        content,
    )
    code, content = server.get("/v1/models/tiny/metadata")
    assert (code, content["model_spec"]["version"]) == (200, "3")
    signatures = content["metadata"]["signature_def"]["signature_def"]
    assert signatures["serving_default"] == server.model.signature


def test_another_model_or_version_is_not_there(server):
    for path, message in (
        ("nobody", "no model 'nobody'; there is 'tiny'"),
        ("tiny/versions/x", "no version x of 'tiny'; there is 3"),
    ):
        path = f"/v1/models/{path}:predict"
        answer = server.ask(server.rows("one"), path=path)
        assert answer == (404, {"error": message})


@pytest.mark.parametrize(
    "path, method, code",
    [
        ("/v1/models/tiny/versions/4", "GET", 404),
        ("/v1/models/other/metadata", "GET", 404),
        ("/v1/nothing", "GET", 404),
        # No redirect, whose address a client could choose by its `Host`.
        ("/tasks/", "GET", 404),
        (f"{PREDICT}/", "POST", 404),
        ("/", "POST", 405),
        (PREDICT, "PUT", 405),
        ("/metrics", "POST", 405),
        ("/healthz", "POST", 405),
        ("/admin/models", "GET", 404),
        ("/admin/reload", "POST", 404),
    ],
)
def test_what_is_not_there(server, path, method, code):
    status, body = server.ask(server.rows("one"), method, path)
    assert status == code and list(body) == ["error"]


@pytest.mark.parametrize(
    "body, message",
    [
        ("[" * 1900, "the body is not JSON"),
        ("[]", "the body is not a JSON object"),
        ('{"instances": [], "instances": []}', "twice among 'instances'"),
        ('{"instances": [{"task": "one", "text": "", "text": "b"}]}', "'text'"),
        ({}, 'expected either "instances" or "inputs"'),
        ({"instances": [], "inputs": {}}, "expected either"),
        ({"instances": [], "other": 1}, "the body has an unknown 'other'"),
        ({"instances": {}}, '"instances" is no list'),
        ({"instances": [1]}, "row 1 is no object"),
        ({"inputs": []}, '"inputs" is no object of lists'),
        ({"inputs": {"task": "one"}}, '"inputs" is no object of lists'),
        ({"inputs": {}}, "not equally long"),
        ({"inputs": {"task": ["one"], "text": []}}, "not equally long"),
        ({"instances": [], "signature_name": "eval"}, "unknown signature_name"),
        (one(), "row 1: text is missing"),
        ({"instances": [{"text": "a"}]}, "row 1: task is missing"),
        (one(text=["a"]), "one reads texts, but text is a list"),
        (one(text=["a", 1]), "row 1: a word of text is no text"),
        (one(text="a", choices="b"), "row 1: choices is no list"),
        (one(text="a", choices=[1]), "row 1: a choice is no text"),
        (one(text="a", choices=["b"]), "the task one has no choic"),
        (
            one(text="a", choices=["x" * 900] * 2 + ["x" * 51]),
            "row 1: choices has 1851 bytes, of at most 1850",
        ),
        (one(text=1), "row 1: text is no text"),
        (one(text={"b64": "?"}), "row 1: text is no base64"),
        (one(text={"b64": "YWJjZ"}), "row 1: text is no base64"),
        (one(text={"b64": 1}), "row 1: text is no base64"),
        (one(text="\ud800"), "row 1: text holds half a character"),
        (
            one(text="a", txt="b"),
            "row 1 has an unknown 'txt'; expected text, text_b, task, choices",
        ),
        (
            one(task="nobody", text="a"),
            "row 1: unknown task nobody; there are: one, two, broken",
        ),
        (
            one(text="a", text_b="b"),
            "row 1: the task one reads one text, but text_b is not empty",
        ),
        ({"instances": [{}] * 6}, "6 rows, of at most 5"),
        (
            one(task="two", text="a", text_b="x" * 1851),
            "row 1: text_b has 1851 bytes, of at most 1850",
        ),
        ("x" * 2001, "more than 2000 bytes"),
        (one(task="broken", text="a"), "no number"),
    ],
)
def test_what_is_asked_wrongly(server, body, message):
    code, content = server.ask(body)
    assert code == (413 if "2000" in message else 400)
    assert list(content) == ["error"]
    assert message in content["error"] and "\n" not in content["error"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.text()
    | st.sampled_from(["instances", "inputs", "text", "task", "b64"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                "instances inputs text text_b choices task b64".split()
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@hypothesis.settings(max_examples=300)
@hypothesis.given(JSON.map(json.dumps).map(str.encode) | st.binary())
def test_any_body_is_read_or_refused(body):
    try:
        rows, _, _ = read_rows(body, 5)
    except Refused as refused:
        assert refused.status_code == 400 and refused.detail
    else:
        texts = tf.nest.flatten([tuple(row) for row in rows])
        assert all(isinstance(text, bytes) for text in texts)


GZIP = {"Content-Encoding": "gzip"}


def test_bodies_may_be_gzip(server):
    row = one(text="cat " * 400)
    packed = compress(json.dumps(row).encode())
    expected = (200, {"predictions": [{"echo": "cat " * 400, "n": 0}]})
    assert server.ask(packed, headers=GZIP) == expected
    plain = json.dumps(row)
    assert server.ask(plain, headers={"Content-Encoding": "identity"}) == (
        expected
    )
    status, headers, content = server.whole(
        plain, headers={"Accept-Encoding": "gzip"}
    )
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert json.loads(decompress(content)) == expected[1]
    assert server.whole(plain)[1]["Content-Encoding"] is None


WHOLE = compress(b'{"instances": []}')


@pytest.mark.parametrize(
    "body, code, message",
    [
        (b"no gzip", 400, "the body is not gzip: "),
        (b"", 400, "the gzip of the body is cut off"),
        (WHOLE[:-1], 400, "the gzip of the body is cut off"),
        (WHOLE[:-5] + b"12345", 400, "the body is not gzip: "),
        (WHOLE + b"x", 400, "the body goes on behind the end of its gzip"),
        (compress(b"["), 400, "the body is not JSON"),
        # A thousand times as long when it is unpacked.
        (compress(b" " * 10**6), 413, "more than 2000 bytes"),
        (compress(b" " * 2000), 400, "the body is not JSON"),
        # Much that unpacks to nothing.
        (compress(b"", 0) * 80, 400, "the body goes on behind the end"),
    ],
)
def test_gzip_that_is_refused(server, body, code, message):
    status, content = server.ask(body, headers=GZIP)
    assert status == code and message in content["error"]
    assert server.answers()


def test_other_encodings_are_refused(server):
    status, headers, _ = server.whole(b"", headers={"Content-Encoding": "br"})
    assert (status, headers["Accept-Encoding"]) == (415, "gzip")


def test_get_of_what_is_asked_by_post(server):
    status, headers, content = server.whole("", "GET")
    assert (status, headers["Allow"]) == (405, "POST")
    error = json.loads(content)["error"]
    assert PREDICT in error and "use POST" in error


ORIGIN, ALLOWED = "https://a.example", "Access-Control-Allow-Origin"


def test_pages_of_some_origins_may_ask():
    asking = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    asking["Access-Control-Request-Headers"] = "content-type"
    with closing(Server(origins=[ORIGIN])) as server:
        status, headers, _ = server.whole("", "OPTIONS", headers=asking)
        assert (status, headers[ALLOWED]) == (200, ORIGIN)
        for origin, allowed in (ORIGIN, ORIGIN), ("https://b.example", None):
            body, sent = server.rows("one"), {"Origin": origin}
            assert server.whole(body, headers=sent)[1][ALLOWED] == allowed


def test_no_other_origin_may_ask_by_default(server):
    body, sent = server.rows("one"), {"Origin": ORIGIN}
    assert server.whole(body, headers=sent)[1][ALLOWED] is None


def test_health_and_readiness():
    with closing(Server()) as server:
        for path, status in ("/healthz", "alive"), ("/readyz", "ready"):
            answer = server.get(path)
            assert answer == (200, {"status": status})
        server.core.is_ending = True
        assert server.get("/healthz")[0] == 200
        answer = server.get("/readyz")
        assert answer == (503, {"error": "the server is ending"})
        # Whoever asks still is answered.
        assert server.answers()
        server.core.is_ending = False
        server.model.tasks.clear()
        answer = server.get("/readyz")
        assert answer == (503, {"error": "no task is there to answer"})


def test_a_defect_is_told_as_json(server):
    defect = one(text="defect")
    assert server.ask(defect) == (500, {"error": "the server has failed"})
    assert b'requests_total{code="500"}' in metrics(server)
    assert server.answers()


def test_too_many_bodies_are_refused(slow):
    big = one(text="x" * 1800)
    held = [slow.send(big) for _ in range(2)]
    slow.wait_for_rows(1)
    wait_for(lambda: slow.get("/v1/models/tiny")[0] == 200)
    code, content = slow.ask(big)
    assert (code, content["error"]) == (429, "too many requests are being read")
    slow.model.may_go.set()
    assert [c.getresponse().status for c in held] == [200, 200]
    assert slow.ask(big)[0] == 200


def test_too_many_rows_are_refused_until_there_is_room(slow):
    first = slow.send(slow.rows("one"))
    slow.wait_for_rows(1)
    second = slow.send(slow.rows(*["one"] * 5))
    slow.wait_for_metric(b"waiting_rows 6.0")
    with closing(slow.send(slow.rows("one"))) as refused:
        response = refused.getresponse()
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        assert b"6 rows are waiting" in response.read()
    slow.model.may_go.set()
    assert first.getresponse().status == second.getresponse().status == 200
    assert slow.answers()


def test_metrics(server):
    server.ask(server.rows("two", "two"))
    server.ask(server.rows("nobody"))
    text = metrics(server).decode()
    for part in (
        'rows_total{model="tiny",task="two"}',
        'requests_total{code="400"}',
        'task_requests_total{code="200",model="tiny",task="two"}',
        *("request_seconds_count", "batch_rows_bucket", "waiting_rows"),
        "adapters 3.0",
    ):
        assert f"adapter_bert_{part}" in text
    assert "nobody" not in text and "process_resident_memory_bytes" in text
    path = "/monitoring/prometheus/metrics"
    _, headers, content = server.whole("", "GET", path)
    assert headers["Content-Type"].startswith("text/plain")
    assert b'adapter_bert_rows_total{model="tiny",task="two"}' in content


def test_metrics_of_a_task_end_with_the_task():
    with closing(Server()) as server:
        for task in ("one", "two", "broken"):
            server.ask(server.rows(task))
        del server.model.tasks["two"], server.model.tasks["broken"]
        text = metrics(server)
        assert b'task="one"' in text and b"adapter_bert_adapters 1.0" in text
        assert b'task="two"' not in text and b'task="broken"' not in text


def test_clients_that_go_away_are_not_computed(slow):
    first = slow.send(slow.rows("one"))
    slow.wait_for_rows(1)
    gone = [slow.send(slow.rows("two")) for _ in range(3)]
    slow.wait_for_metric(b"waiting_rows 4.0")
    for connection in gone:
        connection.close()
    slow.wait_for_metric(b'code="499"} 3.0')
    slow.model.may_go.set()
    assert first.getresponse().status == 200
    assert [row.task for row in slow.model.rows] == [b"one"]


def test_what_was_accepted_is_answered_before_the_end(slow):
    held = [slow.send(slow.rows("one")) for _ in range(3)]
    slow.wait_for_rows(1)
    slow.wait_for_metric(b"waiting_rows 3.0")
    slow.server.should_exit = True
    with pytest.raises(OSError):
        wait_for(lambda: not slow.get("/v1/models/tiny"))
    slow.model.may_go.set()
    assert [c.getresponse().status for c in held] == [200] * 3


def test_no_answer_in_time():
    with closing(Server(replace(LIMITS, timeout=0.2))) as server:
        server.model.may_go.clear()
        answer = server.ask(server.rows("one"))
        assert answer == (504, {"error": "no answer within 0.2 seconds"})
        server.model.may_go.set()
        assert server.answers()


PATIENCE = 0.5
# More than the system keeps for a client that does not read.
GREAT = b"x" * 50_000_000
REQUEST = b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n"


async def app(scope, receive, send):
    content = GREAT if scope["path"] == "/great" else b"small"
    length = str(len(content)).encode()
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", length)],
        }
    )
    await send({"type": "http.response.body", "body": content})


@module_fixture
def impatient():
    protocol = partial(PatientProtocol, patience=PATIENCE)
    with closing(Running(app, http=protocol, timeout_keep_alive=60)) as made:
        yield made


@pytest.fixture
def connection(impatient):
    with socket.create_connection(("127.0.0.1", impatient.port)) as connection:
        connection.settimeout(10)
        yield connection


def read_to_end(connection):
    """What comes until the connection is closed or reset."""
    content = b""
    try:
        while True:
            part = connection.recv(2**16)
            if not part:
                return content
            content += part
    except ConnectionResetError:
        return content


def test_a_client_that_says_nothing(connection):
    began = time.monotonic()
    assert read_to_end(connection) == b""
    assert PATIENCE / 2 < time.monotonic() - began < 5


@pytest.mark.parametrize("has_asked", [False, True])
def test_a_client_that_is_slow(connection, has_asked):
    if has_asked:
        connection.sendall(REQUEST % b"small")
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
    for _ in range(100):
        try:
            connection.sendall(b"G")
        except OSError:
            return
        time.sleep(0.1)
    raise AssertionError("the connection is still open")


def test_a_client_that_does_not_read(connection, impatient):
    connections = impatient.server.server_state.connections
    wait_for(lambda: connections)
    connection.sendall(REQUEST % b"great")
    wait_for(lambda: not connections)
    assert len(read_to_end(connection)) < len(GREAT)


CHUNKED = b"POST /%s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"\0nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        # What comes before the bad chunk is a request, which is begun.
        CHUNKED % b"small" + b"zz\r\n",
    ],
)
def test_what_is_no_http_is_refused_as_json(connection, sent, caplog):
    connection.sendall(sent)
    head, _, body = read_to_end(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/json" in head
    assert list(json.loads(body)) == ["error"]
    assert not [log for log in caplog.records if log.levelname == "ERROR"]


def test_what_is_no_http_behind_an_answer_is_the_end(connection, caplog):
    connection.sendall(CHUNKED % b"small")
    assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
    connection.sendall(b"zz\r\n")
    assert b"HTTP" not in read_to_end(connection)
    assert not [log for log in caplog.records if log.levelname == "ERROR"]


def test_a_body_of_two_lengths_is_the_last_of_its_connection(connection):
    """Else a proxy may take what follows for another client's request."""
    length = b"Content-Length: 5\r\nTransfer-Encoding"
    request = CHUNKED.replace(b"Transfer-Encoding", length) % b"small"
    connection.sendall(request + b"0\r\n\r\n" + REQUEST % b"small")
    head, _, body = read_to_end(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"connection: close" in head
    assert body == b"small"


def test_a_client_that_keeps_asking(connection):
    for _ in range(10):
        connection.sendall(REQUEST % b"small")
        answer = b""
        while not answer.endswith(b"small"):
            part = connection.recv(2**16)
            assert part, "the connection was cut off"
            answer += part
        time.sleep(PATIENCE / 4)


@pytest.mark.parametrize(
    "verb, part", [("embed", "--embeddings"), ("explain", "exported models")]
)
def test_what_a_model_cannot_give_is_not_there(server, verb, part):
    status, content = server.post(verb, "one")
    assert status == 404 and part in content["error"]


def test_vectors_and_answers_wait_in_one_queue():
    vector, named = [1.0, 0.5], {"signature_name": "embed"}
    model = Echo()
    model.vector_signature = {"method_name": "vectors"}
    model.vectors = lambda rows: [vector for _ in rows]
    with closing(Server(model=model)) as server:
        status, content = server.post("embed", "none")
        assert (status, content["error"][:6]) == (400, "row 1:")
        embeddings = 200, {"embeddings": [vector] * 2}
        assert server.post("embed", "one", "two") == embeddings
        assert server.post("embed", "one", "two", **named) == embeddings
        # As TensorFlow Serving has it.
        answer = server.post("predict", "one", **named)
        assert answer == (200, {"predictions": [vector]})
        columns = {"inputs": {"task": ["one"], "text": ["x"]}, **named}
        assert server.ask(columns) == (200, {"outputs": [vector]})
        _, content = server.post("answer", "one", **named)
        assert ":embed" in content["error"]
        _, content = server.post("predict", "one", signature_name="vec")
        assert "'serving_default' and 'embed'" in content["error"]
        # Both in one batch.
        model.may_go.clear()
        first = server.send(server.rows("one"))
        server.wait_for_rows(1)
        paths = PREDICT, "/v1/models/tiny:embed"
        others = [server.send(server.rows("one"), path=p) for p in paths]
        model.may_go.set()
        answers = [json.load(c.getresponse()) for c in (first, *others)]
        forms = [form for answer in answers for form in answer]
        assert forms == ["predictions", "predictions", "embeddings"]
        _, content = server.get("/v1/models/tiny/metadata")
        signatures = content["metadata"]["signature_def"]["signature_def"]
        assert list(signatures) == ["serving_default", "embed"]
