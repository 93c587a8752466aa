"""`adapter-bert predict` as a user runs it."""

import json
import os
import subprocess
import sys

import pytest
import refusals
from conftest import (
    ROOT,
    SENTENCES,
    cells,
    entry_point,
    own_lines,
    program_fixture,
    read_json_lines,
    run_command,
    write_lines,
    write_table,
)
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.commands import predict, run_classifier
from adapter_bert.errors import UserError
from adapter_bert.library.flags import named_folders

pytestmark = pytest.mark.newer_stack

ROWS = [text for text, _ in SENTENCES]


ask = program_fixture(predict)


@pytest.fixture
def adapters(tiny_bert, tmp_path):
    """Folders of two adapters of one task."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for seed, folder in enumerate(folders):
        make_artifact(folder, tiny_bert, "houlsby(size=4)", seed=seed)
    return folders


@pytest.fixture
def flags(tiny_bert, adapters, tmp_path):
    write_lines(tmp_path / "rows.txt", ROWS)
    return {
        "init_checkpoint": tiny_bert,
        "adapter": adapters[0],
        "input": tmp_path / "rows.txt",
        "output": tmp_path / "answers.jsonl",
    }


def test_words_are_tagged(ask, tiny_bert, tmp_path):
    description = {"name": "tagging", "tags": ["O", "B-X", "I-X"]}
    folder = tmp_path / "tags"
    make_artifact(folder, tiny_bert, "ia3", description=description)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "the cat"}\n{"text": ["the", "cat", "sat"]}\n')
    output = tmp_path / "answers.jsonl"
    ask(init_checkpoint=tiny_bert, adapter=folder, output=output, input=path)
    answers = read_json_lines(output)
    assert [len(answer["tags"]) for answer in answers] == [2, 3]
    assert answers[1]["tokens"] == ["the", "cat", "sat"]
    assert list(answers[0]) == ["task", "tokens", "tags", "entities"]


@pytest.mark.gate
def test_labels_are_those_of_the_run(
    tiny_flags, tiny_bert, tiny_data, tmp_path
):
    flags = {**tiny_flags, "do_predict": True, "num_train_epochs": 1}
    with entry_point(run_classifier) as classify:
        classify(**flags)
    out = tiny_flags["output_dir"]
    answers = tmp_path / "answers.jsonl"
    with entry_point(predict) as ask:
        ask(
            init_checkpoint=tiny_bert,
            adapter=out / "adapter",
            input=tiny_data / "test.tsv",
            output=answers,
        )
        refusals.check(
            lambda: ask(init_checkpoint=out, adapter=out / "adapter"),
            "is a training's checkpoint; pass the",
        )
    _, *rows = cells(out / "test_predictions.tsv")
    predicted = read_json_lines(answers)
    assert len(predicted) == len(rows) == 7
    for answer, (_, label, probability) in zip(predicted, rows):
        assert list(answer) == ["task", "label", "probability", "scores"]
        assert (answer["task"], answer["label"]) == ("custom", label)
        assert answer["probability"] == pytest.approx(float(probability), 1e-5)


@pytest.fixture
def shelf(adapters, flags, shelf):
    """A library of both adapters, `first` and `second`, for the flags."""
    for name, folder in zip(("first", "second"), adapters):
        shelf.add(str(folder), name)
    flags["library"] = shelf.path
    del flags["adapter"]


def test_adapters_outside_a_library_have_names(adapters):
    named = [f"one={adapters[0]}", str(adapters[1])]
    folders = named_folders(named, None, [])
    assert folders == dict(zip(("one", "custom"), map(str, adapters)))


def test_rows_that_are_cut_are_counted(ask, flags, caplog):
    ask(**flags, max_seq_length=24)
    assert "rows are cut" not in caplog.text
    ask(**flags, max_seq_length=6)
    lengths = [len(text.split()) for text in ROWS]
    count = sum(length > 4 for length in lengths)
    assert f"{count} rows are cut, longer than --max_seq_length" in caplog.text


def test_a_typed_line_is_answered_at_once(tiny_bert, tmp_path):
    """As UTF-8 in any locale, and so are paths in TensorFlow's calls."""
    labels = ["gr\xfcn", "\u732b"]
    folder = tmp_path / "caf\xe9 \u732b"
    description = {**CLASSIFICATION, "labels": labels}
    make_artifact(folder, tiny_bert, "ia3", description=description)
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = f"{sys.executable} -m adapter_bert predict".split()
    command.append(f"--init_checkpoint={tiny_bert}")
    with subprocess.Popen(
        [*command, f"--adapter={folder}"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **locale},
        encoding="utf-8",
    ) as process:
        for row in ("caf\xe9", *ROWS[:2]):
            process.stdin.write(row + "\n")
            process.stdin.flush()
            # Nothing more comes until this is read.
            line = process.stdout.readline()
            assert list(json.loads(line)["scores"]) == labels
            assert "\u732b" in line
        process.stdin.write("the cat\tthe dog\n")
        process.stdin.close()
        assert process.stdout.read() == ""
        assert own_lines(process.stderr.read()) == [
            "error: stdin:4: found 2 texts with tabs between them, expected 1"
        ]
        assert process.wait() == 1


def test_a_reader_that_stops_ends_it_quietly(tiny_bert, adapters, tmp_path):
    many = tmp_path / "many.txt"
    many.write_text("the cat sat\n" * 200000)
    command = (
        f"{sys.executable} -m adapter_bert predict --adapter={adapters[0]} "
        f"--init_checkpoint={tiny_bert} --input={many} | head -n 2"
    )
    done = run_command(
        *("bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"),
        cwd=ROOT,
        timeout=60,
    )
    assert len(done.stdout.splitlines()) == 2
    assert done.returncode == 141
    assert own_lines(done.stderr) == []


def test_nothing_is_written_where_a_row_is_malformed(ask, flags, monkeypatch):
    """It is found before the first row is answered."""
    monkeypatch.setattr(predict, "answer_rows", None)
    flags["output"].write_text("old")
    flags["input"].write_text("the cat\nthe\tdog\n")
    refusals.check(lambda: ask(**flags), "rows.txt:2: found 2 texts")
    assert flags["output"].read_text() == "old"
    assert not [p for p in os.listdir(flags["output"].parent) if ".tmp" in p]
    flags["output"] = flags["input"]
    refusals.check(lambda: ask(**flags), "--input and --output are both")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"init_checkpoint": ""}, "--init_checkpoint is missing: the pretr"),
        ({"init_checkpoint": "/none"}, "--init_checkpoint /none does not"),
        ({"adapter": "/none"}, "adapter's description .* does not exist"),
        ({"input": "/none"}, "--input is /none, which does not exist"),
        ({"output": "/none/a.jsonl"}, "the folder /none of --output does not"),
        ({"input": "tests"}, "--input is tests, a folder; expected a"),
        ({"output": "tests"}, "--output is tests, a folder; expected a"),
        ({"output": "/dev/null"}, "--output /dev/null is a pipe or a device"),
        ({"max_seq_length": 2}, "--max_seq_length is 2, expected >= 3"),
        ({"max_seq_length": 99}, "but the model has only 32 positions"),
        ({"columns": "a,b"}, "--columns names 2 columns, but custom reads 1"),
        ({"library": "/none"}, "--library is /none, where there is no folder"),
        ({"library": "/none", "task": "all"}, "there is no library /none"),
        ({"task": "a"}, "--library and --task go together"),
        (
            {"embeddings": "mean", "adapter_dtype": "bfloat16"},
            "--adapter_dtype is for answers",
        ),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(ask, flags, changes, message):
    with pytest.raises(UserError, match=message):
        ask(**{**flags, **changes})


def test_columns_name_the_texts_of_a_table(ask, flags, tmp_path):
    """Equal texts get equal bytes."""
    ask(**flags)
    expected = flags["output"].read_bytes()
    write_table(tmp_path / "rows.tsv", [("x", r) for r in ROWS], ("id", "said"))
    flags["input"] = tmp_path / "rows.tsv"
    refusals.check(
        lambda: ask(**flags), "found 2 columns ('id', 'said'), expec"
    )
    ask(**flags, columns="said")
    assert flags["output"].read_bytes() == expected


@pytest.mark.parametrize("how", [{}, {"explain": True}, {"embeddings": "mean"}])
def test_rows_by_name_have_both_texts_where_pairs_are_not_told(
    ask, flags, tiny_bert, tmp_path, how
):
    """As adapters of other programs, which read one text or two."""
    either = {**CLASSIFICATION, "pairs": None}
    make_artifact(tmp_path / "either", tiny_bert, "lora(rank=2)", None, either)
    flags.update(adapter=tmp_path / "either", input=tmp_path / "rows", **how)
    pair = dict(zip(("text", "text_b"), ROWS))
    rows = "\t".join(pair.values()), json.dumps({**pair, "id": 1})
    answers = []
    for row in rows:
        write_lines(flags["input"], [row])
        ask(**flags, **({"columns": "text,text_b"} if row is rows[0] else {}))
        answers.append(flags["output"].read_text())
    assert answers[0] == answers[1]
    if how.get("explain"):
        assert '"column": "text_b"' in answers[0]


@pytest.mark.gate
def test_a_library_gives_some_of_its_adapters_or_all(ask, flags, shelf):
    answers = {}
    for task, names in (
        ("all", ["first", "second"]),
        ("second", ["second"]),
        ("second,first", ["second", "first"]),
    ):
        ask(**flags, task=task)
        answers[task] = read_json_lines(flags["output"])
        assert [a["task"] for a in answers[task]] == names * len(ROWS)
    assert answers["all"][0]["scores"] != answers["all"][1]["scores"]
    for mixed, alone in zip(answers["all"][1::2], answers["second"]):
        assert mixed["scores"] == pytest.approx(alone["scores"], abs=1e-6)
    refusals.check(
        lambda: ask(**flags, task="first,x"),
        "has no adapter 'x'; it has: first",
    )
    ask(**flags, task="all", adapter_dtype="bfloat16")
    for rounded, exact in zip(read_json_lines(flags["output"]), answers["all"]):
        assert rounded["scores"] != exact["scores"]
        assert rounded["scores"] == pytest.approx(exact["scores"], abs=1e-2)
