"""What a run writes at its end: the artifact, scores, and what it took."""

import os
import resource
from typing import Any, Dict, List

import numpy as np
from absl import logging
from tensorboard.summary import Writer

import files
import task_model
from engines import Job
from errors import UserError
from optimization import Schedule
from runs.setup import Setup, describe_task
from weights import (
    adapter_artifact,
    dev_scores,
    google,
    run_record,
    training_state,
)

Values = Dict[str, np.ndarray]


def artifact_folder(output_dir: str) -> str:
    """Where a run's artifact is."""
    return os.path.join(output_dir, "adapter")


def write_artifact(
    setup: Setup, job: Job, record: Dict[str, Any], schedule: Schedule
) -> None:
    """Writes what was trained as adapter artifacts, and its size.

    Of each of `Task.parts` there is one, beside a `run.json` as a run of that
    task alone would write it.
    """
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
    records = {"": _describe_part(setup, record, "", values)}
    for part, task in setup.task.parts.items():
        own = setup.task.values_of(part, values)
        records[part] = _describe_part(setup, record, part, own)
        config = {
            "checkpoint": os.path.basename(checkpoint),
            **records[part],
            "method": str(method),
            "trained_with": str(setup.method),
            "task_settings": task.settings,
        }
        folder = artifact_folder(os.path.join(job.output_dir, part))
        adapter_artifact.write(folder, config, own)
        logging.info("the trained adapter is in %s", folder)
    for part, described in records.items():
        run_record.write(
            os.path.join(job.output_dir, part), described, setup.base
        )


def _describe_part(
    setup: Setup, record: Dict[str, Any], part: str, values: Values
) -> Dict[str, Any]:
    """What `run.json` says at the end, of the run or of a part as if alone.

    Args:
        setup: of the run.
        record: what its `run.json` says.
        part: of `Task.parts`, or "" for the run.
        values: what is kept of it.
    """
    counts = {**record["parameters"], "kept": adapter_artifact.count(values)}
    if not part:
        return {**record, "parameters": counts}
    task = setup.task.parts[part]
    table = task_model.list_parameters(
        setup.config, setup.method, task.build_head
    )
    counts.update(total=table.total_count, trained=table.trained_count)
    return {
        **record,
        "task": describe_task(task),
        "data_name": os.path.basename(part),
        "parameters": counts,
    }


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
    return results


def log_results(results: Dict[str, float]) -> None:
    """Shows what `write_results` has written."""
    lines = (f"\n  {key} = {results[key]}" for key in sorted(results))
    logging.info("***** Eval results *****%s", "".join(lines))


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
