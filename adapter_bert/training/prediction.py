"""Variables of a model; predictions, in row order, of rows in batches."""

import abc
import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.checkpoints import google, training_state
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.errors import UserError
from adapter_bert.progress import Progress
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.training.training_step import Job, predict

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


# A model, and its trained variables by name.
Built = tuple[TaskModel, dict[str, tf.Variable]]


class StrategyPredictor(RowPredictor):
    """Predicts with one function on all devices."""

    def __init__(
        self,
        job: Job,
        strategy: tf.distribute.Strategy,
        built: Optional[Built] = None,
    ):
        super().__init__(job, strategy.num_replicas_in_sync)
        self._strategy = strategy
        self._built = built
        self._compute: Optional[Callable] = None

    def _run(
        self, read: Callable[[], Iterator[list[Batch]]], features: Features
    ) -> Iterator[Outputs]:
        model, _ = self._build()
        if self._compute is None:
            self._compute = self._make_function(model, features)
        compute = self._compute
        if not self._job.length:
            # A plain call warns: it takes models of several runs for one
            # function that is retraced.
            compute = compute.get_concrete_function()
        for group in read():
            yield {
                name: input_pipeline.join_outputs(
                    [part.numpy() for part in parts]
                )
                for name, parts in compute(group).items()
            }

    def _build(self) -> Built:
        if self._built is None:
            with self._strategy.scope():
                saved = newest_checkpoint(self._job)
                self._built = build(self._job, saved, is_trained=False)
        return self._built

    def _make_function(self, model: TaskModel, features: Features) -> Callable:
        job, strategy = self._job, self._strategy
        signature = None
        if not job.length:
            # One graph for batches of all sizes.
            batch = input_pipeline.batch_signature(features, None, None)
            signature = [[batch] * strategy.num_replicas_in_sync]

        @tf.function(input_signature=signature, autograph=False)
        def compute(group: list[dict[str, tf.Tensor]]) -> dict[str, Any]:
            batch = strategy.experimental_distribute_values_from_function(
                lambda context: group[context.replica_id_in_sync_group]
            )
            outputs = strategy.run(
                lambda batch: predict(job, model, batch), args=(batch,)
            )
            return {
                name: strategy.experimental_local_results(value)
                for name, value in outputs.items()
            }

        return compute

    def load(self, values: dict[str, np.ndarray]) -> None:
        _, variables = self._build()
        for name, value in values.items():
            variables[name].assign(value)

    def close(self) -> None:
        self._built = self._compute = None


def newest_checkpoint(job: Job) -> Optional[Weights]:
    """Opens the newest checkpoint in the job's folder, if any."""
    path, _ = training_state.latest_step(job.output_dir)
    return google.open_tensorflow(path) if path else None


def build(job: Job, saved: Optional[Weights], is_trained: bool) -> Built:
    """Builds a job's model in a strategy's scope, of first or saved values."""
    made = {}
    for p in job.table.parameters:
        read = job.initial_values[p.name]
        if saved and p.trained:
            read = functools.partial(saved.read, p.name)
        if p.name in job.quantized:
            from adapter_bert.bert import int8

            made[p.name] = int8.make_variables(p.name, read())
            continue
        made[p.name] = tf.Variable(
            tf.cast(read(), job.dtype_of(p.name)),
            trainable=is_trained and p.trained,
        )
    model = job.build_model(lambda name, *_: made[name])
    return model, {p.name: made[p.name] for p in job.table.trained}
