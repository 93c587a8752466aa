"""Steps that a training saves by beginning with a trained adapter."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Optional

from adapter_bert import files
from adapter_bert.checkpoints import dev_scores
from adapter_bert.training import experiment as experiments
from adapter_bert.training.settings import Experiment

# Dev scores of each training.
SCORINGS = 10


@dataclasses.dataclass(frozen=True)
class SavedSteps:
    """Holds dev scores by step of two trainings that differ in their beginning.

    A higher `metric` is better.
    """

    metric: str
    from_nothing: Mapping[int, float]
    from_adapter: Mapping[int, float]

    @property
    def best(self) -> float:
        return max(self.from_nothing.values())

    @property
    def best_step(self) -> int:
        return _first_step(self.from_nothing, self.best)

    @property
    def reached(self) -> Optional[int]:
        """Gives the first step from the adapter that scores no less, if any."""
        if max(self.from_adapter.values()) < self.best:
            return None
        return _first_step(self.from_adapter, self.best)

    def describe(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "best": self.best,
            "best_step": self.best_step,
            "reached": self.reached,
        }

    def line(self, name: str) -> str:
        """A line about the steps that the adapter of this name saves."""
        last = max(self.from_nothing)
        line = (
            f"from nothing the best {self.metric} of {last} steps is "
            f"{self.best:.4f}, at step {self.best_step}; from {name} "
        )
        if self.reached is None:
            most = max(self.from_adapter.values())
            return f"{line}it is at most {most:.4f}, so no step is saved"
        saved = self.best_step - self.reached
        return f"{line}it is reached at step {self.reached}: {saved} saved"


def _first_step(scores: Mapping[int, float], least: float) -> int:
    return min(step for step, score in scores.items() if score >= least)


def dev_curve(experiment: Experiment) -> dict[int, float]:
    """Gives the main dev score by step, of a training in a temporary folder."""
    with files.temporary_folder() as folder:
        experiment = dataclasses.replace(
            experiment,
            do_train=True,
            do_eval=True,
            # Trainings that follow one another share the process.
            engine="strategy",
            output_dir=os.path.join(folder, "run"),
        )
        experiments.run(experiment)
        by_step = dev_scores.read(experiment.output_dir).by_step
    metric = experiment.task.score_names[0]
    return {step: scores[metric] for step, scores in by_step.items()}


def measure(experiment: Experiment, init_adapter: str) -> SavedSteps:
    """Trains from fresh values, then from an adapter's, scored ten times."""
    training = experiment.training
    every = max(1, training.num_train_steps // SCORINGS)
    training = dataclasses.replace(training, eval_steps=str(every))
    experiment = dataclasses.replace(experiment, training=training)
    begun = dataclasses.replace(experiment, init_adapter=init_adapter)
    return SavedSteps(
        experiment.task.score_names[0], dev_curve(experiment), dev_curve(begun)
    )
