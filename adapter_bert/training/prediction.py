"""Prediction: which rows a device gets at once, and outputs in row order."""

import abc
import contextlib
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np

from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.errors import UserError
from adapter_bert.progress import Progress
from adapter_bert.training.training_step import Job

# The head's outputs for some rows, by name.
Outputs = dict[str, np.ndarray]


def check_finite(outputs: Outputs, what: str) -> None:
    """Refuses outputs [rows, ...] that are infinite or no number."""
    bad = np.any(
        [
            ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
            for values in outputs.values()
        ],
        axis=0,
    )
    if bad.any():
        raise UserError(
            f"{what}: the model's outputs for {bad.sum()} of {len(bad)} rows "
            "are infinite or no numbers: the weights hold such values, or the "
            "training diverged; check --init_checkpoint, or train again with "
            "a lower --learning_rate and another --output_dir"
        )


class RowPredictor(contextlib.AbstractContextManager):
    """Predicts any number of splits with a model that is built once.

    The model has the values of the newest checkpoint in the job's folder, else
    the job's initial values. `close`, or the end of a `with`, frees it.
    """

    def __init__(self, job: Job, shards: int):
        self._job = job
        self._shards = shards

    def predict(
        self, features: Features, batch_size: int, what: str
    ) -> Outputs:
        """Gives the head's outputs for every row by name, [rows, ...].

        `batch_size` counts rows over all devices; short rows are more at once
        (`Job.predict_tokens`). The progress bar has the name `what`.
        """
        features = features.unlabelled()
        size = -(-batch_size // self._shards)
        tokens = 0 if self._job.length else self._job.predict_tokens
        batches = input_pipeline.sorted_batches(features, size, tokens)
        # Every device gets a whole batch each time; outputs of the rows that
        # fill up are dropped.
        filled = batches
        if self._job.length:
            filled = input_pipeline.fill(batches, size)
        filled = filled + filled[-1:] * (-len(filled) % self._shards)
        outputs: dict[str, list[np.ndarray]] = {}
        progress = Progress(what, len(features), "examples")
        done = 0
        groups = self._run(
            lambda: (
                [
                    input_pipeline.make_batch(features, rows, self._job.length)
                    for rows in filled[first : first + self._shards]
                ]
                for first in range(0, len(filled), self._shards)
            ),
            features,
        )
        for group in groups:
            for name, value in group.items():
                outputs.setdefault(name, []).append(value)
            rows = len(value)
            progress.update(min(rows, len(features) - done))
            done += rows
        progress.close()
        return {
            name: input_pipeline.restore_order(batches, values)
            for name, values in outputs.items()
        }

    def __exit__(self, *error: Any) -> None:
        self.close()

    @abc.abstractmethod
    def _run(
        self, read: Callable[[], Iterator[list[Batch]]], features: Features
    ) -> Iterator[Outputs]:
        """Yields outputs of groups of one batch for each device, in order."""

    @abc.abstractmethod
    def load(self, values: dict[str, np.ndarray]) -> None:
        """Sets all trained variables to float32 arrays; others stay."""

    @abc.abstractmethod
    def close(self) -> None:
        """Frees variables and graph."""
