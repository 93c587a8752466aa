"""From texts to the model's rows, within a graph.

A row of texts becomes one window, a long context several, as in
`tasks/text_task.py` and `tasks/squad_data.py`.
"""

from typing import Dict, NamedTuple, Sequence

import numpy as np
import tensorflow as tf

from adapter_bert.errors import UserError
from adapter_bert.serving.graph_tokenizer import GraphTokens
from adapter_bert.serving.loaded_task import LoadedTask
from adapter_bert.tasks.squad import Squad
from adapter_bert.tasks.text_task import TextTask

# Columns of the table of readings.
LENGTH, IS_QUESTION, LEAST_TEXTS, MOST_TEXTS, QUERY, STRIDE = range(6)

# What a settings file may exceed and a graph's int32 not.
LARGEST = 2**31 - 1


class Rows(NamedTuple):
    """Rows of texts that were tokenized.

    Attributes:
        task: int32 [N], the number of the task that each is asked.
        reading: int32 [N, 6], the columns of its task.
        tokens: of the first texts of all rows, then of the second ones.
        starts: int32 [2 N + 1], where each text's tokens begin.
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
        """Tokens of all texts, int32 [2 N]."""
        return self.starts[1:] - self.starts[:-1]


class Windows(NamedTuple):
    """The model's inputs, `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    Attributes:
        row: int32 [W], rising, the row that each is of.
        number: int32 [W], which of its row's windows it is.
        count: int32 [N], the windows of a row.
        a_first: int32 [W], its first text's first token, among all tokens.
        a_length: int32 [W], tokens of it.
        b_first, b_length: int32 [W], the same of the part of the second text.
        context_first: int32 [W], the part's first token in that text.
        room, step: int32 [N], a window's tokens of a context, and the distance
            of windows.
        length: int32 [W], tokens in all.
    """

    row: tf.Tensor
    number: tf.Tensor
    count: tf.Tensor
    a_first: tf.Tensor
    a_length: tf.Tensor
    b_first: tf.Tensor
    b_length: tf.Tensor
    context_first: tf.Tensor
    room: tf.Tensor
    step: tf.Tensor
    length: tf.Tensor

    @property
    def size(self) -> tf.Tensor:
        """The number of windows, int32 []."""
        return tf.size(self.row)


def readings(tasks: Sequence[LoadedTask]) -> np.ndarray:
    """The columns of tasks, int32 [tasks, 6]; UserError for unknown kinds."""
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
        elif not isinstance(task, TextTask):
            raise UserError(
                f"the task {task.name} is of a kind that cannot be exported"
            )
    return table


def cut(rows: Rows) -> Windows:
    """Makes the windows of all rows; a context without tokens has none."""
    count = rows.count
    a_start, b_start = rows.starts[:count], rows.starts[count:-1]
    a_count, b_count = rows.counts[:count], rows.counts[count:]
    limit, is_question, _, _, query, stride = tf.unstack(rows.reading, axis=1)
    is_question = is_question > 0

    # While both texts exceed half of the room they are cut in turn, b first.
    both = limit - 3
    is_over = a_count + b_count > both
    a_of_pair = tf.minimum(
        a_count, tf.maximum(both - b_count, both - both // 2)
    )
    a_length = tf.where(rows.has_b & is_over, a_of_pair, a_count)
    a_length = tf.where(rows.has_b, a_length, tf.minimum(a_count, limit - 2))
    a_length = tf.where(is_question, tf.minimum(a_count, query), a_length)
    room = both - a_length
    # Of a pair the second text is one window's.
    step = tf.where(is_question, tf.minimum(room, stride), 1)
    further = tf.maximum(b_count - room, 0)
    windows = tf.where(
        is_question,
        tf.minimum(b_count, 1) + (further + step - 1) // step,
        1,
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
        context_first=context_first,
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

    Args:
        ids: int32 [tokens], of all texts.
        windows: all.
        chosen: int32 [B], the numbers of windows, at least one.
        classify_id: of `[CLS]`.
        separate_id: of `[SEP]`.
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
    # Places of no token read one that is not taken.
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
