"""Measures many tasks upon one BERT, asked in random mix.

    .venv/bin/python -m lab.speed.serving --peer_python=.venv-peer/bin/python

Batches of 32 rows, each row with a task of its own, are computed in common;
beside them are batches of one task, the same rows one task after another, as
many fully fine-tuned models, and AdapterHub's `BatchSplit` and peft's
`adapter_names` in processes that take turns with ours. All values are random;
sizes and ranks are 8 to 64. Writes `results/serving.json`, docs/serving.png and
a table in docs/performance.md.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
from typing import Any, Dict, List

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from adapter_bert import command_line, files
from adapter_bert.commands import minilm
from adapter_bert.errors import UserError
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.training import cpu_cores
from lab.speed import compare, processes
from lab.speed.compare import ROOT
from lab.speed.predictor import write_artifacts

RESULTS = ROOT / "lab" / "results" / "serving.json"
FIGURE = ROOT / "docs" / "serving.png"
BEGIN, END = "<!-- serving: begin -->\n", "<!-- serving: end -->\n"
PEER = ROOT / "lab" / "speed" / "peers" / "serving_worker.py"
OURS = (processes.OURS[0], "-m", "lab.speed.serving_worker")

BATCH_SIZE = 32
SIZES = (8, 16, 32, 64)
COUNTS = (1, 10, 100, 500)
# What is fine-tuned wholly is a BERT each: more do not fit into 24 GiB.
MOST_WHOLE = {"minilm": 100, "base": 10}
# Rows of a measurement, by model and tokens of a row.
BATCHES = {
    ("minilm", 32): 12,
    ("minilm", 128): 4,
    ("base", 32): 3,
}
# What is measured: our method, and the library that has it too.
METHODS = {"houlsby": "adapterhub", "lora": "peft", "full": ""}
TEXTS = {
    "houlsby": "houlsby(size={})",
    "lora": "lora(rank={0}, alpha={0}.0)",
    "full": "full",
}


def measure(
    model: str, folders: Dict[str, List[str]], options: Dict[str, Any]
) -> Dict[str, Any]:
    """Measures all methods with as many tasks.

    Args:
        model: a BERT's folder.
        folders: of the tasks of each method.
        options: `tokens`, `batches`, `count`, `rounds`, `peer`.

    Returns:
        Of each method and each peer the rates and memory of all rounds.
    """
    shared = {
        "model": model,
        "tokens": options["tokens"],
        "batches": options["batches"],
        "batch_size": BATCH_SIZE,
    }
    workers = {}
    for method, of_method in folders.items():
        workers[method] = processes.Worker(
            OURS, {**shared, "folders": of_method}
        )
        if options["peer"] and METHODS[method]:
            workers[METHODS[method]] = processes.Worker(
                (options["peer"], str(PEER)),
                {
                    **shared,
                    "library": METHODS[method],
                    "count": options["count"],
                    "sizes": SIZES,
                    "cores": cpu_cores.count(),
                },
            )
    measured = processes.measure_in_turn(workers, options["rounds"])
    return {
        name: {
            key: compare.spread([one[key] for one in rounds])
            for key in rounds[0]
        }
        for name, rounds in measured.items()
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
    machine = results["machine"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores; TensorFlow "
        f"{results['versions']['tensorflow']}; batches of {BATCH_SIZE} rows, "
        f"sizes and ranks {', '.join(map(str, SIZES))}; rows a second, medians "
        f"of {results['rounds']} rounds.",
        "",
        "| model, tokens | tasks | adapters: one task | random mix | one after "
        "another | AdapterHub's mix | whole models | LoRA: one task | random "
        "mix | peft's mix | memory of adapters, AdapterHub's, whole models, "
        "MB |",
        "|" + "---|" * 11,
    ]
    for model, by_tokens in results["rates"].items():
        for tokens, by_count in by_tokens.items():
            for count, found in by_count.items():
                cells = [
                    f"{model}, {tokens}",
                    str(count),
                    _rate(found, "houlsby", "one"),
                    _share(found, "houlsby"),
                    _rate(found, "houlsby", "one after another"),
                    _peer(found, "adapterhub", "houlsby"),
                    _rate(found, "full", "one after another"),
                    _rate(found, "lora", "one"),
                    _share(found, "lora"),
                    _peer(found, "peft", "lora"),
                    " / ".join(
                        _memory(found, name)
                        for name in ("houlsby", "adapterhub", "full")
                    ),
                ]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


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
    panels = [
        (f"{model}, {tokens} tokens", by_count)
        for model, by_tokens in results["rates"].items()
        for tokens, by_count in by_tokens.items()
    ]
    figure = Figure(figsize=(3.4 * len(panels), 4.2), layout="constrained")
    rows = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, by_count) in zip(rows, panels):
        for label, name, way, color, style in (
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
        ):
            points = [
                (int(count), found[name][way]["median"])
                for count, found in by_count.items()
                if name in found
            ]
            if points:
                axes.plot(*zip(*points), style, color=color, label=label)
        counts = list(map(int, by_count))
        axes.set_xscale("log")
        axes.set_xticks(counts, list(map(str, counts)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("tasks")
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer_python", default="", help="the peers' Python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--counts", type=int, nargs="+", default=COUNTS, help="numbers of tasks"
    )
    parser.add_argument(
        "--models", nargs="+", default=["minilm", "base"], help="which BERTs"
    )
    arguments = parser.parse_args()
    peer = arguments.peer_python
    if peer and not files.exists(peer):
        raise UserError(f"--peer_python {peer} does not exist")
    if "base" in arguments.models and not peer:
        raise UserError(
            "a BERT of the base's size is made by the peers' Python; pass "
            "--peer_python, or --models minilm"
        )
    results: Dict[str, Any] = {
        **compare.environment(),
        "rounds": arguments.rounds,
        "rates": {},
    }
    for name in arguments.models:
        results["rates"][name] = of_model(name, arguments)
    table = to_markdown(results)
    print(table)
    files.write_json(str(RESULTS), results)
    draw(results, str(FIGURE))
    compare.write_table(table, BEGIN, END)


def of_model(name: str, arguments: argparse.Namespace) -> Dict[int, Any]:
    """Rates by tokens of a row and number of tasks."""
    model = minilm.folder()
    found: Dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if name == "base":
            vocabulary = f"{model}/vocab.txt"
            model = f"{scratch}/base"
            subprocess.run(
                [arguments.peer_python, PEER, "make", model, vocabulary],
                check=True,
            )
        counts = dict.fromkeys(("houlsby", "lora"), max(arguments.counts))
        counts["full"] = min(max(arguments.counts), MOST_WHOLE[name])
        folders = write_tasks(
            pathlib.Path(scratch), FrozenBert.open(model), counts
        )
        for model_name, tokens in BATCHES:
            if model_name != name:
                continue
            found[tokens] = {}
            for count in arguments.counts:
                some = {
                    method: of_method[:count]
                    for method, of_method in folders.items()
                    if count <= len(of_method)
                }
                options = {
                    "tokens": tokens,
                    "batches": BATCHES[name, tokens],
                    "count": count,
                    "rounds": arguments.rounds,
                    "peer": arguments.peer_python,
                }
                found[tokens][count] = measure(model, some, options)
                medians = {
                    key: {k: round(v["median"], 1) for k, v in values.items()}
                    for key, values in found[tokens][count].items()
                }
                print(name, tokens, count, json.dumps(medians), flush=True)
    return found


if __name__ == "__main__":
    command_line.run(main)
