"""Scores without BERT, as `adapter-bert baseline` wrote them, for tables."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable

from adapter_bert import files
from adapter_bert.errors import UserError
from adapter_bert.reports.collect_runs import (
    RESULTS,
    ScoredRun,
    find_files,
    notice,
    scores_of,
    task_name_of,
)

RECORD_FILE = "baseline.json"
BASELINE = "TF-IDF of words and pairs of words, a linear model"
# Members of the file, as `files.read_object` takes them.
RECORD = {
    "baseline": str,
    "task": dict,
    "task.name": str,
    "data_name": str,
    "examples": int,
}


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A task's scores without BERT; members are as in `ScoredRun`.

    `described` is the task with its labels, as in `ScoredRun.data`.
    """

    folder: pathlib.Path
    task: str
    scores: dict[str, float]
    described: str
    examples: int


def read_baseline(folder: pathlib.Path) -> Baseline:
    """Reads `baseline.json` and `eval_results.json`."""
    if (folder / "run.json").exists():
        raise UserError(
            f"{folder} holds a baseline and a run of BERT, so that one of them "
            "has written over the other's scores; keep each in a folder of "
            "its own"
        )
    record = files.read_object(
        str(folder / RECORD_FILE), "the baseline's description", RECORD
    )
    results = files.read_object(
        str(folder / "eval_results.json"), "a baseline's scores", RESULTS
    )
    return Baseline(
        folder,
        task_name_of(record, results),
        scores_of(record["task"]["name"], results),
        json.dumps(record["task"], sort_keys=True),
        record["examples"],
    )


def find_baselines(
    folders: Iterable[str], runs: Iterable[ScoredRun]
) -> dict[str, Baseline]:
    """Finds baselines below some folders, by task, of tasks that have runs."""
    firsts: dict[str, ScoredRun] = {}
    for run in runs:
        firsts.setdefault(run.task, run)
    baselines: dict[str, Baseline] = {}
    for folder in folders:
        for path in find_files(pathlib.Path(folder), RECORD_FILE):
            baseline = read_baseline(path.parent)
            if baseline.task not in firsts:
                notice(f"{path.parent} is left out: {baseline.task} has no run")
                continue
            run = firsts[baseline.task]
            for what, mine, other in (
                (
                    "labels or held-out rows",
                    baseline.described,
                    run.data["task"],
                ),
                ("number of training rows", baseline.examples, run.examples),
            ):
                if other not in (None, mine):
                    raise UserError(
                        f"the baseline {path.parent} and the run {run.folder} "
                        f"of {run.task} differ in their {what}, so they cannot "
                        "be compared; name folders that hold only one of the "
                        "two"
                    )
            first = baselines.setdefault(baseline.task, baseline)
            if first.scores != baseline.scores:
                notice(
                    f"{path.parent} is left out: {first.folder} is of the same "
                    "task, with other scores"
                )
    return baselines
