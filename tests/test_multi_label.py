"""Rows that have any number of labels."""

import collections
import json
from dataclasses import replace

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import read_json, read_lines, write_lines, write_table
from numpy.testing import assert_allclose, assert_array_equal
from task_files import complete, make_rows, read

from adapter_bert.data.input_pipeline import Texts
from adapter_bert.tasks import metrics
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.multi_label import MultiLabelHead

MANY = {"multi_label": True}
SETS = custom_task(**MANY)
# The cat is told of, and is it good?
CELLS = ["cat|good", "", "good", "[]", "cat|good", "", "good", "cat"]


def write_sets(folder, cells, split="train"):
    rows = [(f"text {i}", cell) for i, cell in enumerate(cells)]
    write_table(folder / f"{split}.tsv", rows)


def write_lists(folder, lists, split="train"):
    lines = [json.dumps({"text": "x", "label": labels}) for labels in lists]
    write_lines(folder / f"{split}.jsonl", lines)


@pytest.fixture
def task(tmp_path):
    write_sets(tmp_path, CELLS)
    return complete(SETS, tmp_path)


def test_labels_are_those_of_all_cells_or_lists_in_json_lines(tmp_path, task):
    assert task.labels == ("cat", "good")
    assert task.describe() == {
        "labels": ["cat", "good"],
        "multi_label": True,
        "label_threshold": 0.5,
        "pairs": False,
    }
    (tmp_path / "json").mkdir()
    lists = [[] if cell in ("", "[]") else cell.split("|") for cell in CELLS]
    write_lists(tmp_path / "json", lists)
    assert complete(SETS, tmp_path / "json") == task
    sets = [
        task.label_features(read(task, folder, "train").label)["label_sets"]
        for folder in (tmp_path, tmp_path / "json")
    ]
    assert_array_equal(*sets)
    assert sets[0][:3].tolist() == [[1, 1], [0, 0], [0, 1]]


def test_numbers_are_labels_too_and_so_is_text_with_another_separator(tmp_path):
    write_lists(tmp_path, [[1, "b"], [True]])
    assert complete(SETS, tmp_path).labels == ("1", "b", "true")
    (tmp_path / "train.jsonl").unlink()
    write_sets(tmp_path, ["a|b;c", "c"])
    task = custom_task(multi_label=True, label_separator=";")
    assert complete(task, tmp_path).labels == ("a|b", "c")


def test_rare_labels_are_held_out_alike(tmp_path):
    rare = ["often"] * 60 + ["often|rare"] * 10 + ["single|often", "", ""]
    write_sets(tmp_path, rare)
    task = custom_task(multi_label=True, dev_share=0.5)
    _, rows = task.read(str(tmp_path), ["train", "dev"])
    counts = [collections.Counter(of.label) for of in rows.values()]
    assert counts[0] == {**counts[1], "single|often": 1}
    assert counts[1] == {"often": 30, "often|rare": 5, "": 1}


@pytest.mark.parametrize("seed", range(4))
def test_each_part_has_every_label_or_the_log_says_so(tmp_path, seed, caplog):
    """z is the rarest label of neither of its rows, and y has but one."""
    cells = ["a|z", "a|c", "b|z", "b|c", "a", "b", "c|y", "c", "c", ""]
    write_sets(tmp_path, cells)
    task = custom_task(multi_label=True, dev_share=0.5, split_seed=seed)
    task, rows = task.read(str(tmp_path), ["train", "dev"])
    assert task.labels == ("a", "b", "c", "y", "z")
    sides = ["".join(rows[split].label) for split in ("train", "dev")]
    assert set("abcz") <= set(sides[0]) & set(sides[1])
    assert sorted(rows["train"].label + rows["dev"].label) == sorted(cells)
    assert "no dev row has the labels y, which" in caplog.text


def test_the_log_says_how_common_labels_are():
    rows = make_rows(*"wxyz", label=["a|b", "a", "", "a"])
    task = replace(SETS, labels=("b", "a"))
    assert task.summarize(rows) == (
        "b 1 (25.0%), a 3 (75.0%), (no label) 1 (25.0%)"
    )


def test_the_loss_is_the_mean_of_binary_cross_entropies(tiny_config):
    head = MultiLabelHead(
        2, tiny_config, lambda name, shape, _: tf.zeros(shape)
    )
    logits = np.array([[2.0, -1.0], [0.0, 3.0]], np.float32)
    labels = np.array([[1, 0], [0, 0]], np.int32)
    losses = head.loss({"logits": logits}, {"label_sets": labels}).numpy()
    share = 1 / (1 + np.exp(-logits))
    expected = -np.log(np.where(labels, share, 1 - share)).mean(axis=1)
    assert_allclose(losses, expected, rtol=1e-6)
    assert_allclose(
        metrics.binary_cross_entropy(logits, labels.astype(bool)).mean(axis=1),
        expected,
        rtol=1e-6,
    )


# One row is right, one lacks a label, one has one too many.
LOGITS = np.array([[5, -5], [-5, -5], [5, 5]], np.float32)
LABELS = ["cat", "good", "cat"]


def test_scores_and_files_are_those_counted_by_hand(task, tmp_path):
    outputs = {"logits": LOGITS}
    features = Texts.from_rows([], task.label_features(LABELS))
    scores = task.evaluate(None, features, outputs)
    named = ["micro_f1", "macro_f1", "subset_accuracy", "loss"]
    assert list(scores) == [*named, *metrics.RANKINGS, "macro_roc_auc"]
    assert {*scores} <= {*task.score_names}
    assert scores["micro_f1"] == pytest.approx(4 / 6)
    assert scores["macro_f1"] == pytest.approx((1 + 0) / 2)
    assert scores["subset_accuracy"] == pytest.approx(1 / 3)
    wrong, right = np.log1p(np.exp(5)), np.log1p(np.exp(-5))
    assert scores["loss"] == pytest.approx((2 * wrong + 4 * right) / 6)
    [path] = task.write_report(str(tmp_path), None, features, outputs)
    assert read_lines(path) == [
        "label\texamples\tpredicted\tprecision\trecall\tf1",
        "cat\t2\t2\t1.0000\t1.0000\t1.0000",
        "good\t1\t1\t0.0000\t0.0000\t0.0000",
    ]
    rows = make_rows(*"xyz")
    _, path = task.write_predictions(str(tmp_path), rows, outputs)
    described = read_json(tmp_path, "test_results.json")
    assert described == {"columns": ["cat", "good"]}
    assert read_lines(path) == [
        "id\tlabels\tprobability_cat\tprobability_good",
        "0\tcat\t0.9933\t0.0067",
        "1\t\t0.0067\t0.0067",
        "2\tcat|good\t0.9933\t0.9933",
    ]


def test_the_threshold_is_the_least_probability(tmp_path):
    write_sets(tmp_path, CELLS)
    logits = np.array([[0.0, 1.0]], np.float32)
    labels = []
    for threshold in (0.5, 0.6, 0.9):
        task = custom_task(multi_label=True, label_threshold=threshold)
        [answer] = complete(task, tmp_path).answer(None, {"logits": logits})
        labels.append(answer["labels"])
    assert labels == [["cat", "good"], ["good"], []]
    assert answer["scores"] == pytest.approx({"cat": 0.5, "good": 0.731}, 1e-3)


def test_a_column_for_each_label(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("text,dog,cat\nx,1,0\ny,0,0\nz,1,1\n")
    task = custom_task(label_columns=("dog", "cat", "rare"))
    refusals.check(lambda: read(task, tmp_path, "train"), "'rare'")
    task = custom_task(label_columns=("dog", "cat"))
    assert task.is_complete and task.labels == ("cat", "dog")
    train = read(task, tmp_path, "train")
    assert task.label_features(train.label)["label_sets"].tolist() == (
        [[0, 1], [0, 0], [1, 1]]
    )
    assert task.settings["label_columns"] == ["dog", "cat"]
    path.write_text(path.read_text().replace("dog", "dog "))
    task = custom_task(label_columns=("dog ", "cat"))
    assert read(task, tmp_path, "train").label == train.label


def test_columns_of_labels_may_be_numbers(tmp_path):
    (tmp_path / "train.csv").write_text("x,1,0\ny,0,1\n")
    task = custom_task("0", label_columns=("1", "02"), header=False)
    assert task.labels == ("1", "2")
    assert read(task, tmp_path, "train").label == ["1", "2"]


def test_cells_with_commas_are_warned_of(tmp_path, caplog):
    write_sets(tmp_path, ["a, b", "a"])
    assert complete(SETS, tmp_path).labels == ("a", "a, b")
    assert "hold a comma or look like lists: 'a, b'; if" in caplog.text
    caplog.clear()
    (tmp_path / "train.tsv").unlink()
    write_lists(tmp_path, [[1, 0], [0, 1]])
    assert complete(SETS, tmp_path).labels == ("0", "1")
    assert "look like lists: '0', '1'; if" in caplog.text


HALF = custom_task(**MANY, dev_share=0.5)
CAT = replace(SETS, labels=("a", "cat"))


@refusals.table(
    {
        "text": ((SETS, ["a|b"]), "expected a list of labels"),
        "null": ((SETS, [None]), "expected a list of labels"),
        "nested": ((SETS, [[["a"]]]), "expected a text or a number"),
        "twice": ((SETS, [["a", "a"]]), "is given twice"),
        "unknown": (
            (CAT, [["b"]]),
            "unknown label 'b', expected one of a, cat",
        ),
    }
)
def test_what_is_no_set_of_labels_is_refused_with_its_place(
    tmp_path, call, parts
):
    task, lists = call
    write_lists(tmp_path, [["a"], *lists])
    refusals.check(
        lambda: read(task, tmp_path, "train"),
        tmp_path / "train.jsonl:2: ",
        *parts,
    )


@pytest.mark.parametrize("task", [SETS, HALF])
def test_a_malformed_cell_is_refused_with_its_first_line(tmp_path, task):
    write_sets(tmp_path, ["a", "b||a", "b||a"])
    refusals.check(
        lambda: task.read(str(tmp_path), ["train"]),
        tmp_path / "train.tsv:3: a label is empty",
    )


def test_a_training_file_without_labels_is_refused(tmp_path):
    write_sets(tmp_path, ["", "[]"])
    refusals.check(
        lambda: complete(SETS, tmp_path),
        "no row of the column 'label' holds a label",
    )


@pytest.mark.parametrize(
    "threshold, settings, part",
    [
        (0.5, {"label_separator": ","}, "'b,c' holds ','"),
        (0.5, {"label_separator": 1}, "task_settings.label_separator is"),
        (0.5, {"label_threshold": "x"}, "task_settings.label_threshold is"),
        *((x, {}, "x: task.label_threshold is") for x in ("x", 0.0, 1.0, True)),
    ],
)
def test_heads_and_settings_that_do_not_fit_are_refused(
    threshold, settings, part
):
    about = {"name": "custom", "labels": ["a", "b,c"], "pairs": False, **MANY}
    about["label_threshold"] = threshold
    refusals.check(lambda: restore_task(about, settings, "x"), part)
