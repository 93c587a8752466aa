"""Cuts texts into the model's rows, within a graph.

Texts become one window, a long context several windows, each choice one, as in
`tasks/text_task.py`, `tasks/squad_data.py` and `tasks/multiple_choice.py`.
`sentence_windows.py` cuts the rows of tagging.
"""

from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.answering.trained_task import LoadedTask
from adapter_bert.data.table_flags import FIRST, POOLS
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.graph.graph_tokenizer import GraphTokens
from adapter_bert.tasks.kinds import QUESTIONS

# Columns of the table of readings. `LEAST_TEXTS` and `MOST_TEXTS` count no
# choices, `BETWEEN` the separators between two texts; `APART` is of sentences.
(
    LENGTH,
    FORM,
    LEAST_TEXTS,
    MOST_TEXTS,
    QUERY,
    STRIDE,
    CHOICES,
    BETWEEN,
    FROM_END,
    APART,
    POOL,
) = range(11)
READINGS = 11
# Forms of rows.
PLAIN, QUESTION, SENTENCE, CHOICE = range(4)

# Settings files may have greater numbers, int32 not.
LARGEST = 2**31 - 1


class GraphRows(NamedTuple):
    """Tokenized rows of texts.

    Attributes:
        task: int32 [N], task numbers.
        reading: int32 [N, READINGS], each task's row of `readings`.
        tokens: tokens of all first texts, then of all second texts, all words
            of sentences, all choices; without those that no window reads.
        starts: int32 [2 N + words + choices + 1], the first token of each.
        has_b: bool [N], there is a second text.
        word_row, choice_row: int32 [words], int32 [choices], their rows,
            rising; or None in a model without such tasks.
    """

    task: tf.Tensor
    reading: tf.Tensor
    tokens: GraphTokens
    starts: tf.Tensor
    has_b: tf.Tensor
    word_row: Optional[tf.Tensor] = None
    choice_row: Optional[tf.Tensor] = None

    @property
    def count(self) -> tf.Tensor:
        """Number of rows, int32 []."""
        return tf.size(self.task)

    @property
    def counts(self) -> tf.Tensor:
        """Tokens of each text, int32 [2 N + words + choices]."""
        return self.starts[1:] - self.starts[:-1]

    def without(self, first: tf.Tensor, end: tf.Tensor) -> "GraphRows":
        """Leaves out each text's tokens from `first` up to `end`.

        Both are int32 [2 N + words + choices], numbers within the text.
        """
        text = self.tokens.text
        place = tf.range(tf.size(text)) - tf.gather(self.starts, text)
        is_out = place >= tf.gather(first, text)
        is_out &= place < tf.gather(end, text)
        tokens = GraphTokens(
            *(tf.boolean_mask(x, ~is_out) for x in self.tokens)
        )
        texts = tf.range(tf.size(self.starts))
        return self._replace(
            tokens=tokens, starts=tf.searchsorted(tokens.text, texts)
        )


class GraphWindows(NamedTuple):
    """A model's inputs, `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    An MPNet has two separators between texts.

    Attributes:
        row: int32 [W], each window's row, rising.
        a_first, a_length: int32 [W], the first text's first token, among all
            tokens, and number of tokens.
        b_first, b_length: int32 [W], the same of the second text.
        length: int32 [W], tokens of the window.
        count: int32 [N], windows of each row.
    """

    row: tf.Tensor
    a_first: tf.Tensor
    a_length: tf.Tensor
    b_first: tf.Tensor
    b_length: tf.Tensor
    length: tf.Tensor
    count: tf.Tensor

    @property
    def size(self) -> tf.Tensor:
        """Number of windows, int32 []."""
        return tf.size(self.row)


def readings(
    tasks: Sequence[LoadedTask], tokenizer: FullTokenizer
) -> np.ndarray:
    """Encodes how tasks read their rows, int32 [tasks, READINGS]."""
    table = np.zeros((len(tasks), READINGS), np.int32)
    table[:, BETWEEN] = tokenizer.between_count
    table[:, FROM_END] = tokenizer.keeps_end
    for row, loaded in zip(table, tasks):
        task = loaded.task
        row[LENGTH] = loaded.max_seq_length
        row[LEAST_TEXTS] = min(loaded.numbers_of_texts)
        row[MOST_TEXTS] = max(loaded.numbers_of_texts)
        if task.takes_tokens:
            row[FORM] = SENTENCE
            row[APART] = task.apart
        row[POOL] = POOLS.index(FIRST)
        if task.window_stride:
            row[STRIDE] = min(task.window_stride, LARGEST)
            row[POOL] = POOLS.index(task.pool_windows)
        if task.choice_count:
            row[FORM] = CHOICE
            row[CHOICES] = task.choice_count
            row[[LEAST_TEXTS, MOST_TEXTS]] -= row[CHOICES]
        if task.kind.name == QUESTIONS:
            row[FORM] = QUESTION
            row[QUERY] = min(task.max_query_length, LARGEST)
            row[STRIDE] = min(task.doc_stride, LARGEST)
    return table


def plain_readings(table: np.ndarray) -> np.ndarray:
    """Has all tasks read a text or a pair as one window."""
    table = table.copy()
    is_odd = np.isin(table[:, FORM], (SENTENCE, CHOICE))
    table[is_odd, LEAST_TEXTS], table[is_odd, MOST_TEXTS] = 1, 2
    table[:, FORM], table[:, STRIDE] = PLAIN, 0
    return table


def fit(
    a_count: tf.Tensor, b_count: tf.Tensor, room: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Counts the tokens of pairs that are read, int32 like all arguments.

    Source: `fit` of `data/tokenization.py`.
    """
    is_over = a_count + b_count > room
    # Texts that both exceed half of the room are cut in turn, b first.
    a_left = tf.minimum(a_count, tf.maximum(room - b_count, room - room // 2))
    a_length = tf.where(is_over, a_left, a_count)
    return a_length, tf.where(is_over, room - a_length, b_count)


def cut(rows: GraphRows, sentences: Optional[tf.Tensor] = None) -> GraphWindows:
    """Cuts texts, pairs, questions, and pairs of a text and a choice.

    Tasks with a stride have several windows of a text, or of a pair's second
    text. A context without tokens has no window. `sentences` is what
    `sentence_windows.cut` gives, or None.
    """
    count = rows.count
    # Each pair's row, and its second text.
    row, b_text = tf.range(count), count + tf.range(count)
    if rows.choice_row is not None:
        choices = tf.range(tf.size(rows.choice_row)) + tf.size(rows.counts)
        choices -= tf.size(rows.choice_row)
        row = tf.concat([row, rows.choice_row], axis=0)
        b_text = tf.concat([b_text, choices], axis=0)
    is_choice = tf.range(tf.size(row)) >= count
    a_start, a_count = (tf.gather(x, row) for x in (rows.starts, rows.counts))
    b_start, b_count = (
        tf.gather(x, b_text) for x in (rows.starts, rows.counts)
    )
    has_b = tf.gather(rows.has_b, row) | is_choice
    limit, form, _, _, query, stride, _, between, from_end, _, _ = tf.unstack(
        tf.gather(rows.reading, row), axis=1
    )
    is_question, has_windows = tf.equal(form, QUESTION), stride > 0

    both = limit - 2 - between
    a_of_pair, _ = fit(a_count, b_count, both)
    a_length = tf.minimum(a_count, limit - 2)
    a_length = tf.where(has_b, a_of_pair, a_length)
    a_length = tf.where(is_question, tf.minimum(a_count, query), a_length)
    room = tf.where(has_b, both - a_length, limit - 2)
    # Questions, and what has windows, are read from their beginnings.
    from_end = tf.where(is_question, 0, from_end)
    further = tf.maximum(tf.where(has_b, b_count, a_count) - room, 0)
    is_moving = has_windows & ~has_b
    a_start += from_end * tf.where(is_moving, 0, a_count - a_length)
    b_start += tf.where(has_windows, 0, from_end) * further
    step = tf.where(has_windows, tf.maximum(tf.minimum(room, stride), 1), 1)
    windows = tf.where(is_question, tf.minimum(b_count, 1), 1)
    windows += tf.where(has_windows, (further + step - 1) // step, 0)
    is_other = tf.equal(form, SENTENCE) | tf.equal(form, CHOICE) & ~is_choice
    windows = tf.where(is_other, 0, windows)

    pair = tf.repeat(tf.range(tf.size(row)), windows)

    def of_pair(values: tf.Tensor) -> tf.Tensor:
        return tf.gather(values, pair)

    before = of_pair(tf.cumsum(windows, exclusive=True))
    context_first = (tf.range(tf.size(pair)) - before) * of_pair(step)
    is_two = of_pair(has_b)
    tokens = tf.where(is_two, of_pair(b_count), of_pair(a_count))
    moving = tf.minimum(of_pair(room), tokens - context_first)
    a_length = tf.where(is_two, of_pair(a_length), moving)
    a_first = of_pair(a_start) + tf.where(is_two, 0, context_first)
    b_length = tf.where(is_two, moving, 0)
    b_and_end = tf.where(is_two, b_length + of_pair(between), 0)
    table = tf.stack(
        [
            of_pair(row),
            a_first,
            a_length,
            of_pair(b_start) + context_first,
            b_length,
            a_length + 2 + b_and_end,
        ],
        axis=1,
    )
    if sentences is not None:
        table = tf.concat([table, sentences], axis=0)
    table = tf.gather(table, tf.argsort(table[:, 0], stable=True))
    row, *others = tf.unstack(table, axis=1)
    of_row = tf.math.unsorted_segment_sum(tf.ones_like(row), row, count)
    return GraphWindows(row, *others, of_row)


def features(
    ids: tf.Tensor,
    windows: GraphWindows,
    chosen: tf.Tensor,
    tokenizer: FullTokenizer,
) -> dict[str, tf.Tensor]:
    """`input_ids`, `input_mask`, `segment_ids`, int32 [B, T], of some windows.

    `ids`, int32 [tokens], are all texts'; `chosen`, int32 [B], numbers of at
    least one window.
    """
    between = tokenizer.between_count

    def of_chosen(values: tf.Tensor) -> tf.Tensor:
        return tf.gather(values, chosen)[:, tf.newaxis]

    length = of_chosen(windows.length)
    place = tf.range(tf.reduce_max(length))[tf.newaxis]
    a_end = of_chosen(windows.a_length) + 1
    is_b = place >= a_end + between
    source = tf.where(
        is_b,
        of_chosen(windows.b_first) + place - a_end - between,
        of_chosen(windows.a_first) + place - 1,
    )
    # Places outside of both texts read any token; it is replaced below.
    padded = tf.pad(ids, [[0, 1]])
    source = tf.clip_by_value(source, 0, tf.size(ids))
    ids_of_windows = tf.gather(padded, source)
    is_end = (place >= a_end) & ~is_b | tf.equal(place, length - 1)
    ids_of_windows = tf.where(is_end, tokenizer.separate_id, ids_of_windows)
    ids_of_windows = tf.where(
        tf.equal(place, 0), tokenizer.classify_id, ids_of_windows
    )
    mask = tf.cast(place < length, tf.int32)
    return {
        "input_ids": ids_of_windows * mask,
        "input_mask": mask,
        "segment_ids": tf.cast(is_b, tf.int32)
        * mask
        * tokenizer.second_segment,
    }
