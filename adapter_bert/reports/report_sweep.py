"""Sections of a sweep's report: the best settings, then each task."""

import pathlib
from xml.etree.ElementTree import Element

from adapter_bert.reports.collect_runs import (
    SQUAD,
    SeedGroup,
    best,
    by_kind,
    by_method,
    find_files,
    find_runs,
    group_by_task,
    kind_of,
    main_score,
    text_of,
)
from adapter_bert.reports.html_page import element, line_figure, section, table

COLUMNS = (
    "method",
    "learning rate",
    "epochs",
    "seeds",
    "parameters",
    "share of BERT",
)


def _row(group: SeedGroup) -> tuple[str, ...]:
    run = group.runs[0]
    return (
        text_of(group.method),
        f"{run.rate:g}",
        f"{run.epochs:g}",
        str(len(group.runs)),
        f"{run.kept:,}",
        f"{run.kept / run.bert:.2%}",
    )


def _score(group: SeedGroup, score: str) -> str:
    if score not in group.runs[0].scores:
        return "–"
    error = group.error(score)
    shown = "" if error is None else f" ± {error:.2f}"
    return f"{group.mean(score):.2f}{shown}"


def _trade_off(
    name: str, task: str, groups: list[SeedGroup], score: str
) -> Element:
    points: dict[str, list[tuple[float, float]]] = {}
    for same in by_method(groups).values():
        chosen = best(same, score)
        if chosen:
            line = points.setdefault(kind_of(chosen.method), [])
            # The axis is logarithmic.
            line.append((max(1, chosen.runs[0].kept), chosen.mean(score)))
    in_text = score.replace("_", " ")
    return line_figure(
        name,
        f"{task}: {in_text} over the parameters of the task",
        "The best setting of each method and size over the parameters of the "
        "task, on a logarithmic scale. The numbers are in the table.",
        {kind: sorted(points[kind]) for kind in sorted(points)},
        "parameters of the task",
        in_text,
        log_x=True,
    )


def _task(
    number: int,
    task: str,
    groups: list[SeedGroup],
    chosen_from: list[SeedGroup],
) -> Element:
    score = main_score(groups)
    chosen = best(chosen_from, score)
    names = [score] + [n for n in groups[0].runs[0].scores if n != score]
    rows = []
    scored = [group for group in groups if score in group.runs[0].scores]
    for group in sorted(scored, key=lambda group: -group.mean(score)):
        cells = [_score(group, name) for name in names]
        if group is chosen:
            text = element("strong", f"{cells[0]}, best")
            cells[0] = element("td", text, class_="number")
        method, *others = _row(group)
        rows.append((method, *cells, *others))
    in_text = [name.replace("_", " ") for name in names]
    return section(
        2,
        f"Task {task}",
        _trade_off(f"trade-off-{number}", task, chosen_from, score),
        table(
            f"Settings of {task} by {in_text[0]}; mean over seeds ± its "
            "standard error",
            (COLUMNS[0], *in_text, *COLUMNS[1:]),
            rows,
        ),
    )


def sections_of_sweep(folder: pathlib.Path) -> tuple[str, list[Element]]:
    """Returns the title and sections of a sweep's report."""
    runs = find_runs([str(folder)])
    by_task = group_by_task(runs)
    tasks, rows = [], []
    for task, groups in by_task.items():
        chosen_from = [s for same in by_kind(groups).values() for s in same]
        tasks.append((task, groups, chosen_from))
        score = main_score(groups)
        chosen = best(chosen_from, score)
        in_text = score.replace("_", " ")
        rows.append((task, in_text, _score(chosen, score), *_row(chosen)))
    content = [
        table(
            "The best setting of each task on its dev set",
            ("task", "score", "mean", *COLUMNS),
            rows,
        ),
        "Scores are in points of 100, but for losses. The best is chosen by "
        "its mean over seeds, among settings with the most seeds and with the "
        "initial scale that most of them have. The best of many looks better "
        "on the dev set than it is.",
    ]
    files = find_files(folder, "run.json")
    left = sum(path.parent.name != "phase_1" for path in files) - len(runs)
    if left:
        content.append(
            f"Runs that are left out: {left}. They are not finished, have no "
            "scores, or are of tasks that were trained together."
        )
    tasks.sort(key=lambda of_task: of_task[0] in SQUAD)
    return f"Sweep {folder.resolve().name}: {len(runs)} runs", [
        section(2, "Best settings", *content),
        *(_task(number, *of_task) for number, of_task in enumerate(tasks)),
    ]
