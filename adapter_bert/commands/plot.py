"""Figures of a sweep's scores, in the forms of Houlsby et al. 2019.

    .venv/bin/adapter-bert plot RUNS... --output_dir=OUT

Each figure for which there are runs below the folders is drawn, as .png and
.svg:

    trade_off     points of accuracy (of tasks that have none, of their score)
                  against full fine-tuning over a task's parameters, 20th, 50th
                  and 80th percentile over tasks, of adapters, the top layers
                  and others, GLUE (but WNLI) apart from other tasks (Figures 1
                  and 3)
    per_task      scores with standard errors, a panel for each task (Figure 4)
    squad         F1 over a task's parameters (Figure 5)
    ablation      scores with the adapters of a span of layers taken out, from
                  what scripts/ablate.sh wrote (Figure 6, left and middle);
                  as numbers in ablation_scores.json
    init_scale    scores over the initial scale of adapters (Figure 6, right)

A point is the learning rate and number of epochs with the best mean score over
seeds, for each task, method and size. Only settings with the most seeds are
compared. The first figure leaves out a size that a task of its method lacks.
"""

import io
import itertools
import math
import pathlib
import re
from collections.abc import Iterable
from typing import Any, Callable

import adapter_bert.start_tensorflow  # noqa: F401

import matplotlib
import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from adapter_bert import files
from adapter_bert.errors import UserError
from adapter_bert.reports.collect_runs import (
    GLUE,
    OMITTED,
    SQUAD,
    TITLES,
    Output,
    check_one_bert,
    choose,
    find_files,
    find_runs,
    notice,
    of_usual_scale,
    read_arguments,
    replace_results,
    settings_of,
)

# By name: scores by [first, last], the whole adapter's score, the score's name.
Ablations = dict[str, tuple[np.ndarray, float, str]]
# Colours of Okabe and Ito, which differ in lightness too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
LINE_STYLES = ("-", "--", "-.", ":")
STYLES = {
    "houlsby": {"color": "#0072B2", "marker": "o", "ls": "-"},
    "top_layers": {"color": "#E69F00", "marker": "s", "ls": "--"},
    "full": {"color": "black", "marker": "*", "ls": ":"},
    "layernorm": {"color": "#CC79A7", "marker": "D", "ls": ""},
}
PERCENTILES = (20, 50, 80)


def styles(settings: pandas.DataFrame) -> dict[str, dict]:
    """Returns the style and label of every kind of tuning."""
    kinds = set(settings.kind)
    styles = {
        kind: {**STYLES[kind], "label": TITLES[kind]}
        for kind in STYLES
        if kind in kinds
    }
    others = sorted(kinds - set(STYLES))
    looks = zip(itertools.cycle(COLOURS[2:]), itertools.cycle("^vPX<>d"))
    for kind, (colour, marker) in zip(others, looks):
        styles[kind] = dict(color=colour, marker=marker, ls="-.", label=kind)
    return styles


def gaps(settings: pandas.DataFrame) -> pandas.DataFrame:
    """Compares sizes with full fine-tuning, over the tasks that have both.

    Returns:
        A row for each kind and size that all tasks of the kind have, in the
        order of their parameters. Columns are `kind`, `title`, `share`,
        parameters in percent of BERT, `tasks`, their number, and `low`,
        `middle` and `high`, percentiles of points.
    """
    points = []
    for _, same in settings.groupby("task"):
        accuracies = same.get("mean accuracy", pandas.Series([np.nan]))
        score = same.main.iloc[0] if accuracies.isna().any() else "accuracy"
        chosen = choose(of_usual_scale(same), "title", score)
        scores = chosen[f"mean {score}"]
        full = scores[chosen.kind == "full"].max()
        points.append(
            chosen.assign(
                gap=scores - full, share=100 * chosen.kept / chosen.bert
            )
        )
    points = pandas.concat(points).dropna(subset="gap")
    points = points[points.kind != "full"]
    sizes = points.groupby(["kind", "title"]).agg(
        share=("share", "mean"),
        tasks=("task", "nunique"),
        **{
            name: ("gap", lambda x, q=q: np.percentile(x, q))
            for name, q in zip(("low", "middle", "high"), PERCENTILES)
        },
    )
    tasks = (
        points.groupby("kind").task.nunique().reindex(sizes.index, level="kind")
    )
    left = sorted(sizes.index[sizes.tasks < tasks].get_level_values("title"))
    if left:
        names = ", ".join(left)
        notice(f"left out of trade_off, since not all tasks have it: {names}")
    return sizes[sizes.tasks == tasks].reset_index().sort_values("share")


def draw_gaps(
    axes: Axes, points: pandas.DataFrame, all_styles: dict[str, dict]
) -> None:
    """Draws one panel of Figures 1 and 3."""
    for kind, style in all_styles.items():
        line = points[points.kind == kind]
        if line.empty:
            continue
        label = f"{style['label']} ({line.tasks.iloc[0]} tasks)"
        axes.plot(line.share, line.middle, **{**style, "label": label})
        axes.fill_between(
            line.share,
            line.low,
            line.high,
            color=style["color"],
            alpha=0.2,
            lw=0,
        )
        for edge in (line.low, line.high):
            axes.plot(
                line.share, edge, color=style["color"], ls=style["ls"], lw=0.6
            )
    axes.axhline(0, color="black", lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize="small")


def draw_trade_off(figure: Figure, settings: pandas.DataFrame) -> bool:
    """Draws Figures 1 and 3; False if no task has both methods to compare."""
    parts = {}
    for title, tasks in (
        ("GLUE", GLUE - {OMITTED}),
        ("other tasks", set(settings.task) - GLUE - set(SQUAD)),
    ):
        part = settings[settings.task.isin(tasks)]
        if len(part) and len(points := gaps(part)):
            check_one_bert(part)
            parts[title] = points
    if not parts:
        return False
    figure.set_size_inches(6 * len(parts) + 0.4, 4.2)
    panels = figure.subplots(1, len(parts), squeeze=False)[0]
    for axes, (title, points) in zip(panels, parts.items()):
        draw_gaps(axes, points, styles(settings))
        axes.set_title(title)
    figure.suptitle("20th, 50th and 80th percentile of tasks")
    figure.supxlabel("parameters of a task, % of BERT")
    figure.supylabel("points against full fine-tuning")
    return True


def draw_scores(axes: Axes, settings: pandas.DataFrame, task: str) -> None:
    """Draws a task's scores over its parameters, with standard errors."""
    of_task = settings[settings.task == task]
    score = of_task.main.iloc[0]
    chosen = choose(of_usual_scale(of_task), "title").sort_values(
        "kept", kind="stable"
    )
    for kind, style in styles(settings).items():
        line = chosen[chosen.kind == kind]
        if line.empty:
            continue
        means = line[f"mean {score}"]
        if kind == "full":
            axes.axhline(means.iloc[0], color=style["color"], ls=":", lw=0.8)
        axes.errorbar(
            line.kept, means, line[f"error {score}"], capsize=3, **style
        )
    axes.set_xscale("log")
    axes.set_title(f"{task}: {score}")


def draw_per_task(figure: Figure, settings: pandas.DataFrame) -> bool:
    """Draws Figure 4; False without a task."""
    tasks = [task for task in settings.task.unique() if task not in SQUAD]
    if not tasks:
        return False
    columns = min(4, math.ceil(math.sqrt(len(tasks))))
    rows = -(-len(tasks) // columns)
    figure.set_size_inches(3.4 * columns + 0.4, 3 * rows + 0.4)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    # Panels may lack kinds.
    handles = {}
    for axes, task in itertools.zip_longest(panels, tasks):
        if task is None:
            axes.remove()
        else:
            draw_scores(axes, settings, task)
            handles.update(zip(*axes.get_legend_handles_labels()[::-1]))
    figure.legend(
        handles.values(), handles, fontsize="small", loc="outside right upper"
    )
    figure.supxlabel("parameters of the task")
    figure.supylabel("score")
    return True


def draw_squad(figure: Figure, settings: pandas.DataFrame) -> bool:
    """Draws Figure 5; False without SQuAD."""
    tasks = [task for task in SQUAD if task in set(settings.task)]
    if not tasks:
        return False
    figure.set_size_inches(6 * len(tasks) + 0.4, 4.2)
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, task in zip(panels, tasks):
        draw_scores(axes, settings, task)
        axes.legend(fontsize="small")
    figure.supxlabel("parameters of the task")
    figure.supylabel("F1")
    return True


def draw_init_scale(figure: Figure, runs: pandas.DataFrame) -> bool:
    """Draws Figure 6, right; False unless a task has several scales."""
    axes = figure.subplots()
    looks = zip(*map(itertools.cycle, (COLOURS, "osD^vP*X", LINE_STYLES)))
    adapters = runs[runs.family == "houlsby"]
    for task, of_task in adapters.groupby("task", sort=False):
        mean = f"mean {of_task.main.iloc[0]}"
        # Scales of one size, under the same conditions: the longest sweep, of
        # these the one with the best mean.
        sweeps = [
            same
            for _, same in of_task.groupby(
                ["kind", "size", "conditions"], sort=False
            )
        ]
        chosen = max(
            sweeps,
            key=lambda x: (x.scale.nunique(), settings_of(x)[mean].mean()),
        )
        scales = chosen.scale.nunique()
        if scales < 2:
            continue
        # Of seeds that all of them have, if any.
        counts = chosen.groupby("seed").scale.nunique()
        shared = counts.index[counts == scales]
        if shared.empty:
            notice(f"{task}: no seed was run with every initial scale")
        else:
            chosen = chosen[chosen.seed.isin(shared)]
        line = settings_of(chosen).sort_values("scale")
        first = line.iloc[0]
        colour, marker, style = next(looks)
        axes.errorbar(
            line.scale,
            line[mean],
            line[f"error {first.main}"],
            label=f"{task} ({first.main}), size {first['size']:g}, rate "
            f"{first.rate:g}, {first.epochs:g} epochs",
            color=colour,
            marker=marker,
            ls=style,
            capsize=3,
        )
    if not axes.has_data():
        return False
    axes.set_xscale("log")
    axes.set_xlabel("standard deviation of the adapters' first values")
    axes.set_ylabel("score")
    axes.legend()
    return True


# Members of `ablation.json`, as `files.read_object` takes them.
ABLATION = {"name": str, "task": str, "score": str, "layers": int}


def read_ablations(folders: Iterable[str]) -> Ablations:
    """Returns the ablations that scripts/ablate.sh wrote below some folders."""
    ablations: Ablations = {}
    paths: dict[pathlib.Path, pathlib.Path] = {}
    for folder in map(pathlib.Path, folders):
        for path in find_files(folder, "ablation.json"):
            # Folders may overlap.
            paths.setdefault(path.resolve(), path)
    for path in paths.values():
        about = files.read_object(str(path), "the ablation", ABLATION)
        layers, score = about["layers"], about["score"]
        scale = 1 if about["task"] == "squad" else 100
        key = f"eval_{score}"
        scores, rows = {}, set()
        for run in path.parent.glob("runs/*/eval_results.json"):
            results = files.read_object(
                str(run), "a run's scores", {key: float, "dev_data?": dict}
            )
            scores[run.parent.name] = scale * results[key]
            rows.add(str(results.get("dev_data")))
        if len(rows) > 1:
            raise UserError(
                f"the runs of {path.parent} were scored on different dev rows; "
                "evaluate all of them again in another OUTPUT_DIR"
            )
        if "none" not in scores:
            notice(f"{path.parent} has no score yet")
            continue
        grid = np.full((layers, layers), np.nan)
        for run, value in scores.items():
            match = re.fullmatch(r"layers(\d+)-(\d+)", run)
            if match:
                grid[tuple(map(int, match.groups()))] = value
        spans = layers * (layers + 1) // 2
        missing = spans - np.count_nonzero(~np.isnan(grid))
        if missing:
            notice(f"{path.parent} lacks {missing} of {spans} spans")
        if missing == spans:
            continue
        name = about["name"]
        if name in ablations:
            name = f"{name} ({path.parent})"
        ablations[name] = grid, scores["none"], score
    return ablations


def draw_ablations(figure: Figure, ablations: Ablations) -> bool:
    """Draws Figure 6, left and middle: lost points; False without ablations."""
    if not ablations:
        return False
    figure.set_size_inches(4.6 * len(ablations), 4.4)
    panels = figure.subplots(1, len(ablations), squeeze=False)[0]
    for axes, (name, (grid, whole, score)) in zip(panels, ablations.items()):
        # As many as fit into a cell. Adding 0.0 turns -0.0 into 0.0.
        decimals = 1 if len(grid) <= 12 else 0
        lost = np.round(grid - whole, decimals) + 0.0
        image = axes.imshow(lost, cmap="cividis", origin="upper")
        middle = (np.nanmin(lost) + np.nanmax(lost)) / 2
        for (first, last), value in np.ndenumerate(lost):
            if not np.isnan(value):
                axes.text(
                    last,
                    first,
                    f"{value:.{decimals}f}",
                    ha="center",
                    va="center",
                    fontsize=min(9, 70 / len(lost)),
                    color="white" if value < middle else "black",
                )
        axes.set_title(f"{name}: {score} {whole:.1f} with all")
        axes.set_xlabel("last layer without adapters")
        axes.set_ylabel("first layer without adapters")
        figure.colorbar(image, ax=axes, shrink=0.8, label="points")
    return True


def ablations_json(ablations: Ablations) -> dict[str, dict]:
    """Scores with all adapters, and without those of layers "first-last"."""
    return {
        name: {
            "score": score,
            "all": round(whole, 4),
            "without": {
                f"{first}-{last}": round(value, 4)
                for (first, last), value in np.ndenumerate(grid)
                if not np.isnan(value)
            },
        }
        for name, (grid, whole, score) in ablations.items()
    }


def render(
    name: str, draw: Callable[[Figure, Any], bool], drawn: Any
) -> dict[str, bytes]:
    """Writes a figure as PNG and SVG, by file name; {} if there is none."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    if not draw(figure, drawn):
        return {}
    contents = {}
    for kind in ("png", "svg"):
        # Equal runs give equal bytes.
        metadata = {"Date": None} if kind == "svg" else {}
        image = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": name}):
            figure.savefig(image, format=kind, dpi=130, metadata=metadata)
        contents[f"{name}.{kind}"] = image.getvalue()
    return contents


def main() -> None:
    """Draws all figures that the runs allow, and deletes its earlier ones."""
    options, folders = read_arguments(Output, __doc__)
    output = options.output_dir
    ablations = read_ablations(folders)
    trainings = [f for f in folders if find_files(pathlib.Path(f), "run.json")]
    if not (ablations or trainings):
        raise UserError(f"no run in {', '.join(folders)}")
    contents = {}
    if trainings:
        runs = find_runs(trainings)
        settings = settings_of(runs)
        contents = {
            **render("trade_off", draw_trade_off, settings),
            **render("per_task", draw_per_task, settings),
            **render("squad", draw_squad, settings),
            **render("init_scale", draw_init_scale, runs),
        }
    if ablations:
        contents.update(render("ablation", draw_ablations, ablations))
        numbers = files.json_text(ablations_json(ablations))
        contents["ablation_scores.json"] = numbers.encode()
    replace_results(output, "plot", contents)
    print("\n".join(str(pathlib.Path(output) / name) for name in contents))
