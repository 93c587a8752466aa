"""A shelf of tasks that a server answers with, and one of an exported model.

`live_library.py` has the shelf that changes.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

import tensorflow as tf

from adapter_bert.answering.answers import Answer, from_outputs
from adapter_bert.errors import UserError
from adapter_bert.graph.exported import (
    EMBED,
    SIGNATURE,
    ExportedModel,
    Row,
    Tasks,
    join_words,
    refusal,
)
from adapter_bert.tasks.kinds import TAGGING

# What a row is sent for, next to its vector (`EMBED`).
ANSWER, EXPLAIN = "answer", "explain"


class RequestRow(NamedTuple):
    """A row of a request, UTF-8.

    Attributes:
        text: a text or its words.
        text_b: the second text; empty if there is none.
        choices: texts of a multiple choice; columns have "" at the end of
            rows with fewer than others.
    """

    task: bytes
    text: Union[bytes, tuple[bytes, ...]]
    text_b: bytes = b""
    choices: tuple[bytes, ...] = ()

    def without_padding(self) -> "RequestRow":
        """Drops empty texts at the end of the choices."""
        count = len(self.choices)
        while count and not self.choices[count - 1]:
            count -= 1
        return self._replace(choices=self.choices[:count])

    def sizes(self) -> dict[str, int]:
        """Bytes of each member, of its words or choices together."""
        texts = {
            name: x for name, x in self._asdict().items() if name != "task"
        }
        return {
            name: sum(map(len, x)) if isinstance(x, tuple) else len(x)
            for name, x in texts.items()
        }


class Question(NamedTuple):
    """A row with the task that answers it, whatever becomes of that name.

    Attributes:
        task: the task's name.
        of: the task, as the shelf keeps it.
        row: the texts, as the shelf reads them.
        size: bytes of the texts.
        kind: `ANSWER`, `EMBED` or `EXPLAIN`.
    """

    task: str
    of: Any
    row: Any
    size: int
    kind: str = ANSWER


class Shelf(abc.ABC):
    """Tasks that a server answers with.

    Attributes:
        version: a whole number.
        signatures: inputs and outputs, as JSON of TensorFlow's `SignatureDef`,
            by name. `EMBED` is there if there are `vectors`.
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
    def accept(self, row: RequestRow, kind: str = ANSWER) -> Question:
        """Makes a question of a row; one for a vector needs no choices."""

    @abc.abstractmethod
    def compute(self, questions: Sequence[Question]) -> list[Any]:
        """Results for `outputs` and `answer`, in order."""

    @abc.abstractmethod
    def outputs(
        self, questions: Sequence[Question], results: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """Gives the signature's outputs of a request's rows, by name."""

    @abc.abstractmethod
    def answer(self, question: Question, result: Any) -> Answer:
        """Answers as `predict`, after the `adapter`'s SHA-256."""

    def vectors(self, questions: Sequence[Question]) -> list[list[float]]:
        """Vectors of rows."""
        raise NotImplementedError

    def explained(self) -> list[str]:
        """Names of the tasks whose answers can be explained."""
        return []

    def unexplained(self) -> str:
        """Why answers of kinds that are explained are not, or ""."""
        return ""

    def explanations(self, questions: Sequence[Question]) -> list[Any]:
        """Explained results for `answer`, of tasks of `explained`."""
        raise NotImplementedError

    def output_names(self) -> list[str]:
        """Names of the signature's outputs."""
        return sorted(self.signatures[SIGNATURE].get("outputs", {}))


def check_members(task: Mapping[str, Any], name: str, row: RequestRow) -> None:
    """Refuses members that a task's kind does not read."""
    if isinstance(row.text, tuple) and task["kind"] != TAGGING:
        raise UserError(
            f"the task {name} reads texts, but text is a list of words"
        )


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

    def accept(self, row, kind=ANSWER):
        name = row.task.decode("utf-8", "replace")
        read = Row(row.text, row.text_b, row.task, row.choices)
        problem = self._model.problem(read, kind == EMBED)
        if problem:
            raise UserError(problem)
        task = self.tasks[name]
        check_members(task, name, row)
        if isinstance(row.text, tuple):
            words = [word.decode("utf-8", "ignore") for word in row.text]
            try:
                read = read._replace(text=join_words(words).encode())
            except ValueError as error:
                raise UserError(str(error)) from error
        return Question(name, task, read, sum(row.sizes().values()), kind)

    def compute(self, questions):
        return self._computed(self._model.answers, questions)

    def vectors(self, questions):
        return self._computed(self._model.vectors, questions)

    def _computed(self, compute: Any, questions: Sequence[Question]) -> Any:
        try:
            return compute([question.row for question in questions])
        except tf.errors.InvalidArgumentError as error:
            raise UserError(refusal(error)) from error

    def outputs(self, questions, results):
        if not results or "tokens" not in results[0]:
            return list(results)
        # Rows of other requests in the same batch may be longer.
        words = max(len(list(filter(None, one["tokens"]))) for one in results)
        return [
            {**one, **{n: one[n][:words] for n in ("tokens", "tags")}}
            for one in results
        ]

    def answer(self, question, result):
        answer = from_outputs(question.of, result)
        # An older export does not tell.
        if "adapter" in result:
            return Answer(adapter=result["adapter"], **answer)
        return answer
