"""Scores without BERT, as `adapter-bert baseline` wrote them, for tables."""

import json
import pathlib
from collections.abc import Iterable
from typing import Any, Optional

import pandas

from adapter_bert import files
from adapter_bert.checkpoints.run_record import BASELINE_FILE, RESULTS_FILE
from adapter_bert.errors import UserError
from adapter_bert.reports.collect_runs import (
    RESULTS,
    find_files,
    notice,
    scores_of,
    task_name_of,
)
from adapter_bert.reports.known_scores import read_table

# Members of the file, as `files.read_object` takes them.
RECORD = {
    "baseline": str,
    "task": dict,
    "task.name": str,
    "data_name": str,
    "examples": int,
}


def read_baseline(folder: pathlib.Path) -> dict[str, Any]:
    """Reads `baseline.json` and `eval_results.json`; members as `read_run`."""
    if (folder / "run.json").exists():
        raise UserError(
            f"{folder} holds a baseline and a run of BERT, so that one of them "
            "has written over the other's scores; keep each in a folder of "
            "its own"
        )
    record = files.read_object(
        str(folder / BASELINE_FILE), "the baseline's description", RECORD
    )
    results = files.read_object(
        str(folder / RESULTS_FILE), "a baseline's scores", RESULTS
    )
    return {
        "folder": folder,
        "task": task_name_of(record, results),
        "scores": scores_of(record["task"]["name"], results),
        "description of the task": json.dumps(
            {**record["task"], "head": None}, sort_keys=True
        ),
        "examples": record["examples"],
    }


def _dev_labels(folder: pathlib.Path) -> Optional[list[list[str]]]:
    """Counts the dev rows of each label; None without a table."""
    path = folder / "eval_labels.tsv"
    return [x[:2] for x in read_table(path)] if path.exists() else None


def find_baselines(
    folders: Iterable[str], runs: pandas.DataFrame
) -> dict[str, dict[str, float]]:
    """Finds scores of baselines below some folders, of tasks that have runs."""
    firsts = runs.drop_duplicates("task").set_index("task").to_dict("index")
    baselines: dict[str, dict[str, Any]] = {}
    paths = [
        x for f in folders for x in find_files(pathlib.Path(f), BASELINE_FILE)
    ]
    for folder in (path.parent for path in paths):
        baseline = read_baseline(folder)
        task = baseline["task"]
        if task not in firsts:
            notice(f"{folder} is left out: {task} has no run")
            continue
        run = firsts[task]
        counts = [_dev_labels(x) for x in (run["folder"], folder)]
        differences = [
            what
            for what, name in (
                ("labels or held-out rows", "description of the task"),
                ("number of training rows", "examples"),
            )
            if not pandas.isna(run[name]) and run[name] != baseline[name]
        ]
        if all(counts) and counts[0] != counts[1]:
            differences.append("dev rows")
        if differences:
            raise UserError(
                f"the baseline {folder} and the run {run['folder']} of {task} "
                f"differ in their {' and '.join(differences)}, so they cannot "
                "be compared; name folders that hold only one of the two"
            )
        first = baselines.setdefault(task, baseline)
        if first["scores"] != baseline["scores"]:
            notice(
                f"{folder} is left out: {first['folder']} is of the same task, "
                "with other scores"
            )
    return {task: baseline["scores"] for task, baseline in baselines.items()}
