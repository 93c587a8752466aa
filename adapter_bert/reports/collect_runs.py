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
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

from adapter_bert import command_line, files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import dev_scores, run_record
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.base import TuningMethod
from adapter_bert.tasks import TASKS, metrics
from adapter_bert.tasks.from_description import TAGGING

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
COST = {
    "resumed": bool,
    "processor_seconds": float,
    "peak_memory_bytes": float,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished training with its scores.

    Attributes:
        folder: the output folder.
        task: name of the task; of custom tasks and tagging, of the data.
        method: the tuning method.
        rate: peak learning rate.
        epochs: passes over the training set.
        seed: seed of the training.
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
    scores: Dict[str, float]
    kept: int
    bert: int
    data: Dict[str, str]
    conditions: str
    examples: Optional[int]
    cost: Optional[Dict[str, float]]


@dataclasses.dataclass(frozen=True)
class SeedGroup:
    """Runs of one task that differ in nothing but their seeds."""

    runs: Tuple[Run, ...]

    @property
    def method(self) -> TuningMethod:
        """The tuning method."""
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


def read_run(folder: pathlib.Path) -> Optional[Run]:
    """Reads `run.json`, `eval_results.json` and `cost.json` of a run.

    Returns:
        The run; None if it is unfinished, not evaluated, or of several tasks.

    Raises:
        UserError: a file cannot be read.
    """
    path = folder / "run.json"
    run = files.read_object(str(path), "the run's description", RUN)
    if not (folder / "eval_results.json").exists():
        return None
    results = files.read_object(
        str(folder / "eval_results.json"), "a run's scores", RESULTS
    )
    training, kept = run["training"], run["parameters"].get("kept")
    if "trained_together" in training:
        return None
    last = training["steps"]
    if training.get("keep_best"):
        scores = dev_scores.read(str(folder))
        last = scores and scores.best_step
    if kept is None or results["global_step"] != last:
        return None
    shapes = encoder.list_variables(run_record.bert_config(run, str(path)))
    cost_path, cost = folder / "cost.json", None
    if cost_path.exists():
        cost = files.read_object(str(cost_path), "a run's costs", COST)
        # The costs of the last process alone would mislead.
        cost = None if cost["resumed"] else cost
    return Run(
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
            {k: v for k, v in training.items() if k != "seed"},
            sort_keys=True,
        ),
        examples=training.get("examples"),
        cost=cost,
    )


def task_name_of(run: Dict[str, Any], results: Dict[str, Any]) -> str:
    """The name of a run's task in tables, by `run.json` and its scores."""
    name = run["task"]["name"]
    if name == "squad":
        return SQUAD["eval_HasAns_f1" in results]
    if name not in ("custom", TAGGING):
        return name
    own = run_record.data_name(run)
    return f"{own} ({name})" if own.lower() in (*TASKS, *SQUAD) else own


def scores_of(task: str, results: Dict[str, Any]) -> Dict[str, float]:
    """Scores by name without `eval_`; fractions become points of 100."""
    scores = {}
    for key, value in results.items():
        if key.startswith("eval_"):
            name = key[len("eval_") :]
            metric = name.partition("_mismatched")[0]
            is_fraction = metric in FRACTIONS and task != "squad"
            scores[name] = value * (100 if is_fraction else 1)
    return scores


def find_files(folder: pathlib.Path, name: str) -> List[pathlib.Path]:
    """All files of a name below a folder, sorted.

    Folders that a run deletes meanwhile are skipped, where `rglob` of Python
    before 3.12 fails.

    Raises:
        UserError: a folder cannot be read.
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
        for path in find_files(folder, "run.json"):
            if path.parent.name == "phase_1":
                continue
            run = read_run(path.parent)
            if run:
                # Folders may overlap.
                found[path.parent.resolve()] = run
            else:
                unfinished += 1
    if not found:
        raise UserError(
            f"no finished and evaluated run in {', '.join(map(str, folders))}"
        )
    if unfinished:
        notice(
            f"{unfinished} runs that are not finished, have no scores or are "
            "of tasks that were trained together are left out"
        )
    return list(found.values())


def group_by_task(runs: Iterable[Run]) -> Dict[str, List[SeedGroup]]:
    """The seed groups of each task, in the order of their first runs.

    If a seed was run twice, the first run counts, and other scores of the
    second are noticed.

    Raises:
        UserError: runs of one task differ in BERT or data.
    """
    by_task: Dict[str, Dict[Any, Dict[int, Run]]] = {}
    firsts: Dict[str, Run] = {}
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


def check_one_bert(by_task: Dict[str, List[SeedGroup]]) -> None:
    """Refuses means and shares over tasks of different BERTs.

    Raises:
        UserError: the tasks' runs started from different BERTs.
    """
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
    shown: List[str] = []
    for number, field in enumerate(dataclasses.fields(method)):
        value = getattr(method, field.name)
        if field.name == "parts":
            shown += [
                part.name or text_of(part.method, with_sizes) for part in value
            ]
            continue
        is_size = field.name in SIZES or (
            number == 0 and type(value) in (int, float)
        )
        if is_size and field.name != "init_scale":
            is_shown = with_sizes
        else:
            is_shown = value != field.default and (with_sizes or not is_size)
        if is_shown:
            shown.append(f"{field.name}={value!r}")
    return method.name + (f"({', '.join(shown)})" if shown else "")


def kind_of(method: TuningMethod) -> str:
    """A method without sizes and initial scales.

    `houlsby` of any size is one kind, `houlsby(sites='ffn')` another.
    """
    return text_of(method, with_sizes=False)


def by_method(
    seed_groups: Iterable[SeedGroup],
    name_of: Callable[[TuningMethod], str] = text_of,
) -> Dict[str, List[SeedGroup]]:
    """Seed groups by the name of their method."""
    found: Dict[str, List[SeedGroup]] = {}
    for seed_group in seed_groups:
        found.setdefault(name_of(seed_group.method), []).append(seed_group)
    return found


def best(seed_groups: Iterable[SeedGroup], score: str) -> Optional[SeedGroup]:
    """The seed group with the best mean score; the first of equal ones.

    Groups with fewer seeds are left out, since the best of single runs is
    better by chance. None if no group has the score.
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


def by_kind(seed_groups: Iterable[SeedGroup]) -> Dict[str, List[SeedGroup]]:
    """Seed groups by the kind of tuning, to choose the best of each kind.

    Only groups with the most frequent initial scale of their kind: other
    scales are an experiment of their own.
    """
    found = by_method(seed_groups, kind_of)
    return {kind: _of_one_scale(same) for kind, same in found.items()}


def _of_one_scale(seed_groups: List[SeedGroup]) -> List[SeedGroup]:
    """The groups with the most frequent initial scale, or the default."""
    scales = [getattr(s.method, "init_scale", None) for s in seed_groups]
    usual = max(
        dict.fromkeys(scales),
        key=lambda scale: (scales.count(scale), scale == 1e-2),
    )
    left = [s for s, scale in zip(seed_groups, scales) if scale == usual]
    if len(left) < len(seed_groups):
        notice(
            f"{seed_groups[0].runs[0].task}, {seed_groups[0].method.name}: "
            f"{len(seed_groups) - len(left)} settings with another initial "
            f"scale than {usual:g} are not chosen from"
        )
    return left


def main_score(seed_groups: Iterable[SeedGroup]) -> str:
    """The score by which settings of one task are chosen."""
    run = next(iter(seed_groups)).runs[0]
    for _, task, score in GLUE_COLUMNS:
        if run.task == task:
            return score
    # Others than GLUE: tagging and questions, labels, label sets, numbers.
    usual = ("f1", "accuracy", "micro_f1", "pearson")
    return next(s for s in (*usual, *run.scores) if s in run.scores)


def replace_results(
    folder: str, script: str, contents: Dict[str, bytes]
) -> None:
    """Writes all results of a script, and deletes its earlier ones.

    A list of the script's files lies beside them. Other files stay.

    Args:
        folder: a local folder, made if missing.
        script: the script's name.
        contents: by path below the folder.

    Raises:
        UserError: a file of that name is not the script's, or the folder
            cannot be written; nothing is changed then.
    """
    root = pathlib.Path(folder)
    list_path = root / f"files_of_{script}.json"
    old: Set[str] = set()
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
        parent = (root / name).parent
        while parent != root and parent.is_dir() and not os.listdir(parent):
            parent.rmdir()
            parent = parent.parent
    files.write_json(str(list_path), sorted(contents))
