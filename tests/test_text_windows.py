"""Windows that are cut in a graph are those of the tasks."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from conftest import TINY_WORDS

from adapter_bert.serving import text_windows
from adapter_bert.serving.graph_tokenizer import GraphTokenizer
from adapter_bert.serving.text_windows import GraphRows
from adapter_bert.serving.trained_task import LoadedTask
from adapter_bert.tasks.from_description import restore_task

pytestmark = pytest.mark.newer_stack

TEXT = {"name": "custom", "labels": ["a", "b"], "pairs": False}
LENGTHS = (3, 4, 5, 9, 30)
WORDS = [word for word in TINY_WORDS if word.isalpha()]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)


def loaded(task, numbers_of_texts, length):
    """A task with only what reads."""
    return LoadedTask(task, numbers_of_texts, None, None, None, length)


def make_tasks():
    """Tasks of every kind and several lengths."""
    tasks = []
    for length in LENGTHS:
        # A pair may have four special tokens.
        for pairs in (False, True)[: length - 2]:
            task = restore_task({**TEXT, "pairs": pairs}, {}, "test")
            tasks.append(loaded(task, (1 + pairs,), length))
        if length > 3:
            tasks.append(loaded(task, (1, 2), length))
        for stride, query in ((1, 1), (3, 4), (100, 2)):
            if query + 4 < length:
                squad = restore_task({"name": "squad"}, {}, "test")
                squad = dataclasses.replace(
                    squad, doc_stride=stride, max_query_length=query
                )
                tasks.append(loaded(squad, (2,), length))
    return tasks


TASKS = make_tasks()


@pytest.fixture(scope="module")
def compute(word_pieces):
    """What makes a graph's windows of rows."""
    graph = GraphTokenizer(word_pieces)
    table = tf.constant(text_windows.readings(TASKS, word_pieces))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None], tf.bool),
        ],
        autograph=False,
    )
    def cut(texts, task, has_b):
        tokens = graph(texts)
        rows = GraphRows(
            task,
            tf.gather(table, task),
            tokens,
            tf.searchsorted(tokens.text, tf.range(tf.size(texts) + 1)),
            has_b,
        )
        windows = text_windows.cut(rows)
        features = text_windows.features(
            tokens.ids,
            windows,
            tf.range(windows.size),
            word_pieces,
        )
        return windows, features

    return cut


def asked(draw):
    """A task's number, and the texts of a row for it."""
    number = draw(st.integers(0, len(TASKS) - 1))
    count = draw(st.sampled_from(TASKS[number].numbers_of_texts))
    return number, tuple(draw(TEXTS) for _ in range(count))


@pytest.mark.gate
@hypothesis.settings(derandomize=True, deadline=None, max_examples=150)
@hypothesis.given(st.lists(st.composite(asked)(), min_size=1, max_size=6))
def test_windows_are_those_of_the_task(compute, word_pieces, rows):
    expected = []
    for row, (number, texts) in enumerate(rows):
        task, length = TASKS[number].task, TASKS[number].max_seq_length
        made = task.make_rows([texts])
        features = task.featurize(made, word_pieces, length)
        for first, end in zip(features.starts, features.starts[1:]):
            tokens = features.tokens[first:end].tolist()
            segments = features.segments[first:end].tolist()
            expected.append((row, tokens, segments))
    if not expected:
        # Contexts without a token: there is no longest window.
        return
    columns = [[(*texts, "")[i] for _, texts in rows] for i in (0, 1)]
    windows, features = compute(
        tf.constant(columns[0] + columns[1]),
        tf.constant([number for number, _ in rows]),
        tf.constant([len(texts) > 1 for _, texts in rows]),
    )
    found = []
    for row, ids, mask, segments in zip(
        windows.row.numpy(),
        *(
            features[name].numpy()
            for name in ("input_ids", "input_mask", "segment_ids")
        ),
    ):
        length = mask.sum()
        assert (mask == (np.arange(len(mask)) < length)).all()
        assert not ids[length:].any() and not segments[length:].any()
        found.append((row, ids[:length].tolist(), segments[:length].tolist()))
    assert found == expected
