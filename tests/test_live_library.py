"""A served library: tasks come, change and go while rows are answered."""

import errno
import json
import os
import shutil
from contextlib import closing
from threading import Event

import pytest
import refusals
from conftest import read_adapter_config
from exported_models import request
from google.protobuf import json_format
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from test_http_api import Server, metrics
from test_joint_answers import MIXED, assert_equal
from tiny_artifacts import make_artifact, run_while_changing

from adapter_bert import files
from adapter_bert.answering.answers import from_outputs
from adapter_bert.answering.predictor import Predictor
from adapter_bert.answering.task_tables import MixedBert
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.errors import UserError
from adapter_bert.graph.exported import SIGNATURE
from adapter_bert.server import http_api
from adapter_bert.server.live_library import LiveLibrary

pytestmark = pytest.mark.newer_stack

CHOICES = {"name": "custom", "choices": 2, "pairs": False}
# Tasks of every kind, a method that is computed alone among them.
KINDS = {
    **{
        name: MIXED[name]
        for name in ("small", "pair", "score", "sets", "squad", "tags", "whole")
    },
    "choice": ("lora(rank=4)", CHOICES, [("a cat", "sat", "a dog ran")]),
}


@pytest.fixture
def add(tiny_bert, shelf, tmp_path):
    """Writes an adapter of a name into the library."""

    def write(name, like="small", seed=0):
        method, description, _ = KINDS[like]
        folder = tmp_path / "made" / f"{name}-{seed}"
        if folder.exists():
            shelf.add(str(folder), name)
            return
        more = {}
        if like == "choice":
            more["task_settings"] = {"columns": ["text", "one", "two"]}
        make_artifact(
            folder, tiny_bert, method, None, description, seed, **more
        )
        shelf.add(str(folder), name)

    return write


@pytest.fixture
def live(bert, shelf):
    return LiveLibrary(shelf, Predictor(bert, batch_size=4))


def asked(name, texts):
    """A row of a request, of a task like the one of this name in `KINDS`."""
    texts = texts if isinstance(texts, (tuple, list)) else (texts,)
    if isinstance(texts, list):
        return request(name.encode(), tuple(x.encode() for x in texts))
    text, *others = (x.encode() for x in texts)
    if name == "choice":
        return request(name.encode(), text, choices=tuple(others))
    return request(name.encode(), text, *others)


def ask(live, *rows):
    """The answers and the outputs of rows."""
    questions = [live.accept(row) for row in rows]
    results = live.compute(questions)
    answers = list(map(live.answer, questions, results))
    return answers, live.outputs(questions, results)


@pytest.mark.gate
def test_outputs_of_every_kind_are_its_answers(add, live):
    for name in KINDS:
        add(name, name)
    live.look()
    rows = [
        asked(name, row)
        for name, (_, _, texts) in KINDS.items()
        for row in texts
    ]
    answers, outputs = ask(live, *rows)
    assert len({tuple(one) for one in outputs}) == 1
    assert set(outputs[0]) == set(live.signatures[SIGNATURE]["outputs"])
    widths = {
        tuple(len(one[n]) for n in ("labels", "scores")) for one in outputs
    }
    assert widths == {(4, 4)}
    for row, answer, one in zip(rows, answers, outputs):
        description = live.tasks[row.task.decode()]
        assert answer.pop("adapter") == one["adapter"] == description["adapter"]
        assert_equal(from_outputs(description, one), answer)


def test_tasks_come_change_and_go(add, shelf, live):
    assert live.tasks == {}
    refusals.check(
        lambda: live.accept(request(b"one", b"a")),
        "unknown task one; there are: none",
    )
    add("one")
    live.look()
    ((first,), _) = ask(live, request(b"one", b"a cat"))
    before = live.accept(request(b"one", b"a cat"))
    shelf.remove("one")
    live.look()
    assert ask(live, request(b"one", b"a cat"))[0] == [first]
    add("one", seed=1)
    live.look()
    ((second,), _) = ask(live, request(b"one", b"a cat"))
    assert first.adapter != second.adapter == live.tasks["one"]["adapter"]
    assert first.scores != second.scores
    shelf.remove("one")
    live.look()
    assert list(live.tasks) == ["one"]
    live.look()
    assert live.tasks == {}
    refusals.check(
        lambda: live.accept(request(b"one", b"a cat")), "unknown task one"
    )
    # It was accepted while the first adapter was there.
    [result] = live.compute([before])
    assert_equal(live.answer(before, result), first)
    assert live.outputs([before], [result])[0]["labels"] == ["bad", "good"]


def test_what_is_damaged_is_left_out_until_it_is_whole(
    add, shelf, live, tmp_path, caplog
):
    add("one")
    add("two", "pair")
    weights = tmp_path / "shelf" / "one" / "adapter.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    for _ in range(2):
        live.look()
    assert list(live.tasks) == ["two"]
    [message] = [x for x in caplog.messages if "one is left out" in x]
    assert f"{weights} is damaged" in message
    weights.write_bytes(content)
    live.look()
    assert set(live.tasks) == {"one", "two"}
    # A damaged one does not take the place of a whole one.
    weights.write_bytes(content[:-1])
    live.look()
    ((answer,), _) = ask(live, request(b"one", b"a cat"))
    assert answer.adapter == live.tasks["one"]["adapter"]


@pytest.mark.parametrize("way", ["unmounted", "without rights"])
def test_a_disk_that_goes_away_takes_no_task(add, shelf, live, plain_user, way):
    add("one")
    live.look()
    if way == "unmounted":
        os.rename(shelf.path, f"{shelf.path}.mounted")
        os.mkdir(shelf.path)
        message = f"the library {shelf.path} is empty, without .lock too"
    else:
        os.chmod(shelf.path, 0o444)
        message = f"cannot read {shelf.path}/one: Permission denied"
    assert plain_user(live.look).startswith(message)
    assert list(live.tasks) == ["one"]
    if way == "unmounted":
        os.rmdir(shelf.path)
        os.rename(f"{shelf.path}.mounted", shelf.path)
    else:
        os.chmod(shelf.path, 0o755)
    # What is removed goes, the last one too.
    shelf.remove("one")
    live.look()
    assert list(live.tasks) == ["one"]
    live.look()
    assert live.tasks == {}


def test_a_failed_read_is_tried_again(add, live, monkeypatch, caplog):
    def fail(path, *how):
        if path.endswith(adapter_artifact.WEIGHTS_FILE):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open(path, *how)

    add("one")
    monkeypatch.setattr(files, "open", fail, raising=False)
    for _ in range(2):
        live.look()
    assert list(live.left_out) == ["one"] and live.tasks == {}
    assert caplog.text.count("Input/output error") == 1
    monkeypatch.undo()
    live.look()
    assert live.left_out == {} and list(live.tasks) == ["one"]


def test_a_defect_of_one_adapter_keeps_no_other_away(
    add, live, monkeypatch, caplog
):
    whole = live._warm_up

    def warm_up(loaded, folder):
        if folder.endswith("one"):
            raise MemoryError
        whole(loaded, folder)

    monkeypatch.setattr(live, "_warm_up", warm_up)
    add("one")
    add("two", "pair")
    for _ in range(2):
        live.look()
    assert list(live.tasks) == ["two"]
    assert live.left_out == {"one": "MemoryError"}
    assert caplog.text.count("Traceback") == 1


def test_a_part_may_come_later(tiny_bert, shelf, live, tmp_path, add):
    add("lies")
    config = read_adapter_config(shelf.folder("lies"))
    make_artifact(
        tmp_path / "made" / "whole",
        tiny_bert,
        "stack({'lies': houlsby(size=3)}, houlsby(size=3))",
        carries_parts=False,
        parts={"lies": config["sha256"]},
    )
    shelf.add(str(tmp_path / "made" / "whole"), "joined")
    shelf.remove("lies", force=True)
    live.look()
    assert live.tasks == {}
    add("lies")
    # Its name comes before the one's that it is a part of, or after.
    live.look()
    live.look()
    assert set(live.tasks) == {"joined", "lies"}


def test_the_signature_is_tensorflows(live):
    [described] = live.signatures.values()
    signature = json_format.ParseDict(described, meta_graph_pb2.SignatureDef())
    assert set(signature.inputs) == {"task", "text", "text_b", "choices"}
    axes = {
        name: [dim.size for dim in info.tensor_shape.dim]
        for name, info in signature.outputs.items()
    }
    assert axes["label"] == [-1] and axes["scores"] == [-1, -1]
    assert signature.outputs["start"].dtype == types_pb2.DT_INT32


def test_rows_that_a_task_does_not_read(add, live):
    """tests/test_exported_kinds.py has others."""
    add("small")
    live.look()
    for row, message in (
        (request(b"small", b"a", b"b"), "small .* text_b"),
        (request(b"small", (b"a",)), "small: .* list"),
    ):
        with pytest.raises(UserError, match=message):
            live.accept(row)


def test_bytes_that_are_no_text_are_left_out(add, live):
    add("small")
    live.look()
    (first, second), _ = ask(
        live, request(b"small", b"a\xff cat"), request(b"small", b"a cat")
    )
    assert_equal(first, second)


def test_no_request_waits_for_the_graph_of_a_new_kind(add, live, monkeypatch):
    """While one thread traces it, others compute with the graph before."""
    add("small")
    add("pair", "pair")
    live.look()
    both = [request(b"small", b"a cat"), request(b"pair", b"a", b"b")]
    expected, _ = ask(live, *both)
    make, meanwhile = MixedBert._make_function, []

    class Traced:
        def __init__(self, function):
            self._function = function

        def get_concrete_function(self):
            if not meanwhile:
                meanwhile.append(None)
                meanwhile[:] = ask(live, *both)[:1]
            return self._function.get_concrete_function()

    monkeypatch.setattr(
        MixedBert, "_make_function", lambda self: Traced(make(self))
    )
    add("score", "score")
    live.look()
    assert len(meanwhile) == 1
    for answers in (meanwhile[0], ask(live, *both)[0]):
        for one, other in zip(answers, expected):
            assert_equal(one, other)
    assert "score" in live.tasks


@pytest.mark.gate
def test_answers_while_tasks_come_and_go(add, shelf, live, tmp_path):
    """Each answer is of the adapter whose hash it tells."""
    rows = [request(b"one", text) for text in (b"a cat", b"a dog sat .")]
    expected = {}
    for seed in range(2):
        add("one", seed=seed)
        add("two", "score", seed=seed)
        live.look()
        answers, _ = ask(live, *rows)
        expected[answers[0].adapter] = answers
        shutil.copytree(shelf.folder("one"), tmp_path / f"one{seed}")
        shelf.remove("one")
        shelf.remove("two")
    assert len(expected) == 2
    add("two", "score")

    def change(number):
        if "one" in shelf.names():
            shelf.remove("one")
        else:
            shelf.add(str(tmp_path / f"one{number // 2 % 2}"), "one")
        live.look()

    counts = []

    def work():
        answered = refused = 0
        while answered < 40:
            try:
                questions = list(map(live.accept, rows))
            except UserError:
                refused += 1
                continue
            results = live.compute(questions)
            for n, (question, result) in enumerate(zip(questions, results)):
                answer = live.answer(question, result)
                assert_equal(answer, expected[answer.adapter][n])
            answered += 1
        counts.append(answered)

    run_while_changing(change, [work, work])
    assert counts == [40, 40]


@pytest.mark.gate
def test_answers_are_explained(add, bert, shelf):
    """Over HTTP next to `:answer`; other kinds are refused one by one."""
    add("small")
    add("tags", "tags")
    live = LiveLibrary(shelf, Predictor(bert))
    assert live.explained() == ["small"]
    # A request is answered in seconds, and may not wait for a graph.
    predictor = Predictor(bert)
    predictor.add(shelf.folder("small"), "small")
    expected = predictor("small", "x", explains=True).explanation
    with closing(Server(shelf=live)) as server:
        _, plain = server.post("answer", "small")
        status, content = server.post("explain", "small")
        assert status == 200
        [answer] = content["answers"]
        assert answer.pop("explanation") == expected
        assert [answer] == plain["answers"]
        status, content = server.post("explain", "tags")
        assert status == 400 and "row 1: " in content["error"]
        assert "the task tags" in content["error"]
        _, tasks = server.get("/tasks")
        assert tasks["explained"] == ["small"]
        # Tasks are listed once, and rows are explained one by one.
        listed, batches, compute = [], [], live.compute
        live.explained = lambda: listed.append(1) or ["small"]
        live.compute = lambda some: batches.append(len(some)) or compute(some)
        assert server.post("explain", *["small"] * 3)[0] == 200
        assert listed == [1] and batches == [1, 1, 1]


def test_empty_words_count_as_those_that_rows_are_filled_up_to(
    add, live, monkeypatch
):
    add("tags", "tags")
    live.look()
    monkeypatch.setattr(http_api, "MOST_WORDS", 3)
    texts = ["a"], ["a", *[""] * 4]
    rows = [{"task": "tags", "text": words} for words in texts]
    with closing(Server(shelf=live)) as server:
        code, answer = server.ask({"instances": rows})
        assert code == 413 and "up to 5 words" in answer["error"]
        assert server.ask({"instances": rows[1:]})[0] == 200


def test_no_answer_waits_for_an_explanation(add, live):
    """Its graph is traced at first use, which takes seconds."""
    add("small")
    live.look()
    begun, may_go, compute = Event(), Event(), live.compute

    def wait(questions):
        if questions[0].kind == "explain":
            begun.set()
            assert may_go.wait(10)
        return compute([one._replace(kind="answer") for one in questions])

    live.compute = wait
    with closing(Server(shelf=live)) as server:
        path, rows = "/v1/models/tiny:explain", server.rows("small")
        try:
            explaining = server.send(rows, path=path)
            assert begun.wait(10)
            _, plain = server.post("answer", "small")
            assert b"adapter_bert_waiting_rows 1.0" in metrics(server)
        finally:
            may_go.set()
        with closing(explaining):
            assert json.load(explaining.getresponse()) == plain
