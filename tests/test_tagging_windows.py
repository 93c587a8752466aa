"""Sentences become windows; each word is tagged in one of them."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import TINY_WORDS
from task_files import PROPERTY

from adapter_bert.data.input_pipeline import NO_LABEL
from adapter_bert.tasks import tagging
from adapter_bert.tasks.tagging import cut, cut_sentences
from adapter_bert.tasks.tagging_files import Sentences

pytestmark = pytest.mark.older_stack

WORDS = [word for word in TINY_WORDS if word.isalpha()]


@st.composite
def sentences(draw):
    """Tokens of the words of a sentence, and the room of a window."""
    room = draw(st.integers(1, 12))
    lengths = st.lists(st.integers(1, room), max_size=40)
    return draw(lengths), room


@PROPERTY
@hypothesis.given(sentences())
def test_every_word_is_tagged_once_where_it_has_most_context(sentence):
    lengths, room = sentence
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    windows = list(cut(lengths, room))
    owned = [n for w in windows for n in range(w.first_own, w.last_own)]
    assert owned == list(range(len(lengths)))
    if not lengths:
        return
    spans = list(tagging._spans(ends, room))
    assert [w[:2] for w in windows] == [
        s for s in spans if s in {w[:2] for w in windows}
    ]

    def context(word, span):
        """The lesser of the tokens on both sides."""
        first, last = span
        if not first <= word < last:
            return -1
        return min(ends[word] - ends[first], ends[last] - ends[word + 1])

    for window in windows:
        assert sum(lengths[window.first : window.last]) <= room
        for word in range(window.first_own, window.last_own):
            contexts = [context(word, span) for span in spans]
            assert spans[int(np.argmax(contexts))] == window[:2]
    for (first, last), (later, further) in zip(spans, spans[1:]):
        # Without a gap, each further than the one before.
        assert first < later <= last < further
    last = spans[-1][0]
    assert not last or sum(lengths[last - 1 :]) > room


def test_windows_overlap_by_half():
    windows = list(cut([1] * 30, 10))
    assert [w[:2] for w in windows] == [
        (0, 10),
        (5, 15),
        (10, 20),
        (15, 25),
        (20, 30),
    ]
    assert [w[2:] for w in windows] == [
        (0, 8),
        (8, 13),
        (13, 18),
        (18, 23),
        (23, 30),
    ]


@PROPERTY
@hypothesis.given(
    st.lists(
        st.lists(
            st.sampled_from([*WORDS, "cats", "\x00", "sat\u00a0on", "a" * 3]),
            max_size=30,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(3, 12),
)
def test_features_of_sentences(tokenizer, texts, length):
    rows = Sentences.of_words(texts)
    labels = np.arange(len(rows.words), dtype=np.int32)
    features = cut_sentences(rows, labels, tokenizer, length)
    pieces = tokenizer.encode_ids(rows.words)
    assert features.lengths.max(initial=0) <= length
    for first, last in zip(features.starts, features.starts[1:]):
        assert features.tokens[first] == tokenizer.classify_id
        assert features.tokens[last - 1] == tokenizer.separate_id
        assert last - first > 2
    assert not features.segments.any()
    found = np.full(len(features.tokens), NO_LABEL)
    for word, (own, place) in enumerate(zip(pieces, features.places)):
        if not 0 < len(own) <= length - 2:
            assert place == -1
            continue
        # All of its tokens, and the label at the first one.
        np.testing.assert_array_equal(
            features.tokens[place : place + len(own)], own
        )
        found[place] = word
    np.testing.assert_array_equal(features.token_labels, found)
    assert cut_sentences(rows, None, tokenizer, length).token_labels is None
    # Outputs that name their place, padded.
    width = int(features.lengths.max(initial=1)) + 2
    outputs = np.zeros((len(features), width, 1), int)
    for row, (first, n) in enumerate(zip(features.starts, features.lengths)):
        outputs[row, :n, 0] = np.arange(first, first + n)
    expected = np.where(features.places < 0, 0, features.places)
    np.testing.assert_array_equal(features.at_words(outputs)[:, 0], expected)


def test_a_short_sentence_is_one_window(tokenizer):
    rows = Sentences.of_words([["the", "cats", "sat"], [], ["on"]])
    features = cut_sentences(rows, None, tokenizer, 24)
    expected = ["[CLS]", "the", "cat", "##s", "sat", "[SEP]"]
    expected += ["[CLS]", "on", "[SEP]"]
    assert features.tokens.tolist() == tokenizer.convert_tokens_to_ids(expected)
    assert features.starts.tolist() == [0, 6, 9]
    assert features.places.tolist() == [1, 2, 4, 7]


def test_words_that_no_window_holds_are_counted(tokenizer, caplog):
    words = ["the", "\x01", "cat" + "s" * 4, "sat"]
    sentences = Sentences.of_words([words, words[2:3] * 2, words[::3]])
    assert cut_sentences(sentences, None, tokenizer, 6).cut_rows == 2
    caplog.clear()
    cut_sentences(Sentences.of_words([words]), None, tokenizer, 6)
    assert (
        "2 of 4 words are tagged O unseen: 1 have no token, 1 have more than "
        "the 4 that a window holds"
    ) in caplog.text
    caplog.clear()
    cut_sentences(Sentences.of_words([words[::3]]), None, tokenizer, 6)
    assert not caplog.text
