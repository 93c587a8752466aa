"""What a report says of one run."""

import pathlib
from typing import Any, Dict, Iterator, List, Mapping, Tuple
from xml.etree.ElementTree import Element

from scripts.internal.adapter_norms import norm_section
from scripts.internal.collect_runs import RESULTS
from scripts.internal.html_page import (
    bullets,
    element,
    figure,
    paragraph,
    section,
    table,
)
from scripts.internal.report_figures import lines
from scripts.internal.run_command import command_of, is_one_of_several
from scripts.internal.run_curves import Curve, read_curves
from scripts.internal.run_tables import evaluation_sections
from storage import files
from weights import run_record

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
COST = {
    "resumed": bool,
    "seconds": float,
    "processor_seconds": float,
    "peak_memory_bytes": float,
}
# Longer lists, as of labels, are cut.
MOST_ITEMS = 30


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
    results = files.read_object(str(path), "a run's scores", RESULTS)
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

    Args:
        folder: with `run.json`.

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
