"""The benchmark of a loaded server: its clients, and what it writes."""

import asyncio
import json

import pytest
from test_rest import Server

from adapter_bert.errors import UserError
from lab.speed import compare
from lab.speed import server as benchmark

pytestmark = pytest.mark.newer_stack


@pytest.mark.gate
def test_each_part_asks_and_is_answered(tiny_exported, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "CONNECTIONS", 20)
    monkeypatch.setattr(benchmark, "TEXTS_PER_TASK", 2)
    monkeypatch.setattr(benchmark, "GREAT_ROWS", 100)
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path / "server.json")
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{benchmark.BEGIN}old\n{benchmark.END}after\n")
    monkeypatch.setattr(compare, "PAGE", page)
    command = ["server", f"--model={tiny_exported}", "--seconds=0.5"]
    monkeypatch.setattr("sys.argv", command)
    benchmark.main()
    found = json.loads((tmp_path / "server.json").read_text())
    parts = found["parts"]
    assert list(parts) == list(benchmark.PARTS)
    assert parts["1,000 connections"]["answered"] == 20
    table = page.read_text()
    assert "old" not in table and table.endswith("after\n")
    for name, part in parts.items():
        assert f"| {name} | {part['rows_per_second']:.0f} |" in table
        assert part["answered"] > 0 and part["too_busy"] == 0
        assert 0 < part["p50_ms"] <= part["p99_ms"]
        assert part["rows_per_second"] > 0 and part["memory_after_mb"] > 100


@pytest.mark.parametrize(
    "answer, text, message",
    [
        ({"echo": "a", "n": 0}, "a", None),
        ({"echo": "b", "n": 0}, "a", "expected"),
        ({"echo": "a"}, "a", "expected"),
        ({"echo": "defect", "n": 0}, "defect", "got 500"),
    ],
)
def test_a_wrong_answer_is_found(monkeypatch, answer, text, message):
    server = Server()
    monkeypatch.setattr(benchmark, "PATH", "/v1/models/tiny:predict")
    row = {"instance": {"task": "one", "text": text}, "expected": answer}
    client = benchmark.Client(server.port)
    try:
        if message:
            with pytest.raises(UserError, match=message):
                asyncio.run(client.ask([row]))
        else:
            asyncio.run(client.ask([row]))
            assert (client.rows, len(client.seconds)) == (1, 1)
    finally:
        server.close()


@pytest.mark.parametrize(
    "found, is_equal",
    [
        ({"a": [1.0, "b"]}, True),
        ({"a": [1.0 + 1e-6, "b"]}, True),
        ({"a": [1.001, "b"]}, False),
        ({"a": [1.0, "c"]}, False),
        ({"a": [1.0]}, False),
        ({"b": [1.0, "b"]}, False),
    ],
)
def test_numbers_may_be_rounded(found, is_equal):
    assert benchmark.is_equal(found, {"a": [1.0, "b"]}) is is_equal
