"""Measures what a predictor takes: its first answer, a swap, many tasks.

    .venv/bin/python -m lab.speed.predictor

Each number of tasks, as adapters upon one BERT and as whole models, is loaded
in a process of its own. All artifacts hold random values. Whole models are
what full fine-tuning leaves, with BERT's own values changed; they are loaded
by the same predictor, which holds all that they changed. Writes
`results/predictor.json` and a table in docs/performance.md.
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

from adapter_bert import command_line, files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.commands import minilm
from adapter_bert.methods.registry import parse
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.predictor import Predictor
from adapter_bert.tasks import task_model
from adapter_bert.tasks.custom import custom_task
from lab.speed import compare
from lab.speed.compare import ROOT

RESULTS = ROOT / "lab" / "results" / "predictor.json"
BEGIN, END = "<!-- predictor: begin -->\n", "<!-- predictor: end -->\n"

METHODS = {"adapters": "houlsby(size=64)", "whole models": "full"}
COUNTS = (1, 10, 100)
# More than these do not fit the memory of a laptop.
MOST = {"adapters": 100, "whole models": 10}
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


def resident_memory() -> int:
    """Bytes that this process occupies now; Linux only."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_alone(model: str, folders: List[str]) -> Dict[str, Any]:
    """What `measure` finds in a new process."""
    command = [sys.executable, "-m", "lab.speed.predictor", "--measure"]
    found = subprocess.run(
        [*command, json.dumps([model, folders])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(found.stdout)


def to_markdown(results: Dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    machine = results["machine"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores; TensorFlow "
        f"{results['versions']['tensorflow']}; MiniLM, adapters of size 64; "
        f"medians of {results['rounds']} processes each.",
        "",
        "| tasks | first answer, s | load a task, ms | swap, ms | answer after "
        "it, ms | memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    for kind, by_count in results["summary"].items():
        for count, found in by_count.items():
            lines.append(
                f"| {count} {kind} | {found['first_answer_seconds']:.2f} | "
                f"{1e3 * found['load_seconds']:.0f} | "
                f"{1e3 * found['swap_seconds']:.0f} | "
                f"{1e3 * found['swapped_answer_seconds']:.0f} | "
                f"{found['memory_bytes'] / 1e6:,.0f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures every kind and number.

    Raises:
        UserError: there is no model.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a pretrained BERT's folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*json.loads(arguments.measure))))
        return
    model = arguments.model or minilm.folder()
    bert = FrozenBert.open(model)
    results: Dict[str, Any] = {
        **compare.environment(),
        "rounds": arguments.rounds,
        "summary": {},
    }
    for kind, method in METHODS.items():
        results["summary"][kind] = {}
        with tempfile.TemporaryDirectory() as scratch:
            counts = [count for count in COUNTS if count <= MOST[kind]]
            folders = write_artifacts(
                pathlib.Path(scratch), bert, method, counts[-1]
            )
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
    files.write_json(str(RESULTS), results)
    compare.write_table(table, BEGIN, END)


if __name__ == "__main__":
    command_line.run(main)
