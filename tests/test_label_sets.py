"""Cells that hold any number of labels."""

import hypothesis
import hypothesis.strategies as st
import pytest
from task_files import PROPERTY, refusal

from adapter_bert.data.tables import (
    check_separator,
    join_labels,
    list_labels,
    split_labels,
    warn_of_lists,
    warn_of_lookalikes,
)
from adapter_bert.errors import UserError

pytestmark = pytest.mark.older_stack

CHARACTERS = "ab |,;[]\t\u2003é"
SEPARATORS = st.sampled_from("|,; ")


@pytest.mark.parametrize(
    "cell, labels",
    [
        ("", ()),
        ("  ", ()),
        ("[]", ()),
        (" [] ", ()),
        ("sport", ("sport",)),
        ("b|a", ("b", "a")),
        (" b | a b ", ("b", "a b")),
        ("a,b", ("a,b",)),
    ],
)
def test_labels_of_a_cell(cell, labels):
    assert split_labels(cell, "|", "x:1") == labels


@pytest.mark.parametrize(
    "cell, part",
    [
        ("a|", "a label is empty"),
        ("|", "a label is empty"),
        ("a||b", "a label is empty"),
        ("a|b| a", "the label 'a' is given twice"),
        ('["a", "b"]', "begins or ends with a bracket"),
        ("['a']", "begins or ends with a bracket"),
    ],
)
def test_what_can_be_meant_in_two_ways_is_refused_with_its_place(cell, part):
    message = refusal(split_labels, cell, "|", "x.tsv:7")
    assert message.startswith("x.tsv:7: ") and part in message
    assert "\n" not in message


def test_a_label_that_holds_the_separator_is_refused():
    message = refusal(join_labels, ["a", "b, c"], ",", "x.jsonl:2")
    assert message == (
        "x.jsonl:2: the label 'b, c' holds ',', which stands between labels; "
        "pass another --label_separator"
    )
    assert join_labels(["a", "b, c"], "|", "") == "a|b, c"


@PROPERTY
@hypothesis.given(
    st.lists(st.text(CHARACTERS, max_size=4), max_size=4), SEPARATORS
)
def test_joined_labels_are_split_again_or_refused(labels, separator):
    try:
        cell = join_labels(labels, separator, "x")
    except UserError:
        return
    found = split_labels(cell, separator, "x")
    assert found == tuple(label.strip() for label in labels)


@PROPERTY
@hypothesis.given(st.text(CHARACTERS, max_size=8), SEPARATORS)
def test_split_labels_are_joined_again_or_refused(cell, separator):
    try:
        labels = split_labels(cell, separator, "x")
    except UserError:
        return
    assert len(set(labels)) == len(labels)
    again = join_labels(labels, separator, "x")
    assert split_labels(again, separator, "x") == labels


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
        (["1", "1.0"], "'1' and '1.0'"),
        (["1", "+1", "01"], "'1' and '+1'; '1' and '01'"),
        (["True", "true"], "'true' and 'True'"),
        (["New York", "new\u2003york"], r"'New York' and 'new\u2003york'"),
        (["é", "e\u0301"], r"'\xe9' and 'e\u0301'"),
        (["Straße", "strasse"], "'Straße' and 'strasse'"),
        (["❤", "❤\ufe0f"], r"'\u2764' and '\u2764\ufe0f'"),
        (["A", "\uff21"], r"'A' and '\uff21'"),
    ],
)
def test_labels_that_look_the_same_are_told_in_pairs(labels, pairs, caplog):
    warn_of_lookalikes([*labels, "other"], "train.tsv")
    (record,) = caplog.records
    assert record.getMessage().startswith("train.tsv: labels look the same")
    assert f": {pairs}; write them alike" in record.getMessage()


@pytest.mark.parametrize(
    "labels",
    [
        ["good", "bad", "goo", "good day", "goodday"],
        ["1", "10", "0.1", "1.1", "1e1", "-1"],
        ["12345678901234567890", "12345678901234567891"],
        ["a", "á", "à", "b"],
        ["की", "का"],
        ["nan", "inf", "infinity"],
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
        ("1 0 1", True),
        ("1", True),
        ("(1, 0)", True),
        ("{'a' 'b'}", True),
        ("'a'", True),
        ("sport (men)", False),
        ("10", False),
        ("a b", False),
    ],
)
def test_labels_that_may_be_lists_are_told(label, is_told, caplog):
    warn_of_lists(["x", label], "|", "train.tsv")
    assert ("--label_columns" in caplog.text) == is_told
    assert (repr(label) in caplog.text) == is_told


def test_a_row_of_0_and_1_in_a_cell_is_refused_with_what_reads_it():
    for cell in ("1|0|1", "[1, 0, 1]"):
        message = refusal(split_labels, cell, "|", "x:1")
        assert message.endswith(
            "(--label_columns names a column of 0 and 1 for each label)"
        ), cell


@pytest.mark.parametrize("separator", ["", "\t", "\n", "\u2028", "||"])
def test_what_cannot_stand_between_labels_is_refused(separator):
    assert "--label_separator is" in refusal(check_separator, separator)
