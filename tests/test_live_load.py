"""The load of a live server: its schedule, its comparison, a short run."""

import json
import sys
import time

import numpy as np
import pytest

from adapter_bert.errors import UserError
from lab import report
from lab.speed import live_load, measuring

pytestmark = pytest.mark.older_stack

ROWS = [("a", f"text {n}") for n in range(5)]


def test_requests_come_at_the_rate_that_is_asked_for():
    planned = live_load.schedule(ROWS, rate=200.0, seconds=50.0, seed=1)
    assert planned == live_load.schedule(ROWS, 200.0, 50.0, 1)
    assert planned != live_load.schedule(ROWS, 200.0, 50.0, 2)
    times = [when for when, _ in planned]
    assert times == sorted(times) and 0 < times[0] and times[-1] < 50
    sizes = [len(rows) for _, rows in planned]
    assert {*sizes} == {*range(1, 9)}
    assert sum(sizes) == pytest.approx(10000, rel=0.1)
    # Rows are taken in turn, through all requests.
    asked = [row for _, rows in planned for row in rows]
    assert asked[:12] == [*ROWS, *ROWS, *ROWS[:2]]


@pytest.mark.parametrize(
    "points, expected",
    [
        ([(0, 7.0), (1, 9.0), (2, 11.0)], 2.0),
        ([(0, 0.0), (1, 1.0), (2, 0.0)], 0.0),
        ([(10, 5.0), (20, 4.0), (30, 6.0)], 0.05),
        ([(3, 5.0), (3, 9.0)], 0.0),
        ([], 0.0),
    ],
)
def test_the_slope_is_that_of_least_squares(points, expected):
    assert live_load.slope(points) == pytest.approx(expected)


KNOWN = {("sha", "a text"): {"a": 0.25, "b": 0.75}}


@pytest.mark.parametrize(
    "change, expected",
    [
        ({}, True),
        ({"scores": {"a": 0.250005, "b": 0.75}}, True),
        ({"scores": {"a": 0.2502, "b": 0.7498}}, False),
        ({"scores": {"a": float("nan"), "b": 0.75}}, False),
        ({"scores": {"a": 0.25}}, False),
        ({"adapter": "of another"}, False),
        ({"task": "another"}, False),
    ],
)
def test_an_answer_is_that_of_the_adapter_that_it_names(change, expected):
    scores = {"a": 0.25, "b": 0.75}
    answer = {"task": "one", "adapter": "sha", "scores": scores, **change}
    assert live_load.is_right(answer, ("one", "a text"), KNOWN) is expected


@pytest.mark.parametrize(
    "code, error, expected",
    [
        (400, "row 1: unknown task task3; there are: task1", "task3"),
        (400, "row 1: text is missing", None),
        (429, "row 1: unknown task task3; there are: task1", None),
    ],
)
def test_a_refusal_names_the_task_that_is_not_there(code, error, expected):
    body = json.dumps({"error": error}).encode()
    assert live_load.missing_task(code, body) == expected
    assert live_load.missing_task(400, b"no JSON") is None


class FakeLibrary:
    """Has names, and refuses what a library refuses."""

    def __init__(self):
        self.there = {}

    def add(self, folder, name):
        assert name not in self.there
        self.there[name] = folder

    def remove(self, name):
        del self.there[name]


@pytest.fixture
def shelf():
    library = FakeLibrary()
    versions = {name: [f"{name}0", f"{name}1"] for name in "abcd"}
    return library, live_load.Shelf(library, versions, staying=1, seed=1)


def test_adapters_come_are_replaced_and_go(shelf):
    library, changed = shelf
    assert library.there == {name: f"{name}0" for name in "abcd"}
    for _ in range(300):
        before = dict(library.there)
        changed.change()
        assert library.there != before
        assert changed.names == sorted(library.there)
        assert library.there["a"] == "a0"
    assert all(60 < count < 140 for count in changed.counts.values())


def test_who_was_away_may_be_unknown_for_a_while(shelf):
    _, changed = shelf
    # All have just come.
    now = time.monotonic()
    assert changed.was_away("b", now)
    assert not changed.was_away("b", now + live_load.SERVED_S + 1)
    while "b" in changed.names:
        changed.change()
    assert changed.was_away("b", now + 1e6)


def test_what_came_of_a_request_is_counted(shelf):
    _, changed = shelf
    asking = live_load.Asking(0, changed, ["a text"], KNOWN)
    rows, later = [("a", "a text")], time.monotonic() + 100
    right = {"task": "a", "adapter": "sha", "scores": {"a": 0.25, "b": 0.75}}

    def judge(code, found, asked=later):
        asking.judge(rows, asked, code, json.dumps(found).encode())
        return asking.counts

    unknown = {"error": "row 1: unknown task a; there are: b"}
    assert judge(200, {"answers": [right]})["answers"] == 1
    assert judge(200, {"answers": [{**right, "task": "b"}]})["wrong"] == 1
    assert judge(200, {"answers": []})["lost"] == 1
    assert judge(500, {"error": "the server has failed"})["lost"] == 2
    # Nobody has removed it.
    assert judge(400, unknown)["lost"] == 3
    assert judge(400, unknown, asked=time.monotonic())["refused"] == 1
    assert len(asking.faults) == 4


def test_adapters_that_answer_alike_are_refused(monkeypatch):
    class Alike:
        def __init__(self, shift):
            self.shift = shift

        def __call__(self, name, text):
            value = int(name) * self.shift + len(text) / 10
            return {"scores": {"a": value, "b": 1 - value}}

    monkeypatch.setattr(
        live_load.adapter_artifact,
        "read_config",
        lambda folder: {"sha256": folder},
    )
    folders, texts = {"0": "x", "1": "y"}, ["a", "bc"]
    for shift, is_apart in ((0.01, True), (1e-5, False)):
        monkeypatch.setattr(
            live_load.Predictor, "load", lambda *_, shift=shift: Alike(shift)
        )
        if is_apart:
            known = live_load.known_answers("", folders, texts)
            assert known["y", "bc"]["a"] == pytest.approx(0.21)
            continue
        with pytest.raises(UserError, match="the same answer"):
            live_load.known_answers("", folders, texts)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--tasks=1,x"], "--tasks=1,x: expected numbers with commas"),
        (["--minutes=0"], "--minutes measures nothing; expected more than 0"),
        (["--rounds=-1"], "--rounds measures nothing"),
    ],
)
def test_what_measures_nothing_is_refused(monkeypatch, words, message):
    monkeypatch.setattr(sys, "argv", ["live_load", *words])
    with pytest.raises(UserError, match=message):
        live_load.parse()


@pytest.mark.gate
def test_all_parts_of_a_short_run(tiny_bert, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    begin, end = report.marks("live")
    page.write_text(begin + end)
    monkeypatch.setattr(report, "SPEED", page)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    # The tiny BERT reads short texts only.
    monkeypatch.setattr(measuring, "MAX_LENGTH", 16)
    for name, value in {
        **{"NAMES": 4, "STAYING": 1, "KNOWN_TEXTS": 5, "MEMORY_S": 1.0},
        **{"CLIENTS": {32: 2}, "SENDERS": 4, "CHANGE_S": 0.5},
    }.items():
        monkeypatch.setattr(live_load, name, value)
    words = "--minutes=0.1 --tasks=1,2 --rounds=1 --rows=128 --seconds=1"
    monkeypatch.setattr(
        sys, "argv", ["live_load", *words.split(), f"--model={tiny_bert}"]
    )
    live_load.main()
    results = json.loads((tmp_path / "results" / "live.json").read_text())
    assert [one["tasks"] for one in results["throughput"]] == [1, 1, 2, 2]
    assert all(one["ratio"]["median"] > 0 for one in results["throughput"])
    assert all(one["p99_ms"] >= one["p50_ms"] for one in results["latency"])
    changes = results["changes"]
    assert changes["answers"] > 20 and changes["changes"] >= 5
    assert not (changes["wrong"] or changes["lost"] or changes["tracebacks"])
    memory = np.array(changes["memory_mb"]["all"])
    assert len(memory) >= 4 and (memory[:, 1] > 50).all()
    assert page.read_text().count("| tasks | texts |") == 2
    assert "| minutes | changes |" in page.read_text()
    assert page.read_text().splitlines()[2] in capsys.readouterr().out
