"""SQuAD files: what is read, what is refused, where answers are found."""

import copy
import json
import re

import hypothesis
import hypothesis.strategies as st
import pytest

from adapter_bert.errors import UserError
from adapter_bert.tasks.squad_data import (
    SPACES,
    Answer,
    Question,
    check_answers,
    find_answer,
    join_words,
    read_questions,
    widen,
)

pytestmark = pytest.mark.older_stack

PROPERTY = hypothesis.settings(
    derandomize=True, deadline=None, max_examples=150
)
BOTH_VERSIONS = pytest.mark.parametrize("with_negative", [False, True])

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
    path.write_text(
        content if isinstance(content, str) else json.dumps(content)
    )
    return read_questions(str(path), with_negative)


def refusal(function, *arguments):
    with pytest.raises(UserError) as raised:
        function(*arguments)
    return str(raised.value)


# Reading


@BOTH_VERSIONS
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
    answer = Answer("cat", 4)
    assert read(tmp_path, content, with_negative) == [
        Question("b", "who\n?", "the cat", (answer, answer)),
        Question("a", "", "the cat", ()),
        Question("", "where ?", "a dog", None),
    ]


def test_questions_of_a_paragraph_share_their_context(tmp_path):
    other = {**QA, "id": "q2"}
    one, two = read(tmp_path, document(paragraph(QA, other)))
    assert one.context is two.context


def test_a_leading_byte_order_mark_is_no_content(tmp_path):
    path = tmp_path / "squad.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(with_qa()).encode())
    assert [q.id for q in read_questions(str(path), False)] == ["q1"]


def test_impossible_questions_have_no_answers_in_version_2_only(tmp_path):
    content = with_qa(is_impossible=True)
    (question,) = read(tmp_path, content, with_negative=True)
    assert question.answers == ()
    (question,) = read(tmp_path, content, with_negative=False)
    assert question.answers == (Answer("cat", 4),)


def test_impossible_questions_need_not_list_answers(tmp_path):
    qa = {**without("answers", QA), "is_impossible": True}
    (question,) = read(tmp_path, document(paragraph(qa)), with_negative=True)
    assert question.answers == ()


def test_possible_questions_of_version_2_have_their_answers(tmp_path):
    (question,) = read(tmp_path, with_qa(is_impossible=False), True)
    assert question.answers == (Answer("cat", 4),)


HERE = "data[0].paragraphs[0]"
MALFORMED = [
    ("", "is not JSON"),
    ("{'data': []}", "is not JSON"),
    (json.dumps(with_qa())[:-1], "is not JSON"),
    ([with_qa()], 'expected an object with "data"'),
    ('"data"', 'expected an object with "data"'),
    ("null", 'expected an object with "data"'),
    ({"version": "v2.0"}, 'expected an object with "data"'),
    ({"data": {}}, "\"data\" is '{}', expected a list"),
    ({"data": "data"}, "\"data\" is 'data', expected a list"),
    ({"data": None}, "\"data\" is 'None', expected a list"),
    ({"data": True}, "\"data\" is 'True', expected a list"),
    ({"data": [[]]}, 'data[0]: expected an object with "paragraphs"'),
    ({"data": [{}]}, 'data[0]: expected an object with "paragraphs"'),
    ({"data": [{"paragraphs": {}}]}, "data[0]: \"paragraphs\" is '{}'"),
    (document("qas"), f'{HERE}: expected an object with "context"'),
    (
        document(without("context", paragraph(QA))),
        f'{HERE}: expected an object with "context"',
    ),
    (document(paragraph(QA, context=5)), f"{HERE}: \"context\" is '5'"),
    (document(paragraph(QA, context=None)), "is 'None', expected text"),
    (
        document(without("qas", paragraph())),
        f'{HERE}: expected an object with "qas"',
    ),
    (document(paragraph(qas={})), f"{HERE}: \"qas\" is '{{}}'"),
    (document(paragraph("q1")), f'{HERE}.qas: expected an object with "id"'),
    (
        document(paragraph(without("id", QA))),
        f'{HERE}.qas: expected an object with "id"',
    ),
    (with_qa(id=7), f"{HERE}.qas: \"id\" is '7', expected text"),
    (with_qa(id=True), f"{HERE}.qas: \"id\" is 'True', expected text"),
    (
        document(paragraph(without("question", QA))),
        f"{HERE}: question 'q1': expected an object with \"question\"",
    ),
    (with_qa(question=["who"]), f"{HERE}: question 'q1': \"question\" is"),
    (with_qa(answers=ANSWER), f"{HERE}: question 'q1': \"answers\" is"),
    (with_qa(answers=None), f"{HERE}: question 'q1': \"answers\" is 'None'"),
    (with_qa(answers="cat"), "\"answers\" is 'cat', expected a list"),
    (
        with_qa(answers=["cat"]),
        f"{HERE}: question 'q1': answer: expected an object with \"text\"",
    ),
    (
        with_qa(answers=[ANSWER, without("text", ANSWER)]),
        "question 'q1': answer: expected an object with \"text\"",
    ),
    (
        with_qa(answers=[without("answer_start", ANSWER)]),
        "question 'q1': answer: expected an object with \"answer_start\"",
    ),
    (with_answer(text=None), "answer: \"text\" is 'None', expected text"),
    (with_answer(text=1895), "answer: \"text\" is '1895', expected text"),
    (with_answer(answer_start="4"), "is '4', expected a whole number"),
    (with_answer(answer_start=4.0), "is '4.0', expected a whole number"),
    (with_answer(answer_start=True), "is 'True', expected a whole number"),
    (with_answer(answer_start=None), "is 'None', expected a whole number"),
    ({"data": []}, "holds no questions"),
    (document(), "holds no questions"),
    (document(paragraph(), paragraph()), "holds no questions"),
]


@BOTH_VERSIONS
@pytest.mark.parametrize("content,expected", MALFORMED)
def test_malformed_files_are_refused_with_the_place(
    tmp_path, with_negative, content, expected
):
    message = refusal(read, tmp_path, content, with_negative)
    assert str(tmp_path / "squad.json") in message
    assert expected in message
    assert message.isprintable()


@pytest.mark.parametrize("value", ["false", 1, []])
def test_a_question_is_impossible_or_not(tmp_path, value):
    content = with_qa(is_impossible=value)
    message = refusal(read, tmp_path, content, True)
    assert f"{HERE}: question 'q1'" in message
    assert '"is_impossible"' in message


def test_places_are_counted_in_articles_and_paragraphs(tmp_path):
    bad = {**QA, "id": "q2", "question": 5}
    content = document(paragraph(QA))
    content["data"] += document(paragraph(), paragraph(), paragraph(bad))[
        "data"
    ]
    message = refusal(read, tmp_path, content)
    assert "squad.json: data[1].paragraphs[2]: question 'q2': " in message


@pytest.mark.parametrize(
    "content,first,second",
    [
        (document(paragraph(QA, QA)), HERE, HERE),
        (
            document(paragraph(QA), paragraph(QA, context="cats")),
            HERE,
            "data[0].paragraphs[1]",
        ),
        (
            {"data": 2 * document(paragraph(QA))["data"]},
            HERE,
            "data[1].paragraphs[0]",
        ),
    ],
)
def test_an_id_that_occurs_twice_is_refused_with_both_places(
    tmp_path, content, first, second
):
    message = refusal(read, tmp_path, content)
    path = tmp_path / "squad.json"
    assert message.startswith(f"{path}: {second}: the question id 'q1' ")
    assert f"before in {first};" in message


def test_a_missing_file_is_refused(tmp_path):
    path = str(tmp_path / "train-v1.1.json")
    message = refusal(read_questions, path, False)
    assert message == f"the SQuAD file {path} does not exist"


def test_long_and_unprintable_values_are_shown_as_one_short_line(tmp_path):
    message = refusal(read, tmp_path, with_qa(question=["\x1b[1m\n" * 10**5]))
    assert message.isprintable()
    assert len(message) < 300 + len(str(tmp_path))


def nodes(value):
    """(container, key) of everything within a JSON value."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from nodes(value[key])


JSON_VALUES = st.recursive(
    st.sampled_from(
        [None, True, False, 0, -1, 5, 10**30, 0.5, "", "cat", "the\u00a0cat"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["text", "answer_start", "id", "qas", "context"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=4,
)


@PROPERTY
@hypothesis.given(st.data(), JSON_VALUES, st.booleans())
def test_any_change_of_a_file_is_read_or_refused(
    tmp_path_factory, data, value, with_negative
):
    impossible = {**QA, "id": "q2", "is_impossible": True}
    content = copy.deepcopy(document(paragraph(QA, impossible)))
    container, key = data.draw(st.sampled_from(list(nodes(content))))
    container[key] = value
    folder = tmp_path_factory.getbasetemp()
    try:
        questions = read(folder, content, with_negative)
        check_answers(questions, "squad.json", with_negative)
    except UserError as error:
        assert "squad.json" in str(error)
        return
    assert 0 < len(questions) <= 2
    for question in questions:
        assert {type(question.id), type(question.text)} == {str}
        assert type(question.context) is str
        if question.answers:
            span = find_answer(question)
            assert span is None or 0 <= span[0] < span[1]


# What scoring needs


@pytest.mark.parametrize(
    "answers,with_negative,expected",
    [
        (None, False, "at least one; pass --version_2_with_negative=true"),
        ((), False, "at least one; pass --version_2_with_negative=true"),
        (None, True, 'expected "answers" or "is_impossible"'),
    ],
)
def test_a_question_without_what_scoring_needs_is_refused(
    answers, with_negative, expected
):
    questions = [
        Question("q1", "", "the cat", (Answer("cat", 4),)),
        Question("q2", "", "the cat", answers),
    ]
    message = refusal(check_answers, questions, "dev.json", with_negative)
    assert message.startswith("dev.json: question 'q2' has no answer, ")
    assert expected in message


def test_questions_that_can_be_scored_pass():
    possible = Question("q1", "", "the cat", (Answer("cat", 4),))
    impossible = Question("q2", "", "the cat", ())
    check_answers([possible], "dev.json", False)
    check_answers([possible, impossible], "dev.json", True)


# Answers in their contexts


def found(context, text, start):
    """The characters of an answer, or None."""
    span = find_answer(Question("q", "", context, (Answer(text, start),)))
    return span and context[slice(*span)]


@pytest.mark.parametrize(
    "context,text,start,expected",
    [
        ("the cat sat", "cat", 4, "cat"),
        ("the cat sat", "the", 0, "the"),
        ("the cat sat", "cat sat", 4, "cat sat"),
        ("the cat sat", "the cat sat", 0, "the cat sat"),
        # Spaces around it.
        ("the cat sat", " cat ", 3, "cat"),
        ("the\t\ncat sat", "\n cat", 3, "cat"),
        ("the\u00a0cat\u3000sat", "\u00a0cat\u3000", 3, "cat"),
        # Other spaces within it.
        ("the cat  sat on", "cat sat", 4, "cat  sat"),
        ("the cat\n sat on", "cat sat", 4, "cat\n sat"),
        ("the cat\nsat on", "cat\tsat", 4, "cat\nsat"),
        ("the cat sat on it", "cat \n sat", 4, "cat sat"),
        ("the cat\u00a0sat on", "cat sat", 4, "cat\u00a0sat"),
        ("the cat sat\u2003on", "cat\u00a0sat", 4, "cat sat"),
        # A part of a word.
        ("the cats sat", "cat", 4, "cat"),
        ("the (cat) sat", "cat", 5, "cat"),
        ("the cats sat", "ts sa", 6, "ts sa"),
        ("a\u202fcat sat", "cat", 2, "cat"),
        ("a\u00a0cat sat", "cat", 2, "cat"),
        ("a cat\u2003sat\x0b on", "cat", 2, "cat"),
        # A little off its place.
        ("the (cat) sat", "cat", 4, "cat"),
        ("the (cat) sat", "cat", 6, "cat"),
    ],
)
def test_the_answers_characters_are_found(context, text, start, expected):
    assert found(context, text, start) == expected


@pytest.mark.parametrize(
    "context,text,start,expected",
    [
        ("cat,cat,cat", "cat", 8, 8),
        ("cat,cat,cat", "cat", 4, 4),
        ("aaaa", "aa", 1, 1),
        # By one or more off: the nearest, the first of two.
        ("cat,cat,cat", "cat", 5, 4),
        ("cat,cat,cat", "cat", 7, 8),
        ("cat,cat,cat", "cat", 6, 4),
        ("ba\u00a0aba  aba", "aba aba", 4, 3),
    ],
)
def test_the_occurrence_at_the_place_is_found(context, text, start, expected):
    question = Question("q", "", context, (Answer(text, start),))
    assert find_answer(question)[0] == expected


@pytest.mark.parametrize(
    "text,start",
    [
        ("dog", 4),
        ("Cat", 4),
        # It is elsewhere than `start` says.
        ("cat", 0),
        ("cat", 8),
        ("the cat", 4),
        # Negative numbers do not count from the end.
        ("sat", -3),
        ("the", -1),
        ("the", -(10**30)),
        # There is no text at all.
        ("", 4),
        (" \n", 3),
    ],
)
def test_an_answer_that_is_not_at_its_place_is_not_found(text, start):
    assert found("the cat sat", text, start) is None


@pytest.mark.parametrize("start", [9, 10, 11, 12, 100, 2**31, 2**63, 10**30])
def test_an_answer_beyond_the_end_is_not_found(start):
    assert found("the cat sat", "sat", start) is None


@pytest.mark.parametrize("start", [-1, -3, -4])
def test_a_negative_start_is_no_place_in_a_single_word(start):
    assert found("cat", "cat", start) is None


def test_an_empty_context_holds_no_answer():
    assert found("", "cat", 0) is None


def test_the_first_answer_counts():
    answers = (Answer("sat", 8), Answer("cat", 4))
    question = Question("q", "", "the cat sat", answers)
    assert find_answer(question) == (8, 11)


TEXTS = st.text(st.sampled_from("ab. \t\n\u00a0\u202f\U0001f600"), max_size=30)


def slow_words(text):
    """The words of a text, character by character."""
    words = [""]
    for character in text:
        if character.isspace():
            words.append("")
        else:
            words[-1] += character
    return [word for word in words if word]


@PROPERTY
@hypothesis.given(TEXTS)
def test_joined_words_have_one_space_between_them(text):
    assert join_words(text) == " ".join(slow_words(text))


@PROPERTY
@hypothesis.given(TEXTS, st.integers(0, 30), st.integers(1, 30))
def test_every_part_of_a_context_is_found_at_its_place(context, start, length):
    text = context[start : start + length]
    question = Question("q", "", context, (Answer(text, start),))
    inside = text.strip()
    first = start + len(text) - len(text.lstrip())
    expected = (first, first + len(inside)) if inside else None
    assert find_answer(question) == expected


def test_all_white_space_is_known():
    assert SPACES == "".join(filter(str.isspace, map(chr, range(0x110000))))


@pytest.mark.parametrize(
    "part,expected",
    [
        ((4, 7), "cats,"),
        ((5, 6), "cats,"),
        ((4, 9), "cats,"),
        ((4, 10), "cats, a"),
        ((6, 13), "cats, a\u00a0dog"),
        ((0, 2), "the"),
        ((0, 15), "the cats, a\u00a0dog"),
    ],
)
def test_widened_parts_are_whole_words(part, expected):
    text = "the cats, a\u00a0dog"
    start, end = widen(text, *part)
    assert text[start:end] == expected
    assert re.fullmatch(r"\S.*\S", text[start:end])
