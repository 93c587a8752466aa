"""Scores of the runs in some folders, for tables, figures and reports."""

import argparse
import dataclasses
import functools
import json
import math
import os
import pathlib
import statistics
import sys
from collections.abc import Iterable
from typing import Any, Callable, Optional

from adapter_bert import command_line, files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import dev_scores, run_record
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.base import TuningMethod
from adapter_bert.tasks import metrics
from adapter_bert.tasks.kinds import TAGGING, VECTORS
from adapter_bert.tasks.registry import TASKS

# These scores are fractions; those of question answering are in percent.
FRACTIONS = {name for task in TASKS.values() for name in task.metrics}
FRACTIONS |= {"macro_f1", "precision", "recall", "token_accuracy"}
FRACTIONS |= set(metrics.LABEL_SET_METRICS)
SQUAD = ("squad", "squad 2.0")

# Title, task and score of GLUE's columns. Settings of a task are chosen by its
# first score. The paper calls STS-B's column Spearman's, but its numbers are
# the leaderboard's Pearson.
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
GLUE = {task for _, task, _ in GLUE_COLUMNS}
# Left out of means, as in the paper: its dev set contradicts its training set.
OMITTED = "wnli"

# Names of kinds of tuning in tables and figures; others have their own.
TITLES = {
    "full": "full fine-tuning",
    "houlsby": "adapters",
    "top_layers": "top layers",
    "layernorm": "LayerNorms",
}
# Arguments to be tuned, with a method's first number; another value of any
# other argument is another kind of tuning.
SIZES = ("size", "init_scale")

# Members of the files of a run, as `files.read_object` takes them.
RUN = {
    **run_record.DESCRIPTION,
    "training": dict,
    "parameters": dict,
    "parameters.kept?": int,
    "training.steps": int,
    "training.learning_rate": float,
    "training.epochs": float,
    "training.seed": int,
    "training.data": str,
    "training.examples?": int,
}
RESULTS = {"global_step": float, "dev_data": dict, "eval_*": float}
COST = {"resumed": bool, "processor_seconds": float, "peak_memory_bytes": float}


@dataclasses.dataclass(frozen=True)
class ScoredRun:
    """A finished training with its scores.

    Attributes:
        task: name of the task; of custom tasks, tagging and vectors, of the
            data.
        rate: peak learning rate.
        scores: by name without `eval_`; in points of 100, except losses.
        kept: parameters in the adapter's file.
        bert: parameters of the BERT.
        data: BERT, task and data, as text by name, which are equal for
            comparable runs of a task.
        conditions: everything the training depends on but the seed, as JSON.
        examples: rows of the training set; None if not recorded.
        cost: `cost.json`; None if missing, or if the training was resumed.
    """

    folder: pathlib.Path
    task: str
    method: TuningMethod
    rate: float
    epochs: float
    seed: int
    scores: dict[str, float]
    kept: int
    bert: int
    data: dict[str, str]
    conditions: str
    examples: Optional[int]
    cost: Optional[dict[str, float]]


@dataclasses.dataclass(frozen=True)
class SeedGroup:
    """Runs of one task that differ in nothing but their seeds."""

    runs: tuple[ScoredRun, ...]

    @property
    def method(self) -> TuningMethod:
        """Returns the tuning method."""
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


def runs_parser(description: str, results: str) -> command_line.Parser:
    """A parser of `RUNS... --output_dir=OUT`."""
    parser = command_line.Parser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="folders with runs below")
    parser.add_argument(
        "--output_dir", required=True, help=f"folder for the {results}"
    )
    return parser


@functools.cache
def notice(text: str) -> None:
    """Prints a text to stderr, once."""
    print(text, file=sys.stderr)


def read_run(folder: pathlib.Path) -> Optional[ScoredRun]:
    """A run; None if it is unfinished, not evaluated, or of several tasks."""
    path, scored, spent = (
        str(folder / name)
        for name in ("run.json", "eval_results.json", "cost.json")
    )
    run = files.read_object(path, "the run's description", RUN)
    training, kept = run["training"], run["parameters"].get("kept")
    if not files.exists(scored) or kept is None:
        return None
    results = files.read_object(scored, "a run's scores", RESULTS)
    last = training["steps"]
    if training.get("keep_best"):
        scores = dev_scores.read(str(folder))
        last = scores and scores.best_step
    if "trained_together" in training or results["global_step"] != last:
        return None
    shapes = encoder.list_variables(run_record.bert_config(run, path))
    cost = None
    if files.exists(spent):
        cost = files.read_object(spent, "a run's costs", COST)
        # The costs of the last process alone would mislead.
        cost = None if cost["resumed"] else cost
    return ScoredRun(
        folder=folder,
        task=task_name_of(run, results),
        method=registry.parse(run["method"]),
        rate=training["learning_rate"],
        epochs=training["epochs"],
        seed=training["seed"],
        scores=scores_of(run["task"]["name"], results),
        kept=kept,
        bert=sum(map(math.prod, shapes.values())),
        data={
            "BERT": run["base"]["fingerprint"],
            "task": json.dumps(run["task"], sort_keys=True),
            "training data": training["data"],
            "dev data": json.dumps(results["dev_data"], sort_keys=True),
        },
        conditions=json.dumps(
            {k: v for k, v in training.items() if k != "seed"}, sort_keys=True
        ),
        examples=training.get("examples"),
        cost=cost,
    )


def task_name_of(run: dict[str, Any], results: dict[str, Any]) -> str:
    """Gets the name of a run's task in tables, by `run.json` and its scores."""
    name = run["task"]["name"]
    if name == "squad":
        return SQUAD["eval_HasAns_f1" in results]
    if name not in ("custom", TAGGING, VECTORS):
        return name
    data_name = run_record.data_name(run)
    return (
        f"{data_name} ({name})"
        if data_name.lower() in (*TASKS, *SQUAD)
        else data_name
    )


def scores_of(task: str, results: dict[str, Any]) -> dict[str, float]:
    """Scores by name without `eval_`; fractions become points of 100."""

    def is_fraction(name: str) -> bool:
        # All scores of vectors are.
        return task == VECTORS or (
            task != "squad" and name.partition("_mismatched")[0] in FRACTIONS
        )

    return {
        name: value * (100 if is_fraction(name) else 1)
        for name, value in evaluated(results).items()
    }


def evaluated(results: dict[str, Any]) -> dict[str, float]:
    """Returns the scores of `eval_results.json`, by name without `eval_`."""
    return {
        key.removeprefix("eval_"): value
        for key, value in results.items()
        if key.startswith("eval_")
    }


def find_files(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """All files of a name below a folder, sorted.

    A run may delete folders meanwhile, where `rglob` before Python 3.12 fails.
    """

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise UserError(
                f"cannot read {error.filename}: {error.strerror}; tables "
                "without its runs would mislead"
            ) from error

    return sorted(
        pathlib.Path(place, name)
        for place, _, names in os.walk(folder, onerror=note)
        if name in names
    )


def find_runs(folders: Iterable[str]) -> list[ScoredRun]:
    """All evaluated trainings below some folders."""
    # Folders may overlap.
    runs_by_place: dict[pathlib.Path, Optional[ScoredRun]] = {}
    for folder in map(pathlib.Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder of runs")
        for path in find_files(folder, "run.json"):
            if path.parent.name != "phase_1":
                runs_by_place[path.parent.resolve()] = read_run(path.parent)
    runs = list(filter(None, runs_by_place.values()))
    if not runs:
        raise UserError(
            f"no finished and evaluated run in {', '.join(map(str, folders))}"
        )
    left_out = len(runs_by_place) - len(runs)
    if left_out:
        notice(
            f"{left_out} runs that are not finished, have no "
            "scores or are of tasks that were trained together are left out"
        )
    return runs


def group_by_task(runs: Iterable[ScoredRun]) -> dict[str, list[SeedGroup]]:
    """Returns the seed groups of each task, in the order of their first runs.

    Of a seed that was run twice, the first run counts.
    """
    by_task: dict[str, dict[Any, dict[int, ScoredRun]]] = {}
    firsts: dict[str, ScoredRun] = {}
    for run in runs:
        first = firsts.setdefault(run.task, run)
        other = [k for k, v in run.data.items() if v != first.data[k]]
        if other:
            raise UserError(
                f"the runs {first.folder} and {run.folder} of {run.task} "
                f"differ in their {' and '.join(other)} (or, of data, in how "
                "it is cut: --max_seq_length, --doc_stride), so they cannot "
                "be compared; name folders that hold only one of the two"
            )
        key = str(run.method), run.conditions
        seeds = by_task.setdefault(run.task, {}).setdefault(key, {})
        first = seeds.setdefault(run.seed, run)
        if first.scores != run.scores:
            notice(
                f"{run.folder} is left out: the same training as "
                f"{first.folder}, with other scores"
            )
    return {
        task: [SeedGroup(tuple(seeds.values())) for seeds in groups.values()]
        for task, groups in by_task.items()
    }


def check_one_bert(by_task: dict[str, list[SeedGroup]]) -> None:
    """Refuses means and shares over tasks of different BERTs."""
    firsts = [seed_groups[0].runs[0] for seed_groups in by_task.values()]
    for run in firsts[1:]:
        if run.data["BERT"] != firsts[0].data["BERT"]:
            raise UserError(
                f"the runs {firsts[0].folder} and {run.folder} are of "
                "different BERTs, so there is no mean of their tasks; name "
                "folders that hold only one of the two"
            )


def text_of(method: TuningMethod, with_sizes: bool = True) -> str:
    """A method with its sizes, and with arguments that are not default."""
    shown: list[str] = []
    for number, field in enumerate(dataclasses.fields(method)):
        name, value = field.name, getattr(method, field.name)
        if name == "parts":
            shown += [p.name or text_of(p.method, with_sizes) for p in value]
            continue
        is_first = number == 0 and type(value) in (int, float)
        is_size = name in SIZES or is_first
        is_told = is_size and name != "init_scale" or value != field.default
        if is_told and (with_sizes or not is_size):
            shown.append(f"{name}={value!r}")
    return method.name + (f"({', '.join(shown)})" if shown else "")


def kind_of(method: TuningMethod) -> str:
    """A method without sizes and initial scales.

    `houlsby` of any size is one kind, `houlsby(sites='ffn')` another.
    """
    return text_of(method, with_sizes=False)


def by_method(
    seed_groups: Iterable[SeedGroup],
    name_of: Callable[[TuningMethod], str] = text_of,
) -> dict[str, list[SeedGroup]]:
    """Seed groups by the name of their method."""
    groups: dict[str, list[SeedGroup]] = {}
    for seed_group in seed_groups:
        groups.setdefault(name_of(seed_group.method), []).append(seed_group)
    return groups


def best(seed_groups: Iterable[SeedGroup], score: str) -> Optional[SeedGroup]:
    """Chooses the first group with the best mean score; None without the score.

    Groups with fewer seeds than others are left out: they are better by chance.
    """
    scored = [s for s in seed_groups if score in s.runs[0].scores]
    most = max((len(s.runs) for s in scored), default=0)
    complete = [s for s in scored if len(s.runs) == most]
    if len(complete) < len(scored):
        notice(
            f"{scored[0].runs[0].task}, {scored[0].method.name}: "
            f"{len(scored) - len(complete)} of {len(scored)} settings have "
            f"fewer than {most} seeds, and are not chosen from"
        )
    return max(complete, key=lambda s: s.mean(score), default=None)


def by_kind(seed_groups: Iterable[SeedGroup]) -> dict[str, list[SeedGroup]]:
    """Seed groups by the kind of tuning, to choose the best of each kind.

    Other initial scales than a kind's most frequent are left out.
    """
    groups = by_method(seed_groups, kind_of)
    return {kind: _of_one_scale(same) for kind, same in groups.items()}


def _of_one_scale(seed_groups: list[SeedGroup]) -> list[SeedGroup]:
    scales = [getattr(s.method, "init_scale", None) for s in seed_groups]
    usual = max(scales, key=lambda x: (scales.count(x), x == 1e-2))
    left = [s for s, scale in zip(seed_groups, scales) if scale == usual]
    if len(left) < len(seed_groups):
        notice(
            f"{seed_groups[0].runs[0].task}, {seed_groups[0].method.name}: "
            f"{len(seed_groups) - len(left)} settings with another initial "
            f"scale than {usual:g} are not chosen from"
        )
    return left


def main_score(seed_groups: Iterable[SeedGroup]) -> str:
    """Returns the score by which settings of one task are chosen."""
    run = next(iter(seed_groups)).runs[0]
    for _, task, score in GLUE_COLUMNS:
        if run.task == task:
            return score
    if json.loads(run.data["task"])["name"] == VECTORS:
        return next(iter(run.scores))
    # Others than GLUE: tagging and questions, labels, label sets, numbers.
    usual = ("f1", "accuracy", "micro_f1", "pearson")
    return next(s for s in (*usual, *run.scores) if s in run.scores)


def replace_results(
    folder: str, script: str, contents: dict[str, bytes]
) -> None:
    """Writes a script's results in a local folder, and deletes earlier ones.

    `contents` are by path in the folder, where a list of the script's files
    lies too. Other files stay.
    """
    root = pathlib.Path(folder)
    list_path = root / f"files_of_{script}.json"
    old: set[str] = set()
    if list_path.exists():
        names = files.read_json(str(list_path), "the list of files")
        if not isinstance(names, list) or not all(
            isinstance(name, str)
            and not pathlib.PurePath(name).is_absolute()
            and ".." not in pathlib.PurePath(name).parts
            for name in names
        ):
            raise UserError(
                f"{list_path} is no list of files of this program; choose "
                "another --output_dir"
            )
        old = set(names)
    for name in contents:
        if (root / name).exists() and name not in old:
            raise UserError(
                f"{root / name} is there and was not written by {script} (it "
                f"is not in {list_path}); choose another --output_dir, or "
                "delete the file"
            )
    files.prepare_folder(folder)
    # First, so that all files of the script are known after a kill too.
    files.write_json(str(list_path), sorted(old | set(contents)))
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(str(root / name), content)
    for name in old - set(contents):
        (root / name).unlink(missing_ok=True)
        for parent in (root / name).parents:
            if parent == root or not parent.is_dir() or os.listdir(parent):
                break
            parent.rmdir()
    files.write_json(str(list_path), sorted(contents))
