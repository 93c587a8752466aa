"""Training and prediction with TPUEstimator: Cloud TPU, one GPU or the CPU.

The only file that names TPUEstimator, which TensorFlow has up to 2.15.
Frozen variables are kept in the collection of local variables: they are given
their pretrained values at every start and stay out of checkpoints.
"""

import math
import os
from typing import Any, Dict, Optional

import numpy as np
import tensorflow as tf

import input_pipeline
import optimization
from engines import Hardware, Job
from errors import UserError
from hooks import Context
from input_pipeline import Features, TrainPlan
from progress import Progress, TrainingProgress

v1 = tf.compat.v1
tpu = v1.estimator.tpu


class EstimatorEngine:
    """Runs a `Job` with TPUEstimator."""

    def __init__(self, hardware: Hardware):
        """Prepares TensorFlow for reproducible graphs."""
        self._hardware = hardware
        self._resolver: Optional[Any] = None
        tf.config.experimental.enable_op_determinism()
        v1.logging.set_verbosity(v1.logging.ERROR)

    def check_devices(self) -> None:
        """Looks for the TPU, if one was asked for.

        Raises:
            UserError: no TPU was named, it cannot be reached, or it has
                another number of cores.
        """
        hardware = self._hardware
        if not hardware.use_tpu:
            return
        name = hardware.tpu_name or os.environ.get("TPU_NAME", "")
        target = name or hardware.master
        if not target:
            raise UserError(
                "--use_tpu=true needs --tpu_name or the environment variable "
                "TPU_NAME (local on a TPU VM)"
            )
        try:
            # The name is passed on even where the environment has it: the
            # resolver itself does not know "local" from there.
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
                tpu=target,
                zone=hardware.tpu_zone or None,
                project=hardware.gcp_project or None,
            )
            master = resolver.master()
        except Exception as error:
            # Whatever the cloud's client libraries raise: all of it means
            # that no TPU answers to this name.
            first_line = (str(error) or repr(error)).splitlines()[0]
            raise UserError(
                f"no TPU answers to the name {target!r}: {first_line}"
            ) from error
        if master not in ("", "local"):
            # Batches and initial values are made in this process.
            raise UserError(
                f"the TPU {target!r} is on another machine ({master}); run on "
                "the TPU VM itself with --tpu_name=local (TPU nodes, which "
                "were reached over the network, were retired in 2025)"
            )
        metadata = resolver.get_tpu_system_metadata()
        if metadata.num_hosts > 1:
            raise UserError(
                f"the TPU {target!r} has {metadata.num_hosts} hosts; only one "
                "is supported"
            )
        if metadata.num_cores != hardware.num_tpu_cores:
            raise UserError(
                f"the TPU {target!r} has {metadata.num_cores} cores, but "
                f"--num_tpu_cores is {hardware.num_tpu_cores}; this TensorFlow "
                "finds TPUs only on machines that have them"
            )
        self._resolver = resolver

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

        Raises:
            UserError: the loss is no number any more.
        """
        shards = self._hardware.num_tpu_cores if self._hardware.use_tpu else 1
        steps = range(first_step, schedule.num_train_steps)

        def input_fn(params):
            return input_pipeline.to_dataset(
                lambda: input_pipeline.train_batches(
                    features, plan, steps, job.length, shards
                ),
                features,
                job.length,
                params["batch_size"],
                with_labels=True,
            )

        estimator = self._estimator(job, batch_size, schedule)
        estimator.train(
            input_fn,
            max_steps=schedule.num_train_steps,
            hooks=[
                # First of all: no other may save a model that has diverged.
                _ProgressHook(progress),
                _SaverHook(job.output_dir, save_checkpoints_steps),
            ],
        )

    def predict(
        self, job: Job, features: Features, batch_size: int, what: str
    ) -> Dict[str, np.ndarray]:
        """Predicts every row.

        Args:
            job: the model; its folder's newest checkpoint is used where there
                is one, else the initial values.
            features: of the split.
            batch_size: rows at once, over all cores.
            what: name of the work, for its progress.

        Returns:
            The head's outputs by name, float32 [rows, ...], in row order.
        """

        def input_fn(params):
            def generate():
                for rows in input_pipeline.sorted_batches(
                    features, params["batch_size"]
                ):
                    batch = input_pipeline.make_batch(
                        features, rows, job.length
                    )
                    for name in features.labels:
                        del batch[name]
                    yield batch

            return input_pipeline.to_dataset(
                generate, features, job.length, None, with_labels=False
            )

        estimator = self._estimator(job, batch_size, None)
        outputs: Dict[str, list] = {}
        progress = Progress(what, len(features), "examples")
        for batch in estimator.predict(input_fn, yield_single_examples=False):
            for name, value in batch.items():
                outputs.setdefault(name, []).append(value)
            progress.update(len(value))
        progress.close()
        batches = input_pipeline.sorted_batches(features, batch_size)
        return {
            name: input_pipeline.restore_order(batches, values)
            for name, values in outputs.items()
        }

    def _estimator(self, job, batch_size, schedule):
        hardware = self._hardware
        config = tpu.RunConfig(
            cluster=self._resolver,
            model_dir=job.output_dir,
            tf_random_seed=job.seed,
            # Saved by a hook below, which leaves the graph out.
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
            save_summary_steps=None,
            log_step_count_steps=None,
            tpu_config=tpu.TPUConfig(
                iterations_per_loop=hardware.iterations_per_loop,
                num_shards=hardware.num_tpu_cores,
                per_host_input_for_training=(
                    tpu.InputPipelineConfig.PER_HOST_V2
                ),
            ),
        )
        return tpu.TPUEstimator(
            model_fn=self._model_fn(job, schedule),
            config=config,
            use_tpu=hardware.use_tpu,
            train_batch_size=batch_size,
            predict_batch_size=batch_size,
        )

    def _model_fn(self, job: Job, schedule: Optional[optimization.Schedule]):
        def model_fn(features, labels, mode, params):
            del labels, params
            training = mode == tf.estimator.ModeKeys.TRAIN
            variables: Dict[str, tf.Variable] = {}
            model = job.build_model(_graph_variables(job, variables))
            step = v1.train.get_or_create_global_step()
            context = Context(
                features["input_mask"],
                training=training,
                # Each shard has its own first row, so its own dropout.
                seed=tf.stack(
                    [
                        job.seed ^ features["row"][0],
                        tf.cast(step, tf.int32),
                    ]
                ),
            )
            predictions = model(features, context)
            if not training:
                return tpu.TPUEstimatorSpec(mode, predictions=predictions)
            loss = tf.reduce_mean(model.head.loss(predictions, features))
            train_op = self._train_op(job, schedule, variables, loss, step)
            return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

        return model_fn

    def _train_op(self, job, schedule, variables, loss, step):
        trained = [(p.name, variables[p.name]) for p in job.table.trained]
        gradients = tf.gradients(loss, [variable for _, variable in trained])
        for (name, _), gradient in zip(trained, gradients):
            if gradient is None:
                raise ValueError(f"the loss does not depend on {name}")
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        if self._hardware.use_tpu:
            # The mean over the whole batch comes first, then the clipping.
            gradients = [
                v1.tpu.cross_replica_sum(g) / self._hardware.num_tpu_cores
                for g in gradients
            ]
        optimizer = optimization.AdamWeightDecay(
            trained, schedule, _create_slot
        )
        updates = optimizer.apply(gradients, step)
        with tf.control_dependencies(updates):
            return step.assign_add(1).op


def _graph_variables(job: Job, variables: Dict[str, tf.Variable]):
    """A `create` for TensorFlow 1 graphs that fills `variables` by name."""
    trained = {p.name for p in job.table.trained}
    keys = v1.GraphKeys

    def create(name, shape, initializer):
        del initializer  # The job's initial values have been chosen already.

        def initial_value():
            value = tf.numpy_function(job.initial_values[name], [], tf.float32)
            value.set_shape(shape)
            return value

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
        if variables[name].op.name != name:
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


class _ProgressHook(v1.train.SessionRunHook):
    """Tells a `TrainingProgress` every step's loss; on a TPU, its first core's.

    Raises `UserError` where the loss is no number any more.
    """

    def __init__(self, progress: TrainingProgress):
        self._progress = progress

    def begin(self):
        # The Estimator adds the loss that it was given last.
        self._loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]
        self._step = v1.train.get_global_step()

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        # Fetched with the loss, the step would be read before or after its
        # increment, as it happens.
        step = int(run_context.session.run(self._step))
        loss = float(run_values.results)
        if not math.isfinite(loss):
            raise UserError(
                f"the loss of step {step} is {loss}; lower --learning_rate and "
                "choose another --output_dir"
            )
        self._progress.update(step, loss)


class _SaverHook(v1.train.SessionRunHook):
    """Saves `model.ckpt-<step>`: trained variables, their slots, the step.

    Unlike TensorFlow's own hook it saves neither the graph, which holds
    nothing of the task, nor the untrained model.
    """

    def __init__(self, output_dir: str, every_steps: int):
        self._path = os.path.join(output_dir, "model.ckpt")
        self._every_steps = every_steps

    def begin(self):
        self._step = v1.train.get_global_step()
        self._saver = v1.get_collection(v1.GraphKeys.SAVERS)[0]

    def after_create_session(self, session, coord):
        self._saved_step = int(session.run(self._step))

    def after_run(self, run_context, run_values):
        step = int(run_context.session.run(self._step))
        if step - self._saved_step >= self._every_steps:
            self._save(run_context.session, step)

    def end(self, session):
        step = int(session.run(self._step))
        if step != self._saved_step:
            self._save(session, step)

    def _save(self, session, step):
        try:
            self._saver.save(
                session, self._path, global_step=step, write_meta_graph=False
            )
        except (tf.errors.OpError, OSError) as error:
            raise UserError(
                f"cannot write the checkpoint {self._path}-{step}: "
                f"{str(error).splitlines()[0]}"
            ) from error
        self._saved_step = step
