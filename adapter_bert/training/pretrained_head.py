"""Compares the head that a fine-tuned or merged BERT brings with the task's."""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from adapter_bert.checkpoints.changed_weights import with_labels, without_head
from adapter_bert.checkpoints.hugging_face import kind_of_head
from adapter_bert.checkpoints.weights import Pretrained, Weights
from adapter_bert.errors import UserError
from adapter_bert.tasks.kinds import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    RERANK,
    TAGGING,
    kind_of,
)
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.task_model import ParameterTable

# Key of the labels in a task's description.
LABELS = {CLASSIFICATION: "labels", MULTI_LABEL: "labels", TAGGING: "tags"}


def _about(task: Task) -> tuple[Mapping[str, Any], str, Sequence[str]]:
    described = task.describe_named()
    kind = kind_of(described)
    return described, kind, described.get(LABELS.get(kind, ""), ())


def _compared(opened: Pretrained, task: Task) -> list[str]:
    _, *ours = _about(task)
    return [
        f"of {kind or 'labels'} ({', '.join(map(repr, labels))[:200]})"
        for kind, labels in ((kind_of_head(opened.head), opened.labels), ours)
    ]


def label(opened: Pretrained, task: Task, data_dir: str) -> Task:
    """Gives a task the labels of a BERT's own head, if no file has labels."""
    described, kind, labels = _about(task)
    is_one = "" in task.members
    if labels or kind not in LABELS or not opened.labels or not is_one:
        return task
    try:
        task.check_files(data_dir, ["train"])
    except UserError:
        settings = {**described, LABELS[kind]: list(opened.labels)}
        return task.restore(settings, opened.path)
    return task


def fit(opened: Pretrained, task: Task) -> Weights:
    """Puts a BERT's head in the order of the labels, or leaves it out."""
    _, kind, labels = _about(task)
    kinds = {kind_of_head(opened.head) or kind, kind}
    # A cross-encoder's head gives a number, too.
    if len(kinds) == 1 or kinds == {REGRESSION, RERANK}:
        fitted = with_labels(opened.weights, opened.labels, labels)
    else:
        fitted = without_head(opened.weights)
    if len(fitted.shapes) < len(opened.weights.shapes):
        logging.info(
            "%s: its own head is left out, since it is %s and the task's %s",
            opened.path,
            *_compared(opened, task),
        )
    return fitted


def check(
    opened: Pretrained, base: Weights, table: ParameterTable, task: Task
) -> None:
    """Refuses a task that needs the head which `fit` has left out of `base`."""
    left_out = set(opened.weights.shapes) - set(base.shapes)
    if not left_out & {p.name for p in table.trained}:
        return
    theirs, ours = _compared(opened, task)
    raise UserError(
        f"{opened.path} holds no trained head of this task: its own is "
        f"{theirs}, expected {ours}; train first (--do_train=true), or take "
        "data with the head's labels"
    )
