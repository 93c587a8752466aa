r"""Keeps the runs of the paper's tables and figures as rows, and shows them.

These are the steps of scripts/paper/:

    adapter-bert paper divide TASK FOLDER NEW_FOLDER SEED
    adapter-bert paper missing RESULTS COMMIT < NAMES
    adapter-bert paper collect RESULTS FOLDER COMMIT
    adapter-bert paper best RESULTS [each] task=RTE method=houlsby size=64
    adapter-bert paper show STUDY RESULTS

`divide` gives a task rows to choose by and rows to report. `missing` prints the
names of runs that RESULTS lacks. `collect` adds the finished runs below FOLDER.
`best` prints the setting with the best dev score, as variables of a sweep on a
line; with the word `each` that of each task, method and size. `show` prints a
table beside the paper's numbers, and draws a figure.
"""

import csv
import io
import math
import os
import pathlib
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import command_line, files
from adapter_bert.data import tables
from adapter_bert.data.divisions import HeldOut
from adapter_bert.errors import UserError
from adapter_bert.reports import baselines, collect_runs, difference
from adapter_bert.tasks import metrics
from adapter_bert.tasks.registry import TASKS, get_task
from adapter_bert.tasks.text_regression import TextRegression
from adapter_bert.training import cpu_cores

# A row of `runs` in a results file.
Row = dict[str, Any]
# A run of a sweep: the task, a variant of the training, the setting.
NAME = re.compile(
    r"(?P<task>[^/~]+)(~(?P<variant>[^/]+))?/(?P<method>[a-z_]+)(?P<size>\d*)"
    r"(?P<arguments>.*)-lr(?P<rate>.+)-epochs(?P<epochs>.+)-seed(?P<seed>\d+)"
)
# Rows to choose by, to predict, and the latter with their labels.
CHOICE, PREDICTED, REPORT = "dev.tsv", "test.tsv", "report.tsv"
# What a method's size is called.
SIZES = "size", "k"
CUSTOM = tables.Layout("text", label="label")
BASELINE = "no BERT"
# Method, its size if only one counts -> its title.
METHODS = {
    ("full", None): "full fine-tuning",
    ("houlsby", None): "adapters, best size",
    ("houlsby", 64): "adapters of size 64",
    ("top_layers", None): "top layers",
}
SHARES = {"dev": 0.1, "test": 0.1}
PUBLISHED = pathlib.Path(__file__).parents[2] / "scripts/paper/published.json"


def divide(name: str, folder: str, new_folder: str, seed: int) -> None:
    """Gives a task's folder rows to choose by and rows to report.

    A task of GLUE has its dev rows cut in two, each label's rows evenly. Tables
    with three splits stay as they are. One file, label and text without a
    header, is cut 80/10/10, as in Houlsby et al. 2019, Table 3.
    """
    if name.lower() in TASKS:
        contents = _halves(get_task(name), folder, seed)
        links = {"train.tsv": os.path.join(folder, "train.tsv")}
    elif os.path.isdir(folder):
        splits = {"train.tsv": "train.tsv", CHOICE: CHOICE, REPORT: PREDICTED}
        links = {x: os.path.join(folder, y) for x, y in splits.items()}
        links[PREDICTED] = links[REPORT]
        contents = {}
    else:
        contents, links = _cut(folder, seed), {}
    for path in links.values():
        if not os.path.exists(path):
            raise UserError(
                f"{path} is missing, expected train.tsv, dev.tsv and test.tsv: "
                "settings are chosen by the one and reported by the other"
            )
    files.make_folder(new_folder)
    for file, content in contents.items():
        path = os.path.join(new_folder, file)
        if files.exists(path) and files.read_text(path, "rows") != content:
            raise UserError(
                f"{path} is there, but {folder} and the seed {seed} give "
                "another; choose another OUT"
            )
        files.write_text(path, content)
    for file, target in links.items():
        path = pathlib.Path(new_folder, file)
        path.unlink(missing_ok=True)
        path.symlink_to(os.path.abspath(target))


def _halves(task: Any, folder: str, seed: int) -> dict[str, str]:
    if len(task.dev_splits) > 1:
        raise UserError(f"{task.name} has several dev files, expected one")
    _, splits = task.read(folder, ["dev"])
    rows = splits["dev"]
    reported = HeldOut(0.5, seed).choose(rows.texts, task.strata(rows))
    # As they are, with all columns.
    lines = files.read_text(rows.path, "the dev file").split("\n")
    head = lines[:1] if task.labelled.header else []

    def labelled(half: np.ndarray) -> str:
        return "\n".join([*head, *(lines[x] for x in rows.lines[half])]) + "\n"

    columns = task.unlabelled.columns
    half = rows.take(reported)
    texts = zip(*(getattr(half, field) for field in columns))
    predicted = [["index", *map(str, columns.values())]]
    predicted += [[str(n), *row] for n, row in enumerate(texts)]
    return {
        CHOICE: labelled(~reported),
        REPORT: labelled(reported),
        PREDICTED: "\n".join(map("\t".join, predicted)) + "\n",
    }


def _cut(path: str, seed: int) -> dict[str, str]:
    if tables.ending_of(path) not in tables.READERS:
        raise UserError(
            f"{path} is no .tsv file or folder; link to it by a name with .tsv"
        )
    rows = tables.read_rows(path, tables.Layout(1, label=0, header=False))
    left = np.ones(len(rows), bool)
    contents = {}
    for split, share in SHARES.items():
        places = np.flatnonzero(left)
        half = rows.take(left)
        chosen = HeldOut(share * len(rows) / len(places), seed).choose(
            half.texts, [(label,) for label in half.label]
        )
        contents[f"{split}.tsv"] = _table(rows, places[chosen])
        left[places[chosen]] = False
    contents[REPORT] = contents[PREDICTED]
    contents["train.tsv"] = _table(rows, np.flatnonzero(left))
    return contents


def _table(rows: tables.Rows, places: Iterable[int]) -> str:
    lines = [f"{rows.text_a[x]}\t{rows.label[x]}" for x in places]
    return "\n".join(["text\tlabel", *lines]) + "\n"


def read_results(path: str, commit: Optional[str] = None) -> list[Row]:
    """Reads the rows of a results file; none if it is missing."""
    if not files.exists(path):
        return []
    rows = files.read_json(path, "the results")["runs"]
    _check_alike(rows, path, commit)
    return rows


def _check_alike(
    rows: Iterable[Row], path: str, commit: Optional[str] = None
) -> None:
    for key in ("bert", "commit"):
        values = {row[key] for row in rows if row["method"] != BASELINE}
        if key == "commit" and commit:
            values.add(commit)
        if len(values) > 1:
            raise UserError(
                f"{path} has rows of the {key}s {' and '.join(sorted(values))}"
                ", expected one in a table; choose another OUT"
            )


def print_missing(path: str, commit: str, names: Sequence[str]) -> None:
    """Prints the runs without a row, and to stderr how long they will take."""
    rows = read_results(path, commit)
    present = {row["run"] for row in rows}
    missing = [name for name in names if name not in present]
    print("\n".join(missing))
    # Seconds an epoch, of each task and method.
    rates: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row["split"] == "dev" and row["seconds"] and row["epochs"]:
            of_row = rates.setdefault((row["task"], row["method"]), [])
            of_row.append(row["seconds"] / row["epochs"])
    hours, unknown = 0.0, 0
    for name in missing:
        parts = NAME.fullmatch(name)
        rate = rates.get((parts["task"], parts["method"]))
        if rate:
            hours += statistics.fmean(rate) * float(parts["epochs"]) / 3600
        else:
            unknown += 1
    if missing:
        more = f"; {unknown} of kinds that were not run yet" if unknown else ""
        print(
            f"{len(missing)} of {len(names)} runs are missing: about "
            f"{hours:.1f} hours{more}",
            file=sys.stderr,
        )


def collect(path: str, folder: pathlib.Path, commit: str) -> None:
    """Adds the rows of finished runs below a folder to a results file."""
    rows = read_results(path, commit)
    present = {row["run"] for row in rows}
    for done in collect_runs.find_files(folder / "runs", "done"):
        name = str(done.parent.relative_to(folder / "runs"))
        if name not in present:
            rows += _rows_of(name, done.parent, folder / "data", commit)
    for record in collect_runs.find_files(folder, baselines.BASELINE_FILE):
        name = f"{record.parent.name}/{BASELINE}"
        if name not in present:
            rows.append(_baseline_row(name, record.parent, commit))
    _check_alike(rows, path, commit)
    files.write_json(path, {"runs": rows})


def _rows_of(
    name: str, folder: pathlib.Path, data: pathlib.Path, commit: str
) -> list[Row]:
    parts, run = NAME.fullmatch(name), collect_runs.read_run(folder)
    if parts is None or run is None:
        raise UserError(
            f"{folder} is marked as finished, but has no scores of its last "
            "step; delete the folder and start the script again"
        )
    metric = _metric(parts["task"], run.scores)
    row = {
        "run": name,
        "task": parts["task"],
        "method": collect_runs.text_of(run.method, with_sizes=False),
        "size": next(
            (getattr(run.method, x) for x in SIZES if hasattr(run.method, x)),
            None,
        ),
        "scale": getattr(run.method, "init_scale", None),
        "rate": run.rate,
        "epochs": run.epochs,
        "seed": run.seed,
        "variant": parts["variant"] or "",
        "split": "dev",
        "metric": metric,
        "score": run.scores[metric],
        "seconds": run.cost["seconds"] if run.cost else None,
        "trained": run.kept,
        "commit": commit,
        "bert": f"{run.bert} parameters, {run.data['BERT'][:12]}",
        "processor": cpu_cores.name(),
    }
    rows = [row]
    report = data / parts["task"] / REPORT
    if report.exists():
        labels, answers = _answers(parts["task"], report, folder)
        score = 100 * metrics.METRICS[metric](labels, answers)
        rows.append(
            {
                **row,
                "split": "test",
                "score": score,
                "answers": answers.tolist(),
            }
        )
    return rows


def _metric(task: str, scores: Iterable[str]) -> str:
    for _, name, score in collect_runs.GLUE_COLUMNS:
        if task.lower() == name:
            return score
    return next(x for x in ("f1", "accuracy", *scores) if x in scores)


def _baseline_row(name: str, folder: pathlib.Path, commit: str) -> Row:
    scores = baselines.read_baseline(folder).scores
    task = name.partition("/")[0]
    metric = _metric(task, scores)
    return {
        "run": name,
        "task": task,
        "method": BASELINE,
        **dict.fromkeys(("size", "rate", "epochs", "seed", "seconds")),
        "variant": "",
        "split": "test",
        "metric": metric,
        "score": scores[metric],
        "trained": 0,
        "commit": commit,
        "bert": "",
        "processor": cpu_cores.name(),
    }


def _answers(
    name: str, report: pathlib.Path, folder: pathlib.Path
) -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions of the rows to report, both [rows].

    Numbers are float64; labels are int places among the labels.
    """
    rows = read_report(name, report)
    path = str(folder / "test_predictions.tsv")
    column = "prediction" if name.lower() in TASKS else "label"
    answers = tables.read_rows(path, tables.Layout(column))
    if len(answers) != len(rows):
        raise UserError(
            f"{path} has {len(answers)} predictions, expected {len(rows)}, one "
            f"for each row of {report}; delete the run's folder"
        )
    if name.lower() in TASKS and isinstance(get_task(name), TextRegression):
        return np.array(rows.label, float), np.array(answers.text_a, float)
    labels = sorted({*rows.label, *answers.text_a})
    if name.lower() in TASKS:
        labels = get_task(name).labels
    places = {label: place for place, label in enumerate(labels)}
    return (
        np.array([places[x] for x in rows.label]),
        np.array([places[x] for x in answers.text_a]),
    )


def read_report(name: str, report: pathlib.Path) -> tables.Rows:
    """Reads the labelled rows of a task to report."""
    is_glue = name.lower() in TASKS
    layout = get_task(name).labelled if is_glue else CUSTOM
    return tables.read_rows(str(report), layout)


def choose(rows: Iterable[Row], **wanted: Any) -> Optional[Row]:
    """Chooses the row with the best dev score of the first seed.

    Only rows whose members equal `wanted` take part; of equal scores the first
    row wins. None if there is no such row.
    """
    fitting = [
        row
        for row in rows
        if row["split"] == "dev"
        and all(row.get(key) == value for key, value in wanted.items())
    ]
    first = min((row["seed"] for row in fitting), default=None)
    candidates = [row for row in fitting if row["seed"] == first]
    return max(candidates, key=lambda row: row["score"], default=None)


SETTING = ("task", "method", "size", "scale", "rate", "epochs", "variant")
# A point of most figures; the best of its settings is shown.
POINT = ("task", "method", "variant", "size")


def seeds_of(rows: Iterable[Row], chosen: Row, split: str) -> list[Row]:
    """Lists a setting's rows of a split, one a seed."""
    return [
        row
        for row in rows
        if row["split"] == split
        and all(row.get(key) == chosen.get(key) for key in SETTING)
    ]


def _mean(rows: Sequence[Row]) -> str:
    scores = [row["score"] for row in rows]
    if len(scores) < 2:
        return f"{scores[0]:.1f}" if scores else "-"
    error = statistics.stdev(scores) / math.sqrt(len(scores))
    return f"{statistics.fmean(scores):.1f} ± {error:.1f} ({len(scores)})"


def reported(rows: Sequence[Row], task: str, method: str, size=None):
    """Lists the test rows of a method's chosen setting, one a seed."""
    wanted = {"task": task, "method": method, "variant": ""}
    if size:
        wanted["size"] = size
    if method == BASELINE:
        return [row for row in rows if row["run"] == f"{task}/{BASELINE}"]
    chosen = choose(rows, **wanted)
    return seeds_of(rows, chosen, "test") if chosen else []


Table = list[list[str]]


def table_1(rows: list[Row], folder: pathlib.Path, published: Any) -> Table:
    """Makes Table 1, with the interval of adapters less full fine-tuning."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    if len({row["seed"] for row in rows}) == 1:
        raise UserError(
            "the results are of one seed, expected two or more for the "
            "interval of the difference"
        )
    lines = [["", *tasks, "mean"]]
    for (method, size), title in METHODS.items():
        per_task = [reported(rows, task, method, size) for task in tasks]
        if not any(per_task):
            continue
        means = [statistics.fmean(x["score"] for x in y) for y in per_task if y]
        mean = f"{statistics.fmean(means):.1f}" if all(per_task) else "-"
        lines.append([title, *map(_mean, per_task), mean])
    for title, scores in published.items():
        row = [scores.get(task) for task in tasks]
        mean = f"{statistics.fmean(row):.1f}" if None not in row else "-"
        cells = ["-" if x is None else f"{x:.1f}" for x in row]
        lines.append([f"{title} (paper, BERT-large, test)", *cells, mean])
    compared = {}
    for number, task in enumerate(tasks):
        both = [reported(rows, task, x) for x in ("houlsby", "full")]
        if all(len(x) > 1 for x in both):
            labels = read_report(task, folder / "data" / task / REPORT).label
            compared[task] = difference.compare(
                both[0][0]["metric"],
                _places(task, labels),
                *(np.array([row["answers"] for row in x]) for x in both),
                seed=difference.DRAW_SEED + number,
            )
    shown = {task: (x.difference, x.draws) for task, x in compared.items()}
    if len(compared) == len(tasks):
        differences = [x.difference for x in compared.values()]
        mean = statistics.fmean(differences)
        shown["mean"] = mean, difference.mean_draws(list(compared.values()))
    cells = {}
    for task, (value, draws) in shown.items():
        low, high = difference.interval(draws)
        verdict = difference.verdict((low, high))
        cells[task] = f"{value:+.1f} ({low:+.1f} to {high:+.1f}), {verdict}"
    claim = f"within {difference.CLAIM} points of full fine-tuning"
    lines.append([claim, *(cells.get(x, "-") for x in (*tasks, "mean"))])
    return lines


def _places(name: str, labels: Sequence[str]) -> np.ndarray:
    task = get_task(name)
    if isinstance(task, TextRegression):
        return np.array(labels, float)
    return np.array([task.labels.index(x) for x in labels])


def table_2(rows: list[Row], folder: pathlib.Path, published: Any) -> Table:
    """Makes Table 2; a task where no method beats the baseline has a star."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    columns = {
        BASELINE: BASELINE,
        "full": "full fine-tuning",
        "top_layers": "variable",
        "houlsby": "adapters",
    }
    paper = [f"{title} (paper)" for title in columns.values()]
    lines = [["", *columns.values(), *paper]]
    for task in tasks:
        by_column = [reported(rows, task, x) for x in columns]
        means = [
            statistics.fmean(row["score"] for row in x) if x else -math.inf
            for x in by_column
        ]
        star = " *" if -math.inf < max(means[1:]) <= means[0] else ""
        theirs = published.get(task, ["-"] * len(columns))
        lines.append([task + star, *map(_mean, by_column), *map(str, theirs)])
    return lines


class Point(NamedTuple):
    """The dev scores of a setting.

    Attributes:
        row: one of its rows.
        error: standard error of the mean; 0 of one seed.
        seeds: how many there are.
    """

    row: Row
    mean: float
    error: float
    seeds: int


def points_of(rows: Sequence[Row], members: Sequence[str]) -> list[Point]:
    """Chooses the best setting for each combination of members of rows."""
    points = []
    for key in dict.fromkeys(
        tuple(row.get(x) for x in members)
        for row in rows
        if row["split"] == "dev"
    ):
        chosen = choose(rows, **dict(zip(members, key)))
        scores = [x["score"] for x in seeds_of(rows, chosen, "dev")]
        error = 0.0
        if len(scores) > 1:
            error = statistics.stdev(scores) / math.sqrt(len(scores))
        mean = statistics.fmean(scores)
        points.append(Point(chosen, mean, error, len(scores)))
    return points


# A panel's title, a line's label -> points: x, y, what y may be less, and more.
Curves = dict[tuple[str, str], list[tuple[float, float, float, float]]]


def _figure(
    rows: list[Row],
    path: pathlib.Path,
    published: Any,
    members: Sequence[str],
    x: str,
    label: str,
) -> Table:
    """Draws a panel for each task, and lists its points.

    Args:
        rows: of the results.
        path: of the picture.
        published: the paper's scores by task, then by method and size.
        members: of rows that tell points apart.
        x: the member that is drawn from left to right.
        label: what that is called.
    """
    members = [name for name in members if name != x]
    lines = [[*members, x, "score", "error", "seeds", "paper"]]
    curves: Curves = {}
    points = points_of(rows, [*members, *[x] * (x != "trained")])
    for point in sorted(points, key=lambda point: point.row[x]):
        row = point.row
        kind = collect_runs.TITLES.get(row["method"], row["method"])
        title = f"{kind}, {row['variant']}" if row["variant"] else kind
        place = float(row[x]), point.mean, point.error, point.error
        curves.setdefault((row["task"], title), []).append(place)
        name = f"{row['method']} {row['size'] or ''}".strip()
        theirs = published.get(row["task"], {}).get(name, "-")
        cells = ["-" if row[n] is None else str(row[n]) for n in members]
        cells += [f"{row[x]:.10g}", f"{point.mean:g}", f"{point.error:g}"]
        lines.append([*cells, str(point.seeds), str(theirs)])
    _draw(curves, path, label, "dev score")
    return lines


def figure_4(
    rows: list[Row], folder: pathlib.Path, published: Any, name="figure_4"
) -> Table:
    """Makes Figure 4, or 5: scores over the trained parameters of a task."""
    path = folder / f"{name}.png"
    label = "trained parameters"
    return _figure(rows, path, published, POINT, "trained", label)


def figure_5(rows: list[Row], folder: pathlib.Path, published: Any) -> Table:
    """Makes Figure 5: as Figure 4, of SQuAD."""
    return figure_4(rows, folder, published, "figure_5")


def figure_7(rows: list[Row], folder: pathlib.Path, published: Any) -> Table:
    """Makes Figure 7: the best score at each learning rate."""
    members = ("task", "method", "variant", "rate")
    path = folder / "figure_7.png"
    return _figure(rows, path, published, members, "rate", "learning rate")


def figure_6(rows: list[Row], folder: pathlib.Path, published: Any) -> Table:
    """Makes Figure 6: deviations of first values, and spans of layers."""
    # It loads what draws.
    from adapter_bert.commands import plot

    path = folder / "figure_6.png"
    members = ("task", "method", "variant", "scale")
    label = "deviation of first values"
    lines = _figure(rows, path, published, members, "scale", label)
    place = folder / "ablation"
    if not place.is_dir():
        return lines
    lost: dict[tuple[str, str], list[float]] = {}
    for task in sorted(x.name for x in place.iterdir()):
        ablations = plot.read_ablations([str(place / task)])
        for grid, whole, _ in ablations.values():
            for (first, last), score in np.ndenumerate(grid):
                if not np.isnan(score):
                    span = f"without layers {first}-{last}"
                    lost.setdefault((task, span), []).append(score - whole)
        if ablations:
            content = plot.render("spans", plot.draw_ablations, ablations)
            for name, picture in content.items():
                files.write_bytes(str(folder / f"{task}_{name}"), picture)
    for (task, span), values in lost.items():
        error = statistics.stdev(values) if len(values) > 1 else 0.0
        error /= math.sqrt(len(values))
        cells = [f"{statistics.fmean(values):+g}", f"{error:g}"]
        lines.append([task, span, "", "-", *cells, str(len(values)), "-"])
    return lines


def _trade_off(rows: list[Row], path: pathlib.Path) -> Table:
    """Draws points against full fine-tuning, percentiles over tasks.

    A method and size that some task of a panel lacks is left out.
    """
    panels: dict[str, list[Point]] = {}
    for point in points_of(rows, POINT):
        is_glue = point.row["task"].lower() in collect_runs.GLUE
        panels.setdefault("GLUE" if is_glue else "other tasks", []).append(
            point
        )
    lines = [["tasks", "method", "size", "trained", "20%", "50%", "80%"]]
    curves: Curves = {}
    for title, points in panels.items():
        full = {
            point.row["task"]: point.mean
            for point in points
            if point.row["method"] == "full"
        }
        by_kind: dict[tuple[str, Any], list[Point]] = {}
        for point in points:
            key = point.row["method"], point.row["size"]
            by_kind.setdefault(key, []).append(point)
        for (method, size), of_kind in sorted(
            by_kind.items(), key=lambda item: item[1][0].row["trained"]
        ):
            if {point.row["task"] for point in of_kind} != {*full}:
                continue
            gains = [p.mean - full[p.row["task"]] for p in of_kind]
            low, middle, high = np.percentile(gains, (20, 50, 80))
            trained = statistics.median(p.row["trained"] for p in of_kind)
            kind = collect_runs.TITLES.get(method, method)
            place = trained, middle, middle - low, high - middle
            curves.setdefault((title, kind), []).append(place)
            gained = [f"{x:+.1f}" for x in (low, middle, high)]
            cells = [f"{title} ({len(of_kind)})", method, str(size or "-")]
            lines.append([*cells, f"{trained:.10g}", *gained])
    if not curves:
        raise UserError("no task has a run of full fine-tuning to compare with")
    label = "trained parameters of a task"
    _draw(curves, path, label, "points against full fine-tuning")
    return lines


def figure_1(rows: list[Row], folder: pathlib.Path, published: Any) -> Table:
    """Makes Figure 1: the trade-off on GLUE."""
    return _trade_off(rows, folder / "figure_1.png")


def figure_3(rows: list[Row], folder: pathlib.Path, published: Any) -> Table:
    """Makes Figure 3: the trade-off on GLUE and on other tasks."""
    return _trade_off(rows, folder / "figure_3.png")


def section_3_6(rows: list[Row], folder: pathlib.Path, published: Any) -> Table:
    """Makes a table of section 3.6: sizes and variants of adapters.

    Means are over the tasks that all kinds have. The last column is the paper's
    mean accuracy over eight tasks of GLUE.
    """
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    by_kind: dict[str, dict[str, Row]] = {}
    for point in points_of(rows, POINT):
        row = point.row
        kind = f"{row['method']}, size {row['size']}"
        by_kind.setdefault(kind, {})[row["task"]] = row
    lines = [["", *tasks, "mean", "paper"]]
    shared = [x for x in tasks if all(x in of for of in by_kind.values())]
    compared: Curves = {}
    for kind, chosen in by_kind.items():
        of_tasks = {x: seeds_of(rows, row, "dev") for x, row in chosen.items()}
        mean = "-"
        if shared:
            number = statistics.fmean(
                statistics.fmean(r["score"] for r in of_tasks[x])
                for x in shared
            )
            mean = f"{number:.1f} of {len(shared)}"
            place = float(len(compared) + 1), number, 0.0, 0.0
            compared[f"mean of {len(shared)} tasks", kind] = [place]
        cells = (_mean(of_tasks.get(x, [])) for x in tasks)
        lines.append([kind, *cells, mean, str(published.get(kind, "-"))])
    if not shared:
        return lines
    path = folder / "section_3_6.png"
    _draw(compared, path, "kind of adapter", "dev score", scale="linear")
    return lines


def _draw(
    curves: Curves,
    path: pathlib.Path,
    x_label: str,
    y_label: str,
    scale: str = "log",
) -> None:
    """Draws a panel for each title, a line for each label."""
    from matplotlib.figure import Figure

    titles = sorted({title for title, _ in curves})
    figure = Figure(figsize=(4 * len(titles), 3.5), layout="constrained")
    panels = figure.subplots(1, len(titles), squeeze=False)[0]
    for panel, title in zip(panels, titles):
        for (name, label), points in sorted(curves.items()):
            if name == title:
                x, y, less, more = zip(*points)
                style = "--" if "bias_correction" in label else "-"
                panel.errorbar(
                    x, y, (less, more), label=label, ls=style, marker="o"
                )
        panel.set(title=title, xscale=scale, xlabel=x_label)
        panel.legend(fontsize="small")
    panels[0].set_ylabel(y_label)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    files.write_bytes(str(path), content.getvalue())


STUDIES = {
    study.__name__: study
    for study in (
        table_1,
        table_2,
        figure_1,
        figure_3,
        figure_4,
        figure_5,
        figure_6,
        figure_7,
        section_3_6,
    )
}


def show(study: str, path: str) -> None:
    """Prints a study as a table, and writes it as TSV next to its results."""
    folder = pathlib.Path(path).parent
    published = files.read_json(str(PUBLISHED), "the paper's numbers")
    rows = read_results(path)
    if not rows:
        raise UserError(f"{path} has no run, expected finished ones")
    lines = STUDIES[study](rows, folder, published.get(study, {}))
    text = io.StringIO()
    csv.writer(text, "excel-tab", lineterminator="\n").writerows(lines)
    files.write_text(str(folder / f"{study}.tsv"), text.getvalue())
    for number, line in enumerate(lines):
        print(f"| {' | '.join(line)} |")
        if not number:
            print("|" + " --- |" * len(line))


def print_best(path: str, arguments: Sequence[str]) -> None:
    """Prints chosen settings, each a line of variables with tabs between."""
    rows = [row for row in read_results(path) if row["method"] != BASELINE]
    kinds = {"size": int, "scale": float}
    pairs = (x.split("=", 1) for x in arguments if x != "each")
    wanted = {key: kinds.get(key, str)(value) for key, value in pairs}
    rows = [
        row
        for row in rows
        if not row["variant"]
        and all(row.get(key) == value for key, value in wanted.items())
    ]
    members = (*POINT, "scale") if "each" in arguments else ()
    for point in points_of(rows, members):
        parts = NAME.fullmatch(point.row["run"])
        size, rate, epochs = parts["size"], parts["rate"], parts["epochs"]
        method, added = parts["method"], parts["arguments"]
        scale = added.removeprefix("-scale")
        is_scale = scale != added
        print(
            f"TASKS={parts['task']}",
            f"METHODS={method if is_scale else method + added}",
            f"INIT_SCALES={scale if is_scale else ''}",
            *(f"SIZES={size}", f"LAYERS={size}", f"RATES={rate}"),
            *(f"FULL_RATES={rate}", f"EPOCHS={epochs}"),
            f"FULL_EPOCHS={epochs}",
            sep="\t",
        )


def main() -> None:
    """Does one of the steps."""
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    for step, arguments in {
        "divide": ("task", "folder", "new_folder", "seed"),
        "missing": ("results", "commit"),
        "collect": ("results", "folder", "commit"),
        "show": ("study", "results"),
    }.items():
        added = steps.add_parser(step)
        for argument in arguments:
            added.add_argument(argument)
    added = steps.add_parser("best")
    added.add_argument("results")
    added.add_argument("wanted", nargs="*")
    options = parser.parse_args()
    if options.step == "divide":
        divide(
            options.task,
            options.folder,
            options.new_folder,
            int(options.seed),
        )
    elif options.step == "missing":
        names = sys.stdin.read().splitlines()
        print_missing(options.results, options.commit, names)
    elif options.step == "collect":
        folder = pathlib.Path(options.folder)
        collect(options.results, folder, options.commit)
    elif options.step == "best":
        print_best(options.results, options.wanted)
    else:
        show(options.study, options.results)
