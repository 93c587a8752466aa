"""From the head's outputs to answers: n-best lists and null odds."""

import dataclasses
from typing import Callable, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from monitoring.progress import Progress
from tasks.squad_data import Question, join_words
from tasks.squad_windows import Windows

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


@dataclasses.dataclass(frozen=True)
class Rules:
    """How answers are chosen; see the flags of these names.

    Attributes:
        n_best_size: candidates that are kept; "no answer" is added to them
            where it is not among them.
        max_answer_length: in tokens.
        version_2_with_negative: whether "no answer" is an answer.
        null_score_diff_threshold: null odds above which it is given.
    """

    n_best_size: int
    max_answer_length: int
    version_2_with_negative: bool
    null_score_diff_threshold: float


def predict_answers(
    questions: Sequence[Question],
    windows: Windows,
    outputs: Mapping[str, np.ndarray],
    rules: Rules,
) -> List[Prediction]:
    """Chooses an answer to every question.

    Args:
        questions: as they were cut into `windows`.
        windows: with their texts' places.
        outputs: of `squad.SpanHead`, for each window.
        rules: how to choose.

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
    for number, question in enumerate(questions):
        rows = slice(bounds[number], bounds[number + 1])
        start = windows.context_starts[number]
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
    rules: Rules,
) -> Prediction:
    """Chooses the answer to one question.

    Args:
        question: to be answered.
        windows: of all questions.
        rows: which of them are this question's.
        context_start: number of its context's first token.
        outputs: for all windows.
        rules: how to choose.
    """
    if rows.start == rows.stop:
        # A context without tokens has no windows.
        return Prediction(
            "", CERTAINLY_NONE, Candidates(("",), np.zeros((1, 2)), (NOWHERE,))
        )
    null = _null_logits(outputs["null_logits"][rows].astype(np.float64))
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
    rules: Rules,
) -> Candidates:
    """The likeliest answers, each text once.

    Args:
        pairs: int [n, 2], as of `_pairs`.
        logits: float64 [n, 2], of these.
        null: float64 [2], the logits of "no answer".
        text_and_span: (int [2]) -> a pair's text and its place.
        rules: how many are kept, and whether "no answer" is one of them.
    """
    null_at = len(pairs)
    if rules.version_2_with_negative:
        logits = np.concatenate([logits, null[np.newaxis]])
    texts: List[str] = []
    kept: List[np.ndarray] = []
    spans: List[Tuple[int, int]] = []
    for at in np.argsort(-logits.sum(axis=1), kind="stable"):
        if len(texts) == rules.n_best_size:
            break
        text, span = "", NOWHERE
        if at != null_at:
            text, span = text_and_span(pairs[at])
            # A RoBERTa's token of a space alone is no answer.
            if not text or text in texts:
                continue
        texts.append(text)
        kept.append(logits[at])
        spans.append(span)
    if not texts or rules.version_2_with_negative and "" not in texts:
        texts.append("")
        kept.append(null)
        spans.append(NOWHERE)
    return Candidates(tuple(texts), np.array(kept), tuple(spans))


def _null_logits(of_windows: np.ndarray) -> np.ndarray:
    """float64 [n, 2] -> [2], those of the window where their sum is least."""
    return of_windows[of_windows.sum(axis=1).argmin()]


def _pairs(
    windows: Windows,
    rows: slice,
    outputs: Mapping[str, np.ndarray],
    max_answer_length: int,
) -> Tuple[np.ndarray, np.ndarray]:
    """Every possible pair of a start and an end.

    Returns:
        int [n, 2], first and last token by number in the context;
        float64 [n, 2], their logits. In order of windows, starts, ends.
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
