"""The first of two trainings, for the methods that choose what to train."""

import dataclasses
import functools
import os
from typing import Any, Dict

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import google, run_record, training_state
from adapter_bert.data import input_pipeline
from adapter_bert.optimization import Schedule
from adapter_bert.tasks import task_model
from adapter_bert.training import loop
from adapter_bert.training.engines import Job
from adapter_bert.training.setup import Setup, describe_run

# Folder of the training that comes before a method of two phases.
FIRST_PHASE = "phase_1"


def first_phase_step(output_dir: str) -> int:
    """How far the first of two trainings has come."""
    _, step = training_state.latest_step(os.path.join(output_dir, FIRST_PHASE))
    return step


def first_phase_table(setup: Setup) -> task_model.ParameterTable:
    """The variables of what is trained before the setup's method."""
    return task_model.list_parameters(
        setup.config, setup.method.first_phase, setup.task.build_head
    )


def check_first_phase(
    engine: Any,
    setup: Setup,
    output_dir: str,
    features: input_pipeline.Features,
    schedule: Schedule,
) -> Dict[str, Any]:
    """Refuses what of a first phase cannot be gone on with.

    Returns:
        What its `run.json` says.

    Raises:
        UserError: it is of another run, or none of its checkpoints is whole.
    """
    table = first_phase_table(setup)
    folder = os.path.join(output_dir, FIRST_PHASE)
    record = describe_run(setup, engine, features, schedule)
    record["method"] = str(setup.method.first_phase)
    run_record.check(folder, record, setup.base, do_train=True)
    checkpoint, _ = training_state.latest_step(folder)
    if checkpoint:
        training_state.check_training_checkpoint(
            checkpoint, {p.name: p.shape for p in table.trained}
        )
    return record


def train_first_phase(
    engine: Any,
    setup: Setup,
    job: Job,
    features: input_pipeline.Features,
    schedule: Schedule,
) -> Job:
    """Trains what comes before the method, in a folder of its own.

    A first phase that was interrupted goes on; one that is over is read.

    Returns:
        The job of the method itself, with the values that it starts from.
    """
    method, table = setup.method.first_phase, first_phase_table(setup)
    folder = os.path.join(job.output_dir, FIRST_PHASE)
    files.prepare_folder(folder)
    initial_values = {
        p.name: setup.initial_values.get(p.name)
        or functools.partial(
            encoder.initial_values,
            p.name,
            p.shape,
            p.initializer,
            job.seed,
            lambda name: setup.initial_values[name](),
        )
        for p in table.parameters
    }
    record = check_first_phase(
        engine, setup, job.output_dir, features, schedule
    )
    training_state.recover(folder)
    run_record.write(folder, record, setup.base)
    _, step = training_state.latest_step(folder)
    logging.info("phase 1 of 2: %s", method)
    if step < schedule.num_train_steps:
        first = dataclasses.replace(
            job,
            build_model=lambda create: task_model.TaskModel(
                setup.config, method, setup.task.build_head, create
            ),
            table=table,
            initial_values=initial_values,
            output_dir=folder,
        )
        loop.run_steps(engine, setup, first, features, schedule, step)
    checkpoint, _ = training_state.latest_step(folder)
    logging.info("phase 2 of 2: %s", setup.method)
    kept = {p.name for p in job.table.trained if p.is_added}
    start = setup.method.second_start(
        [p.name for p in table.parameters if not p.is_added],
        [p.name for p in table.trained if p.name in kept],
        lambda name: setup.initial_values[name](),
        google.open_tensorflow(checkpoint).read,
    )
    values = {
        name: functools.partial(np.asarray, value, np.float32)
        for name, value in start.items()
    }
    return dataclasses.replace(
        job, initial_values={**job.initial_values, **values}
    )
