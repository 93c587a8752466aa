"""Endpoints of OpenAI's clients and of text-embeddings-inference's."""

import base64
import contextlib
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from conftest import module_fixture, open_bert
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_stand_in import wait_for
from test_http_api import LIMITS, Echo, Server
from tiny_artifacts import make_artifact

from adapter_bert.answering.predictor import Predictor
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.server.client_endpoints import ALIASES
from adapter_bert.server.http_api import read_query, read_rows
from adapter_bert.server.http_guard import Tokens
from adapter_bert.server.live_library import LiveLibrary
from adapter_bert.server.request_core import Refused
from adapter_bert.server.shelf import Question, Shelf
from adapter_bert.tasks import kinds
from adapter_bert.tasks.vectors import Vectors

pytestmark = pytest.mark.newer_stack

KINDS = {
    "search": kinds.VECTORS,
    "mood": kinds.CLASSIFICATION,
    "rank": kinds.RERANK,
}
SCORES = {"good": 0.25, "bad": 0.75}
MOODS = [{"score": SCORES[name], "label": name} for name in ("bad", "good")]
TOKEN = "0123456789abcdef"


class Stand(Shelf):
    """Vectors [3, 4, letters]; scores of documents are their letters."""

    version = "1"
    signatures = {"serving_default": {}, "embed": {}}
    tasks = {name: {"name": name, "kind": kind} for name, kind in KINDS.items()}

    def look(self):
        pass

    def accept(self, row, kind="answer"):
        return Question(row.task.decode(), None, row, kind)

    def compute(self, questions):
        if any(question.row.text == b"defect" for question in questions):
            raise RuntimeError("a defect")
        return [
            [3.0, 4.0, float(len(one.row.text))]
            if one.kind == "embed"
            else {"scores": SCORES, "score": len(one.row.text_b)}
            for one in questions
        ]

    def outputs(self, questions, results):
        return results

    def answer(self, question, result):
        if question.task == "mood":
            # The second text is told by a label.
            return {"scores": {**SCORES, question.row.text_b.decode(): 0.1}}
        return result

    def count_tokens(self, questions):
        return sum(len(question.row.text.split()) for question in questions)


@module_fixture
def server():
    with contextlib.closing(Server(shelf=Stand())) as made:
        yield made


def unit(*vector):
    return (np.array(vector) / np.linalg.norm(vector)).astype(np.float32)


def embeddings(server, **body):
    return server.ask({"model": "search", **body}, path="/v1/embeddings")


def test_no_depth_of_a_body_is_a_failure():
    """Some are read, but are too deep to be written into the refusal."""
    limits = replace(LIMITS, max_body_bytes=10_000)
    with contextlib.closing(Server(limits, shelf=Stand())) as server:
        for depth in range(900, 1000):
            task = "[" * depth + "]" * depth
            body = f'{{"inputs": "x", "task": {task}}}'
            assert server.ask(body, path="/predict")[0] == 400


def test_what_the_openai_package_sends_is_answered(server):
    """Bodies as version 3.57 of the package writes them, letter for letter."""
    body = '{"model":"search","input":"a cat","encoding_format":"base64"}'
    status, answer = server.ask(body, path="/v1/embeddings")
    assert status == 200
    [data] = answer.pop("data")
    values = np.frombuffer(base64.b64decode(data.pop("embedding")), "<f4")
    np.testing.assert_array_equal(values, unit(3, 4, 5))
    assert data == {"object": "embedding", "index": 0}
    assert answer == {
        "object": "list",
        "model": "search",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    body = (
        '{"model":"search","input":["a cat","ein Küken"],"user":"me",'
        '"dimensions":2,"encoding_format":"float"}'
    )
    status, answer = server.ask(body.encode(), path="/v1/embeddings")
    assert [x["index"] for x in answer["data"]] == [0, 1]
    for data in answer["data"]:
        assert data["embedding"] == pytest.approx([0.6, 0.8])
    assert answer["usage"]["total_tokens"] == 4


def test_models_are_tasks_and_tensorflow_serving_keeps_its_path(server):
    status, answer = server.get("/v1/models")
    assert status == 200 and answer["object"] == "list"
    models = {model["id"]: model for model in answer["data"]}
    assert list(models) == list(KINDS)
    status, answer = server.get("/v1/models/mood")
    assert answer == models["mood"] and answer["object"] == "model"
    status, answer = server.get("/v1/models/tiny")
    assert answer["model_version_status"][0]["state"] == "AVAILABLE"
    assert server.get("/v1/models/mood/metadata")[0] == 404
    assert server.get("/v1/models/other")[0] == 404


@pytest.mark.parametrize(
    "path, body, expected",
    [
        (
            "/embed",
            {"inputs": ["a", "bc"], "normalize": False, "truncate": True},
            [[3, 4, 1], [3, 4, 2]],
        ),
        (
            "/embed",
            {
                "inputs": "a",
                "normalize": None,
                "prompt_name": None,
                "truncation_direction": "Right",
            },
            [unit(3, 4, 1).tolist()],
        ),
        ("/embed", {"inputs": "a", "dimensions": 1}, [[1]]),
        (
            "/rerank",
            {"query": "q", "texts": ["a", "abc", "ab"]},
            [
                {"index": 1, "score": 3},
                {"index": 2, "score": 2},
                {"index": 0, "score": 1},
            ],
        ),
        (
            "/rerank",
            {
                "query": "q",
                "texts": ["a", "ab"],
                "return_text": True,
                "raw_scores": False,
                "task": "rank",
            },
            [
                {"index": 1, "text": "ab", "score": 2},
                {"index": 0, "text": "a", "score": 1},
            ],
        ),
        (
            "/predict",
            {"inputs": ["a text", "b"], "truncate": False},
            [*MOODS, {"score": 0.1, "label": "b"}],
        ),
        (
            "/predict",
            {"inputs": [["a"], ["a", "b"]]},
            [[*MOODS, {"score": 0.1, "label": second}] for second in ("", "b")],
        ),
    ],
)
def test_bodies_of_text_embeddings_inference(server, path, body, expected):
    assert server.ask(body, path=path) == (200, expected)


@pytest.mark.parametrize(
    "body, code, part",
    [
        ({"input": [[1, 2]]}, 400, "token ids"),
        ({"input": []}, 400, '"input"'),
        ({"input": "a", "dimensions": 4}, 400, "from 1 to 3"),
        ({"input": "a", "dimensions": True}, 400, "from 1 to 3"),
        ({"input": "a", "dimensions": "\ud800"}, 400, r"\ud800"),
        ({"input": "a", "encoding_format": "int8"}, 400, "float or base64"),
        ({"input": "a", "model": "gpt"}, 404, "'gpt'"),
        ({"input": "a", "inputs": "a"}, 400, "'inputs'"),
        ({"input": ["a"] * 6}, 400, "6 rows, of at most 5"),
        ({"input": "a" * 2000}, 413, "bytes"),
    ],
)
def test_errors_of_embeddings_have_openais_form(server, body, code, part):
    status, answer = embeddings(server, **body)
    error = answer.pop("error")
    assert (status, answer) == (code, {})
    assert error.pop("type") == "invalid_request_error"
    assert part in error.pop("message")
    expected = "model_not_found" if code == 404 else None
    assert error == {"param": None, "code": expected}


@pytest.mark.parametrize(
    "path, change, part",
    [
        ("/embed", {"task": "x"}, "search"),
        ("/embed", {"task": "\ud800"}, r"\ud800"),
        ("/embed", {"normalize": "false"}, "normalize"),
        ("/embed", {"normalize": 0}, "normalize"),
        ("/embed", {"prompt_name": "query"}, "prompt_name"),
        ("/embed", {"truncation_direction": "Left"}, "truncation_direction"),
        ("/rerank", {"texts": []}, "texts"),
        ("/rerank", {"task": "\ud800"}, r"\ud800"),
        ("/rerank", {"task": "mood"}, "mood"),
        ("/rerank", {"raw_scores": True}, "raw_scores"),
        ("/rerank", {"return_text": "false"}, "return_text"),
        ("/predict", {"inputs": None}, "inputs"),
        ("/predict", {"inputs": ["a"] * 3}, "two texts"),
        ("/predict", {"task": "search"}, "no scores of labels"),
        ("/predict", {"truncate": []}, "truncate"),
        ("/predict", "{", "not JSON"),
    ],
)
def test_errors_of_text_embeddings_inference(server, path, change, part):
    query = {"query": "q", "texts": ["a"]}
    body = query if path == "/rerank" else {"inputs": "a"}
    body = change if change == "{" else {**body, **change}
    status, answer = server.ask(body, path=path)
    assert (status, answer.pop("error_type")) == (400, "validation")
    assert part in answer.pop("error") and not answer


def test_a_defect_has_its_form_too(server):
    answer = {"error": "the server has failed", "error_type": "backend"}
    assert server.ask({"inputs": "defect"}, path="/embed") == (500, answer)


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/embeddings", {"model": "search", "input": [""] * 6}),
        ("/embed", {"inputs": [""] * 6}),
        ("/predict", {"inputs": [[""]] * 6}),
    ],
)
def test_rows_are_counted_before_each_gets_an_object(path, body):
    with pytest.raises(Refused, match="6 rows, of at most 5"):
        ALIASES[path].translate(body, Stand(), LIMITS.max_rows)


@pytest.mark.parametrize(
    "path, name",
    [("/rerank", "texts"), ("/v1/models/tiny:rerank", "documents")],
)
def test_a_query_counts_with_each_document(server, path, name):
    """Else a small body would be a minute's work."""
    body = {"query": "q" * 499, name: ["d"] * 4}
    assert server.ask(body, path=path)[0] == 200
    status, answer = server.ask({**body, "query": "q" * 500}, path=path)
    assert status == 413 and "at most 2000" in answer["error"]


def test_an_exported_model_gives_vectors_of_any_task():
    model = Echo()
    model.vector_signature = {"method_name": "vectors"}
    model.vectors = lambda rows: [[3.0, 4.0] for _ in rows]
    vectors = [unit(3, 4).tolist()]
    with contextlib.closing(Server(model=model)) as server:
        status, answer = server.ask({"inputs": "a"}, path="/embed")
        assert status == 400 and "one, two, broken" in answer["error"]
        body = {"inputs": "a", "task": "two"}
        assert server.ask(body, path="/embed") == (200, vectors)
        del model.tasks["two"], model.tasks["broken"]
        assert server.ask({"inputs": "a"}, path="/embed") == (200, vectors)


class SlowCount(Stand):
    """Counts tokens when it may."""

    def __init__(self):
        self.may_go = threading.Event()
        self.counting = 0

    def count_tokens(self, questions):
        self.counting += 1
        assert self.may_go.wait(10)
        return 1


def test_a_request_is_held_while_its_tokens_are_counted():
    shelf = SlowCount()
    with contextlib.closing(Server(shelf=shelf)) as server:
        path = "/v1/embeddings"
        big = {"model": "search", "input": "x" * 1800}
        sent = [server.send(big, path=path) for _ in range(2)]
        wait_for(lambda: shelf.counting == 2)
        assert server.ask(big, path=path)[0] == 429
        shelf.may_go.set()
        assert [one.getresponse().status for one in sent] == [200, 200]


def test_tokens_are_counted_in_time():
    shelf = SlowCount()
    limits = replace(LIMITS, timeout=0.5)
    with contextlib.closing(Server(limits, shelf=shelf)) as server:
        assert embeddings(server, input="a")[0] == 504
        shelf.may_go.set()
        assert shelf.counting == 1


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda some: (
        st.lists(some, max_size=3)
        | st.dictionaries(st.text(max_size=3), some, max_size=2)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("path", ALIASES)
@settings(max_examples=50)
@given(st.data())
def test_any_body_is_read_or_refused(path, data):
    alias = ALIASES[path]
    texts = st.lists(st.text(max_size=3), min_size=1, max_size=2)
    body = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                name: ANY_JSON | texts | st.sampled_from([*KINDS])
                for name in alias.members
            },
        )
    )
    with contextlib.suppress(Refused):
        native = alias.translate(body, Stand(), LIMITS.max_rows)
        with contextlib.suppress(Refused):
            if alias.verb == kinds.RERANK:
                read_query(json.dumps(native).encode(), LIMITS, Stand.tasks)
            else:
                rows, *_ = read_rows(json.dumps(native).encode(), 9)
                assert {row.task.decode() for row in rows} <= KINDS.keys()


def test_unknown_and_busy_tokens_are_told_in_each_form():
    made = Server(shelf=Stand(), tokens=Tokens([TOKEN], 1))
    with contextlib.closing(made) as server:
        status, answer = embeddings(server, input="a")
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        ask = {"headers": {"Authorization": f"Bearer {TOKEN}"}}
        assert server.ask({"inputs": "a"}, path="/embed", **ask)[0] == 200
        status, answer = server.ask({"inputs": "a"}, path="/embed", **ask)
        assert (status, answer["error_type"]) == (429, "overloaded")
        status, answer = server.ask({}, path="/v1/embeddings", **ask)
        assert answer["error"]["code"] == "rate_limit_exceeded"


def test_a_library_gives_its_vectors_and_counts_its_tokens(tiny_bert, tmp_path):
    task = Vectors(prompt="a: ")
    described = {"name": "vectors", **task.describe()}
    method = "lora(rank=2)"
    make_artifact(tmp_path / "adapter", tiny_bert, method, task, described)
    adapters = AdapterLibrary(str(tmp_path / "shelf"), create=True)
    adapters.add(str(tmp_path / "adapter"), "search")
    library = LiveLibrary(adapters, Predictor(open_bert(tiny_bert)))
    with contextlib.closing(Server(shelf=library)) as server:
        status, answer = embeddings(server, input=["a cat", "a"])
        rows = [{"task": "search", "text": text} for text in ("a cat", "a")]
        _, native = server.ask(
            {"instances": rows}, path="/v1/models/tiny:embed"
        )
    assert status == 200, json.dumps(answer)
    for data, vector in zip(answer["data"], native["embeddings"]):
        np.testing.assert_allclose(data["embedding"], unit(*vector), atol=1e-6)
    loaded = library._tasks["search"].loaded
    read = loaded.tokenizer.encode_ids(["a: a cat", "a: a"])
    assert answer["usage"]["prompt_tokens"] == 4 + sum(map(len, read))
