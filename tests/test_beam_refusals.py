"""Flags, files and rows that `adapter-bert beam` refuses."""

import bz2
import gzip
import json
import lzma
import random
import subprocess

import pytest
from beam_program import (
    LONG,
    MARKS,
    PYTHON,
    TWO_PROCESSES,
    read,
    run,
    shards,
    write_rows,
)
from conftest import ROOT, own_lines
from exported_models import export_broken

pytestmark = MARKS


@pytest.mark.gate
def test_a_row_that_the_model_refuses_is_refused_alone(
    tiny_bert, tiny_adapters, tmp_path
):
    export_broken(tiny_bert, tiny_adapters, "score", tmp_path / "model")
    asked = write_rows(tmp_path / "rows.jsonl", 20)
    done = run(
        model=tmp_path / "model",
        input=tmp_path / "rows.jsonl",
        output=tmp_path / "answers",
    )
    assert done.returncode == 1
    answers, refused = map(read, shards(tmp_path / "answers"))
    expected = {n for n, (name, _) in enumerate(asked) if name == "score"}
    assert 0 < len(expected) < 20
    assert {x["row"]["id"] for x in refused} == expected
    assert len(answers) + len(refused) == 20
    for x in refused:
        assert x["reason"] == "an output of the task score is no number"


# Given flags of several runs, prints how each ends.
SEVERAL = """
import json, sys
from adapter_bert.errors import UserError
from adapter_bert.commands import beam as predict_beam
for sys.argv[1:] in json.load(sys.stdin):
    try:
        predict_beam.main()
    except UserError as error:
        print(error)
"""


def run_several(right, wrong, *others):
    """Runs several times in one process.

    Args:
        right: flags of each run.
        wrong: those of a run that differ.
        others: whole command lines.

    Returns:
        What is printed, by lines, and what is on stderr.
    """
    runs = [
        [f"--{name}={value}" for name, value in {**right, **flags}.items()]
        for flags in wrong
    ]
    done = subprocess.run(
        [PYTHON, "-c", SEVERAL],
        cwd=ROOT,
        input=json.dumps([*runs, *others]),
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_what_is_refused_before_the_job(tiny_exported, tmp_path):
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
        ({"input": tmp_path / "*.tsv.gz"}, "is a table, whose first line"),
        ({"output": "a*"}, "expected what the names of files begin"),
        ({"output": "a/"}, "expected what the names of files begin"),
        ({"input": tmp_path / "*.zst"}, "rows.jsonl.zst ends with .zst, of"),
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
        ({"batch_size": 0}, "--batch_size is 0, expected more"),
        ({"batch_size": "x"}, "--batch_size: invalid int value"),
        ({"taks": "small"}, "unexpected: --taks; it is no option of Beam's"),
        ({"direct_num_workers": "x"}, "--direct_num_workers: invalid int"),
        ({"runner": "Nobody"}, "--runner=Nobody cannot be used"),
    ]
    right = {
        "model": str(tiny_exported),
        "input": tmp_path / "rows.jsonl",
        "output": tmp_path / "answers",
    }
    first = [f"--{name}={value}" for name, value in right.items()]
    messages = [message for _, message in wrong]
    messages += ["unexpected: small", "are required: --input, --output"]
    found, _ = run_several(
        right, [flags for flags, _ in wrong], [*first, "small"], ["--model=a"]
    )
    for line, message in zip(found, messages):
        assert message in line
    assert len(found) == len(messages)
    assert not list(tmp_path.glob("answers*"))


def test_no_row_of_a_shortened_file_is_lost(tiny_exported, tmp_path):
    chance = random.Random(0)
    rows = "".join(f"a cat {chance.random()}\n" for _ in range(1000)).encode()
    contents = {
        "rows.txt.gz": gzip.compress(rows)[:-3000],
        "rows.txt.bz2": bz2.compress(rows)[:-3000],
        "rows.txt.xz": lzma.compress(rows)[:-3000],
        "plain.txt.gz": rows,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    right = {
        "model": tiny_exported,
        "output": tmp_path / "answers",
        "task": "small",
    }
    paths = [tmp_path / name for name in contents]
    found, said = run_several(right, [{"input": path} for path in paths])
    missing = "Compressed file ended before the end-of-stream marker"
    for line, path in zip(found, paths):
        reason = "Not a gzipped file" if "plain" in path.name else missing
        assert line.startswith(f"cannot read --input {path}: {reason}")
    assert len(found) == len(paths)
    assert "Traceback" not in said
    assert shards(tmp_path / "answers") == ([], [])


@pytest.mark.gate
def test_one_row_ends_no_job_and_one_job_no_other(tiny_exported, tmp_path):
    rows = [
        {"\ud800": 1},
        {"task": "small", "text": "a"},
        {"task": "small", "text": "\ud800"},
    ]
    text = "\r\n".join(map(json.dumps, rows))
    (tmp_path / "rows-1.jsonl").write_text(text)
    with gzip.open(tmp_path / "rows-2.jsonl.gz", "wt") as file:
        file.write(text)
    right = {
        "model": tiny_exported,
        "input": tmp_path / "rows-1.jsonl",
        "output": tmp_path / "rows",
    }
    others = [
        {"input": tmp_path / "rows-[12].*", "output": tmp_path / "rows-2"}
    ]
    found, _ = run_several(right, [*others, {}, {}])
    counts = found[0], found[2]
    assert counts == ("answered 2, refused 4", "answered 1, refused 2")
    assert "refused 4" in found[1] and "refused 2" in found[3]
    assert "rows-00000-of-00001.jsonl is there already; delete" in found[4]
    assert (tmp_path / "rows-1.jsonl").read_text() == text.replace("\r", "")
    for name, count in (("rows-2", 2), ("rows", 1)):
        paths = [
            tmp_path / f"{name}{kind}-00000-of-00001.jsonl"
            for kind in ("", "-refused")
        ]
        answers, refused = ([*map(json.loads, x.open())] for x in paths)
        assert [x["row"] for x in answers] == [rows[1]] * count
        reasons = sorted(x["reason"] for x in refused)
        assert reasons == sorted(
            [
                "'text' holds half a character (surrogates not allowed)",
                "no key 'task', found '\\ud800'",
            ]
            * count
        )


@pytest.mark.gate
def test_what_a_worker_cannot_read_is_one_line(tiny_exported, tmp_path):
    """Of its exception the program has the text alone."""
    path = tmp_path / "rows.txt.gz"
    path.write_bytes(gzip.compress(b"a cat\n" * 1000)[:-10])
    done = run(
        *TWO_PROCESSES,
        model=tiny_exported,
        input=path,
        output=tmp_path / "answers",
        task="small",
    )
    assert done.returncode == 1
    last = own_lines(done.stderr)[-1]
    assert last.startswith(f"error: cannot read --input {path}: Compressed")
    assert shards(tmp_path / "answers") == ([], [])
