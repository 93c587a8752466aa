"""Answers as Python, JSON Lines and HTTP have them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from adapter_bert.tasks import kinds
from adapter_bert.tasks.kinds import Field, find_kind
from adapter_bert.tasks.novelty import NOVELTY


class Answer(dict[str, Any]):
    """A dictionary as JSON has it, whose members are attributes too.

    docs/predict.md has a table of each kind's members.

    Attributes:
        label, choice: the likeliest; None if its `probability` is below the
            adapter's `abstain_below`. Choices are numbers from 0.
        scores: probabilities by label, or by a choice's column.
        value: a regression's, in the unit of the training labels.
        start, end: the answer's characters in the context, `end` one past the
            last.
        score, null_score: sums of logits, of the best answer and "no answer";
            `score` is also that of a query's document.
        index, document: of a document that was reranked, from 0, and its
            text.
        novelty: the share of training rows that are nearer than the text, 0
            to 1.
    """

    label: Optional[str]
    probability: float
    scores: dict[str, float]
    labels: list[str]
    choice: Optional[int]
    value: float
    answer: str
    start: Optional[int]
    end: Optional[int]
    score: Optional[float]
    null_score: Optional[float]
    index: int
    document: str
    tokens: list[str]
    tags: list[str]
    entities: list[dict[str, Any]]
    vector: list[float]
    novelty: float
    explanation: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(
                f"the answer has no {name}, but {', '.join(self)}"
            ) from error


def from_outputs(task: Mapping[str, Any], outputs: Mapping[str, Any]) -> Answer:
    """Makes an answer of one of `ExportedModel.answers`.

    `task` is the task's description in `tasks.json`.
    """
    answer = Answer(find_kind(task["kind"]).answer(task, outputs))
    if NOVELTY in task:
        answer[NOVELTY] = outputs[NOVELTY]
    return answer


def output_fields(of_tasks: Iterable[str]) -> dict[str, Field]:
    """Lists the outputs for tasks of these and of all built-in kinds."""
    fields = {"kind": kinds.TEXT}
    for kind in dict.fromkeys((*kinds.KINDS, *of_tasks)):
        fields.update(find_kind(kind).fields)
    return {**fields, NOVELTY: kinds.NUMBER}


def to_outputs(
    tasks: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]],
    labels: int,
) -> list[dict[str, Any]]:
    """Makes the outputs that a model has for a batch's answers.

    Lists are as long as the longest of the batch, those of labels at least
    `labels`. `tasks` are the rows', as of `trained_task.describe`.
    """
    rows = [
        {
            "kind": task["kind"],
            **find_kind(task["kind"]).outputs(task, answer),
            NOVELTY: answer.get(NOVELTY, kinds.NUMBER.empty),
        }
        for task, answer in zip(tasks, answers)
    ]
    table: list[dict[str, Any]] = [{} for _ in rows]
    fields = output_fields(task["kind"] for task in tasks)
    for name, field in fields.items():
        values = [row.get(name) for row in rows]
        length = labels if name in ("labels", "scores") else 0
        length = max(
            [length, *(len(x) for x in values if field.axes > 1 and x)]
        )
        for row, value in zip(table, values):
            if field.axes > 1:
                value = value or []
                value = [*value, *[field.empty] * (length - len(value))]
            row[name] = field.empty if value is None else value
    return table


def ranked(
    answers: Sequence[Mapping[str, Any]], top_n: Optional[int] = None
) -> list[Answer]:
    """Orders a query's documents: `index` and `score`, the best first.

    `answers` are a reranker's, by document; equal scores keep their order.
    """
    scores = [answer["score"] for answer in answers]
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    return [Answer(index=n, score=scores[n]) for n in order[:top_n]]
