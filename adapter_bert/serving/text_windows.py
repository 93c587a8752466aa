"""Cuts texts into the model's rows, within a graph.

Texts become one window, a long context several windows, as in
`tasks/text_task.py` and `tasks/squad_data.py`.
"""

from typing import Dict, NamedTuple, Sequence

import numpy as np
import tensorflow as tf

from adapter_bert.serving.graph_tokenizer import GraphTokens
from adapter_bert.serving.trained_task import LoadedTask
from adapter_bert.tasks.squad import Squad

# Columns of the table of readings.
LENGTH, IS_QUESTION, LEAST_TEXTS, MOST_TEXTS, QUERY, STRIDE = range(6)

# Settings files may have greater numbers, int32 not.
LARGEST = 2**31 - 1


class Rows(NamedTuple):
    """Tokenized rows of texts.

    Attributes:
        task: int32 [N], task numbers.
        reading: int32 [N, 6], each task's row of `readings`.
        tokens: tokens of all first texts, then of all second texts.
        starts: int32 [2 N + 1], each text's first token.
        has_b: bool [N], whether there is a second text.
    """

    task: tf.Tensor
    reading: tf.Tensor
    tokens: GraphTokens
    starts: tf.Tensor
    has_b: tf.Tensor

    @property
    def count(self) -> tf.Tensor:
        """The number of rows, int32 []."""
        return tf.size(self.task)

    @property
    def counts(self) -> tf.Tensor:
        """Each text's number of tokens, int32 [2 N]."""
        return self.starts[1:] - self.starts[:-1]


class Windows(NamedTuple):
    """The model's inputs, `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    Attributes:
        row: int32 [W], each window's row, rising.
        number: int32 [W], its number within the row.
        count: int32 [N], windows of each row.
        a_first, a_length: int32 [W], the first text's first token, among all
            tokens, and number of tokens.
        b_first, b_length: int32 [W], the same for the part of the second text.
        room, step: int32 [N], context tokens in a window, and the distance
            between windows.
        length: int32 [W], tokens of the window.
    """

    row: tf.Tensor
    number: tf.Tensor
    count: tf.Tensor
    a_first: tf.Tensor
    a_length: tf.Tensor
    b_first: tf.Tensor
    b_length: tf.Tensor
    room: tf.Tensor
    step: tf.Tensor
    length: tf.Tensor

    @property
    def size(self) -> tf.Tensor:
        """The number of windows, int32 []."""
        return tf.size(self.row)


def readings(tasks: Sequence[LoadedTask]) -> np.ndarray:
    """How tasks read their rows, int32 [tasks, 6]."""
    table = np.zeros((len(tasks), 6), np.int32)
    for row, loaded in zip(table, tasks):
        task = loaded.task
        row[LENGTH] = loaded.max_seq_length
        row[LEAST_TEXTS] = min(loaded.numbers_of_texts)
        row[MOST_TEXTS] = max(loaded.numbers_of_texts)
        if isinstance(task, Squad):
            row[IS_QUESTION] = 1
            row[QUERY] = min(task.max_query_length, LARGEST)
            row[STRIDE] = min(task.doc_stride, LARGEST)
    return table


def cut(rows: Rows) -> Windows:
    """The windows of all rows; none for a context without tokens."""
    count = rows.count
    a_start, b_start = rows.starts[:count], rows.starts[count:-1]
    a_count, b_count = rows.counts[:count], rows.counts[count:]
    limit, is_question, _, _, query, stride = tf.unstack(rows.reading, axis=1)
    is_question = is_question > 0

    # Texts that both exceed half of the room are cut in turn, b first.
    both = limit - 3
    is_over = a_count + b_count > both
    a_of_pair = tf.minimum(
        a_count, tf.maximum(both - b_count, both - both // 2)
    )
    a_length = tf.where(rows.has_b & is_over, a_of_pair, a_count)
    a_length = tf.where(rows.has_b, a_length, tf.minimum(a_count, limit - 2))
    a_length = tf.where(is_question, tf.minimum(a_count, query), a_length)
    room = both - a_length
    # A pair has one window.
    step = tf.where(is_question, tf.minimum(room, stride), 1)
    further = tf.maximum(b_count - room, 0)
    windows = tf.where(
        is_question, tf.minimum(b_count, 1) + (further + step - 1) // step, 1
    )

    row = tf.repeat(tf.range(count), windows)
    before = tf.gather(tf.cumsum(windows, exclusive=True), row)
    number = tf.range(tf.size(row)) - before
    context_first = number * tf.gather(step, row)
    b_length = tf.minimum(tf.gather(room, row), tf.gather(b_count, row))
    b_length = tf.minimum(b_length, tf.gather(b_count, row) - context_first)
    has_b = tf.gather(rows.has_b, row)
    b_length = tf.where(has_b, b_length, 0)
    a_length = tf.gather(a_length, row)
    return Windows(
        row=row,
        number=number,
        count=windows,
        a_first=tf.gather(a_start, row),
        a_length=a_length,
        b_first=tf.gather(b_start, row) + context_first,
        b_length=b_length,
        room=room,
        step=step,
        length=a_length + 2 + tf.where(has_b, b_length + 1, 0),
    )


def features(
    ids: tf.Tensor,
    windows: Windows,
    chosen: tf.Tensor,
    classify_id: int,
    separate_id: int,
) -> Dict[str, tf.Tensor]:
    """`input_ids`, `input_mask`, `segment_ids`, int32 [B, T], of some windows.

    `ids`, int32 [tokens], are all texts'; `chosen`, int32 [B], numbers of at
    least one window.
    """

    def of_chosen(values: tf.Tensor) -> tf.Tensor:
        return tf.gather(values, chosen)[:, tf.newaxis]

    length = of_chosen(windows.length)
    place = tf.range(tf.reduce_max(length))[tf.newaxis]
    a_end = of_chosen(windows.a_length) + 1
    is_b = place > a_end
    source = tf.where(
        is_b,
        of_chosen(windows.b_first) + place - a_end - 1,
        of_chosen(windows.a_first) + place - 1,
    )
    # Places outside of both texts read any token; it is replaced below.
    padded = tf.pad(ids, [[0, 1]])
    source = tf.clip_by_value(source, 0, tf.size(ids))
    found = tf.gather(padded, source)
    is_end = tf.equal(place, a_end) | tf.equal(place, length - 1)
    found = tf.where(is_end, separate_id, found)
    found = tf.where(tf.equal(place, 0), classify_id, found)
    mask = tf.cast(place < length, tf.int32)
    return {
        "input_ids": found * mask,
        "input_mask": mask,
        "segment_ids": tf.cast(is_b, tf.int32) * mask,
    }
