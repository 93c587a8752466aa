"""Readers get damaged inputs: what finds defects, and a few inputs each."""

import json
import os
import random
import signal
import time

import pytest
from conftest import run_process
from task_files import refusal

from lab.trials import children, flag_readers, fuzz, inputs
from lab.trials.readers import Reader

pytestmark = pytest.mark.newer_stack

READERS = fuzz.readers()


@pytest.fixture(autouse=True)
def no_flags_are_left():
    """Other tests define theirs."""
    yield
    flag_readers.forget()


def found_of(name, numbers):
    """What came of a reader's inputs."""
    found = fuzz.Found()
    fuzz.fuzz(name, READERS[name], numbers, 1, found.tell)
    return found.describe()


def try_one(tmp_path, read, content=b"a", **more):
    (tmp_path / "a").write_bytes(b"")
    reader = Reader({"a": b""}, "a", read, **more)
    return fuzz.try_input(reader, tmp_path, content)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_its_own_input_and_no_other_is_a_defect(name):
    found = found_of(name, range(60))
    assert not found["defects"]
    assert found["taken"] + found["refused"] == found["inputs"] == 60
    assert found_of(name, range(1))["taken"] == 1


def test_inputs_are_the_same_each_time_and_differ():
    reader = READERS["squad"]
    inputs = [fuzz.input_of(3, "squad", reader, n) for n in range(50)]
    assert inputs == [fuzz.input_of(3, "squad", reader, n) for n in range(50)]
    assert len(set(inputs)) > 40
    assert inputs[0] == reader.files["a.json"]
    assert inputs[1] != fuzz.input_of(4, "squad", reader, 1)


def test_values_within_json_are_changed():
    content = json.dumps({"a": [{"b": 1}], "c": "d"}).encode()
    found = [inputs.change(content, random.Random(n)) for n in range(200)]
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

    class Panic(BaseException):
        """As of a library in another language."""

    def panic(folder):
        raise Panic("no")

    assert try_one(tmp_path, panic) == "Panic: no"
    monkeypatch.setattr(fuzz, "LONGEST", -1.0)
    assert "s for: taken" in try_one(tmp_path, lambda folder: None)


def test_memory_is_bounded_by_the_size_of_the_input(tmp_path):
    """Whatever is given back at once is counted too."""

    def take(megabytes):
        return try_one(
            tmp_path,
            lambda folder: bytearray(megabytes << 20).count(1),
            b"a" * 2**20,
        )

    assert fuzz.most_memory(2**20) == 228 * 2**20
    assert take(200) == "taken"
    assert take(300).endswith("MB for 1048576 bytes: taken")
    assert take(200) == "taken"


def test_some_inputs_are_large():
    made = [
        inputs.change(b"a\tb\n", random.Random(number))
        for number in range(5000)
    ]
    large = [content for content in made if len(content) > 2**17]
    assert 5 < len(large) < 100
    few = [
        inputs.change(b"a\tb\n", random.Random(number), grows=False)
        for number in range(5000)
    ]
    assert max(map(len, few)) < 2**17
    assert max(map(len, large)) <= inputs.GROWN


def test_a_process_that_dies_of_an_input_is_a_defect(monkeypatch):
    """Or hangs; those after it are tried all the same."""
    monkeypatch.setattr(children, "PATIENCE", 1.0)

    def work(name, numbers, tell):
        for number in numbers:
            tell(number, "")
            if (name, number) == ("a", 3):
                os.kill(os.getpid(), signal.SIGTERM)
            if name == "a" and number in (0, 1, 4):
                os._exit(number)
            if (name, number) == ("a", 5):
                signal.pause()
            tell(number, "taken")

    found = {"a": fuzz.Found(), "b": fuzz.Found()}
    tell = {name: one.tell for name, one in found.items()}
    numbers = {"a": range(7), "b": range(1000)}
    done = list(children.feed(numbers, work, tell, jobs=2))
    assert sorted(done) == ["a", "b"]
    assert found["a"].defects == {
        "the process died of exit code 0": 0,
        "the process died of exit code 1": 1,
        "the process died of SIGTERM": 3,
        "the process died of exit code 4": 4,
        "the process died of SIGKILL": 5,
    }
    assert (found["a"].inputs, found["a"].counts["taken"]) == (7, 2)
    assert found["b"].counts["taken"] == 1000


def test_work_that_fails_is_no_outcome(capfd):
    def work(name, numbers, tell):
        raise KeyError("x")

    with pytest.raises(ChildProcessError, match="process of a has failed"):
        list(children.feed({"a": range(3)}, work, {"a": print}))
    assert "KeyError: 'x'" in capfd.readouterr().err


def test_the_program_writes_what_it_found(tmp_path):
    path = tmp_path / "found.json"
    done = run_process(
        "-m", "lab.trials.fuzz", "--reader=map of tags", "--inputs=50",
        f"--output={path}", program="-Wignore",
    )  # fmt: skip
    assert "| map of tags | 50 |" in done.stdout
    found = json.loads(path.read_text())["readers"]["map of tags"]
    assert found["inputs"] == 50 and not found["defects"]


def test_a_reader_that_dies_gets_no_new_minutes(tmp_path, monkeypatch):
    def die(folder):
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)

    path = tmp_path / "found.json"
    reader = Reader({"a": b"a"}, "a", die)
    monkeypatch.setattr(fuzz, "readers", lambda: {"dies": reader})
    # Of 0.6 seconds.
    words = ["--inputs=20", "--minutes=0.01", f"--output={path}"]
    monkeypatch.setattr("sys.argv", ["fuzz", *words])
    assert refusal(fuzz.main).startswith("1 kinds of defects")
    found = json.loads(path.read_text())["readers"]["dies"]
    assert 1 <= found["inputs"] < 5


def test_an_unknown_reader_is_one_line(monkeypatch):
    monkeypatch.setattr("sys.argv", ["fuzz", "--reader=chess"])
    assert refusal(fuzz.main).startswith("no reader is called")
    monkeypatch.setattr("sys.argv", ["fuzz", "--jobs=0"])
    assert refusal(fuzz.main).startswith("--jobs=0")
