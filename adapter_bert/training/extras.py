"""Extras: what some runs do besides training, evaluating and predicting.

An extra is a class in a file of its own, and a line of `EXTRAS`. The order of
a run (`experiment.py`) knows none of them.
"""

import dataclasses
import os
import pkgutil
from typing import Any, Callable, Optional

from absl import logging

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.data.input_pipeline import Features
from adapter_bert.optimization import Schedule
from adapter_bert.tasks.task import SplitNames, Task
from adapter_bert.training.engines import Engine
from adapter_bert.training.prediction import RowPredictor
from adapter_bert.training.settings import Experiment
from adapter_bert.training.setup import ADAPTER, Model
from adapter_bert.training.training_step import Job


@dataclasses.dataclass
class Run:
    """What a run has come to, which its extras may read and change.

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
        stops: steps after which the training pauses for the extras' `look`.
        checkpoint: the best or newest one in the run's folder, if any.
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
    stops: frozenset[int] = frozenset()
    checkpoint: Optional[str] = None

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


@dataclasses.dataclass
class Answers:
    """What a run's model answers, by split.

    Attributes:
        by_split: predictions as the task decodes them.
        shown: values of `Hooks.observe`, float32 [rows, ...] by name.
        predictor: has computed them, and may compute more.
    """

    by_split: dict[str, Any]
    shown: dict[str, dict[str, Any]]
    predictor: RowPredictor


class Extra:
    """Takes part in a run; what a subclass leaves out does nothing."""

    def check(self, run: Run) -> None:
        """Refuses what cannot work, before rows are tokenized."""

    def reserve(self, run: Run) -> int:
        """Gives the bytes that a training needs in the run's folder besides.

        Whatever the extra cannot use in folders is refused here, since nothing
        has changed in them yet. May add to `run.stops`.
        """
        return 0

    def begin(self, run: Run) -> None:
        """Precedes a training's steps; may change the job and the features."""

    def look(self, run: Run, step: int, predictor: RowPredictor) -> bool:
        """Looks at the model after one of `run.stops`, on the chief alone.

        Returns whether the training ends here.
        """
        return False

    def end(self, run: Run, answers: Answers) -> None:
        """Follows the answers, before they are scored; may change the task."""


def _settings(model: Model) -> dict[str, Any]:
    """Reads `task_settings` of the adapter that a run begins with, or has."""
    experiment = model.experiment
    return adapter_artifact.settings_of(
        experiment.adapter_folder
        or os.path.join(experiment.output_dir, ADAPTER)
    )


# Module and class of each extra, and whether a run asks for it. Extras begin
# and end in this order.
EXTRAS: dict[str, Callable[[Model], Any]] = {
    "adapter_bert.training.imprinting:Imprinting": lambda model: (
        "extend_labels" in model.task.training_settings
    ),
    "adapter_bert.training.two_phases:FirstPhase": lambda model: (
        model.experiment.do_train and model.method.first_phase
    ),
    "adapter_bert.training.early_stopping:EarlyStopping": lambda model: (
        model.experiment.do_train and model.experiment.training.eval_steps
    ),
    "adapter_bert.training.frozen_outputs:FrozenOutputs": lambda model: (
        model.experiment.do_train and model.experiment.cache_frozen_layers
    ),
    "adapter_bert.training.calibrating:Calibrating": lambda model: (
        model.experiment.calibrate
        or "calibration" in _settings(model)
        or files.exists(
            os.path.join(model.experiment.output_dir, "calibration.json")
        )
    ),
    "adapter_bert.training.frozen_features:Novelty": lambda model: (
        model.experiment.score_novelty or "novelty" in _settings(model)
    ),
    "adapter_bert.training.fusion_report:FusionReport": lambda model: (
        model.method.observes
    ),
}


def of(model: Model) -> list[Extra]:
    """Makes the extras that a run asks for; others are not even imported."""
    return [
        pkgutil.resolve_name(place)()
        for place, is_asked in EXTRAS.items()
        if is_asked(model)
    ]


def warn_of_loss(run: Run, setting: str, flag: str) -> None:
    """Warns where an adapter has a setting that its training will lose."""
    trained = run.model.trained
    if trained and setting in (trained.config.get("task_settings") or {}):
        logging.warning(
            "the %s of %s is of what it was trained on before, and left out; "
            "%s fits another one",
            setting,
            trained.weights.source,
            flag,
        )
