"""All tasks over tables: examples, features, scores and predictions."""

import itertools
import json
import types

import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import cells, read_json
from hypothesis import given, settings
from task_files import (
    CLASSIFICATIONS,
    CUSTOM,
    EVERY_KIND,
    EVERY_TASK,
    labels_of,
    listed,
    make_rows,
    read,
    refusal,
    split_of,
    write_split,
    write_task,
)
from test_table_files import FILE_CONTENTS

from adapter_bert.data.tokenization import make_row
from adapter_bert.errors import UserError
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.kinds import TASKS, get_task
from adapter_bert.tasks.multi_task import multi_task

# Reading


def test_tasks_are_found_by_name_in_any_case():
    for name, task in TASKS.items():
        assert get_task(name) is get_task(name.upper()) is task
        assert task.name == name == name.lower()


def test_an_unknown_task_is_refused_with_the_known_ones():
    message = refusal(get_task, "mnist")
    assert "'mnist'" in message
    assert all(name in message for name in [*TASKS, "custom"])


@EVERY_TASK
@EVERY_KIND
def test_examples_are_the_rows_of_the_files(tmp_path, task, kind):
    task, rows = write_task(tmp_path, task)
    layout = task.unlabelled if kind == "test" else task.labelled
    split = split_of(task, kind)
    of_file = read(task, tmp_path, split)
    assert of_file.lines.tolist() == [
        i + layout.header for i in range(len(rows))
    ]
    texts_a, texts_b, labels = map(list, zip(*rows))
    assert of_file.text_a == texts_a
    assert of_file.text_b == (None if layout.text_b is None else texts_b)
    assert of_file.label == (None if kind == "test" else labels)
    assert of_file.row_id is None


def test_a_test_file_may_hold_labels_and_they_are_not_read(tmp_path):
    write_split(tmp_path, CUSTOM, "train", [("a", "", "x"), ("b", "", "y")])
    (tmp_path / "test.tsv").write_text("text\tlabel\na\tunknown\n")
    assert listed(read(CUSTOM, tmp_path, "test")) == [(1, ["a"])]


@pytest.mark.newer_stack
@EVERY_TASK
@given(content=FILE_CONTENTS)
def test_any_bytes_are_read_or_refused(tmp_path_factory, task, content):
    folder = tmp_path_factory.getbasetemp() / "any_bytes"
    folder.mkdir(exist_ok=True)
    for kind in ("train", "dev", "test"):
        split = split_of(task, kind)
        path = folder / f"{split}.tsv"
        path.write_bytes(content)
        try:
            complete, rows = task.read(str(folder), [split])
        except UserError as error:
            assert str(folder) in str(error)
            continue
        rows = rows[split]
        assert 0 < len(rows) <= content.count(b"\n") + 1
        for label in rows.label or ():
            complete.check_label(label, "")


@EVERY_TASK
def test_a_trained_tasks_description_restores_it(tmp_path, task):
    complete, _ = write_task(tmp_path, task)
    assert complete.is_complete
    complete = complete.learn(read(task, tmp_path, "train"))
    description = json.loads(json.dumps(complete.describe()))
    description["name"] = task.name
    assert task.restore(description, "head") == complete
    assert complete.restore(description, "head") == complete


@pytest.mark.parametrize(
    "change, words",
    [
        ({"labels": []}, "without labels"),
        ({"labels": "01"}, "without labels"),
        ({"labels": None}, "without labels"),
        ({"labels": ["1", "0"]}, "for the labels 1, 0"),
        ({"pairs": False}, "with pairs: False"),
        ({"name": "cola"}, "trained on the task cola, not on mrpc"),
    ],
)
def test_a_head_of_another_task_is_refused(change, words):
    task = get_task("mrpc")
    description = {**task.describe(), "name": "mrpc", **change}
    assert words in refusal(task.restore, description, "head.npz")


KINDS = {
    "classification": custom_task(),
    "multi-label": custom_task(multi_label=True),
    "regression": custom_task(regression=True),
    "multiple choice": custom_task(choice_columns=("a", "b")),
}


@pytest.mark.parametrize("name, other", [*itertools.permutations(KINDS, 2)])
def test_a_head_of_another_kind_is_refused(name, other):
    labels = {"labels": ["a", "b"]}
    description = {"name": "custom", **labels, **KINDS[other].describe()}
    message = refusal(KINDS[name].restore, description, "head.npz")
    assert (
        f", of the kind {other}; not on custom, of the kind {name}" in message
    )


# Rows of tokens


def naive_lengths(len_a, len_b, room):
    """google-research/bert's `_truncate_seq_pair`."""
    a, b = [0] * len_a, [0] * len_b
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return len(a), len(b)


SPECIAL = types.SimpleNamespace(
    classify_id=-1,
    separate_id=-2,
    between=[-2],
    second_segment=1,
    keeps_end=False,
)
TOKENS = st.integers(0, 40)


@settings(max_examples=300)
@given(TOKENS, TOKENS, st.integers(3, 60))
def test_pairs_are_cut_as_if_token_by_token(len_a, len_b, max_seq_length):
    a, b = list(range(100, 100 + len_a)), list(range(200, 200 + len_b))
    tokens, segments = make_row(a, b, SPECIAL, max_seq_length)
    kept_a, kept_b = naive_lengths(len_a, len_b, max_seq_length - 3)
    assert tokens == [-1, *a[:kept_a], -2, *b[:kept_b], -2]
    assert segments == [0] * (kept_a + 2) + [1] * (kept_b + 1)
    assert len(tokens) <= max_seq_length
    # A single text is cut at its end.
    tokens, segments = make_row(a, None, SPECIAL, max_seq_length)
    assert tokens == [-1, *a[: max_seq_length - 2], -2]
    assert segments == [0] * len(tokens)


@pytest.mark.parametrize(
    "names, pair",
    [("sst-2", False), ("mrpc", True), ("copa", True), ("cola,mrpc", True)],
)
def test_the_shortest_rows_hold_a_token_of_each_text(names, pair):
    tasks = [(name, get_task(name)) for name in names.split(",")]
    task = multi_task(tasks, "uniform") if tasks[1:] else tasks[0][1]
    texts = [[100] * 5, [200] * 5 if pair else None]
    tokens, _ = make_row(*texts, SPECIAL, task.least_length)
    assert tokens == ([-1, 100, -2, 200, -2] if pair else [-1, 100, -2])


@pytest.mark.parametrize(
    "length, single, pair",
    [(3, 2, 3), (4, 1, 3), (5, 0, 3), (7, 0, 1), (8, 0, 0)],
)
def test_rows_that_are_cut_are_counted(tokenizer, length, single, pair):
    texts = make_rows("the cat", "a dog ran", "the")
    task = get_task("sst-2")
    assert task.featurize(texts, tokenizer, length).cut_rows == single
    task = get_task("mrpc")
    texts = make_rows("the cat", "a dog ran", "the", text_b=["a dog"] * 3)
    if length >= task.least_length:
        assert task.featurize(texts, tokenizer, length).cut_rows == pair


def test_an_empty_second_text_is_a_pair_and_no_second_text_is_none(tokenizer):
    cls, sep = tokenizer.classify_id, tokenizer.separate_id
    [words] = tokenizer.encode_ids(["the cat"])
    for second, tokens, segments in (
        ([""], [cls, *words, sep, sep], [0, 0, 0, 0, 1]),
        (None, [cls, *words, sep], [0, 0, 0, 0]),
    ):
        rows = make_rows("the cat", text_b=second)
        features = get_task("mrpc").featurize(rows, tokenizer, 8)
        assert features.tokens.tolist() == tokens
        assert features.segments.tolist() == segments


# Scores and predictions


def make_predictions(task, features, shift):
    """What is sure of the right answer, or of one `shift` further."""
    if "label_scores" in features.labels:
        return {"scores": features.labels["label_scores"] * (1 - 2 * shift)}
    classes = len(task.labels)
    chosen = (features.labels["label_ids"] + shift) % classes
    return {"logits": 100 * np.eye(classes, dtype=np.float32)[chosen]}


@EVERY_TASK
def test_right_predictions_score_highest_and_wrong_ones_low(
    tmp_path, tokenizer, task
):
    regression = task not in CLASSIFICATIONS.values()
    complete, _ = write_task(tmp_path, task)
    rows = read(complete, tmp_path, split_of(complete, "dev"))
    features = complete.featurize(rows, tokenizer, 16)
    right, wrong = (
        complete.evaluate(
            complete.keep(rows),
            features,
            make_predictions(complete, features, shift),
        )
        for shift in (0, 1)
    )
    assert list(right) == list(wrong) == [*task.metrics, "loss"]
    assert right.pop("loss") < 1e-6
    assert set(right.values()) == {1.0}
    # Nats of a confident error, or squared distances to twice the scores.
    labels = np.array(labels_of(task), float) if regression else None
    loss = np.mean(4 * labels**2) if regression else 100.0
    assert wrong.pop("loss") == pytest.approx(loss)
    assert max(wrong.values()) <= 0.0


@EVERY_TASK
def test_columns_of_the_numbers_are_named_in_order(tmp_path, task, caplog):
    task, _ = write_task(tmp_path, task, count=2)
    labels = getattr(task, "labels", None)
    outputs = {"scores": np.ones(2)}
    if labels:
        outputs = {"logits": np.zeros((2, len(labels)))}
    rows = task.keep(read(task, tmp_path, split_of(task, "test")))
    with caplog.at_level("INFO", logger="absl"):
        path, _ = task.write_predictions(str(tmp_path), rows, outputs, "x")
    described = read_json(tmp_path / "test_results_x.json")
    assert described == {"columns": list(labels or ["value"])}
    assert len(cells(path)[0]) == len(described["columns"])
    shown = json.dumps(described["columns"])
    assert f"columns of {path}, in order: {shown}" in caplog.text


@pytest.mark.parametrize(
    "task",
    [task for name, task in TASKS.items() if name in CLASSIFICATIONS],
    ids=str,
)
def test_predictions_are_written_as_bert_and_as_glue_want_them(tmp_path, task):
    task, _ = write_task(tmp_path, task, count=3)
    classes = len(task.labels)
    # The second class is three times as likely as each other one.
    logits = np.zeros((3, classes), np.float32)
    logits[:, 1] = np.log(3)
    logits[1] = logits[1, ::-1]
    paths = task.write_predictions(
        str(tmp_path),
        task.keep(read(task, tmp_path, split_of(task, "test"))),
        {"logits": logits},
    )
    assert paths == (
        str(tmp_path / "test_results.tsv"),
        str(tmp_path / "test_predictions.tsv"),
    )
    rows = np.loadtxt(paths[0], delimiter="\t")
    np.testing.assert_allclose(rows, np.exp(logits) / (classes + 2), rtol=1e-6)
    chosen = [task.labels[i] for i in logits.argmax(axis=-1)]
    lines = (tmp_path / "test_predictions.tsv").read_text()
    assert lines == "index\tprediction\n" + "".join(
        f"{i}\t{label}\n" for i, label in enumerate(chosen)
    )
