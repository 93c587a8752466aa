"""Figures of what a sweep came to, in the forms of Houlsby et al. 2019.

    python -m scripts.plot RUNS... --output_dir=OUT

Draws what the runs below the folders allow, each as .png and .svg:

    trade_off     accuracy lost against full fine-tuning over trained
                  parameters, 20th, 50th and 80th percentile over tasks, of
                  adapters and of the top layers (Figures 1 and 3)
    per_task      scores with standard errors, a panel for each task (Figure 4)
    squad         F1 over trained parameters (Figure 5)
    ablation      scores with the adapters of a span of layers taken out, from
                  what scripts/ablate.sh wrote (Figure 6, left and middle)
    init_scale    scores over the initial scale of adapters (Figure 6, right)

Of each task, method and size, the learning rate and number of epochs with the
best mean score over seeds is shown.
"""

import argparse
import itertools
import json
import os
import pathlib
import re
import sys
from typing import Callable, Dict, Iterable, List, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import matplotlib  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from scripts.collect_runs import (  # noqa: E402
    Setting,
    best,
    find_runs,
    group,
    main_score,
)

Groups = Dict[str, List[Setting]]
# Colours of Okabe and Ito, which differ in lightness as well; the markers and
# lines differ too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
LINE_STYLES = ("-", "--", "-.", ":")
STYLES = {
    "houlsby": ("adapters", {"color": "#0072B2", "marker": "o", "ls": "-"}),
    "top_layers": (
        "top layers",
        {"color": "#E69F00", "marker": "s", "ls": "--"},
    ),
    "full": ("full fine-tuning", {"color": "black", "marker": "*", "ls": ":"}),
    "layernorm": ("LayerNorms", {"color": "#CC79A7", "marker": "D", "ls": ""}),
}
PERCENTILES = (20, 50, 80)
# Methods that have a size, so that they make a line.
LINES = ("houlsby", "top_layers")


def best_by_size(settings: Iterable[Setting], score: str) -> List[Setting]:
    """The best setting of each method with its size, smallest first."""
    methods: Dict[str, List[Setting]] = {}
    for setting in settings:
        methods.setdefault(str(setting.method), []).append(setting)
    chosen = [best(same, score) for same in methods.values()]
    return sorted(chosen, key=lambda setting: setting.runs[0].trained)


def has_default_start(setting: Setting) -> bool:
    """Whether adapters start as they do by default."""
    return getattr(setting.method, "init_scale", 1e-2) == 1e-2


def gaps(groups: Groups, kind: str) -> Dict[str, Tuple[List, List]]:
    """By size: trained shares in percent, and scores less full fine-tuning's.

    A list has an entry for each task that has both.
    """
    found: Dict[str, Tuple[List, List]] = {}
    for task, settings in groups.items():
        if task == "squad":
            continue
        score = main_score(settings)
        full = best((s for s in settings if s.method.name == "full"), score)
        if full is None:
            continue
        own = [
            s
            for s in settings
            if s.method.name == kind and has_default_start(s)
        ]
        for setting in best_by_size(own, score):
            shares, values = found.setdefault(str(setting.method), ([], []))
            run = setting.runs[0]
            shares.append(100 * run.trained / run.bert)
            values.append(setting.mean(score) - full.mean(score))
    return found


def draw_trade_off(figure: Figure, groups: Groups) -> bool:
    """Figures 1 and 3; False if no task has both methods to compare."""
    axes = figure.subplots()
    tasks = 0
    for kind in LINES:
        points = gaps(groups, kind)
        if not points:
            continue
        tasks = max([tasks, *(len(values) for _, values in points.values())])
        shares = [np.mean(share) for share, _ in points.values()]
        bands = [
            np.percentile(values, PERCENTILES) for _, values in points.values()
        ]
        low, middle, high = np.array(bands).T
        label, style = STYLES[kind]
        axes.plot(shares, middle, label=label, **style)
        axes.fill_between(
            shares, low, high, color=style["color"], alpha=0.2, lw=0
        )
        for edge in (low, high):
            axes.plot(
                shares, edge, color=style["color"], ls=style["ls"], lw=0.6
            )
    if not tasks:
        return False
    axes.axhline(0, color="black", lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.set_xlabel("trained parameters of a task, % of BERT")
    axes.set_ylabel("points against full fine-tuning")
    axes.set_title(f"20th, 50th and 80th percentile of {tasks} tasks")
    axes.legend()
    return True


def draw_scores(
    axes: Axes, settings: List[Setting], score: str, title: str
) -> None:
    """A task's scores over trained parameters, with standard errors."""
    for kind, (label, style) in STYLES.items():
        own = [
            s
            for s in settings
            if s.method.name == kind and has_default_start(s)
        ]
        chosen = best_by_size(own, score)
        if not chosen:
            continue
        if kind == "full":
            axes.axhline(
                chosen[0].mean(score), color=style["color"], ls=":", lw=0.8
            )
        axes.errorbar(
            [s.runs[0].trained for s in chosen],
            [s.mean(score) for s in chosen],
            [s.error(score) or 0 for s in chosen],
            label=label,
            capsize=3,
            **style,
        )
    axes.set_xscale("log")
    axes.set_title(title)


def draw_per_task(figure: Figure, groups: Groups) -> bool:
    """Figure 4; False without a task."""
    tasks = [task for task in groups if task != "squad"]
    if not tasks:
        return False
    columns = min(4, len(tasks))
    rows = -(-len(tasks) // columns)
    figure.set_size_inches(3.4 * columns + 0.4, 3 * rows + 0.4)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, task in zip(panels, tasks):
        score = main_score(groups[task])
        draw_scores(axes, groups[task], score, f"{task}: {score}")
    for axes in panels[len(tasks) :]:
        axes.remove()
    figure.axes[0].legend(fontsize="small")
    figure.supxlabel("trained parameters of the task")
    figure.supylabel("score")
    return True


def draw_squad(figure: Figure, groups: Groups) -> bool:
    """Figure 5; False without SQuAD."""
    if "squad" not in groups:
        return False
    axes = figure.subplots()
    draw_scores(axes, groups["squad"], "f1", "SQuAD")
    axes.set_xlabel("trained parameters")
    axes.set_ylabel("F1")
    axes.legend()
    return True


def draw_init_scale(figure: Figure, groups: Groups) -> bool:
    """Figure 6, right; False unless a task has several scales."""
    axes = figure.subplots()
    colours = itertools.cycle(COLOURS)
    markers, lines = itertools.cycle("osD^vP*X"), itertools.cycle(LINE_STYLES)
    drawn = False
    for task, settings in groups.items():
        score = main_score(settings)
        scales: Dict[float, List[Setting]] = {}
        for setting in settings:
            if setting.method.name == "houlsby":
                scale = setting.method.init_scale
                scales.setdefault(scale, []).append(setting)
        if len(scales) < 2:
            continue
        drawn = True
        # At one size: that which has most scales.
        sizes = [s.method.size for same in scales.values() for s in same]
        size = max(sorted(set(sizes)), key=sizes.count)
        chosen = {
            scale: best((s for s in same if s.method.size == size), score)
            for scale, same in sorted(scales.items())
            if any(s.method.size == size for s in same)
        }
        axes.errorbar(
            list(chosen),
            [s.mean(score) for s in chosen.values()],
            [s.error(score) or 0 for s in chosen.values()],
            label=f"{task} ({score}), size {size}",
            color=next(colours),
            marker=next(markers),
            ls=next(lines),
            capsize=3,
        )
    if not drawn:
        return False
    axes.set_xscale("log")
    axes.set_xlabel("standard deviation of the adapters' first values")
    axes.set_ylabel("score")
    axes.legend()
    return True


def read_ablations(
    folders: Iterable[str],
) -> Dict[str, Tuple[np.ndarray, float, str]]:
    """What ablate.sh wrote: by name, scores [first, last], that of none, and
    the score's name."""
    found = {}
    for folder in map(pathlib.Path, folders):
        for path in sorted(folder.rglob("ablation.json")):
            about = json.loads(path.read_text())
            layers, score = about["layers"], about["score"]
            scale = 1 if about["task"] == "squad" else 100
            grid = np.full((layers, layers), np.nan)

            def read(name: str, runs=path.parent / "runs", s=score, x=scale):
                results = json.loads(
                    (runs / name / "eval_results.json").read_text()
                )
                return x * results[f"eval_{s}"]

            for run in (path.parent / "runs").glob("layers*-*"):
                match = re.fullmatch(r"layers(\d+)-(\d+)", run.name)
                if match and (run / "eval_results.json").exists():
                    first, last = map(int, match.groups())
                    grid[first, last] = read(run.name)
            found[about["name"]] = grid, read("none"), score
    return found


def draw_ablations(
    figure: Figure, ablations: Dict[str, Tuple[np.ndarray, float, str]]
) -> bool:
    """Figure 6, left and middle: points lost; False without an ablation."""
    if not ablations:
        return False
    figure.set_size_inches(4.6 * len(ablations), 4.4)
    panels = figure.subplots(1, len(ablations), squeeze=False)[0]
    for axes, (name, (grid, whole, score)) in zip(panels, ablations.items()):
        lost = grid - whole
        image = axes.imshow(lost, cmap="cividis", origin="upper")
        middle = (np.nanmin(lost) + np.nanmax(lost)) / 2
        for (first, last), value in np.ndenumerate(lost):
            if not np.isnan(value):
                axes.text(
                    last,
                    first,
                    f"{value:.0f}",
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


def save(
    out: pathlib.Path, name: str, draw: Callable[[Figure], bool]
) -> List[str]:
    """Draws a figure and writes it as PNG and SVG, unless there is nothing."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    if not draw(figure):
        return []
    paths = [str(out / f"{name}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        # Nothing in it tells when it was drawn.
        metadata = {"Date": None} if path.endswith("svg") else {}
        with matplotlib.rc_context({"svg.hashsalt": name}):
            figure.savefig(path, dpi=130, metadata=metadata)
    return paths


def main() -> None:
    """Draws what the runs allow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="folders with runs below")
    parser.add_argument("--output_dir", required=True)
    arguments = parser.parse_args()
    out = pathlib.Path(arguments.output_dir)
    ablations = read_ablations(arguments.runs)
    trainings = [
        f for f in arguments.runs if any(pathlib.Path(f).rglob("run.json"))
    ]
    if not (ablations or trainings):
        sys.exit(f"error: no run in {', '.join(arguments.runs)}")
    groups = group(find_runs(trainings)) if trainings else {}
    out.mkdir(parents=True, exist_ok=True)
    written = [
        path
        for name, draw in (
            ("trade_off", lambda f: draw_trade_off(f, groups)),
            ("per_task", lambda f: draw_per_task(f, groups)),
            ("squad", lambda f: draw_squad(f, groups)),
            ("ablation", lambda f: draw_ablations(f, ablations)),
            ("init_scale", lambda f: draw_init_scale(f, groups)),
        )
        for path in save(out, name, draw)
    ]
    print("\n".join(written))


if __name__ == "__main__":
    main()
