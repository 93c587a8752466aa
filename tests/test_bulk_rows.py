"""Lines of large inputs, each understood by itself."""

import bz2
import gzip
import io
import json
import lzma
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapter_bert.answering.row_stream import file_rows
from adapter_bert.errors import UserError
from adapter_bert.graph.bulk_rows import (
    COMPRESSED,
    UNREADABLE,
    BulkRow,
    answer_line,
    compression,
    ending,
    questions,
    refusal_line,
)

pytestmark = pytest.mark.newer_stack


def task(name, columns, texts):
    return {"name": name, "columns": columns, "texts": texts}


TASKS = {
    "one": task("one", ["sentence"], [1]),
    "two": task("two", ["question", "context"], [2]),
    "any": task("any", ["text"], [1, 2]),
}
CHOICE = {
    "kind": "multiple choice",
    "labels": ["c1", "c2"],
    **task("choice", ["premise", "question", "c1", "c2"], [4]),
}
TAGS = {"kind": "tagging", **task("tags", ["tokens"], [1])}


def ask(line, file="a.jsonl", names=()):
    """(task, texts) of each question, and (task, reason) of each refusal."""
    return [
        (row.task, row.reason)
        if row.reason
        else (row.row.task.decode(), *(x.decode() for x in row.row[:2]))
        for row in questions(file, line, TASKS, names)
    ]


@pytest.mark.parametrize(
    "task, values, first, second",
    [
        ("one", {"sentence": "a"}, "a", ""),
        ("one", {"text": "a"}, "a", ""),
        ("one", {"text": "a", "text_b": ""}, "a", ""),
        ("one", {"text": "a", "text_b": None}, "a", ""),
        ("one", {"text": "a", "sentence": "b"}, "b", ""),
        ("one", {"text": 1.5}, "1.5", ""),
        ("two", {"question": 1, "text": "a", "text_b": "b"}, "a", "b"),
        ("any", {"text": "a", "text_b": "b"}, "a", "b"),
        ("any", {"text": "a"}, "a", ""),
    ],
)
def test_the_texts_of_an_object(task, values, first, second):
    line = json.dumps({"task": task, **values}).encode()
    assert ask(line) == [(task, first, second)]


@pytest.mark.parametrize(
    "line, expected",
    [
        (b"{", ("", "not JSON: ")),
        (b'{"text": NaN}', ("", "not JSON: NaN is no value")),
        (b"[1]", ("", "expected a JSON object")),
        (b'{"text": "a"}', ("", "no key 'task', found 'text'")),
        (b'{"\\ud800": 1}', ("", "no key 'task', found '\\ud800'")),
        (b'{"text": "\xff"}', ("", "not UTF-8 text (byte 0xff)")),
        (b'{"task": [1]}', ("", "'task' is [1], expected")),
        (b'{"task": "no"}', ("no", "unknown task no; there are: one, two")),
        (b'{"task": "one"}', ("one", "no key 'sentence' or 'text', found 't")),
        (b'{"task": "any"}', ("any", "no key 'text', found 'task'")),
        (b'{"task": "one", "text": "\\ud800"}', ("one", "'text' holds half")),
        (
            b'{"task": "one", "text": "a", "text_b": "b"}',
            ("one", "the task one reads one text, but text_b is not empty"),
        ),
        (b'{"task": "two", "text": "a"}', ("two", "no key 'text_b', but the")),
    ],
)
def test_what_is_refused(line, expected):
    ((name, reason),) = ask(line)
    assert (name, reason[: len(expected[1])]) == expected


@pytest.mark.parametrize(
    "line, names, expected",
    [
        (b"a\tb", ["two", "any"], [("two", "a", "b"), ("any", "a", "b")]),
        (b"", ["one", "two"], [("one", "", "")]),
        (b"", ["two"], []),
        (b'{"text": "a"}', ["one"], [("one", '{"text": "a"}', "")]),
        (
            b"a\tb",
            ["one"],
            [("one", "found 2 texts with tabs between them, expected 1")],
        ),
        (
            b"a\tb\tc",
            ["any"],
            [("any", "found 3 texts with tabs between them, expected 1 or 2")],
        ),
        ("\ufeffa".encode(), ["one"], [("one", "a", "")]),
    ],
)
def test_lines_of_texts(line, names, expected):
    assert ask(line, "a.txt", names) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"premise": "a", "question": "b", "c1": "c", "c2": 1},
        {"text": "a", "text_b": "b", "choices": ["c", "1"]},
        "a\tb\tc\t1",
    ],
)
def test_a_row_with_choices(values):
    is_line = isinstance(values, str)
    line = (values if is_line else json.dumps(values)).encode()
    file = "a.tsv" if is_line else "a.jsonl"
    [read] = questions(file, line, {"choice": CHOICE}, ["choice"])
    assert read.row == (b"a", b"b", b"choice", (b"c", b"1"))


@pytest.mark.parametrize(
    "task, values, expected",
    [
        (TAGS, {"tokens": ["a", "cat"]}, b"a cat"),
        (TAGS, {"tokens": "a  cat"}, b"a  cat"),
        (TAGS, {"text": ["a", "cat"]}, b"a cat"),
        (TAGS, {"tokens": ["a cat"]}, "the word 'a cat' is empty or holds"),
        (TAGS, {"tokens": [1]}, "'tokens' is [1], expected a list of texts"),
        (CHOICE, {"text": "a", "text_b": "b"}, "no key 'c1', found 'text', 't"),
        (CHOICE, {"text": "a", "choices": ["c", "d"]}, "no key 'text_b', but"),
        (
            CHOICE,
            {"text": "a", "text_b": "b", "choices": ["c"]},
            "the task choice has 2 choices, but the row has 1",
        ),
    ],
)
def test_rows_of_words_and_of_choices(task, values, expected):
    line = json.dumps(values).encode()
    name = task["name"]
    [read] = questions("a.jsonl", line, {name: task}, [name])
    if isinstance(expected, bytes):
        assert read.row == (expected, b"", name.encode(), ())
    else:
        assert read.reason.startswith(expected)


def test_named_tasks_answer_every_row():
    line = b'{"task": "no", "text": "a", "text_b": "b"}'
    (one, two) = ask(line, "a.jsonl.gz", ["one", "two"])
    assert one[1].startswith("the task one reads one text")
    assert two == ("two", "a", "b")
    assert ask(b" ", names=["one"]) == []


def test_the_ending_before_that_of_a_compression():
    assert ending("/a.b/c.JSONL.GZ") == ".jsonl"
    assert ending("c.jsonl") == ".jsonl"
    assert ending("jsonl.gz") == ""
    assert ending("a.tsv.zst") == ".tsv"
    assert compression("a.jsonl.XZ") == ".xz"
    assert compression("a.deflate.jsonl") == ""


WRITERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".lzma": lambda content: lzma.compress(content, lzma.FORMAT_ALONE),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_the_missing_end_of_a_compressed_file_is_noticed(name):
    def read(content):
        with COMPRESSED[name](io.BytesIO(content)) as file:
            return file.read()

    parts = [b"the cat\n" * 30, b"a dog\n"]
    first, second = map(WRITERS[name], parts)
    assert read(first) == parts[0]
    # Some programs write several of these one after another.
    if name != ".lzma":
        assert read(first + second) == b"".join(parts)
        first += second
    whole = {len(first), len(first) - len(second), 0}
    for size in set(range(len(first))) - whole:
        with pytest.raises(UNREADABLE):
            read(first[:size])


def test_whatever_the_reason_it_can_be_written():
    refused = BulkRow("a.jsonl", "1").refused("found \ud800, \xe9")
    text = refusal_line(refused)
    assert json.loads(text.encode())["reason"] == "found \\ud800, \xe9"


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
# Half a character, too, which JSON can name and no file can hold.
ANY = st.text(st.characters())


@settings(max_examples=500)
@given(
    st.sampled_from(["a.jsonl", "a.txt"]),
    st.one_of(
        st.binary(),
        TEXT.map(str.encode),
        st.dictionaries(
            st.sampled_from(["task", "text", "text_b", "sentence", "\ud800"])
            | ANY,
            st.sampled_from([*TASKS, 1e400, 10**30, True, None, [], ["\ud800"]])
            | ANY,
        ).map(lambda values: json.dumps(values).encode()),
    ),
    st.sampled_from([[], ["one"], ["two", "any"]]),
)
@example("a.jsonl", b'{"\\ud800": 1}', [])
@example("a.jsonl", b'{"\\ud800": "\\udfff"}', ["one"])
def test_any_line_gives_lines_of_json_that_hold_it(file, line, names):
    if file == "a.txt" and not names:
        names = ["any"]
    for row in questions(file, line, TASKS, names):
        if row.reason:
            text = refusal_line(row)
            assert json.loads(text)["reason"] == row.reason
            assert json.loads(text).get("task", "") == row.task
        else:
            outputs = {"value": 0.5}
            kind = {**TASKS[row.row.task.decode()], "kind": "regression"}
            text = answer_line(row, kind, outputs)
            values = json.loads(text)
            assert list(values) == ["task", "row", "value"]
            expected = line.decode().lstrip("\ufeff")
            if file == "a.jsonl":
                assert values["row"] == json.loads(expected)
                # To the letter, and so a number of any length.
                assert expected.strip() in text
            else:
                assert values["row"] == expected
        assert "\n" not in text
        text.encode()


@given(
    st.dictionaries(
        st.sampled_from(["question", "context", "text", "text_b"]),
        st.text(string.printable),
    )
)
def test_texts_are_those_that_predict_py_reads(tmp_path_factory, values):
    """Where it reads a row at all."""
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    path.write_text(json.dumps(values) + "\n")
    columns = [TASKS["two"]["columns"], ["text", "text_b"]]
    ((name, *texts),) = ask(json.dumps(values).encode(), names=["two"])
    try:
        ((expected, _),) = file_rows(str(path), columns, lambda size: None)
    except UserError as error:
        assert "no key" in str(error) and texts[0].startswith("no key")
        return
    assert tuple(texts) == expected
