"""Answers as Python, JSON Lines and HTTP have them."""

from collections.abc import Mapping
from typing import Any, Optional

from adapter_bert.tasks.kinds import (
    CHOICE,
    CLASSIFICATION,
    MULTI_LABEL,
    QUESTIONS,
    REGRESSION,
    TAGGING,
    VECTORS,
)
from adapter_bert.tasks.novelty import NOVELTY
from adapter_bert.tasks.tagging_files import answer_of, split_tag


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
        score, null_score: sums of logits, of the best answer and "no answer".
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


# Kinds whose answers and outputs become one another, and so are exported.
ANSWERED = (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    QUESTIONS,
    TAGGING,
    CHOICE,
    VECTORS,
)


def from_outputs(task: Mapping[str, Any], outputs: Mapping[str, Any]) -> Answer:
    """Makes an answer of one of `ExportedModel.answers`.

    `task` is the task's description in `tasks.json`.
    """
    answer = _of_kind(task, outputs)
    if NOVELTY in task:
        answer[NOVELTY] = outputs[NOVELTY]
    return answer


def _of_kind(task: Mapping[str, Any], outputs: Mapping[str, Any]) -> Answer:
    kind = task["kind"]
    if kind == REGRESSION:
        return Answer(value=outputs["value"])
    if kind == VECTORS:
        return Answer(vector=outputs["vector"])
    if kind == QUESTIONS:
        score, null_score = outputs["score"], outputs["null_score"]
        if outputs["start"] >= 0:
            place = outputs["start"], outputs["end"]
            # 0 stands for "does not count".
            null_score = null_score or None
        else:
            place, score = (None, None), score or None
        return Answer(
            answer=outputs["answer"],
            start=place[0],
            end=place[1],
            score=score,
            null_score=null_score,
        )
    if kind == TAGGING:
        # Padding is "", words are not.
        words = list(filter(None, outputs["tokens"]))
        return Answer(
            answer_of(
                words, list(map(split_tag, outputs["tags"][: len(words)]))
            )
        )
    scores = dict(zip(task["labels"], outputs["scores"]))
    label = outputs["label"]
    if "abstain_below" in task:
        label = label or None
    if kind == CHOICE:
        return Answer(
            choice=None if label is None else task["labels"].index(label),
            probability=outputs["probability"],
            scores=scores,
        )
    if kind == MULTI_LABEL:
        labels = label.split(task["label_separator"]) if label else []
        return Answer(labels=labels, scores=scores)
    if kind == CLASSIFICATION:
        probability = outputs["probability"]
        return Answer(label=label, probability=probability, scores=scores)
    raise KeyError(kind)


def to_outputs(
    task: Mapping[str, Any],
    answer: Mapping[str, Any],
    labels: int,
    words: int,
    width: int,
) -> dict[str, Any]:
    """Makes the outputs that an exported model has for an answer.

    Lists are filled with "" and 0 up to the lengths `labels`, `words` and, for
    a vector, `width`. `task` is of `trained_task.describe`.
    """
    kind, names = task["kind"], list(task.get("labels", ()))
    outputs = {
        "kind": kind,
        "label": answer.get("label") or "",
        "probability": answer.get("probability", 0.0),
        "value": answer.get("value", 0.0),
        "answer": answer.get("answer", ""),
        "score": answer.get("score") or 0.0,
        "null_score": answer.get("null_score") or 0.0,
        NOVELTY: answer.get(NOVELTY, 0.0),
    }
    for name in ("start", "end"):
        place = answer.get(name)
        outputs[name] = -1 if place is None else place
    if kind == MULTI_LABEL:
        outputs["label"] = task["label_separator"].join(answer["labels"])
    if kind == CHOICE and answer["choice"] is not None:
        outputs["label"] = names[answer["choice"]]
    scores = list(map(answer.get("scores", {}).get, names))
    lists = {"labels": names, "scores": scores, "tokens": [], "tags": []}
    lists["vector"] = answer.get("vector", [])
    lengths = {"tokens": words, "tags": words, "vector": width}
    if kind == TAGGING:
        lists.update(tokens=answer["tokens"], tags=answer["tags"])
    for name, values in lists.items():
        length = lengths.get(name, labels)
        is_text = name not in ("scores", "vector")
        filling = ["" if is_text else 0.0] * (length - len(values))
        outputs[name] = [*values, *filling]
    return outputs
