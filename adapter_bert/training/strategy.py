"""Training and prediction with tf.distribute: CPU, GPUs, workers, TPUs.

Runs on TensorFlow 2.15 and every later one. Trained variables, their slots and
the step are saved as the TPUEstimator engine saves them, under the same names,
so each engine goes on with the other's run.
"""

import contextlib
import functools
import hashlib
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import optimization
from adapter_bert.checkpoints import google, training_state
from adapter_bert.checkpoints.weights import InitialValues, Weights
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Batch, Features, Plan
from adapter_bert.errors import UserError, first_line
from adapter_bert.optimization import AdamWeightDecay, clip
from adapter_bert.progress import TrainingProgress
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.training import devices, multi_worker
from adapter_bert.training.engines import NO_PAUSE, Hardware, Job, Pause
from adapter_bert.training.prediction import Outputs, Predictor, Trained
from adapter_bert.training.training_step import (
    check_loss,
    loss_and_gradients,
    predict,
)

# Steps of one call to GPUs: few enough that progress is seen.
GPU_STEPS = 10
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
# A model, and its trained variables by name.
Built = Tuple[TaskModel, Dict[str, tf.Variable]]


def train(
    optimizer: AdamWeightDecay,
    loss: tf.Tensor,
    gradients: Sequence[tf.Tensor],
    step: tf.Variable,
) -> Tuple[tf.Tensor, List[tf.Operation]]:
    """Adds up over all devices, clips, and updates every copy alike.

    Called on each device, or on the only one. Every device computes the same
    update of its own copy, so that no variable has to travel.

    Args:
        optimizer: holds the variables and their slots.
        loss: float32 [], this device's share.
        gradients: this device's shares.
        step: integer [], counted up by one.

    Returns:
        The whole batch's loss, float32 [], and the updates.
    """
    replica = tf.distribute.get_replica_context()
    loss, *gradients = replica.all_reduce(
        tf.distribute.ReduceOp.SUM, [loss, *gradients]
    )
    rates = optimizer.rates(tf.convert_to_tensor(step) + 1)

    def update(strategy, gradients, *rates) -> List[tf.Operation]:
        def on_device(function: Callable, variable: Any, *args: Any):
            return strategy.extended.update(
                variable, function, args=args, group=False
            )

        updates = optimizer.apply(gradients, rates, on_device)
        # Everything else of this step reads the step before it is counted.
        with tf.control_dependencies(tf.nest.flatten(updates)):
            updates.append(
                on_device(lambda step: tf.group(step.assign_add(1)), step)
            )
        return tf.nest.flatten(updates)

    updates = replica.merge_call(update, args=(clip(gradients), *rates))
    return loss, updates


def _one_line_of_lost_workers(train: Callable) -> Callable:
    """Makes one line of what comes of a worker that has stopped."""

    @functools.wraps(train)
    def guarded(engine: "StrategyEngine", *arguments: Any) -> None:
        try:
            train(engine, *arguments)
        except LOST_WORKER as error:
            if engine.workers == 1:
                raise
            raise UserError(
                "another worker has stopped; see its log, then start all of "
                f"them again ({first_line(error)})"
            ) from error

    return guarded


class StrategyEngine:
    """Runs a `Job` with tf.distribute."""

    def __init__(self, hardware: Hardware):
        """Prepares TensorFlow for reproducible computation."""
        self._hardware = hardware
        self._strategy = tf.distribute.get_strategy()
        self.is_chief = True
        self.can_pause = True
        self.workers = 1
        self.lanes = 1
        self._trained: Optional[Trained] = None
        tf.config.experimental.enable_op_determinism()

    def check_devices(self) -> None:
        """Looks for the devices and, under TF_CONFIG, the other workers.

        Raises:
            UserError: a device is missing, or TF_CONFIG cannot be used.
        """
        self.lanes = devices.use_lanes(self._hardware)
        self._strategy = devices.strategy(self._hardware)
        self.is_chief = multi_worker.is_chief(self._strategy)
        self.workers = multi_worker.count_workers(self._strategy)
        logging.info(
            "devices: %d (%s)",
            self.shards,
            type(self._strategy).__name__,
        )

    @property
    def _steps_per_call(self) -> int:
        """Steps of a training between two returns to the host.

        An accelerator waits for its host as long as that reads a loss.
        """
        if self._hardware.use_tpu:
            return self._hardware.iterations_per_loop
        return GPU_STEPS if tf.config.list_physical_devices("GPU") else 1

    @property
    def shards(self) -> int:
        """Devices that a batch is divided among, those of all workers."""
        return self._strategy.num_replicas_in_sync

    @_one_line_of_lost_workers
    def train(
        self,
        job: Job,
        features: Features,
        plan: Plan,
        schedule: optimization.Schedule,
        first_step: int,
        batch_size: int,
        save_checkpoints_steps: int,
        progress: TrainingProgress,
        pause: Pause = NO_PAUSE,
    ) -> None:
        """Trains from `first_step` on; arguments as `EstimatorEngine.train`.

        Raises:
            UserError: the loss is no number any more, or the workers see
                different checkpoints, or one of them has stopped.
        """
        devices.choose_graph_optimizer(self._hardware, job.compute_dtype)
        strategy, last_step = self._strategy, schedule.num_train_steps
        shards = self.shards
        self._trained = None
        self._check_agreement(
            first_step,
            repr(
                (
                    schedule,
                    batch_size,
                    job.seed,
                    job.table.method,
                    job.compute_dtype,
                    job.adam_bias_correction,
                    plan,
                    features.fingerprint(),
                )
            ),
        )
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
            )

        def on_device(batch: Dict[str, tf.Tensor]) -> tf.Tensor:
            loss, gradients = loss_and_gradients(
                job, state.model, state.trained, batch, state.step, batch_size
            )
            return train(state.optimizer, loss, gradients, state.step)[0]

        def one_step(batches: Iterator) -> tf.Tensor:
            loss = strategy.run(on_device, args=(next(batches),))
            return strategy.experimental_local_results(loss)[0]

        # AutoGraph would translate all that is called from here.
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

        # Predicts with the training's own variables.
        variables = dict(state.trained)
        predictor = None
        if not multi_worker.is_multi_worker(strategy):
            built = state.model, variables
            predictor = _StrategyPredictor(job, strategy, built)
        elif self.is_chief and pause.steps:
            predictor = self.predictor(job)
        batches = iter(strategy.distribute_datasets_from_function(make_dataset))
        step, save_at = first_step, first_step
        while step < last_step:
            if step == save_at:
                stops = [s for s in pause.steps if s > step]
                save_at = min(step + save_checkpoints_steps, last_step, *stops)
            count = min(self._steps_per_call, save_at - step)
            for loss in _run(train_steps, batches, tf.constant(count)):
                step += 1
                count -= 1
                check_loss(step, loss)
                # Steps of one call have been done by its end.
                progress.update(step, loss, is_timed=not count)
            if step == save_at and self.is_chief:
                values = state.values()
                training_state.save_training(job.output_dir, step, values)
                if step in pause.steps:
                    if multi_worker.is_multi_worker(strategy):
                        predictor.load({n: values[n] for n in variables})
                    if pause.look(step, predictor):
                        break
        if predictor is not None:
            self._trained = Trained(job, step, predictor)

    def _check_agreement(self, first_step: int, training: str) -> None:
        """Compares where the workers begin, and what they are to train.

        Args:
            first_step: steps done before.
            training: what decides the training's result, as text.

        Raises:
            UserError: they see different checkpoints, flags or data.
        """
        if not multi_worker.is_multi_worker(self._strategy):
            return

        digest = hashlib.sha256(training.encode()).digest()
        mine = [[first_step, int.from_bytes(digest[:7], "big")]]

        @tf.function(autograph=False)
        def gather() -> tf.Tensor:
            return self._strategy.run(
                lambda: tf.distribute.get_replica_context().all_gather(
                    tf.constant(mine, tf.int64), axis=0
                )
            )

        found = self._strategy.experimental_local_results(gather())[0].numpy()
        steps, digests = (sorted(set(values)) for values in found.T.tolist())
        if len(steps) == len(digests) == 1:
            return
        # A worker that ended now could take the answer from one that is still
        # receiving it: what comes second begins when all have it.
        with contextlib.suppress(tf.errors.OpError):
            gather()
        if len(steps) > 1:
            raise UserError(
                "the workers see different checkpoints in --output_dir (steps "
                f"{steps}); it must be one folder that all of them share"
            )
        raise UserError(
            "the workers have different flags or training data; start all "
            "of them with the same"
        )

    def predictor(self, job: Job) -> Predictor:
        """Predicts with the job's model, one worker alone.

        That of a training that has just ended is handed over, if the job is
        the same; its optimizer's variables are gone.
        """
        devices.choose_graph_optimizer(self._hardware, job.compute_dtype)
        trained, self._trained = self._trained, None
        if trained is not None and trained.serves(job):
            return trained.predictor
        alone = multi_worker.is_multi_worker(self._strategy)
        return _StrategyPredictor(
            job, tf.distribute.get_strategy() if alone else self._strategy
        )


def _run(
    train_steps: Callable, batches: Iterator, count: tf.Tensor
) -> List[float]:
    """The losses of some training steps, fetched at once."""
    return train_steps(batches, count).numpy().tolist()


class _StrategyPredictor(Predictor):
    """Predicts with one function on all devices."""

    def __init__(
        self,
        job: Job,
        strategy: tf.distribute.Strategy,
        built: Optional[Built] = None,
    ):
        """Takes what is built already, if anything is."""
        super().__init__(job, strategy.num_replicas_in_sync)
        self._strategy = strategy
        self._built = built
        self._compute: Optional[Callable] = None

    def _run(
        self, groups: Iterator[List[Batch]], features: Features
    ) -> Iterator[Outputs]:
        model, _ = self._build()
        if self._compute is None:
            self._compute = self._make_function(model, features)
        for group in groups:
            yield {
                name: input_pipeline.join_outputs(
                    [part.numpy() for part in parts]
                )
                for name, parts in self._compute(group).items()
            }

    def _build(self) -> Built:
        if self._built is None:
            job, variables = self._job, {}
            values = _first_values(job, _newest_checkpoint(job))
            with self._strategy.scope():
                model = job.build_model(_creator(job, values, set(), variables))
            trained = {p.name: variables[p.name] for p in job.table.trained}
            self._built = model, trained
        return self._built

    def _make_function(self, model: TaskModel, features: Features) -> Callable:
        job, strategy = self._job, self._strategy
        signature = None
        if not job.length:
            # One graph for batches of all sizes.
            batch = input_pipeline.batch_signature(features, None, None)
            signature = [[batch] * strategy.num_replicas_in_sync]

        @tf.function(input_signature=signature, autograph=False)
        def compute(group: List[Dict[str, tf.Tensor]]) -> Dict[str, Any]:
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

    def _assign(self, values: Dict[str, np.ndarray]) -> None:
        _, variables = self._build()
        for name, value in values.items():
            variables[name].assign(value)

    def _release(self) -> None:
        self._built = self._compute = None


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
            _creator(job, _first_values(job, saved), names, variables)
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
    job: Job,
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
            tf.cast(values[name](), job.dtype_of(name)),
            trainable=name in trained,
        )
        return variables[name]

    return create
