"""Holds what a run has come to; computes its steps, answers, scores."""

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from absl import logging

from adapter_bert.checkpoints import run_record, training_state
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Features
from adapter_bert.errors import UserError
from adapter_bert.optimization import Schedule
from adapter_bert.progress import TrainingProgress
from adapter_bert.tasks.task import ScoresAndData, SplitNames, Task
from adapter_bert.tasks.task_model import ParameterTable
from adapter_bert.training.engines import Course, Engine
from adapter_bert.training.prediction import RowPredictor, check_finite
from adapter_bert.training.settings import Experiment
from adapter_bert.training.setup import Model, describe_settings
from adapter_bert.training.training_step import Job


@dataclasses.dataclass
class Answers:
    """Holds what a run's model answers, by split.

    Attributes:
        by_split: predictions as the task decodes them.
        shown: values of `Hooks.observe`, float32 [rows, ...] by name.
        predictor: has computed them, and may compute more.
    """

    by_split: dict[str, Any]
    shown: dict[str, dict[str, Any]]
    predictor: RowPredictor


@dataclasses.dataclass
class Run:
    """Holds what a run has come to; its extras may read and change it.

    Attributes:
        dev: the splits that are evaluated.
        test: those that are predicted, which may be the same.
        rows: of each split; once tokenized, what the task keeps of them.
        features: of each split.
        schedule: of the training, if there is one.
        record: content of `run.json`.
        step: steps that are done.
        resumed: whether an earlier process did some of them.
        is_over: whether no step is left.
        extras: what it does besides training, evaluating and predicting.
        stops: steps after which the training pauses for the extras' `look`.
        checkpoint: the best or newest one in the run's folder, if any.
        first_values: what the job began with, before extras changed it.
    """

    engine: Engine
    model: Model
    job: Job
    dev: SplitNames
    test: SplitNames
    rows: dict[str, Any]
    features: dict[str, Features] = dataclasses.field(default_factory=dict)
    schedule: Optional[Schedule] = None
    record: dict[str, Any] = dataclasses.field(default_factory=dict)
    step: int = 0
    resumed: bool = False
    is_over: bool = False
    extras: Sequence[Any] = ()
    stops: frozenset[int] = frozenset()
    checkpoint: Optional[str] = None

    def __post_init__(self):
        self.first_values = self.job.initial_values

    @property
    def experiment(self) -> Experiment:
        return self.model.experiment

    @property
    def folder(self) -> str:
        return self.experiment.output_dir

    @property
    def task(self) -> Task:
        return self.model.task

    @task.setter
    def task(self, task: Task) -> None:
        self.model = dataclasses.replace(self.model, task=task)

    def checkpoint_bytes(
        self, table: ParameterTable, folder: str, step: int
    ) -> int:
        """Counts the bytes that checkpoints in a folder need from a step on."""
        return table.saved_count * training_state.bytes_per_value(
            folder,
            self.schedule.num_train_steps - step,
            self.experiment.training.save_checkpoints_steps,
            len(self.stops),
        )

    def describe(self) -> dict[str, Any]:
        """Describes the run for `run.json`."""
        experiment = self.experiment
        record = describe_settings(self.model, self.job)
        features = self.features.get("train")
        if features is not None:
            record["training"].update(
                steps=self.schedule.num_train_steps,
                examples=len(features),
                data=features.fingerprint(),
            )
        place = experiment.data_dir or experiment.task.train_file
        if not isinstance(place, str):
            place = "train.jsonl"
        parts = experiment.training.gradient_accumulation_steps
        return {
            **record,
            "data_name": run_record.name_of_data(place),
            "parameters": self.job.table.counts,
            "versions": {
                **run_record.versions(),
                "engine": type(self.engine).__name__,
                "devices": self.engine.shards,
                "cpu_lanes": self.engine.lanes,
                "gradient_accumulation_steps": parts,
                "use_xla": experiment.use_xla,
            },
        }

    def answer_splits(
        self, predictor: RowPredictor, splits: Iterable[str]
    ) -> Answers:
        """Gives the task's answers for some splits."""
        answers = Answers({}, {}, predictor)
        for name in splits:
            outputs, features = {}, self.features[name]
            how = self.experiment.predict_batch_size, "predict"
            # A split that is both is evaluated.
            if name in dict(self.dev).values():
                how = self.experiment.eval_batch_size, "eval"
            # No rows if no context has a token.
            if len(features):
                outputs = predictor.predict(features, *how)
                check_finite(outputs, name)
            answers.shown[name] = {
                key: outputs.pop(key)
                for key in self.model.method.observes
                if key in outputs
            }
            answers.by_split[name] = self.task.decode(
                self.rows[name], features, outputs
            )
        return answers

    def score(self, answers: Answers) -> dict[str, ScoresAndData]:
        """Gives the result of `Task.score_tables` for the dev splits."""
        scores = {
            suffix: self.task.evaluate(
                self.rows[name], self.features[name], answers.by_split[name]
            )
            for suffix, name in self.dev
        }
        return self.task.score_tables(scores, self.fingerprints())

    def fingerprints(self) -> dict[str, str]:
        """Gives the fingerprint of each dev split's rows."""
        return {name: self.features[name].fingerprint() for _, name in self.dev}


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
