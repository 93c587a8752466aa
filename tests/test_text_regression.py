"""Numbers as labels, in whatever unit."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from conftest import (
    SENTENCES,
    module_fixture,
    read_adapter,
    read_json,
    write_table,
)
from exchanged import read_one
from numpy.testing import assert_allclose, assert_array_equal
from task_files import make_rows, refusal
from tiny_artifacts import make_artifact, read_base

from adapter_bert import files
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.commands import merge
from adapter_bert.exchange import foreign_adapters
from adapter_bert.exchange.foreign_base import exported
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.multi_task import multi_task
from adapter_bert.tasks.text_regression import AS_IS, STS_B, LabelUnit

TASK = custom_task(regression=True)
PERCENT = ("5", "25", "50", "75", "95")
UNIT = LabelUnit(mean=50.0, deviation=32.0, low=5.0, high=95.0)
DESCRIPTION = {"name": "custom", "regression": True, "pairs": False}


def rows_of(labels):
    return make_rows(*map(str, range(len(labels))), label=list(labels))


@pytest.mark.parametrize(
    "labels",
    [
        PERCENT,
        ("1987", "1999.5", "2024"),
        ("1e6", "2e6", "-5e5"),
        ("0.001", "0.002"),
        ("3.4e38", "-3.4e38"),
        ("1000000.0", "1000010.0"),
    ],
)
def test_a_head_gives_deviations_and_answers_in_the_labels_unit(
    labels, tiny_config
):
    task = TASK.learn(rows_of(labels))
    numbers = np.array(labels, float)
    description = json.loads(json.dumps({**task.describe(), "name": "custom"}))
    unit = description["label_unit"]
    assert unit["mean"] == numbers.mean()
    assert unit["deviation"] == numbers.std()
    assert (unit["low"], unit["high"]) == (numbers.min(), numbers.max())
    restored = restore_task(description, {}, "head")
    assert restored == TASK.restore(description, "") == task
    # What the head learns, and what becomes of an output that is right.
    wanted = (numbers - numbers.mean()) / numbers.std()
    head = restored.build_head(
        tiny_config, lambda name, shape, _: tf.zeros(shape)
    )
    features = restored.label_features(list(labels))
    losses = head.loss({"scores": tf.constant(wanted, tf.float32)}, features)
    assert_allclose(losses, 0, atol=1e-2)
    outputs = {"scores": wanted.astype(np.float32)}
    answers = restored.answer(None, restored.decode(None, None, outputs))
    assert_allclose([answer["value"] for answer in answers], numbers, rtol=1e-5)


@pytest.mark.parametrize(
    "labels, numbers",
    [
        ((" 2,5", "1,000 "), (2.5, 1.0)),
        (("0,125", "-0,500"), (0.125, -0.5)),
        (("1,250", "2"), None),
    ],
)
def test_decimal_commas(tmp_path, labels, numbers):
    rows = [(f"text {n}", label) for n, label in enumerate(labels)]
    write_table(tmp_path / "train.tsv", rows)
    arguments = str(tmp_path), ["train"]
    if numbers is None:
        assert "the score is '1,250'" in refusal(TASK.read, *arguments)
        return
    _, read = TASK.read(*arguments)
    assert tuple(map(float, read["train"].label)) == numbers
    # The whole file decides, not each part.
    task = custom_task(regression=True, dev_share=0.5, split_seed=1)
    _, parts = task.read(str(tmp_path), ["train", "dev"])
    both = [float(x) for part in parts.values() for x in part.label]
    assert sorted(both) == sorted(numbers)


@pytest.mark.parametrize("task", [TASK, STS_B], ids=str)
def test_heads_without_a_unit_stay_as_they_are(task):
    """Older ones, other programs' and GLUE's."""
    description = {**DESCRIPTION, "name": task.name, "pairs": task is STS_B}
    restored = task.restore(description, "head").learn(rows_of(("1", "5")))
    assert restored.unit == AS_IS
    assert "label_unit" not in restored.describe()
    outputs = {"scores": np.float32([-0.0, 2.5])}
    assert restored.decode(None, None, outputs) is outputs
    base = Weights("base", {}, None)
    assert restored.begin_head(base) is base


def test_a_run_of_several_tasks_goes_on_in_the_unit_of_each():
    several = multi_task([("sts-b", STS_B), ("a", TASK)], "uniform")
    for tasks, unit in (
        ({"a": {"label_unit": UNIT._asdict()}}, UNIT),
        ({"a": {}}, AS_IS),
        ({"a": "x"}, AS_IS),
        ("x", AS_IS),
    ):
        again = several.go_on({"tasks": tasks}, "run.json")
        assert again.tasks["a"].unit == unit
        assert again.tasks["sts-b"] == STS_B


def test_another_training_keeps_the_unit_of_the_head():
    restored = TASK.restore(
        {**DESCRIPTION, "label_unit": UNIT._asdict()}, "head"
    )
    assert restored.learn(rows_of(("0.1", "0.2"))) is restored
    assert STS_B.learn(rows_of(("3", "3"))) is STS_B


@pytest.mark.parametrize(
    "labels, message",
    [
        (("7",), "a.tsv: every label of 1 rows is 7, expected numbers that"),
        (("50", "50.0", "5e1"), "every label of 3 rows is 50"),
        (("0", "-0"), "every label of 2 rows is 0"),
        (("1700000001", "1700000002"), "hardly differ in float32; subtract"),
        (("1e-44", "2e-44"), "labels from 1e-44 to 2e-44 hardly differ"),
    ],
)
@pytest.mark.parametrize("task", [TASK, replace(TASK, unit=AS_IS)])
def test_labels_that_are_alike_are_refused(task, labels, message):
    assert message in refusal(task.learn, rows_of(labels))


@pytest.mark.parametrize(
    "unit",
    [
        5,
        {"mean": 1.0},
        *(
            {**UNIT._asdict(), **change}
            for change in (
                {"more": 1.0},
                {"mean": "1"},
                {"low": True},
                {"mean": 1e39},
                {"mean": float("nan")},
                {"deviation": 0.0},
                {"deviation": -1.0},
            )
        ),
    ],
)
def test_a_unit_that_is_none_is_refused(unit):
    described = {**DESCRIPTION, "label_unit": unit}
    message = refusal(TASK.restore, described, "head.json")
    assert message.startswith("head.json: task.label_unit is ")
    assert message.endswith("mean, deviation, low, high, the deviation above 0")


def test_labels_far_from_the_trainings_are_counted():
    task = replace(TASK, unit=UNIT)
    assert task.summarize(rows_of(("-27", "127"))).endswith("mean 50")
    about = task.summarize(rows_of(("5", "128", "1900", "-28")))
    assert about.endswith(
        "; 3 far from the training's, 5 to 95 (the first: a.tsv:2)"
    )
    assert "far" not in TASK.summarize(rows_of(("1900",)))


@module_fixture
def adapters(tiny_bert, tmp_path_factory):
    """Folders of one adapter, in deviations and as in older ones."""
    place = tmp_path_factory.mktemp("regressions")
    for name, more in (("unit", {"label_unit": UNIT._asdict()}), ("as_is", {})):
        described = {**DESCRIPTION, **more}
        task = restore_task(described, {}, "")
        make_artifact(
            place / name, tiny_bert, "lora(rank=2)", task, described, seed=4
        )
    return place


def test_heads_for_other_programs_have_the_unit_in_their_last_layer(
    adapters, tiny_bert, tmp_path
):
    base, config, _ = read_base(tiny_bert)
    plain = read_adapter(adapters / "as_is")
    value_of = plain.weights.read
    artifacts = merge.read_all(base, [str(adapters / "unit")])
    merged = merge.add(base, artifacts, [1.0])
    values = merged["values"]
    weights, bias = values["output_weights"], values["output_bias"]
    assert_allclose(weights, value_of("output_weights") * 32)
    assert_allclose(bias, value_of("output_bias") * 32 + 50)
    for name, expected in (("unit", values.__getitem__), ("as_is", value_of)):
        ours = exported(read_adapter(adapters / name), name)
        for program in foreign_adapters.PROGRAMS:
            folder = str(tmp_path / f"{program}-{name}")
            foreign_adapters.write(program, folder, ours, "card")
            theirs = read_one(folder, config)
            assert "label_unit" not in theirs.task
            for part in ("output_weights", "output_bias"):
                assert_array_equal(theirs.values[part], expected(part))
    # A training that begins with such a head begins with its answers.
    shapes = {name: value.shape for name, value in values.items()}
    task = replace(TASK, unit=UNIT)
    begun = task.begin_head(Weights("merged", shapes, values.__getitem__))
    for name in ("output_weights", "output_bias"):
        assert_allclose(begun.read(name), value_of(name), atol=1e-5)
    kernel = "bert/pooler/dense/kernel"
    assert begun.read(kernel) is values[kernel]


@pytest.mark.older_stack
def test_a_run_answers_in_the_unit_and_older_runs_go_on(
    classify, tiny_flags, folders, caplog
):
    data = folders("data")
    numbers = {"good": "2020", "bad": "1980"}
    rows = [(text, numbers[label]) for text, label in SENTENCES]
    write_table(data / "train.tsv", rows * 5)
    write_table(data / "dev.tsv", [*rows, ("a cat", "5")])
    flags = {**tiny_flags, "data_dir": data, "regression": True}
    flags["num_train_epochs"] = 1
    classify(**flags, do_eval=True)
    out = flags["output_dir"]
    first = read_json(out, "eval_results.json")
    # Of answers near 0 or near the mean of another unit it would be greater.
    assert first["eval_loss"] < 1.2 * (20**2 * 8 + 1995**2) / 9
    run = read_json(out, "run.json")
    unit = {"mean": 2000.0, "deviation": 20.0, "low": 1980.0, "high": 2020.0}
    assert run["task"]["label_unit"] == unit
    adapter = read_json(out, "adapter", "adapter_config.json")
    assert adapter["task"]["label_unit"] == unit
    # The folder knows the unit; the training file is not read.
    (data / "train.tsv").rename(data / "train")
    with caplog.at_level("INFO", logger="absl"):
        classify(**{**flags, "do_train": False}, do_eval=True)
    assert "1 far from the training's, 1980 to 2020" in caplog.text
    assert (
        read_json(out, "eval_results.json")["eval_loss"] == first["eval_loss"]
    )
    # A run of before goes on as it was.
    (data / "train").rename(data / "train.tsv")
    del run["task"]["label_unit"]
    files.write_json(str(out / "run.json"), run)
    classify(**flags, do_eval=True)
    assert "label_unit" not in read_json(out, "run.json")["task"]
    again = read_json(out, "eval_results.json")
    assert again["eval_loss"] > 5 * first["eval_loss"]
