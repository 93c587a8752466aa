"""Takes one step out of a run, as functions of tensors.

`StepEngine` stands where a run has its engine. The run opens its files as
always, and ends with `StepTaken` in place of its first step.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from adapter_bert import optimization
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.optimization import Recipe, Schedule
from adapter_bert.progress import TrainingProgress
from adapter_bert.tasks.multi_task import as_predicted
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.training import devices, engines
from adapter_bert.training.engines import Course, Engine
from adapter_bert.training.prediction import Outputs, RowPredictor
from adapter_bert.training.training_step import Job, loss_and_gradients, predict

# Value of `--engine` of a run whose step is taken.
ENGINE = "step"
Arrays = dict[str, np.ndarray]
Tensors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a training, or without `schedule` of prediction."""

    job: Job
    batch: Batch
    cores: int
    schedule: Optional[Schedule]

    @property
    def rows(self) -> int:
        return len(self.batch["input_ids"])

    def with_rows(self, rows: int) -> "Step":
        """Gives the same step with a batch of other size, whose rows repeat."""
        places = np.arange(rows) % self.rows
        batch = {name: value[places] for name, value in self.batch.items()}
        if "row" in batch:
            batch["row"] = np.arange(rows, dtype=batch["row"].dtype)
        return dataclasses.replace(self, batch=batch)

    def values(self, are_read: bool = True) -> tuple[Arrays, Arrays, Arrays]:
        """Gives first values of frozen variables, of trained ones, of slots.

        By name: frozen ones in the dtype of `Job.dtype_of`, others in float32.
        All variables count as frozen in prediction.
        """
        frozen, trained = {}, {}
        for p in self.job.table.parameters:
            group, dtype = frozen, self.job.dtype_of(p.name).as_numpy_dtype
            if p.trained and self.schedule is not None:
                group, dtype = trained, np.float32
            value = np.broadcast_to(np.zeros((), dtype), p.shape)
            if are_read:
                value = np.asarray(self.job.initial_values[p.name]())
            group[p.name] = value.astype(dtype, copy=are_read)
        slots = {
            name: np.broadcast_to(np.float32(0), shape)
            for name, shape in self.job.table.slots.items()
            if self.schedule is not None
        }
        return frozen, trained, slots

    def shapes(self) -> tuple[Arrays, Arrays, Arrays]:
        """Gives zeros in the place of `values`, without reading any."""
        return self.values(are_read=False)

    def predict(self, frozen: Tensors, batch: Tensors) -> Tensors:
        """Gives the head's outputs for a core's rows, [B, ...] by name."""
        return predict(self.job, self._model(frozen), batch)

    def differentiate(
        self, frozen: Tensors, trained: Tensors, batch: Tensors, done: tf.Tensor
    ) -> tuple[tf.Tensor, Tensors]:
        """Gives a core's share of the loss, float32 [], and of the gradients.

        `trained` are float32 by name; `done` are int64 [], steps done before.
        """
        loss, gradients = loss_and_gradients(
            self.job,
            self._model({**frozen, **trained}),
            list(trained.items()),
            batch,
            done,
            self.rows,
        )
        return loss, dict(zip(trained, gradients))

    def update(
        self,
        trained: Tensors,
        slots: Tensors,
        gradients: Tensors,
        done: tf.Tensor,
    ) -> tuple[Tensors, Tensors]:
        """Gives new values of trained variables and slots, from gradients."""
        recipe: Recipe = self.job.table.recipe
        rates = optimization.rates_of(
            self.schedule, self.job.adam_bias_correction, done + 1
        )
        updated, kept = {}, {}
        clipped = optimization.clip(list(gradients.values()))
        for name, gradient in zip(gradients, clipped):
            slot_names = [f"{name}/{slot}" for slot in optimization.SLOTS]
            updated[name], *averages = optimization.updated(
                recipe.decay_of(name),
                recipe.rates.get(name, 1.0),
                trained[name],
                *(slots[slot] for slot in slot_names),
                gradient,
                *rates,
            )
            kept.update(zip(slot_names, averages))
        allocated = optimization.allocate(
            recipe.allocations,
            {**slots, **updated},
            dict(zip(gradients, clipped)),
            done + 1,
            self.schedule.num_train_steps,
        )
        for name, value in allocated.items():
            (updated if name in updated else kept)[name] = value
        return updated, kept

    def _model(self, values: Tensors) -> TaskModel:
        return self.job.build_model(lambda name, shape, make: values[name])


class StepTaken(Exception):
    """Ends a run whose step is known, with the rows that the run computes."""

    def __init__(self, step: Step, features: Features):
        super().__init__()
        self.step, self.features = step, features


class StepEngine(Engine):
    """Ends the run with its first step, and computes nothing."""

    has_accelerators = True

    def check_devices(self) -> None:
        hardware = self._hardware
        self.shards = (
            hardware.num_tpu_cores if hardware.use_tpu else hardware.num_devices
        )

    def train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:
        devices.choose_graph_optimizer(self._hardware, job.compute_dtype)
        batches = input_pipeline.train_batches(
            course.features, course.plan, range(1), job.length
        )
        step = Step(job, next(batches), self.shards, course.schedule)
        raise StepTaken(step, course.features)

    def _new_predictor(self, job: Job) -> RowPredictor:
        devices.choose_graph_optimizer(self._hardware, job.compute_dtype)
        return _StepPredictor(job, self.shards)


class _StepPredictor(RowPredictor):
    def _run(
        self, read: Callable[[], Iterator[list[Batch]]], features: Features
    ) -> Iterator[Outputs]:
        group = next(read())
        batch = {
            name: np.concatenate([part[name] for part in group])
            for name in group[0]
        }
        raise StepTaken(Step(self._job, batch, len(group), None), features)

    def load(self, values: dict[str, np.ndarray]) -> None:
        """Takes none: other values make the same step."""

    def close(self) -> None:
        """Frees nothing."""


def take(run: Callable[[], Any], predicted_rows: int = 0) -> Step:
    """Gives the first step of a run with the engine `ENGINE`.

    A training's model and rows are taken for a prediction of `predicted_rows`,
    if that is not 0.
    """
    engines.ENGINES[ENGINE] = f"{__name__}:{StepEngine.__name__}"
    try:
        taken = _taken(run)
    finally:
        del engines.ENGINES[ENGINE]
    if predicted_rows:
        predictor = _StepPredictor(taken.step.job, taken.step.cores)
        rows = as_predicted(taken.features), predicted_rows, "prediction"
        taken = _taken(lambda: predictor.predict(*rows))
    return taken.step


def _taken(compute: Callable[[], Any]) -> StepTaken:
    try:
        compute()
    except StepTaken as taken:
        return taken
    raise AssertionError("a run ends with its first step")
