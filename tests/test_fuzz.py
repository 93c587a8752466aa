"""Readers get damaged inputs: what finds defects, and a few inputs each."""

import json
import random

import pytest
from conftest import run_process
from task_files import refusal

from soak import fuzz
from soak.readers import Reader, readers

READERS = readers()


def try_one(tmp_path, read, content=b"a", **more):
    (tmp_path / "a").write_bytes(b"")
    reader = Reader({"a": b""}, "a", read, **more)
    return fuzz.try_input(reader, tmp_path, content)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_its_own_input_and_no_other_is_a_defect(name):
    found = fuzz.fuzz(name, READERS[name], range(200), seed=1)
    assert not found["defects"]
    assert found["taken"] + found["refused"] == 200
    assert fuzz.fuzz(name, READERS[name], range(1), seed=1)["taken"] == 1


def test_inputs_are_the_same_each_time_and_differ():
    reader = READERS["squad"]
    inputs = [fuzz.input_of(3, "squad", reader, n) for n in range(50)]
    assert inputs == [fuzz.input_of(3, "squad", reader, n) for n in range(50)]
    assert len(set(inputs)) > 40
    assert inputs[0] == reader.files["a.json"]
    assert inputs[1] != fuzz.input_of(4, "squad", reader, 1)


def test_values_within_json_are_changed():
    content = json.dumps({"a": [{"b": 1}], "c": "d"}).encode()
    found = [fuzz.change(content, random.Random(n)) for n in range(200)]
    parsed = []
    for one in found:
        try:
            parsed.append(json.loads(one))
        except ValueError:
            continue
    assert len(parsed) > 50
    assert any(isinstance(v, dict) and v.get("c") == "d" for v in parsed)
    assert any(isinstance(v, dict) and v.get("c") != "d" for v in parsed)


def test_what_a_reader_may_not_do_is_a_defect(tmp_path, monkeypatch):
    def fail(folder):
        raise KeyError("b")

    def leave(folder):
        (folder / "left").mkdir()
        raise ValueError("refused")

    def say_much(folder):
        raise ValueError("one\ntwo")

    assert try_one(tmp_path, lambda folder: None) == "taken"
    assert try_one(tmp_path, fail) == "KeyError: 'b'"
    refusing = {"raises": (ValueError,)}
    assert try_one(tmp_path, leave, **refusing) == "left is left behind"
    assert not (tmp_path / "left").exists()
    assert "several lines" in try_one(tmp_path, say_much, **refusing)
    monkeypatch.setattr(fuzz, "LONGEST", -1.0)
    assert "s for: taken" in try_one(tmp_path, lambda folder: None)


def test_the_program_writes_what_it_found(tmp_path):
    path = tmp_path / "found.json"
    done = run_process(
        "-m", "soak.fuzz", "--only=map of tags", "--inputs=50",
        f"--output={path}", program="-Wignore",
    )  # fmt: skip
    assert "| map of tags | 50 |" in done.stdout
    found = json.loads(path.read_text())["readers"]["map of tags"]
    assert found["inputs"] == 50 and not found["defects"]


def test_an_unknown_reader_is_one_line(monkeypatch):
    monkeypatch.setattr("sys.argv", ["fuzz", "--only=chess"])
    assert refusal(fuzz.parse_arguments).startswith("no reader is called")
