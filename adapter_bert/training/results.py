"""What a run writes at its end: the artifact, scores, and what it took."""

import os
import resource
from typing import Any, Dict, List

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import (
    adapter_artifact,
    dev_scores,
    google,
    run_record,
    training_state,
)
from adapter_bert.errors import UserError
from adapter_bert.methods.base import TuningMethod
from adapter_bert.optimization import Schedule
from adapter_bert.progress import Curves
from adapter_bert.tasks import task_model
from adapter_bert.training.engines import Job
from adapter_bert.training.setup import Setup, describe_task

Values = Dict[str, np.ndarray]


def artifact_folder(output_dir: str) -> str:
    """Where a run's artifact is."""
    return os.path.join(output_dir, "adapter")


def write_artifact(
    setup: Setup, job: Job, record: Dict[str, Any], schedule: Schedule
) -> None:
    """Writes what was trained as adapter artifacts, and its size.

    Of each of `Task.members` there is one, beside a `run.json` as a run of that
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
            values,
            lambda name: setup.initial_values[name](),
            encoder.list_variables(setup.config),
        )
    if setup.experiment.carry_parts:
        carried = {
            p.name: setup.initial_values[p.name]()
            for p in job.table.parameters
            if p.group == "parts"
        }
        values = {**values, **adapter_artifact.few(carried)}
    kept = {"kept": adapter_artifact.count(values)}
    records = {
        "": {**record, "parameters": {**record["parameters"], **kept}},
    }
    for member, task in setup.task.members.items():
        own_method, own = method.of_task(
            setup.config,
            os.path.basename(member),
            setup.task.values_of(member, values),
        )
        if member:
            records[member] = _describe_member(
                setup, record, member, own_method, own
            )
        config = {
            "checkpoint": os.path.basename(checkpoint),
            **_without_cut_rows(records[member]),
            "method": str(own_method),
            "trained_with": str(setup.method),
            "task_settings": task.settings,
        }
        if setup.parts.hashes:
            config["carries_parts"] = setup.experiment.carry_parts
        folder = artifact_folder(os.path.join(job.output_dir, member))
        adapter_artifact.write(folder, config, own)
        logging.info("the trained adapter is in %s", folder)
    for member, described in records.items():
        run_record.write(
            os.path.join(job.output_dir, member),
            described,
            setup.base,
            setup.parts.folders,
        )


def _without_cut_rows(record: Dict[str, Any]) -> Dict[str, Any]:
    """A record but for what is of the run's splits as a whole."""
    return {key: value for key, value in record.items() if key != "cut_rows"}


def _describe_member(
    setup: Setup,
    record: Dict[str, Any],
    member: str,
    method: TuningMethod,
    values: Values,
) -> Dict[str, Any]:
    """What `run.json` says of one of several tasks, as if trained alone.

    `method` computes the task alone, of these values.
    """
    task = setup.task.members[member]
    table = task_model.list_parameters(setup.config, method, task.build_head)
    return {
        **_without_cut_rows(record),
        "task": describe_task(task),
        "data_name": os.path.basename(member),
        "parameters": {
            "total": table.total_count,
            "trained": table.trained_count,
            "kept": adapter_artifact.count(values),
        },
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
    files.write_sealed(
        os.path.join(output_dir, "eval_results.json"),
        {**results, "dev_data": data},
    )
    return results


def log_results(results: Dict[str, float]) -> None:
    """Shows what `write_results` has written."""
    lines = (f"\n  {key} = {results[key]}" for key in sorted(results))
    logging.info("***** Eval results *****%s", "".join(lines))


def write_curves(output_dir: str, scores: Dict[str, float], step: int) -> None:
    """Adds the scores of a step to TensorBoard's curves.

    Raises:
        UserError: they cannot be written.
    """
    curves = Curves(os.path.join(output_dir, "eval"))
    for name, value in scores.items():
        curves.add_scalar(name, value, step)
    curves.close()


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
