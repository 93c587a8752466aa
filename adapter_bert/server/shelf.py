"""A shelf of tasks that a server answers with, and one of an exported model.

`live_library.py` has the shelf that changes.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from adapter_bert.answering.answers import Answer, from_outputs, to_outputs
from adapter_bert.errors import UserError
from adapter_bert.graph.exported import (
    EMBED,
    SIGNATURE,
    ExportedModel,
    Row,
    Tasks,
    join_words,
    problem,
    refusal,
)
from adapter_bert.tasks.kinds import KINDS, OF_ENTITIES, TAGGING, VECTORS

# What a row is sent for, next to its vector (`EMBED`).
ANSWER, EXPLAIN = "answer", "explain"


class Question(NamedTuple):
    """A row with the task that answers it, whatever becomes of that name.

    Attributes:
        task: the task's name.
        of: the task, as the shelf keeps it.
        row: the texts, as the shelf reads them.
        kind: `ANSWER`, `EMBED` or `EXPLAIN`.
        size: bytes of the texts.
    """

    task: str
    of: Any
    row: Any
    kind: str = ANSWER
    size: int = 0


class Shelf(abc.ABC):
    """Tasks that a server answers with.

    Attributes:
        version: a whole number.
        signatures: inputs and outputs, as JSON of TensorFlow's `SignatureDef`,
            by name. `EMBED` is there if there are vectors.
        left_out: why a task cannot be served, by name.
    """

    version: str
    signatures: dict[str, Any]
    left_out: Mapping[str, str] = {}

    @property
    @abc.abstractmethod
    def tasks(self) -> Tasks:
        """Descriptions of `describe`, by the task's name."""

    @abc.abstractmethod
    def look(self) -> None:
        """Looks for changes of the tasks."""

    @abc.abstractmethod
    def accept(self, row: Row, kind: str = ANSWER) -> Question:
        """Makes a question of a row; one for a vector needs no choices."""

    @abc.abstractmethod
    def compute(self, questions: Sequence[Question]) -> list[Any]:
        """Results for `outputs` and `answer`, or vectors, in order.

        Either all are to be explained, or none is.
        """

    @abc.abstractmethod
    def outputs(
        self, questions: Sequence[Question], results: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """Gives the signature's outputs of a request's rows, by name."""

    @abc.abstractmethod
    def answer(self, question: Question, result: Any) -> Answer:
        """Gives the answer as `predict` does, after the `adapter`'s SHA-256."""

    def explained(self) -> list[str]:
        """Names of the tasks whose answers can be explained."""
        return []

    def embedded(self) -> list[str]:
        """Names of the tasks that give vectors."""
        tasks = self.tasks.items()
        return [name for name, task in tasks if task["kind"] == VECTORS]

    def count_tokens(self, questions: Sequence[Question]) -> Optional[int]:
        """Counts tokens of a task's questions; None if it cannot be told."""
        return None


class ExportedShelf(Shelf):
    """Tasks of an exported model."""

    def __init__(self, model: ExportedModel):
        self._model = model
        self.version = model.version
        self.signatures = {SIGNATURE: model.signature}
        if model.vector_signature:
            self.signatures[EMBED] = model.vector_signature

    @property
    def tasks(self):
        return self._model.tasks

    def look(self):
        """Returns at once, since another version is another model."""

    def embedded(self):
        return list(self.tasks) if EMBED in self.signatures else []

    def accept(self, row, kind=ANSWER):
        if fault := problem(self.tasks, row, kind == EMBED):
            raise UserError(fault)
        name = row.task.decode()
        task = self.tasks[name]
        if isinstance(row.text, tuple):
            if task["kind"] != TAGGING:
                raise UserError(
                    f"the task {name} reads texts, but text is a list of words"
                )
            words = [word.decode("utf-8", "ignore") for word in row.text]
            try:
                row = row._replace(text=join_words(task, words).encode())
            except ValueError as error:
                raise UserError(str(error)) from error
        return Question(name, task, row, kind)

    def compute(self, questions):
        results: dict[int, Any] = {}
        for is_vector in False, True:
            rows = {
                n: question.row
                for n, question in enumerate(questions)
                if (question.kind == EMBED) == is_vector
            }
            if not rows:
                continue
            model = self._model
            compute = model.vectors if is_vector else model.answers
            try:
                results.update(zip(rows, compute(list(rows.values()))))
            except tf.errors.InvalidArgumentError as error:
                raise UserError(refusal(error)) from error
        return [_unfilled(results[n]) for n in range(len(questions))]

    def outputs(self, questions, results):
        if not results or "tokens" not in results[0]:
            return list(results)
        # As long as the request's longest, whatever shared its batches.
        tasks = [question.of for question in questions]
        answers = list(map(self.answer, questions, results))
        names = KINDS[TAGGING].fields.keys() & results[0].keys()
        return [
            {**one, **{name: row[name] for name in names}}
            for one, row in zip(results, to_outputs(tasks, answers, 0))
        ]

    def answer(self, question, result):
        answer = from_outputs(question.of, result)
        return Answer(adapter=result["adapter"], **answer)


def _unfilled(result: Any) -> Any:
    """Leaves out what fills a tagger's lists up to the batch's longest."""
    if "tokens" not in result:
        return result
    words, entities = (
        sum(map(bool, result.get(name, ())))
        for name in ("tokens", "entity_texts")
    )
    lengths = dict.fromkeys(KINDS[TAGGING].fields, words)
    lengths.update(dict.fromkeys(OF_ENTITIES, entities))
    return {
        name: value[: lengths[name]] if name in lengths else value
        for name, value in result.items()
    }
