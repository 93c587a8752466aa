"""A training from its first or next step to its last."""

import contextlib
import time
from typing import Optional

from absl import logging

from adapter_bert.checkpoints import training_state
from adapter_bert.data import input_pipeline
from adapter_bert.errors import UserError
from adapter_bert.optimization import Schedule
from adapter_bert.progress import TrainingProgress
from adapter_bert.training.engines import NO_PAUSE, Course, Engine, Pause
from adapter_bert.training.setup import Setup
from adapter_bert.training.training_step import Job


def make_schedule(setup: Setup, features: input_pipeline.Features) -> Schedule:
    """Gives the learning rates of the setup's training over these rows."""
    training = setup.experiment.training
    steps = training.num_train_steps or setup.task.count_train_steps(
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
    return Schedule(setup.model.learning_rate, steps, warmup)


def run_steps(
    engine: Engine,
    setup: Setup,
    job: Job,
    features: input_pipeline.Features,
    schedule: Schedule,
    first_step: int,
    pause: Pause = NO_PAUSE,
    train: Optional[input_pipeline.Features] = None,
) -> tuple[str, int]:
    """Trains a job from `first_step`; gives the last checkpoint and its step.

    `features` are the training rows', `train` the same with the outputs of
    frozen layers, if these are not computed anew.
    """
    training, steps = setup.experiment.training, schedule.num_train_steps
    logging.info(
        "training: %d steps of %d examples, from step %d, learning rate %g%s",
        steps,
        training.batch_size,
        first_step,
        schedule.learning_rate,
        "" if training.learning_rate else f" (of {job.table.method})",
    )
    plan = setup.task.plan(
        features,
        training.batch_size,
        steps,
        training.seed,
        training.length_pool_batches,
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
        course = Course(
            features if train is None else train,
            plan,
            schedule,
            first_step,
            training.batch_size,
            training.save_checkpoints_steps,
            pause,
        )
        engine.train(job, course, progress)
    seconds = time.monotonic() - began
    checkpoint, last_step = training_state.latest_step(job.output_dir)
    logging.info(
        "trained in %.1f s, %.1f examples per second",
        seconds,
        (last_step - first_step) * training.batch_size / seconds,
    )
    return checkpoint, last_step
