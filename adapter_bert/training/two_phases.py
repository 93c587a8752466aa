"""First of two trainings, for the methods that choose what to train."""

import dataclasses
import functools
import os

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import google, run_record, training_state
from adapter_bert.data import input_pipeline
from adapter_bert.optimization import Schedule
from adapter_bert.tasks import task_model
from adapter_bert.training import loop
from adapter_bert.training.engines import Engine
from adapter_bert.training.setup import Setup, describe_run
from adapter_bert.training.training_step import Job

# Folder of the first training, within the run's.
FOLDER = "phase_1"


class FirstPhase:
    """Trains `TuningMethod.first_phase`, before the method's own training."""

    def __init__(
        self,
        engine: Engine,
        setup: Setup,
        job: Job,
        features: input_pipeline.Features,
        schedule: Schedule,
    ):
        self._engine, self._setup, self._job = engine, setup, job
        self._features, self._schedule = features, schedule
        self._method = setup.model.method.first_phase
        self.table = task_model.list_parameters(
            setup.model.config, self._method, setup.task.build_head
        )
        self.folder = os.path.join(job.output_dir, FOLDER)
        self._record = describe_run(setup, engine, features, schedule)
        self._record["method"] = str(self._method)
        run_record.check(self.folder, self._record, do_train=True)
        self._checkpoint, self.step = training_state.latest_step(self.folder)
        if self._checkpoint:
            training_state.check_training_checkpoint(
                self._checkpoint, self.table.saved
            )

    def train(self) -> Job:
        setup, job, model = self._setup, self._job, self._setup.model
        files.prepare_folder(self.folder)
        training_state.recover(self.folder)
        run_record.write(self.folder, self._record, model.base)
        logging.info("phase 1 of 2: %s", self._method)
        if self.step < self._schedule.num_train_steps:
            first = dataclasses.replace(
                job,
                build_model=lambda create: task_model.TaskModel(
                    model.config, self._method, setup.task.build_head, create
                ),
                table=self.table,
                initial_values={
                    p.name: setup.initial_values.get(p.name)
                    or functools.partial(
                        encoder.initial_values,
                        p.name,
                        p.shape,
                        p.initializer,
                        job.seed,
                        lambda name: setup.initial_values[name](),
                    )
                    for p in self.table.parameters
                },
                output_dir=self.folder,
            )
            self._checkpoint, _ = loop.run_steps(
                self._engine,
                setup,
                first,
                self._features,
                self._schedule,
                self.step,
            )
        logging.info("phase 2 of 2: %s", model.method)
        kept = {p.name for p in job.table.trained if p.is_added}
        start = model.method.second_start(
            [p.name for p in self.table.parameters if not p.is_added],
            [p.name for p in self.table.trained if p.name in kept],
            lambda name: setup.initial_values[name](),
            google.open_tensorflow(self._checkpoint).read,
        )
        values = {
            name: functools.partial(np.asarray, value, np.float32)
            for name, value in start.items()
        }
        return dataclasses.replace(
            job, initial_values={**job.initial_values, **values}
        )
