"""Measures many tasks on one BERT, asked in random mix.

    .venv/bin/python -m lab.speed.serving --peer_python=.venv-peer/bin/python

Batches of 32 rows, each row with a task of its own, are computed in common;
beside them are batches of one task, the same rows one task after another, as
many fully fine-tuned models, and AdapterHub's `BatchSplit` and peft's
`adapter_names` in processes that take turns with ours. All values are random;
sizes and ranks are 8 to 64. Writes `lab/results/serving.json`, docs/serving.png and
a table in docs/performance.md.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import tempfile
from typing import Any, Dict, Iterator, List, Tuple

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from adapter_bert import command_line
from adapter_bert.commands import minilm
from adapter_bert.errors import UserError
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.training import cpu_cores
from lab import report
from lab.speed import measuring
from lab.speed.measuring import BATCH_SIZE, OURS, Worker
from lab.speed.predictor import write_artifacts

FIGURE = report.ROOT / "docs" / "serving.png"
PEER = measuring.PEERS / "serving_worker.py"

SIZES = (8, 16, 32, 64)
COUNTS = (1, 10, 100, 500)
# Each wholly fine-tuned task is a BERT: more do not fit into 24 GiB.
MOST_WHOLE = {"minilm": 100, "base": 10}
# Tokens of a row and batches of a measurement, by model.
BATCHES = {"minilm": {32: 12, 128: 4}, "base": {32: 3}}
# Our methods, and the library that has each too.
METHODS = {"houlsby": "adapterhub", "lora": "peft", "full": ""}
TEXTS = {
    "houlsby": "houlsby(size={})",
    "lora": "lora(rank={0}, alpha={0}.0)",
    "full": "full",
}
# Of the figure: label, name, way, colour and style.
LINES = (
    ("adapters, random mix", "houlsby", "mixed", "#0072b2", "o-"),
    (
        "adapters, one after another",
        "houlsby",
        "one after another",
        "#0072b2",
        "o:",
    ),
    ("AdapterHub's BatchSplit", "adapterhub", "mixed", "#d55e00", "s-"),
    ("LoRA, random mix", "lora", "mixed", "#009e73", "^-"),
    ("peft's adapter_names", "peft", "mixed", "#cc79a7", "v-"),
    ("whole models", "full", "one after another", "0.45", "x:"),
)


def measure(
    folders: Dict[str, List[str]],
    options: Dict[str, Any],
    peer: str,
    rounds: int,
) -> Dict[str, Any]:
    """Measures all methods with as many tasks.

    Args:
        folders: of the tasks of each method.
        options: `model`, `tokens`, `batches` and `count` of the workers.
        peer: the peers' Python, or "".
        rounds: of measurements.

    Returns:
        The rates and memory of all rounds, of each method and each peer.
    """
    options = {**options, "kind": "tasks", "batch_size": BATCH_SIZE}
    more = {"sizes": SIZES, "cores": cpu_cores.count()}
    workers = {}
    for method, of_method in folders.items():
        workers[method] = Worker(OURS, {**options, "folders": of_method})
        library = METHODS[method]
        if peer and library:
            workers[library] = Worker(
                (peer, str(PEER)), {**options, **more, "library": library}
            )
    return {
        name: {
            key: measuring.spread([one[key] for one in rounds])
            for key in rounds[0]
        }
        for name, rounds in measuring.in_turn(workers, rounds).items()
    }


def write_tasks(
    folder: pathlib.Path, bert: FrozenBert, counts: Dict[str, int]
) -> Dict[str, List[str]]:
    """Writes artifacts of every method; returns their folders."""
    found = {}
    for method, count in counts.items():
        by_size = []
        for number, size in enumerate(SIZES):
            text = TEXTS[method].format(size)
            path = folder / method / str(size)
            path.mkdir(parents=True)
            some = len(range(number, count, len(SIZES)))
            by_size.append(iter(write_artifacts(path, bert, text, some)))
        found[method] = [
            next(by_size[number % len(SIZES)]) for number in range(count)
        ]
    return found


def to_markdown(results: Dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    header = (
        "model, tokens; tasks; adapters: one task; random mix; one after "
        "another; AdapterHub's mix; whole models; LoRA: one task; random mix; "
        "peft's mix; memory of adapters, AdapterHub's, whole models, MB"
    )
    rows = [header.split("; ")]
    for name, count, found in _cases(results):
        memory = (_memory(found, n) for n in ("houlsby", "adapterhub", "full"))
        rows.append(
            [
                name,
                str(count),
                _rate(found, "houlsby", "one"),
                _share(found, "houlsby"),
                _rate(found, "houlsby", "one after another"),
                _peer(found, "adapterhub", "houlsby"),
                _rate(found, "full", "one after another"),
                _rate(found, "lora", "one"),
                _share(found, "lora"),
                _peer(found, "peft", "lora"),
                " / ".join(memory),
            ]
        )
    about = (
        f"batches of {BATCH_SIZE} rows, sizes and ranks "
        f"{', '.join(map(str, SIZES))}; rows a second, medians of "
        f"{results['rounds']} rounds"
    )
    return measuring.table(results, about, rows)


def _cases(results: Dict[str, Any]) -> Iterator[Tuple[str, int, Any]]:
    """(model and tokens, number of tasks, what was found)."""
    for model, by_tokens in results["rates"].items():
        for tokens, by_count in by_tokens.items():
            for count, found in by_count.items():
                yield f"{model}, {tokens}", int(count), found


def _rate(found: Dict[str, Any], name: str, way: str) -> str:
    return f"{found[name][way]['median']:.0f}" if name in found else "-"


def _share(found: Dict[str, Any], name: str) -> str:
    """A random mix, and its share of one task's rate."""
    mixed = found[name]["mixed"]["median"]
    return f"{mixed:.0f} ({mixed / found[name]['one']['median']:.0%})"


def _peer(found: Dict[str, Any], peer: str, name: str) -> str:
    """A peer's random mix, and how many times faster ours is."""
    if peer not in found:
        return "-"
    theirs = found[peer]["mixed"]["median"]
    ratio = found[name]["mixed"]["median"] / theirs
    return f"{theirs:.0f} (ours **{ratio:.2f}** times)"


def _memory(found: Dict[str, Any], name: str) -> str:
    if name not in found:
        return "-"
    return f"{found[name]['memory_bytes']['median'] / 1e6:,.0f}"


def draw(results: Dict[str, Any], path: str) -> None:
    """Draws rates over numbers of tasks, a panel for each model and length."""
    panels: Dict[str, Dict[int, Any]] = collections.defaultdict(dict)
    for name, count, found in _cases(results):
        panels[f"{name} tokens"][count] = found
    figure = Figure(figsize=(3.4 * len(panels), 4.2), layout="constrained")
    rows = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, by_count) in zip(rows, panels.items()):
        for label, name, way, color, style in LINES:
            points = [
                (count, found[name][way]["median"])
                for count, found in by_count.items()
                if name in found
            ]
            if points:
                axes.plot(*zip(*points), style, color=color, label=label)
        axes.set(xscale="log", xlabel="tasks")
        axes.set_xticks(list(by_count), list(map(str, by_count)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize="medium")
        axes.grid(color="0.9")
    rows[0].set_ylabel("rows a second")
    handles, labels = rows[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures what the arguments name.

    Raises:
        UserError: there is no such peer.
    """
    parser = measuring.make_parser(__doc__, rounds=3)
    parser.add_argument("--peer_python", default="", help="the peers' Python")
    parser.add_argument(
        "--counts", type=int, nargs="+", default=COUNTS, help="numbers of tasks"
    )
    parser.add_argument(
        "--models", nargs="+", default=[*BATCHES], help="which BERTs"
    )
    arguments = measuring.parse(parser)
    if "base" in arguments.models and not arguments.peer_python:
        raise UserError(
            "a BERT of the base's size is made by the peers' Python; pass "
            "--peer_python, or --models minilm"
        )
    results: Dict[str, Any] = {
        **report.environment(),
        "rounds": arguments.rounds,
        "rates": {name: of_model(name, arguments) for name in arguments.models},
    }
    table = to_markdown(results)
    print(table)
    measuring.publish("serving", results, table)
    draw(results, str(FIGURE))


def of_model(name: str, arguments: argparse.Namespace) -> Dict[int, Any]:
    """Rates by tokens of a row and number of tasks."""
    model, peer = minilm.folder(), arguments.peer_python
    found: Dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if name == "base":
            words = f"{model}/vocab.txt"
            model = f"{scratch}/base"
            subprocess.run([peer, PEER, "make", model, words], check=True)
        most = max(arguments.counts)
        counts = {"houlsby": most, "lora": most}
        counts["full"] = min(most, MOST_WHOLE[name])
        bert = FrozenBert.open(model)
        folders = write_tasks(pathlib.Path(scratch), bert, counts)
        for tokens, batches in BATCHES[name].items():
            found[tokens] = {}
            for count in arguments.counts:
                some = {
                    method: of_method[:count]
                    for method, of_method in folders.items()
                    if count <= len(of_method)
                }
                options = {
                    "model": model,
                    "tokens": tokens,
                    "batches": batches,
                    "count": count,
                }
                one = measure(some, options, peer, arguments.rounds)
                found[tokens][count] = one
                print(name, tokens, count, json.dumps(one), flush=True)
    return found


if __name__ == "__main__":
    command_line.run(main)
