"""Rows of several tasks: whose labels a batch has, and which task is next.

Each batch is of one task, drawn with a probability that grows with the rows of
that task. Source: Stickland and Murray 2019 (PALs), on the sampling of tasks;
their code, `run_multi_task.py`.
"""

import dataclasses
import hashlib
import zlib
from typing import Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

from input_pipeline import Batch, Features, Texts, TrainPlan

# Tasks are drawn in proportion to their rows to the power of this, which is
# given the epoch, from 1, and the last one.
SAMPLINGS: Dict[str, Callable[[int, int], float]] = {
    "annealed": lambda epoch, last: 1 - 0.8 * (epoch - 1) / max(1, last - 1),
    "proportional": lambda epoch, last: 1.0,
    "square_root": lambda epoch, last: 0.5,
    "uniform": lambda epoch, last: 0.0,
}


def scoped(task: str, name: str) -> str:
    """What something of one of several tasks is called."""
    return f"tasks.{task}/{name}"


@dataclasses.dataclass(frozen=True)
class OneTaskFeatures(Texts):
    """Rows of one of several tasks, whose batches say which.

    Attributes:
        task_id: place of the task.
    """

    task_id: int = 0

    @classmethod
    def of(cls, features: Features, task_id: int) -> "OneTaskFeatures":
        """The same rows."""
        return cls(**vars(features), task_id=task_id)

    def unlabelled(self):
        """The rows alone, of the same task."""
        return OneTaskFeatures.of(super().unlabelled(), self.task_id)

    def added(self, length):
        """`task_ids`, all alike."""
        return {"task_ids": ((), np.int32)}

    def finish(self, batch: Batch, rows: np.ndarray, step: Optional[int]):
        """Adds what `added` says, int32 [B]."""
        batch["task_ids"] = np.full(len(rows), self.task_id, np.int32)


@dataclasses.dataclass(frozen=True)
class JoinedFeatures(Features):
    """Rows of several tasks, one task's after the other's.

    Each batch says which task its rows are of. It has the labels of all tasks,
    zeros where a row is of another task.

    Attributes:
        counts: rows of each task, by its name.
        task_labels: arrays [rows of the task, ...] by feature name, of each
            task by its name.
    """

    counts: Mapping[str, int]
    task_labels: Mapping[str, Mapping[str, np.ndarray]]
    cut_rows: int = 0

    @classmethod
    def join(cls, features: Mapping[str, Features]) -> "JoinedFeatures":
        """Joins the rows of tasks, each of a single sequence of tokens."""
        parts = list(features.values())
        *firsts, count = np.cumsum([0, *(len(part.tokens) for part in parts)])
        starts = [part.starts[:-1] + n for part, n in zip(parts, firsts)]
        return cls(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.segments for part in parts]),
            np.concatenate([*starts, [count]]),
            labels={},
            counts={name: len(part) for name, part in features.items()},
            task_labels={name: part.labels for name, part in features.items()},
            cut_rows=sum(part.cut_rows for part in parts),
        )

    @property
    def firsts(self) -> np.ndarray:
        """int64 [tasks], the first row of each task."""
        return np.cumsum([0, *self.counts.values()])[:-1]

    def fingerprint(self):
        """SHA-256 of all rows and labels, and of which task they are."""
        digest = hashlib.sha256(super().fingerprint().encode())
        for task, name, values in self._labels():
            digest.update(f"{scoped(task, name)} {len(values)}\0".encode())
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()

    def added(self, length):
        """`task_ids`, places in `counts`, and the labels of all tasks."""
        labels = {
            scoped(task, name): (values.shape[1:], values.dtype)
            for task, name, values in self._labels()
        }
        return {"task_ids": ((), np.int32), **labels}

    def finish(self, batch: Batch, rows: np.ndarray, step: Optional[int]):
        """Adds what `added` says, each [B, ...]."""
        firsts = dict(zip(self.counts, self.firsts))
        ids = np.searchsorted(self.firsts, rows, side="right") - 1
        batch["task_ids"] = ids.astype(np.int32)
        numbers = {task: number for number, task in enumerate(self.counts)}
        for task, name, values in self._labels():
            own = ids == numbers[task]
            labels = np.zeros((len(rows), *values.shape[1:]), values.dtype)
            labels[own] = values[rows[own] - firsts[task]]
            batch[scoped(task, name)] = labels

    def _labels(self) -> List[Tuple[str, str, np.ndarray]]:
        """(task, name, values) of all labels."""
        return [
            (task, name, labels[name])
            for task, labels in self.task_labels.items()
            for name in sorted(labels)
        ]


def choose_tasks(
    counts: Mapping[str, int],
    sampling: str,
    batch_size: int,
    num_steps: int,
    seed: int,
) -> np.ndarray:
    """Draws the task of every batch, each by itself.

    An epoch is as many batches as read as many rows as there are.

    Args:
        counts: rows of each task, by its name.
        sampling: of `SAMPLINGS`.
        batch_size: rows of a batch.
        num_steps: batches of the whole training.
        seed: of the draws.

    Returns:
        int64 [num_steps], places in `counts`.
    """
    rows = np.array(list(counts.values()), np.float64)
    drawn = np.random.default_rng([seed, 2]).random(num_steps)
    epochs = np.arange(num_steps) * batch_size // sum(counts.values()) + 1
    chosen = np.empty(num_steps, np.int64)
    found, starts = np.unique(epochs, return_index=True)
    for epoch, start, end in zip(found, starts, [*starts[1:], num_steps]):
        shares = rows ** SAMPLINGS[sampling](int(epoch), int(epochs[-1]))
        edges = np.cumsum(shares / shares.sum())[:-1]
        steps = slice(start, end)
        chosen[steps] = np.searchsorted(edges, drawn[steps], side="right")
    return chosen


class MultiTaskPlan:
    """The `input_pipeline.Plan` of a training on several tasks.

    Each task has a stream of rows of its own, as `TrainPlan` has, which goes on
    whenever the task is drawn.
    """

    def __init__(
        self,
        features: JoinedFeatures,
        sampling: str,
        batch_size: int,
        num_steps: int,
        seed: int,
        pool_batches: int,
    ):
        """Plans `num_steps` batches.

        Args:
            features: of all rows.
            sampling: of `SAMPLINGS`.
            batch_size: rows of a batch.
            num_steps: batches of the whole training.
            seed: of tasks, permutations and shuffles.
            pool_batches: of a task's own batches, as of `TrainPlan`.
        """
        self._sampling = sampling
        self._firsts = features.firsts
        self.tasks = choose_tasks(
            features.counts, sampling, batch_size, num_steps, seed
        )
        # How many batches its task has had before.
        self._places = np.empty(num_steps, np.int64)
        self._plans = []
        lengths = np.split(features.lengths, self._firsts[1:])
        for number, name in enumerate(features.counts):
            steps = np.flatnonzero(self.tasks == number)
            self._places[steps] = np.arange(len(steps))
            self._plans.append(
                TrainPlan(
                    lengths[number],
                    batch_size,
                    len(steps),
                    # No two tasks are shuffled alike.
                    seed ^ zlib.crc32(name.encode()),
                    pool_batches,
                )
            )

    def __repr__(self) -> str:
        return f"MultiTaskPlan({self._sampling}, {self._plans})"

    def rows(self, step: int) -> np.ndarray:
        """int64 [batch size], the rows of the batch of `step` (from 0)."""
        task = self.tasks[step]
        return self._firsts[task] + self._plans[task].rows(self._places[step])
