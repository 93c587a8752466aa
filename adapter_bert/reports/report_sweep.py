"""Sections of a sweep's report: the best settings, then each task."""

import pathlib
from xml.etree.ElementTree import Element

import pandas

from adapter_bert.reports.collect_runs import (
    SQUAD,
    best,
    choose,
    find_files,
    find_runs,
    of_usual_scale,
    settings_of,
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


def _row(setting: pandas.Series) -> tuple[str, ...]:
    return (
        setting.title,
        f"{setting.rate:g}",
        f"{setting.epochs:g}",
        str(setting.seeds),
        f"{setting.kept:,}",
        f"{setting.kept / setting.bert:.2%}",
    )


def _score(setting: pandas.Series, score: str) -> str:
    mean, error = setting.get(f"mean {score}"), setting[f"error {score}"]
    if pandas.isna(mean):
        return "–"
    return f"{mean:.2f}" + ("" if pandas.isna(error) else f" ± {error:.2f}")


def _trade_off(
    name: str, task: str, candidates: pandas.DataFrame, score: str
) -> Element:
    points = choose(candidates, "title")
    in_text = score.replace("_", " ")
    return line_figure(
        name,
        f"{task}: {in_text} over the parameters of the task",
        "The best setting of each method and size over the parameters of the "
        "task, on a logarithmic scale. The numbers are in the table.",
        {
            # The axis is logarithmic.
            kind: sorted(zip(line.kept.clip(lower=1), line[f"mean {score}"]))
            for kind, line in points.groupby("kind")
        },
        "parameters of the task",
        in_text,
        log_x=True,
    )


def sections_of_sweep(folder: pathlib.Path) -> tuple[str, list[Element]]:
    """Returns the title and sections of a sweep's report."""
    runs = find_runs([str(folder)])
    settings = settings_of(runs)
    rows, sections = [], []
    for number, (task, same) in enumerate(settings.groupby("task", sort=False)):
        score = same.main.iloc[0]
        candidates = of_usual_scale(same)
        chosen = best(candidates, score)
        names = [score, *(n for n in same.scores.iloc[0][0] if n != score)]
        in_text = [name.replace("_", " ") for name in names]
        rows.append((task, in_text[0], _score(chosen, score), *_row(chosen)))
        cells = []
        for _, setting in (
            same.sort_values(f"mean {score}", ascending=False, kind="stable")
            .dropna(subset=f"mean {score}")
            .iterrows()
        ):
            scores = [_score(setting, name) for name in names]
            if setting.name == chosen.name:
                text = element("strong", f"{scores[0]}, best")
                scores[0] = element("td", text, class_="number")
            title, *others = _row(setting)
            cells.append((title, *scores, *others))
        made = section(
            2,
            f"Task {task}",
            _trade_off(f"trade-off-{number}", task, candidates, score),
            table(
                f"Settings of {task} by {in_text[0]}; mean over seeds ± its "
                "standard error",
                (COLUMNS[0], *in_text, *COLUMNS[1:]),
                cells,
            ),
        )
        sections.append((task in SQUAD, made))
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
    return f"Sweep {folder.resolve().name}: {len(runs)} runs", [
        section(2, "Best settings", *content),
        # Questions are last.
        *(made for _, made in sorted(sections, key=lambda x: x[0])),
    ]
