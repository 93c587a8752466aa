"""A report's parts about one run: scores, curves, tables, norms, command."""

import pathlib
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Optional
from xml.etree.ElementTree import Element

import numpy as np
import pandas

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import layer_of
from adapter_bert.checkpoints import adapter_artifact, run_record
from adapter_bert.checkpoints.adapter_artifact import INDICES, VALUES
from adapter_bert.data.tables import shown
from adapter_bert.reports import collect_runs, known_scores
from adapter_bert.reports.curves import Curve, read_curves
from adapter_bert.reports.html_page import (
    element,
    facts,
    line_figure,
    section,
    table,
)
from adapter_bert.reports.known_scores import read_confusion, read_table
from adapter_bert.tasks import kinds

# Members of `run.json`, as `files.read_object` takes them.
RUN = {
    **run_record.DESCRIPTION,
    "training": dict,
    "parameters": dict,
    "parameters.total": int,
    "parameters.trained": int,
    "parameters.kept?": int,
    "bert_config.hidden_size": int,
    "bert_config.num_hidden_layers": int,
    "task.tasks?": dict,
    "task.tasks?.*": dict,
}
# Of more labels, only the most frequent confusions are shown.
MOST_LABELS = 25
MOST_CONFUSIONS = 25
MOST_ROWS = 25
MOST_CHARACTERS = 300
# Lines that a figure can tell apart.
MOST_LINES = 8
WHEN = ("before", "after")
# Of `calibration.json`.
MEASURED = {
    **{name + when: float for name in ("", "loss_") for when in WHEN},
    **{f"points_{when}": list for when in WHEN},
    "temperature?": float,
    "rows_measured": int,
}
TEXTS = ("text", "text_b")
NUMBERS = ("probability_of_label", "loss")


def _in_text(names: Iterable[str]) -> list[str]:
    return [name.replace("_", " ") for name in names]


def _confusion(path: pathlib.Path, of_set: str) -> Element:
    counts = read_confusion(path)
    labels = shown(counts)
    counts = counts.rename(index=labels, columns=labels)
    if len(counts) > MOST_LABELS:
        wrong = counts.mask(np.eye(len(counts), dtype=bool), 0).stack()
        wrong = wrong[wrong > 0].sort_values(ascending=False, kind="stable")
        return table(
            f"The most frequent confusions of {len(counts)} labels{of_set}",
            ("right label", "given label", "rows"),
            [(*pair, str(n)) for pair, n in wrong[:MOST_CONFUSIONS].items()],
        )
    rows = []
    for place, (label, row) in enumerate(counts.iterrows()):
        cells = []
        for number, count in enumerate(row):
            shade = 0.4 * count / max(1, row.sum())
            style = f"background: rgba(128, 128, 128, {shade:.2f})"
            # Right answers are bold, which prints show too.
            is_right = number == place
            text = element("strong", str(count)) if is_right else str(count)
            cells.append(element("td", text, class_="number", style=style))
        rows.append((label, *cells))
    return table(
        f"Confusion matrix{of_set}: a row for each right label, a column for "
        "each given one. Right answers are bold; the stronger the shade, the "
        "greater the share of the row",
        ("right \\ given", *counts),
        rows,
    )


def _hardest(path: pathlib.Path, of_set: str) -> Element:
    header, *rows = read_table(path)
    most = MOST_CHARACTERS
    # Line and text come first, the numbers last.
    names = sorted(header, key=lambda name: name in NUMBERS)
    order = [header.index(name) for name in names]
    return table(
        f"The {min(len(rows), MOST_ROWS)} dev rows with the greatest losses"
        f"{of_set}, of {len(rows)} in {path.name}",
        _in_text(names),
        [
            [row[i][:most] + " …" * (len(row[i]) > most) for i in order]
            for row in rows[:MOST_ROWS]
        ],
        _in_text(TEXTS),
    )


def _plain(caption: str, path: pathlib.Path, of_set: str) -> Element:
    header, *rows = read_table(path)
    labels = shown(label for label, *_ in rows)
    rows = [(labels[label], *cells) for label, *cells in rows]
    return table(f"{caption}{of_set}", header, rows)


# Sections on the dev set: title, what a run may lack, and its files.
EVALUATION = (
    (
        "Labels",
        "scores of single labels",
        {
            "eval_labels": partial(_plain, "Scores of each label"),
            "eval_types": partial(_plain, "Scores of each type of entities"),
        },
    ),
    ("Confusions", "confusion matrix", {"eval_confusion": _confusion}),
    (
        "Hardest examples",
        "list of its hardest examples",
        {"eval_hardest": _hardest},
    ),
)


def evaluation_sections(folder: pathlib.Path, level: int) -> list[Element]:
    """Shows labels, confusions and hardest examples of a run or its task."""
    sections = []
    for title, what, tables in EVALUATION:
        content = [
            show(path, suffix and f", {suffix}")
            for name, show in tables.items()
            for path, suffix in known_scores.tables_of(folder, name)
        ]
        content = content or [f"The run has no {what}."]
        sections.append(section(level, title, *content))
    return sections


def calibration_sections(folder: pathlib.Path, level: int) -> list[Element]:
    """Gets the calibration of a run's probabilities; empty if it made none."""
    path = folder / "calibration.json"
    if not path.exists():
        return []
    fit = files.read_object(str(path), "a run's calibration", MEASURED)
    lines = {
        when: [
            (100 * point["probability"], 100 * point["accuracy"])
            for point in fit[f"points_{when}"]
        ]
        for when in WHEN
    }
    least = min((x for line in lines.values() for x, _ in line), default=0.0)
    abstains = ""
    if fit.get("abstain_below") is not None:
        precision = fit.get("precision")
        right = "" if precision is None else f", {precision:.1%} of these right"
        abstains = (
            f"Rows below the probability {fit['abstain_below']:.4f} have no "
            f"label, for a wanted precision of {fit['abstain_at']:g}: "
            f"{fit['coverage']:.1%} of the rows have one{right}."
        )
    elif fit.get("abstain_at") is not None:
        abstains = (
            "All rows are answered: no least probability gives the wanted "
            f"precision of {fit['abstain_at']:g}."
        )
    shown = section(
        level,
        "Calibration",
        line_figure(
            "reliability",
            "Reliability diagram",
            "Right answers over the mean probability of the answer, in 15 bins "
            f"of probabilities, of {fit['rows_measured']:,} dev rows that "
            "fitted nothing, before and after the temperature "
            f"{fit['temperature'] or 1:.4g}. Probabilities that mean what they "
            "say lie on the third line.",
            {**lines, "equal": [(least, least), (100.0, 100.0)]},
            "probability of the answer, %",
            "right answers, %",
        ),
        table(
            "Calibration",
            ("measure", "before", "after"),
            [
                (text, *(f"{fit[name + when]:.4f}" for when in WHEN))
                for text, name in (
                    ("expected calibration error", ""),
                    ("loss", "loss_"),
                )
            ],
        ),
        table(
            "Reliability after the temperature",
            ("rows", "mean probability", "share of right answers"),
            [
                (
                    f"{point['rows']:,}",
                    f"{point['probability']:.4f}",
                    f"{point['accuracy']:.4f}",
                )
                for point in fit["points_after"]
            ],
        ),
        abstains,
    )
    return [shown]


def measure(artifact: adapter_artifact.Artifact, path: str) -> pandas.DataFrame:
    """Measures the variables that were added to BERT.

    Returns:
        A row for each `place` and `layer`, which is NaN outside of layers:
        `square`, the sum of squares, and `count`, the number of values.
    """
    shapes = encoder.list_variables(
        run_record.bert_config(artifact.config, path)
    )
    rows = []
    for name in artifact.weights.shapes:
        if name not in shapes and not name.endswith((INDICES, VALUES)):
            layer = layer_of(name)
            place = name.rpartition("/")[0] or name
            place = re.sub(rf"layer_{layer}/|/layer_{layer}", "", place)
            value = np.asarray(artifact.weights.read(name), np.float64)
            rows.append((place, layer, np.sum(value**2), value.size))
    columns = ["place", "layer", "square", "count"]
    norms = pandas.DataFrame(rows, columns=columns)
    return norms.groupby(columns[:2], dropna=False, as_index=False).sum()


def norm_section(folder: pathlib.Path, level: int, name: str) -> Element:
    """Reads the norms of the adapter of a run or one of its tasks."""
    title = "Norms of the adapter"
    place = folder / "adapter"
    path = place / adapter_artifact.CONFIG_FILE
    if not path.exists():
        return section(level, title, "The run has no adapter here.")
    norms = measure(adapter_artifact.read(str(place)), str(path))
    norms["norm"] = np.sqrt(norms.square.astype(float))
    outside = norms[norms.layer.isna()]
    layers = norms.dropna(subset="layer").astype({"layer": int})
    layers = layers.pivot(index="layer", columns="place", values="norm")
    places = len(layers.columns)
    return section(
        level,
        title,
        "A norm is the root of the sum of the squares of a place's values "
        "(Euclidean). BERT's own variables are left out, trained or not.",
        "" if places else "The method adds nothing to the layers.",
        0 < places <= MOST_LINES
        and line_figure(
            name,
            "Norms of what was added, by layer",
            "The norm of what was added at each place, over the layers "
            "from 0. The numbers are in the table.",
            {place: [*line.dropna().items()] for place, line in layers.items()},
            "layer",
            "norm",
            from_zero=True,
        ),
        places
        and _numbers(
            "Norm of what was added at each place of each layer", layers, ".4g"
        ),
        len(outside)
        and table(
            "Norm of what was added outside of the layers",
            ("place", "norm", "numbers"),
            [
                (row.place, f"{row.norm:.4g}", f"{row.count:,}")
                for row in outside.itertuples(index=False, name="Row")
            ],
        ),
    )


def _numbers(caption: str, numbers: pandas.DataFrame, form: str) -> Element:
    return table(
        caption,
        (numbers.index.name, *numbers),
        [
            (
                f"{place:,}",
                *("–" if np.isnan(x) else format(x, form) for x in row),
            )
            for place, row in numbers.iterrows()
        ],
    )


def _read_results(folder: pathlib.Path) -> dict[str, Any]:
    return run_record.read_results(str(folder), collect_runs.RESULTS)


def _configuration(folder: pathlib.Path, run: Mapping[str, Any]) -> Element:
    base = {"name": run["base"].get("name"), **run["bert_config"]}
    task = {k: v for k, v in run["task"].items() if k != "tasks"}
    task_and_method = {
        "task": task.pop("name"),
        "data": run.get("data_name") or "",
        **task,
        "method": run["method"],
    }
    training = dict(run["training"])
    hashes = {
        "pretrained model": run["base"]["fingerprint"],
        "training rows": training.pop("data", None),
    }
    results = _read_results(folder)
    if results:
        hashes["dev rows"] = results["dev_data"]
    if (folder / "adapter" / adapter_artifact.CONFIG_FILE).exists():
        config = adapter_artifact.read_config(str(folder / "adapter"))
        hashes["adapter"] = config["sha256"]
    return section(
        2,
        "Configuration, versions and hashes",
        element(
            "details",
            element("summary", "Show them"),
            facts("Task and method", task_and_method),
            facts("Training", training),
            facts("Pretrained model", base),
            facts("Versions", run.get("versions") or {}),
            facts("Hashes of rows and values", hashes),
        ),
    )


def _command(folder: pathlib.Path, run: Mapping[str, Any]) -> Element:
    words = run_record.command_of(str(folder))
    if not words:
        return section(2, "Command", "The run does not record its command.")
    program = kinds.find_kind(kinds.kind_of(run["task"])).program
    lines = f".venv/bin/python {program}", *map(shlex.quote, words)
    code = element("code", " \\\n  ".join(lines))
    return section(2, "Command", element("pre", code, tabindex="0"))


def _scores(
    folder: pathlib.Path,
    level: int,
    run: Mapping[str, Any],
    earlier: Optional[pathlib.Path],
) -> Element:
    results = _read_results(folder)
    if not results:
        return section(level, "Scores", "The run has not been evaluated.")
    scores = run_record.scores_in(results)
    others = [
        known_scores.of_one_answer(folder, scores),
        known_scores.of_the_paper(run, results),
    ]
    if earlier:
        others.append(
            known_scores.of_an_earlier_run(earlier, run["task"], results)
        )
    others = [one for one in others if one.scores]
    rows = [
        (
            name.replace("_", " "),
            f"{value:.4f}",
            *(one.scores.get(name, "–") for one in others),
        )
        for name, value in scores.items()
    ]
    caption = f"Scores of the dev set after step {results['global_step']:,}"
    header = ("score", "this run", *(one.title for one in others))
    meanings = [one.meaning for one in others]
    return section(level, "Scores", table(caption, header, rows), *meanings)


def _curve(name: str, what: str, curve: Curve) -> Element:
    (first, start), (last, end) = curve[0], curve[-1]
    (least, low) = min(curve, key=lambda point: point[1])
    (most, high) = max(curve, key=lambda point: point[1])
    text = (
        f"{what}: {start:.4g} at step {first:,}, {end:.4g} at step {last:,}; "
        f"lowest {low:.4g} at step {least:,}, highest {high:.4g} at step "
        f"{most:,}."
    )
    return line_figure(
        name, f"{what} by step", text, {what: curve}, "step", what
    )


def _curves(folder: pathlib.Path) -> Element:
    train, dev = read_curves(folder), read_curves(folder / "eval")
    figures = [
        _curve(f"train-{name}", what, train[name])
        for name, what in (
            ("loss", "training loss"),
            ("learning_rate", "learning rate"),
        )
        if len(train.get(name, ())) > 1
    ]
    content = figures or ["The run has no curve of its training."]
    scores = pandas.DataFrame({x: dict(dev[x]) for x in dev}).sort_index()
    if len(scores) < 2:
        content.append(
            "The dev set was not scored while training: there is no curve of "
            "scores."
        )
        return section(2, "Curves", *content)
    scores.columns = _in_text(dev)
    content += [
        _curve(f"dev-{number}", f"dev {name}", curve)
        for number, (name, curve) in enumerate(zip(scores, dev.values()))
        if len(curve) > 1
    ]
    caption = "Scores of the dev set by step"
    shown = _numbers(caption, scores.rename_axis("step"), ".4f")
    return section(2, "Curves", *content, shown)


def _size_and_cost(folder: pathlib.Path, run: Mapping[str, Any]) -> Element:
    parameters = run["parameters"]
    total = max(1, parameters["total"])
    content = [
        table(
            "Parameters",
            ("parameters", "number", "share"),
            [
                (
                    text,
                    f"{parameters[name]:,}",
                    f"{parameters[name] / total:.2%}",
                )
                for text, name in (
                    ("of the model", "total"),
                    ("trained", "trained"),
                    ("kept of the task", "kept"),
                )
                if parameters.get(name) is not None
            ],
        )
    ]
    path = str(folder / "cost.json")
    cost = files.read_optional(path, "a run's costs", collect_runs.COST)
    if cost:
        rows = [
            ("time", f"{cost['seconds'] / 60:,.1f} min"),
            ("processor time", f"{cost['processor_seconds'] / 60:,.1f} min"),
        ]
        if cost.get("peak_memory_bytes"):
            memory = f"{cost['peak_memory_bytes'] / 2**30:.2f} GiB"
            rows.append(("peak memory", memory))
        content.append(table("What the run took", ("what", "amount"), rows))
    return section(
        2,
        "Parameters, time and memory",
        *content,
        "" if cost else "The run does not say what it took.",
        "The training was resumed: this is what its last process took."
        if cost.get("resumed")
        else "",
    )


def sections_of_run(
    folder: pathlib.Path, earlier: Optional[pathlib.Path] = None
) -> tuple[str, list[Element]]:
    """Returns the title and sections of a run's report.

    Args:
        folder: of the run.
        earlier: of a run whose scores are shown next to this run's.
    """
    path = str(folder / run_record.RUN_FILE)
    run = files.read_object(path, "the run's description", RUN)
    members = []
    for number, (name, task) in enumerate(
        (run["task"].get("tasks") or {}).items()
    ):
        place = folder / "tasks" / name
        before = earlier and earlier / "tasks" / name
        # A side of pairs has no scores of its own.
        has_scores = (place / run_record.RESULTS_FILE).exists()
        members.append(
            section(
                2,
                f"Task {name}",
                has_scores and _scores(place, 3, {**run, "task": task}, before),
                *evaluation_sections(place, 3),
                norm_section(place, 3, f"norms-{number}"),
            )
        )
    return f"Run {folder.resolve().name}: {run['task']['name']}", [
        _scores(folder, 2, run, earlier),
        _curves(folder),
        *(
            members
            or [
                *evaluation_sections(folder, 2),
                *calibration_sections(folder, 2),
                norm_section(folder, 2, "norms"),
            ]
        ),
        _size_and_cost(folder, run),
        _command(folder, run),
        _configuration(folder, run),
    ]
