"""Reads the choices of rows, and the questions before them, within a graph."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from adapter_bert.graph.graph_tokenizer import keep
from adapter_bert.graph.text_windows import (
    BETWEEN,
    CHOICE,
    CHOICES,
    FORM,
    FROM_END,
    LARGEST,
    LEAST_TEXTS,
    LENGTH,
    GraphRows,
    fit,
)
from adapter_bert.tasks.squad_data import SPACES
from adapter_bert.tasks.task import Task


class ChoiceTexts(tf.Module):
    """Texts of choices, with the questions before them."""

    def __init__(self, tasks: Sequence[Task]):
        entries = [
            (number, *question)
            for number, task in enumerate(tasks)
            for question in task.questions
        ]
        # Without an entry none is equal.
        numbers, entries_b, words = zip(*(entries or [(-1, "", "")]))
        self._owner = keep(numbers, np.int32)
        self._entries, self._words = keep(entries_b), keep(words)

    def questions(
        self, task: tf.Tensor, text_b: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Second texts in words, and which of them a task reads.

        Takes numbers of tasks, int32 [N], and string [N]; gives string [N] and
        bool [N].
        """
        is_of_task = tf.equal(task[:, tf.newaxis], self._owner)
        is_entry = is_of_task & tf.equal(text_b[:, tf.newaxis], self._entries)
        place = tf.argmax(tf.cast(is_entry, tf.int32), axis=1)
        is_known = tf.reduce_any(is_entry, axis=1)
        words = tf.where(is_known, tf.gather(self._words, place), text_b)
        return words, is_known | ~tf.reduce_any(is_of_task, axis=1)

    def choices(
        self, reading: tf.Tensor, question: tf.Tensor, choices: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """All choices' texts, string [M], and their rows, int32 [M].

        Takes int32 [N, READINGS], string [N], and string [N, C] with at least
        as many choices as a row reads.
        """
        counts = reading[:, CHOICES]
        row = tf.repeat(tf.range(tf.size(counts)), counts)
        before = tf.gather(tf.cumsum(counts, exclusive=True), row)
        number = tf.range(tf.size(row)) - before
        texts = tf.gather_nd(choices, tf.stack([row, number], axis=1))
        question = tf.strings.join([question, " "])
        has_one = reading[:, LEAST_TEXTS] > 1
        question = tf.gather(tf.where(has_one, question, ""), row)
        return tf.strings.join([question, texts]), row


def are_read(reading: tf.Tensor, choices: tf.Tensor) -> tf.Tensor:
    """Marks rows that have the choices that they should have, bool [N].

    Takes int32 [N, READINGS] and string [N, C], whose rest is "".
    """
    place = tf.range(tf.shape(choices)[1])
    is_read = place < reading[:, CHOICES, tf.newaxis]
    is_blank = tf.strings.regex_full_match(choices, f"[{SPACES}]*")
    is_right = tf.where(is_read, ~is_blank, tf.equal(choices, ""))
    return tf.reduce_all(is_right, axis=1)


def without_cut(rows: GraphRows) -> GraphRows:
    """Leaves out what no row has room for, of first texts and of questions."""
    count = rows.count
    choices = tf.size(rows.choice_row)
    a_count, b_count = rows.counts[:count], rows.counts[count : 2 * count]
    words = tf.size(rows.counts) - 2 * count - choices
    longest = tf.math.unsorted_segment_max(
        rows.counts[2 * count + words :], rows.choice_row, count
    )
    is_choice = tf.equal(rows.reading[:, FORM], CHOICE)
    # Of other rows there is no longest choice.
    longest = tf.where(is_choice, longest - b_count, 0)
    both = rows.reading[:, LENGTH] - 2 - rows.reading[:, BETWEEN]
    room = tf.maximum(both - longest, 0)
    a_length, b_length = fit(a_count, b_count, room)
    from_end = rows.reading[:, FROM_END] > 0
    first_a = tf.where(from_end, 0, a_length)
    end_a = tf.where(from_end, a_count - a_length, LARGEST)
    first_b = tf.where(from_end, 0, b_length)
    end_b = tf.where(from_end, b_count - b_length, b_count)
    nothing = tf.zeros([count + words], tf.int32)
    first_cut, end_cut = (
        tf.gather(x, rows.choice_row) for x in (first_b, end_b)
    )
    first = tf.concat([first_a, nothing, first_cut], axis=0)
    end = tf.where(is_choice, end_a, 0)
    end = tf.concat([end, nothing, end_cut], axis=0)
    return rows.without(first, end)
