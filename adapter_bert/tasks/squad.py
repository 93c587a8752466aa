"""Question answering on files in SQuAD's layout, versions 1.1 and 2.0.

In here: the head, the choice of answers from its outputs (n-best lists and null
odds), the scores by the official rules, and the task. `squad_data.py` reads
questions and cuts windows.
"""

import collections
import dataclasses
import json
import math
import os
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder, functional
from adapter_bert.data import input_pipeline
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError
from adapter_bert.flags import POSITIVE, Range, Topic, recorded
from adapter_bert.progress import Progress
from adapter_bert.tasks import kinds
from adapter_bert.tasks.squad_data import (
    SHOWN_FROM,
    ContextWindows,
    SquadQuestion,
    check_answers,
    cut_windows,
    find_answer,
    join_words,
    read_questions,
)
from adapter_bert.tasks.task import Head, Task
from adapter_bert.tasks.text_task import SPANS, HeadShape, HiddenLayers

# Right answers of one question; empty if it cannot be answered.
Answers = Sequence[str]
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-cases and drops punctuation, articles and superfluous spaces.

    Source: the official scorers of SQuAD 1.1 and 2.0.
    """
    text = text.lower().translate(PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_and_f1(
    answer: str, prediction: str, both_empty: float = 0.0
) -> tuple[float, float]:
    """Scores exact match and F1 of shared words, 0 to 1.

    `both_empty` is F1 where neither text has words.
    """
    answer, prediction = normalize_answer(answer), normalize_answer(prediction)
    exact = float(answer == prediction)
    right = collections.Counter(answer.split())
    predicted = collections.Counter(prediction.split())
    if not right and not predicted:
        return exact, both_empty
    shared = sum((right & predicted).values())
    if not shared:
        return exact, 0.0
    precision = shared / sum(predicted.values())
    recall = shared / sum(right.values())
    return exact, 2 * precision * recall / (precision + recall)


def squad_1_scores(
    answers: Sequence[Answers], predictions: Sequence[str]
) -> dict[str, float]:
    """Scores by SQuAD 1.1's rules, in percent, each by the best answer.

    Source: Rajpurkar et al. 2016, the official `evaluate-v1.1.py`.
    """
    best = list(map(_best, answers, predictions))
    exact, f1 = 100.0 * sum(best) / len(best)
    return {"exact_match": float(exact), "f1": float(f1)}


def _best(
    answers: Answers, prediction: str, both_empty: float = 0.0
) -> np.ndarray:
    scores = [exact_and_f1(text, prediction, both_empty) for text in answers]
    return np.max(scores, axis=0)


def squad_2_scores(
    answers: Sequence[Answers],
    predictions: Sequence[str],
    null_odds: np.ndarray,
) -> dict[str, float]:
    """Scores by SQuAD 2.0's rules, in percent; `null_odds` are float64 [N].

    `exact`, `f1` and `total`; the same of answerable (`HasAns_`) and of other
    questions (`NoAns_`), where there are any; `best_exact` and `best_f1`, the
    scores if predictions with null odds above `best_exact_thresh` or
    `best_f1_thresh` were "no answer".

    Source: Rajpurkar et al. 2018, the official `evaluate-v2.0.py`.
    """
    has_answer = np.array([bool(texts) for texts in answers])
    # An answer of nothing but articles and punctuation is no text to match.
    of_questions = np.array(
        [
            _best(list(filter(normalize_answer, texts)) or [""], text, 1.0)
            for texts, text in zip(answers, predictions)
        ]
    )
    scores: dict[str, float] = {}
    for prefix, chosen in (
        ("", np.ones(len(of_questions), bool)),
        ("HasAns_", has_answer),
        ("NoAns_", ~has_answer),
    ):
        if chosen.any():
            count = int(chosen.sum())
            exact, f1 = 100.0 * sum(of_questions[chosen]) / count
            scores[f"{prefix}exact"] = float(exact)
            scores[f"{prefix}f1"] = float(f1)
            scores[f"{prefix}total"] = count
    refused = np.array([not text for text in predictions])
    order = np.argsort(null_odds, kind="stable")
    thresholds = np.append(0.0, null_odds[order])
    for name, values in zip(("exact", "f1"), of_questions.T):
        # By how much a question's being answered changes the sum.
        gains = np.where(has_answer, values, np.where(refused, 0.0, -1.0))
        sums = np.cumsum(np.append((~has_answer).sum(), gains[order]))
        at = sums.argmax()
        scores[f"best_{name}"] = float(100.0 * sums[at] / len(values))
        scores[f"best_{name}_thresh"] = float(thresholds[at])
    return scores


# Null odds where no answer competes with "no answer": the value with which the
# published code begins its search.
CERTAINLY_NONE = 1000000.0
# The span of "no answer".
NOWHERE = (0, 0)


class NBest(NamedTuple):
    """Possible answers of a question, the likeliest first."""

    # `""` for no answer.
    texts: tuple[str, ...]
    # float64 [n, 2], of start and end.
    logits: np.ndarray
    # First character in the context, and one past the last; or `NOWHERE`.
    spans: tuple[tuple[int, int], ...]

    def probabilities(self) -> np.ndarray:
        """float64 [n], the softmax over the sums of both logits."""
        scores = self.logits.sum(axis=1)
        odds = np.exp(scores - scores.max())
        return odds / odds.sum()


class Prediction(NamedTuple):
    """An answer, `""` for none.

    `null_odds` are the score of "no answer" less the best answer's.
    """

    text: str
    null_odds: float
    candidates: NBest


def _pairs(
    windows: ContextWindows,
    rows: slice,
    outputs: Mapping[str, np.ndarray],
    max_answer_length: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Lists every possible pair of a start and an end.

    Gives first and last token by number in the context, int [n, 2], and float64
    logits [n, 2].
    """
    first, shown_from = windows.first[rows], windows.context_first[rows]
    tokens = windows.starts[1:][rows] - windows.starts[:-1][rows]
    # Without the [SEP] at the end.
    length = tokens - first - 1
    starts, ends = (
        outputs[f"{side}_indexes"][rows] - first[:, np.newaxis]
        for side in ("start", "end")
    )
    distance = ends[:, np.newaxis, :] - starts[:, :, np.newaxis]
    row, start, end = np.nonzero(
        (starts >= 0)[:, :, np.newaxis]
        & (ends < length[:, np.newaxis])[:, np.newaxis, :]
        & (distance >= 0)
        & (distance < max_answer_length)
    )
    pairs = np.stack([starts[row, start], ends[row, end]], axis=1)
    pairs += shown_from[row, np.newaxis]
    of_starts = outputs["start_logits"][rows][row, start]
    of_ends = outputs["end_logits"][rows][row, end]
    logits = np.stack([of_starts, of_ends], axis=1)
    counts = _most_context(shown_from, length)[pairs[:, 0]] == row
    return pairs[counts], logits[counts].astype(np.float64)


def _most_context(first: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Finds the window that shows most around each token, int64 [tokens].

    `first` and `length`, int [n], are each window's part of the context.
    Source: google-research/bert, `run_squad.py`, `_check_is_max_context`.
    """
    best = np.full((first + length).max(), -np.inf)
    window = np.zeros(len(best), np.int64)
    for number, (start, count) in enumerate(zip(first, length)):
        places = np.arange(count)
        score = np.minimum(places, places[::-1]) + 0.01 * count
        here = slice(start, start + count)
        more = score > best[here]
        best[here][more] = score[more]
        window[here][more] = number
    return window


# A logit below any real one.
NEVER = -1e30
# Limit of `n_best_size`: pairs of so many starts and ends are compared.
MOST_CANDIDATES = 1000
# Units of a training's steps.
COUNTS = ("questions", "windows")


class SpanHead(Head):
    """A start and an end logit for every token.

    Parameters: 2 D + 2, and those of `HiddenLayers`. Source:
    google-research/bert, `run_squad.py`, `create_model`. There, but not here,
    padding competes with the tokens, so that results depend on its length.
    """

    needs_pooler = False

    def __init__(
        self,
        n_best_size: int,
        config: encoder.BertConfig,
        create: encoder.CreateVariable,
        shape: HeadShape = SPANS,
    ):
        """Creates `cls/squad/output_weights` [2, D] and `_bias` [2]."""
        self.n_best_size = n_best_size
        scope = "cls/squad/"
        self.hidden = HiddenLayers(shape, scope, config.hidden_size, create)
        self.create_last(2, config, create, scope)

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> `start_logits`, `end_logits`, float32 [B, T]."""
        read = self.hidden(sequence_output, context)
        logits = tf.einsum("btd,cd->cbt", read, self.weights)
        logits += self.bias[:, tf.newaxis, tf.newaxis]
        logits = tf.where(context.input_mask > 0, logits, NEVER)
        return {"start_logits": logits[0], "end_logits": logits[1]}

    def select(self, predictions):
        logits = [predictions[f"{side}_logits"] for side in ("start", "end")]
        return best_logits(tf.stack(logits), self.n_best_size)

    def loss(self, predictions, features):
        """Mean of both cross entropies in nats, float32 [B]."""
        losses = [
            functional.cross_entropy(
                predictions[f"{side}_logits"], features[f"{side}_positions"]
            )
            for side in ("start", "end")
        ]
        return (losses[0] + losses[1]) / 2.0


def best_logits(logits: tf.Tensor, n: int) -> dict[str, tf.Tensor]:
    """Finds the n greatest of float32 [2, B, T], starts' and ends' logits.

    Returns `start_logits` and `end_logits`, float32 [B, n]; their places
    `start_indexes` and `end_indexes`, int32 [B, n]; `null_logits`, float32 [B,
    2], start and end logit of the first token.
    """
    filled = tf.pad(logits, [[0, 0], [0, 0], [0, n]], constant_values=NEVER)
    values, indexes = tf.math.top_k(filled, n)
    return {
        "start_logits": values[0],
        "start_indexes": indexes[0],
        "end_logits": values[1],
        "end_indexes": indexes[1],
        "null_logits": tf.transpose(logits[:, :, 0]),
    }


@dataclasses.dataclass(frozen=True)
class Squad(Task[Sequence[SquadQuestion]]):
    """Question answering, and its flags in `commands/run_squad.py`.

    Recorded settings have their defaults in adapters that do not say.
    """

    name: str = "squad"
    train_file: str = Topic.DATA.setting(
        "", "Questions to train on, as train-v1.1.json."
    )
    predict_file: str = Topic.DATA.setting(
        "", "Questions to answer, as dev-v1.1.json."
    )
    doc_stride: int = Topic.DATA.setting(
        128,
        "Tokens from the start of a window to the next one's.",
        POSITIVE,
        recorded=True,
    )
    max_query_length: int = Topic.DATA.setting(
        64,
        "Longest question in tokens; the rest is cut off.",
        POSITIVE,
        recorded=True,
    )
    n_best_size: int = Topic.EVALUATION.setting(
        20,
        "Answers of a question in nbest_predictions.json.",
        POSITIVE,
        recorded=True,
    )
    max_answer_length: int = Topic.EVALUATION.setting(
        30, "Longest answer in tokens.", POSITIVE, recorded=True
    )
    version_2_with_negative: bool = Topic.DATA.setting(
        False, "Questions may have no answer, as in SQuAD 2.0.", recorded=True
    )
    null_score_diff_threshold: float = Topic.EVALUATION.setting(
        0.0,
        "SQuAD 2.0: a question whose value in null_odds.json is above this "
        "gets no answer.",
        # JSON holds no other.
        Range(math.isfinite, "expected a finite number"),
        recorded=True,
    )
    count_steps_in: str = Topic.TRAINING.setting(
        COUNTS[0],
        "Unit of an epoch's steps: questions, as published, or windows; a "
        "long context has several.",
        choices=COUNTS,
    )
    verbose_logging: bool = Topic.DATA.setting(
        False, "Log every question that is left out."
    )
    head: HeadShape = SPANS

    kind = kinds.KINDS[kinds.QUESTIONS]
    test_is_dev = True
    cut_at = "max_query_length"
    columns = ("question", "context")

    @classmethod
    def from_settings(cls, recorded, settings, source):
        task = cls(**recorded(cls))
        if task.n_best_size > MOST_CANDIDATES:
            raise UserError(
                f"{source}: task_settings.n_best_size is {task.n_best_size}, "
                f"expected at most {MOST_CANDIDATES}"
            )
        return task

    def describe(self):
        return self.head.describe(SPANS)

    def restore(self, description, source):
        self.check_name(description, source)
        head = HeadShape.restore(description, source, SPANS)
        return dataclasses.replace(self, head=head)

    def first(self, rows, count):
        return rows[:count]

    def read(self, data_dir, splits):
        """Reads `train_file` and `predict_file`.

        Training leaves out questions whose first answer is not at its place in
        the context, as google-research/bert does, and warns of them and of
        answers a little off their place. Only `test` may lack answers.
        """
        return self, {split: self._read(data_dir, split) for split in splits}

    def _read(self, data_dir: str, split: str) -> list[SquadQuestion]:
        flag = "train_file" if split == "train" else "predict_file"
        path = getattr(self, flag)
        if not path:
            raise UserError(f"--{flag} is missing: a file in SQuAD's layout")
        if isinstance(path, str):
            path = os.path.join(data_dir, path)
        negative = self.version_2_with_negative
        questions = read_questions(path, negative)
        if split != "test":
            check_answers(questions, path, negative)
        if split == "train":
            questions = self._leave_out(questions, path)
        return questions

    def _leave_out(
        self, questions: list[SquadQuestion], path: str
    ) -> list[SquadQuestion]:
        places = {q.id: find_answer(q) for q in questions if q.answers}
        lost = sorted(name for name, place in places.items() if not place)
        if lost:
            is_short = len(lost) <= 5 or self.verbose_logging
            shown = lost if is_short else [*lost[:5], "..."]
            logging.warning(
                "%s: %d of %d questions left out, whose answer is not at its "
                "place in the context: %s",
                path,
                len(lost),
                len(questions),
                ", ".join(shown),
            )
        moved = sum(
            not q.context.startswith(q.answers[0].text, q.answers[0].start)
            for q in questions
            if places.get(q.id)
        )
        if moved:
            logging.warning(
                "%s: %d of %d answers are not exactly at their place in the "
                "context; the same words nearest to it are learned",
                path,
                moved,
                len(questions),
            )
        if len(lost) == len(questions):
            raise UserError(f"{path} holds nothing to learn from")
        return [q for q in questions if places.get(q.id, True)]

    @property
    def score_names(self):
        exact = "exact" if self.version_2_with_negative else "exact_match"
        return exact, "f1"

    @property
    def least_length(self):
        return self.max_query_length + 4

    @property
    def settings(self):
        return recorded(self)

    @property
    def head_kind(self):
        return type(self), self.n_best_size, self.head

    @property
    def reading(self):
        return "windows", self.doc_stride, self.max_query_length

    def make_rows(self, texts):
        return [
            SquadQuestion(str(number), question, context, None)
            for number, (question, context) in enumerate(texts)
        ]

    def featurize(self, rows, tokenizer: TextTokenizer, max_seq_length):
        return cut_windows(
            rows,
            tokenizer,
            max_seq_length,
            self.doc_stride,
            self.max_query_length,
        )

    def count_train_steps(self, features: ContextWindows, batch_size, epochs):
        """Counts steps by questions or by windows.

        google-research/bert draws windows but counts an epoch in questions:
        less than one pass where contexts are long.
        """
        of_windows = super().count_train_steps(features, batch_size, epochs)
        questions = len(features.context_starts)
        steps = [
            input_pipeline.count_train_steps(questions, batch_size, epochs),
            of_windows,
        ]
        logging.info(
            "%g epochs are %d steps counted in questions, %d counted in "
            "windows; --count_steps_in=%s",
            epochs,
            *steps,
            self.count_steps_in,
        )
        return steps[COUNTS.index(self.count_steps_in)]

    def build_head(self, config, create):
        return SpanHead(self.n_best_size, config, create, self.head)

    def decode(self, rows, features, outputs) -> list[Prediction]:
        """Chooses an answer to every question.

        Source: google-research/bert, `run_squad.py`, `write_predictions`. That
        code fails, or answers "empty", where no candidate is left; here the
        answer is "no answer". Here tokens' offsets give an answer's text. That
        code searches for the text, and takes whole words where it finds none:
        at an unknown word, or a character that vanishes in tokenization.
        """
        bounds = np.searchsorted(features.question, np.arange(len(rows) + 1))
        progress = Progress(
            "answers", len(rows), "questions", shown_from=SHOWN_FROM
        )
        predictions = []
        for number, question in enumerate(rows):
            windows = slice(bounds[number], bounds[number + 1])
            place = question.context, features.context_starts[number]
            predictions.append(
                self._predict(*place, features, windows, outputs)
            )
            progress.update(1)
        progress.close()
        return predictions

    def _predict(
        self,
        context: str,
        context_start: int,
        windows: ContextWindows,
        rows: slice,
        outputs: Mapping[str, np.ndarray],
    ) -> Prediction:
        if rows.start == rows.stop:
            # A context without tokens has no windows.
            none = NBest(("",), np.zeros((1, 2)), (NOWHERE,))
            return Prediction("", CERTAINLY_NONE, none)
        null = outputs["null_logits"][rows].astype(np.float64)
        # Of the window where the sum is least.
        null = null[null.sum(axis=1).argmin()]
        pairs, logits = _pairs(windows, rows, outputs, self.max_answer_length)
        first, last = (context_start + pairs).T
        spans = np.stack(
            [windows.offsets[first, 0], windows.offsets[last, 1]], axis=1
        )
        candidates = self._n_best(context, spans, logits, null)
        texts = candidates.texts
        best = next((i for i, text in enumerate(texts) if text), None)
        if best is None:
            return Prediction("", CERTAINLY_NONE, candidates)
        if not self.version_2_with_negative:
            return Prediction(texts[best], 0.0, candidates)
        start, end = candidates.logits[best]
        odds = float(null.sum() - start - end)
        refused = odds > self.null_score_diff_threshold
        return Prediction("" if refused else texts[best], odds, candidates)

    def _n_best(
        self,
        context: str,
        spans: np.ndarray,
        logits: np.ndarray,
        null: np.ndarray,
    ) -> NBest:
        """Lists the likeliest answers, each text once.

        `spans` and `logits` are [n, 2]; `null`, [2], are those of "no answer".
        """
        null_at = len(spans)
        if self.version_2_with_negative:
            spans = np.concatenate([spans, [NOWHERE]])
            logits = np.concatenate([logits, null[np.newaxis]])
        # Text -> logits and span, in order.
        best: dict[str, tuple[np.ndarray, tuple[int, int]]] = {}
        for at in np.argsort(-logits.sum(axis=1), kind="stable"):
            if len(best) == self.n_best_size:
                break
            span = tuple(spans[at].tolist())
            text = join_words(context[slice(*span)])
            # A RoBERTa's token of a space alone is no answer.
            if text or at == null_at:
                best.setdefault(text, (logits[at], span))
        if not best or self.version_2_with_negative:
            best.setdefault("", (null, NOWHERE))
        kept, places = zip(*best.values())
        return NBest(tuple(best), np.array(kept), places)

    def evaluate(self, rows, features, predictions):
        answers = [[a.text for a in q.answers] for q in rows]
        texts = [p.text for p in predictions]
        if not self.version_2_with_negative:
            return squad_1_scores(answers, texts)
        odds = np.array([p.null_odds for p in predictions])
        return squad_2_scores(answers, texts, odds)

    def answer(self, rows, predictions):
        """`answer`, its `start` and `end` in the context, `score`s.

        Without an answer these are "" and null. `score` and `null_score` are
        sums of start and end logit, or null without such a candidate.
        """
        return list(map(_answer, predictions))

    def runtime_outputs(self, outputs, rows):
        return outputs

    def write_predictions(self, output_dir, rows, predictions, suffix=""):
        ids = [question.id for question in rows]
        contents = {
            "predictions.json": (p.text for p in predictions),
            "nbest_predictions.json": map(_candidates, predictions),
        }
        if self.version_2_with_negative:
            contents["null_odds.json"] = (p.null_odds for p in predictions)
        paths = tuple(os.path.join(output_dir, name) for name in contents)
        for path, values in zip(paths, contents.values()):
            files.write_parts(path, _json_object(zip(ids, values)))
        return paths


def _answer(prediction: Prediction) -> dict[str, Any]:
    texts, logits, spans = prediction.candidates
    scores = dict(zip(texts, logits.sum(axis=1).tolist()))
    start = end = None
    if prediction.text:
        start, end = spans[texts.index(prediction.text)]
    return {
        "answer": prediction.text,
        "start": start,
        "end": end,
        "score": scores.get(next(filter(None, texts), None)),
        "null_score": scores.get(""),
    }


def _candidates(prediction: Prediction) -> list[dict[str, Any]]:
    texts, logits, _ = prediction.candidates
    shares = prediction.candidates.probabilities().tolist()
    names = "text", "probability", "start_logit", "end_logit"
    return [
        dict(zip(names, (text, share, *pair)))
        for text, share, pair in zip(texts, shares, logits.tolist())
    ]


def _json_object(items: Iterator[tuple[str, Any]]) -> Iterator[bytes]:
    yield b"{"
    separator = "\n"
    for key, value in items:
        text = json.dumps(value, indent=1, allow_nan=False)
        yield f"{separator}{json.dumps(key)}: {text}".encode()
        separator = ",\n"
    yield b"\n}\n"
