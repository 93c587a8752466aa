"""Malformed requests over the wire: what is drawn, and what is a defect."""

import gzip
import json
import sys
from collections import Counter

import pytest

from adapter_bert.errors import UserError
from lab.trials import wire

pytestmark = pytest.mark.newer_stack

DRAWN = [wire.request_of(1, number) for number in range(2000)]


def test_requests_are_the_same_each_time_and_differ():
    assert DRAWN[:300] == [wire.request_of(1, n) for n in range(300)]
    assert DRAWN[0] != wire.request_of(2, 0)
    assert len({one.parts for one in DRAWN}) > 0.95 * len(DRAWN)
    counts = Counter(one.kind for one in DRAWN)
    assert {*counts} == {*wire.KINDS} and min(counts.values()) > 100


def test_a_right_request_is_whole():
    for one in DRAWN:
        if one.kind == "token":
            head, _, body = b"".join(one.parts).partition(b"\r\n\r\n")
            length = f"Content-Length: {len(body)}".encode()
            assert head.startswith(b"POST ") and length in head
            assert json.loads(body).keys() & {"instances", "inputs"}


def test_who_has_one_answer_is_followed_by_another_request():
    kinds = {one.kind for one in DRAWN if one.is_framed}
    assert kinds == {"body", "gzip", "token", wire.SLOW}
    for one in DRAWN:
        if one.kind == wire.SLOW:
            assert len(one.parts) > 1 and all(one.parts) and one.pause > 0
        else:
            assert len(one.parts) == 1 and not one.pause
        if one.kind == wire.TWO:
            assert one.parts[0].startswith(b"GET /tasks HTTP/1.1\r\n")
        # A line of the header that breaks off would be another request's.
        if one.is_framed and one.kind == "token":
            lines = one.parts[0].partition(b"\r\n\r\n")[0].split(b"\r\n")
            assert all(b": " in line for line in lines[1:])


def test_a_bomb_is_small_on_the_wire():
    assert len(wire.BOMB) < 10**6
    assert len(gzip.decompress(wire.BOMB)) == 10**8
    assert any(wire.BOMB in one.parts[0] for one in DRAWN)


REFUSAL = b'{"error":"no"}'


@pytest.mark.parametrize(
    "code, content, fault",
    [
        (200, b"anything", ""),
        (400, REFUSAL, ""),
        (429, REFUSAL + b"\n", ""),
        (500, REFUSAL, "the code 500"),
        (307, b"", "the code 307"),
        (101, b"", "the code 101"),
        (400, b"Invalid HTTP request", "400 without a line of JSON"),
        (404, b'{"error":\n"no"}', "404 without a line of JSON"),
        (404, b'{"detail": "no"}', "404 without a line of JSON"),
        (404, b"[1]", "404 without a line of JSON"),
    ],
)
def test_what_is_a_defect(code, content, fault):
    assert wire.judge(code, content).startswith(fault)
    assert bool(wire.judge(code, content)) == bool(fault)
    if code == 404:
        assert not wire.judge(code, b"", "HEAD")
    refused = wire.judge(code, content, may_succeed=False)
    assert bool(refused) == (bool(fault) or code == 200)


def test_what_can_only_be_refused_is_known():
    def is_right(one):
        return f"Bearer {wire.TOKEN}\r\n".encode() in b"".join(one.parts)

    by_kind = {
        kind: [one for one in DRAWN if one.kind == kind] for kind in wire.SINGLE
    }
    assert all(one.may_succeed for one in by_kind["body"])
    assert {one.may_succeed for one in by_kind["gzip"]} == {True, False}
    wrong = [one for one in by_kind["token"] if not one.may_succeed]
    assert wrong and not any(map(is_right, wrong))


@pytest.mark.parametrize(
    "found, expected",
    [
        ({"label": "a", "scores": {"a": 0.500001}}, True),
        ({"label": "a", "scores": {"a": 0.51}}, False),
        ({"label": "b", "scores": {"a": 0.5}}, False),
        ({"label": "a"}, False),
    ],
)
def test_answers_are_compared_by_words_and_numbers(found, expected):
    right = {"label": "a", "scores": {"a": 0.5}}
    assert wire.is_same(found, right) is expected


class FakeServer:
    """A server's process, as it ends."""

    def __init__(self, memory=100.0, log="", is_alive=True):
        self.memory, self.text, self.is_alive = memory, log, is_alive
        self.port = 0

    def memory_mb(self):
        return self.memory

    def log(self):
        return self.text


@pytest.mark.parametrize(
    "end, fault",
    [
        ({}, ""),
        ({"memory": 10000.0}, "memory grew from 100.0 to 10000.0"),
        ({"log": "a\nTraceback (most\n"}, "the log has Traceback (most"),
        ({"is_alive": False}, "the server has ended"),
    ],
)
def test_how_a_server_may_end(end, fault):
    server = FakeServer()
    trial = wire.Trial(server, 1, 10)
    server.__init__(**end)
    trial.check_server()
    assert [why.startswith(fault) for _, why in trial.faults] == (
        [True] if fault else []
    )


def test_ends_are_counted_by_kind():
    trial = wire.Trial(FakeServer(), 1, 10)
    framed = wire.Wire("body", "POST", (b"a",))
    trial.count(1, framed, [(400, REFUSAL)])
    trial.count(2, framed, [(500, REFUSAL)])
    trial.count(3, framed, [])
    open_ended = wire.Wire("half", "POST", (b"a",), is_framed=False)
    trial.count(4, open_ended, [])
    assert trial.faults == [(2, "body: the code 500"), (3, "body: no answer")]
    header, *rows = wire.rows_of(trial.ends)
    assert header == ["kind", "requests", "400", "500", "none"]
    assert ["body", "3", "1", "1", "1"] in rows
    assert rows[-1] == ["all", "4", "1", "1", "2"]


@pytest.mark.parametrize("words", ["--requests=0", "--connections=-1"])
def test_what_sends_nothing_is_refused(monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["wire", words])
    with pytest.raises(UserError, match="sends nothing; expected more than 0"):
        wire.parse()


@pytest.mark.gate
def test_a_short_trial(tmp_path, monkeypatch, capsys):
    # A silent connection is ended within twice this.
    monkeypatch.setattr(wire, "TIMEOUT_S", 4)
    flags = [flag for flag in wire.SERVER_FLAGS if "timeout" not in flag]
    monkeypatch.setattr(wire, "SERVER_FLAGS", [*flags, "--timeout_s=4"])
    place = f"--output_dir={tmp_path / 'wire'}"
    monkeypatch.setattr(sys, "argv", ["wire", "--requests=1500", place])
    wire.main()
    results = json.loads((tmp_path / "wire" / "wire.json").read_text())
    assert results["faults"] == [] and results["right_answers"] > 5
    assert sum(count for *_, count in results["ends"]) == 1500
    assert {kind for kind, *_ in results["ends"]} == {*wire.KINDS}
    assert "right answers" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["wire", "--number=3", place])
    wire.main()
    assert capsys.readouterr().out.startswith(wire.request_of(1, 3).kind)
