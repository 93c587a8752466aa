"""Training and prediction with tf.distribute: CPU, GPUs, workers, TPUs.

Checkpoints are those of the TPUEstimator engine, so each goes on with the
other's run.
"""

from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import optimization
from adapter_bert.checkpoints import training_state
from adapter_bert.progress import TrainingProgress
from adapter_bert.training import devices, prediction
from adapter_bert.training.engines import Course, Engine, is_cluster
from adapter_bert.training.prediction import RowPredictor, StrategyPredictor
from adapter_bert.training.settings import Hardware
from adapter_bert.training.training_step import (
    Job,
    check_loss,
    loss_and_gradients,
)

# Steps of one call to GPUs: few enough to show progress.
GPU_STEPS = 10


class StrategyEngine(Engine):
    """Runs a `Job` with tf.distribute."""

    def __init__(self, hardware: Hardware):
        super().__init__(hardware)
        self._strategy = tf.distribute.get_strategy()

    def check_devices(self) -> None:
        self.lanes = devices.use_lanes(self._hardware)
        self._strategy = devices.strategy(self._hardware)
        self.shards = self._strategy.num_replicas_in_sync
        if is_cluster():
            from adapter_bert.training import multi_worker

            self.workers = multi_worker.count()
            self.is_chief = multi_worker.is_chief()
        logging.info(
            "devices: %d (%s)", self.shards, type(self._strategy).__name__
        )

    @property
    def _steps_per_call(self) -> int:
        if self._hardware.use_tpu:
            return self._hardware.iterations_per_loop
        return GPU_STEPS if tf.config.list_physical_devices("GPU") else 1

    def train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:
        devices.choose_graph_optimizer(self._hardware, job.compute_dtype)
        self._trained = None
        if self.workers == 1:
            self._train(job, course, progress)
            return
        from adapter_bert.training import multi_worker

        training = (
            course.schedule,
            course.batch_size,
            job.seed,
            job.table.method,
            job.compute_dtype,
            job.adam_bias_correction,
            job.about,
            course.plan,
            course.features.fingerprint(),
        )
        with multi_worker.one_line_of_lost_workers():
            multi_worker.check_agreement(
                self._strategy, course.first_step, repr(training)
            )
            self._train(job, course, progress)

    def _train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:
        strategy, stops = self._strategy, course.stops
        step, last_step = course.first_step, course.schedule.num_train_steps
        with strategy.scope():
            state = _TrainingState(job, course.schedule, step)

        def make_dataset(context: Any) -> tf.data.Dataset:
            count = self.shards // context.num_input_pipelines
            first = context.input_pipeline_id * count
            positions = range(first, first + count)
            return course.batches(job.length, self.shards, positions)

        def on_device(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            loss, gradients = loss_and_gradients(
                job,
                state.model,
                state.trained,
                batch,
                state.step,
                course.batch_size,
            )
            return state.optimizer.train(loss, gradients, state.step)[0]

        def one_step(batches: Iterator) -> tf.Tensor:
            loss = strategy.run(on_device, args=(next(batches),))
            return strategy.experimental_local_results(loss)[0]

        # AutoGraph would translate every function that is called here.
        @tf.function(autograph=False)
        def train_steps(batches: Iterator, count: tf.Tensor) -> tf.Tensor:
            if self._steps_per_call == 1:
                return one_step(batches)[tf.newaxis]
            _, losses = tf.while_loop(
                lambda number, _: number < count,
                lambda number, losses: (
                    number + 1,
                    losses.write(number, one_step(batches)),
                ),
                [tf.constant(0), tf.TensorArray(tf.float32, count)],
            )
            return losses.stack()

        # The chief of several workers predicts alone, else the training's own
        # variables do.
        alone, predictor = self.workers > 1, None
        if not alone:
            built = state.model, dict(state.trained)
            predictor = StrategyPredictor(job, strategy, built)
        elif self.is_chief and stops:
            predictor = self._new_predictor(job)
        batches = iter(strategy.distribute_datasets_from_function(make_dataset))
        save_at = step
        while step < last_step:
            if step == save_at:
                save_at += course.save_checkpoints_steps
                save_at = min(
                    save_at, last_step, *(s for s in stops if s > step)
                )
            count = min(self._steps_per_call, save_at - step)
            for loss in _run(train_steps, batches, tf.constant(count)):
                step += 1
                count -= 1
                check_loss(step, loss)
                # The steps of one call end together.
                progress.update(step, loss, is_timed=not count)
            if step == save_at and self.is_chief:
                values = state.values()
                training_state.save_training(job.output_dir, step, values)
                if step in stops:
                    if alone:
                        predictor.load({n: values[n] for n, _ in state.trained})
                    if course.look(step, predictor):
                        break
        if predictor is not None:
            self._trained = job, step, predictor

    def _new_predictor(self, job: Job) -> RowPredictor:
        devices.choose_graph_optimizer(self._hardware, job.compute_dtype)
        alone = self.workers > 1
        return StrategyPredictor(
            job, tf.distribute.get_strategy() if alone else self._strategy
        )


def _run(
    train_steps: Callable, batches: Iterator, count: tf.Tensor
) -> list[float]:
    return train_steps(batches, count).numpy().tolist()


class _TrainingState:
    def __init__(self, job: Job, schedule: optimization.Schedule, step: int):
        """Takes the newest checkpoint's values, else initial ones and zeros."""
        saved = prediction.newest_checkpoint(job)
        self.model, trained = prediction.build(job, saved, is_trained=True)
        self.trained = list(trained.items())
        self.step = tf.Variable(step, dtype=tf.int64, trainable=False)
        slots = {
            name: tf.Variable(
                saved.read(name) if saved else np.zeros(shape, np.float32),
                trainable=False,
            )
            for name, shape in job.table.slots.items()
        }
        self._saved = {**trained, **slots}
        self.optimizer = optimization.AdamWeightDecay(
            self.trained,
            slots,
            schedule,
            job.table.recipe,
            job.adam_bias_correction,
        )

    def values(self) -> dict[str, np.ndarray]:
        values = {name: v.numpy() for name, v in self._saved.items()}
        values["global_step"] = self.step.numpy()
        return values
