"""Question answering on files in SQuAD's layout, versions 1.1 and 2.0.

In here: the head, the choice of answers from its outputs (n-best lists and null
odds), the scores by the official rules, and the task. `squad_data.py` reads
questions and cuts windows.
"""

import collections
import dataclasses
import json
import os
import re
import string
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
)

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.data import input_pipeline
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError
from adapter_bert.progress import Progress
from adapter_bert.tasks.squad_data import (
    Question,
    Windows,
    check_answers,
    cut_windows,
    find_answer,
    join_words,
    read_questions,
)
from adapter_bert.tasks.task import Head, Task
from adapter_bert.tasks.text_task import SPANS, HeadShape, HiddenLayers

# Right answers of one question; none where it cannot be answered.
Answers = Sequence[str]
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-cases and drops punctuation, articles and superfluous spaces.

    Source: the official scorers of SQuAD 1.1 and 2.0.
    """
    text = text.lower().translate(PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(answer: str, prediction: str) -> float:
    """1 if both are equal after normalization, else 0."""
    return float(normalize_answer(answer) == normalize_answer(prediction))


def words_f1(answer: str, prediction: str) -> float:
    """F1 of the words that both share, 0 to 1; 0 where they share none."""
    right, found = (
        collections.Counter(normalize_answer(text).split())
        for text in (answer, prediction)
    )
    shared = sum((right & found).values())
    if not shared:
        return 0.0
    precision = shared / sum(found.values())
    recall = shared / sum(right.values())
    return 2 * precision * recall / (precision + recall)


def squad_1_scores(
    answers: Sequence[Answers], predictions: Sequence[str]
) -> Dict[str, float]:
    """Scores of SQuAD 1.1, in percent: `exact_match` and `f1`.

    Args:
        answers: at least one right answer for each question; the best counts.
        predictions: one for each question.

    Source: Rajpurkar et al. 2016, the official `evaluate-v1.1.py`.
    """
    exact, f1s = _best_scores(answers, predictions)
    return {
        "exact_match": 100.0 * sum(exact) / len(exact),
        "f1": 100.0 * sum(f1s) / len(f1s),
    }


def squad_2_scores(
    answers: Sequence[Answers],
    predictions: Sequence[str],
    null_odds: np.ndarray,
) -> Dict[str, float]:
    """Scores of SQuAD 2.0, in percent.

    Args:
        answers: the right answers of each question; none where it cannot be
            answered.
        predictions: one for each question, `""` for "no answer".
        null_odds: float64 [N], how much "no answer" is preferred.

    Returns:
        `exact`, `f1` and `total`; the same of answerable (`HasAns_`) and of
        other questions (`NoAns_`), where there are any; `best_exact` and
        `best_f1`, what `predictions` would score if those with null odds above
        `best_exact_thresh` or `best_f1_thresh` were "no answer".

    Source: Rajpurkar et al. 2018, the official `evaluate-v2.0.py`.
    """
    has_answer = np.array([bool(texts) for texts in answers])
    # An answer of nothing but articles and punctuation is no text to match.
    answers = [[a for a in texts if normalize_answer(a)] for texts in answers]
    exact, f1s = _best_scores(
        [texts or [""] for texts in answers], predictions, both_empty=1.0
    )
    exact, f1s = np.array(exact), np.array(f1s)
    scores: Dict[str, float] = {}
    for prefix, chosen in (
        ("", np.ones(len(exact), bool)),
        ("HasAns_", has_answer),
        ("NoAns_", ~has_answer),
    ):
        if chosen.any():
            count = int(chosen.sum())
            scores[f"{prefix}exact"] = 100.0 * sum(exact[chosen]) / count
            scores[f"{prefix}f1"] = 100.0 * sum(f1s[chosen]) / count
            scores[f"{prefix}total"] = count
    refused = np.array([not text for text in predictions])
    for name, values in (("exact", exact), ("f1", f1s)):
        # By how much a question's being answered changes the sum.
        gains = np.where(has_answer, values, np.where(refused, 0.0, -1.0))
        best, threshold = _best_threshold(
            gains, null_odds, int((~has_answer).sum())
        )
        scores[f"best_{name}"] = 100.0 * best / len(values)
        scores[f"best_{name}_thresh"] = threshold
    return scores


def _best_threshold(
    gains: np.ndarray, null_odds: np.ndarray, unanswered: int
) -> Tuple[float, float]:
    """The best sum of scores over all thresholds, and the least such one."""
    best, threshold, score = float(unanswered), 0.0, float(unanswered)
    for i in np.argsort(null_odds, kind="stable"):
        score += float(gains[i])
        if score > best:
            best, threshold = score, float(null_odds[i])
    return best, threshold


def _best_scores(
    answers: Sequence[Answers],
    predictions: Sequence[str],
    both_empty: float = 0.0,
) -> Tuple[List[float], List[float]]:
    """Exact match and F1 of each question, the best over its answers.

    `both_empty` is F1 where neither an answer nor the prediction has words.
    """

    def f1_score(answer: str, prediction: str) -> float:
        if not (normalize_answer(answer) or normalize_answer(prediction)):
            return both_empty
        return words_f1(answer, prediction)

    exact, f1s = [], []
    for texts, prediction in zip(answers, predictions):
        exact.append(max(exact_match(text, prediction) for text in texts))
        f1s.append(max(f1_score(text, prediction) for text in texts))
    return exact, f1s


# Null odds where there is nothing to weigh against "no answer": the value
# with which the published code begins its search.
CERTAINLY_NONE = 1000000.0
# Fewer questions are answered within a second or two.
SHOWN_FROM = 2000
# The place of "no answer".
NOWHERE = (0, 0)


class Candidates(NamedTuple):
    """Possible answers of a question, the likeliest first.

    Attributes:
        texts: the answers; `""` for none.
        logits: float64 [n, 2], of start and end.
        spans: of each the first character in the context and the first one
            after it; `NOWHERE` for none.
    """

    texts: Tuple[str, ...]
    logits: np.ndarray
    spans: Tuple[Tuple[int, int], ...]

    def probabilities(self) -> np.ndarray:
        """float64 [n], the softmax over the sums of both logits."""
        scores = self.logits.sum(axis=1)
        odds = np.exp(scores - scores.max())
        return odds / odds.sum()


class Prediction(NamedTuple):
    """What is answered to a question.

    Attributes:
        text: the answer; `""` for none.
        null_odds: score of "no answer" less that of the best answer.
        candidates: the n-best list.
    """

    text: str
    null_odds: float
    candidates: Candidates


def predict_answers(
    questions: Sequence[Question],
    windows: Windows,
    outputs: Mapping[str, np.ndarray],
    rules: "Squad",
) -> List[Prediction]:
    """Chooses an answer to every question.

    Args:
        questions: as they were cut into `windows`.
        windows: with their texts' places.
        outputs: of `SpanHead`, for each window.
        rules: the task, which says how to choose.

    Returns:
        One prediction for each question.

    Source: google-research/bert, `run_squad.py`, `write_predictions`. It
    differs where that code fails: a question to which only "no answer" is left
    gets it (there: a crash), and so does one without candidates under SQuAD
    1.1 (there: the word "empty"). The text of an answer is cut out by its
    tokens' offsets. That code searches for the text, and widens an answer to
    whole words where the search fails: at an unknown word, or a character that
    vanishes in tokenization.
    """
    bounds = np.searchsorted(windows.question, np.arange(len(questions) + 1))
    progress = None
    if len(questions) >= SHOWN_FROM:
        progress = Progress("answers", len(questions), "questions")
    predictions = []
    for question, first, last, start in zip(
        questions, bounds, bounds[1:], windows.context_starts
    ):
        rows = slice(first, last)
        predictions.append(
            _predict_one(question, windows, rows, start, outputs, rules)
        )
        if progress:
            progress.update(1)
    if progress:
        progress.close()
    return predictions


def _predict_one(
    question: Question,
    windows: Windows,
    rows: slice,
    context_start: int,
    outputs: Mapping[str, np.ndarray],
    rules: "Squad",
) -> Prediction:
    """Chooses the answer to one question.

    Its windows are `rows` of all, its context's first token `context_start`.
    Other arguments are those of `predict_answers`.
    """
    if rows.start == rows.stop:
        # A context without tokens has no windows.
        return Prediction(
            "", CERTAINLY_NONE, Candidates(("",), np.zeros((1, 2)), (NOWHERE,))
        )
    # Of the window where their sum is least.
    null = outputs["null_logits"][rows].astype(np.float64)
    null = null[null.sum(axis=1).argmin()]
    pairs, logits = _pairs(windows, rows, outputs, rules.max_answer_length)

    def text_and_span(pair: np.ndarray) -> Tuple[str, Tuple[int, int]]:
        first, last = context_start + pair
        span = int(windows.offsets[first, 0]), int(windows.offsets[last, 1])
        return join_words(question.context[slice(*span)]), span

    candidates = _n_best(pairs, logits, null, text_and_span, rules)
    texts = candidates.texts
    if not rules.version_2_with_negative:
        return Prediction(texts[0], 0.0, candidates)
    best = next((i for i, text in enumerate(texts) if text), None)
    if best is None:
        return Prediction("", CERTAINLY_NONE, candidates)
    start, end = candidates.logits[best]
    odds = float(null.sum() - start - end)
    refused = odds > rules.null_score_diff_threshold
    return Prediction("" if refused else texts[best], odds, candidates)


def _n_best(
    pairs: np.ndarray,
    logits: np.ndarray,
    null: np.ndarray,
    text_and_span: Callable[[np.ndarray], Tuple[str, Tuple[int, int]]],
    rules: "Squad",
) -> Candidates:
    """The likeliest answers, each text once.

    Args:
        pairs: int [n, 2], as of `_pairs`.
        logits: float64 [n, 2], of these.
        null: float64 [2], the logits of "no answer".
        text_and_span: (int [2]) -> a pair's text and its place.
        rules: as of `predict_answers`.
    """
    null_at = len(pairs)
    if rules.version_2_with_negative:
        logits = np.concatenate([logits, null[np.newaxis]])
    # Text -> logits and place, in order.
    found: Dict[str, Tuple[np.ndarray, Tuple[int, int]]] = {}
    for at in np.argsort(-logits.sum(axis=1), kind="stable"):
        if len(found) == rules.n_best_size:
            break
        text, span = "", NOWHERE
        if at != null_at:
            text, span = text_and_span(pairs[at])
            # A RoBERTa's token of a space alone is no answer.
            if not text:
                continue
        found.setdefault(text, (logits[at], span))
    if not found or rules.version_2_with_negative:
        found.setdefault("", (null, NOWHERE))
    kept, spans = zip(*found.values())
    return Candidates(tuple(found), np.array(kept), spans)


def _pairs(
    windows: Windows,
    rows: slice,
    outputs: Mapping[str, np.ndarray],
    max_answer_length: int,
) -> Tuple[np.ndarray, np.ndarray]:
    """Every possible pair of a start and an end, by windows, starts, ends.

    Returns:
        int [n, 2], first and last token by number in the context;
        float64 [n, 2], their logits.
    """
    first = windows.first[rows, np.newaxis]
    context_first = windows.context_first[rows, np.newaxis]
    tokens = windows.starts[1:][rows] - windows.starts[:-1][rows]
    # Without the [SEP] at the end.
    length = tokens[:, np.newaxis] - first - 1
    starts = outputs["start_indexes"][rows] - first
    ends = outputs["end_indexes"][rows] - first
    starts_fit = (starts >= 0) & (starts < length)
    ends_fit = (ends >= 0) & (ends < length)
    starts_fit &= _has_most_context(starts, context_first, length)
    distance = ends[:, np.newaxis, :] - starts[:, :, np.newaxis]
    row, start, end = np.nonzero(
        starts_fit[:, :, np.newaxis]
        & ends_fit[:, np.newaxis, :]
        & (distance >= 0)
        & (distance < max_answer_length)
    )
    pairs = np.stack([starts[row, start], ends[row, end]], axis=1)
    logits = np.stack(
        [
            outputs["start_logits"][rows][row, start],
            outputs["end_logits"][rows][row, end],
        ],
        axis=1,
    )
    return pairs + context_first[row], logits.astype(np.float64)


def _has_most_context(
    places: np.ndarray, context_first: np.ndarray, length: np.ndarray
) -> np.ndarray:
    """Whether no other window shows a token with more text around it.

    Args:
        places: int [n, k], tokens by number in the part of the context.
        context_first: int [n, 1], first token of each window's part.
        length: int [n, 1], tokens of each window's part.

    Returns:
        bool [n, k].
    """
    tokens = places + context_first
    own = np.minimum(places, length - 1 - places) + 0.01 * length
    most = np.ones(places.shape, bool)
    # Windows lie in order, so those that share a token are neighbours.
    for distance in range(1, len(places)):
        near = False
        for here, there, ties in (
            (slice(distance, None), slice(None, -distance), False),
            (slice(None, -distance), slice(distance, None), True),
        ):
            place = tokens[here] - context_first[there]
            least = np.minimum(place, length[there] - 1 - place)
            score = least + 0.01 * length[there]
            less = (score < own[here]) | (ties & (score == own[here]))
            most[here] &= less | (least < 0)
            near |= (least >= 0).any()
        if not near:
            break
    return most


# A logit that no real one comes near to.
NEVER = -1e30
# Most that `n_best_size` can be: pairs of so many starts and ends are compared.
MOST_CANDIDATES = 1000
# What `Squad.settings` holds.
SETTINGS = (
    "doc_stride",
    "max_query_length",
    "n_best_size",
    "max_answer_length",
    "version_2_with_negative",
    "null_score_diff_threshold",
)
# What training steps may be counted in.
COUNTS = ("questions", "windows")


class SpanHead(Head):
    """A start and an end logit for every token.

    Parameters: 2 D + 2, and those of `HiddenLayers`. Source:
    google-research/bert, `run_squad.py`, `create_model`. There padding
    competes with the tokens, so that results depend on the length that windows
    are padded to; here it does not.
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
        self.hidden = HiddenLayers(
            shape, "cls/squad/", config.hidden_size, create
        )
        self.create_last(2, config, create, "cls/squad/")

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> `start_logits`, `end_logits`, float32 [B, T]."""
        read = self.hidden(sequence_output, context)
        logits = tf.einsum("btd,cd->cbt", read, self.weights)
        logits += self.bias[:, tf.newaxis, tf.newaxis]
        logits = tf.where(context.input_mask > 0, logits, NEVER)
        return {"start_logits": logits[0], "end_logits": logits[1]}

    def select(self, predictions):
        """The best n, as `best_logits` gives them."""
        logits = [predictions[f"{side}_logits"] for side in ("start", "end")]
        return best_logits(tf.stack(logits), self.n_best_size)

    def loss(self, predictions, features):
        """Mean of both cross entropies in nats, float32 [B]."""
        losses = [
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=features[f"{side}_positions"],
                logits=predictions[f"{side}_logits"],
            )
            for side in ("start", "end")
        ]
        return (losses[0] + losses[1]) / 2.0


def best_logits(logits: tf.Tensor, n: int) -> Dict[str, tf.Tensor]:
    """The n greatest start and end logits of each window, and the first ones.

    Args:
        logits: float32 [2, B, T], of starts and ends.
        n: how many to keep; a window of fewer tokens is filled up.

    Returns:
        The greatest, `start_logits` and `end_logits`, float32 [B, n]; their
        places `start_indexes` and `end_indexes`, int32 [B, n]; `null_logits`,
        float32 [B, 2], the start and end logit of the first token.
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
class Squad(Task[Sequence[Question]]):
    """Question answering; each field but `head` is as its flag says.

    Attributes:
        n_best_size: candidates that are kept; "no answer" is added to them
            where it is not among them.
        max_answer_length: in tokens.
        version_2_with_negative: whether "no answer" is an answer.
        null_score_diff_threshold: null odds above which it is given.
    """

    train_file: str = ""
    predict_file: str = ""
    # As in `run_squad.py`; those of adapters that do not say.
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    count_steps_in: str = COUNTS[0]
    head: HeadShape = SPANS
    verbose_logging: bool = False

    test_is_dev = True
    cut_at = "max_query_length"
    columns = ("question", "context")

    def describe(self):
        """The head, unless it is as usual."""
        return {} if self.head == SPANS else self.head.describe()

    def restore(self, description, source):
        """This task, if the trained head is one of question answering."""
        self.check_name(description, source)
        if "head" not in description:
            return self
        head = HeadShape.restore(description, source)
        return dataclasses.replace(self, head=head)

    def read(self, data_dir, splits):
        """Reads `train_file` and `predict_file`.

        Of the training file, questions are left out, with a warning, whose
        first answer is not at its place in the context, as in
        google-research/bert. Answers a little off their place are counted in
        a warning. The split `dev` must have answers, `test` need not.
        """
        return self, {split: self._read(data_dir, split) for split in splits}

    def _read(self, data_dir: str, split: str) -> List[Question]:
        training = split == "train"
        path = self.train_file if training else self.predict_file
        if not path:
            raise UserError(
                f"--{'train' if training else 'predict'}_file is missing: a "
                "file in SQuAD's layout"
            )
        path = os.path.join(data_dir, path)
        negative = self.version_2_with_negative
        questions = read_questions(path, negative)
        if split != "test":
            check_answers(questions, path, negative)
        return self._leave_out(questions, path) if training else questions

    def _leave_out(self, questions: List[Question], path: str):
        found = {q.id: find_answer(q) for q in questions if q.answers}
        lost = {name for name, place in found.items() if not place}
        if lost:
            shown = sorted(lost) if self.verbose_logging else sorted(lost)[:5]
            logging.warning(
                "%s: %d of %d questions left out, whose answer is not at its "
                "place in the context: %s%s",
                path,
                len(lost),
                len(questions),
                ", ".join(shown),
                "" if len(shown) == len(lost) else ", ...",
            )
        moved = sum(
            not q.context.startswith(q.answers[0].text, q.answers[0].start)
            for q in questions
            if found.get(q.id)
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
        return [q for q in questions if q.id not in lost]

    @property
    def score_names(self):
        """Exact match and F1, as the official rules call them."""
        exact = "exact" if self.version_2_with_negative else "exact_match"
        return exact, "f1"

    @property
    def least_length(self):
        """The longest question, `[CLS]`, two `[SEP]`, a token of a context."""
        return self.max_query_length + 4

    @property
    def settings(self):
        """How windows are cut and answers chosen."""
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def head_kind(self):
        """How many logits it keeps, and its layers."""
        return type(self), self.n_best_size, self.head

    @property
    def reading(self):
        """How windows are cut."""
        return "windows", self.doc_stride, self.max_query_length

    def make_rows(self, texts):
        """Questions without answers."""
        return [
            Question(str(number), question, context, None)
            for number, (question, context) in enumerate(texts)
        ]

    def featurize(self, rows, tokenizer: TextTokenizer, max_seq_length):
        """Windows of `[CLS] question [SEP] part of the context [SEP]`."""
        return cut_windows(
            rows,
            tokenizer,
            max_seq_length,
            self.doc_stride,
            self.max_query_length,
        )

    def count_train_steps(self, features: Windows, batch_size, epochs):
        """Steps of a training, counted in questions or in windows.

        google-research/bert draws windows but counts an epoch as so many
        steps as there are batches of questions, rounded down: less than one
        pass where contexts are long.
        """
        if not len(features):
            raise UserError(f"{self.train_file} holds nothing to learn from")
        windows = super().count_train_steps(features, batch_size, epochs)
        questions = input_pipeline.count_train_steps(
            len(features.context_starts), batch_size, epochs
        )
        steps = dict(zip(COUNTS, (questions, windows)))
        logging.info(
            "%g epochs are %d steps counted in questions, %d counted in "
            "windows; --count_steps_in=%s",
            epochs,
            questions,
            windows,
            self.count_steps_in,
        )
        return steps[self.count_steps_in]

    def build_head(self, config, create):
        """Start and end logits."""
        return SpanHead(self.n_best_size, config, create, self.head)

    def decode(self, rows, features: Windows, outputs):
        """Answers to all questions."""
        return predict_answers(rows, features, outputs, self)

    def evaluate(
        self,
        rows: Sequence[Question],
        features: input_pipeline.Features,
        predictions: Sequence[Prediction],
    ) -> Dict[str, float]:
        """Exact match and F1 by the official rules, in percent."""
        answers = [[a.text for a in q.answers] for q in rows]
        texts = [p.text for p in predictions]
        if not self.version_2_with_negative:
            return squad_1_scores(answers, texts)
        odds = np.array([p.null_odds for p in predictions])
        return squad_2_scores(answers, texts, odds)

    def answer(self, rows, predictions):
        """`answer`, its `start` and `end` in the context, `score`s.

        `answer` is "" and its place null where there is none. `score` is the
        sum of the best answer's start and end logit, `null_score` that of "no
        answer"; each is null where there is no such candidate.
        """
        return list(map(_answer, predictions))

    def write_predictions(self, output_dir, rows, predictions, suffix=""):
        """Writes the files of google-research/bert.

        `predictions.json` (id to answer), `nbest_predictions.json` (id to
        candidates with probability and logits) and, for SQuAD 2.0,
        `null_odds.json` (id to null odds).
        """
        ids = [question.id for question in rows]
        contents = {
            "predictions.json": (p.text for p in predictions),
            "nbest_predictions.json": map(_candidates, predictions),
        }
        if self.version_2_with_negative:
            contents["null_odds.json"] = (p.null_odds for p in predictions)
        paths = []
        for name, values in contents.items():
            paths.append(os.path.join(output_dir, name))
            files.write_parts(paths[-1], _json_object(zip(ids, values)))
        return tuple(paths)


def _answer(prediction: Prediction) -> Dict[str, Any]:
    candidates = prediction.candidates
    scores = candidates.logits.sum(axis=1).tolist()
    found = dict(zip(candidates.texts, zip(scores, candidates.spans)))
    null_score, _ = found.pop("", (None, None))
    best = max((score for score, _ in found.values()), default=None)
    place = found[prediction.text][1] if prediction.text else (None, None)
    return {
        "answer": prediction.text,
        "start": place[0],
        "end": place[1],
        "score": best,
        "null_score": null_score,
    }


def _candidates(prediction: Prediction) -> List[Mapping[str, Any]]:
    candidates = prediction.candidates
    return [
        {
            "text": text,
            "probability": float(probability),
            "start_logit": float(start),
            "end_logit": float(end),
        }
        for text, probability, (start, end) in zip(
            candidates.texts, candidates.probabilities(), candidates.logits
        )
    ]


def _json_object(items: Iterator[Tuple[str, Any]]) -> Iterator[bytes]:
    """An object as JSON, part by part: it may be larger than memory."""
    yield b"{"
    separator = "\n"
    for key, value in items:
        text = json.dumps(value, indent=1, allow_nan=False)
        yield f"{separator}{json.dumps(key)}: {text}".encode()
        separator = ",\n"
    yield b"\n}\n"
