"""Extras: what some runs do besides training, evaluating and predicting.

An extra is a class in a file of its own, and a line of `EXTRAS`. The order of
a run (`experiment.py`) knows none of them.
"""

import abc
import os
import pkgutil
from typing import Any, Callable

from absl import logging

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.tasks.task import Task
from adapter_bert.training.prediction import RowPredictor
from adapter_bert.training.run import Answers, Run
from adapter_bert.training.settings import ADAPTER
from adapter_bert.training.setup import Model


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


class Fitting(Extra, abc.ABC):
    """Fits something of the task at the end, and keeps it in the adapter.

    A run without its flag takes over what the adapter has; a training forgets.

    Attributes:
        flag: field of `Classification`.
        setting: key of an adapter's `task_settings`, and the name of the file
            in the run's folder that tells more.
    """

    flag = setting = ""

    def check_rows(self, run: Run) -> None:
        """Refuses rows that cannot be fitted to."""

    @abc.abstractmethod
    def fit(self, run: Run, answers: Answers) -> Task:
        """Gives the task with what is fitted, and writes the file."""

    @abc.abstractmethod
    def restore(self, run: Run, settings: dict[str, Any], folder: str) -> Task:
        """Gives the task with what an adapter's settings have."""

    def path(self, run: Run) -> str:
        """Names the file."""
        return os.path.join(run.folder, f"{self.setting}.json")

    def _has_flag(self, run: Run) -> bool:
        return getattr(run.experiment.classification, self.flag)

    def check(self, run: Run) -> None:
        trained = run.model.trained
        if self._has_flag(run):
            self.check_rows(run)
        elif (
            run.experiment.do_train
            and trained
            and not run.model.new_head
            and self.setting in (trained.config.get("task_settings") or {})
        ):
            logging.warning(
                "the %s of %s is of what it was trained on before, and left "
                "out; --%s=true fits another one",
                self.setting,
                trained.weights.source,
                self.flag,
            )

    def begin(self, run: Run) -> None:
        # A finished run writes its adapter before it fits again; if it is
        # killed between, the adapter has what it had.
        if run.is_over and self._has_flag(run):
            folder = os.path.join(run.folder, ADAPTER)
            settings = adapter_artifact.settings_of(folder)
            run.task = self.restore(run, settings, folder)

    def end(self, run: Run, answers: Answers) -> None:
        if self._has_flag(run):
            run.task = self.fit(run, answers)
            folder = os.path.join(run.folder, ADAPTER)
            adapter_artifact.change_settings(folder, run.task.settings)
        elif not run.experiment.do_train:
            folder = run.experiment.adapter_folder
            settings = adapter_artifact.settings_of(folder)
            run.task = self.restore(run, settings, folder)
        else:
            # It tells of an earlier adapter.
            files.remove(self.path(run))


def _is_fitted(model: Model, flag: str, setting: str) -> bool:
    experiment = model.experiment
    return (
        getattr(experiment.classification, flag)
        or setting in adapter_artifact.settings_of(experiment.adapter_folder)
        or files.exists(os.path.join(experiment.output_dir, f"{setting}.json"))
    )


# Module and class of each extra, and whether a run asks for it. Extras begin
# and end in this order.
EXTRAS: dict[str, Callable[[Model], Any]] = {
    "adapter_bert.training.imprinting:Imprinting": lambda model: (
        "extend_labels" in model.task.training_settings
    ),
    "adapter_bert.training.few_rows:FewRows": lambda model: (
        model.experiment.do_train and "few_shot" in model.task.training_settings
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
    "adapter_bert.training.calibrating:Calibrating": (
        lambda model: _is_fitted(model, "calibrate", "calibration")
    ),
    "adapter_bert.training.thresholds:Thresholds": (
        lambda model: _is_fitted(model, "fit_thresholds", "label_thresholds")
    ),
    "adapter_bert.training.frozen_features:Novelty": (
        lambda model: _is_fitted(model, "score_novelty", "novelty")
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
