"""Cuts sentences into the model's rows, within a graph.

Words, windows, and the window that tags each word are those of
`tasks/tagging.py`.
"""

from typing import NamedTuple

import tensorflow as tf

from adapter_bert.graph.graph_tokenizer import places_of
from adapter_bert.graph.text_windows import LARGEST, LENGTH, GraphRows
from adapter_bert.tasks.squad_data import SPACES


class Words(NamedTuple):
    """Words, string [words], their rows, and where their outputs are.

    `number`, int32 [words], is the window, within the row, that tags a word, or
    -1; `place`, int32 [words], the word's first token in that window.
    """

    text: tf.Tensor
    row: tf.Tensor
    number: tf.Tensor
    place: tf.Tensor


def split(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits texts, string [N], at all that Python takes for spaces.

    Returns words, string [words], and their texts' numbers, int32 [words].
    """
    spaced = tf.strings.regex_replace(texts, f"[{SPACES}]", " ")
    words = tf.strings.split(spaced)
    return words.values, tf.cast(words.value_rowids(), tf.int32)


def without_long_words(rows: GraphRows) -> GraphRows:
    """Leaves out the tokens of words that have more than a window holds."""
    before, count = 2 * rows.count, tf.size(rows.word_row)
    room = tf.gather(rows.reading[:, LENGTH], rows.word_row) - 2
    is_long = rows.counts[before : before + count] > room
    behind = tf.size(rows.counts) - before - count
    end = tf.pad(tf.where(is_long, LARGEST, 0), [[before, behind]])
    return rows.without(tf.zeros_like(end), end)


def cut(rows: GraphRows, words: tf.Tensor) -> tuple[tf.Tensor, Words]:
    """Cuts rows of `without_long_words`, whose words are string [words].

    Gives the first six fields of `GraphWindows`, int32 [W, 6], with the words.
    """
    before, count = 2 * rows.count, tf.size(rows.word_row)
    starts = rows.starts[before : before + count + 1]
    kept = places_of(starts[1:] > starts[:-1])
    # The first token of each kept word, and one past the last word's.
    ends = tf.concat([tf.gather(starts, kept), starts[-1:]], axis=0)
    row = tf.gather(rows.word_row, kept)
    number = tf.range(rows.count)
    first_word = tf.searchsorted(row, number)
    last_word = tf.searchsorted(row, number, side="right")
    spans = _spans(ends, first_word, last_word, rows.reading[:, LENGTH] - 2)
    spans = tf.gather(spans, tf.argsort(spans[:, 0], stable=True))
    of_row, first, last, first_own = tf.unstack(spans, axis=1)
    first_window = tf.searchsorted(of_row, number)
    own_number = tf.range(tf.size(of_row)) - tf.gather(first_window, of_row)
    nothing = tf.zeros_like(of_row)
    a_first = tf.gather(ends, first)
    a_length = tf.gather(ends, last) - a_first
    windows = [of_row, a_first, a_length, nothing, nothing, a_length + 2]
    # The words that windows tag follow one another.
    window = tf.searchsorted(first_own, tf.range(tf.size(kept)), side="right")
    window -= 1
    at = kept[:, tf.newaxis]
    places = tf.gather(starts, kept) - tf.gather(a_first, window) + 1
    return tf.stack(windows, axis=1), Words(
        text=words,
        row=rows.word_row,
        number=tf.tensor_scatter_nd_update(
            tf.fill([count], -1), at, tf.gather(own_number, window)
        ),
        place=tf.tensor_scatter_nd_update(
            tf.zeros([count], tf.int32), at, places
        ),
    )


def _spans(
    ends: tf.Tensor,
    first_word: tf.Tensor,
    last_word: tf.Tensor,
    room: tf.Tensor,
) -> tf.Tensor:
    """Windows of all rows: row, first, last, first_own, int32 [W, 4].

    Words are numbered over all rows; see `Window` of `tasks/tagging.py`. Each
    step makes the next window of every row that has one. `ends`, int32 [K +
    1], are the words' first tokens, and one past the last word's; `room`,
    int32 [N], the tokens in a window.
    """
    # Rises, as the context behind a word falls and the one before it rises.
    around = ends[:-1] + ends[1:]

    def step(row, first, first_own, spans):
        start, size = tf.gather(ends, first), tf.gather(room, row)
        end = tf.gather(last_word, row)
        last = tf.searchsorted(ends, start + size, side="right") - 1
        last = tf.minimum(last, end)
        is_last = tf.equal(last, end)
        # The next window has more at its end, and begins half a room later.
        # The last one begins where all that is left fits.
        following = tf.gather(ends, tf.minimum(last + 1, end))
        longer, later, rest = (
            tf.maximum(tf.searchsorted(ends, x), tf.gather(first_word, row))
            for x in (
                following - size,
                start + size // 2,
                tf.gather(ends, end) - size,
            )
        )
        then = tf.minimum(tf.minimum(tf.maximum(longer, later), last), rest)
        both = tf.gather(ends, last) + tf.gather(ends, then)
        boundary = tf.searchsorted(around, both, side="right")
        boundary = tf.clip_by_value(boundary, then, last)
        last_own = tf.where(is_last, last, boundary)
        made = tf.stack([row, first, last, first_own], axis=1)
        made = tf.boolean_mask(made, first_own < last_own)
        first_own = tf.maximum(first_own, last_own)
        return (
            *(tf.boolean_mask(x, ~is_last) for x in (row, then, first_own)),
            tf.concat([spans, made], axis=0),
        )

    row = places_of(last_word > first_word)
    first = tf.gather(first_word, row)
    some = tf.TensorShape([None])
    *_, spans = tf.while_loop(
        lambda row, *_: tf.size(row) > 0,
        step,
        [row, first, first, tf.zeros([0, 4], tf.int32)],
        shape_invariants=[some, some, some, tf.TensorShape([None, 4])],
    )
    return spans
