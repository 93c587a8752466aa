"""Runs a first training before the run's own, to choose what to train."""

import dataclasses
import functools
import os

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import google, run_record, training_state
from adapter_bert.errors import UserError
from adapter_bert.methods.base import TuningMethod
from adapter_bert.tasks import task_model
from adapter_bert.training.engines import check_alone
from adapter_bert.training.extras import Extra
from adapter_bert.training.run import Run, run_steps
from adapter_bert.training.training_step import Job

# Folder of the first training, within the run's.
FOLDER = "phase_1"


class FirstPhase(Extra):
    """Trains `TuningMethod.first_phase`, before the method's own training."""

    def check(self, run: Run) -> None:
        model = run.model
        if model.trained is not None:
            raise UserError(
                f"{model.trained.weights.source} cannot be trained further "
                f"with {model.method.name}, which compares with the pretrained "
                "BERT; pass that as --init_checkpoint"
            )
        check_alone(f"{model.method.name}, which trains in two phases,")

    def reserve(self, run: Run) -> int:
        if run.is_over:
            return 0
        self._method, self._build_head = self.first(run)
        self._table = task_model.list_parameters(
            run.model.config, self._method, self._build_head
        )
        self._folder = os.path.join(run.folder, FOLDER)
        self._record = {**run.describe(), "method": str(self._method)}
        run_record.check(self._folder, self._record, do_train=True)
        self._checkpoint, self._step = training_state.latest_step(self._folder)
        if self._checkpoint:
            training_state.check_training_checkpoint(
                self._checkpoint, self._table.saved
            )
        run.resumed = run.resumed or self._step > 0
        if run.step:
            return 0
        return run.checkpoint_bytes(self._table, self._folder, self._step)

    def first(self, run: Run) -> tuple[TuningMethod, task_model.BuildHead]:
        """Gives the first training's method and head."""
        return run.model.method.first_phase, run.task.build_head

    def begin(self, run: Run) -> None:
        """Trains, and begins the run's own training with what came out."""
        if run.is_over:
            return
        model, job, folder = run.model, run.job, self._folder
        files.prepare_folder(folder)
        training_state.recover(folder)
        run_record.write(folder, self._record, model.base)
        logging.info("phase 1 of 2: %s", self._method)

        def pretrained(name: str) -> np.ndarray:
            return job.initial_values[name]()

        first = dataclasses.replace(
            job,
            build_model=functools.partial(
                task_model.TaskModel,
                model.config,
                self._method,
                self._build_head,
            ),
            table=self._table,
            initial_values={
                p.name: job.initial_values.get(p.name)
                or functools.partial(
                    encoder.initial_values,
                    p.name,
                    p.shape,
                    p.initializer,
                    job.seed,
                    pretrained,
                )
                for p in self._table.parameters
            },
            output_dir=folder,
        )
        if self._table.trained and self._step < run.schedule.num_train_steps:
            self._checkpoint, _ = run_steps(
                run.engine,
                model,
                first,
                run.features["train"],
                run.schedule,
                self._step,
            )
        self.second(run, first)

    def second(self, run: Run, first: Job) -> None:
        """Begins the run's own training with what the first job came to."""
        method, job = run.model.method, run.job
        logging.info("phase 2 of 2: %s", method)
        kept = {p.name for p in job.table.trained if p.is_added}
        begun = method.second_start(
            [p.name for p in self._table.parameters if not p.is_added],
            [p.name for p in self._table.trained if p.name in kept],
            lambda name: job.initial_values[name](),
            google.open_tensorflow(self._checkpoint).read,
        )
        run.job = job.beginning_with(begun)
