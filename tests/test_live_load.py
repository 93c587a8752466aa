"""The load of a server that answers from a library."""

import json
import sys

import pytest
from conftest import read_json, read_lines

from lab import report
from lab.speed import live_load, measuring

pytestmark = pytest.mark.newer_stack

ROW, SCORES = ("one", "a text"), {"a": 0.25, "b": 0.75}
RIGHT = {"task": "one", "adapter": "sha", "scores": SCORES}


@pytest.mark.parametrize(
    "change, wrong",
    [
        ({}, 0),
        ({"task": "two"}, 1),
        ({"adapter": "other"}, 1),
        ({"scores": {"a": 0.25, "b": 0.7501}}, 1),
        ({"scores": {"a": 1.0}}, 1),
    ],
)
def test_an_answer_is_that_of_the_adapter_that_it_names(change, wrong):
    check = live_load.Checker({("sha", "a text"): SCORES})
    body = json.dumps({"answers": [{**RIGHT, **change}]}).encode()
    check([ROW], 200, body)
    assert (check.answers, check.wrong) == (1, wrong)
    check([ROW, ROW], 503, b"busy")
    assert check.wrong == wrong + 2 and "busy" in check.fault


def test_a_schedule_has_its_rate():
    rows = [("task", str(n)) for n in range(100)]
    planned = live_load.schedule(rows, rate=200.0, seconds=50.0)
    assert sum(len(x) for _, x in planned) == pytest.approx(10_000, rel=0.1)
    assert planned == sorted(planned, key=lambda one: one[0])
    assert {len(x) for _, x in planned} == {*range(1, 9)}


@pytest.mark.gate
def test_all_parts_of_a_short_run(tiny_bert, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    begin, end = report.marks("live")
    page.write_text(begin + end)
    monkeypatch.setattr(report, "SPEED", page)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    # The tiny BERT reads short texts only.
    monkeypatch.setattr(measuring, "MAX_LENGTH", 16)
    small = {"ADAPTERS": 12, "LAG": 5, "SENDERS": 4, "SCHEDULED_S": (0.5, 2)}
    for name, value in small.items():
        monkeypatch.setattr(live_load, name, value)
    words = f"--minutes=0.1 --tasks=2 --rounds=1 --rows=128 --model={tiny_bert}"
    monkeypatch.setattr(sys, "argv", ["live_load", *words.split()])
    live_load.main()
    results = read_json(tmp_path / "results" / "live.json")
    assert results["rates"]["ratio"]["median"] > 0
    assert results["p99_ms"] >= results["p50_ms"] > 0
    changes = results["changes"]
    assert changes["answers"] > 20 and changes["changes"] >= 3
    assert not (changes["wrong"] or changes["tracebacks"])
    assert "| tasks | server" in page.read_text()
    assert read_lines(page)[2] in capsys.readouterr().out
