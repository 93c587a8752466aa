"""The answers to questions, chosen and cut out of their contexts in a graph.

As `tasks/squad_answers.py` chooses them, but for the n-best list, of which the
best alone is told.
"""

from typing import Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow as tf

from serving.text_windows import LARGEST, Rows, Windows
from tasks.squad import Squad
from tasks.squad_data import SPACES

# Less than any sum of two logits.
IMPOSSIBLE = np.finfo(np.float64).min


class Spans(NamedTuple):
    """The best answer to each row.

    Attributes:
        is_there: bool [N], whether there is one, however likely.
        first, last: int32 [N], its tokens, among all tokens.
        score: float64 [N], the sum of its start and end logit.
        null_score: float64 [N], that of "no answer", or 0 where it does not
            count.
        is_given: bool [N], whether it is what is answered: "no answer" may
            be likelier, by the task's threshold.
    """

    is_there: tf.Tensor
    first: tf.Tensor
    last: tf.Tensor
    score: tf.Tensor
    null_score: tf.Tensor
    is_given: tf.Tensor


class SpanRules(tf.Module):
    """How each task chooses its answers."""

    def __init__(self, tasks: Sequence[Tuple[int, Squad]], count: int):
        """Takes rules.

        Args:
            tasks: those of questions, with their numbers.
            count: of all tasks.
        """
        longest, n_best = np.ones((2, count), np.int32)
        negative = np.zeros(count, bool)
        threshold = np.zeros(count, np.float64)
        for number, task in tasks:
            longest[number] = min(task.max_answer_length, LARGEST)
            n_best[number] = task.n_best_size
            negative[number] = task.version_2_with_negative
            threshold[number] = task.null_score_diff_threshold
        self._longest, self._n_best, self._negative, self._threshold = (
            tf.Variable(values, trainable=False)
            for values in (longest, n_best, negative, threshold)
        )

    def choose(
        self, rows: Rows, windows: Windows, outputs: Mapping[str, tf.Tensor]
    ) -> Spans:
        """Chooses the best answer of each row.

        Args:
            rows: of which those of other tasks get answers of no meaning.
            windows: of the rows.
            outputs: of `SpanHead.select`, of each window and of one more.
        """
        size = windows.size
        outputs = {name: values[:size] for name, values in outputs.items()}
        # The first context token is behind `[CLS] question [SEP]`.
        first = windows.a_length[:, tf.newaxis] + 2
        length = windows.b_length[:, tf.newaxis]
        starts = outputs["start_indexes"] - first
        ends = outputs["end_indexes"] - first
        distance = ends[:, tf.newaxis, :] - starts[:, :, tf.newaxis]
        task = tf.gather(rows.task, windows.row)
        longest = tf.gather(self._longest, task)
        starts_fit = (starts >= 0) & (starts < length)
        starts_fit &= _has_most_context(rows, windows, starts)
        ends_fit = (ends >= 0) & (ends < length)
        fits = (
            starts_fit[:, :, tf.newaxis]
            & ends_fit[:, tf.newaxis, :]
            & (distance >= 0)
            & (distance < longest[:, tf.newaxis, tf.newaxis])
        )  # [W, n, n]
        start_logits, end_logits, null_logits = (
            tf.cast(outputs[f"{name}_logits"], tf.float64)
            for name in ("start", "end", "null")
        )
        sums = start_logits[:, :, tf.newaxis] + end_logits[:, tf.newaxis, :]
        n = tf.shape(starts)[1]
        sums = tf.reshape(tf.where(fits, sums, IMPOSSIBLE), [-1, n * n])
        of_window = tf.reduce_max(sums, axis=1)  # [W]
        place = _first(tf.equal(sums, of_window[:, tf.newaxis]))

        best = tf.math.unsorted_segment_max(of_window, windows.row, rows.count)
        is_best = tf.equal(of_window, tf.gather(best, windows.row))
        window = tf.math.unsorted_segment_min(
            tf.where(is_best, tf.range(size), size), windows.row, rows.count
        )
        is_there = best > IMPOSSIBLE

        def of_row(values: tf.Tensor) -> tf.Tensor:
            """The values of each row's best window; of no window, zeros."""
            padded = tf.pad(values, [[0, 1]])
            return tf.gather(padded, tf.minimum(window, size))

        start, end = place // n, place % n

        def chosen(values: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
            return of_row(tf.gather(values, place, batch_dims=1))

        null = tf.math.unsorted_segment_min(
            tf.reduce_sum(null_logits, axis=1), windows.row, rows.count
        )
        negative = tf.gather(self._negative, rows.task)
        odds = null - chosen(start_logits, start) - chosen(end_logits, end)
        # With a list of one, "no answer" leaves no place for another.
        is_lost = (best < null) & tf.equal(
            tf.gather(self._n_best, rows.task), 1
        )
        is_there &= ~(negative & is_lost)
        is_refused = odds > tf.gather(self._threshold, rows.task)
        counts = (windows.count > 0) & (negative | ~is_there)
        return Spans(
            is_there=is_there,
            first=of_row(windows.b_first) + chosen(starts, start),
            last=of_row(windows.b_first) + chosen(ends, end),
            score=best,
            null_score=tf.where(counts, null, 0.0),
            is_given=is_there & ~(negative & is_refused),
        )


def _first(marks: tf.Tensor) -> tf.Tensor:
    """Where the first mark of each row is, int32 [W], of bool [W, n]."""
    size = tf.shape(marks)[1]
    return tf.reduce_min(tf.where(marks, tf.range(size), size - 1), axis=1)


def _has_most_context(
    rows: Rows, windows: Windows, places: tf.Tensor
) -> tf.Tensor:
    """Whether no other window shows a token with more text around it.

    Args:
        rows: of texts.
        windows: of the rows.
        places: int32 [W, n], tokens by number in a window's part of the
            context.

    Returns:
        bool [W, n].
    """

    def of_row(values: tf.Tensor) -> tf.Tensor:
        return tf.gather(values, windows.row)[:, tf.newaxis]

    room, step, count = map(of_row, (windows.room, windows.step, windows.count))
    context = of_row(rows.counts[rows.count :])
    number = windows.number[:, tf.newaxis]

    def score(places: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        around = tf.minimum(places, length - 1 - places)
        return tf.cast(around, tf.float64) + 0.01 * tf.cast(length, tf.float64)

    own = score(places, windows.b_length[:, tf.newaxis])

    def compare(distance, most, _):
        is_near = False
        for other in (number - distance, number + distance):
            place = places + (number - other) * step
            length = tf.minimum(room, context - other * step)
            shows = (other >= 0) & (other < count)
            shows &= (place >= 0) & (place < length)
            found = score(place, length)
            # The first of equal ones counts.
            is_less = (found < own) | tf.equal(found, own) & (other > number)
            most &= is_less | ~shows
            is_near |= tf.reduce_any(shows)
        return distance + 1, most, is_near

    # Windows lie in order, so those that share a token are neighbours.
    _, most, _ = tf.while_loop(
        lambda distance, most, is_near: is_near,
        compare,
        [tf.constant(1), tf.ones_like(places, tf.bool), tf.constant(True)],
    )
    return most


def cut_out(
    rows: Rows, spans: Spans, contexts: tf.Tensor
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The answers' texts: the characters of their tokens.

    Args:
        rows: of texts.
        spans: their answers.
        contexts: string [N], UTF-8; "" where there is nothing to cut out.

    Returns:
        string [N], the words of the answer with a space between them; "" if
        none is given. int32 [N] twice, its first character and the one behind
        it; -1 if none is given.
    """

    def of_token(values: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """A token's value; 0 where no answer is given."""
        number = tf.where(spans.is_given, number, 0)
        found = tf.gather(tf.pad(values, [[0, 1]]), number)
        return tf.where(spans.is_given, found, 0)

    start = of_token(rows.tokens.first, spans.first)
    end = of_token(rows.tokens.end, spans.last)
    texts = tf.strings.substr(contexts, start, end - start, unit="UTF8_CHAR")
    words = tf.strings.regex_replace(texts, f"[{SPACES}]+", " ")
    return (
        # An added token may begin or end with a space.
        tf.strings.regex_replace(words, "^ | $", ""),
        tf.where(spans.is_given, start, -1),
        tf.where(spans.is_given, end, -1),
    )
