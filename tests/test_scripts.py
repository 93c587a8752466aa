"""The shell scripts, run as a user runs them."""

import json
import os
import re
import shlex
import sys
import sysconfig

import pytest
from conftest import ROOT, read_json, run_command, run_process, write_json

from adapter_bert.commands import show


def quickstart(*arguments, python=sys.executable, **environment):
    return run_command(
        ROOT / "scripts" / "quickstart.sh",
        *arguments,
        env={**os.environ, "PYTHON": python, **environment},
    )


def test_quickstart_takes_no_flag_for_its_folder():
    done = quickstart("--help")
    assert done.returncode == 1
    assert done.stderr.startswith("usage: scripts/quickstart.sh [OUTPUT_DIR")


def test_questions_may_have_numbers(tmp_path, capsys):
    """Their answers are by the numbers' texts."""
    question = {"id": 1, "question": "Who?", "answers": [{"text": "it"}]}
    paragraphs = [{"context": "it", "qas": [question]}]
    write_json(tmp_path / "dev.json", {"data": [{"paragraphs": paragraphs}]})
    write_json(tmp_path / "predictions.json", {"1": "a cat"})
    show.show_answers(tmp_path / "dev.json", tmp_path / "predictions.json", 1)
    assert "answered: a cat" in capsys.readouterr().out


@pytest.mark.pretrained
def test_quickstart_does_not_replace_data(tmp_path, pretrained_dir):
    data = tmp_path / "same_meaning" / "train.tsv"
    data.parent.mkdir()
    data.touch()
    done = quickstart(tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {data.parent} holds data, not results; choose another "
        "OUTPUT_DIR\n"
    )
    assert data.exists()


def test_quickstart_without_the_pretrained_model_is_refused(tmp_path):
    bare = tmp_path / "python"
    # With the packages of this environment, but not its model.
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = quickstart(
        tmp_path,
        python=str(bare),
        PYTHONPATH=sysconfig.get_path("purelib"),
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: the pretrained all-MiniLM-L6-v2 is not on this machine; run "
        "`adapter-bert minilm --fetch` (84 MB)\n"
    )


@pytest.mark.gate
@pytest.mark.newer_stack
@pytest.mark.pretrained
def test_quickstart_ends_with_scores_and_an_answer(tmp_path, pretrained_dir):
    short = ("--num_train_epochs=0.05", "--max_eval_examples=16")
    done = quickstart(tmp_path / "out", *short)
    assert done.returncode == 0, done.stderr
    table, answer, more = done.stdout.split("\n\n")[-3:]
    header, *rows = table.strip().splitlines()[-3:]
    assert header.split()[0] == "task"
    for row, task, trained in zip(
        rows, ("customer_intents", "same_meaning"), ("609,034", "605,954")
    ):
        folder = tmp_path / "out" / task
        results = read_json(folder / "eval_results.json")
        value = f"{results['eval_accuracy']:.3f}"
        cells = row.split()
        assert cells[:4] == [task, "accuracy", value, trained]
        assert cells[-4:] == ["2.4", "MB", "90.9", "MB"]
    sentence, answered = answer.splitlines()
    assert sentence.startswith("Where is my parcel?")
    assert re.fullmatch(r"  answered: [a-z_]+ \(0\.\d{3}\)", answered)
    *_, command = more.strip().splitlines()
    again = run_command(
        *shlex.split(command), cwd=ROOT, input=sentence + "\n", check=True
    )
    assert json.loads(again.stdout)["label"] in answered


@pytest.mark.gate
@pytest.mark.older_stack
@pytest.mark.pretrained
def test_the_shipped_questions_are_learned(tmp_path, pretrained_dir):
    """The flags that ship with them, with fewer epochs."""
    done = run_process(
        "--flagfile=configs/short_articles.flags",
        f"--init_checkpoint={pretrained_dir}",
        f"--output_dir={tmp_path}",
        "--num_train_epochs=2",
        program="run_squad.py",
    )
    results = read_json(tmp_path / "eval_results.json")
    assert results["eval_f1"] > 30, done.stderr
    shown = run_process(
        "answers",
        "data/short_articles/dev.json",
        tmp_path / "predictions.json",
        "5",
        program="show",
    )
    answers = shown.stdout.strip().split("\n\n")
    assert len(answers) == 5
    for text in answers:
        question, answered, right = text.strip().splitlines()
        assert question.endswith("?")
        assert answered.strip().startswith("answered: ")
        assert right.strip().startswith("right: ")
