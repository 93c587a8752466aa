"""Measures the bytes that many tasks take, as adapters or as whole models.

    .venv/bin/python -m lab.speed.storage

Of each kind one artifact is written and its files measured; n tasks take n
times that, for its size depends on shapes only. For the smallest kind 1,000
artifacts with different values are written, and the program fails unless
their measured sum is 1,000 times that of one. To the adapters comes the base
model, once, as a file of float32 weights; a fully fine-tuned artifact holds
all weights. Writes `results/storage.json` and docs/storage.png.
"""

import argparse
import dataclasses
import pathlib
import tempfile
from typing import Any, Dict, List

import numpy as np
import safetensors.numpy
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import adapter_artifact, run_record
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.task_model import Parameter
from lab.speed.compare import ROOT, environment
from lab.speed.worker import TASK

RESULTS = ROOT / "lab" / "results" / "storage.json"
FIGURE = ROOT / "docs" / "storage.png"

TASKS = (1, 3, 10, 30, 100, 300, 1000)
MODELS = {
    "MiniLM": BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        hidden_act="gelu_erf",
    ),
    "BERT-base": BertConfig(vocab_size=30522),
}
METHODS = ("full", "houlsby(size=256)", "houlsby(size=64)", "houlsby(size=8)")
# Colour, marker and line of each; told apart without colours too.
STYLES = (
    ("#000000", "o", "-"),
    ("#d55e00", "s", "--"),
    ("#0072b2", "^", "-."),
    ("#009e73", "D", ":"),
)


def random_values(
    parameters: List[Parameter], seed: int
) -> Dict[str, np.ndarray]:
    """Random float32 values of variables, by name."""
    rng = np.random.default_rng(seed)
    return {
        p.name: rng.standard_normal(p.shape, np.float32) for p in parameters
    }


def write_artifact(
    folder: pathlib.Path, config: BertConfig, method: str, task: int
) -> int:
    """Writes what a training of one task with two labels leaves.

    Args:
        folder: a new folder for it.
        config: the BERT.
        method: the tuning method.
        task: its number, below 10,000.

    Returns:
        Bytes of its files.
    """
    table = task_model.list_parameters(config, parse(method), TASK.build_head)
    folder.mkdir()
    fingerprint = "0" * 64  # As long as those of a real run.
    description = {
        "checkpoint": "model.ckpt-1000",
        "base": {"name": "model", "fingerprint": fingerprint},
        "tokenizer": {"fingerprint": fingerprint, "do_lower_case": True},
        "method": table.method,
        "task": {"name": f"task-{task:04}", **TASK.describe()},
        "bert_config": dataclasses.asdict(config),
        "training": {"data": fingerprint, "learning_rate": 1e-4, "seed": 1},
        "parameters": {
            "total": table.total_count,
            "trained": table.trained_count,
        },
        "versions": run_record.versions(),
    }
    adapter_artifact.write(
        str(folder), description, random_values(table.trained, task)
    )
    return count_bytes(folder)


def write_base(folder: pathlib.Path, config: BertConfig) -> int:
    """Writes BERT's own weights; returns their bytes."""
    table = task_model.list_parameters(config, parse("full"), TASK.build_head)
    own = [p for p in table.parameters if not p.is_added]
    folder.mkdir()
    safetensors.numpy.save_file(
        random_values(own, 1), folder / "model.safetensors"
    )
    return count_bytes(folder)


def count_bytes(folder: pathlib.Path) -> int:
    """Sum of the sizes of all files in a folder and below it."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def measure_one(config: BertConfig, method: str) -> int:
    """Bytes of one artifact, or of the base model if the method is empty."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "one"
        if not method:
            return write_base(folder, config)
        return write_artifact(folder, config, method, 0)


def measure_many(config: BertConfig, method: str, count: int) -> int:
    """Bytes of `count` artifacts that lie on the disk at the same time."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for task in range(count):
            write_artifact(folder / f"{task:04}", config, method, task)
        return count_bytes(folder)


def draw(models: Dict[str, Dict[str, Any]], path: str) -> None:
    """Draws a panel for each model: gigabytes against tasks."""
    figure = Figure(figsize=(9, 3.8), layout="tight")
    panels = figure.subplots(1, len(models), sharey=True)
    for panel, (name, model) in zip(panels, models.items()):
        for (color, marker, line), (method, found) in zip(
            STYLES, model["methods"].items()
        ):
            label = "full fine-tuning"
            if method != "full":
                label = f"one BERT, adapters of size {parse(method).size}"
            panel.plot(
                TASKS,
                [total / 1e9 for total in found["total_bytes"]],
                color=color,
                marker=marker,
                linestyle=line,
                label=label,
            )
        panel.set(xscale="log", yscale="log", xlabel="tasks")
        panel.set_xticks(TASKS, [str(count) for count in TASKS])
        panel.minorticks_off()
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.set_title(f"{name} ({model['base_bytes'] / 1e6:.0f} MB)")
        panel.grid(color="0.9")
    panels[0].set_ylabel("stored (GB, of 1e9 bytes)")
    panels[0].legend(fontsize="small", loc="upper left")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures all kinds."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    results: Dict[str, Any] = {**environment(), "tasks": TASKS, "models": {}}
    for name, config in MODELS.items():
        base = measure_one(config, "")
        print(f"{name}: {base:,} bytes", flush=True)
        methods: Dict[str, Any] = {}
        results["models"][name] = {"base_bytes": base, "methods": methods}
        for method in METHODS:
            one = measure_one(config, method)
            once = 0 if method == "full" else base
            methods[method] = {
                "artifact_bytes": one,
                "total_bytes": [once + count * one for count in TASKS],
            }
            print(
                f"{name} {method}: {one:,} bytes a task, "
                f"{(once + TASKS[-1] * one) / 1e9:.2f} GB for {TASKS[-1]}",
                flush=True,
            )
    one = results["models"]["MiniLM"]["methods"][METHODS[-1]]["artifact_bytes"]
    many = measure_many(MODELS["MiniLM"], METHODS[-1], TASKS[-1])
    print(f"{TASKS[-1]} written: {many:,} bytes", flush=True)
    if many != TASKS[-1] * one:
        raise ValueError(f"{many} bytes are not {TASKS[-1]} times {one}")
    results["written"] = {
        "model": "MiniLM",
        "method": METHODS[-1],
        "tasks": TASKS[-1],
        "bytes": many,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    files.write_json(str(RESULTS), results)
    draw(results["models"], str(FIGURE))


if __name__ == "__main__":
    main()
