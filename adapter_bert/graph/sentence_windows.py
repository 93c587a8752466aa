"""Cuts sentences into the model's rows, within a graph.

Words, windows, and the window that tags each word are those of
`tasks/tagging.py`.
"""

from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.graph.graph_tokenizer import (
    REPLACEMENT,
    before,
    keep,
    places_of,
    put,
)
from adapter_bert.graph.text_windows import LARGEST, LENGTH, GraphRows
from adapter_bert.tasks.squad_data import SPACES
from adapter_bert.tasks.tagging_files import lone_ranges


class Words(NamedTuple):
    """Words that were cut out of texts, and where their outputs are.

    Attributes:
        text: string [words].
        row: int32 [words], their texts.
        start, end: int32 [words], first characters, and one past the last,
            among those of all texts.
        letters: string [bytes], the bytes of all texts.
        byte: int32 [C + 1], the first byte of each of their characters.
        first: int32 [N], each text's first character.
        number: int32 [words], the window, within the row, that tags a word, or
            -1; None until there are windows.
        place: int32 [words], the word's first token in that window, or None.
    """

    text: tf.Tensor
    row: tf.Tensor
    start: tf.Tensor
    end: tf.Tensor
    letters: tf.Tensor
    byte: tf.Tensor
    first: tf.Tensor
    number: Optional[tf.Tensor] = None
    place: Optional[tf.Tensor] = None

    def encode(self, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Makes texts, string [n], of characters from `start` up to `end`."""
        # `unicode_encode` replaces characters that Unicode leaves free.
        bounds = (tf.gather(self.byte, x) for x in (start, end))
        places = tf.ragged.range(*bounds)
        letters = places.with_values(tf.gather(self.letters, places.values))
        return tf.strings.reduce_join(letters, axis=1)


class WordCutter(tf.Module):
    """Cuts texts into words, as `cut_words` of `tasks/tagging_files.py`."""

    def __init__(self):
        super().__init__()
        spaces = np.array([[ord(c), ord(c) + 1] for c in SPACES], np.int32)
        self._spaces = keep(spaces.reshape(-1))
        self._alone = keep(lone_ranges().reshape(-1))

    def __call__(self, texts: tf.Tensor, apart: tf.Tensor) -> Words:
        """Cuts texts, string [N]; `apart` is bool [N]."""
        decoded = tf.strings.unicode_decode(
            texts, "UTF-8", errors="replace", replacement_char=REPLACEMENT
        )
        codes = decoded.values
        row = tf.cast(decoded.value_rowids(), tf.int32)
        more = [tf.cast(codes >= x, tf.int32) for x in (0x80, 0x800, 0x10000)]
        sizes = 1 + tf.add_n(more)

        def is_within(bounds: tf.Variable) -> tf.Tensor:
            number = tf.searchsorted(bounds, codes, side="right")
            return tf.equal(number % 2, 1)

        is_space = is_within(self._spaces)
        is_alone = is_within(self._alone) & tf.gather(apart, row)
        # What stands before each character ends a word.
        is_new = before(is_space | is_alone, True) | is_alone
        is_new |= tf.not_equal(row, before(row, -1))
        start = places_of(is_new & ~is_space)
        stops = places_of(is_new | is_space)
        stops = tf.concat([stops, [tf.size(codes)]], axis=0)
        end = tf.gather(stops, tf.searchsorted(stops, start, side="right"))
        words = Words(
            text=tf.zeros([0], tf.string),
            row=tf.gather(row, start),
            start=start,
            end=end,
            letters=tf.strings.bytes_split(texts).values,
            byte=tf.cumsum(tf.pad(sizes, [[1, 0]])),
            first=tf.cast(decoded.row_starts(), tf.int32),
        )
        return words._replace(text=words.encode(start, end))


def without_long_words(rows: GraphRows) -> GraphRows:
    """Leaves out the tokens of words that have more than a window holds."""
    others, count = 2 * rows.count, tf.size(rows.word_row)
    room = tf.gather(rows.reading[:, LENGTH], rows.word_row) - 2
    is_long = rows.counts[others : others + count] > room
    behind = tf.size(rows.counts) - others - count
    end = tf.pad(tf.where(is_long, LARGEST, 0), [[others, behind]])
    return rows.without(tf.zeros_like(end), end)


def cut(rows: GraphRows, words: Words) -> tuple[tf.Tensor, Words]:
    """Cuts rows of `without_long_words`, which have these words.

    Gives the first six fields of `GraphWindows`, int32 [W, 6], with the words.
    """
    others, count = 2 * rows.count, tf.size(rows.word_row)
    starts = rows.starts[others : others + count + 1]
    kept = places_of(starts[1:] > starts[:-1])
    # The first token of each kept word, and one past the last word's.
    ends = tf.concat([tf.gather(starts, kept), starts[-1:]], axis=0)
    row = tf.gather(rows.word_row, kept)
    number = tf.range(rows.count)
    first_word = tf.searchsorted(row, number)
    last_word = tf.searchsorted(row, number, side="right")
    spans = _spans(ends, first_word, last_word, rows.reading[:, LENGTH] - 2)
    spans = tf.gather(spans, tf.argsort(spans[:, 0], stable=True))
    of_row, first, last, first_tagged = tf.unstack(spans, axis=1)
    first_window = tf.searchsorted(of_row, number)
    window_number = tf.range(tf.size(of_row)) - tf.gather(first_window, of_row)
    nothing = tf.zeros_like(of_row)
    a_first = tf.gather(ends, first)
    a_length = tf.gather(ends, last) - a_first
    windows = [of_row, a_first, a_length, nothing, nothing, a_length + 2]
    # The words that windows tag follow one another.
    window = tf.searchsorted(
        first_tagged, tf.range(tf.size(kept)), side="right"
    )
    window -= 1
    numbers = tf.gather(window_number, window)
    places = tf.gather(starts, kept) - tf.gather(a_first, window) + 1
    return tf.stack(windows, axis=1), words._replace(
        number=put(tf.fill([count], -1), kept, numbers),
        place=put(tf.zeros([count], tf.int32), kept, places),
    )


def _spans(
    ends: tf.Tensor,
    first_word: tf.Tensor,
    last_word: tf.Tensor,
    room: tf.Tensor,
) -> tf.Tensor:
    """Windows of all rows: row, first, last, first_tagged, int32 [W, 4].

    Words are numbered over all rows; see `Window` of `tasks/tagging.py`. Each
    step makes the next window of every row that has one. `ends`, int32 [K +
    1], are the words' first tokens, and one past the last word's; `room`,
    int32 [N], the tokens in a window.
    """
    # Rises, as the context behind a word falls and the one before it rises.
    around = ends[:-1] + ends[1:]

    def step(row, first, first_tagged, spans):
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
        last_tagged = tf.where(is_last, last, boundary)
        made = tf.stack([row, first, last, first_tagged], axis=1)
        made = tf.boolean_mask(made, first_tagged < last_tagged)
        first_tagged = tf.maximum(first_tagged, last_tagged)
        return (
            *(tf.boolean_mask(x, ~is_last) for x in (row, then, first_tagged)),
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
