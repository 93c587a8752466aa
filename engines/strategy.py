"""Training and prediction with tf.distribute: CPU, GPUs, workers, TPUs.

Runs on TensorFlow 2.15 and every later one. Trained variables, their slots and
the step are saved as the TPUEstimator engine saves them, under the same names,
so each engine goes on with the other's run.
"""

import contextlib
import functools
from typing import Any, Dict, Iterator, List, Optional

import numpy as np
import tensorflow as tf
from absl import logging

import input_pipeline
import optimization
from engines import Hardware, Job, devices, replicas
from engines.training_step import check_loss, loss_and_gradients, predict
from errors import UserError
from input_pipeline import Batch, Features, TrainPlan
from progress import Progress, TrainingProgress
from weights import google, training_state
from weights.base import InitialValues, Weights


class StrategyEngine:
    """Runs a `Job` with tf.distribute."""

    def __init__(self, hardware: Hardware):
        """Prepares TensorFlow for reproducible computation."""
        self._hardware = hardware
        self._strategy = tf.distribute.get_strategy()
        self.is_chief = True
        self.workers = 1
        self.lanes = 1
        tf.config.experimental.enable_op_determinism()

    def check_devices(self) -> None:
        """Looks for the devices and, under TF_CONFIG, the other workers.

        Raises:
            UserError: a device is missing, or TF_CONFIG cannot be used.
        """
        self.lanes = devices.use_lanes(self._hardware)
        self._strategy = devices.strategy(self._hardware)
        self.is_chief = devices.is_chief(self._strategy)
        self.workers = devices.count_workers(self._strategy)
        logging.info(
            "devices: %d (%s)",
            self.shards,
            type(self._strategy).__name__,
        )

    @property
    def shards(self) -> int:
        """Devices that a batch is divided among, those of all workers."""
        return self._strategy.num_replicas_in_sync

    def train(
        self,
        job: Job,
        features: Features,
        plan: TrainPlan,
        schedule: optimization.Schedule,
        first_step: int,
        batch_size: int,
        save_checkpoints_steps: int,
        progress: TrainingProgress,
    ) -> None:
        """Trains from `first_step` on; arguments as `EstimatorEngine.train`.

        Raises:
            UserError: the loss is no number any more, or the workers see
                different checkpoints, or one of them has stopped.
        """
        with _other_workers(self._strategy):
            self._train(
                job,
                features,
                plan,
                schedule,
                first_step,
                batch_size,
                save_checkpoints_steps,
                progress,
            )

    def _train(
        self,
        job: Job,
        features: Features,
        plan: TrainPlan,
        schedule: optimization.Schedule,
        first_step: int,
        batch_size: int,
        save_checkpoints_steps: int,
        progress: TrainingProgress,
    ) -> None:
        """Trains, as `train`; raises also what comes of a lost worker."""
        strategy, last_step = self._strategy, schedule.num_train_steps
        shards = self.shards
        self._check_agreement(first_step)
        with strategy.scope():
            state = _TrainingState(job, schedule, first_step)

        def make_dataset(context: Any) -> tf.data.Dataset:
            count = shards // context.num_input_pipelines
            first = context.input_pipeline_id * count

            def generate() -> Iterator[Batch]:
                return input_pipeline.train_batches(
                    features,
                    plan,
                    range(first_step, last_step),
                    job.length,
                    shards,
                    range(first, first + count),
                )

            return input_pipeline.to_dataset(
                generate,
                features,
                job.length,
                batch_size // shards,
                with_labels=True,
            )

        def on_device(batch: Dict[str, tf.Tensor]) -> tf.Tensor:
            loss, gradients = loss_and_gradients(
                job, state.model, state.trained, batch, state.step, batch_size
            )
            return replicas.train(state.optimizer, loss, gradients, state.step)[
                0
            ]

        @tf.function
        def train_steps(batches: Iterator, count: tf.Tensor) -> tf.Tensor:
            loss = tf.constant(0.0)
            for _ in tf.range(count):
                losses = strategy.run(on_device, args=(next(batches),))
                loss = strategy.experimental_local_results(losses)[0]
            return loss

        batches = iter(strategy.distribute_datasets_from_function(make_dataset))
        # A TPU should not wait for its host after every step.
        loop = (
            self._hardware.iterations_per_loop if self._hardware.use_tpu else 1
        )
        step, save_at = first_step, first_step
        while step < last_step:
            if step == save_at:
                save_at = min(step + save_checkpoints_steps, last_step)
            count = min(loop, save_at - step)
            loss = float(train_steps(batches, tf.constant(count)))
            step += count
            check_loss(step, loss)
            progress.update(step, loss)
            if step == save_at and self.is_chief:
                training_state.save_training(
                    job.output_dir, step, state.values()
                )

    def _check_agreement(self, first_step: int) -> None:
        """Compares the step that the workers begin at.

        Raises:
            UserError: they see different checkpoints.
        """
        if not devices.is_multi_worker(self._strategy):
            return

        @tf.function
        def steps() -> tf.Tensor:
            return self._strategy.run(
                lambda: tf.distribute.get_replica_context().all_gather(
                    tf.constant([first_step]), axis=0
                )
            )

        found = self._strategy.experimental_local_results(steps())[0].numpy()
        if len(set(found.tolist())) > 1:
            raise UserError(
                "the workers see different checkpoints in --output_dir (steps "
                f"{sorted(set(found.tolist()))}); it must be one folder that "
                "all of them share"
            )

    def predict(
        self, job: Job, features: Features, batch_size: int, what: str
    ) -> Dict[str, np.ndarray]:
        """Predicts every row; arguments as `EstimatorEngine.predict`."""
        strategy = devices.prediction_strategy(self._strategy)
        shards = strategy.num_replicas_in_sync
        size = -(-batch_size // shards)
        batches = input_pipeline.sorted_batches(features, size)
        # Every device gets a whole batch each time; outputs of the rows that
        # fill up are dropped.
        filled = input_pipeline.fill(batches, size) if job.length else batches
        filled = filled + filled[-1:] * (-len(filled) % shards)
        with strategy.scope():
            values = _first_values(job, _newest_checkpoint(job))
            model = job.build_model(_creator(values, set(), {}))

        def generate() -> Iterator[Batch]:
            for rows in filled:
                batch = input_pipeline.make_batch(features, rows, job.length)
                for name in features.labels:
                    del batch[name]
                yield batch

        @tf.function
        def predict_batches(batches: Iterator) -> Dict[str, tf.Tensor]:
            return strategy.run(
                lambda batch: predict(job, model, batch), args=(next(batches),)
            )

        inputs = iter(
            strategy.distribute_datasets_from_function(
                lambda _: input_pipeline.to_dataset(
                    generate,
                    features,
                    job.length,
                    size if job.length else None,
                    with_labels=False,
                )
            )
        )
        outputs: Dict[str, List[np.ndarray]] = {}
        progress = Progress(what, len(features), "examples")
        done = 0
        while done < len(features):
            rows = 0
            for name, value in predict_batches(inputs).items():
                parts = strategy.experimental_local_results(value)
                outputs.setdefault(name, []).extend(p.numpy() for p in parts)
                rows = sum(len(part) for part in parts)
            progress.update(min(rows, len(features) - done))
            done += rows
        progress.close()
        return {
            name: input_pipeline.restore_order(
                batches, [np.concatenate(values)[: len(features)]]
            )
            for name, values in outputs.items()
        }


# What TensorFlow raises, at one place or another, where a worker is lost.
LOST_WORKER = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)


@contextlib.contextmanager
def _other_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Makes one line of what comes of a worker that has stopped.

    Raises:
        UserError: another worker has stopped.
    """
    try:
        yield
    except LOST_WORKER as error:
        if not devices.is_multi_worker(strategy):
            raise
        raise UserError(
            "another worker has stopped; see its log, then start all of them "
            f"again ({str(error).splitlines()[0]})"
        ) from error


class _TrainingState:
    """The variables of a training: the model's, the optimizer's, the step."""

    def __init__(self, job: Job, schedule: optimization.Schedule, step: int):
        """Makes them with the values of the folder's newest checkpoint.

        Without one, trained variables get their initial values and slots zero.
        """
        saved = _newest_checkpoint(job)
        names = {p.name for p in job.table.trained}
        variables: Dict[str, tf.Variable] = {}
        self.model = job.build_model(
            _creator(_first_values(job, saved), names, variables)
        )
        self.trained = [(p.name, variables[p.name]) for p in job.table.trained]
        self.step = tf.Variable(step, dtype=tf.int64, trainable=False)
        self._saved = dict(self.trained)

        def create_slot(name: str, shape: Any) -> tf.Variable:
            value = saved.read(name) if saved else np.zeros(shape, np.float32)
            self._saved[name] = tf.Variable(value, trainable=False)
            return self._saved[name]

        self.optimizer = optimization.AdamWeightDecay(
            self.trained,
            schedule,
            create_slot,
            job.table.recipe,
            job.adam_bias_correction,
        )

    def values(self) -> Dict[str, np.ndarray]:
        """What a checkpoint holds, by name."""
        values = {name: v.numpy() for name, v in self._saved.items()}
        values["global_step"] = self.step.numpy()
        return values


def _newest_checkpoint(job: Job) -> Optional[Weights]:
    path, _ = training_state.latest_step(job.output_dir)
    return google.open_tensorflow(path) if path else None


def _first_values(job: Job, saved: Optional[Weights]) -> InitialValues:
    """First values of every variable: of what is trained, those saved."""
    values = dict(job.initial_values)
    if saved is not None:
        for p in job.table.trained:
            values[p.name] = functools.partial(saved.read, p.name)
    return values


def _creator(
    values: InitialValues,
    trained: set,
    variables: Dict[str, tf.Variable],
):
    """A `create` that makes variables on the devices and notes them by name."""

    def create(name, shape, initializer):
        del shape, initializer  # The values have been chosen already.
        if name in variables:
            raise ValueError(f"the variable name {name} is taken twice")
        variables[name] = tf.Variable(
            values[name](), trainable=name in trained, dtype=tf.float32
        )
        return variables[name]

    return create
