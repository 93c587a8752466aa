"""Tasks: their files, the recorded features, scores and predictions."""

import dataclasses
import json
import re
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import metrics
from errors import UserError
from tasks import TASKS, get_task, text_classification
from tasks.custom import custom_task
from tasks.text_classification import Example, Layout, make_row, read_rows
from tokenization import FullTokenizer

PROPERTY = hypothesis.settings(
    derandomize=True, deadline=None, max_examples=100
)
CUSTOM = custom_task("text", None, "label")
CUSTOM_PAIR = custom_task("text", "other text", "label")
ALL_TASKS = [*TASKS.values(), CUSTOM, CUSTOM_PAIR]
EVERY_TASK = pytest.mark.parametrize(
    "task", ALL_TASKS, ids=[*TASKS, "custom", "custom-pair"]
)
EVERY_SPLIT = pytest.mark.parametrize("split", ["train", "dev", "test"])


@pytest.fixture(scope="module")
def tokenizer(tiny_bert):
    return FullTokenizer(str(tiny_bert / "vocab.txt"))


def write_split(folder, task, split, rows):
    """Writes (text_a, text_b, label) rows where the task looks for them."""
    layout = task.unlabelled if split == "test" else task.labelled
    columns = [layout.text_a, layout.text_b, layout.label]
    names = [column for column in columns if isinstance(column, str)]
    places = [
        names.index(column) + 1 if isinstance(column, str) else column
        for column in columns
    ]
    width = 1 + max(place for place in places if place is not None)

    def line(values, rest):
        cells = [rest] * width
        for place, value in zip(places, values):
            if place is not None:
                cells[place] = value
        return "\t".join(cells) + "\n"

    header = line(columns if names else ["header"] * 3, "another column")
    (folder / f"{split}.tsv").write_text(
        (header if layout.header else "")
        + "".join(line(row, f"rest {i}") for i, row in enumerate(rows)),
        encoding="utf-8",
    )
    return int(layout.header)


def write_task(folder, task, count=6):
    """Writes all splits, and returns the completed task and the rows."""
    labels = task.labels or ("bad", "good", "no idea")
    rows = [
        (f'text "{i}', f" other '{i}", labels[i % len(labels)])
        for i in range(count)
    ]
    for split in ("train", "dev", "test"):
        write_split(folder, task, split, rows)
    return task.complete(str(folder)), rows


def refusal(function, *arguments):
    with pytest.raises(UserError) as raised:
        function(*arguments)
    return str(raised.value)


# Reading


@pytest.mark.parametrize("name", sorted(TASKS))
def test_tasks_are_found_by_name_in_any_case(name):
    assert get_task(name) is TASKS[name]
    assert get_task(name.upper()) is TASKS[name]
    assert TASKS[name].name == name == name.lower()


def test_an_unknown_task_is_refused_with_the_known_ones():
    message = refusal(get_task, "mnist")
    assert "'mnist'" in message
    assert all(name in message for name in [*TASKS, "custom"])


@EVERY_TASK
@EVERY_SPLIT
def test_examples_are_the_rows_of_the_files(tmp_path, task, split):
    task, rows = write_task(tmp_path, task)
    layout = task.unlabelled if split == "test" else task.labelled
    assert task.examples(str(tmp_path), split) == [
        Example(
            f"{split}-{number + layout.header}",
            text_a,
            text_b if layout.text_b is not None else None,
            label if split != "test" else None,
        )
        for number, (text_a, text_b, label) in enumerate(rows)
    ]


def test_byte_order_mark_windows_newlines_and_last_lines_are_no_rows(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_bytes(
        b'\xef\xbb\xbflabel\ttext\r\ngood\t"a\r\nbad\tb\ngood\tc\n\r\n\n'
    )
    task = CUSTOM.complete(str(tmp_path))
    assert task.examples(str(tmp_path), "train") == [
        Example("train-1", '"a', None, "good"),
        Example("train-2", "b", None, "bad"),
        Example("train-3", "c", None, "good"),
    ]


def test_empty_lines_of_a_file_with_one_column_are_empty_texts(tmp_path):
    (tmp_path / "test.tsv").write_text("text\na\n\nb\n\n")
    rows = read_rows(str(tmp_path / "test.tsv"), Layout("text"))
    assert rows == [(1, ["a"]), (2, [""]), (3, ["b"]), (4, [""])]


def test_lines_end_at_newlines_only(tmp_path):
    path = tmp_path / "data.tsv"
    path.write_bytes("a\u2028b\x0cc\x85\td\n".encode())
    rows = read_rows(str(path), Layout(0, 1, header=False))
    assert rows == [(0, ["a\u2028b\x0cc\x85", "d"])]


def test_columns_are_chosen_by_name_wherever_they_are(tmp_path):
    path = tmp_path / "data.tsv"
    path.write_text("x\tlabel\ty\ttext\n1\tgood\t2\tthe cat\t3\n")
    rows = read_rows(str(path), Layout("text", label="label"))
    assert rows == [(1, ["the cat", "good"])]


def test_a_test_file_may_hold_labels_and_they_are_not_read(tmp_path):
    write_split(tmp_path, CUSTOM, "train", [("a", "", "x"), ("b", "", "y")])
    (tmp_path / "test.tsv").write_text("text\tlabel\na\tunknown\n")
    task = CUSTOM.complete(str(tmp_path))
    assert task.examples(str(tmp_path), "test") == [Example("test-1", "a")]


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"", "is empty"),
        (b"\n\n", ":2: found 1 .* at least 5"),
        (b"header\n", "holds no rows"),
        (b"h\n1\ta\tb\tc\td\n1\ta\tb\tc\n", ":3: found 4 .* at least 5"),
        (b"h\nno tabs at all\n", ":2: found 1 .* at least 5"),
        (b"h\n1\ta\tb\tc\td\n\n2\ta\tb\tc\td\n", ":3: found 1 .* at least 5"),
        (b"h\n1\ta\tb\tc\td\n2\ta\tb\tc\td\n", ":3: unknown label '2'"),
        (b"h\n\ta\tb\tc\td\n", ":2: unknown label ''"),
        (b"h\n 1\ta\tb\tc\td\n", ":2: unknown label ' 1'"),
        (b"h\n1\ta\tb\tc\td\n1\ta\tb\tc\xe9\td\n", ":3: not UTF-8 .*0xe9"),
        ("h\n1\ta\tb\tc\td\n".encode("utf-16"), ":1: not UTF-8"),
    ],
)
def test_malformed_files_are_refused_with_their_line(
    tmp_path, content, expected
):
    path = tmp_path / "dev.tsv"
    path.write_bytes(content)
    message = refusal(get_task("mrpc").examples, str(tmp_path), "dev")
    assert re.search(f"^{re.escape(str(path))} ?{expected}", message), message


@EVERY_TASK
@EVERY_SPLIT
def test_missing_and_empty_files_are_refused_by_every_task(
    tmp_path, task, split
):
    task, rows = write_task(tmp_path, task)
    path = tmp_path / f"{split}.tsv"
    for content in (b"\xff", b"", b"x\nx\n"):
        path.write_bytes(content)
        message = refusal(task.examples, str(tmp_path), split)
        assert str(path) in message
    path.unlink()
    message = refusal(task.examples, str(tmp_path), split)
    assert f"{path} does not exist" in message


@pytest.mark.parametrize("missing", ["text", "label"])
def test_an_unknown_column_is_refused_with_those_of_the_file(tmp_path, missing):
    names = [n for n in ("text", "label", "more") if n != missing]
    path = tmp_path / "train.tsv"
    path.write_text("\t".join(names) + "\na\tb\n")
    message = refusal(CUSTOM.complete, str(tmp_path))
    assert message.startswith(f"{path}:1: ")
    assert repr(missing) in message
    assert ", ".join(names) in message


def test_a_single_label_is_refused(tmp_path):
    rows = [("a", "", "good"), ("b", "", "good")]
    write_split(tmp_path, CUSTOM, "train", rows)
    message = refusal(CUSTOM.complete, str(tmp_path))
    assert str(tmp_path / "train.tsv") in message
    assert "'good'" in message


def test_a_label_that_the_training_file_lacks_is_refused(tmp_path):
    task, _ = write_task(tmp_path, CUSTOM)
    write_split(tmp_path, CUSTOM, "dev", [("a", "", "new")])
    message = refusal(task.examples, str(tmp_path), "dev")
    assert message.startswith(f"{tmp_path / 'dev.tsv'}:2: unknown label 'new'")
    assert "bad, good, no idea" in message


FILE_CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(
            b"text|other text|label|sentence|0|1|entailment|a|\t|\t|\t|\n|\n|"
            b'\r\n|\xef\xbb\xbf|\xc3\xa9|\xff|\0|"|\x1b|\xe2\x80\xa8'.split(
                b"|"
            )
        ),
        max_size=40,
    ).map(b"".join),
    # A header that custom tasks know, then rows of any shape.
    st.lists(
        st.lists(st.sampled_from([b"0", b"1", b"a b", b""]), max_size=6).map(
            b"\t".join
        ),
        max_size=6,
    ).map(lambda rows: b"\n".join([b"label\ttext\tother text", *rows])),
)


@EVERY_TASK
@PROPERTY
@hypothesis.given(content=FILE_CONTENTS)
def test_any_bytes_are_read_or_refused(tmp_path_factory, task, content):
    folder = tmp_path_factory.getbasetemp() / "any_bytes"
    folder.mkdir(exist_ok=True)
    for split in ("train", "dev", "test"):
        path = folder / f"{split}.tsv"
        path.write_bytes(content)
        try:
            complete = task.complete(str(folder))
            examples = complete.examples(str(folder), split)
        except UserError as error:
            assert str(folder) in str(error)
            continue
        assert 0 < len(examples) <= content.count(b"\n") + 1
        for example in examples:
            assert split == "test" or example.label in complete.labels


@PROPERTY
@hypothesis.given(
    content=FILE_CONTENTS,
    layout=st.builds(
        Layout,
        st.sampled_from([0, 2, "text"]),
        st.sampled_from([None, 1, "other text"]),
        st.sampled_from([None, 0, "label"]),
        st.booleans(),
    ),
)
def test_any_bytes_are_rows_or_refused(tmp_path_factory, layout, content):
    path = tmp_path_factory.getbasetemp() / "any_bytes.tsv"
    path.write_bytes(content)
    try:
        rows = read_rows(str(path), layout)
    except UserError as error:
        assert str(path) in str(error)
        return
    columns = (layout.text_a, layout.text_b, layout.label)
    width = sum(column is not None for column in columns)
    assert rows
    assert all(len(cells) == width for _, cells in rows)


# Labels


@EVERY_TASK
def test_a_trained_tasks_description_restores_it(tmp_path, task):
    complete, _ = write_task(tmp_path, task)
    assert complete.is_complete
    description = json.loads(json.dumps(complete.describe()))
    description["name"] = task.name
    assert task.restore(description, "head") == complete
    assert complete.restore(description, "head") == complete


def test_labels_of_the_users_files_are_sorted(tmp_path):
    rows = [("a", "", label) for label in ("b", "c", "a", "b")]
    write_split(tmp_path, CUSTOM, "train", rows)
    assert not CUSTOM.is_complete
    complete = CUSTOM.complete(str(tmp_path))
    assert complete.labels == ("a", "b", "c")
    assert complete.describe() == {
        "labels": ["a", "b", "c"],
        "pairs": False,
    }


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_head_of_other_labels_is_refused(name):
    labels = list(reversed(TASKS[name].labels))
    description = {**TASKS[name].describe(), "name": name, "labels": labels}
    message = refusal(TASKS[name].restore, description, "head.npz")
    assert f"for the labels {', '.join(labels)}" in message


@pytest.mark.parametrize(
    "change, words",
    [
        ({"labels": []}, "without labels"),
        ({"labels": "01"}, "without labels"),
        ({"labels": None}, "without labels"),
        ({"pairs": False}, "with pairs: False"),
        ({"name": "cola"}, "trained on the task cola, not on mrpc"),
    ],
)
def test_a_head_of_another_task_is_refused(change, words):
    task = get_task("mrpc")
    description = {**task.describe(), "name": "mrpc", **change}
    assert words in refusal(task.restore, description, "head.npz")


# Rows of tokens


def naive_lengths(len_a, len_b, room):
    """google-research/bert's `_truncate_seq_pair`."""
    a, b = [0] * len_a, [0] * len_b
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return len(a), len(b)


SPECIAL = types.SimpleNamespace(classify_id=-1, separate_id=-2)
TOKENS = st.integers(0, 40)


@hypothesis.settings(PROPERTY, max_examples=300)
@hypothesis.given(TOKENS, TOKENS, st.integers(3, 60))
def test_pairs_are_cut_as_if_token_by_token(len_a, len_b, max_seq_length):
    a, b = list(range(100, 100 + len_a)), list(range(200, 200 + len_b))
    tokens, segments = make_row(a, b, SPECIAL, max_seq_length)
    kept_a, kept_b = naive_lengths(len_a, len_b, max_seq_length - 3)
    assert tokens == [-1, *a[:kept_a], -2, *b[:kept_b], -2]
    assert segments == [0] * (kept_a + 2) + [1] * (kept_b + 1)
    assert len(tokens) <= max_seq_length


@PROPERTY
@hypothesis.given(TOKENS, st.integers(3, 60))
def test_single_texts_are_cut_at_their_end(len_a, max_seq_length):
    a = list(range(100, 100 + len_a))
    tokens, segments = make_row(a, None, SPECIAL, max_seq_length)
    assert tokens == [-1, *a[: max_seq_length - 2], -2]
    assert segments == [0] * len(tokens)


def test_an_empty_second_text_is_a_pair_and_no_second_text_is_none(tokenizer):
    task = get_task("mrpc")
    examples = [
        Example("", "the cat", "", "1"),
        Example("", "a dog", None, "0"),
    ]
    features = task.featurize(examples, tokenizer, 8)
    cls, sep = tokenizer.classify_id, tokenizer.separate_id
    the, cat, a, dog = tokenizer.convert_tokens_to_ids(
        ["the", "cat", "a", "dog"]
    )
    assert features.tokens.tolist() == (
        [cls, the, cat, sep, sep] + [cls, a, dog, sep]
    )
    assert features.segments.tolist() == [0, 0, 0, 0, 1] + [0, 0, 0, 0]
    assert features.labels["label_ids"].tolist() == [1, 0]


@EVERY_TASK
def test_features_do_not_depend_on_how_many_rows_are_tokenized_at_once(
    tmp_path, tokenizer, task, monkeypatch
):
    task, _ = write_task(tmp_path, task, count=7)
    examples = task.examples(str(tmp_path), "train")
    fingerprint = task.featurize(examples, tokenizer, 8).fingerprint()
    monkeypatch.setattr(text_classification, "CHUNK", 3)
    again = task.featurize(examples, tokenizer, 8)
    assert len(again) == 7
    assert again.fingerprint() == fingerprint


@EVERY_TASK
def test_labels_are_numbered_in_their_order(tmp_path, tokenizer, task):
    task, rows = write_task(tmp_path, task)
    examples = task.examples(str(tmp_path), "dev")
    features = task.featurize(examples, tokenizer, 16)
    assert features.labels["label_ids"].dtype == np.int32
    assert features.labels["label_ids"].tolist() == [
        task.labels.index(label) for _, _, label in rows
    ]
    examples = task.examples(str(tmp_path), "test")
    assert task.featurize(examples, tokenizer, 16).labels == {}


# Scores and predictions


def make_predictions(task, features, shift):
    """Logits that are sure of the right class, or of one `shift` further."""
    classes = len(task.labels)
    chosen = (features.labels["label_ids"] + shift) % classes
    return {"logits": 100 * np.eye(classes, dtype=np.float32)[chosen]}


@EVERY_TASK
def test_perfect_predictions_have_maximal_scores(tmp_path, tokenizer, task):
    task, _ = write_task(tmp_path, task)
    examples = task.examples(str(tmp_path), "dev")
    features = task.featurize(examples, tokenizer, 16)
    perfect = make_predictions(task, features, 0)
    scores = task.evaluate(examples, features, perfect)
    assert list(scores) == [*task.metrics, "loss"]
    assert scores.pop("loss") < 1e-6
    assert set(scores.values()) == {1.0}


@EVERY_TASK
def test_wrong_predictions_have_low_scores(tmp_path, tokenizer, task):
    task, _ = write_task(tmp_path, task)
    examples = task.examples(str(tmp_path), "dev")
    features = task.featurize(examples, tokenizer, 16)
    wrong = make_predictions(task, features, 1)
    scores = task.evaluate(examples, features, wrong)
    assert scores.pop("loss") == pytest.approx(100.0)
    assert max(scores.values()) <= 0.0


@pytest.mark.parametrize(
    "name, expected",
    [
        ("mrpc", ["accuracy", "f1"]),
        ("cola", ["matthews_correlation", "accuracy"]),
        ("sst-2", ["accuracy"]),
        ("rte", ["accuracy"]),
    ],
)
def test_tasks_have_the_metrics_of_glue(name, expected):
    assert list(get_task(name).metrics) == expected
    assert set(expected) <= set(metrics.METRICS)


@EVERY_TASK
def test_predictions_are_written_as_bert_and_as_glue_want_them(tmp_path, task):
    task, _ = write_task(tmp_path, task, count=3)
    classes = len(task.labels)
    # The second class is three times as likely as each other one.
    logits = np.zeros((3, classes), np.float32)
    logits[:, 1] = np.log(3)
    logits[1] = logits[1, ::-1]
    paths = task.write_predictions(
        str(tmp_path), task.examples(str(tmp_path), "test"), {"logits": logits}
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


def test_label_words_are_written_as_utf_8(tmp_path):
    task = dataclasses.replace(CUSTOM, labels=("bon marché", "東"))
    logits = np.eye(2, dtype=np.float32)
    task.write_predictions(str(tmp_path), [], {"logits": logits})
    content = (tmp_path / "test_predictions.tsv").read_bytes()
    assert content.decode().splitlines()[1:] == ["0\tbon marché", "1\t東"]
