"""From the heads' outputs to answers, within a graph.

Every row has every field, whatever its task gives; where a field has no
meaning it holds "", 0, or of a place -1.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np
import tensorflow as tf

from errors import UserError
from serving.graph_entries import keep
from serving.graph_spans import SpanRules, cut_out
from serving.loaded_task import LoadedTask
from serving.text_windows import Rows, Windows
from tasks.label_sets import SEPARATOR
from tasks.multi_label import MultiLabel
from tasks.restored import (
    CLASSIFICATION,
    MULTI_LABEL,
    QUESTIONS,
    REGRESSION,
)
from tasks.squad import Squad
from tasks.text_classification import TextClassification
from tasks.text_regression import AS_IS, FLOAT_MAX, TextRegression

# What `Task` class gives what; the first that a task is of counts.
KINDS = {
    MultiLabel: MULTI_LABEL,
    TextClassification: CLASSIFICATION,
    TextRegression: REGRESSION,
    Squad: QUESTIONS,
}
# More bytes than a text has.
LONGEST = 2**31 - 1
Fields = Dict[str, tf.Tensor]
# Of a window and of one more, each kind of head's, by name.
Outputs = Mapping[str, tf.Tensor]


class Question(NamedTuple):
    """What is asked, and how it was read.

    Attributes:
        rows: of texts.
        windows: of these.
        first_window: int32 [N], each row's first one.
        head: int32 [N], the number of its kind of heads.
        contexts: string [N], the second texts.
    """

    rows: Rows
    windows: Windows
    first_window: tf.Tensor
    head: tf.Tensor
    contexts: tf.Tensor


def kind_of(loaded: LoadedTask) -> str:
    """What a task gives: one of the values of `KINDS`.

    Raises:
        UserError: nothing that can be exported.
    """
    for kind, name in KINDS.items():
        if isinstance(loaded.task, kind):
            return name
    raise UserError(
        f"the task {loaded.task.name} is of a kind that cannot be exported"
    )


class GraphAnswers(tf.Module):
    """What all tasks answer."""

    def __init__(self, tasks: Sequence[LoadedTask], heads: Sequence[int]):
        """Takes tasks.

        Args:
            tasks: all, in the order of their numbers.
            heads: of each the number of its kind of heads.

        Raises:
            UserError: as `kind_of`.
        """
        kinds = list(map(kind_of, tasks))
        self._kind = keep(np.array(kinds))
        self._has_sets = keep(np.array([k == MULTI_LABEL for k in kinds]))
        self._heads = {
            kind: sorted({h for h, of in zip(heads, kinds) if of == kind})
            for kind in KINDS.values()
        }
        labels: List[str] = []
        first = np.zeros(len(tasks), np.int32)
        scale = np.tile(np.array([-FLOAT_MAX, FLOAT_MAX]), (len(tasks), 1))
        unit = np.tile(np.array([AS_IS.mean, AS_IS.deviation]), (len(tasks), 1))
        threshold = np.ones(len(tasks))
        separators = [SEPARATOR] * len(tasks)
        widest = 0
        for number, loaded in enumerate(tasks):
            task = loaded.task
            if isinstance(task, TextClassification):
                first[number] = len(labels)
                labels += task.labels
                widest = max(widest, len(task.labels))
                if isinstance(task, MultiLabel):
                    threshold[number] = task.least_probability
                    separators[number] = task.separator
            elif isinstance(task, TextRegression):
                scale[number] = task.scale or scale[number]
                unit[number] = (task.unit or AS_IS)[:2]
        self._widest = widest
        # Whatever is padding reads an empty one.
        self._labels = keep(np.array(labels + [""] * (widest + 1)))
        self._first_label = keep(first)
        self._scale, self._unit = keep(scale), keep(unit)
        self._threshold = keep(threshold)
        self._separator = keep(np.array(separators))
        counts = [len(getattr(t.task, "labels", None) or ()) for t in tasks]
        self._label_count = keep(np.array(counts, np.int32))
        questions = [
            (number, loaded.task)
            for number, loaded in enumerate(tasks)
            if isinstance(loaded.task, Squad)
        ]
        self._rules = SpanRules(questions, len(tasks))

    def __call__(self, asked: Question, outputs: Outputs) -> Fields:
        """Answers all rows.

        Args:
            asked: the rows.
            outputs: float32 or int32 [W + 1, ...], `head_<number>/<name>`.

        Returns:
            Of N rows and at most L labels: `kind`, string [N]; `label`,
            string [N], its `probability`, float32 [N], `labels`, string [N,
            L], their `scores`, float32 [N, L]; of tasks whose rows have sets
            of labels `label` holds all that a row is given, with the task's
            separator between them, and `probability` 0; `value`, float32 [N];
            `answer`, string [N], `start` and `end`, int32 [N], `score` and
            `null_score`, float32 [N].
        """
        task = asked.rows.task
        return {
            "kind": tf.gather(self._kind, task),
            **self._classes(asked, outputs),
            **self._values(asked, outputs),
            **self._spans(asked, outputs),
        }

    def _of_head(self, asked: Question, outputs: Outputs, head: int, name: str):
        """An output of each row's first window, and which rows it is of."""
        values = tf.gather(outputs[f"head_{head}/{name}"], asked.first_window)
        return values, tf.equal(asked.head, head)

    def _classes(self, asked: Question, outputs: Outputs) -> Fields:
        count = asked.rows.count
        logits = tf.fill([count, self._widest], np.float64(-np.inf))
        for head in self._heads[CLASSIFICATION] + self._heads[MULTI_LABEL]:
            found, is_mine = self._of_head(asked, outputs, head, "logits")
            missing = self._widest - found.shape[1]
            found = tf.pad(
                tf.cast(found, tf.float64),
                [[0, 0], [0, missing]],
                constant_values=-np.inf,
            )
            logits = tf.where(is_mine[:, tf.newaxis], found, logits)
        if not self._widest:
            nothing = tf.fill([count, 0], "")
            return {
                "label": tf.fill([count], ""),
                "probability": tf.zeros([count]),
                "labels": nothing,
                "scores": tf.zeros([count, 0]),
            }
        task = asked.rows.task
        places = tf.range(self._widest)
        is_label = places < tf.gather(self._label_count, task)[:, tf.newaxis]
        # Of labels each of which stands by itself.
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
        # The first of equal ones.
        best = tf.argmax(tf.cast(is_top, tf.int32), axis=1)[:, tf.newaxis]
        has_sets = tf.gather(self._has_sets, task)
        label = tf.where(
            has_sets,
            self._join(asked, labels, alone),
            tf.gather(labels, best, batch_dims=1)[:, 0],
        )
        probability = tf.reduce_max(scores, axis=1)
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
        self, asked: Question, labels: tf.Tensor, scores: tf.Tensor
    ) -> tf.Tensor:
        """The labels that rows are given, in one text.

        Args:
            asked: the rows.
            labels: string [N, L], "" at the end.
            scores: float64 [N, L], each label's probability by itself, 0 at
                the end.

        Returns:
            string [N].
        """
        task = asked.rows.task
        is_given = scores >= tf.gather(self._threshold, task)[:, tf.newaxis]
        separator = tf.gather(self._separator, task)
        before = tf.repeat(separator[:, tf.newaxis], self._widest, axis=1)
        parts = tf.where(is_given, tf.strings.join([before, labels]), "")
        joined = tf.strings.reduce_join(parts, axis=1)
        # But for what stands before the first label.
        start = tf.strings.length(separator)
        start = tf.minimum(start, tf.strings.length(joined))
        end = tf.fill(tf.shape(start), LONGEST)
        return tf.strings.substr(joined, start, end)

    def _values(self, asked: Question, outputs: Outputs) -> Fields:
        value = tf.zeros([asked.rows.count], tf.float64)
        low, high = tf.unstack(tf.gather(self._scale, asked.rows.task), axis=1)
        mean, deviation = tf.unstack(
            tf.gather(self._unit, asked.rows.task), axis=1
        )
        for head in self._heads[REGRESSION]:
            found, is_mine = self._of_head(asked, outputs, head, "scores")
            found = tf.cast(found, tf.float64) * deviation + mean
            found = tf.clip_by_value(found, low, high)
            value = tf.where(is_mine, found, value)
        return {"value": tf.cast(value, tf.float32)}

    def _spans(self, asked: Question, outputs: Outputs) -> Fields:
        rows = asked.rows
        count = [rows.count]
        fields: Dict[str, Any] = {
            "answer": tf.fill(count, ""),
            "start": tf.fill(count, -1),
            "end": tf.fill(count, -1),
            "score": tf.zeros(count),
            "null_score": tf.zeros(count),
        }
        for head in self._heads[QUESTIONS]:
            scope = f"head_{head}/"
            spans = self._rules.choose(
                rows,
                asked.windows,
                {
                    name[len(scope) :]: value
                    for name, value in outputs.items()
                    if name.startswith(scope)
                },
            )
            is_mine = tf.equal(asked.head, head)
            spans = spans._replace(
                is_there=spans.is_there & is_mine,
                is_given=spans.is_given & is_mine,
            )
            contexts = tf.where(is_mine, asked.contexts, "")
            answer, start, end = cut_out(rows, spans, contexts)
            score = tf.where(spans.is_there, spans.score, 0.0)
            found = {
                "answer": answer,
                "start": start,
                "end": end,
                "score": tf.cast(score, tf.float32),
                "null_score": tf.cast(spans.null_score, tf.float32),
            }
            fields = {
                name: tf.where(is_mine, found[name], value)
                for name, value in fields.items()
            }
        return fields
