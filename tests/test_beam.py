"""What `adapter-bert beam` answers, also when it is killed or fails."""

import gzip
import json
import os
import pathlib
import signal
import subprocess

import pytest
from beam_program import (
    LONG,
    MARKS,
    TWO_PROCESSES,
    command,
    read,
    run,
    shards,
    write_rows,
)
from conftest import ROOT, own_lines
from exported_models import as_rows, mixed_questions
from sweep_stand_in import wait_for
from test_asking import assert_equal
from test_text_model import as_answer

from adapter_bert.serving.exported import ExportedModel

pytestmark = MARKS


def by_row(answers):
    """Answers, of which Beam keeps no order, by task and row."""
    found = {(x["task"], json.dumps(x["row"])): x for x in answers}
    assert len(found) == len(answers)
    return found


def assert_same(answers, others):
    """But for the numbers' last digits, which vary with a batch's rows."""
    answers, others = by_row(answers), by_row(others)
    assert set(answers) == set(others)
    for key, answer in answers.items():
        for x in (answer, others[key]):
            del x["task"], x["row"]
        assert_equal(answer, others[key])


@pytest.fixture(scope="module")
def model(tiny_exported):
    return ExportedModel(str(tiny_exported))


def expected(model, questions):
    """The model's own answers, each with what was asked."""
    return [as_answer(found) for found in model.answers(as_rows(questions))]


@pytest.mark.gate
def test_answers_are_those_of_the_model(tiny_exported, model, tmp_path):
    """Of a plain and a compressed file, beside wrong rows."""
    asked = mixed_questions()
    # As each task calls its texts.
    rows = [
        {"id": n, "task": name, **dict(zip(model.tasks[name]["columns"], x))}
        for n, (name, x) in enumerate(asked)
    ]
    lines = [json.dumps(row) for row in rows]
    half = len(lines) // 2
    wrong = ["{", '{"task": "small", "text": "a", "text_b": "b"}', '{"id": 3}']
    (tmp_path / "rows1.jsonl").write_text("\n".join(lines[:half] + wrong))
    with gzip.open(tmp_path / "rows2.jsonl.gz", "wt") as file:
        file.write("\n".join(lines[half:]) + "\n\n")
    flags = {
        "model": tiny_exported,
        "input": tmp_path / "rows*",
        "output": tmp_path / "made" / "answers",
    }
    done = run(**flags, batch_size=7)
    assert done.returncode == 1
    assert done.stdout == f"answered {len(rows)}, refused 3\n"
    last = own_lines(done.stderr)[-1]
    assert last.startswith("error: refused 3; ") and "-refused-" in last
    assert "Traceback" not in done.stderr

    answers, refused = map(read, shards(flags["output"]))
    assert sorted(x["row"]["id"] for x in answers) == list(range(len(rows)))
    for answer, wanted in zip(
        sorted(answers, key=lambda x: x["row"]["id"]), expected(model, asked)
    ):
        number = answer["row"]["id"]
        assert answer.pop("row") == rows[number]
        assert answer.pop("task") == asked[number][0]
        if answer.get("start", 0) is None:
            answer.update(start=-1, end=-1)
        assert_equal(answer, wanted)
    found = {x["reason"][:20]: (x["row"], x["file"]) for x in refused}
    assert found == {
        "not JSON: Expecting ": ("{", str(tmp_path / "rows1.jsonl")),
        "the task small reads": (
            json.loads(wrong[1]),
            str(tmp_path / "rows1.jsonl"),
        ),
        "no key 'task', found": (
            json.loads(wrong[2]),
            str(tmp_path / "rows1.jsonl"),
        ),
    }


@pytest.mark.gate
def test_lines_of_texts_and_several_tasks(tiny_exported, model, tmp_path):
    (tmp_path / "rows.txt").write_text("a cat\nthe dog ran\n\n")
    done = run(
        model=tiny_exported,
        input=tmp_path / "rows.txt",
        output=tmp_path / "answers",
        task="small,score",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "answered 6, refused 0\n"
    answers, refused = shards(tmp_path / "answers")
    assert not refused
    answers = by_row(read(answers))
    asked = [
        (name, (text,))
        for name in ("small", "score")
        for text in ("a cat", "the dog ran", "")
    ]
    for (name, (text,)), wanted in zip(asked, expected(model, asked)):
        answer = answers[name, json.dumps(text)]
        assert_equal({k: answer[k] for k in wanted}, wanted)


def workers(mark):
    """Process ids of the Python workers of a program with this mark."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            environment = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            b"apache_beam.runners.worker.sdk_worker_main" in words
            and f"MARK={mark}".encode() in environment
        ):
            found.append(int(place.name))
    return found


@pytest.fixture
def killing(tiny_exported, tmp_path):
    """Runs a job in two processes, and kills one while it is at work.

    Gives the flags, what was asked, and a function that kills and tells how
    the job ends: of a worker's id, or None for the launcher.
    """
    asked = write_rows(tmp_path / "rows.jsonl", 4000)
    flags = {"model": tiny_exported, "input": tmp_path / "rows.jsonl"}
    output = tmp_path / "two"

    def kill(which):
        process = subprocess.Popen(
            command(*TWO_PROCESSES, **flags, output=output),
            cwd=ROOT,
            env={**os.environ, "MARK": str(tmp_path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        # The first answers are being written.
        wait_for(lambda: list(tmp_path.glob("beam-temp-two-*/*")), LONG)
        (worker, _) = workers(tmp_path)
        os.kill(process.pid if which == "launcher" else worker, signal.SIGKILL)
        _, said = process.communicate(timeout=LONG)
        # Nobody is left behind, and nothing half done.
        wait_for(lambda: not workers(tmp_path), LONG)
        assert shards(output) == ([], [])
        return process.returncode, said

    return flags, asked, kill


@pytest.mark.gate
def test_after_a_killed_worker_the_job_can_be_run_again(
    killing, model, tmp_path
):
    flags, asked, kill = killing
    code, said = kill("worker")
    assert code == 1
    assert "error: a worker has ended before its work" in said

    done = run(*TWO_PROCESSES, **flags, output=tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"answered {len(asked)}, refused 0\n"
    paths, refused = shards(tmp_path / "two")
    assert len(paths) == 2 and not refused
    answers = read(paths)
    found = {answer["row"]["id"]: answer for answer in answers}
    assert len(found) == len(answers) == len(asked)
    for number, wanted in enumerate(expected(model, asked)):
        assert found[number]["task"] == asked[number][0]
        assert_equal({k: found[number][k] for k in wanted}, wanted)

    done = run(**flags, output=tmp_path / "one")
    assert done.returncode == 0, done.stderr
    paths, _ = shards(tmp_path / "one")
    assert len(paths) == 1
    assert_same(read(paths), answers)


@pytest.mark.gate
def test_a_killed_launcher_leaves_no_worker(killing):
    _, _, kill = killing
    assert kill("launcher")[0] == -signal.SIGKILL


# What the model fails with at its third batch, by no row's fault.
FAILING = """
import sys
from adapter_bert.serving import exported
answers, calls = exported.ExportedModel.answers, []
def failing(self, rows):
    calls.append(rows)
    if len(calls) == 3:
        raise MemoryError("no room for a batch")
    return answers(self, rows)
exported.ExportedModel.answers = failing
from adapter_bert import command_line
from adapter_bert.commands import beam as predict_beam
command_line.run(predict_beam.main)
"""


@pytest.mark.gate
def test_a_failing_model_ends_the_job_without_answers(tiny_exported, tmp_path):
    write_rows(tmp_path / "rows.jsonl", 100)
    flags = {
        "model": tiny_exported,
        "input": tmp_path / "rows.jsonl",
        "output": tmp_path / "answers",
        "batch_size": 8,
    }
    done = run(program=["-c", FAILING], **flags)
    assert done.returncode == 1
    assert "MemoryError: no room for a batch" in done.stderr
    assert shards(tmp_path / "answers") == ([], [])
    assert run(**flags).stdout == "answered 100, refused 0\n"


# No file may grow past some bytes.
FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
from adapter_bert import command_line
from adapter_bert.commands import beam as predict_beam
command_line.run(predict_beam.main)
"""


@pytest.mark.gate
@pytest.mark.parametrize("flags", [(), TWO_PROCESSES])
def test_what_cannot_be_written_is_one_line(tiny_exported, tmp_path, flags):
    write_rows(tmp_path / "rows.jsonl", 500)
    done = run(
        *flags,
        program=["-c", FULL],
        model=tiny_exported,
        input=tmp_path / "rows.jsonl",
        output=tmp_path / "answers",
    )
    assert done.returncode == 1
    last = own_lines(done.stderr)[-1]
    assert last.startswith("error: cannot read --input or write --output: [")
    assert "while running" not in last
    # Workers print what they raise.
    assert flags or "Traceback" not in done.stderr
    assert shards(tmp_path / "answers") == ([], [])
