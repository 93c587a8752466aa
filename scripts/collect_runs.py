"""What the runs in some folders came to, for tables and figures."""

import dataclasses
import json
import math
import pathlib
import statistics
import sys
from typing import Any, Dict, Iterable, List, Optional, Tuple

import adapter_modeling
import files
import modeling
import run_record
from errors import UserError
from methods.base import TuningMethod
from tasks import TASKS

# Scores of these are fractions; those of question answering are in percent.
FRACTIONS = {name for task in TASKS.values() for name in task.metrics}
FRACTIONS |= {"macro_f1"}


# Title, task, score of GLUE's columns. MNLI's two are of one setting, chosen on
# the first; so a task's first score is that by which its settings are chosen.
GLUE_COLUMNS = (
    ("CoLA (Matthews)", "cola", "matthews_correlation"),
    ("SST-2 (acc.)", "sst-2", "accuracy"),
    ("MRPC (F1)", "mrpc", "f1"),
    ("STS-B (Pearson)", "sts-b", "pearson"),
    ("QQP (F1)", "qqp", "f1"),
    ("MNLI-m (acc.)", "mnli", "accuracy"),
    ("MNLI-mm (acc.)", "mnli", "accuracy_mismatched"),
    ("QNLI (acc.)", "qnli", "accuracy"),
    ("RTE (acc.)", "rte", "accuracy"),
    ("WNLI (acc.)", "wnli", "accuracy"),
)


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished training with its scores.

    Attributes:
        folder: its output folder.
        task: name of the task; of the user's own, the folder's parent.
        method: how it was tuned.
        rate: peak learning rate.
        epochs: passes over the training set.
        seed: of everything random.
        scores: by name without `eval_`, in points of 100 but for losses.
        trained: parameters of the task.
        bert: parameters of the BERT.
        conditions: whatever else its training depends on but the seed, as
            text: its schedule, its data and its BERT.
    """

    folder: pathlib.Path
    task: str
    method: TuningMethod
    rate: float
    epochs: float
    seed: int
    scores: Dict[str, float]
    trained: int
    bert: int
    conditions: str


@dataclasses.dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but their seeds."""

    runs: Tuple[Run, ...]

    @property
    def method(self) -> TuningMethod:
        """How they were tuned."""
        return self.runs[0].method

    def mean(self, score: str) -> float:
        """Mean over the seeds."""
        return statistics.fmean(run.scores[score] for run in self.runs)

    def error(self, score: str) -> Optional[float]:
        """Standard error of the mean; None of a single seed."""
        if len(self.runs) < 2:
            return None
        values = [run.scores[score] for run in self.runs]
        return statistics.stdev(values) / math.sqrt(len(values))


def read_run(folder: pathlib.Path) -> Run:
    """Reads `run.json` and `eval_results.json` of a run.

    Raises:
        UserError: a file cannot be read.
    """
    description = run_record.read_description(
        str(folder / "run.json"), "the run's description"
    )
    results = files.read_json(str(folder / "eval_results.json"), "the scores")
    task = description["task"]["name"]
    config = modeling.BertConfig(**description["bert_config"])
    shapes = modeling.list_variables(config)
    training = description["training"]
    return Run(
        folder=folder,
        task=folder.parent.name if task == "custom" else task,
        method=adapter_modeling.parse(description["method"]),
        rate=training["learning_rate"],
        epochs=training["epochs"],
        seed=training["seed"],
        scores={
            name[len("eval_") :]: value
            * (100 if _metric(name) in FRACTIONS and task != "squad" else 1)
            for name, value in results.items()
            if name.startswith("eval_")
        },
        trained=description["parameters"]["trained"],
        bert=sum(map(math.prod, shapes.values())),
        conditions=json.dumps(
            [
                description["base"]["fingerprint"],
                description["task"],
                {k: v for k, v in training.items() if k != "seed"},
            ],
            sort_keys=True,
        ),
    )


def _metric(name: str) -> str:
    """`eval_accuracy_mismatched` -> `accuracy`."""
    name = name[len("eval_") :]
    return name[: -len("_mismatched")] if "_mismatched" in name else name


def find_runs(folders: Iterable[str]) -> List[Run]:
    """All evaluated trainings below some folders.

    Raises:
        UserError: a folder is missing, a file damaged, or there are no runs.
    """
    found: Dict[pathlib.Path, Run] = {}
    unfinished = 0
    for folder in map(pathlib.Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder of runs")
        for path in sorted(folder.rglob("run.json")):
            if path.parent.name == "phase_1":
                continue
            if (path.parent / "eval_results.json").exists():
                # Folders may overlap.
                found[path.parent.resolve()] = read_run(path.parent)
            else:
                unfinished += 1
    if not found:
        raise UserError(f"no evaluated run in {', '.join(map(str, folders))}")
    if unfinished:
        print(f"{unfinished} runs without scores are left out", file=sys.stderr)
    return list(found.values())


def group(runs: Iterable[Run]) -> Dict[str, List[Setting]]:
    """The settings of each task, in the order of their first runs.

    Of a seed that was run twice the first counts; that the second came to
    something else is said.
    """
    groups: Dict[str, Dict[Any, Dict[int, Run]]] = {}
    for run in runs:
        settings = groups.setdefault(run.task, {})
        seeds = settings.setdefault((str(run.method), run.conditions), {})
        first = seeds.setdefault(run.seed, run)
        if first.scores != run.scores:
            print(
                f"{run.folder} is left out: the same training as "
                f"{first.folder}, with other scores (another dev file?)",
                file=sys.stderr,
            )
    return {
        task: [Setting(tuple(seeds.values())) for seeds in settings.values()]
        for task, settings in groups.items()
    }


def best(settings: Iterable[Setting], score: str) -> Optional[Setting]:
    """The setting with the best mean score; the first of equal ones.

    Only of those with the most seeds, since the best of single runs is better
    by chance. None if no setting has the score.
    """
    scored = [s for s in settings if score in s.runs[0].scores]
    most = max((len(s.runs) for s in scored), default=0)
    complete = [s for s in scored if len(s.runs) == most]
    if len(complete) < len(scored):
        print(
            f"{scored[0].runs[0].task}, {scored[0].method.name}: "
            f"{len(scored) - len(complete)} of {len(scored)} settings have "
            f"fewer than {most} seeds, and are not chosen from",
            file=sys.stderr,
        )
    return max(complete, key=lambda s: s.mean(score), default=None)


def with_default_start(settings: Iterable[Setting]) -> List[Setting]:
    """Those of the default initial scale, where there are several scales."""
    settings = list(settings)
    usual = [
        s for s in settings if getattr(s.method, "init_scale", 1e-2) == 1e-2
    ]
    return usual or settings


def main_score(settings: Iterable[Setting]) -> str:
    """The score by which settings of one task are chosen."""
    run = next(iter(settings)).runs[0]
    for _, task, score in GLUE_COLUMNS:
        if run.task == task:
            return score
    # Of question answering, of the user's own labels, or of their numbers.
    usual = [s for s in ("f1", "accuracy", "pearson") if s in run.scores]
    return usual[0] if usual else next(iter(run.scores))
