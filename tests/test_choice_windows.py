"""Choices that are cut in a graph have the rows of the task."""

import hypothesis
import hypothesis.strategies as st
import pytest
import tensorflow as tf
from conftest import TINY_WORDS

from adapter_bert.serving import choice_windows, text_windows
from adapter_bert.serving.choice_windows import ChoiceTexts
from adapter_bert.serving.graph_tokenizer import GraphTokenizer
from adapter_bert.serving.text_windows import GraphRows
from adapter_bert.serving.trained_task import LoadedTask
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.multiple_choice import COPA, SWAG

pytestmark = pytest.mark.newer_stack

PLAIN = {"name": "custom", "choices": 3, "pairs": False}
LENGTHS = (5, 6, 9, 16)
TASKS = [
    LoadedTask(task, (len(task.columns),), None, None, None, length)
    for length in LENGTHS
    for task in (restore_task(PLAIN, {}, "a test"), SWAG, COPA)
]
WORDS = st.sampled_from(list(filter(str.isalpha, TINY_WORDS)))
TEXTS = st.lists(WORDS, max_size=14).map(" ".join)
MOST = 4


def asked(draw):
    """A task's number, and the texts of a row for it."""
    number = draw(st.integers(0, len(TASKS) - 1))
    task = TASKS[number].task
    count = len(task.result_columns)
    texts = [draw(TEXTS) for _ in range(len(task.columns) - count)]
    if task is COPA:
        texts[1] = draw(st.sampled_from(["cause", "effect"]))
    choices = [f"{draw(TEXTS)} {draw(WORDS)}" for _ in range(count)]
    return number, texts, choices


@pytest.fixture(scope="module")
def cut(word_pieces):
    """A graph that makes windows of choices."""
    graph = GraphTokenizer(word_pieces)
    table = tf.constant(text_windows.readings(TASKS, word_pieces))
    made = ChoiceTexts([loaded.task for loaded in TASKS])
    texts = tf.TensorSpec([None], tf.string)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int32),
            texts,
            texts,
            tf.TensorSpec([None, None], tf.string),
        ],
        autograph=False,
    )
    def compute(task, text, text_b, choices):
        reading = tf.gather(table, task)
        are_read = choice_windows.are_read(reading, choices)
        text_b, is_known = made.questions(task, text_b)
        found, row = made.choices(reading, text_b, choices)
        parts = tf.concat([text, text_b, found], axis=0)
        tokens = graph(parts)
        rows = GraphRows(
            task,
            reading,
            tokens,
            tf.searchsorted(tokens.text, tf.range(tf.size(parts) + 1)),
            tf.ones_like(task, tf.bool),
            choice_row=row,
        )
        rows = choice_windows.without_cut(rows)
        windows = choice_windows.cut(rows)
        windows = text_windows.join(text_windows.cut(rows), windows)
        features = text_windows.features(
            rows.tokens.ids,
            windows,
            tf.range(windows.size),
            word_pieces,
        )
        return are_read, is_known, windows, features

    def call(rows):
        return compute(
            tf.constant([number for number, _, _ in rows]),
            tf.constant([texts[0] for _, texts, _ in rows]),
            tf.constant([(*texts, "")[1] for _, texts, _ in rows]),
            tf.constant([(*some, *[""] * MOST)[:MOST] for _, _, some in rows]),
        )

    return call


@pytest.mark.gate
@hypothesis.settings(derandomize=True, deadline=None, max_examples=150)
@hypothesis.given(st.lists(st.composite(asked)(), min_size=1, max_size=5))
def test_windows_are_those_of_the_task(cut, word_pieces, rows):
    expected = []
    for row, (number, texts, choices) in enumerate(rows):
        task, length = TASKS[number].task, TASKS[number].max_seq_length
        made = task.make_rows([(*texts, *choices)])
        for tokens, segments, _ in task._sequences(made, word_pieces, length):
            expected.append((row, tokens, segments))
    are_read, is_known, windows, features = cut(rows)
    assert are_read.numpy().all() and is_known.numpy().all()
    found = [
        (row, ids[: mask.sum()].tolist(), segments[: mask.sum()].tolist())
        for row, ids, mask, segments in zip(
            windows.row.numpy(),
            *(
                features[name].numpy()
                for name in ("input_ids", "input_mask", "segment_ids")
            ),
        )
    ]
    assert found == expected


def test_rows_that_no_task_reads(cut):
    copa = [loaded.task for loaded in TASKS].index(COPA)
    rows = [
        (copa, ["a", "cause"], ["a", "b"]),
        (copa, ["a", "why"], ["a", "b"]),
        (copa, ["a", "cause"], ["a"]),
        (copa, ["a", "cause"], ["a", " \u3000"]),
        (copa, ["a", "cause"], ["a", "b", "c"]),
    ]
    are_read, is_known, _, _ = cut(rows)
    assert are_read.numpy().tolist() == [True, True, False, False, False]
    assert is_known.numpy().tolist() == [True, False, True, True, True]
