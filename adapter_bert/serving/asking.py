"""From rows and tasks to answers: what is computed together, and in order.

A group is rows that some tasks read alike, so that they are tokenized once.
Tasks that can be mixed are computed in common batches, others each alone.
"""

import collections
import dataclasses
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Features
from adapter_bert.serving.loaded_task import LoadedTask, Row
from adapter_bert.serving.mixed_bert import MixedBert, Place
from adapter_bert.training.prediction import Outputs, check_finite

# A JSON object, as docs/prediction.md has it.
Answer = Dict[str, Any]


@dataclasses.dataclass
class Group:
    """Rows of which all have equally many texts, and who is asked.

    Attributes:
        tasks: that make equal features of them.
        rows: the texts.
        features: of the rows, as any of the tasks makes them.
    """

    tasks: Sequence[LoadedTask]
    rows: Sequence[Row]

    def __post_init__(self):
        first = self.tasks[0]
        self.features = first.task.featurize(
            first.task.make_rows(self.rows),
            first.tokenizer,
            first.max_seq_length,
        )

    def answers(self, loaded: LoadedTask, outputs: Outputs) -> List[Answer]:
        """One of the tasks' answers to all rows.

        Args:
            loaded: the task.
            outputs: its head's, [rows of the unlabelled features, ...].

        Raises:
            UserError: some of them are no numbers.
        """
        task = loaded.task
        # There are no rows of features where no context has a token.
        if len(self.features):
            check_finite(outputs, task.name)
        made = task.make_rows(self.rows)
        return task.answer(made, task.decode(made, self.features, outputs))


def reads_alike(loaded: LoadedTask) -> Tuple:
    """Equal for tasks that make equal features of equal rows."""
    # Tokenizers exist once for each BERT and case.
    tokenizer = id(loaded.tokenizer)
    return loaded.task.reading, tokenizer, loaded.max_seq_length


def compute(
    tables: MixedBert, groups: Sequence[Group], batch_size: int
) -> List[Outputs]:
    """Computes every group's rows by each of its tasks.

    Args:
        tables: those of the BERT; what can be mixed is moved into them.
        groups: rows and tasks.
        batch_size: rows that are computed at once.

    Returns:
        Outputs [rows, ...] by name, of the first group's tasks in order, then
        of the next one's.
    """
    mixed = {id(t): t for g in groups for t in g.tasks if t.can_mix}
    if len(mixed) < 2:
        mixed = {}
    tables.reserve(t.kind for t in mixed.values() if not t.values.is_placed)
    found = _compute_mixed(
        tables,
        [
            (
                g.features.unlabelled(),
                [t for t in g.tasks if id(t) in mixed],
            )
            for g in groups
        ],
        batch_size,
    )
    return [
        next(found)
        if id(loaded) in mixed
        else _compute_alone(loaded, group.features.unlabelled(), batch_size)
        for group in groups
        for loaded in group.tasks
    ]


def _compute_alone(
    loaded: LoadedTask, features: Features, batch_size: int
) -> Outputs:
    """A task's outputs [rows, ...] by name, in row order."""
    if not len(features):
        return {}
    values = loaded.values.get()
    batches = input_pipeline.sorted_batches(features, batch_size)
    found = [
        loaded.kind.compute(
            values, input_pipeline.make_batch(features, rows, None)
        )
        for rows in batches
    ]
    return {
        name: input_pipeline.restore_order(
            batches, [outputs[name].numpy() for outputs in found]
        )
        for name in found[0]
    }


def _compute_mixed(
    tables: MixedBert,
    parts: Sequence[Tuple[Features, Sequence[LoadedTask]]],
    batch_size: int,
) -> Iterator[Outputs]:
    """Outputs of rows of many tasks, in common batches.

    Args:
        tables: of the tasks.
        parts: rows, and the tasks that all of these rows are asked.
        batch_size: rows that are computed at once.

    Yields:
        The outputs [rows, ...] by name of each task of each part.
    """
    # A text is asked at most a batch of tasks at a time. In one batch all
    # texts are asked equally many.
    blocks: List[_Block] = []
    count = 0
    for features, tasks in parts:
        places = [task.values.place(task.kind, tables) for task in tasks]
        for first in range(0, len(places), batch_size):
            some = places[first : first + batch_size]
            blocks.append(_Block(features, some, count))
            count += blocks[-1].questions.size
    found: Dict[str, List[np.ndarray]] = collections.defaultdict(list)
    for asked in sorted({len(block.places) for block in blocks}):
        alike = [block for block in blocks if len(block.places) == asked]
        for batch in _batches(alike, batch_size // asked):
            for name, value in tables.compute(batch).items():
                found[name].append(value.numpy())
    outputs = {
        name: input_pipeline.join_outputs(values)
        for name, values in found.items()
    }
    # Where in its kind's outputs the answer to each question is.
    rows = {}
    for name, numbers in outputs.items():
        if name.endswith("/question"):
            rows[name] = np.zeros(count, np.int64)
            rows[name][numbers] = np.arange(len(numbers))
    for block in blocks:
        yield from block.of_tasks(outputs, rows)


class _Block:
    """Rows, each of which is asked some tasks."""

    def __init__(self, features: Features, places: Sequence[Place], first: int):
        """Takes the number of the first question."""
        self.features, self.places = features, places
        shape = len(features), len(places)
        size = shape[0] * shape[1]
        self.questions = np.arange(first, first + size).reshape(shape)

    def of_tasks(
        self, outputs: Outputs, rows: Dict[str, np.ndarray]
    ) -> Iterator[Outputs]:
        """Each task's outputs [rows, ...] by name.

        Args:
            outputs: of all questions, by kind of head and name.
            rows: of each kind where in the outputs a question is.
        """
        for place, questions in zip(self.places, self.questions.T):
            if not len(questions):
                yield {}
                continue
            scope = f"head_{place.head}/"
            chosen = rows[f"{scope}question"][questions]
            yield {
                name[len(scope) :]: values[chosen]
                for name, values in outputs.items()
                if name.startswith(scope) and not name.endswith("/question")
            }


def _batches(
    blocks: Sequence[_Block], batch_size: int
) -> Iterator[input_pipeline.Batch]:
    """Batches of the rows of some blocks, which are asked equally much."""
    tokens, segments, lengths, tasks, questions = [], [], [], [], []
    for block in blocks:
        features = block.features
        tokens.append(features.tokens)
        segments.append(features.segments)
        lengths.append(features.lengths)
        numbers = [place.task.number for place in block.places]
        tasks.append(np.tile(np.int32(numbers), (len(features), 1)))
        questions.append(block.questions.astype(np.int32))
    features = Features(
        np.concatenate(tokens),
        np.concatenate(segments),
        np.concatenate([[0], np.cumsum(np.concatenate(lengths))]),
        {
            "task": np.concatenate(tasks),
            "question": np.concatenate(questions),
        },
    )
    for rows in input_pipeline.sorted_batches(features, batch_size):
        batch = input_pipeline.make_batch(features, rows, None)
        del batch["row"]
        yield batch
