"""Chooses answers from the heads' outputs, within a graph.

A field that a row's task lacks is "", 0 or, for a place, -1. Answers to
questions are chosen as in `tasks/squad.py`, without the n-best list.
"""

import abc
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.data.table_flags import MAX, MEAN, POOLS, SEPARATOR
from adapter_bert.errors import UserError
from adapter_bert.graph.graph_tokenizer import before, keep, places_of
from adapter_bert.graph.sentence_windows import Words
from adapter_bert.graph.text_windows import (
    BETWEEN,
    LARGEST,
    POOL,
    GraphRows,
    GraphWindows,
)
from adapter_bert.methods.base import below
from adapter_bert.tasks import kinds
from adapter_bert.tasks.squad_data import SPACES
from adapter_bert.tasks.tagging_files import NO_ENTITY, Tag
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.text_regression import AS_IS, FLOAT_MAX

# Below any sum of two logits.
IMPOSSIBLE = np.finfo(np.float64).min


Fields = dict[str, tf.Tensor]
# Tensors of all windows and one more, by kind of head and name.
Outputs = Mapping[str, tf.Tensor]


class Batch(NamedTuple):
    """Rows, and what the heads computed of their windows.

    `words` are None without tasks of tagging. `head` is each row's kind of
    heads, int32 [N], `contexts` its second text, string [N]; `outputs` are
    [W + 1, ...] by `head_<number>/<name>`.
    """

    rows: GraphRows
    windows: GraphWindows
    words: Optional[Words]
    head: tf.Tensor
    contexts: tf.Tensor
    outputs: Outputs

    @property
    def first_window(self) -> tf.Tensor:
        return tf.cumsum(self.windows.count, exclusive=True)

    def of_head(self, number: int, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Pools an output of rows' windows, and finds whose rows have it.

        As `long_texts.TextWindows.pool`.
        """
        values = self.outputs[f"head_{number}/{name}"]
        pooled = tf.cast(tf.gather(values, self.first_window), tf.float64)
        about = self.windows.row, self.rows.count
        wide = tf.cast(values[:-1], tf.float64)
        shape = [-1] + [1] * (values.shape.rank - 1)
        ways = {
            MEAN: tf.math.unsorted_segment_mean,
            MAX: tf.math.unsorted_segment_max,
        }
        for way, pool in ways.items():
            has_way = tf.equal(self.rows.reading[:, POOL], POOLS.index(way))
            of_way = tf.cast(
                tf.cast(pool(wide, *about), tf.float32), tf.float64
            )
            pooled = tf.where(tf.reshape(has_way, shape), of_way, pooled)
        return pooled, tf.equal(self.head, number)

    def of_choices(self, number: int, most: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds logits of `most` windows, as `of_head`."""
        places = self.first_window[:, tf.newaxis] + tf.range(most)
        places = tf.minimum(places, self.windows.size)
        logits = self.outputs[f"head_{number}/logits"][:, 0]
        logits = tf.cast(tf.gather(logits, places), tf.float64)
        return logits, tf.equal(self.head, number)


class Rule(tf.Module, abc.ABC):
    """Answers the rows of some kinds of tasks.

    `heads` are the tasks' kinds of heads, rising, at least one.
    """

    def __init__(self, tasks: Sequence[Optional[Task]], heads: Sequence[int]):
        """Takes tasks, None of other kinds, and kinds of heads by number."""
        super().__init__()
        self.heads = sorted({head for head, t in zip(heads, tasks) if t})

    @abc.abstractmethod
    def __call__(self, batch: Batch) -> Fields:
        """Makes fields of all rows, empty for rows of other kinds."""


def _column(tasks: Sequence[Optional[Task]], name: str, empty: Any) -> Any:
    """Keeps what tasks say, `empty` for other tasks, in a row for each."""
    values = [operator.attrgetter(name)(t) if t else empty for t in tasks]
    return keep(values, np.array(empty).dtype)


class Spans(NamedTuple):
    """Best answers of rows.

    Attributes:
        is_there: bool [N], there is a possible answer.
        first, last: int32 [N], its tokens, among all tokens.
        score, null_score: float64 [N], sums of logits, of the answer and of
            "no answer", which is 0 where it does not count.
        is_given: bool [N], the task prefers it to "no answer".
    """

    is_there: tf.Tensor
    first: tf.Tensor
    last: tf.Tensor
    score: tf.Tensor
    null_score: tf.Tensor
    is_given: tf.Tensor


class SpanRules(Rule):
    """Chooses the answers of questions."""

    def __init__(self, tasks, heads):
        super().__init__(tasks, heads)
        longest = [min(t.max_answer_length, LARGEST) if t else 1 for t in tasks]
        self._longest = keep(longest, np.int32)
        self._n_best = _column(tasks, "n_best_size", np.int32(1))
        self._negative = _column(tasks, "version_2_with_negative", False)
        self._threshold = _column(tasks, "null_score_diff_threshold", 0.0)

    def __call__(self, batch):
        spans = None
        for number in self.heads:
            of_head = below(f"head_{number}/", batch.outputs)
            chosen = self.choose(batch.rows, batch.windows, of_head)
            is_mine = tf.equal(batch.head, number)
            others = spans or map(tf.zeros_like, chosen)
            spans = Spans(
                *(tf.where(is_mine, x, y) for x, y in zip(chosen, others))
            )
        answer, start, end = cut_out(batch.rows, spans, batch.contexts)
        score = tf.where(spans.is_there, spans.score, 0.0)
        return {
            "answer": answer,
            "start": start,
            "end": end,
            "score": tf.cast(score, tf.float32),
            "null_score": tf.cast(spans.null_score, tf.float32),
        }

    def choose(
        self,
        rows: GraphRows,
        windows: GraphWindows,
        outputs: Mapping[str, tf.Tensor],
    ) -> Spans:
        """Chooses each row's best answer, meaningless for other tasks' rows.

        `outputs`, [windows + 1, ...], are those of `SpanHead.select`.
        """
        size = windows.size
        outputs = {name: values[:size] for name, values in outputs.items()}
        # The first context token is behind `[CLS] question [SEP]`.
        between = tf.gather(rows.reading[:, BETWEEN], windows.row)
        first = (windows.a_length + 1 + between)[:, tf.newaxis]
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
        # In an n-best list of one, "no answer" leaves no place for another.
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
    """First mark of each row, int32 [W], of bool [W, n]."""
    size = tf.shape(marks)[1]
    return tf.reduce_min(tf.where(marks, tf.range(size), size - 1), axis=1)


def _has_most_context(
    rows: GraphRows, windows: GraphWindows, places: tf.Tensor
) -> tf.Tensor:
    """Marks tokens around which no other window shows more text, bool [W, n].

    `places`, int32 [W, n], number tokens in a window's context. The first of
    equal windows counts.
    """
    first, length = windows.b_first[:, tf.newaxis], windows.b_length
    place = tf.range(tf.reduce_max(tf.pad(length, [[0, 1]])))
    length = length[:, tf.newaxis]
    window = tf.range(windows.size)[:, tf.newaxis]
    around = tf.minimum(place, length - 1 - place)
    score = tf.cast(around, tf.float64) + 0.01 * tf.cast(length, tf.float64)
    # Each window's tokens among all tokens; padding is behind them.
    count = rows.starts[-1]
    token = tf.where(place < length, first + place, count)
    best = tf.math.unsorted_segment_max(score, token, count + 1)
    is_best = tf.equal(score, tf.gather(best, token))
    chosen = tf.math.unsorted_segment_min(
        tf.where(is_best, window, windows.size), token, count + 1
    )
    at = tf.clip_by_value(first + places, 0, count)
    return tf.equal(tf.gather(chosen, at), window)


def cut_out(
    rows: GraphRows, spans: Spans, contexts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Joins each answer's words with spaces, string [N]; gives its place too.

    That is the first character and one past the last in `contexts`, string
    [N], or -1: int32 [N] each.
    """

    def of_token(values: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        number = tf.where(spans.is_given, number, 0)
        value = tf.gather(tf.pad(values, [[0, 1]]), number)
        return tf.where(spans.is_given, value, 0)

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


class TagRules(Rule):
    """Chooses the tags of words, and makes them BIO."""

    def __init__(self, tasks, heads):
        super().__init__(tasks, heads)
        tags: list[Tag] = []
        first, outside = np.zeros((2, len(tasks)), np.int32)
        for number, task in enumerate(tasks):
            if task:
                first[number] = len(tags)
                outside[number] = task.tags.index(NO_ENTITY)
                tags += task.tags
        self._first, self._outside = keep(first), keep(outside)
        types = sorted({tag.type for tag in tags})
        self._types = keep([types.index(tag.type) for tag in tags], np.int32)
        self._tags = keep(list(map(str, tags)))
        self._begins = keep([tag.prefix == "B" for tag in tags])
        self._is_entity = keep([bool(tag.type) for tag in tags])
        # What a tag becomes that continues nothing.
        self._begun = keep(
            [
                str(tag._replace(prefix="B") if tag.prefix == "I" else tag)
                for tag in tags
            ]
        )

    def __call__(self, batch):
        rows, words = batch.rows, batch.words
        logits = {n: batch.outputs[f"head_{n}/logits"] for n in self.heads}
        tags, begins, is_inside, score = self.choose(
            words, rows.task, batch.first_window, logits, batch.head
        )

        def of_rows(values: tf.Tensor, row: tf.Tensor, name: str) -> tf.Tensor:
            rowids, count = tf.cast(row, tf.int64), rows.count
            ragged = tf.RaggedTensor.from_value_rowids(
                values, rowids, tf.cast(count, tf.int64), validate=False
            )
            empty = kinds.KINDS[kinds.TAGGING].fields[name].empty
            return ragged.to_tensor(empty)

        # Words of an entity follow one another.
        first = places_of(begins)
        entity = tf.boolean_mask(
            tf.cumsum(tf.cast(begins, tf.int32)), is_inside
        )
        entity -= 1
        count = tf.size(first)
        lengths = tf.math.unsorted_segment_sum(
            tf.ones_like(entity), entity, count
        )
        score = tf.math.unsorted_segment_mean(
            tf.boolean_mask(score, is_inside), entity, count
        )
        row = tf.gather(words.row, first)
        start = tf.gather(words.start, first)
        end = tf.gather(words.end, first + lengths - 1)
        of_text = tf.gather(words.first, row)
        entities = {
            "entity_starts": start - of_text,
            "entity_ends": end - of_text,
            "entity_texts": words.encode(start, end),
            "entity_scores": tf.cast(score, tf.float32),
        }
        return {
            "tokens": of_rows(words.text, words.row, "tokens"),
            "tags": of_rows(tags, words.row, "tags"),
            **{n: of_rows(x, row, n) for n, x in entities.items()},
        }

    def choose(
        self,
        words: Words,
        task: tf.Tensor,
        first_window: tf.Tensor,
        logits: Mapping[int, tf.Tensor],
        head: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Chooses tags in BIO; `O` without a window.

        `task`, `first_window` and `head` are int32 [N], logits float32 [W + 1,
        T, C] by the kind of heads. Returns tags, string [words], bool [words]
        of words that begin an entity and that belong to one, and float64
        [words], the tags' probabilities.
        """

        def of_word(values: tf.Tensor) -> tf.Tensor:
            return tf.gather(values, words.row)

        window = of_word(first_window) + tf.maximum(words.number, 0)
        place = tf.stack([window, words.place], axis=1)
        number = of_word(tf.gather(self._outside, task))
        probability = tf.zeros(tf.shape(number), tf.float64)
        for kind, values in logits.items():
            is_mine = tf.equal(of_word(head), kind) & (words.number >= 0)
            # Other rows' windows may be shorter.
            scores = tf.gather_nd(
                values, tf.where(is_mine[:, tf.newaxis], place, 0)
            )
            likeliest = tf.argmax(scores, axis=1, output_type=tf.int32)
            number = tf.where(is_mine, likeliest, number)
            shares = tf.nn.softmax(tf.cast(scores, tf.float64))
            best = tf.reduce_max(shares, axis=1)
            probability = tf.where(is_mine, best, probability)
        number += of_word(tf.gather(self._first, task))
        kind = tf.gather(self._types, number)
        goes_on = tf.equal(before(kind, -1), kind)
        goes_on &= tf.equal(before(words.row, -1), words.row)
        tags = tf.where(
            goes_on,
            tf.gather(self._tags, number),
            tf.gather(self._begun, number),
        )
        is_inside = tf.gather(self._is_entity, number)
        begins = is_inside & (tf.gather(self._begins, number) | ~goes_on)
        return tags, begins, is_inside, probability


class LabelRules(Rule):
    """Scores labels and choices, and chooses among them."""

    def __init__(self, tasks, heads):
        super().__init__(tasks, heads)
        self._of_choices = {
            h for h, t in zip(heads, tasks) if t and t.choice_count
        }
        labels: list[str] = []
        first, counts = np.zeros((2, len(tasks)), np.int32)
        for number, task in enumerate(tasks):
            if task:
                first[number] = len(labels)
                counts[number] = len(task.result_columns)
                labels += task.result_columns
        self._widest = int(counts.max())
        # Padding reads an empty label.
        self._labels = keep(labels + [""] * (self._widest + 1))
        self._first_label, self._label_count = keep(first), keep(counts)
        self._temperature = _column(tasks, "calibration.temperature", 1.0)
        self._abstain_below = _column(tasks, "calibration.abstain_below", 0.0)
        sets = [
            t if t and t.kind.name == kinds.MULTI_LABEL else None for t in tasks
        ]
        self._has_sets = keep([t is not None for t in sets])
        thresholds = np.ones([len(tasks), self._widest])
        for row, task in zip(thresholds, sets):
            if task:
                row[: len(task.labels)] = task.least_probabilities
        self._threshold = keep(thresholds)
        self._separator = _column(sets, "separator", SEPARATOR)

    def __call__(self, batch):
        """Answers as `Rule`.

        `label` is "" below `Calibration.abstain_below`, and joins a set of
        labels, whose `probability` is 0.
        """
        task = batch.rows.task
        count = tf.size(task)
        logits = tf.fill([count, self._widest], np.float64(-np.inf))
        for head in self.heads:
            if head in self._of_choices:
                values, is_mine = batch.of_choices(head, self._widest)
            else:
                values, is_mine = batch.of_head(head, "logits")
                paddings = [[0, 0], [0, self._widest - values.shape[1]]]
                values = tf.pad(values, paddings, constant_values=-np.inf)
            logits = tf.where(is_mine[:, tf.newaxis], values, logits)
        places = tf.range(self._widest)
        is_label = places < tf.gather(self._label_count, task)[:, tf.newaxis]
        # Of choices there may be logits of the next row.
        logits = tf.where(is_label, logits, -np.inf)
        logits /= tf.gather(self._temperature, task)[:, tf.newaxis]
        # Probabilities of independent labels.
        alone = tf.sigmoid(logits)
        top = tf.reduce_max(logits, axis=1, keepdims=True)
        is_top = tf.equal(logits, top) & is_label
        logits = tf.where(is_label, logits - top, -np.inf)
        odds = tf.exp(logits)
        scores = tf.math.divide_no_nan(
            odds, tf.reduce_sum(odds, axis=1, keepdims=True)
        )
        first = tf.gather(self._first_label, task)[:, tf.newaxis]
        nothing = tf.size(self._labels) - 1
        labels = tf.gather(
            self._labels, tf.where(is_label, first + places, nothing)
        )
        # The first of equal labels.
        best = tf.argmax(tf.cast(is_top, tf.int32), axis=1)[:, tf.newaxis]
        has_sets = tf.gather(self._has_sets, task)
        probability = tf.reduce_max(scores, axis=1)
        is_answered = probability >= tf.gather(self._abstain_below, task)
        best_label = tf.gather(labels, best, batch_dims=1)[:, 0]
        label = tf.where(
            has_sets,
            self._join(task, labels, alone),
            tf.where(is_answered, best_label, ""),
        )
        probability = tf.where(
            has_sets, tf.zeros_like(probability), probability
        )
        scores = tf.where(has_sets[:, tf.newaxis], alone, scores)
        return {
            "label": label,
            "probability": tf.cast(probability, tf.float32),
            "labels": labels,
            "scores": tf.cast(scores, tf.float32),
        }

    def _join(
        self, task: tf.Tensor, labels: tf.Tensor, scores: tf.Tensor
    ) -> tf.Tensor:
        """Joins rows' labels, string [N].

        `labels`, string [N, L], and probabilities `scores`, float64 [N, L],
        end with "" and 0.
        """
        is_given = scores >= tf.gather(self._threshold, task)
        separator = tf.gather(self._separator, task)
        separators = tf.repeat(separator[:, tf.newaxis], self._widest, axis=1)
        chosen = tf.where(is_given, tf.strings.join([separators, labels]), "")
        joined = tf.strings.reduce_join(chosen, axis=1)
        # Without the separator before the first label.
        start = tf.strings.length(separator)
        start = tf.minimum(start, tf.strings.length(joined))
        end = tf.fill(tf.shape(start), LARGEST)
        return tf.strings.substr(joined, start, end)


class NumberRules(Rule):
    """Gives the scores of regressions in the labels' unit."""

    def __init__(self, tasks, heads):
        super().__init__(tasks, heads)
        whole = -FLOAT_MAX, FLOAT_MAX
        self._scale = keep([t.scale or whole if t else whole for t in tasks])
        units = [t.unit or AS_IS if t else AS_IS for t in tasks]
        self._unit = keep([unit[:2] for unit in units])
        self._is_sigmoid = _column(tasks, "is_sigmoid", False)

    def __call__(self, batch):
        task = batch.rows.task
        value = tf.zeros([tf.size(task)], tf.float64)
        low, high = tf.unstack(tf.gather(self._scale, task), axis=1)
        mean, deviation = tf.unstack(tf.gather(self._unit, task), axis=1)
        for head in self.heads:
            scores, is_mine = batch.of_head(head, "scores")
            scores = tf.where(
                tf.gather(self._is_sigmoid, task),
                tf.sigmoid(scores),
                tf.clip_by_value(scores * deviation + mean, low, high),
            )
            value = tf.where(is_mine, scores, value)
        return {"value": tf.cast(value, tf.float32)}


class VectorRules(Rule):
    """Gives vectors, of length 1 where their task says so."""

    def __init__(self, tasks, heads):
        super().__init__(tasks, heads)
        self._normalizes = _column(tasks, "form.normalize", False)

    def __call__(self, batch):
        task = batch.rows.task
        vector = tf.zeros([tf.size(task), 0], tf.float64)
        for head in self.heads:
            values, is_mine = batch.of_head(head, "vectors")
            missing = values.shape[1] - vector.shape[1]
            if missing and vector.shape[1]:
                raise UserError(
                    "the tasks have vectors of several sizes; export each size "
                    "by itself (--task)"
                )
            vector = tf.pad(vector, [[0, 0], [0, missing]])
            vector = tf.where(is_mine[:, tf.newaxis], values, vector)
        lengths = tf.norm(vector, axis=1, keepdims=True)
        normalizes = tf.gather(self._normalizes, task)[:, tf.newaxis]
        divisor = tf.where(normalizes & (lengths > 0), lengths, 1)
        return {"vector": tf.cast(vector / divisor, tf.float32)}


# Kinds that a graph answers, and how.
RULES: dict[str, type[Rule]] = {
    kinds.CLASSIFICATION: LabelRules,
    kinds.MULTI_LABEL: LabelRules,
    kinds.CHOICE: LabelRules,
    kinds.REGRESSION: NumberRules,
    kinds.RERANK: NumberRules,
    kinds.QUESTIONS: SpanRules,
    kinds.TAGGING: TagRules,
    kinds.VECTORS: VectorRules,
}


class GraphAnswers(tf.Module):
    """Makes the answers of all tasks, the fields of all `RULES`' kinds."""

    def __init__(self, tasks: Sequence[Task], heads: Sequence[int]):
        """Takes tasks, and their kinds of heads, by number."""
        super().__init__()
        names = [task.kind.name for task in tasks]
        self._kind = keep(names)
        self._rules = [
            rule(
                [t if RULES[n] is rule else None for n, t in zip(names, tasks)],
                heads,
            )
            for rule in dict.fromkeys(map(RULES.get, names))
        ]

    def __call__(self, batch: Batch) -> Fields:
        """Answers all rows, by name of the field, [N, ...]."""
        fields = {"kind": tf.gather(self._kind, batch.rows.task)}
        # What no task here answers is empty.
        for kind in map(kinds.find_kind, RULES):
            for name, field in kind.fields.items():
                shape = [batch.rows.count, 0][: field.axes]
                fields[name] = tf.fill(shape, tf.constant(field.empty))
        for rule in self._rules:
            fields.update(rule(batch))
        return fields
