"""What a run writes at its end: the artifact, scores, and what it took."""

import os
import resource
from typing import Any, Dict, List

import numpy as np
from absl import logging
from tensorboard.summary import Writer

import files
from engines import Job
from errors import UserError
from optimization import Schedule
from runs.setup import Setup
from weights import (
    adapter_artifact,
    dev_scores,
    google,
    run_record,
    training_state,
)


def artifact_folder(output_dir: str) -> str:
    """Where a run's artifact is."""
    return os.path.join(output_dir, "adapter")


def write_artifact(
    setup: Setup, job: Job, record: Dict[str, Any], schedule: Schedule
) -> None:
    """Writes what was trained as an adapter artifact, and its size."""
    newest, _ = training_state.latest_step(job.output_dir)
    checkpoint = dev_scores.best_checkpoint(job.output_dir) or newest
    weights = google.open_tensorflow(checkpoint)
    values = {p.name: weights.read(p.name) for p in job.table.trained}
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise UserError(
                f"{name} is no number any more after training; lower "
                f"--learning_rate ({schedule.learning_rate}) and choose "
                "another --output_dir"
            )
    method, values = setup.method.finish(setup.config, values)
    if setup.method.changes_few:
        values = adapter_artifact.changes(
            values, lambda name: setup.initial_values[name]()
        )
    folder = artifact_folder(job.output_dir)
    if setup.experiment.carry_parts:
        parts = {
            p.name: setup.initial_values[p.name]()
            for p in job.table.parameters
            if p.group == "parts"
        }
        values = {**values, **adapter_artifact.few(parts)}
    parameters = {
        **record["parameters"],
        "kept": adapter_artifact.count(values),
    }
    record = {**record, "parameters": parameters}
    config = {
        "checkpoint": os.path.basename(checkpoint),
        **record,
        "method": str(method),
        "trained_with": str(setup.method),
        "task_settings": setup.task.settings,
    }
    if setup.parts.hashes:
        config["carries_parts"] = setup.experiment.carry_parts
    adapter_artifact.write(folder, config, values)
    run_record.write(job.output_dir, record, setup.base, setup.parts.folders)
    logging.info("the trained adapter is in %s", folder)


def write_results(
    output_dir: str, scores: Dict[str, float], step: int, data: Dict[str, str]
) -> Dict[str, float]:
    """Writes `eval_results.txt` and `.json`.

    The `.json` also has the fingerprints of the data, by split.
    """
    results: Dict[str, float] = {
        f"eval_{name}": value for name, value in scores.items()
    }
    results["global_step"] = step
    if "loss" in scores:
        results["loss"] = scores["loss"]
    lines: List[str] = [f"{key} = {results[key]}" for key in sorted(results)]
    files.write_text(
        os.path.join(output_dir, "eval_results.txt"), "\n".join(lines) + "\n"
    )
    files.write_json(
        os.path.join(output_dir, "eval_results.json"),
        {**results, "dev_data": data},
    )
    logging.info("***** Eval results *****\n  %s", "\n  ".join(lines))
    return results


def write_curves(output_dir: str, scores: Dict[str, float], step: int) -> None:
    """Adds the scores of a step to TensorBoard's curves."""
    writer = Writer(os.path.join(output_dir, "eval"))
    for name, value in scores.items():
        writer.add_scalar(name, value, step)
    writer.close()


def write_cost(output_dir: str, resumed: bool, seconds: float) -> None:
    """Writes `cost.json`: what this process has taken, all that it did."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    files.write_json(
        os.path.join(output_dir, "cost.json"),
        {
            # Then this is not all that the training took.
            "resumed": resumed,
            "seconds": seconds,
            "processor_seconds": usage.ru_utime + usage.ru_stime,
            # Linux counts in KiB.
            "peak_memory_bytes": usage.ru_maxrss * 1024,
        },
    )
