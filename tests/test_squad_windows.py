"""Windows of contexts: what they show, how they overlap, where answers are."""

import dataclasses
import unicodedata

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import TINY_WORDS

from adapter_bert.tasks import squad_data
from adapter_bert.tasks.squad_data import Answer, Question, cut_windows

pytestmark = pytest.mark.older_stack

PROPERTY = hypothesis.settings(
    derandomize=True, deadline=None, max_examples=150
)


def ask(context, answer=None, text="is a cat in ?", start=None):
    """A question with one answer; `""` for none, None for unlabelled."""
    answers = None
    if answer is not None:
        start = context.index(answer) if start is None else start
        answers = (Answer(answer, start),) if answer else ()
    return Question("q", text, context, answers)


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


def targets(windows, question=0):
    """What each row's labels cut out of the row, None for 0 and 0."""
    return [
        " ".join(row.split()[start : end + 1])
        if (start, end) != (0, 0)
        else None
        for row, (start, end), number in zip(
            rows_of(windows), labels_of(windows), windows.question
        )
        if number == question
    ]


# By hand


def test_windows_hold_the_question_and_overlapping_parts(tokenizer):
    question = ask("the cat sat on the mat .", "mat")
    windows = cut_windows([question], tokenizer, 9, 2, 2)
    assert rows_of(windows) == [
        "[CLS] is a [SEP] the cat sat on [SEP]",
        "[CLS] is a [SEP] sat on the mat [SEP]",
        "[CLS] is a [SEP] the mat . [SEP]",
    ]
    assert windows.segments.tolist() == (
        2 * [0, 0, 0, 0, 1, 1, 1, 1, 1] + [0, 0, 0, 0, 1, 1, 1, 1]
    )
    assert windows.starts.tolist() == [0, 9, 18, 26]
    assert windows.question.tolist() == [0, 0, 0]
    assert windows.first.tolist() == [4, 4, 4]
    assert windows.context_first.tolist() == [0, 2, 4]
    assert windows.context_starts.tolist() == [0]
    assert labels_of(windows) == [(0, 0), (7, 7), (5, 5)]
    assert windows.offsets.tolist() == [
        [0, 3], [4, 7], [8, 11], [12, 14], [15, 18], [19, 22], [23, 24],
    ]  # fmt: skip


def test_arrays_have_the_declared_types(tokenizer):
    windows = cut_windows([ask("the cat", "cat")], tokenizer, 9, 2, 2)
    types = {
        field.name: getattr(windows, field.name).dtype.name
        for field in dataclasses.fields(windows)
        if field.name not in ("labels", "cut_rows")
    }
    assert types == {
        "tokens": "int32",
        "segments": "uint8",
        "starts": "int64",
        "question": "int32",
        "first": "int32",
        "context_first": "int32",
        "context_starts": "int64",
        "offsets": "int32",
    }
    assert {v.dtype.name for v in windows.labels.values()} == {"int32"}


@pytest.mark.parametrize(
    "tokens,expected",
    [(1, [0]), (4, [0]), (5, [0, 3]), (7, [0, 3]), (8, [0, 3, 6])],
)
def test_no_window_follows_the_one_that_reaches_the_end(
    tokenizer, tokens, expected
):
    question = ask("cat " * tokens, text="is a")
    windows = cut_windows([question], tokenizer, 9, 3, 2)
    assert windows.context_first.tolist() == expected


def test_windows_are_never_further_apart_than_they_are_long(tokenizer):
    windows = cut_windows([ask("a " * 10)], tokenizer, 9, 128, 2)
    assert windows.context_first.tolist() == [0, 4, 8]


@pytest.mark.parametrize(
    "max_query_length,head",
    [
        (1, "[CLS] is [SEP]"),
        (4, "[CLS] is a cat in [SEP]"),
        (5, "[CLS] is a cat in ? [SEP]"),
        (9, "[CLS] is a cat in ? [SEP]"),
    ],
)
def test_long_questions_are_cut(tokenizer, max_query_length, head):
    windows = cut_windows([ask("sat")], tokenizer, 16, 4, max_query_length)
    assert rows_of(windows) == [f"{head} sat [SEP]"]
    assert windows.first.tolist() == [len(head.split())]
    assert windows.cut_rows == (max_query_length < 5)


def test_an_empty_question_is_no_token(tokenizer):
    windows = cut_windows([ask("sat", text="")], tokenizer, 16, 4, 4)
    assert rows_of(windows) == ["[CLS] [SEP] sat [SEP]"]


@pytest.mark.parametrize("context", ["", " \n\t", "\u200b"])
def test_a_context_without_tokens_has_no_windows(tokenizer, context):
    questions = [ask("the cat"), ask(context), ask("a dog")]
    windows = cut_windows(questions, tokenizer, 16, 4, 4)
    assert windows.question.tolist() == [0, 2]
    alone = cut_windows([ask(context, "")], tokenizer, 16, 4, 4)
    assert len(alone) == 0
    assert alone.labels["start_positions"].shape == (0,)
    assert len(alone.fingerprint()) == 64


def test_questions_of_a_context_share_its_tokens(tokenizer):
    questions = [
        ask("a cat sat"),
        ask("the dog", text="was the dog bad ?"),
        ask("the dog", text="is it ?"),
        ask("a cat sat", text="not ?"),
    ]
    windows = cut_windows(questions, tokenizer, 16, 4, 4)
    starts = windows.context_starts.tolist()
    assert starts[:3] == [0, 3, 3]
    for question, start in zip(questions, starts):
        words = question.context.split()
        offsets = windows.offsets[start : start + len(words)]
        assert [question.context[s:e] for s, e in offsets] == words
    # The first context may be kept a second time, the second is not.
    assert len(windows.offsets) <= 3 + 2 + 3


@pytest.mark.parametrize(
    "context,answer,start,expected",
    [
        ("the cat sat on the mat .", "cat", None, "cat"),
        ("the cat sat on the mat .", "the cat", None, "the cat"),
        ("the cat sat on the mat .", " cat sat ", None, "cat sat"),
        # The second of two.
        ("the cat sat on the mat .", "the", 15, "the"),
        # Its own tokens are less than its words, or more.
        ("a (cat) sat", "cat", None, "cat"),
        ("the cats sat", "cat", None, "cat"),
        # It starts or ends inside a token.
        ("the cats sat", "ca", None, "cat"),
        ("the cats sat", "ats", None, "cat ##s"),
        ("the cats sat", "s sa", None, "##s sat"),
        ("a mat.cat", "cat", None, "cat"),
        # Case and accents are none of the tokens'.
        ("the C\u00c4T sat", "C\u00c4T", None, "cat"),
        ("the cat sat", "", None, None),
        # A letter's accent is of its token, white space is of none.
        ("the ca\u0308t\u0301 sat", "ca\u0308t\u0301", None, "cat"),
        ("the\u3000cat\u00a0sat", "\u3000cat\u00a0", None, "cat"),
        ("the\u200bcat\u200bsat", "sat", None, "[UNK]"),
        # The answer has no token.
        ("the cat\u200b sat", "\u200b", None, None),
    ],
)
def test_labels_are_the_places_of_the_answers_tokens(
    tokenizer, context, answer, start, expected
):
    question = ask(context, answer, start=start)
    windows = cut_windows([question], tokenizer, 24, 4, 4)
    assert targets(windows) == [expected]
    if start is not None:
        (label,) = labels_of(windows)
        assert label == (6 + 4, 6 + 4)


@pytest.mark.parametrize(
    "context,answer,start,label",
    [
        ("a cat,cat sat", "cat", 2, (1, 1)),
        ("a cat,cat sat", "cat", 6, (3, 3)),
        ("cat\u00a0sat\u00a0cat\u00a0ran", "cat", 8, (2, 2)),
        ("the cats,cats", "ts", 11, (4, 5)),
        ("\u4eac\u4eac\u4eac", "\u4eac", 2, (2, 2)),
        ("\u4eac\u4eac\u4eac", "\u4eac\u4eac", 1, (1, 2)),
        ("cat|cat|cat,cat", "cat,cat", 8, (4, 6)),
        (
            "\u5927\u5b66\u5728\u4e2d\u56fd\uff0c1903\u5e74\u5efa\u7acb\uff0c"
            "\u53c8\u57281903\u5e74\u5173\u95ed\uff0c\u5c71\u57281903\u5e74\u3002",
            "1903",
            26,
            (20, 20),
        ),
        (
            "It opened in 1903 and closed in 1903 and fell in 1903 too.",
            "1903",
            49,
            (11, 11),
        ),
        # By one off, in a text where the answer occurs before.
        ("cat|cat|cat|", "cat", 9, (4, 4)),
    ],
)
def test_the_occurrence_that_the_file_names_is_labelled(
    tokenizer, context, answer, start, label
):
    question = ask(context, answer, start=start)
    windows = cut_windows([question], tokenizer, 40, 4, 4)
    assert labels_of(windows) == [tuple(6 + place for place in label)]


def test_answers_that_tokens_exceed_are_counted(tokenizer, caplog):
    questions = [
        ask(context, answer)
        for context, answer in (
            ("the cats sat", "cats"),
            ("the cats sat", "ca"),
            ("the cats sat", "at"),
            ("the sat\u0301", "sat"),
            ("the cat\u200b", "cat\u200b"),
            ("the \u200b cat", "\u200b"),
        )
    ]
    with caplog.at_level("INFO", logger="absl"):
        cut_windows(questions, tokenizer, 24, 4, 4)
    found = [m for m in caplog.messages if "of 6 questions" in m]
    assert [m[:6] for m in found] == ["3 of 6", "1 of 6"]
    assert "start or end inside a token" in found[0]
    assert "are of no token" in found[1]


def test_a_window_that_holds_half_an_answer_has_none(tokenizer):
    question = ask("the cat sat on the mat .", "sat on", text="")
    windows = cut_windows([question], tokenizer, 6, 1, 2)
    assert rows_of(windows)[:4] == [
        "[CLS] [SEP] the cat sat [SEP]",
        "[CLS] [SEP] cat sat on [SEP]",
        "[CLS] [SEP] sat on the [SEP]",
        "[CLS] [SEP] on the mat [SEP]",
    ]
    assert labels_of(windows) == [(0, 0), (3, 4), (2, 3), (0, 0), (0, 0)]


def test_impossible_questions_point_at_the_first_token(tokenizer):
    questions = [ask("a b c d e f g", ""), ask("a cat", "cat")]
    windows = cut_windows(questions, tokenizer, 9, 2, 2)
    assert targets(windows, 0) == [None, None, None]
    assert targets(windows, 1) == ["cat"]


def test_there_are_labels_where_all_answers_are_known_only(tokenizer):
    known, unknown = ask("a cat", "cat"), ask("a dog")
    assert set(cut_windows([known], tokenizer, 9, 2, 2).labels) == {
        "start_positions",
        "end_positions",
    }
    for questions in ([unknown], [known, unknown], [unknown, known]):
        assert cut_windows(questions, tokenizer, 9, 2, 2).labels == {}


@pytest.mark.parametrize(
    "context,expected",
    [
        ("the zebra,", ["the", "zebra", ","]),
        ("the C\u00c4T", ["the", "C\u00c4T"]),
        ("ca\u0308t\u0301s a", ["ca\u0308t\u0301", "s", "a"]),
        ("c\u200bats\u200b", ["c\u200bat", "s"]),
        ("\x01(c\x7fat\x01)", ["(", "c\x7fat", ")"]),
        ("the\u00a0cat\u3000a\u2009mat", ["the", "cat", "a", "mat"]),
        ("\u0301cat \u0301 sat", ["cat", "sat"]),
    ],
)
def test_places_are_exact_whatever_is_dropped(tokenizer, context, expected):
    windows = cut_windows([ask(context)], tokenizer, 16, 4, 4)
    assert [context[slice(*place)] for place in windows.offsets] == expected


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
    asked = {
        place
        for place in range(start, start + len(answer))
        if not context[place].isspace()
    }
    covering = [
        number
        for number, place in enumerate(windows.offsets)
        if asked & set(range(*place))
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


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("chunk", [1, 20, 45])
def test_windows_do_not_depend_on_how_much_is_tokenized_at_once(
    tokenizer, monkeypatch, chunk, labelled
):
    questions = MANY
    if not labelled:
        questions = [dataclasses.replace(q, answers=None) for q in MANY]
    whole = cut_windows(questions, tokenizer, 10, 3, 4)
    batches = []
    encode = tokenizer.encode
    monkeypatch.setattr(
        tokenizer,
        "encode",
        lambda texts: batches.append(texts) or encode(texts),
    )
    monkeypatch.setattr(squad_data, "CHUNK", chunk)
    parts = cut_windows(questions, tokenizer, 10, 3, 4)
    # Contexts and questions of two chunks at least.
    assert len(batches) >= 4
    assert parts.fingerprint() == whole.fingerprint()
    for field in dataclasses.fields(whole):
        expected, found = getattr(whole, field.name), getattr(parts, field.name)
        if field.name == "labels":
            assert set(found) == set(expected)
        else:
            np.testing.assert_array_equal(found, expected, field.name)


def test_a_context_that_follows_upon_itself_is_tokenized_once(
    tokenizer, monkeypatch
):
    texts = []
    encode = tokenizer.encode
    monkeypatch.setattr(
        tokenizer, "encode", lambda batch: texts.extend(batch) or encode(batch)
    )
    monkeypatch.setattr(squad_data, "CHUNK", 1)
    questions = [ask("a slow film", text=text) for text in ("is", "it", "in")]
    cut_windows([*questions, ask("the mat")], tokenizer, 16, 4, 4)
    assert texts.count("a slow film") == texts.count("the mat") == 1


def test_no_more_is_tokenized_at_once_than_fills_a_chunk(monkeypatch):
    """All characters count, those of a context once."""
    monkeypatch.setattr(squad_data, "CHUNK", 20)
    questions = [
        ask(context, text=10 * "?") for context in (10 * "a", 10 * "b", "c")
    ]
    questions += [ask("c", text=9 * "?"), ask("d")]
    chunks = list(squad_data._chunks(questions))
    assert chunks == [questions[:1], questions[1:2], questions[2:4], [ask("d")]]
