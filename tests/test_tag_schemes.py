"""Schemes of tags: which a file has, and BIO of each."""

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from seqeval.metrics.sequence_labeling import get_entities
from task_files import PROPERTY, refusal

from adapter_bert.tasks import tagging_files
from adapter_bert.tasks.tagging_files import (
    BILOU,
    BIO,
    BIOES,
    BMES,
    IO,
    IOB1,
    Entity,
    Tag,
    find_entities,
    find_scheme,
    split_tag,
    to_bio,
)

pytestmark = pytest.mark.older_stack

TYPES = ("X", "a-b", "B-I", "E")
# A sentence: words outside, or (type, words) of an entity.
SENTENCES = st.lists(
    st.lists(
        st.none() | st.tuples(st.sampled_from(TYPES), st.integers(1, 4)),
        max_size=6,
    ),
    min_size=1,
    max_size=5,
)


def write(sentence, scheme):
    """The tags of a sentence in a scheme."""
    tags, before = [], None
    for part in sentence:
        if part is None:
            tags.append("O")
        else:
            name, words = part
            prefixes = ["B"] + ["I"] * (words - 1)
            if scheme in tagging_files.ENDS:
                within, end, single = tagging_files.ENDS[scheme]
                prefixes[1:] = [within] * (words - 1)
                prefixes[-1] = end if words > 1 else single
            elif scheme == IOB1 and not (before and before[0] == name):
                prefixes[0] = "I"
            tags += [f"{prefix}-{name}" for prefix in prefixes]
        before = part
    return tags


def pack(sentences):
    """Tags and starts of sentences, and places for messages."""
    counts = [len(tags) for tags in sentences]
    return (
        [split_tag(tag) for tags in sentences for tag in tags],
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        lambda word: f"file:{word}",
    )


@PROPERTY
@hypothesis.given(SENTENCES, st.sampled_from([BIO, IOB1, BIOES, BILOU, BMES]))
def test_every_scheme_is_found_and_becomes_bio(sentences, scheme):
    tags, starts, where = pack([write(s, scheme) for s in sentences])
    found = find_scheme(tags, starts, where)
    if scheme == BMES and not any(tag.prefix == "M" for tag in tags):
        scheme = BIOES
    if any(any(sentence) for sentence in sentences):
        assert found == scheme
    else:
        assert found is None
    expected, _, _ = pack([write(s, BIO) for s in sentences])
    assert to_bio(tags, starts) == expected


@PROPERTY
@hypothesis.given(
    st.lists(
        st.lists(
            st.sampled_from(["O", "PER", "art-film", "GPE.NAM", "人"]),
            max_size=8,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_words_of_one_plain_type_that_touch_are_one_entity(sentences):
    sentences[-1].append("O")
    tags, starts, where = pack(sentences)
    expected = IO if any(tag.type for tag in tags) else None
    assert find_scheme(tags, starts, where) == expected
    found = to_bio(tags, starts)
    for first, last, own in zip(starts, starts[1:], sentences):
        runs = [list(run) for _, run in itertools.groupby(own)]
        ends = itertools.accumulate(map(len, runs))
        assert find_entities(found[first:last]) == [
            (run[0], end - len(run), end)
            for run, end in zip(runs, ends)
            if run[0] != "O"
        ]


@PROPERTY
@hypothesis.given(
    st.lists(
        st.lists(
            st.sampled_from(["O", "B-X", "I-X", "B-a-b", "I-a-b"]), max_size=8
        ),
        max_size=4,
    )
)
def test_any_predicted_tags_become_lawful_as_conlleval_reads_them(sentences):
    tags, starts, _ = pack(sentences)
    lawful = to_bio(tags, starts)
    for first, last, own in zip(starts, starts[1:], sentences):
        entities = find_entities(lawful[first:last])
        assert entities == [
            (name, start, end + 1) for name, start, end in get_entities(own)
        ]
    assert to_bio(lawful, starts) == lawful
    again = find_scheme(lawful, starts, str)
    assert again == (BIO if any(t.type for t in lawful) else None)


def test_entities_have_their_places():
    tags = [*map(split_tag, "B-X I-X B-X O B-a-b".split())]
    assert find_entities(tags) == [
        Entity("X", 0, 2),
        Entity("X", 2, 3),
        Entity("a-b", 4, 5),
    ]


@pytest.mark.parametrize(
    "text",
    ["", "o", "0", "_", "-", "B", "M", "B-", "X-PER", "W-PER", "b-PER", "PER-B"]
    + ["B-P Q", "B-P\xa0Q", "P Q", "B_PER", "I.PER", "B\u2010PER", "PER_I"]
    + ["PER-", "-PER", "PRP$", "(PER*", "9PER", "tag", "Labels", "ner_tags"],
)
def test_what_is_no_tag(text):
    assert split_tag(text) is None


def test_parts_of_tags():
    assert split_tag("B-creative-work") == Tag("B", "creative-work")
    assert str(Tag("B", "creative-work")) == "B-creative-work"
    assert split_tag("M-PER") == Tag("M", "PER")
    assert split_tag("person-actor") == Tag("", "person-actor")
    assert str(Tag("", "person-actor")) == "person-actor"
    assert str(Tag("O", "")) == "O"


@pytest.mark.parametrize(
    "sentences, message",
    [
        (
            "B-X I-X O I-X|B-X",
            "file:3: I-X continues no entity; expected B-X, since entities "
            "begin with B- elsewhere in the file (scheme BIO)",
        ),
        ("B-X|I-X", "file:1: I-X continues no entity; expected B-X"),
        ("B-X I-Y", "file:1: I-Y continues no entity; expected B-Y"),
        (
            "I-X I-X O B-X|I-Y B-Y",
            "file:3: B-X follows no entity of its type; expected I-X, since "
            "entities begin with I- elsewhere in the file (scheme IOB1)",
        ),
        (
            "S-X O U-X",
            "file:2: U-X is of another scheme than I-, E- and S-; elsewhere "
            "the file has the scheme BIOES",
        ),
        (
            "B-X M-X I-X E-X",
            "file:2: I-X is of another scheme than M-, E- and S-; elsewhere "
            "the file has the scheme BMES",
        ),
        ("B-X M-X|O", "file:1: the sentence ends with M-X, expected E- or S-"),
        ("S-X M-X E-X", "file:1: M-X continues no entity"),
        ("M-X O", "file:0: M-X continues no entity; elsewhere the file has"),
        (
            "O PER|I-LOC",
            "file:1: 'PER' has no prefix, but 'I-LOC' has one (file:2); "
            "expected one for every type, or for none; is it the right",
        ),
        ("B-cell protein O", "file:1: 'protein' has no prefix, but 'B-cell'"),
        (
            "NNP VBZ|NN",
            "file:0: 'NNP' is a type without a prefix, and no word of the "
            "file has the tag O, as words outside of entities have; is it the",
        ),
        ("L-X", "file:0: L-X continues no entity; elsewhere the file has"),
        ("S-X I-X", "file:1: I-X continues no entity"),
        ("B-X E-X E-X", "file:2: E-X continues no entity"),
        ("B-X E-Y", "file:1: E-Y continues no entity"),
        ("B-X O|S-X", "file:1: O follows an entity that no E-X ends"),
        ("U-X B-X B-X L-X", "file:2: B-X follows an entity that no L-X ends"),
        (
            "S-X|O B-X|O",
            "file:2: the sentence ends with B-X, expected E- or S-X",
        ),
    ],
)
def test_a_file_that_follows_no_scheme_is_refused(sentences, message):
    tags = [sentence.split() for sentence in sentences.split("|")]
    assert message in refusal(find_scheme, *pack(tags))
