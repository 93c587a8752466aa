"""Files that a run writes at its end: artifact, scores, cost."""

import os
import sys

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import adapter_artifact, google, run_record
from adapter_bert.errors import UserError
from adapter_bert.methods.base import TuningMethod, Values, below
from adapter_bert.progress import Curves
from adapter_bert.tasks import task_model
from adapter_bert.tasks.task import scoped
from adapter_bert.training import cpu_cores
from adapter_bert.training.run import Run
from adapter_bert.training.settings import ADAPTER

try:
    import resource
except ImportError:
    # Windows.
    resource = None


def write_artifact(run: Run) -> None:
    """Writes the trained values as adapter artifacts, and their size.

    Each of `Task.members` has one, and a `run.json` as a run of that task alone
    would write it.
    """
    model, job, record = run.model, run.job, run.record
    weights = google.open_tensorflow(run.checkpoint)
    values = {p.name: weights.read(p.name) for p in job.table.trained}
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise UserError(
                f"{name} is no number any more after training; lower "
                f"--learning_rate ({model.learning_rate}) and choose "
                "another --output_dir"
            )
    method, values = _finish(run, values)
    if model.method.changes_few:
        from adapter_bert.checkpoints import changed_entries

        values = changed_entries.changes(
            values,
            lambda name: run.first_values[name](),
            encoder.list_variables(model.config),
        )
    if run.experiment.carry_parts:
        carried = {
            p.name: run.first_values[p.name]()
            for p in job.table.parameters
            if p.group == "parts"
        }
        if carried:
            from adapter_bert.checkpoints import changed_entries

            values = {**values, **changed_entries.few(carried)}
    # The splits' rows are those of all members together.
    described = {k: v for k, v in record.items() if k != "cut_rows"}
    for member, task in run.task.members.items():
        name = os.path.basename(member)
        member_method, task_values = method.of_task(
            model.config, name, run.task.values_of(member, values)
        )
        about = {**described, "parameters": dict(record["parameters"])}
        if member:
            table = task_model.list_parameters(
                model.config, member_method, task.build_head
            )
            about["parameters"] = table.counts
            about.update(task=task.describe_named(), data_name=name)
        about["parameters"]["kept"] = adapter_artifact.count(task_values)
        config = {
            "checkpoint": os.path.basename(run.checkpoint),
            **about,
            "method": str(member_method),
            "trained_with": str(model.method),
            "task_settings": task.settings,
        }
        if model.part_hashes:
            config["carries_parts"] = run.experiment.carry_parts
        folder = os.path.join(run.folder, member, ADAPTER)
        adapter_artifact.write(folder, config, task_values)
        logging.info("the trained adapter is in %s", folder)
        if member:
            place = os.path.join(run.folder, member)
            run_record.write(place, about, model.base, model.part_folders)
    record["parameters"]["kept"] = adapter_artifact.count(values)
    run_record.write(run.folder, record, model.base, model.part_folders)


def _finish(run: Run, values: Values) -> tuple[TuningMethod, Values]:
    method, config = run.model.method, run.model.config
    if not run.job.table.sides:
        return method.finish(config, values)
    scopes = tuple(scoped(side, "") for side in run.job.table.sides)
    # The head's are of both sides.
    kept = {n: v for n, v in values.items() if not n.startswith(scopes)}
    for scope in scopes:
        finished, finished_values = method.finish(config, below(scope, values))
        kept.update(
            (f"{scope}{name}", value) for name, value in finished_values.items()
        )
    return finished, kept


def write_results(
    output_dir: str, scores: dict[str, float], step: int, data: dict[str, str]
) -> dict[str, float]:
    """Writes `eval_results.txt` and, with the data's fingerprints, `.json`."""
    results: dict[str, float] = {
        f"eval_{name}": value for name, value in scores.items()
    }
    results["global_step"] = step
    if "loss" in scores:
        results["loss"] = scores["loss"]
    lines: list[str] = [f"{key} = {results[key]}" for key in sorted(results)]
    files.write_text(
        os.path.join(output_dir, "eval_results.txt"), "\n".join(lines) + "\n"
    )
    files.write_sealed(
        os.path.join(output_dir, run_record.RESULTS_FILE),
        {**results, "dev_data": data},
    )
    return results


def log_results(results: dict[str, float]) -> None:
    """Logs what `write_results` has written."""
    lines = (f"\n  {key} = {results[key]}" for key in sorted(results))
    logging.info("***** Eval results *****%s", "".join(lines))


def write_curves(output_dir: str, scores: dict[str, float], step: int) -> None:
    """Adds the scores of a step to TensorBoard's curves."""
    curves = Curves(os.path.join(output_dir, "eval"))
    for name, value in scores.items():
        curves.add_scalar(name, value, step)
    curves.close()


def write_cost(
    output_dir: str, resumed: bool, seconds: float, processor_seconds: float
) -> None:
    """Writes `cost.json`: a run's time, and the memory of its process."""
    peak = None
    if resource:
        # In KiB, on macOS in bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    files.write_json(
        os.path.join(output_dir, "cost.json"),
        {
            # Whether an earlier process did a part of the training.
            "resumed": resumed,
            "seconds": seconds,
            "processor_seconds": processor_seconds,
            "peak_memory_bytes": peak,
            "processor": cpu_cores.name(),
        },
    )
