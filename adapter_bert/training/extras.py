"""Extras: what some runs do besides training, evaluating and predicting.

An extra is a class in a file of its own, and a line of `EXTRAS`. The order of
a run (`experiment.py`) knows none of them.
"""

import os
import pkgutil
from typing import Any, Callable

from absl import logging

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.training.prediction import RowPredictor
from adapter_bert.training.run import Answers, Run
from adapter_bert.training.setup import ADAPTER, Model


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
        experiment.adapter
        or experiment.init_adapter
        or os.path.join(experiment.output_dir, ADAPTER)
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
    "adapter_bert.training.calibrating:Calibrating": lambda model: (
        model.experiment.calibrate
        or "calibration" in _settings(model)
        or files.exists(
            os.path.join(model.experiment.output_dir, "calibration.json")
        )
    ),
    "adapter_bert.training.thresholds:Thresholds": lambda model: (
        model.experiment.fit_thresholds
        or "label_thresholds" in _settings(model)
        or files.exists(
            os.path.join(model.experiment.output_dir, "label_thresholds.json")
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
