"""Rows from files and pipes: formats, malformed rows, what is read ahead."""

import csv
from io import BytesIO
from threading import Event

import hypothesis
import pytest
import refusals
from conftest import write_json, write_json_lines
from hypothesis import strategies as st

from adapter_bert.answering import row_stream
from adapter_bert.errors import UserError

pytestmark = pytest.mark.older_stack

ONE = [("review",), ("text",)]
PAIR = [("sentence1", "sentence2"), ("text", "text_b")]
TEXT = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\t\r\n"),
    max_size=8,
)


def read(path, columns):
    return list(row_stream.file_rows(str(path), columns, lambda size: None))


def texts(rows):
    return [row for row, _ in rows]


def test_words_may_come_as_a_list(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": ["a b", "c"]}\n{"tokens": "d e"}\n')
    columns = [("tokens",), ("text",)]
    rows = row_stream.file_rows(str(path), columns, lambda size: None, True)
    assert list(rows) == [
        ((("a b", "c"),), f"{path}:1"),
        (("d e",), f"{path}:2"),
    ]
    refusals.check(
        lambda: read(path, columns), "'tokens' is ", ", expected a text or"
    )
    stream = BytesIO(b'{"text": ["a", 3]}\n')
    refusals.check(
        lambda: list(row_stream.pipe_rows(stream, columns, True)),
        "stdin:1: 'text' is ",
        " list of texts",
    )


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "judged.jsonl"])
def test_the_bytes_that_are_read_are_those_of_the_file(tmp_path, name):
    rows = [{"text": f"bücher {number}"} for number in range(50)]
    if name.startswith("judged"):
        rows = [{**row, "answer": "accept"} for row in rows]
    path, sizes = tmp_path / name, []
    if name.endswith(".json"):
        write_json(path, rows)
    else:
        write_json_lines(path, rows)
    list(row_stream.file_rows(str(path), [["text"]], sizes.append))
    assert sum(sizes) == pytest.approx(path.stat().st_size, rel=0.25)


def test_a_second_text_may_be_missing(tmp_path):
    """Of tasks that read a text or a pair, whatever the first row has."""
    rows = [("a",), ("b", "c"), ("d", ""), ("e", None)]
    path = tmp_path / "a.jsonl"
    write_json_lines(path, [dict(zip(("text", "text_b"), x)) for x in rows])
    read_rows = read(path, [("text",), ("text", "text_b")])
    assert texts(read_rows) == [("a",), ("b", "c"), ("d",), ("e",)]


def pipe(content, columns):
    stream = BytesIO(content)
    return list(row_stream.pipe_rows(stream, columns))


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.tsv", "a\tb c\nd\te\n"),
        ("a.tsv", "a\tb c\nd\te\n\n\n"),
        ("a.tsv", "id\ttext_b\ttext\n1\tb c\ta\n2\te\td\n"),
        ("a.TSV", "a\tb c\nd\te"),
        ("a.csv", "a,b c\nd,e\n"),
        ("a.csv", 'sentence2,sentence1\n"b c",a\ne,"d"\n'),
        (
            "a.jsonl",
            '{"text": "a", "text_b": "b c"}\n{"text_b":"e","text":"d"}',
        ),
        ("a.txt", "a\tb c\r\nd\te\r\n"),
        (
            "a",
            '{"sentence1":"a","sentence2":"b c"}\n'
            '{"sentence1":"d","sentence2":"e","id":3}\n',
        ),
    ],
)
def test_pairs_of_every_format(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert texts(read(path, PAIR)) == [("a", "b c"), ("d", "e")]


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("a.tsv", "review\nreview\n", ["review"]),
        ("a.tsv", "good\n\nbad\n", ["good", "", "bad"]),
        ("a.txt", "review\n{}\n", ["review", "{}"]),
        ("a.txt", '{"no": 1}\n', ['{"no": 1}']),
        ("a.txt", "{not json\n", ["{not json"]),
        ("a.txt", "3\n", ["3"]),
        ("a.csv", '"a, b"\n', ["a, b"]),
        ("a.tsv", "", []),
        ("a.tsv", "\ufeffgood\n", ["good"]),
    ],
)
def test_single_texts(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert texts(read(path, ONE)) == [(text,) for text in expected]


def test_a_header_may_stand_below_empty_lines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\n\nlabel,text\nx,a\n")
    assert texts(read(path, ONE)) == [("a",)]


def test_a_text_of_several_lines_may_be_the_first(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('"a\nb",c\nd,"e\nf"\n')
    assert texts(read(path, PAIR)) == [("a\nb", "c"), ("d", "e\nf")]


def test_a_long_text_is_one_wherever_it_stands(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a" * 200_000 + "\n")
    assert texts(read(path, ONE)) == [("a" * 200_000,)]
    limit = csv.field_size_limit(1000)
    try:
        refusals.check(
            lambda: read(path, ONE), "a.csv:1: not CSV: field larger"
        )
    finally:
        csv.field_size_limit(limit)


@hypothesis.settings(max_examples=60)
@hypothesis.given(rows=st.lists(st.tuples(TEXT, TEXT), min_size=1))
def test_what_is_written_is_read(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("rows")
    header = [PAIR[0]]
    (folder / "a.tsv").write_bytes(
        "".join("\t".join(row) + "\n" for row in header + rows).encode()
    )
    with open(folder / "a.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(header + rows)
    write_json_lines(
        folder / "a.jsonl", [dict(zip(PAIR[0], row)) for row in rows]
    )
    # Marks at the beginning of lines are no part of a text.
    hypothesis.assume(not any("\ufeff" in a for a, _ in rows))
    for name in ("a.tsv", "a.csv", "a.jsonl"):
        assert texts(read(folder / name, PAIR)) == rows, name
    plain = "".join("\t".join(row) + "\n" for row in rows).encode()
    assert texts(pipe(plain, PAIR)) == rows


def test_byte_order_marks_of_joined_files_are_no_part_of_texts(tmp_path):
    content = "\ufeffgood\n\ufeff\ufeffbad\n"
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    expected = [("good",), ("bad",)]
    assert texts(read(tmp_path / "a.txt", ONE)) == expected
    assert texts(pipe(content.encode(), ONE)) == expected


def test_lines_that_end_with_carriage_returns_alone_are_refused(tmp_path):
    for name in ("a.txt", "a.tsv", "a.jsonl"):
        (tmp_path / name).write_bytes(b"good\rbad\r")
        with pytest.raises(UserError, match=f"{name}: its lines end with a ca"):
            read(tmp_path / name, ONE)
    refusals.check(
        lambda: pipe(b"good\rbad", ONE), "stdin: its lines end with a carriage"
    )
    assert texts(pipe(b"go\rod\nbad\n", ONE)) == [("go\rod",), ("bad",)]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.tsv", "a\tb\nc\n", "a.tsv:2: found 1 texts with tabs"),
        ("a.tsv", "a\tb\nc\td\te\n", "a.tsv:2: found 3 texts"),
        ("a.tsv", "a\tb\n\nc\td\n", "a.tsv:2: found 0 texts"),
        ("a.tsv", "a\tb\tc\n", "a.tsv:1: found 3 columns ('a', 'b', 'c'), e"),
        ("a.tsv", "sentence1\tsentence2\nc\n", "a.tsv:2: found 1 tab-sep"),
        ("a.csv", "Sentence1 ,Sentence2\na,b\n", "'Sentence1 ', 'Sentence2'"),
        ("a.csv", '"a,b\n', "a.csv:1: "),
        ("a.csv", "a,b\nc,d,e\n", "a.csv:2: found 3 comma-separated"),
        ("a.jsonl", '{"text": "a"}\n', "a.jsonl:1: no key 'sentence1'"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: expected a JSON object"),
        (
            "a.jsonl",
            '{"text": "a", "text_b": "b"}\n{"text": 1e999, "text_b": "b"}',
            "a.jsonl:2: 'text' is Infinity",
        ),
        ("a.tsv", b"a\tb\n\xff\tb\n", "a.tsv:2: not UTF-8"),
    ],
)
def test_a_malformed_row_is_one_clear_line(tmp_path, name, content, message):
    path = tmp_path / name
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(raw)
    refusals.check(lambda: read(path, PAIR), message)


def test_an_empty_array_holds_no_rows(tmp_path):
    (tmp_path / "a.json").write_text("[ ]\n")
    assert read(tmp_path / "a.json", ONE) == []


def test_tagged_sentences_are_no_texts(tmp_path):
    (tmp_path / "a.conll").write_text("Ann B-PER\n")
    rows = row_stream.file_rows(
        str(tmp_path / "a.conll"), ONE, lambda _: None, takes_tokens=True
    )
    refusals.check(lambda: list(rows), "a.conll has tags; run_tagger.py")


def test_a_pipe_that_is_no_text():
    refusals.check(
        lambda: pipe(b"a\n\xff\n", ONE), "stdin: not UTF-8 text (byte 0xff"
    )


def test_bytes_are_counted_as_they_are_read(tmp_path):
    path = tmp_path / "a.txt"
    content = "\u00e4\nb\r\nc"
    path.write_bytes(content.encode())
    sizes = []
    list(row_stream.file_rows(str(path), ONE, sizes.append))
    assert sum(sizes) == len(content.encode())


def test_chunks_are_read_when_they_are_wanted(monkeypatch):
    monkeypatch.setattr(row_stream, "CHUNK", 3)
    taken = []

    def rows():
        for number in range(7):
            taken.append(number)
            yield (str(number),), "here"

    chunks = row_stream.chunks(rows())
    assert [len(next(chunks)), len(taken)] == [3, 3]
    assert list(map(len, chunks)) == [3, 1]


def test_rows_that_have_come_are_given_together(monkeypatch):
    monkeypatch.setattr(row_stream, "CHUNK", 3)
    first_is_taken, three_have_come = Event(), Event()

    def rows():
        yield ("0",), "here"
        assert first_is_taken.wait(10)
        for number in range(1, 4):
            yield (str(number),), "here"
        three_have_come.set()
        yield ("4",), "here"

    chunks = row_stream.chunks_at_once(rows())
    assert len(next(chunks)) == 1
    first_is_taken.set()
    assert three_have_come.wait(10)
    assert list(map(len, chunks)) == [3, 1]


def test_rows_before_an_error_are_given_first():
    def rows():
        yield ("a",), "here"
        raise UserError("bad row")

    chunks = row_stream.chunks_at_once(rows())
    assert texts(next(chunks)) == [("a",)]
    refusals.check(lambda: next(chunks), "bad row")


def test_little_is_read_ahead(monkeypatch):
    monkeypatch.setattr(row_stream, "CHUNK", 4)
    taken, full = [], Event()

    def rows():
        for number in range(1000):
            taken.append(number)
            if len(taken) > 8:
                full.set()
            yield (str(number),), "here"

    chunks = row_stream.chunks_at_once(rows())
    next(chunks)
    # Time enough for the reader to run away, if it could.
    full.wait(0.2)
    assert len(taken) <= 4 + 4 + 2
    assert sum(map(len, chunks)) + 4 >= 999
