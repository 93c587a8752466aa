"""Sentences that are cut in a graph have the windows of the task."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from conftest import TINY_WORDS

from adapter_bert.serving import sentence_windows, text_windows
from adapter_bert.serving.graph_tokenizer import GraphTokenizer
from adapter_bert.serving.text_windows import GraphRows
from adapter_bert.serving.trained_task import LoadedTask
from adapter_bert.tasks.squad_data import SPACES
from adapter_bert.tasks.tagging import Tagging

pytestmark = pytest.mark.newer_stack

# The tokens that a window holds.
LENGTHS = (3, 4, 5, 8, 13)
# A word without tokens among them; some have more than a window holds.
WORDS = [
    *filter(str.isalpha, TINY_WORDS),
    "\u200b",
    "cat.cat",
    "...",
    "cat," * 6,
    "\u4eac\u4eac1903\u4eac",
]
GAPS = (*" \t\n", "  ", *SPACES)
TEXTS = st.lists(
    st.tuples(st.sampled_from(GAPS), st.sampled_from(WORDS)), max_size=25
).map(lambda parts: "".join(gap + word for gap, word in parts))


@pytest.fixture(scope="module")
def cut(tokenizer):
    """A graph that makes windows of sentences of a task each."""
    graph = GraphTokenizer(tokenizer)
    loaded = [
        LoadedTask(Tagging(), (1,), None, None, None, length)
        for length in LENGTHS
    ]
    table = tf.constant(text_windows.readings(loaded, tokenizer))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string),
            tf.TensorSpec([None], tf.int32),
        ],
        autograph=False,
    )
    def compute(texts, task):
        words, word_row = sentence_windows.split(texts)
        none = tf.fill([2 * tf.size(task)], "")
        parts = tf.concat([none, words], axis=0)
        tokens = graph(parts)
        rows = GraphRows(
            task,
            tf.gather(table, task),
            tokens,
            tf.searchsorted(tokens.text, tf.range(tf.size(parts) + 1)),
            tf.zeros_like(task, tf.bool),
            word_row=word_row,
        )
        rows = sentence_windows.without_long_words(rows)
        windows, found = sentence_windows.cut(rows, words)
        windows = text_windows.join(text_windows.cut(rows), windows)
        features = text_windows.features(
            rows.tokens.ids,
            windows,
            tf.range(windows.size),
            tokenizer,
        )
        return windows, found, features

    return compute


@pytest.mark.gate
@hypothesis.settings(derandomize=True, deadline=None, max_examples=150)
@hypothesis.given(
    st.lists(
        st.tuples(st.integers(0, len(LENGTHS) - 1), TEXTS),
        min_size=1,
        max_size=5,
    )
)
def test_windows_are_those_of_the_task(cut, tokenizer, rows):
    expected, words, places = [], [], []
    for row, (number, text) in enumerate(rows):
        made = Tagging().make_rows([(text,)])
        features = Tagging().featurize(made, tokenizer, LENGTHS[number])
        bounds = list(zip(features.starts, features.starts[1:]))
        for first, end in bounds:
            expected.append((row, features.tokens[first:end].tolist()))
        words += [(row, word) for word in text.split()]
        for place in features.places.tolist():
            window = np.searchsorted(features.starts, place, side="right") - 1
            own = (window, place - features.starts[window])
            places.append((-1, 0) if place < 0 else own)
    if not expected:
        # There is no longest window.
        return
    windows, found, features = cut(
        tf.constant([text for _, text in rows]),
        tf.constant([number for number, _ in rows]),
    )
    ids, mask = (features[n].numpy() for n in ("input_ids", "input_mask"))
    assert not features["segment_ids"].numpy().any()
    told = [
        (row, tokens[: given.sum()].tolist())
        for row, tokens, given in zip(windows.row.numpy(), ids, mask)
    ]
    assert told == expected
    texts = [text.decode() for text in found.text.numpy()]
    assert list(zip(found.row.numpy().tolist(), texts)) == words
    assert list(zip(found.number.numpy(), found.place.numpy())) == places
