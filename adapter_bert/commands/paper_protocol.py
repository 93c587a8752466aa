r"""Steps of scripts/paper_protocol.sh, which says what they are for.

    adapter-bert paper_protocol halves TASK FOLDER NEW_FOLDER SEED
    adapter-bert paper_protocol chosen OUTPUT_DIR
    adapter-bert paper_protocol summarize OUTPUT_DIR

`halves` cuts a task's dev rows in two. `chosen` prints the chosen run of each
task and method as far as they are known, between tabs: the sweep of its further
seeds, the task, the run. `summarize` prints tables and writes protocol.json.
"""

import dataclasses
import json
import os
import pathlib
import re
import statistics
from typing import Any, Dict, List, Optional, Sequence, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import command_line, files
from adapter_bert.commands.grid_status import read_names
from adapter_bert.commands.summarize import Table
from adapter_bert.data.divisions import HeldOut
from adapter_bert.data.tables import Layout, Rows, read_rows
from adapter_bert.errors import UserError
from adapter_bert.reports import difference
from adapter_bert.reports.collect_runs import (
    GLUE_COLUMNS,
    TITLES,
    Run,
    check_one_bert,
    group_by_task,
    read_run,
)
from adapter_bert.tasks import metrics
from adapter_bert.tasks.registry import get_task
from adapter_bert.tasks.text_classification import TextClassification

ADAPTERS, FULL = "houlsby", "full"
# Files of a task's folder, next to train.tsv: run_classifier.py evaluates the
# choice half and predicts the report half. The last one has that half's labels.
CHOICE, REPORT, LABELS = "dev.tsv", "test.tsv", "report.tsv"
HALVES = "halves.json"
PREDICTIONS = "test_predictions.tsv"
RESULTS = "protocol.json"
# A run of sweep_glue.sh.
NAME = re.compile(r"(?P<task>[^/]+)/(?P<setting>(?P<method>[a-z]+).*)-seed\d+")
SCORE_OF = {task: (score, title) for title, task, score in GLUE_COLUMNS[::-1]}


def find_task(name: str) -> TextClassification:
    """A task of GLUE that the protocol can be followed on.

    Raises:
        UserError: it has other scores or several dev files.
    """
    task = get_task(name)
    score, _ = SCORE_OF.get(task.name, ("", ""))
    if score not in difference.SCORES or len(task.dev_splits) > 1:
        known = [
            name
            for name, (score, _) in SCORE_OF.items()
            if score in difference.SCORES
            and len(get_task(name).dev_splits) == 1
        ]
        raise UserError(
            f"the task {name} has no such protocol; expected one of "
            f"{', '.join(sorted(known))} (TASKS)"
        )
    return task


def cut_halves(name: str, folder: str, new_folder: str, seed: int) -> None:
    """Cuts a task's dev rows into a choice and a report half.

    Each label's rows are divided evenly. Files that are there already must be
    the same, since runs may have used them.

    Args:
        name: of the task.
        folder: with `dev.tsv`.
        new_folder: gets `CHOICE` and `LABELS` in the layout of `dev.tsv`,
            `REPORT` in the layout of the task's test file, and `HALVES`.
        seed: of the draw.

    Raises:
        UserError: the task or its file cannot be used, or other halves are
            there.
    """
    task = find_task(name)
    _, found = task.read(folder, ["dev"])
    rows = found["dev"]
    if not rows.path.endswith(".tsv"):
        raise UserError(f"found {rows.path}, expected GLUE's file dev.tsv")
    reported = HeldOut(0.5, seed).choose(rows.texts, task.strata(rows))
    # As they are, with all columns.
    lines = files.read_text(rows.path, "the dev file").split("\n")

    def labelled(half: np.ndarray) -> List[str]:
        head = lines[:1] if task.labelled.header else []
        return [*head, *(lines[x] for x in rows.lines[half])]

    halves = {"seed": seed, "choice": int((~reported).sum())}
    contents = {
        CHOICE: "\n".join(labelled(~reported)) + "\n",
        LABELS: "\n".join(labelled(reported)) + "\n",
        REPORT: "\n".join(_unlabelled(task, rows.take(reported))) + "\n",
        HALVES: files.json_text({**halves, "report": int(reported.sum())}),
    }
    paths = {name: os.path.join(new_folder, name) for name in contents}
    for name, content in contents.items():
        path = paths[name]
        if files.exists(path) and files.read_text(path, "a half") != content:
            raise UserError(
                f"{path} is there, but {rows.path} and the seed {seed} give "
                "another; choose another OUTPUT_DIR"
            )
    files.make_folder(new_folder)
    for name, content in contents.items():
        if not files.exists(paths[name]):
            files.write_text(paths[name], content)


def _unlabelled(task: TextClassification, rows: Rows) -> List[str]:
    """The lines of a test file, without line breaks."""
    columns = task.unlabelled.columns
    texts = zip(*(getattr(rows, field) for field in columns))
    cells = ([str(n), *row] for n, row in enumerate(texts))
    return ["\t".join(x) for x in (["index", *columns.values()], *cells)]


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The settings of a method, from which one is chosen for a task.

    Attributes:
        names: of their runs in the sweep `choice`.
    """

    output: pathlib.Path
    task: str
    method: str
    names: Tuple[str, ...]

    @property
    def sweep(self) -> str:
        """The sweep of the chosen setting's further seeds."""
        return f"seeds_{self.task}_{self.method}"

    def folder(self, name: str, sweep: str = "choice") -> pathlib.Path:
        """The folder of a run."""
        return self.output / sweep / "runs" / name

    def missing(self) -> List[str]:
        """The runs that are not finished."""
        return [x for x in self.names if not is_done(self.folder(x))]

    def scores(self) -> Dict[str, float]:
        """The score of each run on the choice half, in points."""
        score, _ = SCORE_OF[find_task(self.task).name]
        return {x: read(self.folder(x)).scores[score] for x in self.names}

    def choose(self) -> Optional[str]:
        """The best run, the first of equal ones; None if any is missing."""
        if self.missing():
            return None
        scores = self.scores()
        return max(scores, key=lambda name: scores[name])

    def further(self, chosen: str) -> List[str]:
        """The runs of the chosen setting with further seeds."""
        grid = self.output / self.sweep
        if not (grid / "grid.tsv").exists():
            return []
        setting = NAME.fullmatch(chosen)["setting"]
        names = read_names(grid)
        return [x for x in names if NAME.fullmatch(x)["setting"] == setting]


def is_done(folder: pathlib.Path) -> bool:
    """Whether a sweep's run is finished."""
    return (folder / "done").exists()


def read(folder: pathlib.Path) -> Run:
    """A finished run.

    Raises:
        UserError: it lacks what a finished run has.
    """
    run = read_run(folder)
    if run is None or run.examples is None:
        raise UserError(
            f"{folder} is marked as finished, but its scores are not those of "
            "its last step; delete the folder and start the script again"
        )
    return run


def find_candidates(output: pathlib.Path) -> List[Candidates]:
    """The candidates of each task and method, in the order of the grid."""
    found: Dict[Tuple[str, str], List[str]] = {}
    for name in read_names(output / "choice"):
        parts = NAME.fullmatch(name)
        found.setdefault((parts["task"], parts["method"]), []).append(name)
    return [Candidates(output, *x, tuple(y)) for x, y in found.items()]


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The chosen setting of a method for a task, with all its seeds."""

    candidates: Candidates
    name: str
    folders: Tuple[pathlib.Path, ...]
    runs: Tuple[Run, ...]

    def predictions(self, task: TextClassification, rows: int) -> np.ndarray:
        """Predicted classes of the report half, int [seeds, rows].

        Raises:
            UserError: a file has other rows or labels.
        """
        found = []
        for folder in self.folders:
            path = str(folder / PREDICTIONS)
            answers = read_rows(path, Layout("prediction"))
            if len(answers) != rows:
                raise UserError(
                    f"{path} has {len(answers)} predictions, expected {rows}: "
                    "those of the report half; delete the run's folder and "
                    "start the script again"
                )
            found.append(classes(task, answers, answers.text_a))
        return np.array(found)

    def describe(self, scores: np.ndarray) -> Dict[str, Any]:
        """The member of `RESULTS`; scores are float64 [seeds], in points."""
        first = self.runs[0]
        record = files.read_object(
            str(self.folders[0] / "run.json"),
            "the run's description",
            {"parameters": dict, "parameters.trained": int},
        )
        return {
            "chosen": self.name.rpartition("/")[2].rpartition("-seed")[0],
            "choice_scores": {
                name.rpartition("/")[2]: score
                for name, score in self.candidates.scores().items()
            },
            "seeds": [run.seed for run in self.runs],
            "scores": scores.tolist(),
            "mean": float(scores.mean()),
            "standard_deviation": (
                statistics.stdev(scores.tolist()) if len(scores) > 1 else None
            ),
            "examples_trained_on": round(first.epochs * first.examples),
            "trained_parameters": record["parameters"]["trained"],
            "training": json.loads(first.conditions),
        }


def classes(
    task: TextClassification, rows: Rows, labels: Sequence[str]
) -> np.ndarray:
    """The places of labels among the task's, int [rows]."""
    own = [task.check_label(x, rows.where(n)) for n, x in enumerate(labels)]
    return np.array([task.labels.index(x) for x in own])


def collect(candidates: Candidates) -> Tuple[Optional[Chosen], List[str]]:
    """The chosen setting with all seeds, and the names of missing runs."""
    name = candidates.choose()
    if name is None:
        return None, candidates.missing()
    names = candidates.further(name)
    if not names:
        setting = NAME.fullmatch(name)
        missing = f"{setting['task']}/{setting['setting']} with further seeds"
        return None, [missing]
    further = [candidates.folder(x, candidates.sweep) for x in names]
    missing = [x for x, y in zip(names, further) if not is_done(y)]
    if missing:
        return None, missing
    folders = (candidates.folder(name), *further)
    return Chosen(candidates, name, folders, tuple(map(read, folders))), []


def compare(
    name: str, data: pathlib.Path, both: Dict[str, Chosen], seed: int
) -> Tuple[Dict[str, Any], difference.Comparison]:
    """Compares both methods on a task's report half.

    Args:
        name: of the task.
        data: the folder of its halves.
        both: adapters and full fine-tuning.
        seed: of the draws.

    Returns:
        The task's member of `RESULTS`, and the comparison.
    """
    task = find_task(name)
    score, _ = SCORE_OF[task.name]
    rows = read_rows(str(data / LABELS), task.labelled)
    labels = classes(task, rows, rows.label)
    compared = difference.compare(
        score,
        labels,
        *(both[x].predictions(task, len(rows)) for x in (ADAPTERS, FULL)),
        seed=seed,
    )
    majority = np.full_like(labels, np.bincount(labels).argmax())
    described = {
        "score": score,
        "train_rows": both[FULL].runs[0].examples,
        "halves": files.read_json(str(data / HALVES), "the halves' sizes"),
        "majority_class": 100 * metrics.METRICS[score](labels, majority),
        ADAPTERS: both[ADAPTERS].describe(compared.adapters),
        FULL: both[FULL].describe(compared.full),
        **conclude(compared.difference, compared.draws),
    }
    return described, compared


def conclude(found: float, draws: np.ndarray) -> Dict[str, Any]:
    """A difference with its interval and the verdict, in points."""
    bounds = difference.interval(draws)
    return {
        "difference": found,
        "interval": list(bounds),
        "verdict": difference.verdict(bounds),
    }


def summarize(output: pathlib.Path) -> Dict[str, Any]:
    """Compares the methods on all tasks; `RESULTS` has what is returned.

    Raises:
        UserError: a file is damaged, or runs of a task differ in BERT or data.
    """
    tasks: Dict[str, Dict[str, Chosen]] = {}
    missing: List[str] = []
    for candidates in find_candidates(output):
        found = tasks.setdefault(candidates.task, {})
        chosen, lacks = collect(candidates)
        missing += lacks
        if chosen:
            found[candidates.method] = chosen
    runs = [r for x in tasks.values() for y in x.values() for r in y.runs]
    check_one_bert(group_by_task(runs))
    described: Dict[str, Any] = {}
    compared = []
    for number, (name, both) in enumerate(tasks.items()):
        described[name] = None
        if len(both) == 2:
            seed = difference.DRAW_SEED + number
            data = output / "data" / name
            described[name], comparison = compare(name, data, both, seed)
            compared.append(comparison)
    mean = None
    if len(compared) == len(tasks):
        mean = {
            name: statistics.fmean(x[name]["mean"] for x in described.values())
            for name in (ADAPTERS, FULL)
        }
        found = mean[ADAPTERS] - mean[FULL]
        mean.update(conclude(found, difference.mean_draws(compared)))
    return {
        "claim": f"at most {difference.CLAIM} points below full fine-tuning",
        "bert_parameters": runs[0].bert if runs else None,
        "draws": {"count": difference.DRAWS, "seed": difference.DRAW_SEED},
        "tasks": described,
        "mean": mean,
        "missing": missing,
    }


def tables(results: Dict[str, Any]) -> List[Table]:
    """The tables of what `summarize` has returned."""
    scores, settings = [], []
    for name, found in results["tasks"].items():
        _, title = SCORE_OF[name.lower()]
        if found is None:
            scores.append((title, *["-"] * 5, "runs are missing"))
            continue
        shown = [_shown(found[method]) for method in (ADAPTERS, FULL)]
        majority = f"{found['majority_class']:.1f}"
        scores.append((title, majority, *shown, *_concluded(found)))
        for method in (ADAPTERS, FULL):
            one = found[method]
            chosen = [
                score
                for run, score in one["choice_scores"].items()
                if run.startswith(f"{one['chosen']}-seed")
            ]
            settings.append(
                (
                    title,
                    TITLES[method],
                    one["chosen"],
                    f"{chosen[0]:.1f} (best of {len(one['choice_scores'])})",
                    f"{one['examples_trained_on']:,}",
                    f"{one['trained_parameters']:,}",
                )
            )
    if mean := results["mean"]:
        shown = [f"{mean[method]:.1f}" for method in (ADAPTERS, FULL)]
        scores.append(("mean", "", *shown, *_concluded(mean)))
    methods = TITLES[ADAPTERS], TITLES[FULL]
    return [
        Table(
            "Scores on the report halves: mean ± standard deviation (seeds); "
            f"the claim is {results['claim']}",
            (
                *("", "majority class", *methods),
                *("difference", "95% interval", "the claim"),
            ),
            tuple(scores),
        ),
        Table(
            "What was chosen on the choice halves",
            (
                *("", "method", "setting", "score on the choice half"),
                *("examples trained on", "trained parameters"),
            ),
            tuple(settings),
        ),
    ]


def _shown(found: Dict[str, Any]) -> str:
    spread, count = found["standard_deviation"], len(found["scores"])
    more = "" if spread is None else f" ± {spread:.1f} ({count})"
    return f"{found['mean']:.1f}{more}"


def _concluded(found: Dict[str, Any]) -> Tuple[str, str, str]:
    low, high = found["interval"]
    shown = f"{found['difference']:+.1f}", f"{low:+.1f} to {high:+.1f}"
    return (*shown, found["verdict"])


def main() -> None:
    """Does one of the steps."""
    parser = command_line.Parser(
        description=__doc__.split("\n")[0], allow_abbrev=False
    )
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    halves = steps.add_parser("halves", help="cut a task's dev rows in two")
    halves.add_argument("task", help="name of the task")
    halves.add_argument("folder", help="folder with its dev.tsv")
    halves.add_argument("new_folder", help="folder for the halves")
    halves.add_argument("seed", type=int, help="seed of the draw")
    for step, what in (
        ("chosen", "print the chosen runs"),
        ("summarize", "print the tables, write protocol.json"),
    ):
        added = steps.add_parser(step, help=what)
        added.add_argument("output_dir", type=pathlib.Path)
    given = parser.parse_args()
    if given.step == "halves":
        cut_halves(given.task, given.folder, given.new_folder, given.seed)
    elif given.step == "chosen":
        for candidates in find_candidates(given.output_dir):
            if name := candidates.choose():
                print(candidates.sweep, candidates.task, name, sep="\t")
    else:
        results = summarize(given.output_dir)
        files.write_json(str(given.output_dir / RESULTS), results)
        print("\n".join(x.to_markdown() for x in tables(results)), end="")
        for name in results["missing"]:
            print(f"missing: {name}")
