"""Training and prediction with TPUEstimator: Cloud TPU, GPUs or the CPU.

The only file that names TPUEstimator, which TensorFlow has up to 2.15. Several
GPUs run under a plain Estimator, with the same graph. A prediction's session
stays open: batches go in, outputs come out.
"""

import queue
import threading
import weakref
from concurrent import futures
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from adapter_bert import optimization
from adapter_bert.checkpoints import training_state
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.errors import UserError
from adapter_bert.progress import TrainingProgress
from adapter_bert.training import (
    devices,
    multi_worker,
    training_step,
    variables,
)
from adapter_bert.training import tpu as tpu_devices
from adapter_bert.training.engines import Course, Engine, Hardware
from adapter_bert.training.prediction import Outputs, Predictor
from adapter_bert.training.training_step import Job

v1 = tf.compat.v1
tpu = v1.estimator.tpu


class SessionStream:
    """Computes batches in a session, in order.

    The session lives in a thread of its own, where it may wait for batches.
    The default graph is that thread's; elsewhere execution stays eager.
    """

    def __init__(
        self, start: Callable[[Callable[[], Iterator[Batch]]], Iterator[Any]]
    ):
        """Starts the thread.

        Args:
            start: builds the graph, whose dataset reads the given generator,
                and yields outputs on demand.
        """
        self._batches: queue.SimpleQueue = queue.SimpleQueue()
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        thread = threading.Thread(
            target=_serve,
            args=(start, self._batches, self._requests, self._answers),
            # At exit Python would wait for any other thread first.
            daemon=True,
        )
        thread.start()
        # Also called at exit, where a dataset that waits for batches would
        # block the program for ever.
        self._end = weakref.finalize(self, _end, self._requests, thread)

    def put(self, batches: Sequence[Batch]) -> None:
        """Hands in the batches of one output."""
        for batch in batches:
            self._batches.put(batch)
        self._requests.put(True)

    def get(self) -> Any:
        """The next output; raises what the graph raised."""
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """Ends the session and waits for its end."""
        self._end()


def _serve(
    start: Callable,
    batches: queue.SimpleQueue,
    requests: queue.SimpleQueue,
    answers: queue.SimpleQueue,
) -> None:
    """The body of the thread."""
    last, has_ended = None, False

    def read() -> Iterator[Batch]:
        nonlocal last, has_ended
        if has_ended:
            # A TPU's input is read again, for batches that mark the end on
            # each core.
            if last is not None:
                yield last
            return
        while True:
            batch = batches.get()
            if batch is None:
                has_ended = True
                return
            last = batch
            yield batch

    try:
        outputs = start(read)
        while requests.get():
            answers.put(next(outputs))
        if last is not None:
            batches.put(None)
            for _ in outputs:
                pass
    except BaseException as error:
        # Raised by `get`. The session's end waits for the dataset, which may
        # be waiting for a batch.
        batches.put(None)
        answers.put(error)


def _end(requests: queue.SimpleQueue, thread: threading.Thread) -> None:
    requests.put(False)
    thread.join()


class LoadHook(v1.train.SessionRunHook):
    """Sets variables before a session's next run."""

    def __init__(self, values: Optional[Dict[str, np.ndarray]]):
        """Takes arrays by name, or None to change nothing."""
        self.values = values
        self._loaded: Optional[Dict[str, np.ndarray]] = None

    def after_create_session(self, session, coord):
        """Before the first run."""
        self._load(session)

    def before_run(self, run_context):
        """Before every other one."""
        self._load(run_context.session)

    def _load(self, session):
        values = self.values
        if values is self._loaded:
            return
        variables = {v.op.name: v for v in v1.global_variables()}
        for name, value in values.items():
            # The initializer's assignment, fed with another value.
            assign = variables[name].initializer
            session.run(assign, {assign.inputs[1]: value})
        self._loaded = values


class TrainingHook(v1.train.SessionRunHook):
    """After each step: checks and shows the loss, saves, scores the dev sets.

    Saves `model.ckpt-<step>` with the trained variables, their slots and the
    step. Unlike TensorFlow's own hook it saves neither the graph, which holds
    nothing of the task, nor the untrained model.

    Attributes:
        predictor: with the values of the last pause, or None.
        paused_step: the step of the last pause.
    """

    def __init__(
        self,
        job: Job,
        course: Course,
        progress: TrainingProgress,
        make_predictor: Callable[[], Predictor],
    ):
        self._job, self._course, self._progress = job, course, progress
        self._make_predictor = make_predictor
        self.predictor: Optional[Predictor] = None
        self.paused_step = 0
        # The training's thread cannot run operations outside of its graph. One
        # for all saves: each thread that writes a checkpoint keeps megabytes.
        self._thread = futures.ThreadPoolExecutor(1)

    def begin(self):
        """Finds loss, step and values in the graph."""
        # The Estimator adds the loss that it was given last.
        self._loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]
        self._step = v1.train.get_global_step()
        self._values = {
            variable.name.split(":")[0]: variable.read_value()
            for variable in v1.global_variables()
        }

    def after_create_session(self, session, coord):
        """Reads where the training begins."""
        self._saved_step = int(session.run(self._step))

    def before_run(self, run_context):
        """Asks for the loss."""
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        """Does what is due after the step."""
        # Fetched with the loss, the step would be read before or after its
        # increment, as it happens.
        step = int(run_context.session.run(self._step))
        loss = float(run_values.results)
        # First of all: a model that has diverged is not saved.
        training_step.check_loss(step, loss)
        self._progress.update(step, loss)
        pauses = step in self._course.pause.steps
        every = self._course.save_checkpoints_steps
        if pauses or step - self._saved_step >= every:
            values = self._save(run_context.session, step)
            if (
                pauses
                and self._thread.submit(self._look, step, values).result()
            ):
                run_context.request_stop()

    def end(self, session):
        """Saves the last step."""
        step = int(session.run(self._step))
        if step != self._saved_step:
            self._save(session, step)
        self._thread.shutdown()

    def _save(self, session, step: int) -> Dict[str, np.ndarray]:
        values = session.run(self._values)
        self._thread.submit(
            training_state.save_training, self._job.output_dir, step, values
        ).result()
        self._saved_step = step
        return values

    def _look(self, step: int, values: Dict[str, np.ndarray]) -> bool:
        if self.predictor is None:
            self.predictor = self._make_predictor()
        self.paused_step = step
        self.predictor.load(
            {p.name: values[p.name] for p in self._job.table.trained}
        )
        return self._course.pause.look(step, self.predictor)


class EstimatorEngine(Engine):
    """Runs a `Job` with TPUEstimator."""

    def __init__(self, hardware: Hardware):
        """Prepares TensorFlow for reproducible graphs."""
        super().__init__(hardware)
        self._resolver: Optional[Any] = None
        self._devices = ["CPU:0"]
        # A second session would initialize the TPU anew.
        self.can_pause = not hardware.use_tpu
        v1.logging.set_verbosity(v1.logging.ERROR)

    def check_devices(self) -> None:
        """Looks for the TPU, if one was asked for, or for GPUs.

        Raises:
            UserError: no TPU was named, it cannot be reached, or it has
                another number of cores; or there are too few GPUs.
        """
        hardware = self._hardware
        self.lanes = devices.use_lanes(hardware)
        if not hardware.use_tpu:
            self._devices = devices.names(hardware)
            self.shards = len(self._devices)
            return
        resolver = tpu_devices.resolve(hardware)
        metadata = resolver.get_tpu_system_metadata()
        tpu_devices.check(
            hardware,
            metadata.num_hosts,
            metadata.num_cores,
            "; if there should be some, docs/cloud_tpu.md says which "
            "TensorFlow finds them",
        )
        self._resolver = resolver
        self.shards = hardware.num_tpu_cores

    def train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:
        """Trains; arguments and errors as of `Engine.train`."""

        def input_fn(params):
            del params  # The batch has been divided already.
            dataset = course.batches(job.length, self.shards)
            return dataset.map(_for_tpu) if self._hardware.use_tpu else dataset

        mirrored = len(self._devices) > 1
        estimator = (self._mirrored_estimator if mirrored else self._estimator)(
            job, course.batch_size, course.schedule
        )
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

    def _new_predictor(self, job: Job) -> Predictor:
        return _EstimatorPredictor(
            job,
            self.shards if self._hardware.use_tpu else 1,
            self._hardware.use_tpu,
            lambda batch_size: self._estimator(job, batch_size, None),
        )

    # A RunConfig may refuse the TF_CONFIG of a single machine.
    @multi_worker.unseen()
    def _estimator(self, job, batch_size, schedule):
        hardware = self._hardware
        devices.choose_graph_optimizer(hardware, job.compute_dtype)
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
            model_fn=self._model_fn(job, schedule, batch_size),
            config=config,
            use_tpu=hardware.use_tpu,
            train_batch_size=batch_size,
            predict_batch_size=batch_size,
        )

    @multi_worker.unseen()
    def _mirrored_estimator(self, job, batch_size, schedule):
        """A plain Estimator: TPUEstimator cannot use several GPUs."""
        devices.choose_graph_optimizer(self._hardware, job.compute_dtype)
        # One for the host beside GPUs.
        cpus = max(1, sum("CPU" in device for device in self._devices))
        config = tf.estimator.RunConfig(
            **_run_config(job, device_count={"CPU": cpus}),
            train_distribute=tf.distribute.MirroredStrategy(self._devices),
        )
        model_fn = self._model_fn(job, schedule, batch_size)

        def plain_model_fn(features, labels, mode, params):
            spec = model_fn(features, labels, mode, params)
            return spec.as_estimator_spec()

        return v1.estimator.Estimator(plain_model_fn, config=config, params={})

    def _model_fn(self, job, schedule, batch_size):
        def model_fn(features, labels, mode, params):
            del labels, params
            made: variables.Variables = {}
            model = job.build_model(variables.in_graph(job, made))
            if mode != tf.estimator.ModeKeys.TRAIN:
                predictions = training_step.predict(job, model, features)
                return tpu.TPUEstimatorSpec(mode, predictions=predictions)
            trained = [(p.name, made[p.name]) for p in job.table.trained]
            step = v1.train.get_or_create_global_step()
            loss, gradients = training_step.loss_and_gradients(
                job, model, trained, features, step, batch_size
            )
            slots = {
                f"{p.name}/{slot}": variables.slot_in_graph(
                    f"{p.name}/{slot}", p.shape
                )
                for p in job.table.trained
                for slot in optimization.SLOTS
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


def _for_tpu(batch: Batch) -> Batch:
    """Makes bfloat16 of uint16, which a TPU's infeed does not know."""
    return {
        name: tf.bitcast(x, tf.bfloat16) if x.dtype == tf.uint16 else x
        for name, x in batch.items()
    }


def _run_config(job: Job, **arguments: Any) -> Dict[str, Any]:
    """Arguments of a `RunConfig`; sessions have the options of `devices`."""
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


class _EstimatorPredictor(Predictor):
    """Predicts in one session of TPUEstimator."""

    def __init__(
        self,
        job: Job,
        shards: int,
        use_tpu: bool,
        make_estimator: Callable[[int], Any],
    ):
        """Takes a function that makes an estimator for a batch size."""
        super().__init__(job, shards)
        self._use_tpu = use_tpu
        self._make_estimator = make_estimator
        self._size = 0
        self._stream: Optional[SessionStream] = None
        self._loader = LoadHook(None)

    def _run(
        self, groups: Iterator[List[Batch]], features: Features
    ) -> Iterator[Outputs]:
        # One group waits while another one is computed.
        waiting = 0
        try:
            for group in groups:
                size = sum(len(batch["row"]) for batch in group)
                if self._use_tpu and size != self._size:
                    # Compiled for one size.
                    self._release()
                if self._stream is None:
                    self._start(size, features)
                self._stream.put(group)
                waiting += 1
                if waiting > 1:
                    yield self._stream.get()
                    waiting -= 1
            while waiting:
                yield self._stream.get()
                waiting -= 1
        except BaseException:
            # Batches in the stream belong to no later prediction.
            self._release()
            raise

    def _start(self, size: int, features: Features) -> None:
        checkpoint, _ = training_state.latest_step(self._job.output_dir)
        job, loader = self._job, LoadHook(self._loader.values)
        make_estimator = self._make_estimator

        # Captures no `self`, which would never be freed.
        def start(read: Callable[[], Iterator[Batch]]) -> Iterator[Outputs]:
            def input_fn(params: Any) -> tf.data.Dataset:
                del params  # Batches have been divided already.
                return input_pipeline.to_dataset(
                    read, features, job.length, None
                )

            return make_estimator(size).predict(
                input_fn,
                hooks=[loader],
                checkpoint_path=checkpoint,
                yield_single_examples=False,
            )

        self._size, self._loader = size, loader
        self._stream = SessionStream(start)

    def _release(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _assign(self, values: Dict[str, np.ndarray]) -> None:
        if self._use_tpu:
            # A TPU's stream is a single run, which has read the values.
            self._release()
        self._loader.values = values
