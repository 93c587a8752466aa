"""Classification: what an evaluation tells, and how classes are weighed."""

import re
from dataclasses import replace

import numpy as np
import pytest
import refusals
import task_files
import tensorflow as tf
from conftest import ROOT, cells, read_json, read_lines

from adapter_bert.data.input_pipeline import Texts
from adapter_bert.data.tables import Layout
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.multi_label import MultiLabel
from adapter_bert.tasks.multiple_choice import MultipleChoice
from adapter_bert.tasks.text_classification import (
    HARDEST,
    ClassificationHead,
    TextClassification,
    weigh_classes,
)
from adapter_bert.tasks.text_regression import STS_B, TextRegression

TASK = replace(custom_task(), labels=("a", "b", "c"))


def make_rows(labels, text_b=None):
    texts = [f"text {n}" for n in range(len(labels))]
    return task_files.make_rows(*texts, text_b=text_b, label=list(labels))


def report(tmp_path, rows, logits, task=TASK):
    """The lines of the tables that an evaluation writes, by name."""
    features = Texts.from_rows([], task.label_features(rows.label))
    predictions = {"logits": np.asarray(logits, np.float32)}
    paths = task.write_report(str(tmp_path), rows, features, predictions, "x")
    tables = {}
    for path in paths:
        name = path.rsplit("/", 1)[1]
        assert name.endswith("_x.tsv")
        tables[name[: -len("_x.tsv")]] = read_lines(path)
    return tables


@pytest.mark.parametrize(
    "make, texts, choices, columns",
    [
        (TextClassification, (3,), (), ("text",)),
        (TextRegression, (0, 1), (), ("text", "text_b")),
        (MultiLabel, ("said", "meant"), (), ("said", "meant")),
        (MultipleChoice, (0,), (1, 2), ("text", "choice0", "choice1")),
        (MultipleChoice, ("q", "r"), ("x", "y"), ("q", "r", "x", "y")),
    ],
)
def test_a_task_knows_of_as_many_texts_as_its_files_have(
    make, texts, choices, columns
):
    layout = Layout(*texts, choices=choices)
    task = make("x", labelled=layout, unlabelled=layout)
    assert task.columns == columns
    with pytest.raises(ValueError, match=f"files have {len(columns)} texts"):
        replace(task, columns=(*columns, "more"))


def test_the_guide_s_task_reads_pairs():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    code, *_ = re.findall(r"```python\n(.*?)```", page, re.S)
    names = {}
    exec(
        code,
        {"TextClassification": TextClassification, "Layout": Layout},
        names,
    )
    [task] = names.values()
    assert task.columns == ("text", "text_b")
    assert task.describe()["pairs"]


def test_each_label_has_a_row_in_the_report(tmp_path):
    tables = report(tmp_path, make_rows("aabc"), np.eye(3)[[0, 1, 1, 1]])
    assert tables["eval_labels"] == [
        "label\texamples\tpredicted\tprecision\trecall\tf1",
        "a\t2\t1\t1.0000\t0.5000\t0.6667",
        "b\t1\t3\t0.3333\t1.0000\t0.5000",
        "c\t1\t0\t0.0000\t0.0000\t0.0000",
    ]
    assert tables["eval_confusion"] == [
        "label\ta\tb\tc",
        "a\t1\t1\t0",
        "b\t0\t1\t0",
        "c\t0\t1\t0",
    ]


def test_the_hardest_rows_come_first(tmp_path):
    second = ["x", "two\nlines\tand a tab", "z"]
    rows = make_rows("abc", second)
    logits = np.log([[0.7, 0.2, 0.1], [0.6, 0.1, 0.3], [0.5, 0.25, 0.25]])
    lines = report(tmp_path, rows, logits)["eval_hardest"]
    assert lines == [
        "line\tlabel\tpredicted\tprobability_of_label\tloss\ttext\ttext_b",
        "2\tb\ta\t0.100000\t2.3026\ttext 1\ttwo lines and a tab",
        "3\tc\ta\t0.250000\t1.3863\ttext 2\tz",
        "1\ta\ta\t0.700000\t0.3567\ttext 0\tx",
    ]


def test_the_hardest_rows_are_few(tmp_path):
    rows = make_rows("a" * (HARDEST + 7))
    logits = np.random.default_rng(0).standard_normal((len(rows), 3))
    table = report(tmp_path, rows, logits)["eval_hardest"][1:]
    assert len(table) == HARDEST
    losses = [float(line.split("\t")[4]) for line in table]
    assert losses == sorted(losses, reverse=True)


def test_balanced_weights_are_inverse_to_counts():
    task = weigh_classes(TASK, "balanced").learn(make_rows("aaabbc"))
    assert task.class_weights == pytest.approx((6 / 9, 6 / 6, 6 / 3))
    assert task.training_settings == {"class_weights": "balanced"}
    # A class that no row has divides nothing.
    two = weigh_classes(TASK, "balanced").learn(make_rows("aab"))
    assert two.class_weights[:2] == pytest.approx((3 / 4, 3 / 2))
    assert TASK.learn(make_rows("aab")) is TASK
    assert TASK.training_settings == {"class_weights": None}


def test_named_weights():
    task = weigh_classes(TASK, '{"b": 2.5}').learn(make_rows("abc"))
    assert task.class_weights == (1.0, 2.5, 1.0)
    refusals.check(
        lambda: weigh_classes(TASK, '{"d": 1}').learn(make_rows("abc")),
        "--class_weights: unknown label 'd', expected one of a, b, c",
    )


@pytest.mark.parametrize(
    "text",
    ["", "even", "[1]", '{"a": 0}', '{"a": "1"}', '{"a": true}', '{"a": 1e999}']
    + ['{"a": 1e39}', '{"a": 1%s}' % ("0" * 400)]
    + ["[" * 100000],
)
def test_weights_that_are_none(text):
    refusals.check(
        lambda: weigh_classes(TASK, text), "expected balanced or an object of"
    )


def test_a_task_without_labels_cannot_be_weighed():
    refusals.check(
        lambda: weigh_classes(STS_B, "balanced"),
        "which sts-b with these flags has not",
    )


def test_weights_multiply_the_losses(tiny_config):
    def create(name, shape, initializer):
        return tf.zeros(shape)

    logits = tf.constant([[1.0, 2.0, 3.0]] * 3)
    features = {"label_ids": tf.constant([2, 0, 1])}
    plain = ClassificationHead(3, tiny_config, create)
    heavy = ClassificationHead(3, tiny_config, create, weights=(1.0, 2.0, 0.5))
    losses = plain.loss({"logits": logits}, features).numpy()
    weighed = heavy.loss({"logits": logits}, features).numpy()
    assert weighed == pytest.approx(losses * [0.5, 1.0, 2.0])


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_run_with_weights(classify, tiny_flags):
    flags = {**tiny_flags, "do_eval": True, "num_train_epochs": 1}
    out = flags["output_dir"]
    classify(**flags, class_weights='{"good": 50}')
    record = read_json(out / "run.json")
    assert record["training"]["class_weights"] == {"good": 50}
    chosen = cells(out / "eval_confusion.tsv")[1:]
    assert [row[2] for row in chosen] == ["4", "4"]
    loss = read_json(out / "eval_results.json")["eval_loss"]
    # Another weighing is another training; an evaluation needs none.
    refusals.check(lambda: classify(**flags), "training.class_weights")
    classify(**{**flags, "do_train": False})
    assert read_json(out / "eval_results.json")["eval_loss"] == loss
