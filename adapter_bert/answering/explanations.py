"""Explains an answer: how much each word speaks for it.

Integrated gradients follow a straight line of word embeddings from a baseline
to the text, and add up the gradient on the way. In the baseline each token of
the texts is the mask token, which BERT's pretraining uses for a missing word.

What is explained is the log-odds `log(p / (1 - p))` of a label's probability,
or a regression's value.

Source: Sundararajan et al. 2017, "Axiomatic Attribution for Deep Networks",
sections 3 and 5; the baseline: Enguehard 2023, "Sequential Integrated
Gradients".
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from adapter_bert.answering.frozen_bert import FrozenBert, TaskKind
from adapter_bert.answering.joint_answers import compute_alone, in_batches
from adapter_bert.answering.trained_task import LoadedTask, TextRow, kind_of
from adapter_bert.bert import onednn
from adapter_bert.bert.encoder import CreateVariable
from adapter_bert.bert.hooks import Context, NamedTensors
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.tokenization import fit, make_row
from adapter_bert.errors import UserError
from adapter_bert.tasks.kinds import CLASSIFICATION, MULTI_LABEL, REGRESSION
from adapter_bert.tasks.task_model import WORD_VECTORS, TaskModel
from adapter_bert.tasks.text_regression import AS_IS
from adapter_bert.training.prediction import check_finite

# Kinds of tasks whose answers are explained.
EXPLAINED = (CLASSIFICATION, MULTI_LABEL, REGRESSION)
# Points of the line where gradients are computed.
POINTS = 18
# Tokens of the points that are computed at once, which bounds the memory.
BATCH_TOKENS = 1024
# Words that are checked by leaving each out.
STRONGEST = 5
# Features of a point of the line, next to a text's features.
FEATURES = {
    "baseline_ids": tf.TensorSpec([None, None], tf.int32),
    "share": tf.TensorSpec([None], tf.float32),
    "label": tf.TensorSpec([None], tf.int32),
    "temperature": tf.TensorSpec([None], tf.float32),
}


class Word(NamedTuple):
    """A word of the text `column`, with its tokens' places in the row.

    Its characters are those from `start` to `end`, one past the last.
    """

    column: str
    text: str
    start: int
    end: int
    places: list[int]


class PathModel:
    """A task's model between a baseline and a text."""

    def __init__(
        self,
        bert: FrozenBert,
        kind: TaskKind,
        answers: str,
        create: CreateVariable,
    ):
        """Creates all variables; `answers` is one of `EXPLAINED`."""
        self._kind = answers
        self._model = TaskModel(
            bert.config, kind.method, kind.build_head, create
        )

    def __call__(
        self, features: Mapping[str, tf.Tensor], context: Context
    ) -> NamedTensors:
        """Computes points, whose `share` is 0 for the baseline, 1 for the text.

        Gives `values`, float32 [B], what is explained; and `products`, float32
        [B, T], of its gradient by a token's embedding and the ends' difference.
        """
        bert = self._model.bert
        text, baseline = (
            bert.words(features[name], context)
            for name in ("input_ids", "baseline_ids")
        )
        difference = text - baseline
        share = tf.reshape(features["share"], [-1, 1, 1])
        words = baseline + share * difference
        # Kernels of oneDNN for predictions have no gradient.
        with (
            onednn.built_for(None),
            tf.GradientTape(watch_accessed_variables=False) as tape,
        ):
            tape.watch(words)
            outputs = self._model(
                {**features, WORD_VECTORS: words},
                dataclasses.replace(context, differentiates_inputs=True),
            )
            values = explained_value(
                self._kind,
                outputs,
                features["label"],
                features["temperature"],
            )
        gradient = tape.gradient(values, words)
        products = tf.reduce_sum(gradient * difference, axis=-1)
        return {"values": values, "products": products}


def explained_value(
    kind: str,
    outputs: Mapping[str, tf.Tensor],
    labels: tf.Tensor,
    temperatures: tf.Tensor,
) -> tf.Tensor:
    """Log-odds of labels, or the scores of a regression, float32 [B].

    `outputs` are the head's, `logits` [B, C] or `scores` [B]; labels are int32
    [B]; temperatures, float32 [B], divide logits, and are 1 of label sets.
    """
    if kind == REGRESSION:
        return outputs["scores"]
    logits = outputs["logits"] / temperatures[:, tf.newaxis]
    is_label = tf.one_hot(
        labels, tf.shape(logits)[1], True, False, dtype=tf.bool
    )
    chosen = tf.reduce_sum(tf.where(is_label, logits, 0.0), axis=1)
    if kind == MULTI_LABEL:
        return chosen
    # Of log(p / (1 - p)) both sums of the softmax fall out.
    others = tf.where(is_label, logits.dtype.min, logits)
    return chosen - tf.reduce_logsumexp(others, axis=1)


def lobatto(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points from 0 to 1, both included, and weights of their values.

    Float64 [count] twice. Gauss-Lobatto quadrature is exact for polynomials up
    to the degree 2 count - 3. Source: Abramowitz and Stegun, 25.4.32.
    """
    last = np.polynomial.Legendre.basis(count - 1)
    # NumPy 2.5 gives real roots as complex numbers.
    inner = np.sort(np.real(last.deriv().roots()))
    points = np.concatenate([[-1.0], inner, [1.0]])
    weights = 2 / (count * (count - 1) * last(points) ** 2)
    return (points + 1) / 2, weights / 2


def fault_of(loaded: LoadedTask, name: str = "") -> str:
    """Says why answers of a task are not explained, or ""."""
    kind, name = kind_of(loaded), name or loaded.task.name
    if kind not in EXPLAINED:
        return (
            f"the task {name} is of the kind {kind}, whose answers are not "
            f"explained; explained are {', '.join(EXPLAINED)}"
        )
    if loaded.task.window_stride:
        return (
            f"answers of {name} cannot be explained: it reads long texts in "
            "windows (window_stride)"
        )
    if loaded.tokenizer.mask_id is None:
        return (
            f"answers of {name} cannot be explained: the vocabulary of this "
            "BERT has no mask token, which stands for missing words"
        )
    return ""


def check_explained(loaded: LoadedTask, name: str = "") -> None:
    """Refuses a task whose answers are not explained."""
    if fault := fault_of(loaded, name):
        raise UserError(fault)


def explain(
    bert: FrozenBert,
    loaded: LoadedTask,
    row: TextRow,
    answer: Mapping[str, Any],
    batch_size: int = 32,
) -> dict[str, Any]:
    """Explains a task's answer to a row.

    Returns:
        `label`, of several the likeliest, not of a regression. `words`, in
        their order: `column`, `text`, `start` and `end` (characters),
        `attribution`, and of the `STRONGEST` `left_out`, the change of the
        label's probability or of the value without the word. `completeness`:
        what is explained, of the `text` and of the `baseline`; the `sum` of
        attributions; the `error`, its distance from the difference; and the
        `relative` error, None without words or a difference.
    """
    task, number, explanation = loaded.task, 0, {}
    if "scores" in answer:
        number = int(np.argmax(list(answer["scores"].values())))
        explanation["label"] = list(answer["scores"])[number]
    tokens, segments, words = _read(loaded, row)
    baseline = _without(tokens, words, loaded)
    values, products = _follow(bert, loaded, tokens, baseline, segments, number)
    if kind_of(loaded) == REGRESSION:
        # As the answer has it.
        unit = task.unit or AS_IS
        values = values * unit.deviation + unit.mean
        products = products * unit.deviation
    attributions = [float(products[word.places].sum()) for word in words]
    order = np.argsort(-np.abs(attributions), kind="stable")[:STRONGEST]
    rows = [tokens, *(_without(tokens, [words[n]], loaded) for n in order)]
    features = Features.from_rows([(one, segments) for one in rows], {})
    outputs = compute_alone(loaded, features, batch_size)
    check_finite(outputs, task.name)
    made = task.make_rows([row] * len(rows))
    scores = task.results(task.decode(made, features, outputs))[:, number]
    changes = dict(zip(order.tolist(), (scores[1:] - scores[0]).tolist()))
    explanation["words"] = [
        {
            **{
                name: x
                for name, x in word._asdict().items()
                if name != "places"
            },
            "attribution": attribution,
            **({"left_out": changes[n]} if n in changes else {}),
        }
        for n, (word, attribution) in enumerate(zip(words, attributions))
    ]
    total, difference = sum(attributions), float(values[-1] - values[0])
    error = abs(total - difference)
    explanation["completeness"] = {
        "text": float(values[-1]),
        "baseline": float(values[0]),
        "sum": total,
        "error": error,
        # Without words both ends differ by rounding alone.
        "relative": error / abs(difference) if words and difference else None,
    }
    return explanation


def _read(
    loaded: LoadedTask, row: TextRow
) -> tuple[list[int], list[int], list[Word]]:
    tokenizer, between = loaded.tokenizer, loaded.tokenizer.between
    texts = tokenizer.encode(row)
    first, second = [*(text.ids for text in texts), None][:2]
    length = loaded.max_seq_length
    tokens, segments = make_row(first, second, tokenizer, length)
    room = length - 2 - (len(between) if second is not None else 0)
    counts = fit(len(first), len(second or ()), room)
    words, begin = [], 1
    for column, text, encoded, count in zip(loaded.columns, row, texts, counts):
        left_out = (len(encoded.ids) - count) * tokenizer.keeps_end
        for _, group in itertools.groupby(
            range(left_out, left_out + count), encoded.words.__getitem__
        ):
            some = list(group)
            offsets = [encoded.offsets[n] for n in some]
            # A token of a space alone has no characters.
            visible = [(start, end) for start, end in offsets if start < end]
            starts, ends = zip(*(visible or offsets))
            start, end = min(starts), max(ends)
            places = [begin + n - left_out for n in some]
            words.append(Word(column, text[start:end], start, end, places))
        begin += count + len(between)
    return tokens, segments, words


def _without(
    tokens: Sequence[int], words: Sequence[Word], loaded: LoadedTask
) -> list[int]:
    masked = list(tokens)
    for word in words:
        for place in word.places:
            masked[place] = loaded.tokenizer.mask_id
    return masked


def _follow(
    bert: FrozenBert,
    loaded: LoadedTask,
    tokens: Sequence[int],
    baseline: Sequence[int],
    segments: Sequence[int],
    label: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Gives what is explained at each point, and each token's attribution.

    They are float64 [POINTS] and float64 [T].
    """
    kind, answers = loaded.kind, kind_of(loaded)
    # The function stays when the task goes, so it may not hold its values.
    function = bert.function(
        ("explanation", answers, kind.key),
        kind.table,
        functools.partial(PathModel, bert, kind, answers),
        FEATURES,
    ).get_concrete_function()
    shares, weights = lobatto(POINTS)
    temperature = loaded.task.calibration.temperature
    features = Features.from_rows(
        [(tokens, segments)] * POINTS,
        {
            "share": shares.astype(np.float32),
            "baseline_ids": np.tile(np.int32(baseline), (POINTS, 1)),
            "label": np.full(POINTS, label, np.int32),
            "temperature": np.full(POINTS, temperature, np.float32),
        },
    )
    outputs = in_batches(
        functools.partial(function, loaded.values.get()),
        features,
        max(1, BATCH_TOKENS // len(tokens)),
    )
    values, products = (
        outputs[name].astype(np.float64) for name in ("values", "products")
    )
    check_finite({"values": values, "products": products}, loaded.task.name)
    return values, weights @ products
