"""Reads files in the layout of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018).

In here: `Question`, and `read_questions`, which takes a file apart and says
of a malformed one where and what is wrong.
"""

import dataclasses
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from errors import UserError
from storage import files

# All that Python takes for white space, which the official scorers split at.
SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))
SPACE = re.compile(r"\s")


class Answer(NamedTuple):
    """A right answer.

    Attributes:
        text: a part of the context.
        start: its first character there.
    """

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    Attributes:
        id: unique within its file.
        text: the question.
        context: the text that may hold the answer; questions of a paragraph
            share one object.
        answers: the right ones; empty if the context holds none; None if the
            file does not say.
    """

    id: str
    text: str
    context: str
    answers: Optional[Tuple[Answer, ...]]


def read_questions(path: str, with_negative: bool) -> List[Question]:
    """Reads all questions of a file.

    Args:
        path: of the file.
        with_negative: whether questions may have no answer, as in SQuAD 2.0.

    Returns:
        The questions in the file's order.

    Raises:
        UserError: the file is missing or is not JSON, a part of it is missing
            or of the wrong type, an id occurs twice, or there are no
            questions.
    """
    file = files.read_json(path, "the SQuAD file")
    questions: List[Question] = []
    place: Dict[str, str] = {}
    for article_number, article in enumerate(_get(file, "data", list, path)):
        article_place = f"{path}: data[{article_number}]"
        for number, paragraph in enumerate(
            _get(article, "paragraphs", list, article_place)
        ):
            here = f"{article_place}.paragraphs[{number}]"
            context = _get(paragraph, "context", str, here)
            for qa in _get(paragraph, "qas", list, here):
                question = _read_question(qa, context, here, with_negative)
                if question.id in place:
                    raise UserError(
                        f"{here}: the question id {question.id!r} occurs "
                        f"twice, before in {place[question.id]}; ids must be "
                        "unique"
                    )
                place[question.id] = here[len(path) + 2 :]
                questions.append(question)
    if not questions:
        raise UserError(f"{path} holds no questions")
    return questions


def _read_question(
    qa: Any, context: str, place: str, with_negative: bool
) -> Question:
    question_id = _get(qa, "id", str, f"{place}.qas")
    place = f"{place}: question {question_id!r}"
    text = _get(qa, "question", str, place)
    answers: Optional[Tuple[Answer, ...]] = None
    if with_negative and _get(
        {"is_impossible": False, **qa}, "is_impossible", bool, place
    ):
        answers = ()
    elif "answers" in qa:
        answers = tuple(
            Answer(
                _get(answer, "text", str, f"{place}: answer"),
                _get(answer, "answer_start", int, f"{place}: answer"),
            )
            for answer in _get(qa, "answers", list, place)
        )
    return Question(question_id, text, context, answers)


def check_answers(
    questions: List[Question], path: str, with_negative: bool
) -> None:
    """Checks that every question has what scoring needs.

    Raises:
        UserError: one has no answer where it needs one.
    """
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


def find_answer(question: Question) -> Optional[Tuple[int, int]]:
    """The characters of the first answer, without white space around them.

    White space within the answer stands for any. An answer that is not at its
    place, but in the words there, is the nearest of its kind in these words.

    Returns:
        (first character, one past the last), or None where the context does
        not hold the answer at its place.
    """
    answer, context = question.answers[0], question.context
    text = answer.text.strip()
    start = answer.start + answer.text.find(text)
    end = start + len(text)
    if not text or answer.start < 0 or end > len(context):
        return None
    if context.startswith(text, start):
        return start, end
    words = r"\s+".join(map(re.escape, text.split()))
    # Looks ahead, since occurrences may overlap.
    found = re.compile(f"(?=({words}))").finditer(
        context, *widen(context, start, end)
    )
    return min(
        (match.span(1) for match in found),
        key=lambda span: abs(span[0] - start),
        default=None,
    )


def widen(text: str, start: int, end: int) -> Tuple[int, int]:
    """Widens the characters from `start` to `end` to whole words."""
    before = max(text.rfind(space, 0, start) for space in SPACES)
    after = SPACE.search(text, end)
    return before + 1, after.start() if after else len(text)


def join_words(text: str) -> str:
    """The words of a text with one space between them."""
    return " ".join(text.split())


def _get(value: Any, key: str, kind: type, place: str) -> Any:
    """`value[key]`, checked to be of a type."""
    if not isinstance(value, dict) or key not in value:
        raise UserError(f'{place}: expected an object with "{key}"')
    found = value[key]
    # For Python, true and false are whole numbers as well.
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
        names = {
            str: "text",
            list: "a list",
            int: "a whole number",
            bool: "true or false",
        }
        raise UserError(
            f'{place}: "{key}" is {str(found)[:50]!r}, expected {names[kind]}'
        )
    return found
