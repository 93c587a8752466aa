"""Training and prediction with TPUEstimator, of several GPUs with Estimator."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from concurrent import futures
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from adapter_bert import optimization
from adapter_bert.bert.encoder import Quantized
from adapter_bert.checkpoints import training_state
from adapter_bert.errors import UserError
from adapter_bert.progress import TrainingProgress
from adapter_bert.tasks.task_model import Parameter
from adapter_bert.training import devices, training_step
from adapter_bert.training.engines import Course, Engine
from adapter_bert.training.prediction import RowPredictor, StrategyPredictor
from adapter_bert.training.settings import Hardware
from adapter_bert.training.training_step import Job

v1 = tf.compat.v1
tpu = v1.estimator.tpu


class TrainingHook(v1.train.SessionRunHook):
    """Checks and shows each step's loss, saves, scores the dev sets.

    Unlike TensorFlow's own hook it saves neither graph nor untrained model.
    """

    def __init__(
        self,
        job: Job,
        course: Course,
        progress: TrainingProgress,
        make_predictor: Callable[[], RowPredictor],
    ):
        self._job, self._course, self._progress = job, course, progress
        self._make_predictor = make_predictor
        self.predictor: Optional[RowPredictor] = None
        self.paused_step = 0
        # The training's thread cannot run operations outside of its graph. One
        # for all saves: each thread that writes a checkpoint keeps megabytes.
        self._thread = futures.ThreadPoolExecutor(1)

    def begin(self):
        # The Estimator adds the loss that it was given last.
        self._loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]
        self._step = v1.train.get_global_step()
        self._values = {
            variable.name.split(":")[0]: variable.read_value()
            for variable in v1.global_variables()
        }

    def after_create_session(self, session, coord):
        self._saved_step = int(session.run(self._step))

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        # Fetched with the loss, the step would be read before or after its
        # increment, as it happens.
        step = int(run_context.session.run(self._step))
        loss = float(run_values.results)
        # First of all: a model that has diverged is not saved.
        training_step.check_loss(step, loss)
        self._progress.update(step, loss)
        pauses = step in self._course.stops
        every = self._course.save_checkpoints_steps
        if pauses or step - self._saved_step >= every:
            values = self._save(run_context.session, step)
            if (
                pauses
                and self._thread.submit(self._look, step, values).result()
            ):
                run_context.request_stop()

    def end(self, session):
        step = int(session.run(self._step))
        if step != self._saved_step:
            self._save(session, step)
        self._thread.shutdown()

    def _save(self, session, step: int) -> dict[str, np.ndarray]:
        values = session.run(self._values)
        self._thread.submit(
            training_state.save_training, self._job.output_dir, step, values
        ).result()
        self._saved_step = step
        return values

    def _look(self, step: int, values: dict[str, np.ndarray]) -> bool:
        if self.predictor is None:
            self.predictor = self._make_predictor()
        self.paused_step = step
        self.predictor.load(
            {p.name: values[p.name] for p in self._job.table.trained}
        )
        return self._course.look(step, self.predictor)


@contextlib.contextmanager
def _without_cluster() -> Iterator[None]:
    value = os.environ.pop("TF_CONFIG", None)
    try:
        yield
    finally:
        if value is not None:
            os.environ["TF_CONFIG"] = value


class EstimatorEngine(Engine):
    """Runs a `Job` with TPUEstimator."""

    def __init__(self, hardware: Hardware):
        super().__init__(hardware)
        self._resolver: Optional[Any] = None
        self._devices = ["CPU:0"]
        v1.logging.set_verbosity(v1.logging.ERROR)

    def check_can(self, pauses: bool, compares_rows: bool) -> None:
        # A second session would initialize the TPU anew; replicas of a TPU can
        # be added up alone.
        if self._hardware.use_tpu and (pauses or compares_rows):
            what = "--eval_steps, --keep_best and --early_stopping cannot"
            if compares_rows:
                what = "a task that compares the rows of all devices cannot"
            raise UserError(
                f"{what} be used with TPUEstimator on a TPU; pass "
                "--engine=strategy"
            )

    def check_devices(self) -> None:
        hardware = self._hardware
        self.lanes = devices.use_lanes(hardware)
        if not hardware.use_tpu:
            self._devices = devices.names(hardware)
            self.shards = len(self._devices)
            return
        from adapter_bert.training import tpu as tpu_devices

        resolver = tpu_devices.resolve(hardware)
        metadata = resolver.get_tpu_system_metadata()
        tpu_devices.check(
            hardware,
            metadata.num_hosts,
            metadata.num_cores,
            "; if there should be some, docs/accelerators.md says which "
            "TensorFlow finds them",
        )
        self._resolver = resolver
        self.shards = hardware.num_tpu_cores

    def train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:

        def input_fn(params):
            del params  # The batch has been divided already.
            dataset = course.batches(job.length, self.shards)
            if not self._hardware.use_tpu:
                return dataset
            from adapter_bert.training.tpu import for_tpu

            return dataset.map(for_tpu)

        estimator = self._estimator(job, course.batch_size, course.schedule)
        hook = TrainingHook(
            job, course, progress, lambda: self._new_predictor(job)
        )
        self._trained = None
        try:
            estimator.train(
                input_fn,
                max_steps=course.schedule.num_train_steps,
                hooks=[hook],
            )
        except tf.errors.InvalidArgumentError as error:
            # TPUEstimator looks at each value itself, before any hook.
            if "is NaN : Tensor had " not in str(error):
                raise
            raise UserError(
                "a trained value is no number any more; lower --learning_rate "
                "and choose another --output_dir"
            ) from error
        if hook.predictor is not None:
            self._trained = job, hook.paused_step, hook.predictor
        _return_freed_memory()

    def _new_predictor(self, job: Job) -> RowPredictor:
        devices.choose_graph_optimizer(self._hardware, job.compute_dtype)
        if not self._hardware.use_tpu:
            return StrategyPredictor(job, tf.distribute.get_strategy())
        from adapter_bert.training.tpu import TpuPredictor

        return TpuPredictor(
            job,
            self.shards,
            lambda batch_size: self._estimator(job, batch_size, None),
        )

    # A RunConfig may refuse the TF_CONFIG of a single machine.
    @_without_cluster()
    def _estimator(self, job, batch_size, schedule):
        hardware = self._hardware
        devices.choose_graph_optimizer(hardware, job.compute_dtype)
        model_fn = self._model_fn(job, schedule, batch_size)
        if len(self._devices) > 1:
            # One for the host next to GPUs.
            cpus = max(1, sum("CPU" in device for device in self._devices))
            config = tf.estimator.RunConfig(
                **_run_config(job, device_count={"CPU": cpus}),
                train_distribute=tf.distribute.MirroredStrategy(self._devices),
            )
            return v1.estimator.Estimator(
                lambda features, labels, mode, params: model_fn(
                    features, labels, mode, params
                ).as_estimator_spec(),
                config=config,
                params={},
            )
        config = tpu.RunConfig(
            **_run_config(job),
            cluster=self._resolver,
            tpu_config=tpu.TPUConfig(
                iterations_per_loop=hardware.iterations_per_loop,
                num_shards=hardware.num_tpu_cores,
                per_host_input_for_training=(
                    tpu.InputPipelineConfig.PER_HOST_V2
                ),
            ),
        )
        return tpu.TPUEstimator(
            model_fn=model_fn,
            config=config,
            use_tpu=hardware.use_tpu,
            train_batch_size=batch_size,
            predict_batch_size=batch_size,
        )

    def _model_fn(self, job, schedule, batch_size):
        def model_fn(features, labels, mode, params):
            del labels, params
            made = _make_variables(job)
            model = job.build_model(lambda name, *_: made[name])
            if mode != tf.estimator.ModeKeys.TRAIN:
                predictions = training_step.predict(job, model, features)
                return tpu.TPUEstimatorSpec(mode, predictions=predictions)
            trained = [(p.name, made[p.name]) for p in job.table.trained]
            step = v1.train.get_or_create_global_step()
            loss, gradients = training_step.loss_and_gradients(
                job, model, trained, features, step, batch_size
            )
            slots = {
                name: _variable(name, lambda shape=shape: tf.zeros(shape))
                for name, shape in job.table.slots.items()
            }
            optimizer = optimization.AdamWeightDecay(
                trained,
                slots,
                schedule,
                job.table.recipe,
                job.adam_bias_correction,
            )
            if self._hardware.use_tpu:
                loss, *gradients = map(
                    v1.tpu.cross_replica_sum, [loss, *gradients]
                )
            loss, updates = optimizer.train(loss, gradients, step)
            # The Estimator adds up the losses of all devices.
            loss /= len(self._devices)
            return tpu.TPUEstimatorSpec(
                mode, loss=loss, train_op=tf.group(updates)
            )

        return model_fn


def _return_freed_memory() -> None:
    """Gives what the session has freed back to the system, under glibc.

    With MiniLM and CoLA that is 80 MB of 1,035.
    """
    trim = os.name == "posix" and getattr(
        ctypes.CDLL(None), "malloc_trim", None
    )
    if trim:
        trim(0)


def _make_variables(job: Job) -> dict[str, Any]:
    """Makes variables of the job's first values.

    Frozen ones are local variables: they get their pretrained values at every
    start and stay out of checkpoints.
    """
    made: dict[str, Any] = {}
    local = [v1.GraphKeys.LOCAL_VARIABLES]
    for p in job.table.parameters:
        if p.name in job.quantized:
            made[p.name] = Quantized(
                *(
                    _variable(
                        f"{p.name}/{part}",
                        functools.partial(_part_of_int8, job, p, part),
                        collections=local,
                    )
                    for part in Quantized._fields
                )
            )
            continue

        def value(p=p):
            value = tf.numpy_function(
                job.initial_values[p.name], [], tf.float32
            )
            value.set_shape(p.shape)
            return tf.cast(value, job.dtype_of(p.name))

        kinds = local, [v1.GraphKeys.GLOBAL_VARIABLES]
        made[p.name] = _variable(
            p.name, value, trainable=p.trained, collections=kinds[p.trained]
        )
    return made


def _part_of_int8(job: Job, p: Parameter, part: str) -> tf.Tensor:
    from adapter_bert.bert import int8

    def read():
        quantized = int8.quantize(p.name, job.initial_values[p.name]())
        return getattr(quantized, part)

    spec = getattr(int8.specs(p.name, p.shape), part)
    value = tf.numpy_function(read, [], spec.dtype)
    value.set_shape(spec.shape)
    return value


def _variable(
    name: str, value: Callable[[], tf.Tensor], **options: Any
) -> tf.Variable:
    with v1.name_scope(None):
        return v1.Variable(
            value,
            name=name,
            use_resource=True,
            **{"trainable": False, **options},
        )


def _run_config(job: Job, **arguments: Any) -> dict[str, Any]:
    config = v1.ConfigProto(
        intra_op_parallelism_threads=(
            tf.config.threading.get_intra_op_parallelism_threads()
        ),
        allow_soft_placement=True,
        **arguments,
    )
    options = tf.config.optimizer.get_experimental_options()
    rewriting = config.graph_options.rewrite_options
    rewriting.disable_meta_optimizer = options["disable_meta_optimizer"]
    if not options["arithmetic_optimization"]:
        rewriting.arithmetic_optimization = RewriterConfig.OFF
    return {
        "model_dir": job.output_dir,
        "tf_random_seed": job.seed,
        "session_config": config,
        # `TrainingHook` saves, and leaves the graph out.
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": None,
        "save_summary_steps": None,
        "log_step_count_steps": None,
    }
