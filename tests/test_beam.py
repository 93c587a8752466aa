"""`adapter-bert beam`: answers, refusals, what happens when it is killed."""

import gzip
import json
import lzma
import os
import pathlib
import random
import signal
import subprocess

import pytest
from beam_program import (
    LONG,
    MARKS,
    PYTHON,
    TWO_PROCESSES,
    command,
    read,
    run,
    shards,
    write_rows,
)
from conftest import ROOT, flag_words, module_fixture, own_lines
from sweep_stand_in import wait_for

pytestmark = [*MARKS, pytest.mark.gate]


def check_rows(output, rows):
    """Each row has one answer, by its task."""
    answers, refused = map(read, shards(output))
    assert not refused
    answers.sort(key=lambda answer: answer["row"]["id"])
    assert [answer["row"]["id"] for answer in answers] == [*range(len(rows))]
    assert [answer["task"] for answer in answers] == [name for name, _ in rows]


@pytest.fixture
def job_service(tmp_path):
    """The address of Beam's portable local runner, in another process."""
    where = tmp_path / "port"
    words = ["-m", "apache_beam.runners.portability.local_job_service_main"]
    with open(tmp_path / "service.log", "wb") as log:
        process = subprocess.Popen(
            [str(PYTHON), *words, "--port=0", f"--port_file={where}"],
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
    try:
        wait_for(lambda: where.exists() and where.read_text())
        yield f"localhost:{where.read_text().strip()}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "environment",
    (
        {"environment_type": "LOOPBACK"},
        {
            # Beam has no shorter name for it.
            "environment_type": "beam:env:harness_subprocess_python:v1",
            "environment_config": f"{PYTHON} -m "
            "apache_beam.runners.worker.sdk_worker_main",
        },
    ),
    ids=("in the program", "in a process of its own"),
)
def test_a_portable_runner_gives_all_answers(
    tiny_exported, tmp_path, job_service, environment
):
    rows = write_rows(tmp_path / "rows.jsonl", 50)
    output = tmp_path / "answers"
    flags = {"model": tiny_exported, "input": tmp_path / "rows.jsonl"}
    portable = {"runner": "PortableRunner", "job_endpoint": job_service}
    done = run(**flags, output=output, **portable, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"answered {len(rows)}, refused 0\n"
    check_rows(output, rows)


def workers(mark):
    """Process ids of the Python workers of a program with this mark."""
    ids = []
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
            ids.append(int(place.name))
    return ids


@pytest.fixture
def killing(tiny_exported, tmp_path):
    """Runs a job in two processes, and kills one while it is at work.

    Gives the flags, the rows, and a function that kills and tells how the job
    ends: of a worker's id, or None for the launcher.
    """
    rows = write_rows(tmp_path / "rows.jsonl", 1500)
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
        _, stderr = process.communicate(timeout=LONG)
        # Nobody is left behind, and nothing half done.
        wait_for(lambda: not workers(tmp_path), LONG)
        assert shards(output) == ([], [])
        return process.returncode, stderr

    return flags, rows, kill


def test_after_a_killed_worker_the_job_can_be_run_again(killing, tmp_path):
    flags, rows, kill = killing
    code, stderr = kill("worker")
    assert code == 1
    assert "error: a worker has ended before its work" in stderr

    output = tmp_path / "two"
    done = run(*TWO_PROCESSES, **flags, output=output)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"answered {len(rows)}, refused 0\n"
    assert len(shards(output)[0]) == 2
    check_rows(output, rows)


def test_a_killed_launcher_leaves_no_worker(killing):
    _, _, kill = killing
    assert kill("launcher")[0] == -signal.SIGKILL


# Runs the program with the flags of each line of stdin, and prints how each run
# ends. The first word of a line is what goes wrong.
JOBS = """
import contextlib, io, json, resource, sys
from tensorflow.errors import InvalidArgumentError
from adapter_bert.commands import beam
from adapter_bert.graph.exported import ExportedModel
answers, calls = ExportedModel.answers, []
def answer(self, rows):
    calls.append(rows)
    if wrong == "memory" and len(calls) == 3:
        raise MemoryError("no room for a batch")
    if wrong == "score" and any(row.task == b"score" for row in rows):
        text = "assertion failed: [row 1: score is no number]"
        raise InvalidArgumentError(None, None, text)
    return answers(self, rows)
ExportedModel.answers = answer
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
for line in sys.stdin:
    wrong, *sys.argv[1:] = json.loads(line)
    largest = 20000 if wrong == "disk" else limits[0]
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    calls.clear()
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            beam.main()
    except Exception as error:
        said.write(f"{type(error).__name__}: {error}")
    print(json.dumps(said.getvalue()), flush=True)
"""


@module_fixture
def jobs(tmp_path_factory):
    """Runs jobs one after the other in one process; tells how each ends."""
    place = tmp_path_factory.mktemp("jobs") / "stderr"
    with (
        place.open("w") as stderr,
        subprocess.Popen(
            [PYTHON, "-c", JOBS],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):

        def start(*flags, wrong="", **named):
            words = flag_words(named)
            process.stdin.write(json.dumps([wrong, *words, *flags]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield start
        process.stdin.close()
        process.wait(LONG)
    assert "Traceback" not in place.read_text()


@pytest.fixture
def right(tiny_exported, tmp_path):
    """Flags of a job, whose input is to be written."""
    return {
        "model": str(tiny_exported),
        "input": tmp_path / "rows.jsonl",
        "output": tmp_path / "answers",
    }


def test_a_failing_model_ends_the_job_without_answers(jobs, right):
    write_rows(right["input"], 100)
    text = jobs(**right, batch_size=8, wrong="memory")
    assert "MemoryError: no room for a batch" in text
    assert shards(right["output"]) == ([], [])


def test_what_cannot_be_written_is_one_line(jobs, right):
    write_rows(right["input"], 500)
    text = jobs(**right, wrong="disk")
    assert text.startswith("UserError: cannot read --input or write --out")
    assert "while running" not in text
    assert shards(right["output"]) == ([], [])


def test_what_a_worker_cannot_read_is_one_line(right, tmp_path):
    """Of its exception the program has the text alone."""
    right["input"] = tmp_path / "rows.txt.gz"
    right["input"].write_bytes(gzip.compress(b"a cat\n" * 1000)[:-10])
    done = run(*TWO_PROCESSES, **right, task="small")
    assert done.returncode == 1
    last = own_lines(done.stderr)[-1]
    assert f"cannot read --input {right['input']}: Compressed" in last
    assert shards(right["output"]) == ([], [])


def test_a_row_that_the_model_refuses_is_refused_alone(jobs, right):
    rows = write_rows(right["input"], 20)
    text = jobs(**right, wrong="score")
    expected = {n for n, (name, _) in enumerate(rows) if name == "score"}
    assert 0 < len(expected) < 20
    count = len(expected)
    assert text.startswith(f"answered {20 - count}, refused {count}\nUserError")
    answers, refused = map(read, shards(right["output"]))
    assert {x["row"]["id"] for x in refused} == expected
    assert len(answers) + len(refused) == 20
    assert {x["reason"] for x in refused} == {"score is no number"}


def test_what_is_refused_before_the_job(jobs, right, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"task": "small", "text": "a"}\n')
    (tmp_path / "rows.txt").write_text("a\n")
    (tmp_path / "rows.tsv.gz").write_bytes(b"")
    (tmp_path / "rows.jsonl.zst").write_bytes(b"a")
    (tmp_path / "empty.jsonl.gz").write_bytes(b"")
    taken, refused = str(tmp_path / "done"), str(tmp_path / "refuses")
    number = "[0-9]" * 5
    (tmp_path / "done-00000-of-00002.jsonl").write_text("")
    (tmp_path / "refuses-refused-00000-of-00001.jsonl").write_text("")
    wrong = [
        ({"model": tmp_path}, "holds no version of an exported model"),
        ({"input": "none*"}, "no file matches --input"),
        ({"input": "nobody://a"}, "cannot look for nobody://a"),
        ({"input": tmp_path / "*.txt"}, "name no task"),
        ({"input": tmp_path / "*.tsv.gz"}, "is a table or JSON, whose"),
        ({"output": "a*"}, "expected what the names of files begin"),
        ({"output": "a/"}, "expected what the names of files begin"),
        ({"input": tmp_path / "*.zst"}, "rows.jsonl.zst ends with .zst, and"),
        ({"input": tmp_path / "empty*"}, "empty.jsonl.gz is empty, which no"),
        (
            {"output": taken},
            f"{taken}-00000-of-00002.jsonl is there already; delete "
            f"{taken}-{number}-of-{number}.jsonl, or",
        ),
        (
            {"output": refused},
            f"is there already; delete {refused}-refused-{number}-of-{number}"
            ".jsonl, or",
        ),
        ({"task": "small,nobody"}, "unknown task 'nobody'; there are: small"),
        ({"batch_size": 0}, "--batch_size is 0, expected"),
        ({"taks": "small"}, "unexpected: --taks; it is no option of Beam's"),
        ({"direct_num_workers": "x"}, "--direct_num_workers: invalid int"),
    ]
    for flags, message in wrong:
        assert message in jobs(**{**right, **flags})
    assert "unexpected: small" in jobs("small", **right)
    assert "--input is missing" in jobs(model="a")
    assert not list(tmp_path.glob("answers*"))


def test_no_row_of_a_shortened_file_is_lost(jobs, right, tmp_path):
    chance = random.Random(0)
    rows = "".join(f"a cat {chance.random()}\n" for _ in range(1000)).encode()
    missing = "Compressed file ended before the end-of-stream marker"
    for name, content, reason in (
        ("rows.txt.gz", gzip.compress(rows)[:-3000], missing),
        ("rows.txt.xz", lzma.compress(rows)[:-3000], missing),
        ("plain.txt.gz", rows, "Not a gzipped file"),
    ):
        right["input"] = tmp_path / name
        right["input"].write_bytes(content)
        text = jobs(**right, task="small")
        assert f"cannot read --input {right['input']}: {reason}" in text
    assert shards(right["output"]) == ([], [])


def test_one_row_ends_no_job_and_one_job_no_other(jobs, right, tmp_path):
    """Nor do several tasks, lines of texts, and an output that is there."""
    rows = [
        {"\ud800": 1},
        {"task": "small", "text": "a"},
        {"task": "small", "text": "\ud800"},
        {"task": "small", "text": "a", "text_b": "b"},
    ]
    text = "\r\n".join(["{", *map(json.dumps, rows)])
    (tmp_path / "rows-1.jsonl").write_text(text)
    with gzip.open(tmp_path / "rows-2.jsonl.gz", "wt") as file:
        file.write(text + "\n\n")
    right["input"], right["output"] = (
        tmp_path / "rows-1.jsonl",
        tmp_path / "rows",
    )
    (tmp_path / "rows.txt").write_text("a cat\nthe dog ran\n\n")
    several = {
        "input": tmp_path / "rows.txt",
        "output": tmp_path / "made" / "several",
        "task": "small,score",
        "batch_size": 2,
    }
    other = {"input": tmp_path / "rows-[12].*", "output": tmp_path / "rows-2"}
    texts = [jobs(**{**right, **flags}) for flags in (other, {}, {}, several)]
    assert texts[0].startswith("answered 2, refused 8\nUserError: refused 8; ")
    assert texts[1].startswith("answered 1, refused 4\nUserError: refused 4; ")
    assert "rows-00000-of-00001.jsonl is there already; delete" in texts[2]
    assert texts[3] == "answered 6, refused 0\n"
    paths, refused = shards(several["output"])
    assert not refused
    # Beam keeps no order.
    answers = {(x["task"], x["row"]): x for x in read(paths)}
    lines = "a cat", "the dog ran", ""
    assert set(answers) == {(n, x) for n in ("small", "score") for x in lines}
    assert (tmp_path / "rows-1.jsonl").read_text() == text.replace("\r", "")
    for name, count in (("rows-2", 2), ("rows", 1)):
        paths = [
            tmp_path / f"{name}{kind}-00000-of-00001.jsonl"
            for kind in ("", "-refused")
        ]
        answers, refused = ([*map(json.loads, x.open())] for x in paths)
        assert [x["row"] for x in answers] == [rows[1]] * count
        assert len({x["file"] for x in refused}) == count
        reasons = {x["reason"][:32]: x["row"] for x in refused}
        assert len(refused) == 4 * count and reasons == {
            "not JSON: Expecting property nam": "{",
            "no key 'task', found '\\ud800'": rows[0],
            "'text' holds half a character (s": rows[2],
            "the task small reads one text, b": rows[3],
        }
