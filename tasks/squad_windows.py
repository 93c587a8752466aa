"""Cuts contexts into windows that fit the model.

A window is `[CLS] question [SEP] part of the context [SEP]`; parts overlap. A
RoBERTa has `<s>` for the first of these, two `</s>` for the second, one for the
third.
"""

import array
import dataclasses
import itertools
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from absl import logging

from input_pipeline import Features
from monitoring.progress import Progress
from tasks.squad_data import Question, find_answer
from tokenization import TextTokenizer, Tokens

# Characters that are tokenized at once: enough for all cores, bounded in
# memory.
CHUNK = 2**21


@dataclasses.dataclass(frozen=True)
class Windows(Features):
    """Features whose rows are windows, in the order of their questions.

    Attributes:
        question: int32 [rows], the question's number.
        first: int32 [rows], place in the row of the first context token.
        context_first: int32 [rows], that token's number in the context.
        context_starts: int64 [questions], where each one's context begins in
            the array of all context tokens:
        offsets: int32 [tokens, 2], first character and one past the last.
        cut_rows: how many questions are longer than `max_query_length`.
    """

    question: np.ndarray
    first: np.ndarray
    context_first: np.ndarray
    context_starts: np.ndarray
    offsets: np.ndarray
    cut_rows: int = 0


class _Context(NamedTuple):
    """A tokenized context: its text, int32 [tokens] ids, and as `Windows`."""

    text: str
    ids: np.ndarray
    offsets: np.ndarray


def cut_windows(
    questions: Sequence[Question],
    tokenizer: TextTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
) -> Windows:
    """Makes the windows of all questions.

    An empty context has none. Where every question says its answers, there
    are labels `start_positions` and `end_positions`, int32 [rows]: the places
    of the tokens that cover the first answer, or 0 and 0 where the window does
    not hold all of them. Answers that tokens exceed are counted in the log.

    Args:
        questions: with answers that `find_answer` finds, if any.
        tokenizer: of the BERT.
        max_seq_length: of a window, in tokens.
        doc_stride: distance of a context's windows, in tokens.
        max_query_length: of a question, in tokens; more is cut off.

    Source: google-research/bert, `run_squad.py`,
    `convert_examples_to_features`. That code takes the first place within the
    answer's words where the answer's tokens occur.
    """
    labelled = all(question.answers is not None for question in questions)
    tokens, lengths = array.array("i"), array.array("q")
    places: List[Tuple[int, int, int]] = []
    targets: List[Tuple[int, int]] = []
    contexts: List[_Context] = []
    context_starts = np.zeros(len(questions), np.int64)
    start = np.array([tokenizer.classify_id], np.int32)
    end = np.array([tokenizer.separate_id], np.int32)
    total = widened = lost = cut = 0
    progress = Progress("tokenize", len(questions), "questions")
    between = np.array(tokenizer.between, np.int32)
    for number, (question, query, context) in enumerate(
        _tokenize(questions, tokenizer)
    ):
        if not contexts or contexts[-1] is not context:
            total += len(contexts[-1].ids) if contexts else 0
            contexts.append(context)
        context_starts[number] = total
        query_ids = np.array(query.ids[:max_query_length], np.int32)
        cut += len(query.ids) > max_query_length
        head = np.concatenate([start, query_ids, between])
        answer = None
        if labelled and question.answers:
            answer = find_answer(question)
        span = answer and _cover(context.offsets, answer)
        lost += answer is not None and span is None
        if span:
            shown = context.offsets[list(span)]
            widened += shown[0, 0] < answer[0] or answer[1] < shown[1, 1]
        room = max_seq_length - len(head) - 1
        for first in _window_starts(len(context.ids), room, doc_stride):
            part = context.ids[first : first + room]
            tokens.frombytes(np.concatenate([head, part, end]).tobytes())
            lengths.append(len(head) + len(part) + 1)
            places.append((number, len(head), first))
            if span and first <= span[0] and span[1] < first + len(part):
                shift = len(head) - first
                targets.append((span[0] + shift, span[1] + shift))
            else:
                targets.append((0, 0))
        progress.update(1)
    progress.close()
    for count, what in (
        (widened, "start or end inside a token; it is labelled as a whole"),
        (lost, "are of no token; they are labelled as no answer"),
    ):
        if count:
            logging.info(
                "%d of %d questions have answers that %s",
                count,
                len(questions),
                what,
            )
    question_rows, firsts, context_firsts = (
        np.array(places, np.int32).reshape(-1, 3).T.copy()
    )
    # Zeros up to what is between, then BERT's ones.
    parts = np.stack([firsts, np.asarray(lengths) - firsts], axis=1).ravel()
    zero_one = np.array([0, tokenizer.second_segment], np.uint8)
    labels = {}
    if labelled:
        pairs = np.array(targets, np.int32).reshape(-1, 2)
        labels = {
            "start_positions": pairs[:, 0].copy(),
            "end_positions": pairs[:, 1].copy(),
        }
    return Windows(
        tokens=np.asarray(tokens),
        segments=np.repeat(np.tile(zero_one, len(lengths)), parts),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        labels=labels,
        question=question_rows,
        first=firsts,
        context_first=context_firsts,
        context_starts=context_starts,
        offsets=np.concatenate([c.offsets for c in contexts]),
        cut_rows=cut,
    )


def _window_starts(tokens: int, room: int, stride: int) -> Iterator[int]:
    """The first token of each window, until one reaches the end."""
    first = 0
    while first < tokens:
        yield first
        if first + room >= tokens:
            return
        first += min(room, stride)


def _tokenize(
    questions: Sequence[Question], tokenizer: TextTokenizer
) -> Iterator[Tuple[Question, Tokens, _Context]]:
    """Yields each question, its tokens, its context.

    A context that follows upon itself is tokenized once.
    """
    context: Optional[_Context] = None
    for chunk in _chunks(questions):
        texts: List[str] = []
        for question in chunk:
            if not texts or texts[-1] != question.context:
                texts.append(question.context)
        tokenized = zip(texts, tokenizer.encode(texts))
        queries = tokenizer.encode([question.text for question in chunk])
        for question, query in zip(chunk, queries):
            while context is None or context.text != question.context:
                context = _read_context(*next(tokenized))
            yield question, query, context


def _chunks(questions: Sequence[Question]) -> Iterator[List[Question]]:
    """Parts of some `CHUNK` characters, cut between contexts."""
    chunk: List[Question] = []
    size = 0
    for _, group in itertools.groupby(questions, lambda q: q.context):
        group = list(group)
        chunk += group
        size += len(group[0].context) + sum(len(q.text) for q in group)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _read_context(text: str, tokens: Tokens) -> _Context:
    ids = np.array(tokens.ids, np.int32)
    return _Context(
        text, ids, np.array(tokens.offsets, np.int32).reshape(-1, 2)
    )


def _cover(
    offsets: np.ndarray, span: Tuple[int, int]
) -> Optional[Tuple[int, int]]:
    """The first and last token of some characters, or None.

    Args:
        offsets: int32 [tokens, 2], as of `Windows`.
        span: the first character, and one past the last.
    """
    first = int(np.searchsorted(offsets[:, 1], span[0], side="right"))
    last = int(np.searchsorted(offsets[:, 0], span[1])) - 1
    return (first, last) if first <= last else None
