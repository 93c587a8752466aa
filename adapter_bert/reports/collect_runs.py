"""Scores of the runs in some folders, for tables, figures and reports."""

import dataclasses
import functools
import json
import math
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import Any, Optional

import pandas

from adapter_bert import files, flag_page
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import dev_scores, run_record
from adapter_bert.errors import UserError
from adapter_bert.flags import Topic
from adapter_bert.methods import registry
from adapter_bert.methods.base import TuningMethod
from adapter_bert.tasks import metrics
from adapter_bert.tasks.kinds import RERANK, TAGGING, TASKS, VECTORS

# These scores are fractions; those of question answering are in percent.
FRACTIONS = {
    *(name for task in TASKS.values() for name in task.score_names),
    *("macro_f1", "precision", "recall", "token_accuracy", "macro_roc_auc"),
    *("ndcg_at_10", "mrr_at_10", "map", *metrics.RANKINGS),
    *("masked_lm_accuracy", "next_sentence_accuracy"),
    *metrics.LABEL_SET_METRICS,
} - {"loss"}
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

# A cell without a number.
NONE = "-"

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
# What is equal for comparable runs of a task, and of runs of a setting.
EQUAL = [
    *("BERT", "description of the task", "training data", "dev data"),
    "fitted thresholds",
]
SETTING = ["task", "method", "conditions"]
# Of settings, a value for each seed.
LISTS = ("folder", "seed", "scores", "cost")
COST = {
    "resumed": bool,
    "seconds": float,
    "processor_seconds": float,
    # Windows does not tell it.
    "peak_memory_bytes?": float,
    "processor?": str,
}


@dataclasses.dataclass(frozen=True)
class Output:
    """Folder for tables or figures."""

    output_dir: str = Topic.TO_DO.setting("", "Folder for the results.")
    REQUIRED = ("output_dir",)


def read_arguments(declaring: type, doc: str) -> tuple[Any, list[str]]:
    """Reads `RUNS... --output_dir=OUT`: the flags, and the folders."""
    options, folders = flag_page.read_command_line(declaring, doc, None)
    if not folders:
        raise UserError("RUNS is missing; expected folders with runs below")
    for folder in folders:
        if not os.path.isdir(folder):
            raise UserError(f"{folder} is no folder of runs")
    return options, folders


@functools.cache
def notice(text: str) -> None:
    """Prints a text to stderr, once."""
    print(text, file=sys.stderr)


def read_run(folder: pathlib.Path) -> Optional[dict[str, Any]]:
    """Reads a run; None of an unfinished, unscored one, or of several tasks.

    Members are:
        folder, rate, epochs, seed: of the training; rate is the peak.
        task: its name; of tasks over files of the user's own, the data's.
        method: as text. `family` is its name, `kind` and `title` are as
            `text_of` makes them without and with sizes.
        size, scale: the method's `size` or `k`, and `init_scale`, if any.
        scores: by name without `eval_`; in points of 100, except losses.
        main: the score by which settings of the task are chosen.
        kept, bert: parameters in the adapter's file, and of the BERT.
        EQUAL: what is equal for comparable runs of a task.
        conditions: all that the training depends on but the seed, as JSON.
        examples: rows of the training set; None if not recorded, or if texts
            were read in windows.
        cost: `cost.json`; None if missing, or if the training was resumed.
    """
    path, spent = (str(folder / x) for x in ("run.json", "cost.json"))
    run = files.read_object(path, "the run's description", RUN)
    training, kept = run["training"], run["parameters"].get("kept")
    results = run_record.read_results(str(folder), RESULTS)
    if not results or kept is None:
        return None
    last = training["steps"]
    if training.get("keep_best"):
        best_scores = dev_scores.read(str(folder))
        last = best_scores and best_scores.best_step
    if "trained_together" in training or results["global_step"] != last:
        return None
    config = run_record.bert_config(run, path)
    shapes = encoder.list_variables(config)
    cost = files.read_optional(spent, "a run's costs", COST)
    method = registry.parse(run["method"])
    task = task_name_of(run, results)
    scores = scores_of(run["task"]["name"], results)
    return {
        "folder": folder,
        "task": task,
        "method": str(method),
        "family": method.name,
        "kind": text_of(method, with_sizes=False),
        "title": text_of(method),
        "size": getattr(method, "size", getattr(method, "k", None)),
        "scale": getattr(method, "init_scale", None),
        "rate": training["learning_rate"],
        "epochs": training["epochs"],
        "seed": training["seed"],
        "scores": scores,
        "main": main_score(task, scores, run["task"]["name"] == VECTORS),
        "kept": kept,
        "bert": sum(map(math.prod, shapes.values())),
        "BERT": run["base"]["fingerprint"],
        "description of the task": json.dumps(
            {**run["task"], "head": None}, sort_keys=True
        ),
        "training data": training["data"],
        "dev data": json.dumps(results["dev_data"], sort_keys=True),
        "fitted thresholds": (folder / "label_thresholds.json").exists(),
        "conditions": json.dumps(
            {
                **{k: v for k, v in training.items() if k != "seed"},
                "parts": run.get("parts"),
                "hidden_dropout_prob": config.hidden_dropout_prob,
                "attention_probs_dropout_prob": (
                    config.attention_probs_dropout_prob
                ),
            },
            sort_keys=True,
        ),
        "examples": None
        if "window_stride" in training
        else training.get("examples"),
        # The costs of the last process alone would mislead.
        "cost": None if cost.get("resumed") else cost or None,
        "processor": cost.get("processor"),
    }


def main_score(
    task: str, scores: Iterable[str], is_vectors: bool = False
) -> str:
    """Returns the score that chooses a task's settings, "" without one."""
    for _, name, score in GLUE_COLUMNS:
        if task.lower() == name:
            return score
    # Others than GLUE: tagging and questions, labels, label sets, numbers.
    usual = () if is_vectors else ("f1", "accuracy", "micro_f1", "pearson")
    return next((x for x in (*usual, *scores) if x in scores), "")


def task_name_of(run: dict[str, Any], results: dict[str, Any]) -> str:
    """Gets the name of a run's task in tables, by `run.json` and its scores."""
    name = run["task"]["name"]
    if name == "squad":
        return SQUAD["eval_HasAns_f1" in results]
    if name not in ("custom", TAGGING, VECTORS, RERANK):
        return name
    data_name = run.get("data_name") or ""
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
        for name, value in run_record.scores_in(results).items()
    }


def find_files(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Finds all files of a name below a folder, sorted.

    A run may delete folders meanwhile, where `rglob` before Python 3.12 fails.
    """

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise UserError(
                f"cannot read {error.filename}: {error.strerror}; tables "
                "without its runs would mislead"
            ) from error

    paths, seen = [], set()
    for place, below, names in os.walk(folder, onerror=note, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            # Links may lead in a circle.
            below.clear()
        elif name in names:
            paths.append(pathlib.Path(place, name))
        seen.add(real)
        # Sweeps link to their tasks, where others' runs may lie.
        below[:] = [
            x
            for x in below
            if not os.path.islink(path := os.path.join(place, x))
            or not os.path.exists(os.path.join(path, "train.tsv"))
        ]
    return sorted(paths)


def find_runs(folders: Iterable[str]) -> pandas.DataFrame:
    """Finds all evaluated trainings below some folders, a row each."""
    # Folders may overlap.
    runs_by_place: dict[pathlib.Path, Optional[dict[str, Any]]] = {}
    for folder in map(pathlib.Path, folders):
        for path in find_files(folder, "run.json"):
            if path.parent.name != "phase_1":
                runs_by_place[path.parent.resolve()] = read_run(path.parent)
    runs = list(filter(None, runs_by_place.values()))
    if not runs:
        raise UserError(
            "no finished and evaluated run of one task in "
            f"{', '.join(map(str, folders))}"
        )
    left_out = len(runs_by_place) - len(runs)
    if left_out:
        notice(
            f"{left_out} runs that are not finished, have no "
            "scores or are of tasks that were trained together are left out"
        )
    return pandas.DataFrame(runs)


def settings_of(runs: pandas.DataFrame) -> pandas.DataFrame:
    """Groups runs that differ in nothing but their seeds, a row for each group.

    Columns are those of its first run; `folder`, `seed`, `scores` and `cost`
    are lists, an entry for each run, and `seeds` is their number. `mean f1`
    and `error f1` are the mean over seeds of a score, and its standard error,
    which is NaN of a single seed. Of a seed that was run twice, the first run
    counts.
    """
    for task, same in runs.groupby("task"):
        first = same.iloc[0]
        for _, run in same[same[EQUAL].ne(first[EQUAL]).any(axis=1)].iterrows():
            other = [name for name in EQUAL if run[name] != first[name]]
            raise UserError(
                f"the runs {first.folder} and {run.folder} of {task} "
                f"differ in their {' and '.join(other)} (or, of data, in how "
                "it is cut: --max_seq_length, --doc_stride), so they cannot "
                "be compared; name folders that hold only one of the two"
            )
    for _, same in runs.groupby([*SETTING, "seed"]):
        first = same.iloc[0]
        for folder, scores in zip(same.folder, same.scores):
            if scores != first.scores:
                notice(
                    f"{folder} is left out: the same settings and seed as "
                    f"{first.folder}, with other scores"
                )
    runs = runs.drop_duplicates([*SETTING, "seed"])
    keys = [runs[name] for name in SETTING]
    groups = runs.groupby(keys, sort=False)
    scores = pandas.DataFrame([*runs.scores], runs.index).groupby(keys)
    columns = {x: list if x in LISTS else "first" for x in runs}
    return pandas.concat(
        [
            groups.agg(columns).assign(seeds=groups.size()),
            scores.mean().add_prefix("mean "),
            scores.sem().add_prefix("error "),
        ],
        axis=1,
    ).reset_index(drop=True)


def check_one_bert(settings: pandas.DataFrame) -> None:
    """Refuses means and shares over tasks of different BERTs."""
    for _, other in settings[settings.BERT != settings.BERT.iloc[0]].iterrows():
        raise UserError(
            f"the runs {settings.folder.iloc[0][0]} and {other.folder[0]} are "
            "of different BERTs, so there is no mean of their tasks; name "
            "folders that hold only one of the two"
        )


def text_of(method: TuningMethod, with_sizes: bool = True) -> str:
    """Writes a method with its sizes, and arguments that are not default.

    Without sizes and initial scales it is the method's kind: `houlsby` of any
    size is one, `houlsby(sites='ffn')` another.
    """
    shown: list[str] = []
    for number, field in enumerate(dataclasses.fields(method)):
        name, value = field.name, getattr(method, field.name)
        if name == "parts":
            shown += [p.name or text_of(p.method, with_sizes) for p in value]
            continue
        is_first = number == 0 and type(value) in (int, float)
        is_size = name in SIZES or is_first
        is_shown = is_size and name != "init_scale" or value != field.default
        if is_shown and (with_sizes or not is_size):
            shown.append(f"{name}={value!r}")
    return method.name + (f"({', '.join(shown)})" if shown else "")


def show_score(setting: pandas.Series, score: str) -> str:
    """Writes mean, standard error and number of seeds."""
    mean, error = setting.get(f"mean {score}"), setting.get(f"error {score}")
    if pandas.isna(mean):
        return NONE
    more = "" if pandas.isna(error) else f" ± {error:.1f} ({setting.seeds:.0f})"
    return f"{mean:.1f}{more}"


def best(settings: pandas.DataFrame, score: str) -> Optional[pandas.Series]:
    """Chooses the first setting with the best mean; None without the score.

    Settings with fewer seeds than others are left out: they are better by
    chance.
    """
    mean = f"mean {score}"
    scored = settings.dropna(subset=settings.columns.intersection([mean]))
    if mean not in settings or scored.empty:
        return None
    most = scored.seeds.max()
    complete = scored[scored.seeds == most]
    if len(complete) < len(scored):
        notice(
            f"{scored.task.iloc[0]}, {scored.family.iloc[0]}: "
            f"{len(scored) - len(complete)} of {len(scored)} settings have "
            f"fewer than {most} seeds, and are not chosen from"
        )
    return complete.loc[complete[mean].idxmax()]


def choose(
    settings: pandas.DataFrame, by: str, score: str = ""
) -> pandas.DataFrame:
    """Chooses the best setting for each task and value of a column.

    The score is the task's main one if none is named.
    """
    chosen = [
        best(same, score or same.main.iloc[0])
        for _, same in settings.groupby(["task", by], sort=False)
    ]
    return settings.loc[[row.name for row in chosen if row is not None]]


def of_usual_scale(settings: pandas.DataFrame) -> pandas.DataFrame:
    """Leaves out all but the most frequent initial scale of a task's kind."""
    left = []
    for (task, _), same in settings.groupby(["task", "kind"], sort=False):
        scales = list(same.scale.dropna())
        usual = max(
            scales, key=lambda x: (scales.count(x), x == 1e-2), default=None
        )
        left.append(same[same.scale.isna() | (same.scale == usual)])
        if len(left[-1]) < len(same):
            notice(
                f"{task}, {same.family.iloc[0]}: "
                f"{len(same) - len(left[-1])} settings with another initial "
                f"scale than {usual:g} are not chosen from"
            )
    return pandas.concat(left)


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
        # Whatever the list says, nothing outside of the folder is deleted.
        old = {
            name
            for name in map(str, names)
            if root.resolve() in (root / name).resolve().parents
        }
    for name in contents:
        if (root / name).exists() and name not in old:
            raise UserError(
                f"{root / name} is there and not in {list_path}, the list of "
                f"what {script} wrote; choose another --output_dir, or delete "
                "the file"
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
