"""A training from its first or next step to its last."""

import contextlib
import time
from typing import Any

from absl import logging

from adapter_bert.checkpoints import training_state
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Features
from adapter_bert.errors import UserError
from adapter_bert.optimization import Schedule
from adapter_bert.progress import TrainingProgress
from adapter_bert.tasks.task_model import ParameterTable
from adapter_bert.training.engines import Course, Engine
from adapter_bert.training.extras import Run
from adapter_bert.training.setup import Model
from adapter_bert.training.training_step import Job


def make_schedule(model: Model, features: Features) -> Schedule:
    """Gives the learning rates of the model's training over these rows."""
    training = model.experiment.training
    steps = training.num_train_steps or model.task.count_train_steps(
        features, training.batch_size, training.epochs
    )
    warmup = training.num_warmup_steps
    if warmup is None:
        share = input_pipeline.exact(training.warmup_proportion)
        warmup = int(steps * share)
    if warmup > steps:
        raise UserError(
            f"--num_warmup_steps is {warmup}, but the training has {steps} "
            "steps"
        )
    return Schedule(model.learning_rate, steps, warmup)


def checkpoint_bytes(
    run: Run, table: ParameterTable, folder: str, step: int
) -> int:
    """Counts the bytes that checkpoints in a folder need from a step on."""
    return table.saved_count * training_state.bytes_per_value(
        folder,
        run.schedule.num_train_steps - step,
        run.experiment.training.save_checkpoints_steps,
        len(run.stops),
    )


def run_steps(
    engine: Engine,
    model: Model,
    job: Job,
    features: Features,
    schedule: Schedule,
    first_step: int = 0,
    **pauses: Any,
) -> tuple[str, int]:
    """Trains a job from `first_step`; gives the last checkpoint and its step.

    `pauses` are `stops` and `look` of a `Course`.
    """
    training, steps = model.experiment.training, schedule.num_train_steps
    logging.info(
        "training: %d steps of %d examples, from step %d, learning rate %g%s",
        steps,
        training.batch_size,
        first_step,
        schedule.learning_rate,
        "" if training.learning_rate else f" (of {job.table.method})",
    )
    plan = model.task.plan(
        features,
        training.batch_size,
        steps,
        training.seed,
        training.length_pool_batches,
    )
    course = Course(
        features,
        plan,
        schedule,
        first_step,
        training.batch_size,
        training.save_checkpoints_steps,
        **pauses,
    )
    began = time.monotonic()
    with contextlib.closing(
        TrainingProgress(
            schedule,
            first_step,
            training.batch_size,
            job.output_dir if engine.is_chief else None,
        )
    ) as progress:
        engine.train(job, course, progress)
    seconds = time.monotonic() - began
    checkpoint, last_step = training_state.latest_step(job.output_dir)
    logging.info(
        "trained in %.1f s, %.1f examples per second",
        seconds,
        (last_step - first_step) * training.batch_size / seconds,
    )
    return checkpoint, last_step
