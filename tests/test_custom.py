"""The user's own tables."""

import dataclasses
import json

import numpy as np
import pytest
import refusals
from conftest import write_json_lines
from task_files import (
    CUSTOM,
    CUSTOM_SCORES,
    complete,
    listed,
    make_rows,
    read,
    refusal,
    write_split,
    write_task,
)

from adapter_bert import files
from adapter_bert.data.divisions import HeldOut
from adapter_bert.tasks import text_task
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.new_labels import extend_labels
from adapter_bert.tasks.text_classification import weigh_classes

pytestmark = pytest.mark.older_stack


def test_a_single_label_is_refused(tmp_path):
    rows = [("a", "", "good"), ("b", "", "good")]
    write_split(tmp_path, CUSTOM, "train", rows)
    message = refusal(complete, CUSTOM, tmp_path)
    assert str(tmp_path / "train.tsv") in message
    assert "only the label 'good', expected at least two labels" in message


def test_labels_of_the_users_files_are_sorted(tmp_path):
    rows = [("a", "", label) for label in ("b", "c", "a", "b")]
    write_split(tmp_path, CUSTOM, "train", rows)
    assert not CUSTOM.is_complete
    task = complete(CUSTOM, tmp_path)
    assert task.labels == ("a", "b", "c")
    assert task.describe() == {"labels": ["a", "b", "c"], "pairs": False}


def test_files_without_a_header_have_numbered_columns(tmp_path):
    (tmp_path / "train.tsv").write_text("ham\thello\nspam\twin !\n")
    task = custom_task("1", label_column="0", header=False)
    assert complete(task, tmp_path).labels == ("ham", "spam")
    assert listed(read(task, tmp_path, "train"))[0] == (0, ["hello", "ham"])
    assert "--header=false" in refusal(
        lambda: custom_task("text", label_column="0", header=False)
    )
    # A file without it is refused later, by its line.
    custom_task("9" * 9, label_column="0", header=False)
    for name in ("9" * 10, "-1", "1.0", "\u0661", ""):
        message = refusal(
            lambda name=name: custom_task(name, label_column="0", header=False)
        )
        assert message.startswith(f"the column {name!r} is no number from 0")


@pytest.mark.parametrize(
    "label, part",
    [
        ("a\tb", ": the label 'a\\tb' holds a tab or a line break"),
        ("a\nb", "a tab or a line break"),
        ("b\n", "a tab or a line break"),
        ("", ":2: the label is empty"),
        (" ", ":2: the label is empty"),
    ],
)
def test_labels_that_are_no_words_are_refused(tmp_path, label, part):
    rows = [{"text": "x", "label": "a"}, {"text": "y", "label": label}]
    write_json_lines(tmp_path / "train.jsonl", rows)
    message = refusal(complete, CUSTOM, tmp_path)
    assert message.startswith(str(tmp_path / "train.jsonl")) and part in message


def test_labels_that_look_the_same_are_warned_of_once_and_quoted(
    tmp_path, caplog
):
    labels = ["good", "Good", "good\xa0"]
    rows = [{"text": "x", "label": label} for label in labels]
    write_json_lines(tmp_path / "train.jsonl", rows)
    task, rows = CUSTOM.read(str(tmp_path), ["train"])
    [record] = caplog.records
    assert record.getMessage().startswith(f"{tmp_path / 'train.jsonl'}: labels")
    assert r"'good' and 'good\xa0'" in record.getMessage()
    assert r"'good\xa0' 1 (" in task.summarize(rows["train"])
    assert r"'good\xa0'" in refusal(task.check_label, "GOOD", "x:1")


@pytest.mark.parametrize("spelling", ["True", "true"])
def test_true_is_one_label_in_all_kinds_of_files(tmp_path, spelling):
    other = spelling.swapcase()
    (tmp_path / "train.csv").write_text(f"text,label\na,{spelling}\nb,no\n")
    rows = [{"text": "a", "label": x} for x in (True, "TRUE", other, "no")]
    write_json_lines(tmp_path / "dev.jsonl", rows)
    task, rows = CUSTOM.read(str(tmp_path), ["train", "dev"])
    assert task.labels == tuple(sorted((spelling, "no")))
    assert rows["dev"].label == [spelling, spelling, spelling, "no"]
    # Another letter case of other words is another label.
    write_json_lines(tmp_path / "dev.jsonl", [{"text": "a", "label": "No"}])
    assert "unknown label 'No'" in refusal(read, CUSTOM, tmp_path, "dev")


@pytest.mark.parametrize("more", ["", "c,Maybe\n"])
def test_true_is_no_new_label_beside_true_of_json(tmp_path, more):
    """Nor a label without a weight."""
    (tmp_path / "train.csv").write_text(f"text,label\na,True\nb,False\n{more}")
    old = CUSTOM.with_labels(["true", "false"], "old")
    task = extend_labels(CUSTOM, "", None)
    task = task.restore({"name": "custom", **old.describe()}, "old")
    if not more:
        message = refusal(task.read, str(tmp_path), ["train"])
        assert "is one of the adapter's, false, true" in message
        return
    task, rows = task.read(str(tmp_path), ["train"])
    assert task.labels == ("false", "true", "Maybe")
    assert rows["train"].label == ["true", "false", "Maybe"]
    weighed = weigh_classes(task, '{"True": 3}').learn(rows["train"])
    assert weighed.class_weights == (1.0, 3, 1.0)


def test_true_in_two_spellings_stays_two_labels(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,True\nb,true\n")
    task = complete(CUSTOM, tmp_path)
    assert [task.check_label(x, "") for x in task.labels] == ["True", "true"]
    assert "unknown label 'TRUE'" in refusal(task.check_label, "TRUE", "")


def test_each_file_is_parsed_once(tmp_path, monkeypatch):
    write_task(tmp_path, CUSTOM)
    read_lines, parsed = files.read_lines, []
    monkeypatch.setattr(
        files,
        "read_lines",
        lambda path, *rest: parsed.append(path) or read_lines(path, *rest),
    )
    CUSTOM.read(str(tmp_path), ["train", "dev", "test"])
    names = ("train", "dev", "test")
    assert parsed == [str(tmp_path / f"{name}.tsv") for name in names]
    parsed.clear()
    (tmp_path / "dev.tsv").unlink()
    custom_task(dev_share=0.5).read(str(tmp_path), ["train", "dev", "test"])
    assert parsed == [str(tmp_path / f"{name}.tsv") for name in names[::2]]


def test_labels_are_read_without_the_texts(tmp_path):
    (tmp_path / "train.csv").write_text("label\na\nb\n")
    task, rows = CUSTOM.read(str(tmp_path), [])
    assert task.labels == ("a", "b") and rows == {}
    assert "the labels of the task custom come from its data" in refusal(
        CUSTOM.read, "", []
    )


# A part of the training file as dev set


def many(folder, counts, **options):
    """A task with a training file of so many rows for each label."""
    rows = [(f"text {x} {i}", "", x) for x in counts for i in range(counts[x])]
    write_split(folder, CUSTOM, "train", rows)
    return complete(custom_task(**options), folder)


def test_a_share_of_each_label_is_held_out_and_nothing_is_lost(
    tmp_path, caplog
):
    """A label keeps a row in each part, if it has two."""
    labels = {"a": 40, "b": 20, "c": 4, "d": 2, "e": 1}
    task = many(tmp_path, labels, dev_share=0.1)
    _, rows = task.read(str(tmp_path), ["train", "dev"])
    [record] = caplog.records
    assert "no dev row has the labels e, which have too" in record.getMessage()
    train, dev = rows["train"], rows["dev"]
    assert [dev.label.count(x) for x in labels] == [4, 2, 1, 1, 0]
    assert sorted(listed(train) + listed(dev)) == (
        listed(read(many(tmp_path, labels), tmp_path, "train"))
    )
    # Each alone is the same.
    for split, part in rows.items():
        assert listed(read(task, tmp_path, split)) == listed(part)


def test_the_choice_depends_on_its_seed_alone(tmp_path):
    def dev(seed):
        counts = {"a": 30, "b": 30}
        task = many(tmp_path, counts, dev_share=0.2, split_seed=seed)
        return listed(read(task, tmp_path, "dev"))

    assert dev(1) == dev(1) != dev(2)


def test_rows_of_a_choice_that_lost_no_label_are_those_of_before():
    groups = ["a"] * 12 + ["b"] * 8
    held_out = HeldOut(0.25, 1).choose(range(20), [(x,) for x in groups])
    assert np.flatnonzero(held_out).tolist() == [4, 8, 11, 12, 13]
    # Nor does a label that is given a row change the others' rows.
    more = [*groups, "c", "c"]
    held_out = HeldOut(0.2, 1).choose(range(22), [(x,) for x in more])
    before = HeldOut(0.2, 1).choose(range(20), [(x,) for x in groups])
    assert held_out[:20].tolist() == before.tolist()
    assert held_out[20:].sum() == 1


@pytest.mark.parametrize("share, rows", [(0.001, 9), (0.5, 1)])
def test_a_share_that_leaves_no_dev_set_is_refused(tmp_path, share, rows):
    many(tmp_path, {"a": rows, "b": rows})
    task = custom_task(dev_share=share)
    message = refusal(read, task, tmp_path, "dev")
    assert f"--dev_share={share} takes none" in message


def test_what_was_held_out_stays_so(tmp_path):
    task = many(tmp_path, {"a": 9, "b": 9}, dev_share=0.2)
    description = json.loads(json.dumps({"name": "custom", **task.describe()}))
    assert task.restore(description, "head") == task
    for other in (
        custom_task(dev_share=0.2, split_seed=2),
        custom_task(dev_share=0.3),
    ):
        message = refusal(other.restore, description, "head")
        assert "--dev_share=0.2 --split_seed=1" in message
    # A dev or test file of its own is another matter.
    assert custom_task().restore(description, "head").labels == ("a", "b")


def test_rows_held_out_of_what_was_trained_on_whole_are_warned_of(
    tmp_path, caplog
):
    task = many(tmp_path, {"a": 9, "b": 9})
    description = {"name": "custom", **task.describe()}
    with caplog.at_level("WARNING"):
        custom_task(dev_share=0.2).restore(description, "head")
    assert "it has seen the rows that are held out now" in caplog.text


MANY = {"multi_label": True}
NUMBERED = {"header": False, "text_a_column": "0", "label_column": "3"}
CHOICES = {"choice_columns": ("a", "b")}
SAME_TEXT = {"text_b_column": "text"}
SAME_NUMBER = {"text_a_column": "1", "label_column": "01", "header": False}


@refusals.table(
    {
        "whole": ({"dev_share": 1.0}, "--dev_share is 1.0"),
        "no share": ({"dev_share": float("nan")}, "--dev_share is nan"),
        "seed": ({"dev_share": 0.1, "split_seed": -1}, "--split_seed is -1"),
        "texts": (SAME_TEXT, "--text_a_column and --text_b_column both"),
        "label": ({"label_column": "text"}, "--text_a_column and --label_colu"),
        "usual": (
            {"text_b_column": "label"},
            "both name the column 'label'; expected",
        ),
        "number": (SAME_NUMBER, "both name the column 1;"),
        "numbers": ({"regression": True, **MANY}, "exclude each other"),
        "separator alone": ({"label_separator": ";"}, "is for --multi_label"),
        "threshold alone": ({"label_threshold": 0.4}, "is for --multi_label"),
        "no separator": ({**MANY, "label_separator": ""}, "single character"),
        "line": ({**MANY, "label_separator": "\u2028"}, "neither a tab"),
        "nan": ({**MANY, "label_threshold": float("nan")}, "below 1"),
        "text": ({"label_columns": ("a", "text")}, "--label_columns", "'text'"),
        "twice": (
            {"label_columns": ("a", "a")},
            "--label_columns (2) both nam",
        ),
        "id": ({"id_column": "a", "label_columns": ("b", "a")}, "--id_column"),
        "bar": ({"label_columns": ("a|b",)}, "the label 'a|b' holds"),
        "list": ({"label_columns": ("[a]",)}, "the label '[a]' begin"),
        "scores": (
            {"label_columns": ("a",), "regression": True},
            "--regression and --label_columns exclude each other",
        ),
        "choices": (
            {"label_columns": ("c",), **CHOICES},
            "--label_columns and --choice_columns exclude each other",
        ),
        "one choice": ({"choice_columns": ("a",)}, "names 1 columns, expected"),
        "equal choices": (
            {"choice_columns": ("a", "a")},
            "both name the column 'a'",
        ),
        "choice text": ({"choice_columns": ("text", "b")}, "the column 'text'"),
        "choice label": (
            {"choice_columns": ("a", "label")},
            "name the column 'l",
        ),
        "choice number": (
            {**NUMBERED, "choice_columns": ("1", "01")},
            "both name the column 1;",
        ),
        "digit": ({"choice_columns": ("a", "1")}, "rename the column"),
        "choice scores": (
            {**CHOICES, "regression": True},
            "--regression and --choice_columns exclude each other",
        ),
        "choice name": ({**NUMBERED, **CHOICES}, "is no number"),
    }
)
def test_arguments_that_make_no_sense_are_refused(call, parts):
    refusals.check(lambda: custom_task(**call), *parts)


@pytest.mark.parametrize(
    "label",
    ["1_000", "infinity", "nan", "\u0661", "1,5", "0x1p3", "", "1e", "1e39"],
)
def test_what_is_no_ordinary_number_is_refused_as_a_score(label):
    message = refusal(CUSTOM_SCORES.check_label, label, "x:1")
    assert message == f"x:1: the score is {label!r}, expected a number"


@pytest.mark.parametrize("label", ["1000", "-1.5", "+2.", ".5", "1e-07", " 3 "])
def test_ordinary_numbers_are_scores(label):
    CUSTOM_SCORES.check_label(label, "x:1")
    features = CUSTOM_SCORES.label_features([label])
    assert features["label_scores"].tolist() == [np.float32(label)]


def test_a_dev_file_beside_a_share_is_refused(tmp_path):
    task = many(tmp_path, {"a": 9, "b": 9}, dev_share=0.2)
    write_split(tmp_path, CUSTOM, "dev", [("x", "", "a")])
    for split in ("train", "dev"):
        message = refusal(read, task, tmp_path, split)
        assert "leave out --dev_share" in message
        message = refusal(task.check_files, str(tmp_path), [split])
        assert "leave out --dev_share" in message
    # It does not matter to a prediction.
    write_split(tmp_path, CUSTOM, "test", [("x", "", "a")])
    task.check_files(str(tmp_path), ["test"])


# Results


def test_the_log_says_how_common_labels_are_and_what_scores(tmp_path):
    task = many(tmp_path, {"a": 1, "b": 3})
    train = read(task, tmp_path, "train")
    assert task.summarize(train) == "a 1 (25.0%), b 3 (75.0%)"
    assert task.summarize(make_rows("x")) == ""
    scores = make_rows("x", "y", label=["5", "0.5"])
    assert CUSTOM_SCORES.summarize(scores) == "scores from 0.5 to 5, mean 2.75"


def test_predictions_have_id_label_and_probability(tmp_path, monkeypatch):
    write_json_lines(
        tmp_path / "train.jsonl",
        [{"text": "x", "label": x} for x in ("bon marché", "東")],
    )
    rows = [{"text": "x", "nr": "k 7"}, {"text": "y", "nr": "k8"}]
    write_json_lines(tmp_path / "test.jsonl", rows)
    task, rows = custom_task(id_column="nr").read(str(tmp_path), ["test"])
    kept = task.keep(rows["test"])
    assert (kept.text_a, kept.text_b, kept.label) == (None, None, None)
    logits = np.log(np.array([[1, 3], [4, 1]], np.float32))
    _, path = task.write_predictions(str(tmp_path), kept, {"logits": logits})
    content = open(path, encoding="utf-8").read()
    lines = [line.split("\t") for line in content.splitlines()]
    assert lines[0] == ["id", "label", "probability"]
    assert [x[:2] for x in lines[1:]] == [["k 7", "東"], ["k8", "bon marché"]]
    assert [float(line[2]) for line in lines[1:]] == pytest.approx([0.75, 0.8])
    # Row by row they are the same.
    monkeypatch.setattr(text_task, "AT_ONCE", 1)
    task.write_predictions(str(tmp_path), kept, {"logits": logits})
    assert open(path, encoding="utf-8").read() == content


def test_predicted_scores_have_id_and_number(tmp_path):
    task, _ = write_task(tmp_path, CUSTOM_SCORES, count=3)
    scores = np.array([1.5, -1, 7.25e-5], np.float32)
    results, path = task.write_predictions(
        str(tmp_path), read(task, tmp_path, "test"), {"scores": scores}
    )
    assert open(results).read() == "1.5\n-1.0\n7.249999907799065e-05\n"
    # A scale of the user's own is of any size.
    assert open(path).read() == "id\tlabel\n0\t1.5\n1\t-1\n2\t7.25e-05\n"


@pytest.mark.parametrize("name", ["a\nb", "a\n", "a\tb", "a\t", "twice"])
def test_an_id_that_does_not_name_a_row_is_refused(tmp_path, name):
    names = ["twice", "other", name]
    rows = [{"text": "x", "nr": name} for name in names]
    path = tmp_path / "test.jsonl"
    write_json_lines(path, rows)
    task = dataclasses.replace(custom_task(id_column="nr"), labels=("a", "b"))
    message = refusal(read, task, tmp_path, "test")
    twice = "the id 'twice' is also the id of line 1; ids must be unique"
    assert message.startswith(
        f"{path}:3: {twice if name == 'twice' else 'the row'}"
    )
