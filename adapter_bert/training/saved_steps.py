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


def compare(
    metric: str,
    from_nothing: Mapping[int, float],
    from_adapter: Mapping[int, float],
) -> dict[str, Any]:
    """Compares dev scores by step of trainings that begin differently.

    A higher `metric` is better. Gives these, the `best` one from nothing, its
    first `best_step`, and `reached`, the first step from the adapter that
    scores no less, or None.
    """
    best = max(from_nothing.values())

    def first_step(scores: Mapping[int, float]) -> Optional[int]:
        steps = (step for step, score in scores.items() if score >= best)
        return min(steps, default=None)

    return {
        "metric": metric,
        "from_nothing": from_nothing,
        "from_adapter": from_adapter,
        "best": best,
        "best_step": first_step(from_nothing),
        "reached": first_step(from_adapter),
    }


def line(saved: Mapping[str, Any], name: str) -> str:
    """Tells in a line the steps that the adapter of this name saves."""
    about = (
        f"from nothing the best {saved['metric']} of "
        f"{max(saved['from_nothing'])} steps is {saved['best']:.4f}, at step "
        f"{saved['best_step']}; from {name} "
    )
    if saved["reached"] is None:
        most = max(saved["from_adapter"].values())
        return f"{about}it is at most {most:.4f}, so no step is saved"
    steps = saved["best_step"] - saved["reached"]
    return f"{about}it is reached at step {saved['reached']}: {steps} saved"


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


def measure(experiment: Experiment, init_adapter: str) -> dict[str, Any]:
    """Trains from fresh values, then from an adapter's, scored ten times."""
    training = experiment.training
    every = max(1, training.num_train_steps // SCORINGS)
    training = dataclasses.replace(training, eval_steps=str(every))
    experiment = dataclasses.replace(experiment, training=training)
    begun = dataclasses.replace(experiment, init_adapter=init_adapter)
    return compare(
        experiment.task.score_names[0], dev_curve(experiment), dev_curve(begun)
    )
