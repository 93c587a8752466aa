"""SQuAD files: what is read and refused; windows, and answers in them."""

import functools
import itertools
import json
import unicodedata

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
from conftest import TINY_WORDS
from numpy.testing import assert_array_equal

from adapter_bert.data import tokenization
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.memory_rows import MemoryRows
from adapter_bert.tasks.squad_data import (
    SPACES,
    SquadAnswer,
    SquadQuestion,
    cut_windows,
    find_answer,
    read_questions,
)

pytestmark = pytest.mark.older_stack

PROPERTY = hypothesis.settings(max_examples=150)

ANSWER = {"text": "cat", "answer_start": 4}
QA = {"id": "q1", "question": "who ?", "answers": [ANSWER]}


def paragraph(*qas, **changes):
    return {"context": "the cat", "qas": list(qas), **changes}


def document(*paragraphs):
    """One article with these paragraphs."""
    return {"data": [{"paragraphs": list(paragraphs)}]}


def with_qa(**changes):
    return document(paragraph({**QA, **changes}))


def with_answer(**changes):
    return with_qa(answers=[{**ANSWER, **changes}])


def without(key, mapping):
    return {name: value for name, value in mapping.items() if name != key}


def read(folder, content, with_negative=False):
    path = folder / "squad.json"
    text = content if isinstance(content, str) else json.dumps(content)
    # A leading byte-order mark is no content.
    path.write_text(text, encoding="utf-8-sig")
    return read_questions(str(path), with_negative)


# Reading


@pytest.mark.parametrize("with_negative", [False, True])
def test_questions_are_read_in_the_order_of_the_file(tmp_path, with_negative):
    first = {"id": "b", "question": "who\n?", "answers": [ANSWER, ANSWER]}
    second = {"id": "a", "question": "", "answers": []}
    third = {"id": "", "question": "where ?"}
    content = {
        "version": "x",
        "data": [
            {"title": "x", "paragraphs": [paragraph(first, second)]},
            {"paragraphs": []},
            {"paragraphs": [paragraph(), paragraph(third, context="a dog")]},
        ],
    }
    answer = SquadAnswer("cat", 4)
    questions = read(tmp_path, content, with_negative)
    assert questions[0].context is questions[1].context
    assert questions == [
        SquadQuestion("b", "who\n?", "the cat", (answer, answer)),
        SquadQuestion("a", "", "the cat", ()),
        SquadQuestion("", "where ?", "a dog", None),
    ]


@pytest.mark.parametrize(
    "qa, with_negative, answers",
    [
        ({**QA, "is_impossible": True}, True, ()),
        ({**QA, "is_impossible": False}, True, (SquadAnswer("cat", 4),)),
        ({**QA, "is_impossible": True}, False, (SquadAnswer("cat", 4),)),
        # It need not list answers.
        ({**without("answers", QA), "is_impossible": True}, True, ()),
    ],
)
def test_questions_may_be_impossible_in_version_2(
    tmp_path, qa, with_negative, answers
):
    row = MemoryRows([{**qa, "context": paragraph()["context"]}], "rows")
    for questions in (
        read(tmp_path, document(paragraph(qa)), with_negative),
        read_questions(row, with_negative),
    ):
        assert [question.answers for question in questions] == [answers]


def test_an_answer_has_its_start():
    row = {**QA, "context": paragraph()["context"]}
    for answers in ({"text": ["cat"]}, {"text": ["cat"], "answer_start": []}):
        rows = MemoryRows([{**row, "answers": answers}], "rows")
        refusals.check(
            functools.partial(read_questions, rows, True),
            "\"answer_start\" is 'None', expected a whole number",
        )


HERE = "data[0].paragraphs[0]"
MALFORMED = {
    "no JSON": ("{'data': []}", "is not JSON"),
    "no object": ([with_qa()], "squad.json:1: ", '"context"'),
    "a number": ("3\n", ":", '"data"'),
    "no list": ({"data": {}}, "\"data\" is '{}', expected a list"),
    "no paragraph": (document("qas"), f"{HERE}:", 'an object with "context"'),
    "context": (document(paragraph(QA, context=5)), HERE, "\"context\" is '5'"),
    "id": (with_qa(id=[7]), f"{HERE}.qas: \"id\" is '[7]', expected text"),
    "long": (
        with_qa(question=["\x1b[1m\n" * 10**5]),
        f"{HERE}: question 'q1': \"question\" is",
    ),
    "answers": (with_qa(answers=ANSWER), HERE, "'q1'", '"answers" is'),
    "impossible": (with_qa(is_impossible=1), HERE, "'q1'", '"is_impossible"'),
    "no text": (
        with_qa(answers=[ANSWER, without("text", ANSWER)]),
        "question 'q1': answer: expected an object with \"text\"",
    ),
    "text": (with_answer(text=1895), "\"text\" is '1895', expected text"),
    "float": (with_answer(answer_start=4.0), "'4.0', expected a whole number"),
    "bool": (with_answer(answer_start=True), "'True', expected a whole"),
    "nothing": (document(paragraph(), paragraph()), "holds no questions"),
    "second": (
        {
            "data": document(paragraph(QA))["data"]
            + document(paragraph(), paragraph({**QA, "question": 5}))["data"]
        },
        "data[1].paragraphs[1]: question 'q1': ",
    ),
    "twice": (
        {"data": 2 * document(paragraph(QA))["data"]},
        f"data[1].paragraphs[0]: the question id 'q1' occurs twice, before in "
        f"{HERE};",
    ),
}


@refusals.table(MALFORMED)
def test_malformed_files_are_refused_with_the_place(tmp_path, call, parts):
    refusals.check(
        lambda: read(tmp_path, call, True), tmp_path / "squad.json", *parts
    )


# Answers in their contexts


@pytest.mark.parametrize(
    "context, text, start, first, expected",
    [
        # Other spaces within it.
        ("the cat  sat on", "cat sat", 4, 4, "cat  sat"),
        ("the cat\nsat on", "cat\tsat", 4, 4, "cat\nsat"),
        ("the cat sat\u2003on", "cat\u00a0sat", 4, 4, "cat sat"),
        ("a cat\u2003sat\x0b on", "cat", 2, 2, "cat"),
        # By one or more off: the nearest, the first of two.
        ("the (cat) sat", "cat", 4, 5, "cat"),
        ("the (cat) sat", "cat", 6, 5, "cat"),
        ("cat,cat,cat", "cat", 5, 4, "cat"),
        ("cat,cat,cat", "cat", 6, 4, "cat"),
        ("ba\u00a0aba  aba", "aba aba", 4, 3, "aba  aba"),
        # It is elsewhere than `start` says, or nowhere.
        ("the cat sat", "dog", 4, None, None),
        ("the cat sat", "Cat", 4, None, None),
        ("the cat sat", "cat", 0, None, None),
        ("the cat sat", "the cat", 4, None, None),
        # Negative numbers do not count from the end.
        ("the cat sat", "sat", -3, None, None),
        ("the cat sat", "the", -(10**30), None, None),
        # It would end beyond the context.
        *(("the cat sat", "sat", x, None, None) for x in (9, 10**30)),
        ("", "cat", 0, None, None),
    ],
)
def test_an_answer_is_found_near_its_place(
    context, text, start, first, expected
):
    # The first answer counts.
    answers = SquadAnswer(text, start), SquadAnswer(context[:3], 0)
    span = find_answer(SquadQuestion("q", "", context, answers))
    assert (span and span[0]) == first
    assert (span and context[slice(*span)]) == expected


TEXTS = st.text(st.sampled_from("ab. \t\n\u00a0\u202f\U0001f600"), max_size=30)


@PROPERTY
@hypothesis.given(TEXTS, st.integers(0, 30), st.integers(0, 30))
def test_every_part_of_a_context_is_found_at_its_place(context, start, length):
    text = context[start : start + length]
    question = SquadQuestion("q", "", context, (SquadAnswer(text, start),))
    inside = text.strip()
    first = start + len(text) - len(text.lstrip())
    expected = (first, first + len(inside)) if inside else None
    assert find_answer(question) == expected


def test_all_white_space_is_known():
    assert SPACES == "".join(filter(str.isspace, map(chr, range(0x110000))))


def ask(context, answer=None, text="is a cat in ?", start=None):
    """A question with one answer; `""` for none, None for unlabelled."""
    answers = None
    if answer is not None:
        start = context.index(answer) if start is None else start
        answers = (SquadAnswer(answer, start),) if answer else ()
    return SquadQuestion("q", text, context, answers)


def rows_of(windows):
    """The tokens of each row, as words."""
    return [
        " ".join(TINY_WORDS[i] for i in windows.tokens[start:end])
        for start, end in zip(windows.starts, windows.starts[1:])
    ]


def labels_of(windows):
    return list(
        zip(
            windows.labels["start_positions"].tolist(),
            windows.labels["end_positions"].tolist(),
        )
    )


# By hand


def test_arrays_have_the_declared_types(tokenizer, caplog):
    caplog.set_level("INFO")
    windows = cut_windows([ask("the cat", "cat")], tokenizer, 9, 2, 2)
    # A server would write such lines all the time.
    assert "tokenize" not in caplog.text
    types = {"segments": "uint8", "starts": "int64", "context_starts": "int64"}
    arrays = {**vars(windows), **windows.labels}
    for name in arrays.keys() - {"labels", "cut_rows", "answers"}:
        assert arrays[name].dtype.name == types.get(name, "int32"), name


@pytest.mark.parametrize("context", ["", " \n\t", "\u200b"])
def test_a_context_without_tokens_has_no_windows(tokenizer, context):
    questions = [ask("the cat"), ask(context), ask("a dog")]
    windows = cut_windows(questions, tokenizer, 16, 4, 4)
    assert windows.question.tolist() == [0, 2]
    alone = cut_windows([ask(context, "")], tokenizer, 16, 4, 4)
    assert len(alone) == 0
    assert alone.labels["start_positions"].shape == (0,)
    assert len(alone.fingerprint()) == 64


def test_there_are_labels_where_all_answers_are_known_only(tokenizer):
    labelled, unlabelled = ask("a cat", "cat"), ask("a dog")
    assert len(cut_windows([labelled], tokenizer, 9, 2, 2).labels) == 2
    for questions in ([labelled, unlabelled], [unlabelled, labelled]):
        assert cut_windows(questions, tokenizer, 9, 2, 2).labels == {}


def test_fingerprints_tell_all_answers_that_are_scored(tokenizer):
    cat, the_cat, sat = (
        SquadAnswer(*x) for x in (("cat", 4), ("the cat", 0), ("sat", 8))
    )
    several = [(cat,), (cat, the_cat), (cat, sat), (cat, the_cat, sat)]

    def fingerprint(answers):
        question = SquadQuestion("q", "is it ?", "the cat sat", answers)
        return cut_windows([question], tokenizer, 12, 4, 4).fingerprint()

    assert len(set(map(fingerprint, several))) == 4
    # The best one counts, whatever their order and number.
    assert fingerprint((cat, sat, the_cat, cat)) == fingerprint(several[3])
    windows = cut_windows([ask("the cat sat", "cat")], tokenizer, 12, 4, 4)
    assert windows.fingerprint() == Features.fingerprint(windows)


# Any contexts

PIECES = st.sampled_from(
    "the cat cats CAT sat! (cat) mat.cat zebra c\u00e4t ca\u0308t ca\u200bt "
    "the\u00a0cat c\x01at \u4eac".split(" ")
)
GAPS = st.sampled_from(
    [" ", " ", " ", "  ", "\n", "\t ", "\u202f", "\u3000", "\u2009", "\u200b"]
)
CONTEXTS = st.lists(st.tuples(PIECES, GAPS), max_size=25).map(
    lambda pieces: "".join(piece + gap for piece, gap in pieces)
)
QUESTIONS = st.lists(
    st.sampled_from("is the cat in ? Cats zebra".split()), max_size=8
).map(" ".join)
# (max_seq_length, doc_stride, max_query_length): room for a token at least.
SIZES = st.integers(1, 6).flatmap(
    lambda query: st.tuples(
        st.integers(query + 4, 24), st.integers(1, 12), st.just(query)
    )
)


@PROPERTY
@hypothesis.given(
    st.lists(st.tuples(QUESTIONS, CONTEXTS), min_size=1, max_size=4), SIZES
)
def test_windows_show_every_token_of_every_context(tokenizer, texts, sizes):
    max_seq_length, doc_stride, max_query_length = sizes
    questions = [ask(context, text=text) for text, context in texts]
    windows = cut_windows(questions, tokenizer, *sizes)
    assert windows.question.tolist() == sorted(windows.question)
    for number, question in enumerate(questions):
        query, context = tokenizer.encode([question.text, question.context])
        head = query.ids[:max_query_length]
        head = [tokenizer.classify_id, *head, tokenizer.separate_id]
        room = max_seq_length - len(head) - 1
        rows = np.flatnonzero(windows.question == number)
        ends = []
        for row in rows:
            start, end = windows.starts[row : row + 2]
            tokens = windows.tokens[start:end].tolist()
            assert len(tokens) <= max_seq_length
            assert windows.first[row] == len(head)
            first = windows.context_first[row]
            part = context.ids[first : first + room]
            assert part
            assert tokens == [*head, *part, tokenizer.separate_id]
            assert windows.segments[start:end].tolist() == (
                [0] * len(head) + [1] * (len(part) + 1)
            )
            ends.append(first + len(part))
        firsts = windows.context_first[rows].tolist()
        step = min(doc_stride, room)
        assert firsts == list(range(0, step * len(rows), step))
        # No gap, the last one reaches the end, and no other does.
        assert all(end >= first for end, first in zip(ends, firsts[1:]))
        assert ends[-1:] == [len(context.ids)][: len(rows)]
        assert all(end < len(context.ids) for end in ends[:-1])
        assert bool(len(rows)) == bool(context.ids)


def plain(text):
    """Lower-case text without accents, format and control characters."""
    return "".join(
        c
        for c in unicodedata.normalize("NFD", text).lower()
        if unicodedata.category(c) not in ("Mn", "Cf", "Cc")
    )


@PROPERTY
@hypothesis.given(st.lists(CONTEXTS, min_size=1, max_size=4))
def test_offsets_cut_the_tokens_text_out_of_the_context(tokenizer, contexts):
    windows = cut_windows(list(map(ask, contexts)), tokenizer, 16, 4, 4)
    starts = windows.context_starts
    for row, number in enumerate(windows.question):
        first = windows.first[row]
        part = slice(windows.starts[row] + first, windows.starts[row + 1] - 1)
        shift = starts[number] + windows.context_first[row]
        for place, token in enumerate(windows.tokens[part]):
            begin, end = windows.offsets[shift + place]
            text = contexts[number][begin:end]
            assert text and not any(map(str.isspace, text))
            if TINY_WORDS[token] != "[UNK]":
                assert plain(text) == TINY_WORDS[token].replace("##", "")


@PROPERTY
@hypothesis.given(CONTEXTS, st.integers(0, 40), st.integers(1, 12), SIZES)
def test_labels_are_the_tokens_that_cover_the_answer(
    tokenizer, context, start, length, sizes
):
    answer = context[start : start + length]
    hypothesis.assume(answer.strip())
    question = ask(context, answer, start=start)
    windows = cut_windows([question], tokenizer, *sizes)
    characters = {
        place
        for place in range(start, start + len(answer))
        if not context[place].isspace()
    }
    covering = [
        number
        for number, place in enumerate(windows.offsets)
        if characters & set(range(*place))
    ]
    for row, label in enumerate(labels_of(windows)):
        begin = windows.context_first[row]
        shown = windows.lengths[row] - windows.first[row] - 1
        if covering and begin <= covering[0] and covering[-1] < begin + shown:
            shift = windows.first[row] - begin
            assert label == (covering[0] + shift, covering[-1] + shift)
        else:
            assert label == (0, 0)


# Parts of the work

MANY = [
    ask("the cat sat", "cat"),
    ask("the cat sat", "sat", text="is it ?"),
    ask("", ""),
    ask("a zebra sat on the slow , slow film .", "slow"),
    ask("the cat sat", "the", text="was the dog slow ?"),
    ask("the cat sat", ""),
    ask("c\u00e4ts ran", "ran"),
    ask("", "", text="out"),
]


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_windows_do_not_depend_on_how_much_is_tokenized_at_once(
    tokenizer, monkeypatch, chunk
):
    whole = cut_windows(MANY, tokenizer, 10, 3, 4)
    batches, encode = [], tokenizer.encode
    spy = lambda texts: batches.append(texts) or encode(texts)  # noqa: E731
    monkeypatch.setattr(tokenizer, "encode", spy)
    monkeypatch.setattr(tokenization, "CHUNK", chunk)
    parts = cut_windows(MANY, tokenizer, 10, 3, 4)
    # A context that follows itself is tokenized once.
    contexts = [c for c, _ in itertools.groupby(q.context for q in MANY)]
    assert sum(batches, []) == contexts
    assert {len(batch) for batch in batches[:-1]} == {chunk}
    assert whole.context_starts[:3].tolist() == [0, 0, 3]
    assert parts.fingerprint() == whole.fingerprint()
    assert_array_equal(parts.offsets, whole.offsets)
    assert_array_equal(parts.question, whole.question)
