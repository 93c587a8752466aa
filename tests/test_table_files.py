"""The user's tables: files of splits, cells of labels, rows of all kinds."""

import csv
import io
import json

import hypothesis
import hypothesis.strategies as st
import pytest
import refusals
from limits import limited
from task_files import CUSTOM, listed, put, read, refusal

from adapter_bert.data import tables
from adapter_bert.data.tables import (
    READERS,
    Layout,
    SplitFiles,
    join_labels,
    list_labels,
    split_labels,
    warn_of_lists,
    warn_of_lookalikes,
)
from adapter_bert.errors import UserError
from adapter_bert.tasks.kinds import get_task

pytestmark = pytest.mark.older_stack


def read_rows(path, layout):
    """[(line from 0, cells)] of a table."""
    return listed(tables.read_rows(str(path), layout))


def test_byte_order_mark_windows_newlines_and_last_lines_are_no_rows(tmp_path):
    put(
        tmp_path / "train.tsv",
        b'\xef\xbb\xbflabel\ttext\r\ngood\t"a\r\nbad\tb\ngood\tc\n\r\n\n',
    )
    assert listed(read(CUSTOM, tmp_path, "train")) == [
        (1, ['"a', "good"]),
        (2, ["b", "bad"]),
        (3, ["c", "good"]),
    ]


def test_empty_lines_take_no_memory(tmp_path):
    path = put(tmp_path / "test.tsv", "text\tlabel\na\tgood\n" + "\n" * 10**6)
    with limited(more=2**26):
        assert read_rows(path, Layout("text")) == [(1, ["a"])]


HEADER = b"Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
MRPC = get_task("mrpc").labelled
NAMED = Layout("text", label="label")
NUMBERED = Layout(1, label=0, header=False)
MARKED = Layout("text", label_separator="|", label_columns=("a",))
GOOD = [(1, ["a", "good"]), (2, ["b", "bad"])]
# In a file of one column they are texts.
EMPTY_LINES = (
    Layout("text"),
    "text\na\n\nb\n\n",
    [(1, ["a"]), (2, [""]), (3, ["b"]), (4, [""])],
)
# Ending -> layouts and contents, and their rows with lines from 0.
READ = {
    ".tsv": [
        # Lines end at newlines only.
        (
            Layout(0, 1, header=False),
            "a\rb\u2028\x0cc\x85\td\ne\tf\n",
            [(0, ["a\rb\u2028\x0cc\x85", "d"]), (1, ["e", "f"])],
        ),
        # Also between others.
        EMPTY_LINES,
        (
            Layout(0),
            "x\ty\na\tb\n\n\r\nc\td\n\n\n",
            [(1, ["a"]), (2, [""]), (3, [""]), (4, ["c"])],
        ),
        # Marks of joined files are dropped.
        (NAMED, "label\ttext\n\ufeffgood\ta\n\ufeff\ufeffbad\tb\n", GOOD),
        # Other columns may have one name, also where they are numbered.
        (Layout("x"), "x\ttext\ttext\n" * 2, [(1, ["x"])]),
        (Layout(2), "x\ttext\ttext\n" * 2, [(1, ["text"])]),
    ],
    ".csv": [
        EMPTY_LINES,
        (NAMED, 'label,text\n\ufeffgood,a\n\ufeff"bad",b\n', GOOD),
        (NAMED, '\ufeff\ufeff"label",text\n"good",a\n\ufeffbad,b\n', GOOD),
        # Lines may end with carriage returns alone.
        (NAMED, "text,label\ra,good\rb,bad\r", GOOD),
        # Cells may hold commas, quotation marks and lines.
        (
            Layout("text", label="label", row_id="id"),
            'label,text,id\r\ngood,"a, ""b""\nc",1\r\n\r\nbad,d,2\r\n',
            [(1, ['a, "b"\nc', "good", "1"]), (4, ["d", "bad", "2"])],
        ),
        # Empty cells behind the named ones are no harm.
        (NAMED, "text,label\na,1,,\n", [(1, ["a", "1"])]),
    ],
    ".jsonl": [
        (
            NAMED,
            '{"label": "good", "text": "a"}\n'
            '\ufeff{"label": "bad", "text": "b"}\n',
            [(0, ["a", "good"]), (1, ["b", "bad"])],
        ),
        # Values are read as text.
        (
            Layout("t", label="l"),
            '{"t": "a\\tb", "l": 1}\n\n{"l": true, "t": "é"}\n'
            '{"t": "", "l": 0.5}',
            [(0, ["a\tb", "1"]), (2, ["é", "true"]), (3, ["", "0.5"])],
        ),
    ],
    # Endings may be in capitals.
    ".TSV": [(Layout(0), "text\nthe cat, a dog\n", [(1, ["the cat, a dog"])])],
    ".CSV": [(Layout(0), 'text\n"a, b"\n', [(1, ["a, b"])])],
    ".JSONL": [(Layout("text"), '{"text": "a"}\n', [(0, ["a"])])],
    ".JSON": [(Layout("text"), '[{"text": "a"}]\n', [(0, ["a"])])],
}


@pytest.mark.parametrize(
    "ending, layout, content, rows",
    [(ending, *case) for ending, cases in READ.items() for case in cases],
)
def test_rows_of_tables(tmp_path, ending, layout, content, rows):
    path = put(tmp_path / f"a{ending}", content)
    assert read_rows(path, layout) == rows


CR = "end with a carriage return (CR) alone"
REFUSED = {
    "a.tsv": [
        (MRPC, b"", " is empty"),
        (MRPC, HEADER, " holds no rows"),
        (
            MRPC,
            HEADER + b"1\ta\tb\tc\td\n1\ta\tb\tc\n",
            ":3: found 4 ... least 5",
        ),
        (
            MRPC,
            HEADER + b"1\ta\tb\tc\td\n\n2\ta\tb\tc\td\n",
            ":3: found 1 ... at least 5",
        ),
        (
            MRPC,
            HEADER + b"1\ta\tb\tc\td\n1\ta\tb\tc\xe9\td\n",
            ":3: not UTF-8 ... 0xe9",
        ),
        (Layout(0, 1), b"x\ty\na\tb\n\n\r\nc\td\n\n\n", ":3: found 1 tab-sep"),
        (NAMED, b"text\tlabel\rgood day\ta\rbad day\tb\r", CR),
        (
            NAMED,
            "text\tlabel\na\tgood\n\ufefftext\tlabel\nb\tbad\n".encode(),
            ":3: the header stands here again",
        ),
        (
            NUMBERED,
            b"ham\thello\nspam\twin\t!\n",
            ":2: found 3 ... the first line has 2; does a text hold the sep",
        ),
        # Values would be shifted.
        (NAMED, b"text\tlabel\nbad\tvery\tbad\n", ":2: found 3 tab"),
        *(
            (
                MARKED,
                f"a\ttext\n1\tx\n{cell}\ty\n".encode(),
                f":3: the label column 'a' holds {cell!r}, expected 0 or 1",
            )
            for cell in ("", "0.5", "maybe")
        ),
        (
            NAMED,
            b"x\ttext\ttext\n",
            ":1: 2 columns are named 'text'; rename all but one",
        ),
    ],
    "a.csv": [
        (NAMED, b'text,label\n"a,b\n', ":2: not CSV"),
        (NAMED, b"text\na\n", ":1: no column is named 'label'"),
        (NAMED, b"text,label\nbad, really bad,bad\n", ":2: found 3 comma"),
    ],
    "a.jsonl": [
        (NAMED, b'{"text": "a", "label": "b"}\r{"text": "c"}\r', CR),
        (NAMED, b'{"text": "a", "label": 1}\n{', ":2: not JSON"),
        (NAMED, b"[1]\n", ":1: expected a JSON object"),
        (NAMED, b'{"text": "a"}\n', ":1: no key 'label', found 'text'"),
        (NAMED, b'{"text": "a", "label": null}', ":1: 'label' is null"),
        (NAMED, b'{"text": ["a"], "label": 1}', ":1: 'text' is ["),
        (NAMED, b'{"text": "\\ud800", "label": 1}', ":1:  ... half a char"),
        (NAMED, b"\n\n", " is empty"),
        (NAMED, b"[" * 100_000, ":1: not JSON"),
        # Values would be replaced.
        (NAMED, b'{"text": "a", "label": NaN}', ":1:  ... NaN is no value"),
        (NAMED, b'{"text": "a", "label": 1e400}', ":1: 'label' is Inf"),
        (NAMED, b'{"text": "a", "text": "b"}', ":1:  ... is given twice"),
        (Layout(0), b'{"text": "a"}', ":1: no key 0"),
    ],
}


@pytest.mark.parametrize(
    "name, layout, content, message",
    [(name, *case) for name, cases in REFUSED.items() for case in cases],
)
def test_what_is_no_table_is_refused_with_its_line(
    tmp_path, name, layout, content, message
):
    path = put(tmp_path / name, content)
    place, *parts = message.split(" ... ")
    if place[:1] in ": ":
        place = f"{path}{place}"
    refusals.check(lambda: read_rows(path, layout), place, *parts)


@pytest.mark.parametrize("label", ["2", "", " 1"])
def test_an_unknown_label_is_refused_with_its_line(tmp_path, label):
    content = HEADER + f"1\ta\tb\tc\td\n{label}\ta\tb\tc\td\n".encode()
    path = put(tmp_path / "dev.tsv", content)
    refusals.check(
        lambda: read(get_task("mrpc"), tmp_path, "dev"),
        f"{path}:3: unknown label {label!r}",
    )


@pytest.mark.parametrize(
    "header, hint",
    [
        (" text ,label", "' text ' differs in blanks, letter case or char"),
        ("Text,label", "'Text' differs in blanks, letter case or characters"),
        ("te\u200bxt,x", r"'te\u200bxt', 'x'; 'te\u200bxt' differs in blanks"),
        ("good day,a", "'good day', 'a'; is its first line a row, not a"),
        (",label", "'', 'label'; is"),
    ],
)
def test_names_of_columns_are_quoted_where_one_is_missing(
    tmp_path, header, hint
):
    path = put(tmp_path / "a.csv", f"{header}\nx,y\n")
    refusals.check(
        lambda: read_rows(path, Layout("text")),
        f"{path}:1: no column is named 'text'; the ",
        hint,
    )


@pytest.mark.parametrize(
    "cells, expected",
    [
        ("1\tx\t0", "a"),
        ("1.0\tx\tTRUE", "a|b"),
        ("false\tx\t0.0", ""),
        (" 0 \tx\t1", "b"),
    ],
)
def test_a_column_of_0_and_1_for_each_label(tmp_path, cells, expected):
    path = put(tmp_path / "a.tsv", f"a\ttext\tb\n{cells}\n")
    layout = Layout("text", label_separator="|", label_columns=("a", "b"))
    assert read_rows(path, layout) == [(1, ["x", expected])]
    path = put(tmp_path / "a.jsonl", '{"b": true, "a": 0, "text": "x"}\n')
    assert read_rows(path, layout) == [(0, ["x", "b"])]


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
    st.text('{}[]":,\n\r\t ab1\0', max_size=40).map(str.encode),
)


@hypothesis.settings(max_examples=200)
@hypothesis.given(
    content=FILE_CONTENTS,
    ending=st.sampled_from(sorted(READERS)),
    layout=st.builds(
        Layout,
        st.sampled_from([0, 2, "text", "a"]),
        st.sampled_from([None, 1, "other text"]),
        st.sampled_from([None, 0, "label", "b"]),
        st.booleans(),
    ),
)
def test_any_bytes_are_rows_or_refused(
    tmp_path_factory, layout, ending, content
):
    path = put(tmp_path_factory.getbasetemp() / f"any{ending}", content)
    try:
        rows = read_rows(path, layout)
    except UserError as error:
        assert str(path) in str(error)
        return
    columns = (layout.text_a, layout.text_b, layout.label)
    width = sum(column is not None for column in columns)
    assert rows
    assert all(len(cells) == width for _, cells in rows)


def test_broken_rows_are_passed_over_where_a_layout_says_so(tmp_path, caplog):
    path = put(tmp_path / "a.tsv", "x\ty\na\tb\nc\nd\te\nf\tg\th\n")
    layout = Layout(0, label=1, skips_broken_rows=True)
    assert read_rows(path, layout) == [(1, ["a", "b"]), (3, ["d", "e"])]
    assert "2 rows with fewer or more columns than the header" in caplog.text


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@hypothesis.given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6),
    ending=st.sampled_from([".csv", ".jsonl"]),
)
def test_tables_that_libraries_wrote_are_read_back(
    tmp_path_factory, rows, ending
):
    path = tmp_path_factory.getbasetemp() / f"written{ending}"
    if ending == ".csv":
        file = io.StringIO(newline="")
        writer = csv.writer(file)
        writer.writerows([("text", "label"), *rows])
        content = file.getvalue()
    else:
        content = "".join(
            json.dumps({"label": label, "text": text}) + "\n"
            for text, label in rows
        )
    path.write_bytes(content.encode())
    # Marks at the beginning of lines are no part of a cell.
    hypothesis.assume("\ufeff" not in content)
    if "\0" in content:
        # Python 3.9 and 3.10 have no such CSV.
        return
    table = read_rows(path, NAMED)
    assert [tuple(cells) for _, cells in table] == rows


ENDINGS = (".tsv", ".csv")
FOLDER = SplitFiles()


def named_files(folder, **paths):
    for name in ("a.csv", "b.TSV"):
        (folder / name).write_text("x")
    return SplitFiles(**{s: str(folder / name) for s, name in paths.items()})


def test_a_split_that_was_not_named_is_missing_whatever_lies_there(tmp_path):
    named = named_files(tmp_path, train="a.csv")
    (tmp_path / "dev.csv").write_text("x")
    assert named.find("elsewhere", "train", ENDINGS) == named.train
    assert named.present(str(tmp_path), "dev", ENDINGS) == []
    for split, flag in (("dev", "--eval_file"), ("test", "--predict_file")):
        refusals.check(
            lambda s=split: named.find(str(tmp_path), s, ENDINGS),
            f"{flag} is missing: the rows to",
        )


def test_files_that_cannot_be_read_are_refused_unread(tmp_path):
    named_files(tmp_path, train="a.csv", dev="b.TSV", test="a.csv").check(
        ENDINGS, can_hold_out=True
    )
    for name in ("both.tsv", "both.csv"):
        (tmp_path / name).write_text("x")
    for split, part in (
        (
            "train",
            f"there is no {tmp_path}/train.tsv and no {tmp_path}/train.csv",
        ),
        (
            "both",
            f"{tmp_path}/both.tsv and {tmp_path}/both.csv are both there",
        ),
    ):
        refusals.check(
            lambda s=split: FOLDER.find(str(tmp_path), s, ENDINGS), part
        )
    refusals.check(
        lambda: tables.check_file("--x", str(tmp_path), ENDINGS),
        "a folder; expected a file",
    )


def test_training_rows_are_not_scored(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "link.csv").symlink_to("a.csv")
    monkeypatch.chdir(tmp_path)
    for dev in (str(tmp_path / "a.csv"), "link.csv"):
        for can_hold_out in (True, False):
            files = SplitFiles("a.csv", dev)
            message = refusal(files.check, ENDINGS, can_hold_out)
            assert "would score training rows" in message
            assert ("--dev_share" in message) == can_hold_out


CHARACTERS = "ab |,;[]\t\u2003é"
SEPARATORS = st.sampled_from("|,; ")


@pytest.mark.parametrize(
    "cell, labels",
    [
        ("", ()),
        ("[]", ()),
        (" b | a b ", ("b", "a b")),
        ("a,b", ("a,b",)),
    ],
)
def test_labels_of_a_cell(cell, labels):
    assert split_labels(cell, "|", "x:1") == labels


@pytest.mark.parametrize(
    "cell, words",
    [
        ("a|", "a label is empty"),
        ("a|b| a", "the label 'a' is given twice"),
        ('["a", "b"]', "begins or ends with a bracket"),
        # A row of 0 and 1.
        ("1|0|1", "(--label_columns names a column of 0 and 1 for each label)"),
        ("[1, 0]", "(--label_columns names a column of 0 and 1 for each"),
    ],
)
def test_what_can_be_meant_in_two_ways_is_refused_with_its_place(cell, words):
    refusals.check(
        lambda: split_labels(cell, "|", "x.tsv:7"), "x.tsv:7: ", words
    )


def test_a_label_that_holds_the_separator_is_refused():
    refusals.check(
        lambda: join_labels(["a", "b, c"], ",", "x.jsonl:2"),
        "x.jsonl:2: the label 'b, c' holds ','",
        "--label_separator",
    )
    assert join_labels(["a", "b, c"], "|", "") == "a|b, c"


@hypothesis.given(
    st.lists(st.text(CHARACTERS, max_size=4), max_size=4), SEPARATORS
)
def test_joined_labels_are_split_again_or_refused(labels, separator):
    try:
        cell = join_labels(labels, separator, "x")
    except UserError:
        return
    again = split_labels(cell, separator, "x")
    assert again == tuple(label.strip() for label in labels)


ALIKE = [
    "good",
    "Good",
    " good",
    "good ",
    "good\xa0",
    "\ufeffgood",
    "g\u200bood",
]


@pytest.mark.parametrize(
    "labels, pairs",
    [
        *((["good", x], f"'good' and {ascii(x)}") for x in ALIKE[1:]),
        (["1", "+1", "01"], "'1' and '+1'; '1' and '01'"),
        (["True", "true"], "'true' and 'True'"),
        (["New York", "new\u2003york"], r"'New York' and 'new\u2003york'"),
        (["é", "e\u0301"], r"'\xe9' and 'e\u0301'"),
        (["❤", "❤\ufe0f"], r"'\u2764' and '\u2764\ufe0f'"),
        (["A", "\uff21"], r"'A' and '\uff21'"),
    ],
)
def test_labels_that_look_the_same_are_told_in_pairs(labels, pairs, caplog):
    warn_of_lookalikes([*labels, "other"], "train.tsv")
    [record] = caplog.records
    assert record.getMessage().startswith("train.tsv: labels look the same")
    assert f": {pairs}; write them alike" in record.getMessage()


@pytest.mark.parametrize(
    "labels",
    [
        ["good", "bad", "goo", "good day", "goodday"],
        ["1", "10", "0.1", "1.1", "1e1", "-1"],
        ["a", "á", "à", "b"],
        ["की", "का"],
    ],
)
def test_labels_that_look_different_are_no_pairs(labels, caplog):
    warn_of_lookalikes(labels, "train.tsv")
    assert not caplog.records
    assert list_labels(labels) == ", ".join(labels)


@pytest.mark.parametrize(
    "labels, text",
    [
        (["a", "b "], "'a', 'b '"),
        (["a", "b\u200b"], r"'a', 'b\u200b'"),
        (["é", "É"], "'é', 'É'"),
        (["a", "می\u200cخواهم"], "a, می\u200cخواهم"),
        (["é", "e\u0301", "b"], r"'\xe9', 'e\u0301', 'b'"),
    ],
)
def test_labels_are_quoted_where_they_could_be_mistaken(labels, text):
    assert list_labels(labels) == text


@pytest.mark.parametrize(
    "label, is_told",
    [
        ("a, b", True),
        ("1,0,1", True),
        ("1", True),
        ("(1, 0)", True),
        ("'a'", True),
        ("sport (men)", False),
        ("10", False),
    ],
)
def test_labels_that_may_be_lists_are_told(label, is_told, caplog):
    warn_of_lists(["x", label], "|", "train.tsv")
    assert ("--label_columns" in caplog.text) == is_told
    assert (repr(label) in caplog.text) == is_told
