"""Cells that hold any number of labels."""

import hypothesis
import hypothesis.strategies as st
import pytest
from task_files import PROPERTY, refusal

from errors import UserError
from tasks.label_sets import check_separator, join_labels, split_labels

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


@pytest.mark.parametrize("separator", ["", "\t", "\n", "\u2028", "||"])
def test_what_cannot_stand_between_labels_is_refused(separator):
    assert "--label_separator is" in refusal(check_separator, separator)
