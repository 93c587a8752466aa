"""What a report says of a sweep."""

import pathlib
from typing import Dict, List, Tuple
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
from adapter_bert.reports.html_page import (
    element,
    figure,
    lines,
    paragraph,
    section,
    table,
)


def _score(group: SeedGroup, score: str) -> str:
    """A mean over seeds, with its standard error."""
    if score not in group.runs[0].scores:
        return "–"
    error = group.error(score)
    shown = "" if error is None else f" ± {error:.2f}"
    return f"{group.mean(score):.2f}{shown}"


def _row(group: SeedGroup) -> Tuple[str, ...]:
    run = group.runs[0]
    return (
        text_of(group.method),
        f"{run.rate:g}",
        f"{run.epochs:g}",
        str(len(group.runs)),
        f"{run.kept:,}",
        f"{run.kept / run.bert:.2%}",
    )


COLUMNS = (
    "method",
    "learning rate",
    "epochs",
    "seeds",
    "parameters",
    "share of BERT",
)


def _trade_off(
    name: str, task: str, groups: List[SeedGroup], score: str
) -> Element:
    """The best of each method and size over its parameters."""
    points: Dict[str, List[Tuple[float, float]]] = {}
    for same in by_method(groups).values():
        chosen = best(same, score)
        if chosen:
            own = points.setdefault(kind_of(chosen.method), [])
            # A logarithm of none there is not.
            kept = max(1, chosen.runs[0].kept)
            own.append((kept, chosen.mean(score)))
    drawing = lines(
        name,
        {kind: sorted(points[kind]) for kind in sorted(points)},
        "parameters of the task",
        score.replace("_", " "),
        log_x=True,
    )
    return figure(
        drawing,
        name,
        f"{task}: {score.replace('_', ' ')} over the parameters of the task",
        "The best setting of each method and size over the parameters of the "
        "task, on a logarithmic scale. The numbers are in the table.",
    )


def _task(
    number: int,
    task: str,
    groups: List[SeedGroup],
    chosen_from: List[SeedGroup],
) -> Element:
    score = main_score(groups)
    chosen = best(chosen_from, score)
    names = [score] + [n for n in groups[0].runs[0].scores if n != score]
    ordered = sorted(
        (group for group in groups if score in group.runs[0].scores),
        key=lambda group: -group.mean(score),
    )
    rows = []
    for group in ordered:
        # By a word, not by its looks alone.
        cells = [_score(group, name) for name in names]
        if group is chosen:
            cells[0] = element(
                "td", element("strong", f"{cells[0]}, best"), class_="number"
            )
        method, *others = _row(group)
        rows.append((method, *cells, *others))
    return section(
        2,
        f"Task {task}",
        _trade_off(f"trade-off-{number}", task, chosen_from, score),
        table(
            f"Settings of {task} by {score.replace('_', ' ')}; mean over "
            "seeds ± its standard error",
            (
                COLUMNS[0],
                *(name.replace("_", " ") for name in names),
                *COLUMNS[1:],
            ),
            rows,
        ),
    )


def sections_of_sweep(folder: pathlib.Path) -> Tuple[str, List[Element]]:
    """The title of a sweep's report, and its parts.

    Raises:
        UserError: it has no finished run, or its runs cannot be compared.
    """
    runs = find_runs([str(folder)])
    by_task = group_by_task(runs)
    chosen_from = {
        task: [group for same in by_kind(groups).values() for group in same]
        for task, groups in by_task.items()
    }
    rows = []
    for task, groups in by_task.items():
        score = main_score(groups)
        chosen = best(chosen_from[task], score)
        rows.append(
            (
                task,
                score.replace("_", " "),
                _score(chosen, score),
                *_row(chosen),
            )
        )
    content = [
        table(
            "The best setting of each task on its dev set",
            ("task", "score", "mean", *COLUMNS),
            rows,
        ),
        paragraph(
            "Scores are in points of 100, but for losses. The best is chosen "
            "by its mean over seeds, among settings with the most seeds and "
            "with the initial scale that most of them have. The best of many "
            "looks better on the dev set than it is."
        ),
    ]
    left = _count_left_out(folder, len(runs))
    if left:
        content.append(
            paragraph(
                f"Runs that are left out: {left}. They are not finished, have "
                "no scores, or are of tasks that were trained together."
            )
        )
    tasks = sorted(by_task, key=lambda task: task in SQUAD)
    return f"Sweep {folder.resolve().name}: {len(runs)} runs", [
        section(2, "Best settings", *content),
        *(
            _task(number, task, by_task[task], chosen_from[task])
            for number, task in enumerate(tasks)
        ),
    ]


def _count_left_out(folder: pathlib.Path, found: int) -> int:
    places = (path.parent for path in find_files(folder, "run.json"))
    return sum(place.name != "phase_1" for place in places) - found
