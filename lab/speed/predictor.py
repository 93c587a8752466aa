"""Measures what a predictor takes: its first answer, a swap, many tasks.

    .venv/bin/python -m lab.speed.predictor

Each number of tasks, as adapters on one BERT and as whole models, is loaded in
a process of its own. All artifacts hold random values. Whole models are the
result of full fine-tuning, with BERT's own values changed; the same predictor
holds them. Writes `lab/results/predictor.json` and a table in
docs/performance.md.
"""

import argparse
import dataclasses
import gc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import command_line
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.commands import minilm
from adapter_bert.methods.registry import parse
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.predictor import Predictor
from adapter_bert.tasks import task_model
from adapter_bert.tasks.custom import custom_task
from lab import report
from lab.speed import measuring
from lab.speed.worker import resident_memory

# Method and numbers of tasks. More whole models do not fit into a laptop.
METHODS = {
    "adapters": ("houlsby(size=64)", (1, 10, 100)),
    "whole models": ("full", (1, 10)),
}
SWAPS = 20
TEXT = "a gripping story, told with great care"


def write_artifacts(
    folder: pathlib.Path, bert: FrozenBert, method: str, count: int
) -> List[str]:
    """Writes artifacts of random values; returns their folders."""
    task = dataclasses.replace(custom_task(), labels=("bad", "good"))
    table = task_model.list_parameters(
        bert.config, parse(method), task.build_head
    )
    length = min(128, bert.config.max_position_embeddings)
    found = []
    for number in range(count):
        rng = np.random.default_rng(number)
        values = {}
        for p in table.trained:
            value = rng.standard_normal(p.shape, np.float32) * 0.01
            if not p.is_added:
                value += bert.weights.read(p.name)
            values[p.name] = value
        found.append(str(folder / str(number)))
        os.mkdir(found[-1])
        adapter_artifact.write(
            found[-1],
            {
                "method": method,
                "task": {"name": "custom", **task.describe()},
                "base": bert.base.describe(),
                "tokenizer": bert.tokenizer().describe(),
                "bert_config": dataclasses.asdict(bert.config),
                "training": {"max_seq_length": length},
            },
            values,
        )
    return found


def measure(model: str, folders: List[str]) -> Dict[str, Any]:
    """Loads all, asks each, then swaps one; for a process of its own.

    Returns:
        `first_answer_seconds`, from the BERT's path on; `load_seconds`, of
        each task; `swap_seconds` and `swapped_answer_seconds`, medians; and
        `memory_bytes` of the process when every task has answered.
    """
    began = time.perf_counter()
    predictor = Predictor.load(model, {"0": folders[0]})
    predictor("0", TEXT)
    first = time.perf_counter() - began
    loads = []
    for number, folder in enumerate(folders):
        began = time.perf_counter()
        predictor.add(folder, str(number))
        loads.append(time.perf_counter() - began)
        predictor(str(number), TEXT)
    gc.collect()
    memory = resident_memory()
    swaps, answers = [], []
    for number in range(SWAPS):
        began = time.perf_counter()
        predictor.add(folders[number % len(folders)], "0")
        swaps.append(time.perf_counter() - began)
        began = time.perf_counter()
        predictor("0", TEXT)
        answers.append(time.perf_counter() - began)
    return {
        "first_answer_seconds": first,
        "load_seconds": float(np.median(loads)),
        "swap_seconds": float(np.median(swaps)),
        "swapped_answer_seconds": float(np.median(answers)),
        "memory_bytes": memory,
    }


def run_alone(model: str, folders: List[str]) -> Dict[str, Any]:
    """What `measure` finds in a new process."""
    command = [sys.executable, "-m", "lab.speed.predictor", "--measure"]
    found = subprocess.run(
        [*command, json.dumps([model, folders])],
        cwd=report.ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(found.stdout)


def to_markdown(results: Dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    header = "tasks; first answer, s; load a task, ms; swap, ms; answer after "
    rows = [f"{header}it, ms; memory, MB".split("; ")]
    for kind, by_count in results["summary"].items():
        for count, found in by_count.items():
            names = ("load", "swap", "swapped_answer")
            times = [f"{1e3 * found[f'{n}_seconds']:.0f}" for n in names]
            first = f"{found['first_answer_seconds']:.2f}"
            memory = f"{found['memory_bytes'] / 1e6:,.0f}"
            rows.append([f"{count} {kind}", first, *times, memory])
    about = "MiniLM, adapters of size 64; medians of "
    about += f"{results['rounds']} processes each"
    return measuring.table(results, about, rows)


def main() -> None:
    """Measures every kind and number.

    Raises:
        UserError: there is no model.
    """
    parser = measuring.make_parser(__doc__, rounds=3)
    parser.add_argument("--model", help="a pretrained BERT's folder")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = measuring.parse(parser)
    if arguments.measure:
        print(json.dumps(measure(*json.loads(arguments.measure))))
        return
    model = arguments.model or minilm.folder()
    bert = FrozenBert.open(model)
    results: Dict[str, Any] = {
        **report.environment(),
        "rounds": arguments.rounds,
        "summary": {kind: {} for kind in METHODS},
    }
    for kind, (method, counts) in METHODS.items():
        with tempfile.TemporaryDirectory() as scratch:
            place = pathlib.Path(scratch)
            folders = write_artifacts(place, bert, method, max(counts))
            for count in counts:
                rounds = [
                    run_alone(model, folders[:count])
                    for _ in range(arguments.rounds)
                ]
                found = {
                    name: float(np.median([one[name] for one in rounds]))
                    for name in rounds[0]
                }
                results["summary"][kind][count] = found
                print(count, kind, json.dumps(found), flush=True)
    table = to_markdown(results)
    print(table)
    measuring.publish("predictor", results, table)


if __name__ == "__main__":
    command_line.run(main)
