"""Files that a run writes at its end: artifact, scores, cost."""

import os
import resource
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import adapter_artifact, google, run_record
from adapter_bert.errors import UserError
from adapter_bert.methods.base import TuningMethod, Values, below
from adapter_bert.optimization import Schedule
from adapter_bert.progress import Curves
from adapter_bert.tasks import task_model
from adapter_bert.tasks.task import scoped
from adapter_bert.training.setup import Setup, describe_task
from adapter_bert.training.training_step import Job

# The folder of an artifact, in its run's folder.
ADAPTER = "adapter"
CALIBRATION_FILE = "calibration.json"


def write_artifact(
    setup: Setup,
    job: Job,
    record: dict[str, Any],
    schedule: Schedule,
    checkpoint: str,
) -> None:
    """Writes the trained values as adapter artifacts, and their size.

    Each of `Task.members` has one, and a `run.json` as a run of that task alone
    would write it.
    """
    model = setup.model
    weights = google.open_tensorflow(checkpoint)
    values = {p.name: weights.read(p.name) for p in job.table.trained}
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise UserError(
                f"{name} is no number any more after training; lower "
                f"--learning_rate ({schedule.learning_rate}) and choose "
                "another --output_dir"
            )
    method, values = _finish(setup, values)
    if model.method.changes_few:
        values = adapter_artifact.changes(
            values,
            lambda name: setup.initial_values[name](),
            encoder.list_variables(model.config),
        )
    if setup.experiment.carry_parts:
        carried = {
            p.name: setup.initial_values[p.name]()
            for p in job.table.parameters
            if p.group == "parts"
        }
        if carried:
            values = {**values, **adapter_artifact.few(carried)}
    kept = {"kept": adapter_artifact.count(values)}
    records = {"": {**record, "parameters": {**record["parameters"], **kept}}}
    # The splits' rows are those of all members together.
    described = {k: v for k, v in record.items() if k != "cut_rows"}
    for member, task in setup.task.members.items():
        name = os.path.basename(member)
        own_method, task_values = method.of_task(
            model.config, name, setup.task.values_of(member, values)
        )
        if member:
            table = task_model.list_parameters(
                model.config, own_method, task.build_head
            )
            records[member] = {
                **described,
                "task": describe_task(task),
                "data_name": name,
                "parameters": {
                    "total": table.total_count,
                    "trained": table.trained_count,
                    "kept": adapter_artifact.count(task_values),
                },
            }
        config = {
            "checkpoint": os.path.basename(checkpoint),
            **records[member],
            "method": str(own_method),
            "trained_with": str(model.method),
            "task_settings": task.settings,
        }
        config.pop("cut_rows", None)
        if model.parts.hashes:
            config["carries_parts"] = setup.experiment.carry_parts
        folder = os.path.join(job.output_dir, member, ADAPTER)
        adapter_artifact.write(folder, config, task_values)
        logging.info("the trained adapter is in %s", folder)
    for member, content in records.items():
        run_record.write(
            os.path.join(job.output_dir, member),
            content,
            model.base,
            model.parts.folders,
        )


def write_calibration(
    output_dir: str, settings: dict[str, Any], record: dict[str, Any]
) -> None:
    """Writes `calibration.json`, and `settings` into the artifact."""
    path = os.path.join(output_dir, CALIBRATION_FILE)
    files.write_json(path, record)
    folder = os.path.join(output_dir, ADAPTER)
    adapter_artifact.change_settings(folder, settings)
    logging.info(
        "calibration: temperature %.4g; expected calibration error %.4f (95%%: "
        "%.4f to %.4f), was %.4f (%.4f to %.4f), on %d dev rows; more is in %s",
        record["temperature"] or 1,
        record["after"],
        *record["interval_after"],
        record["before"],
        *record["interval_before"],
        record["rows_measured"],
        path,
    )
    if record["temperature"] is None:
        logging.warning(
            "no temperature that fits one half of the dev rows lowers the log "
            "loss of the other, of whose answers %.1f%% are right: the "
            "probabilities stay as they are; pass more dev rows, and look at "
            "their labels if few answers are right",
            100 * record["accuracy"],
        )
    if "abstain_at" not in record:
        return
    if record["abstain_below"] is None:
        logging.warning(
            "no least probability gives %d dev rows a precision of %g: the "
            "adapter answers all rows; lower --abstain_at",
            record["rows_fitted"],
            record["abstain_at"],
        )
        return
    precision = record["precision"]
    logging.info(
        "no label below the probability %.4f: %.1f%% of %d dev rows have one, "
        "%s",
        record["abstain_below"],
        100 * record["coverage"],
        record["rows_measured"],
        "none is right or wrong"
        if precision is None
        else f"{precision:.1%} of these the right one",
    )


def forget_calibration(output_dir: str) -> None:
    """Deletes `calibration.json`, which tells of an earlier adapter."""
    path = os.path.join(output_dir, CALIBRATION_FILE)
    if not files.exists(path):
        return
    try:
        tf.io.gfile.remove(path)
    except tf.errors.OpError as error:
        raise UserError(f"cannot delete {path}: {error.message}") from error


def _finish(setup: Setup, values: Values) -> tuple[TuningMethod, Values]:
    method, config = setup.model.method, setup.model.config
    if not setup.table.sides:
        return method.finish(config, values)
    kept: Values = {}
    for side in setup.table.sides:
        scope = scoped(side, "")
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
        os.path.join(output_dir, "eval_results.json"),
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


def write_cost(output_dir: str, resumed: bool, seconds: float) -> None:
    """Writes `cost.json`: time and memory of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    files.write_json(
        os.path.join(output_dir, "cost.json"),
        {
            # Whether an earlier process did a part of the training.
            "resumed": resumed,
            "seconds": seconds,
            "processor_seconds": usage.ru_utime + usage.ru_stime,
            # Linux counts in KiB.
            "peak_memory_bytes": usage.ru_maxrss * 1024,
        },
    )
