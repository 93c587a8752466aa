"""Computes answers of several tasks, in common batches where possible.

Tasks that read texts alike share the tokens. Tasks that can be mixed share
batches; each other task is computed alone.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from adapter_bert.answering.answers import Answer
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.task_tables import MixedBert, Place
from adapter_bert.answering.trained_task import LoadedTask, TextRow
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Features, Texts
from adapter_bert.tasks.task_model import ParameterTable
from adapter_bert.training import frozen_features
from adapter_bert.training.prediction import Outputs, check_finite


@dataclasses.dataclass
class Group:
    """Rows with equally many texts, and tasks that read them alike."""

    tasks: Sequence[LoadedTask]
    rows: Sequence[TextRow]

    def __post_init__(self):
        first = self.tasks[0]
        self.features = first.task.featurize(
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


def compute(
    tables: MixedBert, groups: Sequence[Group], batch_size: int
) -> list[Outputs]:
    """Outputs [rows, ...] by name, for each task of each group in order.

    Values of tasks that can be mixed move into the tables.
    """
    mixed = {id(t): t for g in groups for t in g.tasks if t.can_mix}
    if len(mixed) < 2:
        mixed = {}
    tables.reserve(t.kind for t in mixed.values() if not t.values.is_placed)
    mixed_outputs = _compute_mixed(
        tables,
        [
            (g.features.unlabelled(), [t for t in g.tasks if id(t) in mixed])
            for g in groups
        ],
        batch_size,
    )
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
    """A task's outputs [rows, ...] by name, in row order."""
    if not len(features):
        return {}
    values = loaded.values.get()
    batches = input_pipeline.sorted_batches(features, batch_size)
    of_batches = [
        loaded.kind.compute(
            values, input_pipeline.make_batch(features, rows, None)
        )
        for rows in batches
    ]
    return {
        name: input_pipeline.restore_order(
            batches, [outputs[name].numpy() for outputs in of_batches]
        )
        for name in of_batches[0]
    }


def compute_frozen(
    bert: FrozenBert, groups: Sequence[Group], batch_size: int
) -> list[np.ndarray]:
    """Each group's `frozen_features`, float32 [rows, D], in common batches.

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
    features = _join(read, {})
    function = bert.function(
        frozen_features.FEATURES,
        ParameterTable("", ()),
        functools.partial(frozen_features.model, bert.config),
    ).get_concrete_function()
    batches = input_pipeline.sorted_batches(features, batch_size)
    of_batches = [
        function({}, input_pipeline.make_batch(features, rows, None))
        for rows in batches
    ]
    values = input_pipeline.restore_order(
        batches, [x[frozen_features.FEATURES].numpy() for x in of_batches]
    )
    check_finite({frozen_features.FEATURES: values}, "novelty")
    return np.split(values, np.cumsum(counts)[:-1])


def _compute_mixed(
    tables: MixedBert,
    groups: Sequence[tuple[Features, Sequence[LoadedTask]]],
    batch_size: int,
) -> Iterator[Outputs]:
    """Outputs [rows, ...] of each group's tasks, from common batches."""
    # One batch has at most `batch_size` tasks for a text, and equally many
    # for each text.
    blocks: list[_Block] = []
    count = 0
    for features, tasks in groups:
        places = [task.values.place(task.kind, tables) for task in tasks]
        for first in range(0, len(places), batch_size):
            some = places[first : first + batch_size]
            questions = np.arange(count, count + len(features) * len(some))
            count += len(questions)
            shape = len(features), len(some)
            blocks.append(_Block(features, some, questions.reshape(shape)))
    collected: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    for task_count in sorted({len(block.places) for block in blocks}):
        alike = [block for block in blocks if len(block.places) == task_count]
        least = max(p.least_model for block in alike for p in block.places)
        for batch in _batches(alike, batch_size // task_count):
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
            yield {
                name[len(scope) :]: values[rows[f"{scope}question"][questions]]
                for name, values in outputs.items()
                if len(questions)
                and name.startswith(scope)
                and not name.endswith("/question")
            }


class _Block(NamedTuple):
    """Rows for some tasks, and numbers of the questions, [rows, tasks]."""

    features: Features
    places: Sequence[Place]
    questions: np.ndarray


def _batches(
    blocks: Sequence[_Block], batch_size: int
) -> Iterator[input_pipeline.Batch]:
    """Batches of blocks that have equally many tasks."""
    tasks = [
        np.tile(
            np.int32([place.task.number for place in block.places]),
            (len(block.features), 1),
        )
        for block in blocks
    ]
    questions = np.concatenate([block.questions for block in blocks])
    features = _join(
        [block.features for block in blocks],
        {"task": np.concatenate(tasks), "question": questions.astype(np.int32)},
    )
    for rows in input_pipeline.sorted_batches(features, batch_size):
        batch = input_pipeline.make_batch(features, rows, None)
        del batch["row"]
        yield batch


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
