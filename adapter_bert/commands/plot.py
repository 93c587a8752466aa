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

import dataclasses
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
    SeedGroup,
    best,
    by_kind,
    by_method,
    check_one_bert,
    find_files,
    find_runs,
    group_by_task,
    kind_of,
    main_score,
    notice,
    replace_results,
    runs_parser,
    text_of,
)

ByTask = dict[str, list[SeedGroup]]
# By size: shares of BERT's parameters and points, an entry for each task.
Gaps = dict[str, tuple[list[float], list[float]]]
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


def styles(by_task: ByTask) -> dict[str, dict]:
    """Returns the style and label of every kind of tuning."""
    kinds = {kind_of(s.method) for same in by_task.values() for s in same}
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


def best_by_size(
    seed_groups: Iterable[SeedGroup], score: str
) -> list[SeedGroup]:
    """Returns the best setting of each method with its size, smallest first."""
    chosen = [best(same, score) for same in by_method(seed_groups).values()]
    return sorted(filter(None, chosen), key=lambda s: s.runs[0].kept)


def gaps(by_task: ByTask, kind: str) -> Gaps:
    """By size: parameters in percent of BERT, and points against full tuning.

    The lists have an entry for each task with both. Only sizes that all of
    these tasks have, in the order of their parameters.
    """
    gaps_by_kind: Gaps = {}
    tasks = 0
    for seed_groups in by_task.values():
        usual = main_score(seed_groups)
        has_accuracy = all("accuracy" in s.runs[0].scores for s in seed_groups)
        score = "accuracy" if has_accuracy else usual
        kinds = by_kind(seed_groups)
        full = best(kinds.get("full", ()), score)
        if full is None:
            continue
        groups = kinds.get(kind, ())
        tasks += bool(groups)
        for seed_group in best_by_size(groups, score):
            method = text_of(seed_group.method)
            shares, values = gaps_by_kind.setdefault(method, ([], []))
            run = seed_group.runs[0]
            shares.append(100 * run.kept / run.bert)
            values.append(seed_group.mean(score) - full.mean(score))
    whole = {k: v for k, v in gaps_by_kind.items() if len(v[1]) == tasks}
    if len(whole) < len(gaps_by_kind):
        left = ", ".join(sorted(set(gaps_by_kind) - set(whole)))
        notice(f"left out of trade_off, since not all tasks have it: {left}")
    return dict(sorted(whole.items(), key=lambda item: np.mean(item[1][0])))


def draw_gaps(
    axes: Axes, points_of: dict[str, Gaps], all_styles: dict[str, dict]
) -> None:
    """One panel of Figures 1 and 3."""
    for kind, points in points_of.items():
        style = all_styles[kind]
        shares, values = zip(*points.values())
        tasks = len(values[0])
        shares = [np.mean(share) for share in shares]
        low, middle, high = np.percentile(values, PERCENTILES, axis=1)
        label = f"{style['label']} ({tasks} tasks)"
        axes.plot(shares, middle, **{**style, "label": label})
        axes.fill_between(
            shares, low, high, color=style["color"], alpha=0.2, lw=0
        )
        for edge in (low, high):
            axes.plot(
                shares, edge, color=style["color"], ls=style["ls"], lw=0.6
            )
    axes.axhline(0, color="black", lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize="small")


def draw_trade_off(figure: Figure, by_task: ByTask) -> bool:
    """Figures 1 and 3; False if no task has both methods to compare."""
    parts = {}
    for title, tasks in (
        ("GLUE", GLUE - {OMITTED}),
        ("other tasks", set(by_task) - GLUE - set(SQUAD)),
    ):
        part = {t: s for t, s in by_task.items() if t in tasks}
        points_by_kind = {k: gaps(part, k) for k in styles(part) if k != "full"}
        points_by_kind = {
            kind: points for kind, points in points_by_kind.items() if points
        }
        if points_by_kind:
            check_one_bert(part)
            parts[title] = points_by_kind
    if not parts:
        return False
    figure.set_size_inches(6 * len(parts) + 0.4, 4.2)
    panels = figure.subplots(1, len(parts), squeeze=False)[0]
    all_styles = styles(by_task)
    for axes, (title, points_by_kind) in zip(panels, parts.items()):
        draw_gaps(axes, points_by_kind, all_styles)
        axes.set_title(title)
    figure.suptitle("20th, 50th and 80th percentile of tasks")
    figure.supxlabel("parameters of a task, % of BERT")
    figure.supylabel("points against full fine-tuning")
    return True


def errors(seed_groups: Iterable[SeedGroup], score: str) -> list[float]:
    """Standard errors; NaN for single seeds, which draws no bar."""
    errors = [seed_group.error(score) for seed_group in seed_groups]
    return [float("nan") if error is None else error for error in errors]


def draw_scores(axes: Axes, by_task: ByTask, task: str, score: str) -> None:
    """A task's scores over its parameters, with standard errors."""
    kinds = by_kind(by_task[task])
    for kind, style in styles(by_task).items():
        chosen = best_by_size(kinds.get(kind, ()), score)
        if not chosen:
            continue
        if kind == "full":
            axes.axhline(
                chosen[0].mean(score), color=style["color"], ls=":", lw=0.8
            )
        axes.errorbar(
            [s.runs[0].kept for s in chosen],
            [s.mean(score) for s in chosen],
            errors(chosen, score),
            capsize=3,
            **style,
        )
    axes.set_xscale("log")
    axes.set_title(f"{task}: {score}")


def draw_per_task(figure: Figure, by_task: ByTask) -> bool:
    """Figure 4; False without a task."""
    tasks = [task for task in by_task if task not in SQUAD]
    if not tasks:
        return False
    columns = min(4, math.ceil(math.sqrt(len(tasks))))
    rows = -(-len(tasks) // columns)
    figure.set_size_inches(3.4 * columns + 0.4, 3 * rows + 0.4)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, task in zip(panels, tasks):
        draw_scores(axes, by_task, task, main_score(by_task[task]))
    for axes in panels[len(tasks) :]:
        axes.remove()
    # Panels may lack kinds.
    handles = {}
    for axes in figure.axes:
        handles.update(zip(*axes.get_legend_handles_labels()[::-1]))
    figure.legend(
        handles.values(), handles, fontsize="small", loc="outside right upper"
    )
    figure.supxlabel("parameters of the task")
    figure.supylabel("score")
    return True


def draw_squad(figure: Figure, by_task: ByTask) -> bool:
    """Figure 5; False without SQuAD."""
    tasks = [task for task in SQUAD if task in by_task]
    if not tasks:
        return False
    figure.set_size_inches(6 * len(tasks) + 0.4, 4.2)
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, task in zip(panels, tasks):
        draw_scores(axes, by_task, task, "f1")
        axes.legend(fontsize="small")
    figure.supxlabel("parameters of the task")
    figure.supylabel("F1")
    return True


def of_shared_seeds(
    seed_groups: dict[float, SeedGroup],
) -> dict[float, SeedGroup]:
    """Returns the groups with only the seeds that all of them have, if any."""
    shared = set.intersection(
        *({run.seed for run in s.runs} for s in seed_groups.values())
    )
    if not shared:
        run = next(iter(seed_groups.values())).runs[0]
        notice(f"{run.task}: no seed was run with every initial scale")
    return {
        key: SeedGroup(
            tuple(r for r in s.runs if r.seed in shared or not shared)
        )
        for key, s in seed_groups.items()
    }


def draw_init_scale(figure: Figure, by_task: ByTask) -> bool:
    """Figure 6, right; False unless a task has several scales."""
    axes = figure.subplots()
    looks = zip(*map(itertools.cycle, (COLOURS, "osD^vP*X", LINE_STYLES)))
    for task, seed_groups in by_task.items():
        score = main_score(seed_groups)
        # Scales of one size, under the same conditions.
        sweeps: dict[tuple, dict[float, SeedGroup]] = {}
        for seed_group in seed_groups:
            if seed_group.method.name == "houlsby":
                same = dataclasses.replace(seed_group.method, init_scale=1.0)
                key = str(same), seed_group.runs[0].conditions
                scales = sweeps.setdefault(key, {})
                scales[seed_group.method.init_scale] = seed_group
        # Of the longest, the one with the best mean.
        chosen = max(
            sweeps.values(),
            key=lambda sweep: (
                len(sweep),
                sum(s.mean(score) for s in sweep.values()) / len(sweep),
            ),
            default={},
        )
        if len(chosen) < 2:
            continue
        colour, marker, line = next(looks)
        chosen = of_shared_seeds(dict(sorted(chosen.items())))
        seed_group = next(iter(chosen.values()))
        size, run = seed_group.method.size, seed_group.runs[0]
        axes.errorbar(
            list(chosen),
            [s.mean(score) for s in chosen.values()],
            errors(chosen.values(), score),
            label=f"{task} ({score}), size {size}, rate {run.rate:g}, "
            f"{run.epochs:g} epochs",
            color=colour,
            marker=marker,
            ls=line,
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
        scores = {
            run.parent.name: scale
            * files.read_object(str(run), "a run's scores", {key: float})[key]
            for run in path.parent.glob("runs/*/eval_results.json")
        }
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
    """Figure 6, left and middle: lost points; False without an ablation."""
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
    """A figure as PNG and SVG by file name; empty if there is none."""
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
    arguments = runs_parser(__doc__, "figures").parse_args()
    folders, output = arguments.runs, arguments.output_dir
    for folder in folders:
        if not pathlib.Path(folder).is_dir():
            raise UserError(f"{folder} is no folder of runs")
    ablations = read_ablations(folders)
    trainings = [f for f in folders if find_files(pathlib.Path(f), "run.json")]
    if not (ablations or trainings):
        raise UserError(f"no run in {', '.join(folders)}")
    by_task = group_by_task(find_runs(trainings)) if trainings else {}
    contents = {
        **render("trade_off", draw_trade_off, by_task),
        **render("per_task", draw_per_task, by_task),
        **render("squad", draw_squad, by_task),
        **render("ablation", draw_ablations, ablations),
        **render("init_scale", draw_init_scale, by_task),
    }
    if ablations:
        numbers = files.json_text(ablations_json(ablations))
        contents["ablation_scores.json"] = numbers.encode()
    replace_results(output, "plot", contents)
    print("\n".join(str(pathlib.Path(output) / name) for name in contents))
