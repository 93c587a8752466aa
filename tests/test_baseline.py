"""`adapter-bert baseline`: scores of words and pairs of words."""

import numpy as np
import pytest
import refusals
from conftest import SENTENCES, entry_point, read_json, run_process, write_table
from task_files import make_rows

from adapter_bert import files
from adapter_bert.commands import baseline
from adapter_bert.tasks.custom import custom_task

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def write(folder, labels, split="train"):
    rows = [(text, label) for (text, _), label in zip(SENTENCES * 5, labels)]
    write_table(folder / f"{split}.tsv", rows)


# What a row's first word is.
SCORES = {"the": "1", "a": "2", "is": "3", "not": "4"}
SETS = [
    "|".join(sorted({"cat", "dog"} & set(text.split())))
    for text, _ in SENTENCES
]
LABELS = {
    "labels": ({}, [label for _, label in SENTENCES], "accuracy"),
    "three": ({}, list("abcabcab"), "accuracy"),
    "numbers": (
        {"regression": True},
        [SCORES[text.split()[0]] for text, _ in SENTENCES],
        "pearson",
    ),
    "sets": ({"multi_label": True}, SETS, "micro_f1"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_what_words_tell_is_learned_and_written(data, tmp_path, kind):
    options, labels, name = LABELS[kind]
    write(data, labels * 5)
    write(data, labels, "dev")
    out = tmp_path / "out"
    scores = baseline.run(custom_task(**options), str(data), str(out))
    assert scores[f"eval_{name}"] > 0.95
    results = read_json(out / "eval_results.json")
    added = {name: results[name] for name in ("dev_data", files.SEAL)}
    assert {**scores, **added} == results
    record = read_json(out / "baseline.json")
    assert record["examples"] == 40 and record["data_name"] == "data"
    # As a run of BERT describes its task.
    assert ("label_unit" in record["task"]) == (kind == "numbers")
    tried = record["cross_validation"]
    assert len(tried) == len(baseline.STRENGTHS)
    assert tried[f"{record['C']:g}"] == max(tried.values())
    assert (out / "eval_labels.tsv").exists() == (kind != "numbers")


def test_pairs_of_words_count_and_texts_stand_side_by_side():
    rows = make_rows("a cat sat", "a dog", text_b=["cat", "dog sat"])
    words = baseline.learn_words(rows)
    # a, cat, sat, dog, a cat, cat sat, a dog; cat, dog, sat, dog sat.
    assert words(rows).shape == (2, 7 + 4)
    swapped = make_rows(*rows.text_b, text_b=rows.text_a)
    assert (words(rows) != words(swapped)).nnz


def test_a_class_that_no_row_has_is_the_least_likely():
    inputs = baseline.learn_words(make_rows("a", "b"))(make_rows("a", "b", "a"))
    labels = np.array([0, 2, 0])
    model = baseline.fit_classes(inputs, labels, 3, 1.0)
    logits = model(inputs)
    assert np.isfinite(logits).all()
    assert (logits.argmin(axis=1) == 1).all()
    # Of one class alone.
    alone = baseline.fit_classes(inputs, np.zeros(3, int), 2, 1.0)(inputs)
    assert (alone.argmax(axis=1) == 0).all()


def test_equal_data_gives_equal_files_and_other_folders_are_refused(
    data, tmp_path
):
    write(data, LABELS["labels"][1] * 5)
    write(data, LABELS["labels"][1], "dev")
    bits = []
    for name in "ab":
        baseline.run(custom_task(), str(data), str(tmp_path / name))
        bits.append(
            [
                (tmp_path / name / file).read_bytes()
                for file in ("baseline.json", "eval_results.json")
            ]
        )
    assert bits[0] == bits[1]
    out = tmp_path / "a"
    pairs = custom_task(dev_share=0.5)
    (data / "dev.tsv").unlink()

    def call():
        baseline.run(pairs, str(data), str(out))

    refusals.check(call, "holds the baseline of another task")
    assert (out / "eval_results.json").read_bytes() == bits[0][1]
    (out / "run.json").write_text("{}")
    refusals.check(call, "holds a run of BERT")


@pytest.mark.parametrize(
    "rows, part",
    [
        ([("!", "a"), ("?", "b")] * 5, "train.tsv: a column of texts, or"),
        ([("cat", "a"), ("dog", "b"), ("x", "a")], "holds 3 rows"),
    ],
)
def test_rows_that_teach_nothing_are_refused(data, tmp_path, rows, part):
    write_table(data / "train.tsv", rows)
    write_table(data / "dev.tsv", rows[:1])
    out = str(tmp_path / "o")
    refusals.check(lambda: baseline.run(custom_task(), str(data), out), part)
    assert not (tmp_path / "o" / "eval_results.json").exists()


def test_the_shell_may_name_files(data, tmp_path):
    write(data, LABELS["labels"][1] * 5, "tickets")
    write(data, LABELS["labels"][1], "held_out")
    done = run_process(
        "--task_name=custom",
        f"--train_file={data}/tickets.tsv",
        f"--eval_file={data}/held_out.tsv",
        f"--output_dir={tmp_path / 'o'}",
        program="baseline",
    )
    assert "(chosen)" in done.stderr and "eval_accuracy = 1.0" in done.stderr
    assert (tmp_path / "o" / "eval_results.txt").exists()
    record = read_json(tmp_path / "o" / "baseline.json")
    assert record["data_name"] == "tickets.tsv"


@pytest.mark.parametrize(
    "arguments, part",
    [
        ({"task_name": "copa", "data_dir": "x"}, "has no baseline"),
        ({"task_name": "rerank", "data_dir": "x"}, "has no baseline"),
        ({"task_name": "squad", "data_dir": "x"}, "unknown task"),
        ({"task_name": "rte"}, "--data_dir is missing"),
        (
            {
                "task_name": "custom",
                "predict_file": "data/same_meaning/test.tsv",
            },
            "predicts no --predict_file",
        ),
    ],
)
def test_what_it_is_not_for_is_refused(arguments, part):
    with entry_point(baseline) as run:
        refusals.check(lambda: run(**arguments, output_dir="y"), part)
