"""A report's parts about one run: scores, curves, tables, norms, command."""

import pathlib
from collections.abc import Mapping
from typing import Any, Optional
from xml.etree.ElementTree import Element

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import (
    TENSORS,
    EventAccumulator,
)
from tensorboard.util import tensor_util

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import layer_of
from adapter_bert.checkpoints import adapter_artifact, run_record
from adapter_bert.checkpoints.adapter_artifact import INDICES, VALUES
from adapter_bert.reports import collect_runs, known_scores
from adapter_bert.reports.html_page import (
    Content,
    element,
    line_figure,
    section,
    table,
)
from adapter_bert.reports.known_scores import read_confusion, read_table
from adapter_bert.reports.run_command import (
    UNRECORDED,
    Unknown,
    command_of,
    is_one_of_several,
)

# Members of `run.json`, as `files.read_object` takes them.
RUN = {
    **run_record.DESCRIPTION,
    "training": dict,
    "training.trained_together?": list,
    "parameters": dict,
    "parameters.total": int,
    "parameters.trained": int,
    "parameters.kept?": int,
    "bert_config.hidden_size": int,
    "bert_config.num_hidden_layers": int,
    "task.tasks?": dict,
    "task.tasks?.*": dict,
}
COST = {"resumed": bool, "seconds": float, **collect_runs.COST}
# Of `calibration.json`.
MEASURED = {
    "before": float,
    "after": float,
    "loss_before": float,
    "loss_after": float,
    "temperature?": float,
    "rows_fitted": int,
    "rows_measured": int,
    **{
        f"points_{when}{key}": kind
        for when in ("before", "after")
        for key, kind in (
            ("", list),
            (".[]", dict),
            (".[].rows", int),
            (".[].probability", float),
            (".[].accuracy", float),
        )
    },
    "abstain_at?": float,
    "abstain_below?": float,
    "coverage?": float,
    "precision?": float,
}
# Longer lists, as of labels, are cut.
MOST_ITEMS = 30
# Of more labels, only the most frequent confusions are shown.
MOST_LABELS = 25
MOST_CONFUSIONS = 25
MOST_ROWS = 25
MOST_CHARACTERS = 300
# Lines that a figure can tell apart.
MOST_LINES = 8
TEXTS = ("text", "text_b")
NUMBERS = ("probability_of_label", "loss")

Curve = list[tuple[int, float]]
# (sum of squares, number of values) by place and layer; the layer is None
# outside of layers.
Norms = dict[str, dict[Optional[int], tuple[float, int]]]


def read_curves(folder: pathlib.Path) -> dict[str, Curve]:
    """The scalars of a folder's event files by name, as (step, value).

    A repeated step has its last value. A file's damaged end is left out.
    """
    if not any(folder.glob("*tfevents*")):
        return {}
    # 0: no sampling.
    events = EventAccumulator(str(folder), size_guidance={TENSORS: 0})
    events.Reload()
    curves = {}
    for name in events.Tags()[TENSORS]:
        by_step = {
            event.step: float(tensor_util.make_ndarray(event.tensor_proto))
            for event in events.Tensors(name)
        }
        curves[name] = sorted(by_step.items())
    return curves


def _confusion(path: pathlib.Path, of_set: str) -> Element:
    labels, counts = read_confusion(path)
    if len(labels) > MOST_LABELS:
        wrong = [
            (label, answer, str(count))
            for label, row in zip(labels, counts)
            for answer, count in zip(labels, row)
            if label != answer and count
        ]
        wrong.sort(key=lambda cells: -int(cells[-1]))
        return table(
            f"The most frequent confusions of {len(labels)} labels{of_set}",
            ("right label", "given label", "rows"),
            wrong[:MOST_CONFUSIONS],
        )
    shown = []
    for label, row in zip(labels, counts):
        cells = []
        for answer, count in zip(labels, row):
            shade = 0.4 * count / max(1, sum(row))
            style = f"background: rgba(128, 128, 128, {shade:.2f})"
            # Right answers are bold, which prints show too.
            text = str(count)
            text = element("strong", text) if answer == label else text
            cells.append(element("td", text, class_="number", style=style))
        shown.append((label, *cells))
    return table(
        f"Confusion matrix{of_set}: a row for each right label, a column for "
        "each given one. Right answers are bold; the stronger the shade, the "
        "greater the share of the row",
        ("right \\ given", *labels),
        shown,
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
        [name.replace("_", " ") for name in names],
        [
            [row[i][:most] + " …" * (len(row[i]) > most) for i in order]
            for row in rows[:MOST_ROWS]
        ],
        [name.replace("_", " ") for name in TEXTS],
    )


def evaluation_sections(folder: pathlib.Path, level: int) -> list[Element]:
    """Labels, confusions and hardest examples of a run or one of its tasks."""

    def paths(name: str) -> list[tuple[pathlib.Path, str]]:
        """The tables of a name, and what names one of several dev sets."""
        return [
            (path, suffix and f", {suffix}")
            for path, suffix in known_scores.tables_of(folder, name)
        ]

    labels = []
    for name, what in (
        ("eval_labels", "Scores of each label"),
        ("eval_types", "Scores of each type of entities"),
    ):
        for path, of_set in paths(name):
            header, *rows = read_table(path)
            labels.append(table(f"{what}{of_set}", header, rows))
    confusions = [_confusion(*place) for place in paths("eval_confusion")]
    hardest = [_hardest(*place) for place in paths("eval_hardest")]
    return [
        section(level, title, *(scores or [f"The run has no {what}."]))
        for title, what, scores in (
            ("Labels", "scores of single labels", labels),
            ("Confusions", "confusion matrix", confusions),
            ("Hardest examples", "list of its hardest examples", hardest),
        )
    ]


def calibration_sections(folder: pathlib.Path, level: int) -> list[Element]:
    """The calibration of a run's probabilities; empty if it made none."""
    path = folder / "calibration.json"
    if not path.exists():
        return []
    fit = files.read_object(str(path), "a run's calibration", MEASURED)
    percent = {
        when: [
            (100 * point["probability"], 100 * point["accuracy"])
            for point in fit[f"points_{when}"]
        ]
        for when in ("before", "after")
    }
    scale = f"temperature {fit['temperature'] or 1:.4g}"
    places = (x for points in percent.values() for x, _ in points)
    least = min(places, default=0.0)
    content: list[Content] = [
        line_figure(
            "reliability",
            "Reliability diagram",
            "Right answers over the mean probability of the answer, in 15 bins "
            f"of probabilities, of {fit['rows_measured']:,} dev rows that "
            f"fitted nothing, before and after the {scale}. Probabilities "
            "that mean what they say lie on the third line.",
            {**percent, "equal": [(least, least), (100.0, 100.0)]},
            "probability of the answer, %",
            "right answers, %",
        ),
        table(
            "Calibration",
            ("measure", "before", "after"),
            [
                (
                    name,
                    f"{fit[f'{key}before']:.4f}",
                    f"{fit[f'{key}after']:.4f}",
                )
                for name, key in (
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
    ]
    if fit.get("abstain_below") is not None:
        precision = fit.get("precision")
        right = "" if precision is None else f", {precision:.1%} of these right"
        content.append(
            f"Rows below the probability {fit['abstain_below']:.4f} have no "
            f"label, for a wanted precision of {fit['abstain_at']:g}: "
            f"{fit['coverage']:.1%} of the rows have one{right}."
        )
    elif fit.get("abstain_at") is not None:
        content.append(
            "All rows are answered: no least probability gives the wanted "
            f"precision of {fit['abstain_at']:g}."
        )
    return [section(level, "Calibration", *content)]


def _place(name: str, layer: Optional[int]) -> str:
    """A variable's place, the same for all layers, weights and biases."""
    folder = name.rpartition("/")[0] or name
    return folder.replace(f"layer_{layer}/", "").replace(f"/layer_{layer}", "")


def measure(artifact: adapter_artifact.Artifact, path: str) -> Norms:
    """The norms of the variables that were added to BERT."""
    shapes = encoder.list_variables(
        run_record.bert_config(artifact.config, path)
    )
    norms: Norms = {}
    for name in artifact.weights.shapes:
        if name in shapes or name.endswith((INDICES, VALUES)):
            continue
        layer = layer_of(name)
        by_layer = norms.setdefault(_place(name, layer), {})
        square, count = by_layer.get(layer, (0.0, 0))
        value = np.asarray(artifact.weights.read(name), np.float64)
        by_layer[layer] = square + np.sum(value**2), count + value.size
    return norms


def norm_section(folder: pathlib.Path, level: int, name: str) -> Element:
    """Reads the norms of the adapter of a run or one of its tasks."""
    title = "Norms of the adapter"
    place = folder / "adapter"
    path = place / adapter_artifact.CONFIG_FILE
    if not path.exists():
        return section(level, title, "The run has no adapter here.")
    norms = measure(adapter_artifact.read(str(place)), str(path))
    layered = {
        place: by for place, by in sorted(norms.items()) if set(by) != {None}
    }
    content: list[Content] = [
        "A norm is the root of the sum of the squares of a place's values "
        "(Euclidean). BERT's own variables are left out, trained or not."
    ]
    if not layered:
        content.append("The method adds nothing to the layers.")
    elif len(layered) <= MOST_LINES:
        content.append(
            line_figure(
                name,
                "Norms of what was added, by layer",
                "The norm of what was added at each place, over the layers "
                "from 0. The numbers are in the table.",
                {
                    place: [(n, np.sqrt(by[n][0])) for n in sorted(by)]
                    for place, by in layered.items()
                },
                "layer",
                "norm",
                from_zero=True,
            )
        )
    if layered:
        layers = sorted({layer for by in layered.values() for layer in by})
        content.append(
            table(
                "Norm of what was added at each place of each layer",
                ("layer", *layered),
                [
                    (
                        str(n),
                        *(
                            f"{np.sqrt(by[n][0]):.4g}" if n in by else "–"
                            for by in layered.values()
                        ),
                    )
                    for n in layers
                ],
            )
        )
    others = [
        (place, f"{np.sqrt(by[None][0]):.4g}", f"{by[None][1]:,}")
        for place, by in norms.items()
        if place not in layered
    ]
    if others:
        caption = "Norm of what was added outside of the layers"
        content.append(table(caption, ("place", "norm", "numbers"), others))
    return section(level, title, *content)


def _shown(value: Any) -> str:
    """A value of a description as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    if isinstance(value, list):
        text = ", ".join(map(_shown, value[:MOST_ITEMS]))
        more = len(value) - MOST_ITEMS
        return f"{text} and {more} more" if more > 0 else text
    return f"{value:,}" if type(value) is int and value > 9999 else str(value)


def _facts(caption: str, facts: Mapping[str, Any]) -> Element:
    rows = [(name.replace("_", " "), _shown(v)) for name, v in facts.items()]
    return table(caption, ("what", "value"), rows, ("value",))


def read_run(folder: pathlib.Path) -> dict[str, Any]:
    """The content of `run.json`; raises UserError if it cannot be read."""
    path = str(folder / run_record.RUN_FILE)
    return files.read_object(path, "the run's description", RUN)


def _configuration(folder: pathlib.Path, run: Mapping[str, Any]) -> Element:
    base = {"name": run["base"].get("name"), **run["bert_config"]}
    task = {k: v for k, v in run["task"].items() if k != "tasks"}
    task_and_method = {
        "task": task.pop("name"),
        "data": run_record.data_name(run),
        **task,
        "method": run["method"],
    }
    training = dict(run["training"])
    hashes = {
        "pretrained model": run["base"]["fingerprint"],
        "training rows": training.pop("data", None),
    }
    results = folder / "eval_results.json"
    if results.exists():
        scores = files.read_object(
            str(results), "a run's scores", collect_runs.RESULTS
        )
        hashes["dev rows"] = scores["dev_data"]
    if (folder / "adapter" / adapter_artifact.CONFIG_FILE).exists():
        config = adapter_artifact.read_config(str(folder / "adapter"))
        hashes["adapter"] = config["sha256"]
    return section(
        2,
        "Configuration, versions and hashes",
        element(
            "details",
            element("summary", "Show them"),
            _facts("Task and method", task_and_method),
            _facts("Training", training),
            _facts("Pretrained model", base),
            _facts("Versions", run.get("versions") or {}),
            _facts("Hashes of rows and values", hashes),
        ),
    )


def _command(folder: pathlib.Path, run: Mapping[str, Any]) -> Element:
    title = "Command"
    if is_one_of_several(run):
        names = ", ".join(run["training"]["trained_together"])
        return section(
            2,
            title,
            f"This task was trained together with others ({names}). The "
            "report of the whole run has the command.",
        )
    command = command_of(folder, run)
    variables = [
        element(
            "li", element("span", element("code", one.name), f": {one.meaning}")
        )
        for one in command.flags.values()
        if isinstance(one, Unknown)
    ]
    unrecorded: list[Content] = []
    *first, last = UNRECORDED[command.program]
    for name in first:
        unrecorded += [", ", element("code", f"--{name}")]
    unrecorded += [" and ", element("code", f"--{last}")]
    return section(
        2,
        title,
        "This does the run again, as far as the run records it. Its variables "
        "are",
        element("ul", *variables),
        element("pre", element("code", command.text), tabindex="0"),
        element(
            "p",
            "Runs do not record ",
            *unrecorded[1:],
            ": pass them if the run had them.",
        ),
    )


def _scores(
    folder: pathlib.Path,
    level: int,
    task: Mapping[str, Any],
    earlier: Optional[pathlib.Path],
) -> Element:
    """The scores, next to what is known of others."""
    title, path = "Scores", folder / "eval_results.json"
    if not path.exists():
        return section(level, title, "The run has not been evaluated.")
    results = files.read_object(
        str(path), "a run's scores", collect_runs.RESULTS
    )
    scores = collect_runs.evaluated(results)
    others = [
        known_scores.of_one_answer(folder, scores),
        known_scores.of_the_paper(task, results),
    ]
    if earlier:
        others.append(known_scores.of_an_earlier_run(earlier, task, results))
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
    meanings = [element("p", one.meaning) for one in others]
    return section(level, title, table(caption, header, rows), *meanings)


def _curve(name: str, what: str, curve: Curve) -> Element:
    """A figure of one curve, which the caption describes."""
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
    content: list[Content] = [
        _curve(f"train-{name}", name_in_text, train[name])
        for name, name_in_text in (
            ("loss", "training loss"),
            ("learning_rate", "learning rate"),
        )
        if len(train.get(name, ())) > 1
    ]
    if not content:
        content.append("The run has no curve of its training.")
    steps = sorted({step for curve in dev.values() for step, _ in curve})
    if len(steps) < 2:
        content.append(
            "The dev set was not scored while training: there is no curve of "
            "scores."
        )
        return section(2, "Curves", *content)
    names = [name.replace("_", " ") for name in dev]
    for number, (name, curve) in enumerate(zip(names, dev.values())):
        if len(curve) > 1:
            content.append(_curve(f"dev-{number}", f"dev {name}", curve))
    curves = list(map(dict, dev.values()))
    rows = [
        (f"{n:,}", *(f"{c[n]:.4f}" if n in c else "–" for c in curves))
        for n in steps
    ]
    caption = "Scores of the dev set by step"
    scores = table(caption, ("step", *names), rows)
    return section(2, "Curves", *content, scores)


def _size_and_cost(folder: pathlib.Path, run: Mapping[str, Any]) -> Element:
    parameters = run["parameters"]
    total = max(1, parameters["total"])
    sizes = [
        (text, f"{parameters[name]:,}", f"{parameters[name] / total:.2%}")
        for text, name in (
            ("of the model", "total"),
            ("trained", "trained"),
            ("kept of the task", "kept"),
        )
        if parameters.get(name) is not None
    ]
    content: list[Content] = [
        table("Parameters", ("parameters", "number", "share"), sizes)
    ]
    path = folder / "cost.json"
    if path.exists():
        cost = files.read_object(str(path), "a run's costs", COST)
        memory = f"{cost['peak_memory_bytes'] / 2**30:.2f} GiB"
        rows = [
            ("time", f"{cost['seconds'] / 60:,.1f} min"),
            ("processor time", f"{cost['processor_seconds'] / 60:,.1f} min"),
            ("peak memory", memory),
        ]
        content.append(table("What the run took", ("what", "amount"), rows))
        if cost["resumed"]:
            content.append(
                "The training was resumed: this is what its last process took."
            )
    else:
        content.append("The run does not say what it took.")
    return section(2, "Parameters, time and memory", *content)


def sections_of_run(
    folder: pathlib.Path, earlier: Optional[pathlib.Path] = None
) -> tuple[str, list[Element]]:
    """The title and sections of a run's report.

    Args:
        folder: of the run.
        earlier: of a run whose scores are shown next to this run's.
    """
    run = read_run(folder)
    members = []
    for number, (name, task) in enumerate(
        (run["task"].get("tasks") or {}).items()
    ):
        place = folder / "tasks" / name
        before = earlier and earlier / "tasks" / name
        # A side of pairs has no scores of its own.
        has_scores = (place / "eval_results.json").exists()
        parts = (
            *([_scores(place, 3, task, before)] if has_scores else []),
            *evaluation_sections(place, 3),
            norm_section(place, 3, f"norms-{number}"),
        )
        members.append(section(2, f"Task {name}", *parts))
    if not members:
        members = evaluation_sections(folder, 2)
        members += calibration_sections(folder, 2)
        members.append(norm_section(folder, 2, "norms"))
    return f"Run {folder.resolve().name}: {run['task']['name']}", [
        _scores(folder, 2, run["task"], earlier),
        _curves(folder),
        *members,
        _size_and_cost(folder, run),
        _command(folder, run),
        _configuration(folder, run),
    ]
