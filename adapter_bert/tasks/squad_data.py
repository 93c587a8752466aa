"""Reads files in SQuAD's layout, and cuts contexts into windows.

Layout: SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018). A window is `[CLS]
question [SEP] part of the context [SEP]`, of a RoBERTa `<s> question </s></s>
part </s>`. Parts overlap.
"""

import array
import contextlib
import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from adapter_bert import files
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.memory_rows import FileOrRows, MemoryRows
from adapter_bert.data.tables import Rows, ending_of, read_objects
from adapter_bert.data.tokenization import TextTokenizer, in_chunks
from adapter_bert.errors import UserError
from adapter_bert.progress import Progress

# All that Python takes for white space, which the official scorers split at.
SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))
ANSWERED = "answered"
WORD_END = re.compile(r"\s|\Z")
# Work on fewer questions takes a second or two.
SHOWN_FROM = 2000


class SquadAnswer(NamedTuple):
    """A right answer: a part of the context from the character `start`."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class SquadQuestion:
    """A question about a context."""

    # Unique within its file.
    id: str
    text: str
    # Questions of a paragraph share one object.
    context: str
    # Empty if the context holds none; None if the file does not say.
    answers: Optional[tuple[SquadAnswer, ...]]


def read_questions(
    path: FileOrRows, with_negative: bool
) -> list[SquadQuestion]:
    """Reads all questions; `with_negative` ones may have no answer.

    Rows, in memory or a line each, have `question` and `context`, and where
    known `id` and `answers`, a dictionary of the lists `text` and
    `answer_start` (in characters of the context), as in the `squad` table of
    `datasets`. Lines may be MRQA's too.
    """
    by_id: dict[str, SquadQuestion] = {}
    places: dict[str, str] = {}
    for here, paragraph in _read_paragraphs(path):
        context = _get(paragraph, "context", str, here)
        for qa in _get(paragraph, "qas", list, here):
            question = _read_question(qa, context, here, with_negative)
            if question.id in by_id:
                raise UserError(
                    f"{here}: the question id {question.id!r} occurs "
                    f"twice, before in {places[question.id]}; ids must be "
                    "unique"
                )
            places[question.id] = here.removeprefix(f"{path}: ")
            by_id[question.id] = question
    if not by_id:
        raise UserError(f"{path} holds no questions")
    return list(by_id.values())


def _read_paragraphs(path: FileOrRows) -> Iterator[tuple[str, Any]]:
    if isinstance(path, MemoryRows):
        yield from _of_rows(path, enumerate(path.records()))
        return
    head = files.head(path, "the SQuAD file")
    if ending_of(path) in (".csv", ".tsv"):
        columns = head.decode(errors="replace").splitlines()[:1]
        raise UserError(
            f"{path} is a table ({''.join(columns)[:80]}), expected SQuAD's "
            'JSON, or lines (.jsonl) as {"id": "1", "question": "...", '
            '"context": "...", "answers": {"text": ["..."], "answer_start": '
            "[0]}}"
        )
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if first.startswith(b"["):
        from adapter_bert.data import formats

        yield from _of_rows(path, enumerate(formats.array(path)))
        return
    if ending_of(path) == ".jsonl" or _is_row(first.partition(b"\n")[0]):
        lines = files.read_lines(path, "the SQuAD file", "\n")
        objects = read_objects(path, lines, lambda value, where: value)
        yield from _of_rows(path, objects)
        return
    file = files.read_json(path, "the SQuAD file")
    for number, article in enumerate(_get(file, "data", list, path)):
        place = f"{path}: data[{number}]"
        paragraphs = enumerate(_get(article, "paragraphs", list, place))
        for number, paragraph in paragraphs:
            yield f"{place}.paragraphs[{number}]", paragraph


def _is_row(line: bytes) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        row = json.loads(line)
        return isinstance(row, dict) and ("context" in row or "header" in row)
    return False


def _of_rows(
    path: FileOrRows, rows: Iterable[tuple[int, Any]]
) -> Iterator[tuple[str, Any]]:
    for number, row in rows:
        where = f"{path}:{number + 1}"
        if not isinstance(row, Mapping):
            raise UserError(
                f"{where}: found a {type(row).__name__}, expected a dictionary "
                "with 'question', 'context' and in training 'answers'"
            )
        if row.keys() == {"header"}:
            continue
        if "qas" in row:
            context = _get(row, "context", str, where)
            qas = _get(row, "qas", list, where)
            qas = [_of_mrqa(qa, context, where) for qa in qas]
            yield where, {"context": context, "qas": qas}
            continue
        question = {**row, "id": str(row.get("id", number))}
        answers = question.pop("answers", None)
        if isinstance(answers, Mapping):
            names = ("text", "answer_start")
            columns = [_get_list(answers, name, where) for name in names]
            pairs = itertools.zip_longest(*columns)
            answers = [dict(zip(names, pair)) for pair in pairs]
        if answers is not None:
            answers = _get_list({"answers": answers}, "answers", where)
            marked = question.get("is_impossible")
            question.update(
                answers=answers, is_impossible=marked or not answers
            )
        yield where, {"context": row.get("context"), "qas": [question]}


def _get_list(values: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = values.get(key) or []
    value = list(value) if isinstance(value, tuple) else value
    return _get({key: value}, key, list, where)


def _of_mrqa(qa: Any, context: str, where: str) -> Any:
    """Reads a question of MRQA, whose spans hold their last character."""
    if not isinstance(qa, Mapping) or "detected_answers" not in qa:
        return qa
    spans = [
        span
        for answer in _get(qa, "detected_answers", list, where)
        for span in _get(answer, "char_spans", list, where)
    ]
    for span in spans:
        if not isinstance(span, list) or list(map(type, span)) != [int, int]:
            raise UserError(
                f'{where}: found {str(span)[:50]} in "char_spans", expected '
                "the first and the last character, as [26, 29]"
            )
    answers = [
        {"text": context[first : last + 1], "answer_start": first}
        for first, last in spans
    ]
    question = _get(qa, "question", str, where)
    name = qa.get("qid", qa.get("id"))
    return {"id": name, "question": question, "answers": answers}


def _read_question(
    qa: Any, context: str, place: str, with_negative: bool
) -> SquadQuestion:
    if isinstance(qa, dict) and type(qa.get("id")) is int:
        qa = {**qa, "id": str(qa["id"])}
    question_id = _get(qa, "id", str, f"{place}.qas")
    place = f"{place}: question {question_id!r}"
    text = _get(qa, "question", str, place)
    answers: Optional[tuple[SquadAnswer, ...]] = None
    if with_negative and _get(
        {"is_impossible": False, **qa}, "is_impossible", bool, place
    ):
        answers = ()
    elif "answers" in qa:
        answers = tuple(
            SquadAnswer(
                _get(answer, "text", str, f"{place}: answer"),
                _get(answer, "answer_start", int, f"{place}: answer"),
            )
            for answer in _get(qa, "answers", list, place)
        )
    return SquadQuestion(question_id, text, context, answers)


def read_pairs(path: str) -> Rows:
    """Reads questions as texts, and their paragraphs as matches.

    A row's line is the number of its question. Its label is `ANSWERED` where
    the paragraph has an answer, or where the file says nothing.
    """
    questions = read_questions(path, with_negative=True)
    return Rows(
        path,
        np.arange(len(questions)),
        [question.text for question in questions],
        [question.context for question in questions],
        ["" if question.answers == () else ANSWERED for question in questions],
    )


def check_answers(
    questions: list[SquadQuestion], path: str, with_negative: bool
) -> None:
    """Checks that questions can be scored."""
    for question in questions:
        if question.answers is None or not (question.answers or with_negative):
            raise UserError(
                f"{path}: question {question.id!r} has no answer, expected "
                + (
                    '"answers" or "is_impossible"'
                    if with_negative
                    else "at least one; pass --version_2_with_negative=true "
                    "if the file is of SQuAD 2.0"
                )
            )


def find_answer(question: SquadQuestion) -> Optional[tuple[int, int]]:
    """Finds the first answer, without white space around it.

    White space within the answer stands for any. An answer that is not at its
    place, but in the words there, is the nearest of its kind in these words.
    Returns (first character, one past the last), or None.
    """
    answer, context = question.answers[0], question.context
    text = answer.text.strip()
    start = answer.start + answer.text.find(text)
    end = start + len(text)
    if not text or answer.start < 0 or end > len(context):
        return None
    if context.startswith(text, start):
        return start, end
    # Widened to whole words.
    first = 1 + max(context.rfind(space, 0, start) for space in SPACES)
    last = WORD_END.search(context, end).start()
    words = r"\s+".join(map(re.escape, text.split()))
    # Looks ahead, since occurrences may overlap.
    matches = re.compile(f"(?=({words}))").finditer(context, first, last)
    return min(
        (match.span(1) for match in matches),
        key=lambda span: abs(span[0] - start),
        default=None,
    )


def join_words(text: str) -> str:
    """Puts one space between the words of a text."""
    return " ".join(text.split())


def _get(value: Any, key: str, kind: type, place: str) -> Any:
    if not isinstance(value, dict) or key not in value:
        raise UserError(f'{place}: expected an object with "{key}"')
    item = value[key]
    # For Python, true and false are whole numbers as well.
    if not isinstance(item, kind) or (isinstance(item, bool) and kind is int):
        names = {
            str: "text",
            list: "a list",
            int: "a whole number",
            bool: "true or false",
        }
        raise UserError(
            f'{place}: "{key}" is {str(item)[:50]!r}, expected {names[kind]}'
        )
    return item


@dataclasses.dataclass(frozen=True)
class ContextWindows(Features):
    """Features whose rows are windows, in the order of their questions.

    Attributes:
        question: int32 [rows], the question's number.
        first: int32 [rows], place in the row of the first context token.
        context_first: int32 [rows], that token's number in the context.
        context_starts: int64 [questions], where each one's context begins in
            the array of all context tokens.
        offsets: int32 [tokens, 2], first character and one past the last.
        cut_rows: how many questions are longer than `max_query_length`.
        answers: texts of each question's answers, sorted, if any has several.
    """

    question: np.ndarray
    first: np.ndarray
    context_first: np.ndarray
    context_starts: np.ndarray
    offsets: np.ndarray
    cut_rows: int = 0
    answers: Sequence[Sequence[str]] = ()

    def fingerprint(self):
        """Adds answers that the labels, of the first alone, do not tell."""
        content = super().fingerprint()
        if self.answers:
            content = f"{content} {self.answers}"
            content = hashlib.sha256(content.encode()).hexdigest()
        return content


def cut_windows(
    questions: Sequence[SquadQuestion],
    tokenizer: TextTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
) -> ContextWindows:
    """Makes the windows of all questions; lengths are in tokens.

    An empty context has none. Where every question says its answers, there are
    labels `start_positions` and `end_positions`, int32 [rows]: places of the
    tokens that cover the first answer, or 0 and 0 where the window does not
    hold all of them.

    Source: google-research/bert, `run_squad.py`,
    `convert_examples_to_features`, which takes the first place within the
    answer's words where the answer's tokens occur.
    """
    labelled = all(question.answers is not None for question in questions)
    tokens, row_starts = array.array("i"), array.array("q", [0])
    # `question`, `first` and `context_first` of each window, and its labels.
    windows: list[tuple[int, ...]] = []
    context_starts: list[int] = []
    offsets: list[np.ndarray] = []
    total = cut = 0
    progress = Progress(
        "tokenize", len(questions), "questions", shown_from=SHOWN_FROM
    )
    contexts = in_chunks(
        tokenizer.encode, (c for c, _ in _paragraphs(questions))
    )
    queries = in_chunks(tokenizer.encode_ids, (q.text for q in questions))
    for (_, of_paragraph), context in zip(_paragraphs(questions), contexts):
        offsets.append(np.array(context.offsets, np.int32).reshape(-1, 2))
        for question, query in zip(of_paragraph, queries):
            head = [
                tokenizer.classify_id,
                *query[:max_query_length],
                *tokenizer.between,
            ]
            cut += len(query) > max_query_length
            span = None
            if labelled and question.answers:
                answer = find_answer(question)
                span = answer and _cover(offsets[-1], answer)
            room = max_seq_length - len(head) - 1
            step, rest = min(room, doc_stride), len(context.ids) - room
            # Until a window reaches the end; none of an empty context.
            last = max(rest, 0) + step if context.ids else 0
            for first in range(0, last, step):
                row = [
                    *head,
                    *context.ids[first : first + room],
                    tokenizer.separate_id,
                ]
                tokens.extend(row)
                row_starts.append(len(tokens))
                shift, target = len(head) - first, (0, 0)
                if span and first <= span[0] and span[1] + shift < len(row) - 1:
                    target = span[0] + shift, span[1] + shift
                windows.append((len(context_starts), len(head), first, *target))
            context_starts.append(total)
            progress.update(1)
        total += len(context.ids)
    progress.close()
    columns = np.array(windows, np.int32).reshape(-1, 5).T.copy()
    question_rows, firsts, context_firsts, starts, ends = columns
    # Zeros up to what is between, then BERT's ones.
    parts = np.stack([firsts, np.diff(row_starts) - firsts], axis=1).ravel()
    zero_one = np.array([0, tokenizer.second_segment], np.uint8)
    labels = {"start_positions": starts, "end_positions": ends}
    answers = [sorted({a.text for a in q.answers or ()}) for q in questions]
    has_several = any(len(texts) > 1 for texts in answers)
    return ContextWindows(
        tokens=np.asarray(tokens),
        segments=np.repeat(np.tile(zero_one, len(windows)), parts),
        starts=np.asarray(row_starts),
        labels=labels if labelled else {},
        question=question_rows,
        first=firsts,
        context_first=context_firsts,
        context_starts=np.array(context_starts, np.int64),
        offsets=np.concatenate(offsets),
        cut_rows=cut,
        answers=answers if has_several else (),
    )


def _paragraphs(
    questions: Iterable[SquadQuestion],
) -> Iterator[tuple[str, Iterator[SquadQuestion]]]:
    return itertools.groupby(questions, key=lambda q: q.context)


def _cover(
    offsets: np.ndarray, span: tuple[int, int]
) -> Optional[tuple[int, int]]:
    """Finds the first and last token of a span of characters, or None."""
    first = int(np.searchsorted(offsets[:, 1], span[0], side="right"))
    last = int(np.searchsorted(offsets[:, 0], span[1])) - 1
    return (first, last) if first <= last else None
