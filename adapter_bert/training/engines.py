"""Engines: training and prediction on devices, and the choice of an engine."""

import abc
import dataclasses
import os
import pkgutil
from typing import Callable, Optional

import tensorflow as tf

from adapter_bert.checkpoints import training_state
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Features, Plan
from adapter_bert.errors import UserError
from adapter_bert.optimization import Schedule
from adapter_bert.progress import TrainingProgress
from adapter_bert.training.prediction import RowPredictor
from adapter_bert.training.settings import ENGINES, Hardware
from adapter_bert.training.training_step import Job


@dataclasses.dataclass(frozen=True)
class Course:
    """Holds the steps of a training: rows in order, rates, saves, pauses.

    `batch_size` counts the rows of a step over all devices. After each of
    `stops` the chief calls `look` with the step and a predictor with its
    values, which the engine hands out again at the end; `look` returns whether
    the training ends here.
    """

    features: Features
    plan: Plan
    schedule: Schedule
    first_step: int
    batch_size: int
    save_checkpoints_steps: int
    stops: frozenset[int] = frozenset()
    look: Optional[Callable[[int, RowPredictor], bool]] = None

    def batches(
        self,
        length: Optional[int],
        shards: int,
        positions: Optional[range] = None,
    ) -> tf.data.Dataset:
        steps = range(self.first_step, self.schedule.num_train_steps)
        return input_pipeline.to_dataset(
            lambda: input_pipeline.train_batches(
                self.features, self.plan, steps, length, shards, positions
            ),
            self.features,
            length,
            self.batch_size // shards,
        )


class Engine(abc.ABC):
    """Trains and predicts jobs: the loop, and the devices that it runs on.

    All engines see the same batches, model, optimizer and initial values.
    Attributes hold after `check_devices`.

    Attributes:
        shards: devices that a batch is divided among, over all processes.
        lanes: groups of rows that a device computes at the same time.
        workers: processes that train together.
        is_chief: whether this one of them writes the files.
    """

    def __init__(self, hardware: Hardware):
        self._hardware = hardware
        self.shards = self.lanes = self.workers = 1
        self.is_chief = True
        # Job, step and predictor of a training that has just ended.
        self._trained: Optional[tuple[Job, int, RowPredictor]] = None
        tf.config.experimental.enable_op_determinism()

    @property
    def has_accelerators(self) -> bool:
        gpus = tf.config.list_physical_devices("GPU")
        return self._hardware.use_tpu or bool(gpus)

    def check_can(self, pauses: bool, compares_rows: bool) -> None:
        """Refuses a training that pauses, or whose `BatchHead` compares rows.

        Most engines can do both.
        """
        return

    @abc.abstractmethod
    def check_devices(self) -> None:
        """Looks for the devices."""

    @abc.abstractmethod
    def train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:
        """Trains, and saves checkpoints in the job's folder."""

    def predictor(self, job: Job) -> RowPredictor:
        """Predicts with the job's model, in this process alone.

        A training of the same job that has just ended hands its model over.
        """
        trained, self._trained = self._trained, None
        if trained is not None:
            _, newest = training_state.latest_step(job.output_dir)
            if trained[:2] == (job, newest):
                return trained[2]
        return self._new_predictor(job)

    @abc.abstractmethod
    def _new_predictor(self, job: Job) -> RowPredictor:
        """A predictor that builds a model of its own."""


def is_cluster() -> bool:
    """Tells whether TF_CONFIG names several processes."""
    if "TF_CONFIG" not in os.environ:
        return False
    from adapter_bert.training import multi_worker

    return multi_worker.count() > 1


def check_alone(what: str) -> None:
    """Refuses to do something in one of several processes."""
    if is_cluster():
        raise UserError(
            f"{what} needs one process, but TF_CONFIG names several"
        )


def choose_engine(name: str) -> tuple[type[Engine], str]:
    """Gives the engine called `name`, and why.

    TPUEstimator ended with TensorFlow 2.15; `auto` chooses it where it can run.
    """
    if name not in ("auto", *ENGINES):
        raise UserError(
            f"unknown engine {name!r}; expected auto or one of "
            f"{', '.join(ENGINES)}"
        )
    chosen, why = "estimator", f"TensorFlow {tf.__version__} has it"
    if is_cluster():
        chosen, why = "strategy", "TF_CONFIG names several processes"
    elif not hasattr(tf, "estimator"):
        chosen = "strategy"
        why = f"TensorFlow {tf.__version__} has no TPUEstimator"
    if name == "estimator" and chosen != name:
        raise UserError(
            f"--engine=estimator cannot run here: {why}; use --engine=strategy"
        )
    if name != "auto":
        chosen, why = name, "--engine names it"
    return pkgutil.resolve_name(ENGINES[chosen]), why


def check_batch_size(batch_size: int, devices: int, parts: int) -> None:
    """Checks that every device and part gets equally many rows."""
    if batch_size % (devices * parts):
        raise UserError(
            f"--train_batch_size {batch_size} cannot be divided evenly among "
            f"{devices} devices and {parts} --gradient_accumulation_steps; "
            "change one of them, or --num_devices"
        )
