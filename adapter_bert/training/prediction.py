"""Prediction: which rows a device gets at once, and outputs in row order.

Every engine has a `Predictor` of its own, which computes the batches.
"""

import abc
import contextlib
from typing import Any, Dict, Iterator, List, Mapping

import numpy as np

from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.errors import UserError
from adapter_bert.progress import Progress
from adapter_bert.training.training_step import Job

# The head's outputs for some rows, by name.
Outputs = Dict[str, np.ndarray]


def check_finite(outputs: Outputs, what: str) -> None:
    """Refuses outputs [rows, ...] that are infinite or no number.

    Raises:
        UserError: there are some; names the number of rows.
    """
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


class Predictor(contextlib.AbstractContextManager):
    """Predicts any number of splits with a model that is built once.

    The model is built on first use, from the newest checkpoint in the job's
    folder, else from the job's initial values. `close`, or the end of a `with`,
    frees it.
    """

    def __init__(self, job: Job, shards: int):
        """Takes the job, and how many devices compute a batch each."""
        self._job = job
        self._shards = shards
        self._is_closed = False

    def predict(
        self, features: Features, batch_size: int, what: str
    ) -> Outputs:
        """Predicts every row.

        Args:
            features: of the split, at least one row; labels are not read.
            batch_size: rows at once, over all devices; more of short rows
                (`Job.predict_tokens`).
            what: name of the work, for the progress bar.

        Returns:
            The head's outputs by name, [rows, ...], in row order.
        """
        self._check_open()
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
        groups = (
            [
                input_pipeline.make_batch(features, rows, self._job.length)
                for rows in filled[first : first + self._shards]
            ]
            for first in range(0, len(filled), self._shards)
        )
        outputs: Dict[str, List[np.ndarray]] = {}
        progress = Progress(what, len(features), "examples")
        done = 0
        for found in self._run(groups, features):
            for name, value in found.items():
                outputs.setdefault(name, []).append(value)
            rows = len(value)
            progress.update(min(rows, len(features) - done))
            done += rows
        progress.close()
        return {
            name: input_pipeline.restore_order(batches, values)
            for name, values in outputs.items()
        }

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Sets every trained variable; the rest of the model stays.

        Args:
            values: float32 arrays by name.

        Raises:
            ValueError: a name is missing or unknown, or a shape is another.
        """
        self._check_open()
        expected = {p.name: p.shape for p in self._job.table.trained}
        for name in sorted(set(expected) ^ set(values)):
            problem = "is missing" if name in expected else "is not trained"
            raise ValueError(f"the variable {name} {problem}")
        arrays = {n: np.asarray(v, np.float32) for n, v in values.items()}
        for name, value in arrays.items():
            if value.shape != expected[name]:
                raise ValueError(
                    f"{name} has the shape {list(value.shape)}; expected "
                    f"{list(expected[name])}"
                )
        self._assign(arrays)

    def close(self) -> None:
        """Frees the model; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._release()

    def __exit__(self, *error: Any) -> None:
        """Closes it."""
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the predictor is closed")

    @abc.abstractmethod
    def _run(
        self, groups: Iterator[List[Batch]], features: Features
    ) -> Iterator[Outputs]:
        """Computes groups of one batch for each device, in order.

        Yields:
            The outputs of all rows of a group, the first device's first.
        """

    @abc.abstractmethod
    def _assign(self, values: Dict[str, np.ndarray]) -> None:
        """Sets every trained variable to a float32 array of its shape."""

    @abc.abstractmethod
    def _release(self) -> None:
        """Frees variables and graph."""
