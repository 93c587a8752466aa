"""Computes answers of several tasks, in common batches where possible.

Tasks that read texts alike share the tokens. Tasks that can be mixed share
batches; each other task is computed alone.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Callable, NamedTuple

import numpy as np
import tensorflow as tf

from adapter_bert.answering.answers import Answer
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.task_tables import MixedBert, Place
from adapter_bert.answering.trained_task import LoadedTask, TextRow
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Features, Texts
from adapter_bert.methods.base import below
from adapter_bert.tasks.task_model import ParameterTable
from adapter_bert.training import frozen_features
from adapter_bert.training.prediction import Outputs, check_finite


@dataclasses.dataclass
class Group:
    """Rows with equally many texts, and tasks that read them alike.

    `numbers` has a list for each task: the places of its rows in the request.
    """

    tasks: list[LoadedTask]
    rows: Sequence[TextRow]
    numbers: list[list[int]] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def features(self) -> Features:
        """The rows, as every task reads them."""
        first = self.tasks[0]
        return first.task.featurize(
            first.task.make_rows(self.rows),
            first.tokenizer,
            first.max_seq_length,
        )

    def answers(self, loaded: LoadedTask, outputs: Outputs) -> list[Answer]:
        """Makes one task's answers of its head's outputs, [features, ...]."""
        task = loaded.task
        # Contexts without tokens have no features.
        if len(self.features):
            check_finite(outputs, task.name)
        made = task.make_rows(self.rows)
        return task.answer(made, task.decode(made, self.features, outputs))


class _Block(NamedTuple):
    """Rows for some tasks, and numbers of the questions, [rows, tasks]."""

    features: Features
    places: Sequence[Place]
    questions: np.ndarray


def compute(
    tables: MixedBert, groups: Sequence[Group], batch_size: int
) -> list[Outputs]:
    """Outputs [rows, ...] by name, for each task of each group in order.

    Values of tasks that can be mixed move into the tables.
    """
    mixed = {id(t): t for g in groups for t in g.tasks if t.can_mix}
    # A single task needs no tables. In bfloat16 it uses them all the same, so
    # that its answers do not depend on the tasks that are computed with it.
    if len(mixed) < 2 and tables.dtype == tf.float32:
        mixed = {}
    tables.reserve(t.kind for t in mixed.values() if not t.values.is_placed)
    # One batch has at most `batch_size` tasks for a text, and equally many
    # for each text.
    blocks: list[_Block] = []
    count = 0
    for group in groups:
        features = group.features.unlabelled()
        places = [
            task.values.place(task.kind, tables)
            for task in group.tasks
            if id(task) in mixed
        ]
        for first in range(0, len(places), batch_size):
            some = places[first : first + batch_size]
            questions = np.arange(count, count + len(features) * len(some))
            count += len(questions)
            shape = len(features), len(some)
            blocks.append(_Block(features, some, questions.reshape(shape)))
    mixed_outputs = _compute_mixed(tables, blocks, count, batch_size)
    return [
        next(mixed_outputs)
        if id(loaded) in mixed
        else compute_alone(loaded, group.features.unlabelled(), batch_size)
        for group in groups
        for loaded in group.tasks
    ]


def compute_alone(
    loaded: LoadedTask, features: Features, batch_size: int
) -> Outputs:
    """Computes a task's outputs [rows, ...] by name, in row order."""
    compute_batch = functools.partial(loaded.kind.compute, loaded.values.get())
    return in_batches(compute_batch, features, batch_size)


def in_batches(
    compute_batch: Callable[[input_pipeline.Batch], Mapping[str, tf.Tensor]],
    features: Features,
    batch_size: int,
) -> Outputs:
    """Computes batches of rows of like length.

    Gives outputs [rows, ...] by name, in row order, or none without rows.
    """
    batches = input_pipeline.sorted_batches(features, batch_size)
    outputs: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    for rows in batches:
        batch = input_pipeline.make_batch(features, rows, None)
        for name, value in compute_batch(batch).items():
            outputs[name].append(value.numpy())
    return {
        name: input_pipeline.restore_order(batches, values)
        for name, values in outputs.items()
    }


def compute_frozen(
    bert: FrozenBert, groups: Sequence[Group], batch_size: int
) -> list[np.ndarray]:
    """Computes each group's `frozen_features`, float32 [rows, D], together.

    They are [0, D] where no task of the group scores novelty.
    """
    none = Texts.from_rows([], {})
    read = [
        group.features if any(t.task.novelty for t in group.tasks) else none
        for group in groups
    ]
    counts = list(map(len, read))
    if not sum(counts):
        return [np.zeros((0, bert.config.hidden_size), np.float32)] * len(read)
    function = bert.function(
        frozen_features.FEATURES,
        ParameterTable("", ()),
        functools.partial(frozen_features.model, bert.config),
    ).get_concrete_function()
    outputs = in_batches(
        functools.partial(function, {}), _join(read, {}), batch_size
    )
    check_finite(outputs, "novelty")
    values = outputs[frozen_features.FEATURES]
    return np.split(values, np.cumsum(counts)[:-1])


def _compute_mixed(
    tables: MixedBert, blocks: Sequence[_Block], count: int, batch_size: int
) -> Iterator[Outputs]:
    """Outputs [rows, ...] of the blocks' tasks, from common batches.

    `count` is the number of questions.
    """
    collected: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    for task_count in sorted({len(block.places) for block in blocks}):
        alike = [block for block in blocks if len(block.places) == task_count]
        least = max(p.least_model for block in alike for p in block.places)
        tasks = [
            np.tile([p.task.number for p in one.places], (len(one.features), 1))
            for one in alike
        ]
        questions = [block.questions for block in alike]
        features = _join(
            [block.features for block in alike],
            {
                "task": np.concatenate(tasks).astype(np.int32),
                "question": np.concatenate(questions).astype(np.int32),
            },
        )
        for rows in input_pipeline.sorted_batches(
            features, batch_size // task_count
        ):
            batch = input_pipeline.make_batch(features, rows, None)
            del batch["row"]
            for name, value in tables.compute(batch, least).items():
                collected[name].append(value.numpy())
    outputs = {
        name: input_pipeline.join_outputs(values)
        for name, values in collected.items()
    }
    # The place of each question's answer in its kind's outputs.
    rows = {}
    for name, numbers in outputs.items():
        if name.endswith("/question"):
            rows[name] = np.zeros(count, np.int64)
            rows[name][numbers] = np.arange(len(numbers))
    for block in blocks:
        for place, questions in zip(block.places, block.questions.T):
            scope = f"head_{place.head}/"
            of_head = below(scope, outputs)
            yield {
                name: values[rows[f"{scope}question"][questions]]
                for name, values in of_head.items()
                if len(questions) and name != "question"
            }


def _join(
    groups: Sequence[Features], labels: Mapping[str, np.ndarray]
) -> Features:
    lengths = np.concatenate([group.lengths for group in groups])
    return Features(
        np.concatenate([group.tokens for group in groups]),
        np.concatenate([group.segments for group in groups]),
        np.concatenate([[0], np.cumsum(lengths)]),
        labels,
    )
