"""A report's parts about one run: scores, command, curves, tables, norms."""

import pathlib
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple
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
from adapter_bert.errors import UserError
from adapter_bert.reports import collect_runs
from adapter_bert.reports.html_page import (
    bullets,
    element,
    figure,
    lines,
    paragraph,
    section,
    table,
)
from adapter_bert.reports.run_command import command_of, is_one_of_several

# What is read of `run.json`, as `files.read_object` reads it.
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
# Longer lists, as of labels, are cut.
MOST_ITEMS = 30
# A matrix of more labels is shown by its greatest confusions.
MOST_LABELS = 25
MOST_CONFUSIONS = 25
MOST_ROWS = 25
MOST_CHARACTERS = 300
# Places that a figure can tell apart.
MOST_LINES = 8
TEXTS = ("text", "text_b")
NUMBERS = ("probability_of_label", "loss")

Curve = List[Tuple[int, float]]
# Squares of the norms and counts, by place and layer; None outside of layers.
Norms = Dict[str, Dict[Optional[int], Tuple[float, int]]]


def read_curves(folder: pathlib.Path) -> Dict[str, Curve]:
    """The scalars of a folder's event files by name, as (step, value).

    Of a step that was done again, after a run was killed, the last value
    counts. A file's damaged end is left out, as TensorBoard does.
    """
    if not any(folder.glob("*tfevents*")):
        return {}
    # 0 keeps all.
    events = EventAccumulator(str(folder), size_guidance={TENSORS: 0})
    events.Reload()
    found = {}
    for name in events.Tags()[TENSORS]:
        by_step = {
            event.step: float(tensor_util.make_ndarray(event.tensor_proto))
            for event in events.Tensors(name)
        }
        found[name] = sorted(by_step.items())
    return found


def read_table(path: pathlib.Path) -> List[List[str]]:
    """A table of tabs and line feeds, with its header.

    Raises:
        UserError: it cannot be read, or its rows differ in their cells.
    """
    text = files.read_text(str(path), "the table")
    # Not of `splitlines`, which takes other characters for a line's end.
    rows = [line.split("\t") for line in text.rstrip("\n").split("\n")]
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise UserError(
                f"{path}:{number}: {len(row)} cells, expected {len(rows[0])} "
                "as in the header; evaluate the run again"
            )
    return rows


def _of_set(path: pathlib.Path, name: str) -> str:
    """Which dev set a table is of, where a task has several."""
    suffix = path.stem[len(name) :].lstrip("_")
    return f", {suffix}" if suffix else ""


def _labels(path: pathlib.Path, name: str, what: str) -> Element:
    header, *rows = read_table(path)
    return table(f"{what}{_of_set(path, name)}", header, rows)


def _confusion(path: pathlib.Path) -> Element:
    """How many rows of each label were given each label."""
    header, *rows = read_table(path)
    of_set = _of_set(path, "eval_confusion")
    labels = header[1:]
    if [row[0] for row in rows] != labels:
        raise UserError(
            f"{path} is no confusion matrix, expected rows and columns of the "
            "same labels; evaluate the run again"
        )
    try:
        counts = [list(map(int, row[1:])) for row in rows]
    except ValueError as error:
        raise UserError(
            f"{path} is no confusion matrix: {error}; evaluate the run again"
        ) from error
    if len(labels) > MOST_LABELS:
        return _greatest_confusions(labels, counts, of_set)
    shown = []
    for number, row in enumerate(counts):
        total = max(1, sum(row))
        cells = []
        for column, count in enumerate(row):
            # Also to be seen in print without backgrounds: right is bold.
            text = str(count)
            shade = f"rgba(128, 128, 128, {0.4 * count / total:.2f})"
            cells.append(
                element(
                    "td",
                    element("strong", text) if number == column else text,
                    class_="number",
                    style=f"background: {shade}",
                )
            )
        shown.append((labels[number], *cells))
    return table(
        f"Confusion matrix{of_set}: a row for each right label, a column for "
        "each given one. Right answers are bold; the stronger the shade, the "
        "greater the share of the row",
        ("right \\ given", *labels),
        shown,
    )


def _greatest_confusions(
    labels: Sequence[str], counts: Sequence[Sequence[int]], of_set: str
) -> Element:
    wrong = [
        (count, labels[row], labels[column])
        for row, line in enumerate(counts)
        for column, count in enumerate(line)
        if row != column and count
    ]
    wrong.sort(key=lambda one: -one[0])
    return table(
        f"The most frequent confusions of {len(labels)} labels{of_set}",
        ("right label", "given label", "rows"),
        [
            (right, given, str(count))
            for count, right, given in wrong[:MOST_CONFUSIONS]
        ],
    )


def _shortened(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return text[:MOST_CHARACTERS] + " …"


def _hardest(path: pathlib.Path) -> Element:
    """The rows with the greatest losses."""
    header, *rows = read_table(path)
    caption = (
        f"The {min(len(rows), MOST_ROWS)} dev rows with the greatest losses"
        f"{_of_set(path, 'eval_hardest')}, of {len(rows)} in {path.name}"
    )
    # Which row it is and what it says come first, the numbers last.
    names = sorted(header, key=lambda name: name in NUMBERS)
    order = [header.index(name) for name in names]
    return table(
        caption,
        [name.replace("_", " ") for name in names],
        [[_shortened(row[i]) for i in order] for row in rows[:MOST_ROWS]],
        [name.replace("_", " ") for name in TEXTS],
    )


def evaluation_sections(folder: pathlib.Path, level: int) -> List[Element]:
    """What an evaluation of a run or of one task says beside its scores.

    Raises:
        UserError: a table cannot be read.
    """
    found = {
        "Labels": [
            _labels(path, name, what)
            for name, what in (
                ("eval_labels", "Scores of each label"),
                ("eval_types", "Scores of each type of entities"),
            )
            for path in sorted(folder.glob(f"{name}*.tsv"))
        ],
        "Confusions": list(
            map(_confusion, sorted(folder.glob("eval_confusion*.tsv")))
        ),
        "Hardest examples": list(
            map(_hardest, sorted(folder.glob("eval_hardest*.tsv")))
        ),
    }
    lacking = {
        "Labels": "scores of single labels",
        "Confusions": "confusion matrix",
        "Hardest examples": "list of its hardest examples",
    }
    return [
        section(
            level,
            title,
            *(tables or [paragraph(f"The run has no {lacking[title]}.")]),
        )
        for title, tables in found.items()
    ]


def _place(name: str, layer: Optional[int]) -> str:
    """Where a variable is, the same for all layers and its biases."""
    folder = name.rpartition("/")[0] or name
    return folder.replace(f"layer_{layer}/", "").replace(f"/layer_{layer}", "")


def measure(artifact: adapter_artifact.Artifact, path: str) -> Norms:
    """The norms of what was added to BERT.

    Raises:
        UserError: its BERT is none of this program.
    """
    own = encoder.list_variables(run_record.bert_config(artifact.config, path))
    norms: Norms = {}
    for name in artifact.weights.shapes:
        if name in own or name.endswith((INDICES, VALUES)):
            continue
        layer = layer_of(name)
        by_layer = norms.setdefault(_place(name, layer), {})
        square, count = by_layer.get(layer, (0.0, 0))
        value = np.asarray(artifact.weights.read(name), np.float64)
        by_layer[layer] = square + np.sum(value**2), count + value.size
    return norms


def _norm(entry: Optional[Tuple[float, int]]) -> str:
    return "–" if entry is None else f"{np.sqrt(entry[0]):.4g}"


def _figure(name: str, norms: Mapping[str, Dict]) -> Element:
    points = {
        place: [(layer, np.sqrt(by[layer][0])) for layer in sorted(by)]
        for place, by in norms.items()
    }
    return figure(
        lines(name, points, "layer", "norm", from_zero=True),
        name,
        "Norms of what was added, by layer",
        "The norm of what was added at each place, over the layers from 0. "
        "The numbers are in the table.",
    )


def norm_section(folder: pathlib.Path, level: int, name: str) -> Element:
    """The norms of the adapter of a run or of one task.

    No other figure of the page has the name.

    Raises:
        UserError: the adapter is damaged.
    """
    title = "Norms of the adapter"
    place = folder / "adapter"
    if not (place / adapter_artifact.CONFIG_FILE).exists():
        return section(level, title, paragraph("The run has no adapter here."))
    path = str(place / adapter_artifact.CONFIG_FILE)
    norms = measure(adapter_artifact.read(str(place)), path)
    layered = {
        place: by for place, by in sorted(norms.items()) if set(by) != {None}
    }
    content: List[Element] = [
        paragraph(
            "A norm is the root of the sum of the squares of a place's values "
            "(Euclidean). BERT's own variables are left out, trained or not."
        )
    ]
    if layered:
        if len(layered) <= MOST_LINES:
            content.append(_figure(name, layered))
        layers = sorted({layer for by in layered.values() for layer in by})
        content.append(
            table(
                "Norm of what was added at each place of each layer",
                ("layer", *layered),
                [
                    (
                        str(layer),
                        *(_norm(by.get(layer)) for by in layered.values()),
                    )
                    for layer in layers
                ],
            )
        )
    else:
        content.append(paragraph("The method adds nothing to the layers."))
    others = {place: by for place, by in norms.items() if place not in layered}
    if others:
        content.append(
            table(
                "Norm of what was added outside of the layers",
                ("place", "norm", "numbers"),
                [
                    (place, _norm(by[None]), f"{by[None][1]:,}")
                    for place, by in others.items()
                ],
            )
        )
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


def read_run(folder: pathlib.Path) -> Dict[str, Any]:
    """The description of a run.

    Raises:
        UserError: it cannot be read.
    """
    path = str(folder / run_record.RUN_FILE)
    return files.read_object(path, "the run's description", RUN)


def _configuration(run: Mapping[str, Any]) -> Element:
    base = {
        "name": run["base"].get("name"),
        "fingerprint": run["base"]["fingerprint"],
        **run["bert_config"],
    }
    task = {k: v for k, v in run["task"].items() if k != "tasks"}
    return section(
        2,
        "Configuration",
        _facts(
            "Task and method",
            {
                "task": task.pop("name"),
                "data": run_record.data_name(run),
                **task,
                "method": run["method"],
            },
        ),
        _facts("Training", run["training"]),
        _facts("Pretrained model", base),
        _facts("Versions", run.get("versions") or {}),
    )


def _command(folder: pathlib.Path, run: Mapping[str, Any]) -> Element:
    """The command line; raises as `command_of`."""
    title = "Command"
    if is_one_of_several(run):
        names = ", ".join(run["training"]["trained_together"])
        return section(
            2,
            title,
            paragraph(
                f"This task was trained together with others ({names}). The "
                "report of the whole run has the command."
            ),
        )
    command = command_of(folder, run)
    content = [
        paragraph(
            "This does the run again, as far as the run records it. Its "
            "variables are"
        ),
        bullets(
            element("span", element("code", one.name), f": {one.meaning}")
            for one in command.unknown
        ),
        element("pre", element("code", command.text), tabindex="0"),
        paragraph(
            "Runs do not record ",
            *_code_list(command.unrecorded),
            ": pass them if the run had them.",
        ),
    ]
    return section(2, title, *content)


def _code_list(flags: Tuple[str, ...]) -> Iterator[Any]:
    for number, name in enumerate(flags):
        if number:
            yield " and " if number == len(flags) - 1 else ", "
        yield element("code", f"--{name}")


def _scores(folder: pathlib.Path, level: int) -> Element:
    """The scores; raises `UserError` if they cannot be read."""
    title, path = "Scores", folder / "eval_results.json"
    if not path.exists():
        return section(
            level, title, paragraph("The run has not been evaluated.")
        )
    results = files.read_object(
        str(path), "a run's scores", collect_runs.RESULTS
    )
    rows = [
        (name[len("eval_") :].replace("_", " "), f"{value:.4f}")
        for name, value in results.items()
        if name.startswith("eval_")
    ]
    caption = f"Scores of the dev set after step {results['global_step']:,}"
    return section(level, title, table(caption, ("score", "value"), rows))


def _curve(name: str, what: str, curve: Curve) -> Element:
    """A figure of one curve, its course in words below."""
    (first, start), (last, end) = curve[0], curve[-1]
    (least, low) = min(curve, key=lambda point: point[1])
    (most, high) = max(curve, key=lambda point: point[1])
    text = (
        f"{what}: {start:.4g} at step {first:,}, {end:.4g} at step {last:,}; "
        f"lowest {low:.4g} at step {least:,}, highest {high:.4g} at step "
        f"{most:,}."
    )
    return figure(
        lines(name, {what: curve}, "step", what), name, f"{what} by step", text
    )


def _curves(folder: pathlib.Path) -> Element:
    train, dev = read_curves(folder), read_curves(folder / "eval")
    content: List[Element] = []
    for name, what in (
        ("loss", "training loss"),
        ("learning_rate", "learning rate"),
    ):
        if len(train.get(name, ())) > 1:
            content.append(_curve(f"train-{name}", what, train[name]))
    if not content:
        content.append(paragraph("The run has no curve of its training."))
    steps = sorted({step for curve in dev.values() for step, _ in curve})
    if len(steps) < 2:
        content.append(
            paragraph(
                "The dev set was not scored while training: there is no curve "
                "of scores."
            )
        )
        return section(2, "Curves", *content)
    for number, (name, curve) in enumerate(dev.items()):
        if len(curve) > 1:
            what = f"dev {name.replace('_', ' ')}"
            content.append(_curve(f"dev-{number}", what, curve))
    by_name = {name: dict(curve) for name, curve in dev.items()}
    content.append(
        table(
            "Scores of the dev set by step",
            ("step", *(name.replace("_", " ") for name in by_name)),
            [
                (
                    f"{step:,}",
                    *(
                        f"{curve[step]:.4f}" if step in curve else "–"
                        for curve in by_name.values()
                    ),
                )
                for step in steps
            ],
        )
    )
    return section(2, "Curves", *content)


def _size_and_cost(folder: pathlib.Path, run: Mapping[str, Any]) -> Element:
    """Parameters, time, memory; raises `UserError` if these are damaged."""
    parameters = run["parameters"]
    total = max(1, parameters["total"])
    names = {
        "total": "of the model",
        "trained": "trained",
        "kept": "kept of the task",
    }
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
                for name, text in names.items()
                if parameters.get(name) is not None
            ],
        )
    ]
    path = folder / "cost.json"
    if not path.exists():
        content.append(paragraph("The run does not say what it took."))
        return section(2, "Parameters, time and memory", *content)
    cost = files.read_object(str(path), "a run's costs", COST)
    content.append(
        table(
            "What the run took",
            ("what", "amount"),
            [
                ("time", f"{cost['seconds'] / 60:,.1f} min"),
                (
                    "processor time",
                    f"{cost['processor_seconds'] / 60:,.1f} min",
                ),
                ("peak memory", f"{cost['peak_memory_bytes'] / 2**30:.2f} GiB"),
            ],
        )
    )
    if cost["resumed"]:
        content.append(
            paragraph(
                "The training was resumed: this is what its last process took."
            )
        )
    return section(2, "Parameters, time and memory", *content)


def _members(folder: pathlib.Path, run: Mapping[str, Any]) -> List[Element]:
    """A part of each of several tasks; raises as `evaluation_sections`."""
    found = []
    for number, name in enumerate(run["task"].get("tasks") or {}):
        place = folder / "tasks" / name
        found.append(
            section(
                2,
                f"Task {name}",
                _scores(place, 3),
                *evaluation_sections(place, 3),
                norm_section(place, 3, f"norms-{number}"),
            )
        )
    return found


def sections_of_run(folder: pathlib.Path) -> Tuple[str, List[Element]]:
    """The title of a run's report, and its parts.

    Raises:
        UserError: a file cannot be read.
    """
    run = read_run(folder)
    members = _members(folder, run)
    own = [] if members else evaluation_sections(folder, 2)
    norms = [] if members else [norm_section(folder, 2, "norms")]
    return f"Run {folder.resolve().name}: {run['task']['name']}", [
        _scores(folder, 2),
        _configuration(run),
        _command(folder, run),
        _curves(folder),
        *own,
        *members,
        *norms,
        _size_and_cost(folder, run),
    ]
