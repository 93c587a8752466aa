"""Many tasks upon one BERT, asked in several ways; for `lab/speed/serving.py`.

A process holds a BERT and tasks. At each line on stdin it measures each way
once: rows of one task, rows of a random mix in common batches, and the same
rows one task after another.
"""

import gc
import json
import sys
import time
from typing import Any, Dict, List

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf

from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.loaded_task import LoadedTask, load_task
from adapter_bert.serving.mixed_bert import MixedBert
from lab.speed.predictor import resident_memory

WAYS = ("one", "mixed", "one after another")


class Tasks:
    """Tasks in memory, and rows for them."""

    def __init__(self, options: Dict[str, Any]):
        """Loads the tasks.

        Args:
            options: `model` and `folders`; `batches` of `batch_size` rows of
                `tokens` are measured.
        """
        self._options = options
        self._rng = np.random.default_rng(0)
        self._bert = FrozenBert.open(options["model"])
        self._tasks: List[LoadedTask] = [
            load_task(self._bert, folder, None) for folder in options["folders"]
        ]
        self._tables = MixedBert(self._bert)
        self._are_mixed = all(task.can_mix for task in self._tasks)
        if self._are_mixed:
            self._tables.reserve(task.kind for task in self._tasks)
            self._places = [
                task.values.place(task.kind, self._tables)
                for task in self._tasks
            ]
            # Once, so that all of its memory is there.
            self._mixed(self._rows(), self._choose())
        gc.collect()
        self.memory = resident_memory()
        # For the ways of single tasks, which do not read tables.
        self._values = [
            {name: tf.identity(v) for name, v in task.values.get().items()}
            for task in self._tasks
        ]

    def _rows(self) -> np.ndarray:
        shape = (self._options["batches"], self._options["batch_size"])
        shape += (self._options["tokens"],)
        words = self._bert.config.vocab_size
        return self._rng.integers(0, words, shape).astype(np.int32)

    def _choose(self) -> np.ndarray:
        """Tasks of all rows; different ones within a batch, if there are."""
        count, size = len(self._tasks), self._options["batch_size"]
        return np.stack(
            [
                self._rng.choice(count, size, replace=size > count)
                for _ in range(self._options["batches"])
            ]
        )

    def measure(self) -> Dict[str, float]:
        """Rows a second in each of the ways that are possible."""
        rows, chosen = self._rows(), self._choose()
        ones = self._rng.integers(0, len(self._tasks), len(rows))
        found = {"one": _seconds(self._one, rows, ones)}
        if self._are_mixed:
            found["mixed"] = _seconds(self._mixed, rows, chosen)
        found["one after another"] = _seconds(self._in_turn, rows, chosen)
        return {way: chosen.size / s for way, s in found.items()}

    def _one(self, rows: np.ndarray, ones: np.ndarray) -> None:
        """Batches of one task each."""
        for ids, number in zip(rows, ones):
            self._alone(ids, number)

    def _mixed(self, rows: np.ndarray, chosen: np.ndarray) -> None:
        """Batches of all tasks."""
        for ids, tasks in zip(rows, chosen):
            numbers = [self._places[n].task.number for n in tasks]
            batch = _features(ids)
            batch["task"] = np.array(numbers, np.int32)[:, np.newaxis]
            batch["question"] = np.arange(len(ids), dtype=np.int32)[:, None]
            self._tables.compute(batch)

    def _in_turn(self, rows: np.ndarray, chosen: np.ndarray) -> None:
        """All rows of the first task, then all of the second one."""
        flat = rows.reshape(-1, rows.shape[-1])
        for number in np.unique(chosen):
            own = flat[chosen.ravel() == number]
            for first in range(0, len(own), rows.shape[1]):
                self._alone(own[first : first + rows.shape[1]], number)

    def _alone(self, ids: np.ndarray, number: int) -> None:
        batch = _features(ids)
        batch["row"] = np.arange(len(ids), dtype=np.int32)
        self._tasks[number].kind.compute(self._values[number], batch)


def _features(ids: np.ndarray) -> Dict[str, np.ndarray]:
    return {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": np.zeros_like(ids),
    }


def _seconds(compute: Any, *arguments: Any) -> float:
    began = time.perf_counter()
    compute(*arguments)
    return time.perf_counter() - began


def main() -> None:
    """Serves requests."""
    tasks = Tasks(json.loads(sys.argv[1]))
    for _ in sys.stdin:
        found = {**tasks.measure(), "memory_bytes": tasks.memory}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
