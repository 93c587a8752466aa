"""Predicts with tf.distribute: outside of TPUs, for both engines."""

import functools
from collections.abc import Iterator
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.bert import int8
from adapter_bert.checkpoints import google, training_state
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.training.prediction import Outputs, RowPredictor
from adapter_bert.training.training_step import Job, predict

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
        for group in read():
            yield {
                name: input_pipeline.join_outputs(
                    [part.numpy() for part in parts]
                )
                for name, parts in self._compute(group).items()
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
            made[p.name] = int8.make_variables(p.name, read())
            continue
        made[p.name] = tf.Variable(
            tf.cast(read(), job.dtype_of(p.name)),
            trainable=is_trained and p.trained,
        )
    model = job.build_model(lambda name, *_: made[name])
    return model, {p.name: made[p.name] for p in job.table.trained}
