"""Training and prediction with TPUEstimator: Cloud TPU, GPUs or the CPU.

The only file that names TPUEstimator, which TensorFlow has up to 2.15. Several
GPUs run under a plain Estimator, with the same graph.
Frozen variables are kept in the collection of local variables: they are given
their pretrained values at every start and stay out of checkpoints.

A prediction's session stays open: batches go in, outputs come out.
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
from adapter_bert.data.input_pipeline import Batch, Features, Plan
from adapter_bert.errors import UserError
from adapter_bert.progress import TrainingProgress
from adapter_bert.training import devices, multi_worker, strategy, training_step
from adapter_bert.training import tpu as tpu_devices
from adapter_bert.training.engines import NO_PAUSE, Hardware, Job, Pause
from adapter_bert.training.prediction import Outputs, Predictor, Trained

v1 = tf.compat.v1
tpu = v1.estimator.tpu


class SessionStream:
    """Computes batches in a session, in order.

    The session lives in a thread of its own. There it may wait for batches, and
    TensorFlow's defaults, which are those of a thread, are the graph's there
    only: elsewhere operations are computed at once, as ever.
    """

    def __init__(
        self, start: Callable[[Callable[[], Iterator[Batch]]], Iterator[Any]]
    ):
        """Starts the thread.

        Args:
            start: builds the graph, whose dataset reads the given generator,
                and yields its outputs, each when it is asked for.
        """
        self._batches: queue.SimpleQueue = queue.SimpleQueue()
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        thread = threading.Thread(
            target=_serve,
            args=(start, self._batches, self._requests, self._answers),
            # Python would wait for another kind before it closes anything.
            daemon=True,
        )
        thread.start()
        # Called by the program's end too, which would wait for ever for a
        # dataset that waits for batches.
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
    """What the thread does until it is told to end."""
    last, has_ended = None, False

    def read() -> Iterator[Batch]:
        nonlocal last, has_ended
        if has_ended:
            # A TPU's input is read again and again, for batches that mark the
            # end on each core.
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
        # It is raised where the answer is awaited. The dataset may be waiting
        # for a batch, and is waited for when the session goes.
        batches.put(None)
        answers.put(error)


def _end(requests: queue.SimpleQueue, thread: threading.Thread) -> None:
    requests.put(False)
    thread.join()


class LoadHook(v1.train.SessionRunHook):
    """Sets variables before a session's next run."""

    def __init__(self, values: Optional[Dict[str, np.ndarray]]):
        """Takes arrays by name, or None to leave all as they are."""
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
            # The assignment that is there, of another value.
            assign = variables[name].initializer
            session.run(assign, {assign.inputs[1]: value})
        self._loaded = values


class ProgressHook(v1.train.SessionRunHook):
    """Tells a `TrainingProgress` every step's loss.

    Raises `UserError` where the loss is no number any more.
    """

    def __init__(self, progress: TrainingProgress):
        self._progress = progress

    def begin(self):
        """Finds loss and step in the graph."""
        # The Estimator adds the loss that it was given last.
        self._loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]
        self._step = v1.train.get_global_step()

    def before_run(self, run_context):
        """Asks for the loss."""
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        """Tells it."""
        # Fetched with the loss, the step would be read before or after its
        # increment, as it happens.
        step = int(run_context.session.run(self._step))
        loss = float(run_values.results)
        training_step.check_loss(step, loss)
        self._progress.update(step, loss)


class SaverHook(v1.train.SessionRunHook):
    """Saves `model.ckpt-<step>`: trained variables, their slots, the step.

    Unlike TensorFlow's own hook it saves neither the graph, which holds
    nothing of the task, nor the untrained model. Where the training is to be
    looked at, that is done too.

    Attributes:
        predictor: with the values of the last look, or None.
        looked_step: of the last look.
    """

    def __init__(
        self,
        job: Job,
        every_steps: int,
        pause: Pause,
        make_predictor: Callable[[], Predictor],
    ):
        """Takes the job, and when it is saved and looked at."""
        self._job, self._every_steps = job, every_steps
        self._pause, self._make_predictor = pause, make_predictor
        self.predictor: Optional[Predictor] = None
        self.looked_step = 0
        # The training's own cannot run operations outside of its graph. One
        # for all saves: each thread that writes a checkpoint keeps megabytes.
        self._thread = futures.ThreadPoolExecutor(1)

    def begin(self):
        """Finds what is saved in the graph."""
        self._step = v1.train.get_global_step()
        self._values = {
            variable.name.split(":")[0]: variable.read_value()
            for variable in v1.global_variables()
        }

    def after_create_session(self, session, coord):
        """Reads where the training begins."""
        self._saved_step = int(session.run(self._step))

    def after_run(self, run_context, run_values):
        """Saves when it is time."""
        step = int(run_context.session.run(self._step))
        is_looked_at = step in self._pause.steps
        if is_looked_at or step - self._saved_step >= self._every_steps:
            self._save(run_context, step, is_looked_at)

    def end(self, session):
        """Saves the last step."""
        step = int(session.run(self._step))
        if step != self._saved_step:
            self._save(v1.train.SessionRunContext(None, session), step, False)
        self._thread.shutdown()

    def _save(self, run_context, step, is_looked_at):
        values = run_context.session.run(self._values)
        self._thread.submit(
            training_state.save_training, self._job.output_dir, step, values
        ).result()
        self._saved_step = step
        if (
            is_looked_at
            and self._thread.submit(self._look, step, values).result()
        ):
            run_context.request_stop()

    def _look(self, step: int, values: Dict[str, np.ndarray]) -> bool:
        if self.predictor is None:
            self.predictor = self._make_predictor()
        names = [p.name for p in self._job.table.trained]
        self.looked_step = step
        self.predictor.load({name: values[name] for name in names})
        return self._pause.look(step, self.predictor)


class EstimatorEngine:
    """Runs a `Job` with TPUEstimator."""

    def __init__(self, hardware: Hardware):
        """Prepares TensorFlow for reproducible graphs."""
        self._hardware = hardware
        self._resolver: Optional[Any] = None
        self._devices = ["CPU:0"]
        self.is_chief = True
        self.workers = 1
        self.lanes = 1
        self._trained: Optional[Trained] = None
        tf.config.experimental.enable_op_determinism()
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
        """Trains from `first_step` on, or from the folder's checkpoint.

        Args:
            job: the model; checkpoints go to its folder.
            features: of the training split.
            plan: order of the rows.
            schedule: learning rates and the number of steps.
            first_step: step of the folder's newest checkpoint, or 0.
            batch_size: rows of a step, over all cores.
            save_checkpoints_steps: distance of checkpoints, in steps.
            progress: is told every step.
            pause: where the training is looked at.

        Raises:
            UserError: the loss, or a value, is no number any more.
        """
        shards = self.shards
        steps = range(first_step, schedule.num_train_steps)

        def input_fn(params):
            del params  # The batch is divided below.
            dataset = input_pipeline.to_dataset(
                lambda: input_pipeline.train_batches(
                    features, plan, steps, job.length, shards
                ),
                features,
                job.length,
                batch_size // shards,
            )
            return dataset.map(_for_tpu) if self._hardware.use_tpu else dataset

        mirrored = len(self._devices) > 1
        estimator = (self._mirrored_estimator if mirrored else self._estimator)(
            job, batch_size, schedule
        )
        saver = SaverHook(
            job, save_checkpoints_steps, pause, lambda: self.predictor(job)
        )
        self._trained = None
        try:
            estimator.train(
                input_fn,
                max_steps=schedule.num_train_steps,
                hooks=[
                    # First of all: no other may save a model that has diverged.
                    ProgressHook(progress),
                    saver,
                ],
            )
        except tf.errors.InvalidArgumentError as error:
            # TPUEstimator looks at each value itself, before any hook.
            if "is NaN : Tensor had " not in str(error):
                raise
            raise UserError(
                "a trained value is no number any more; lower --learning_rate "
                "and choose another --output_dir"
            ) from error
        if saver.predictor is not None:
            self._trained = Trained(job, saver.looked_step, saver.predictor)

    @property
    def can_pause(self) -> bool:
        """Not on a TPU: a second session would initialize it anew."""
        return not self._hardware.use_tpu

    @property
    def shards(self) -> int:
        """Devices that a batch is divided among."""
        if self._hardware.use_tpu:
            return self._hardware.num_tpu_cores
        return len(self._devices)

    def predictor(self, job: Job) -> Predictor:
        """Predicts with the job's model, on one device or the TPU's cores.

        That of a training that has just ended is handed over, if the job is
        the same.
        """
        trained, self._trained = self._trained, None
        if trained is not None and trained.serves(job):
            return trained.predictor
        cores = self.shards if self._hardware.use_tpu else 1
        return _EstimatorPredictor(
            job,
            cores,
            self._hardware.use_tpu,
            lambda batch_size: self._estimator(job, batch_size, None),
        )

    # One machine may have a TF_CONFIG, which a RunConfig may refuse.
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
        # One for the host, beside GPUs.
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
            variables: Dict[str, tf.Variable] = {}
            model = job.build_model(_graph_variables(job, variables))
            if mode != tf.estimator.ModeKeys.TRAIN:
                predictions = training_step.predict(job, model, features)
                return tpu.TPUEstimatorSpec(mode, predictions=predictions)
            trained = [(p.name, variables[p.name]) for p in job.table.trained]
            step = v1.train.get_or_create_global_step()
            loss, gradients = training_step.loss_and_gradients(
                job, model, trained, features, step, batch_size
            )
            optimizer = optimization.AdamWeightDecay(
                trained,
                schedule,
                _create_slot,
                job.table.recipe,
                job.adam_bias_correction,
            )
            if self._hardware.use_tpu:
                loss, *gradients = map(
                    v1.tpu.cross_replica_sum, [loss, *gradients]
                )
            loss, updates = strategy.train(optimizer, loss, gradients, step)
            # The Estimator will add up what every device returns.
            loss /= len(self._devices)
            return tpu.TPUEstimatorSpec(
                mode, loss=loss, train_op=tf.group(updates)
            )

        return model_fn


def _for_tpu(batch: Batch) -> Batch:
    """A batch as a TPU takes it: its infeed knows bfloat16, but no uint16."""
    return {
        name: tf.bitcast(x, tf.bfloat16) if x.dtype == tf.uint16 else x
        for name, x in batch.items()
    }


def _run_config(job: Job, **arguments: Any) -> Dict[str, Any]:
    """Arguments of a run's config; sessions run as `devices` chose."""
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
        # Saved by `SaverHook`, which leaves the graph out.
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
        """Takes what makes an estimator for a batch size."""
        super().__init__(job, shards)
        self._use_tpu = use_tpu
        self._make_estimator = make_estimator
        self._size = 0
        self._stream: Optional[SessionStream] = None
        self._loader = LoadHook(None)

    def _run(
        self, groups: Iterator[List[Batch]], features: Features
    ) -> Iterator[Outputs]:
        # One group waits while another is computed.
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
            # What is under way belongs to no later prediction.
            self._release()
            raise

    def _start(self, size: int, features: Features) -> None:
        checkpoint, _ = training_state.latest_step(self._job.output_dir)
        job, loader = self._job, LoadHook(self._loader.values)
        make_estimator = self._make_estimator

        # Without the predictor, which would never be let go of.
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
            # There the whole stream is one run, which has read the values.
            self._release()
        self._loader.values = values


def _graph_variables(job: Job, variables: Dict[str, tf.Variable]):
    """A `create` for TensorFlow 1 graphs that fills `variables` by name."""
    trained = {p.name for p in job.table.trained}
    keys = v1.GraphKeys

    def create(name, shape, initializer):
        del initializer  # The job's initial values have been chosen already.

        def initial_value():
            value = tf.numpy_function(job.initial_values[name], [], tf.float32)
            value.set_shape(shape)
            return tf.cast(value, job.dtype_of(name))

        with v1.name_scope(None):
            variables[name] = v1.Variable(
                initial_value,
                name=name,
                trainable=name in trained,
                collections=[
                    keys.GLOBAL_VARIABLES
                    if name in trained
                    else keys.LOCAL_VARIABLES
                ],
                use_resource=True,
            )
        # Copies on other devices are called <name>/replica_<device>.
        if variables[name].op.name.split("/replica_")[0] != name:
            raise ValueError(f"the variable name {name} is taken twice")
        return variables[name]

    return create


def _create_slot(name: str, shape) -> tf.Variable:
    with v1.name_scope(None):
        return v1.Variable(
            lambda: tf.zeros(shape),
            name=name,
            trainable=False,
            use_resource=True,
        )
