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

import collections
import functools
import io
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import pandas

from adapter_bert import files
from adapter_bert.data import tables
from adapter_bert.data.divisions import HeldOut
from adapter_bert.errors import UserError
from adapter_bert.reports import baselines, collect_runs, difference
from adapter_bert.reports.collect_runs import TITLES, show_score
from adapter_bert.tasks import metrics
from adapter_bert.tasks.kinds import TASKS, get_task
from adapter_bert.tasks.text_regression import TextRegression
from adapter_bert.training import cpu_cores

# A run of a sweep: the task, a variant of the training, the setting.
NAME = re.compile(
    r"(?P<task>[^/~]+)(~(?P<variant>[^/]+))?/(?P<method>[a-z_]+)(?P<size>\d*)"
    r"(?P<arguments>.*)-lr(?P<rate>.+)-epochs(?P<epochs>.+)-seed(?P<seed>\d+)"
)
# Rows to choose by, to predict, and the latter with their labels.
CHOICE, PREDICTED, REPORT = "dev.tsv", "test.tsv", "report.tsv"
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
# Members of results: what runs of a setting share, of a point of most figures,
# whose best setting is shown, and all.
SETTING = ["task", "method", "size", "scale", "rate", "epochs", "variant"]
POINT = ["task", "method", "variant", "size"]
CURVE = ["task", "method", "variant"]
AXES = {
    "trained": "trained parameters",
    "rate": "learning rate",
    "scale": "deviation of first values",
}
MEMBERS = (
    *("run", *SETTING, "seed", "split", "metric", "score", "seconds"),
    *("trained", "commit", "bert", "conditions", "processor", "answers"),
)
# What settings of a table differ in; other conditions of a task are equal.
TUNED = ("learning_rate", "epochs", "steps")
# Lines of cells, and the points of a figure: `panel`, `label`, `x`, `y`, and
# what y may be `less` and `more`.
Table = list[list[str]]
Points = pandas.DataFrame
Runs = pandas.DataFrame


def divide(name: str, folder: str, new_folder: str, seed: str) -> None:
    """Gives a task's folder rows to choose by and rows to report.

    A task of GLUE has its dev rows cut in two, each label's rows evenly. Tables
    with three splits stay as they are. One file, label and text without a
    header, is cut 80/10/10, as in Houlsby et al. 2019, Table 3.
    """
    if name.lower() in TASKS:
        contents = _halves(get_task(name), folder, int(seed))
        links = {"train.tsv": os.path.join(folder, "train.tsv")}
    elif os.path.isdir(folder):
        splits = {"train.tsv": "train.tsv", CHOICE: CHOICE, REPORT: PREDICTED}
        links = {x: os.path.join(folder, y) for x, y in splits.items()}
        links[PREDICTED] = links[REPORT]
        contents = {}
    else:
        contents, links = _cut(folder, int(seed)), {}
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


def read_results(path: str, commit: Optional[str] = None) -> Runs:
    """Reads the rows of a results file; none if it is missing."""
    return _checked(_read_rows(path), path, commit)


def _read_rows(path: str) -> list[dict[str, Any]]:
    if not files.exists(path):
        return []
    return files.read_json(path, "the results")["runs"]


def _checked(
    rows: Sequence[dict[str, Any]], path: str, commit: Optional[str]
) -> Runs:
    table = pandas.DataFrame(rows, columns=MEMBERS)
    of_bert = table[table.method != BASELINE]
    for key in ("bert", "commit"):
        expected = [commit] if key == "commit" and commit else []
        _check_one(path, f"the {key}s", [*of_bert[key].dropna(), *expected])
    for (task, _), group in table.groupby(["task", "variant"]):
        conditions: dict[str, list[str]] = collections.defaultdict(list)
        for of_run in group.conditions.dropna():
            for key, value in of_run.items():
                conditions[key].append(json.dumps(value))
        for key, values in conditions.items():
            _check_one(path, f"{task} whose {key} is", values)
    return table


def _check_one(path: str, what: str, values: Iterable[str]) -> None:
    values = sorted(set(values))
    if len(values) > 1:
        raise UserError(
            f"{path} has rows of {what} {' and '.join(values)}, expected one "
            "in a table; choose another OUT"
        )


def print_missing(path: str, commit: str) -> None:
    """Prints runs on stdin without a row, and to stderr how long they take."""
    rows = read_results(path, commit)
    names = sys.stdin.read().splitlines()
    missing = [name for name in names if name not in set(rows.run)]
    print("\n".join(missing))
    # Seconds an epoch, of each task and method.
    dev = rows[rows.split == "dev"]
    rates = (dev.seconds / dev.epochs).groupby([dev.task, dev.method]).mean()
    hours = []
    for name in missing:
        parts = NAME.fullmatch(name)
        rate = rates.get((parts["task"], parts["method"]), np.nan)
        hours.append(rate * float(parts["epochs"]) / 3600)
    unknown = np.isnan(hours).sum()
    if missing:
        more = f"; {unknown} of kinds that were not run yet" if unknown else ""
        print(
            f"{len(missing)} of {len(names)} runs are missing: about "
            f"{np.nansum(hours):.1f} hours{more}",
            file=sys.stderr,
        )


def collect(path: str, place: str, commit: str) -> None:
    """Adds the rows of finished runs below a folder to a results file."""
    rows, folder = _read_rows(path), pathlib.Path(place)
    present = {row["run"] for row in rows}
    for done in collect_runs.find_files(folder / "runs", "done"):
        name = str(done.parent.relative_to(folder / "runs"))
        if name not in present:
            rows += _rows_of(name, done.parent, folder / "data", commit)
    for record in collect_runs.find_files(folder, baselines.BASELINE_FILE):
        task = record.parent.name
        name = f"{task}/{BASELINE}"
        if name not in present:
            baseline = baselines.read_baseline(record.parent)
            scores = baseline["scores"]
            metric = collect_runs.main_score(task, scores)
            rows.append(
                {
                    "run": name,
                    "task": task,
                    "method": BASELINE,
                    "variant": "",
                    "split": "test",
                    "metric": metric,
                    "score": scores[metric],
                    "trained": 0,
                    "commit": commit,
                    "conditions": {"examples": baseline["examples"]},
                    "processor": cpu_cores.name(),
                }
            )
    _checked(rows, path, commit)
    files.write_json(path, {"runs": rows})


def _rows_of(
    name: str, folder: pathlib.Path, data: pathlib.Path, commit: str
) -> list[dict[str, Any]]:
    parts, run = NAME.fullmatch(name), collect_runs.read_run(folder)
    if parts is None or run is None:
        raise UserError(
            f"{folder} is marked as finished, but has no scores of its last "
            "step; delete the folder and start the script again"
        )
    task = parts["task"]
    metric = collect_runs.main_score(task, run["scores"])
    conditions = json.loads(run["conditions"])
    conditions = {x: y for x, y in conditions.items() if x not in TUNED}
    conditions["dev_data"] = json.loads(run["dev data"])
    row = {
        "run": name,
        "task": task,
        "method": run["kind"],
        **{x: run[x] for x in ("size", "scale", "rate", "epochs", "seed")},
        "variant": parts["variant"] or "",
        "split": "dev",
        "metric": metric,
        "score": run["scores"][metric],
        "seconds": run["cost"]["seconds"] if run["cost"] else None,
        "trained": run["kept"],
        "commit": commit,
        "bert": f"{run['bert']} parameters, {run['BERT'][:12]}",
        "conditions": conditions,
        "processor": run["processor"],
    }
    report = data / task / REPORT
    if not report.exists():
        return [row]
    rows = read_report(task, report)
    path = str(folder / "test_predictions.tsv")
    column = "prediction" if task.lower() in TASKS else "label"
    answers = tables.read_rows(path, tables.Layout(column))
    if len(answers) != len(rows):
        raise UserError(
            f"{path} has {len(answers)} predictions, expected {len(rows)}, one "
            f"for each row of {report}; delete the run's folder"
        )
    labels, numbers = _numbers(task, rows.label, answers.text_a)
    score = 100 * metrics.METRICS[metric](labels, numbers)
    tested = {"split": "test", "score": score, "answers": numbers.tolist()}
    return [row, {**row, **tested}]


def _numbers(name: str, *columns: Sequence[str]) -> list[np.ndarray]:
    task = TASKS.get(name.lower())
    if isinstance(task, TextRegression):
        return [np.array(column, float) for column in columns]
    labels = task.labels if task else sorted(set().union(*columns))
    places = {label: place for place, label in enumerate(labels)}
    return [np.array([places[x] for x in column]) for column in columns]


def read_report(name: str, report: pathlib.Path) -> tables.Rows:
    """Reads the labelled rows of a task to report."""
    task = TASKS.get(name.lower())
    return tables.read_rows(str(report), task.labelled if task else CUSTOM)


def seeds_of(rows: Runs, members: list[str], split: str = "dev") -> Runs:
    """Chooses a setting for each combination of members; its rows of a split.

    It has the first seed's best dev score; of equal ones the smallest size.
    """
    dev = rows[rows.split == "dev"]
    groups = dev.groupby(members, dropna=False, sort=False)
    first = dev[dev.seed == groups.seed.transform("min")]
    # The file's order tells when runs were collected.
    ordered = first.sort_values(["size", "run"])
    groups = ordered.groupby(members, dropna=False, sort=False)
    chosen = first.loc[sorted(groups.score.idxmax()), SETTING]
    return chosen.merge(rows[rows.split == split], on=SETTING)


def points_of(rows: Runs, members: list[str], split: str = "dev") -> Runs:
    """Averages what `seeds_of` chooses over its seeds.

    Columns are a row's, `mean score`, `error score`, and `seeds`, their number.
    """
    seeds = seeds_of(rows, members, split)
    groups = seeds.groupby(members, dropna=False, sort=False, as_index=False)
    shown = [x for x in (*SETTING, "trained", "run") if x not in members]
    return groups.agg(
        **{x: (x, "first") for x in shown},
        **{"mean score": ("score", "mean"), "error score": ("score", "sem")},
        seeds=("score", "size"),
    )


def _tested(rows: Runs, method: str, size: Optional[int] = None) -> Runs:
    rows = rows[(rows.method == method) & (rows.variant == "")]
    if method == BASELINE:
        return rows.set_index("task").rename(columns={"score": "mean score"})
    rows = rows[rows["size"] == size] if size else rows
    return points_of(rows, ["task"], "test").set_index("task")


def _cells(points: Points, tasks: Sequence[str]) -> list[str]:
    return [show_score(x, "score") for _, x in points.reindex(tasks).iterrows()]


def _mean(means: pandas.Series) -> str:
    mean = means.mean(skipna=False)
    return "-" if np.isnan(mean) else f"{mean:.1f}"


def _error(error: float) -> str:
    # One seed has none.
    return "-" if np.isnan(error) else f"{error:g}"


def table_1(rows: Runs, picture: pathlib.Path, published: Any) -> Table:
    """Makes Table 1, with the interval of adapters less full fine-tuning."""
    tasks = list(rows.task.unique())
    if rows.seed.nunique() == 1:
        raise UserError(
            "the results are of one seed, expected two or more for the "
            "interval of the difference"
        )
    lines = [["", *tasks, "mean"]]
    for (method, size), title in METHODS.items():
        points = _tested(rows, method, size).reindex(tasks)
        if points.seeds.any():
            mean = _mean(points["mean score"])
            lines.append([title, *_cells(points, tasks), mean])
    for title, scores in published.items():
        means = pandas.Series(scores, tasks, float)
        cells = means.map("{:.1f}".format).where(means.notna(), "-")
        title = f"{title} (paper, BERT-large, test)"
        lines.append([title, *cells, _mean(means)])
    draws = {}
    for number, task in enumerate(tasks):
        same = rows[(rows.task == task) & (rows.variant == "")]
        both = [
            seeds_of(same[same.method == method], ["task"], "test")
            for method in ("houlsby", "full")
        ]
        if all(len(x) > 1 for x in both):
            report = picture.parent / "data" / task / REPORT
            [labels] = _numbers(task, read_report(task, report).label)
            metric = both[0].metric[0]
            for run in pandas.concat(both).to_dict("records"):
                answers = np.array(run["answers"])
                if len(answers) != len(labels) or not np.isclose(
                    100 * metrics.METRICS[metric](labels, answers), run["score"]
                ):
                    raise UserError(
                        f"{report} has other rows than {run['run']} answered; "
                        "choose another OUT, the DATA of these runs, or their "
                        f"commit, {run['commit']}"
                    )
            compared = difference.compare(
                metric,
                labels,
                *(np.array(x.answers.tolist()) for x in both),
                seed=difference.DRAW_SEED + number,
            )
            draws[task] = compared.difference, compared.draws
    if len(draws) == len(tasks):
        draws["mean"] = [np.mean(x, axis=0) for x in zip(*draws.values())]
    cells = dict.fromkeys((*tasks, "mean"), "-")
    for task, (value, drawn) in draws.items():
        low, high = difference.interval(drawn)
        verdict = difference.verdict((low, high))
        cells[task] = f"{value:+.1f} ({low:+.1f} to {high:+.1f}), {verdict}"
    claim = f"within {difference.CLAIM} points of full fine-tuning"
    lines.append([claim, *cells.values()])
    return lines


def table_2(rows: Runs, picture: pathlib.Path, published: Any) -> Table:
    """Makes Table 2; a task where no method beats the baseline has a star."""
    columns = {
        BASELINE: BASELINE,
        "full": "full fine-tuning",
        "top_layers": "variable",
        "houlsby": "adapters",
    }
    paper = [f"{title} (paper)" for title in columns.values()]
    lines = [["", *columns.values(), *paper]]
    points = [_tested(rows, method) for method in columns]
    for task in rows.task.unique():
        baseline, *others = (x["mean score"].get(task) for x in points)
        best = max(filter(None, others), default=np.inf)
        star = " *" if best <= (baseline or 0) else ""
        cells = (_cells(x, [task])[0] for x in points)
        theirs = published.get(task, ["-"] * len(columns))
        lines.append([task + star, *cells, *map(str, theirs)])
    return lines


def scores_over(
    members: list[str],
    x: str,
    rows: Runs,
    picture: pathlib.Path,
    published: Any,
) -> Table:
    """Draws a panel for each task, and lists its points.

    Args:
        members: of rows that tell points apart, besides x.
        x: the member that is drawn from left to right.
        rows: of the results.
        picture: its path.
        published: the paper's scores by task, then by method and size.
    """
    points = points_of(rows, members if x == "trained" else [*members, x])
    points = points.sort_values(x, kind="stable")
    lines = [[*members, x, "score", "error", "seeds", "paper"]]
    for row in points.to_dict("records"):
        size = row["size"]
        row["size"] = "-" if pandas.isna(size) else f"{size:.0f}"
        name = f"{row['method']} {row['size']}".removesuffix(" -")
        cells = [
            f"{row[x]:.10g}",
            f"{row['mean score']:g}",
            _error(row["error score"]),
            str(row["seeds"]),
            str(published.get(row["task"], {}).get(name, "-")),
        ]
        lines.append([*(row[name] for name in members), *cells])
    kinds = points.method.replace(TITLES)
    error = points["error score"].fillna(0)
    _draw(
        points.assign(
            panel=points.task,
            label=kinds.where(
                points.variant == "", kinds + ", " + points.variant
            ),
            x=points[x],
            y=points["mean score"],
            less=error,
            more=error,
        ),
        picture,
        AXES[x],
        "dev score",
    )
    return lines


def figure_6(rows: Runs, picture: pathlib.Path, published: Any) -> Table:
    """Makes Figure 6: deviations of first values, and spans of layers."""
    # It loads what draws.
    from adapter_bert.commands import plot

    folder = picture.parent
    lines = scores_over(CURVE, "scale", rows, picture, published)
    spans = []
    # Other settings may have been the best before.
    best = seeds_of(rows[rows.scale == 1e-2], ["task"])
    for task, runs in best.groupby("task").run:
        ablations = plot.read_ablations(
            str(folder / "ablation" / x) for x in runs
        )
        for grid, whole, _ in ablations.values():
            spans += [
                (task, f"without layers {first}-{last}", score - whole)
                for (first, last), score in np.ndenumerate(grid)
                if not np.isnan(score)
            ]
        content = plot.render("spans", plot.draw_ablations, ablations)
        for name, image in content.items():
            files.write_bytes(str(folder / f"{task}_{name}"), image)
    lost = pandas.DataFrame(spans, columns=["task", "span", "lost"])
    lost = lost.groupby(["task", "span"], sort=False).lost
    numbers = lost.agg(["mean", "sem", "size"])
    for (task, span), mean, error, count in numbers.itertuples():
        cells = [f"{mean:+g}", _error(error), str(count), "-"]
        lines.append([task, span, "", "-", *cells])
    return lines


def trade_off(rows: Runs, picture: pathlib.Path, published: Any) -> Table:
    """Draws points against full fine-tuning, percentiles over tasks.

    A task without full fine-tuning is left out, and so is a method and size
    that some other task of a panel lacks.
    """
    points = points_of(rows, POINT).sort_values("trained", kind="stable")
    is_glue = points.task.str.lower().isin(collect_runs.GLUE)
    points["panel"] = np.where(is_glue, "GLUE", "other tasks")
    full = points[points.method == "full"].set_index("task")
    points = points[points.task.isin(full.index)].copy()
    points["gain"] = points["mean score"] - points.task.map(full["mean score"])
    lines = [["tasks", "method", "size", "trained", "20%", "50%", "80%"]]
    shown = []
    for (panel, method, size), same in points.groupby(
        ["panel", "method", "size"], dropna=False, sort=False
    ):
        if set(same.task) != set(points.task[points.panel == panel]):
            continue
        gains = low, middle, high = np.percentile(same.gain, (20, 50, 80))
        trained, label = same.trained.median(), TITLES.get(method, method)
        shown.append(
            (panel, label, trained, middle, middle - low, high - middle)
        )
        size = "-" if pandas.isna(size) else f"{size:.0f}"
        cells = [f"{panel} ({len(same)})", method, size, f"{trained:.10g}"]
        lines.append([*cells, *map("{:+.1f}".format, gains)])
    if not shown:
        raise UserError("no task has a run of full fine-tuning to compare with")
    lines[1:] = sorted(lines[1:], key=lambda line: line[0][0] != "G")
    columns = ["panel", "label", "x", "y", "less", "more"]
    label = "trained parameters of a task"
    points = pandas.DataFrame(shown, columns=columns)
    _draw(points, picture, label, "points against full fine-tuning")
    return lines


def section_3_6(rows: Runs, picture: pathlib.Path, published: Any) -> Table:
    """Makes a table of section 3.6: sizes and variants of adapters.

    Means are over the tasks that all kinds have. The last column is the paper's
    mean accuracy over eight tasks of GLUE.
    """
    tasks = list(rows.task.unique())
    points = points_of(rows, POINT)
    points["kind"] = [
        f"{method}, size {None if pandas.isna(size) else int(size)}"
        for method, size in zip(points.method, points["size"])
    ]
    means = points.pivot(index="kind", columns="task", values="mean score")
    shared = means.loc[points.kind.unique()].dropna(axis="columns")
    lines = [["", *tasks, "mean", "paper"]]
    for kind, same in points.groupby("kind", sort=False):
        mean = "-"
        if len(shared.columns):
            mean = f"{shared.loc[kind].mean():.1f} of {len(shared.columns)}"
        cells = _cells(same.set_index("task"), tasks)
        lines.append([kind, *cells, mean, str(published.get(kind, "-"))])
    if len(shared.columns):
        panel = f"mean of {len(shared.columns)} tasks"
        compared = pandas.DataFrame(
            {
                "panel": panel,
                "label": shared.index,
                "less": 0,
                "more": 0,
                "x": np.arange(len(shared)) + 1,
                "y": [*shared.mean(axis=1)],
            }
        )
        _draw(compared, picture, "kind of adapter", "dev score", scale="linear")
    return lines


def _draw(
    points: Points,
    picture: pathlib.Path,
    x_label: str,
    y_label: str,
    scale: str = "log",
) -> None:
    from matplotlib.figure import Figure

    titles = points.panel.nunique()
    figure = Figure(figsize=(4 * titles, 3.5), layout="constrained")
    panels = figure.subplots(1, titles, squeeze=False)[0]
    for panel, (title, in_panel) in zip(panels, points.groupby("panel")):
        for label, line in in_panel.groupby("label"):
            style = "--" if "bias_correction" in label else "-"
            x, y, *errors = line[["x", "y", "less", "more"]].T.values.tolist()
            panel.errorbar(x, y, errors, label=label, ls=style, marker="o")
        panel.set(title=title, xscale=scale, xlabel=x_label)
        panel.legend(fontsize="small")
    panels[0].set_ylabel(y_label)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    files.write_bytes(str(picture), content.getvalue())


# Functions of rows, the picture's path and the paper's numbers.
STUDIES = {
    "table_1": table_1,
    "table_2": table_2,
    "figure_1": trade_off,
    "figure_3": trade_off,
    "figure_4": functools.partial(scores_over, POINT, "trained"),
    "figure_5": functools.partial(scores_over, POINT, "trained"),
    "figure_6": figure_6,
    "figure_7": functools.partial(scores_over, CURVE, "rate"),
    "section_3_6": section_3_6,
}


def show(study: str, path: str) -> None:
    """Prints a study as a table, and writes it as TSV next to its results."""
    if study not in STUDIES:
        raise UserError(f"{study!r}, expected one of {', '.join(STUDIES)}")
    folder = pathlib.Path(path).parent
    published = files.read_json(str(PUBLISHED), "the paper's numbers")
    rows = read_results(path)
    if rows.empty:
        raise UserError(f"{path} has no run, expected finished ones")
    picture = folder / f"{study}.png"
    lines = STUDIES[study](rows, picture, published.get(study, {}))
    text = "".join("\t".join(line) + "\n" for line in lines)
    files.write_text(str(folder / f"{study}.tsv"), text)
    header, *others = (f"| {' | '.join(line)} |" for line in lines)
    print(header, "|" + " --- |" * len(lines[0]), *others, sep="\n")


def print_best(path: str, *words: str) -> None:
    """Prints chosen settings, each a line of variables with tabs between."""
    rows = read_results(path)
    rows = rows[(rows.method != BASELINE) & (rows.variant == "")]
    kinds = {"size": int, "scale": float}
    for word in {*words} - {"each"}:
        key, _, value = word.partition("=")
        if key not in MEMBERS:
            raise UserError(
                f"{word!r}, expected each or NAME=VALUE, a name of "
                f"{', '.join(MEMBERS)}"
            )
        rows = rows[rows[key] == kinds.get(key, str)(value)]
    members = [*POINT, "scale"] if "each" in words else ["variant"]
    for name in points_of(rows, members).run:
        parts = NAME.fullmatch(name)
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


# Functions and the names of their words, by step.
STEPS = {
    "divide": (divide, "TASK FOLDER NEW_FOLDER SEED"),
    "missing": (print_missing, "RESULTS COMMIT"),
    "collect": (collect, "RESULTS FOLDER COMMIT"),
    "best": (print_best, "RESULTS"),
    "show": (show, "STUDY RESULTS"),
}


def main() -> None:
    """Does one of the steps."""
    step, *words = sys.argv[1:] or [""]
    function, names = STEPS.get(step, (None, ""))
    more = len(words) - len(names.split())
    if not function or more < 0 or (more and step != "best"):
        raise UserError(
            f"adapter-bert paper {step} takes {names or ' or '.join(STEPS)}"
        )
    function(*words)
