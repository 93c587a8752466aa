"""Trains every tuning method on four GLUE tasks and sets them side by side.

    python -m scripts.compare_methods --glue_dir=GLUE --init_checkpoint=BERT \
        --output_dir=OUT

Each run is an ordinary `run_classifier.py` command, which is printed. Safe to
interrupt and start again: finished runs are kept, a half one goes on. What is
finished becomes `results/methods.json`, docs/methods.png and the table in
docs/methods.md; `--report` does that alone.
"""

import argparse
import math
import os
import pathlib
import shlex
import subprocess
import sys
from typing import Any, Dict, List

import safetensors
from matplotlib.figure import Figure

import files
import modeling
from adapter_modeling import parse
from errors import UserError

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "methods.md"
FIGURE = ROOT / "docs" / "methods.png"
RESULTS = ROOT / "results" / "methods.json"
COST_FILE = "cost.json"
BEGIN, END = "<!-- methods: begin -->\n", "<!-- methods: end -->\n"

# Task -> epochs, rows of the training set (None: all), score.
TASKS = {
    "MRPC": (2, None, "accuracy"),
    "RTE": (2, None, "accuracy"),
    "CoLA": (2, None, "matthews_correlation"),
    "SST-2": (2, 4000, "accuracy"),
}
# Method -> peak learning rate; docs/methods.md tells how they were chosen.
METHODS = {
    "houlsby(size=8)": 3e-4,
    "houlsby(size=64)": 3e-4,
    "houlsby(size=256)": 3e-4,
    "pfeiffer(size=64)": 3e-4,
    "bapna(size=64)": 3e-4,
    "parallel(size=64)": 3e-4,
    "adapterdrop(first=2, size=64)": 3e-4,
    "compacter(size=24, n=4)": 3e-3,
    "pals(size=96, heads=6)": 3e-4,
    "lora(rank=8, alpha=16.0)": 5e-4,
    "prefix(length=30)": 1e-4,
    "ia3": 3e-3,
    "bitfit": 1e-3,
    "layernorm": 1e-3,
    "diff_pruning(sparsity=0.005, gate_rate=1000.0)": 1e-4,
    "lt_sft(sparsity=0.01)": 1e-4,
    "top_layers(k=1)": 1e-4,
    "full": 1e-4,
    "head": 1e-3,
}


def folder_of(output_dir: str, task: str, method: str) -> str:
    """The run's folder: words and numbers of the method only."""
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in method)
    return os.path.join(output_dir, task, name.strip("_"))


def first_rows(source: str, target: str, rows: int) -> None:
    """Copies a header and the first rows of train.tsv, and dev.tsv whole."""
    os.makedirs(target, exist_ok=True)
    with open(os.path.join(source, "train.tsv"), encoding="utf-8") as file:
        lines = file.readlines()[: rows + 1]
    files.write_text(os.path.join(target, "train.tsv"), "".join(lines))
    with open(os.path.join(source, "dev.tsv"), encoding="utf-8") as file:
        files.write_text(os.path.join(target, "dev.tsv"), file.read())


def command(arguments: Any, task: str, method: str) -> List[str]:
    """The command line of one run."""
    epochs, rows, _ = TASKS[task]
    data = os.path.join(arguments.glue_dir, task)
    if rows is not None:
        part = os.path.join(arguments.output_dir, f"{task}-{rows}")
        if not os.path.exists(os.path.join(part, "dev.tsv")):
            first_rows(data, part, rows)
        data = part
    return [
        sys.executable,
        "run_classifier.py",
        f"--task_name={task}",
        f"--data_dir={data}",
        f"--init_checkpoint={arguments.init_checkpoint}",
        f"--output_dir={folder_of(arguments.output_dir, task, method)}",
        f"--tuning_method={method}",
        f"--learning_rate={METHODS[method]}",
        f"--num_train_epochs={epochs}",
        "--compute_dtype=bfloat16",
        "--save_checkpoints_steps=200",
        "--do_train=true",
        "--do_eval=true",
    ]


def run(arguments: Any, task: str, method: str) -> None:
    """Runs one training, and adds up the cost of its attempts.

    Raises:
        UserError: it failed; its log says why.
    """
    folder = folder_of(arguments.output_dir, task, method)
    os.makedirs(folder, exist_ok=True)
    line = command(arguments, task, method)
    print(" ".join(map(shlex.quote, line)), flush=True)
    log = os.path.join(folder, "log.txt")
    with open(log, "ab") as file:
        process = subprocess.Popen(line, cwd=ROOT, stdout=file, stderr=file)
        try:
            # Not Popen's own wait, which does not tell the memory.
            _, status, usage = os.wait4(process.pid, 0)
        except KeyboardInterrupt:
            process.kill()
            _, status, usage = os.wait4(process.pid, 0)
    path = os.path.join(folder, COST_FILE)
    before = files.read_json(path, "costs") if files.exists(path) else {}
    files.write_json(
        path,
        {
            # Not by the clock: other programs may run as well.
            "processor_seconds": before.get("processor_seconds", 0.0)
            + usage.ru_utime
            + usage.ru_stime,
            "attempts": before.get("attempts", 0) + 1,
            "peak_bytes": max(
                before.get("peak_bytes", 0), usage.ru_maxrss * 1024
            ),
        },
    )
    if status:
        with open(log, encoding="utf-8", errors="replace") as file:
            last = (file.read().strip() or "no message").splitlines()[-1]
        raise UserError(f"{task} with {method} failed: {last} (see {log})")


def is_finished(output_dir: str, task: str, method: str) -> bool:
    """Whether a run has its scores and its costs.

    Raises:
        UserError: they are of another method, rate, number of epochs or
            precision.
    """
    folder = folder_of(output_dir, task, method)
    if not all(
        files.exists(os.path.join(folder, name))
        for name in ("eval_results.json", COST_FILE)
    ):
        return False
    run = files.read_json(os.path.join(folder, "run.json"), "the run")
    expected = {
        "learning_rate": METHODS[method],
        "epochs": TASKS[task][0],
        "compute_dtype": "bfloat16",
    }
    found = {name: run["training"].get(name) for name in expected}
    if (run["method"], found) != (str(parse(method)), expected):
        raise UserError(
            f"{folder} holds another run: {run['method']}, {found}; choose "
            "another --output_dir"
        )
    return True


def collect(output_dir: str) -> Dict[str, Any]:
    """What the finished runs came to, by method and task."""
    found: Dict[str, Any] = {}
    for method in METHODS:
        for task, (_, _, score) in TASKS.items():
            folder = folder_of(output_dir, task, method)
            path = os.path.join(folder, "eval_results.json")
            if not is_finished(output_dir, task, method):
                continue
            run = files.read_json(os.path.join(folder, "run.json"), "the run")
            adapter = os.path.join(folder, "adapter", "adapter.safetensors")
            shapes = modeling.list_variables(
                modeling.BertConfig(**run["bert_config"])
            )
            entry = found.setdefault(
                method,
                {
                    "learning_rate": METHODS[method],
                    "bert_parameters": sum(map(math.prod, shapes.values())),
                    "tasks": {},
                },
            )
            entry["tasks"][task] = {
                "score": files.read_json(path, "scores")[f"eval_{score}"],
                "parameters": count_parameters(adapter),
                "artifact_bytes": os.path.getsize(adapter),
                **files.read_json(os.path.join(folder, "cost.json"), "costs"),
            }
    return found


def count_parameters(path: str) -> int:
    """How many numbers an artifact says, the places of changes left out."""
    with safetensors.safe_open(path, "numpy") as file:
        return sum(
            math.prod(file.get_slice(name).get_shape())
            for name in file.keys()
            if not name.endswith("/indices")
        )


def first_task(entry: Dict[str, Any]) -> Dict[str, Any]:
    """What a method's first task came to; all have the same size there."""
    return entry["tasks"][next(iter(TASKS))]


def mean_score(entry: Dict[str, Any]) -> float:
    """Mean over the tasks, in points of 100."""
    scores = [100 * task["score"] for task in entry["tasks"].values()]
    return sum(scores) / len(scores)


def to_markdown(results: Dict[str, Any]) -> str:
    """A row for each method that has finished all tasks."""
    lines = [
        "| method | peak rate | parameters of a task | "
        + " | ".join(TASKS)
        + " | mean | processor time, all runs | peak memory | artifact |",
        "|---" * (7 + len(TASKS)) + "|",
    ]
    for method, entry in results.items():
        tasks = entry["tasks"]
        if set(tasks) != set(TASKS):
            continue
        count = first_task(entry)["parameters"]
        share = count / entry["bert_parameters"]
        seconds = sum(task["processor_seconds"] for task in tasks.values())
        cells = [
            f"`{method}`",
            f"{entry['learning_rate']:g}",
            f"{count:,} ({share:.2%})",
            *(f"{100 * tasks[task]['score']:.1f}" for task in TASKS),
            f"**{mean_score(entry):.1f}**",
            f"{seconds / 60:.1f} min",
            f"{max(t['peak_bytes'] for t in tasks.values()) / 2**30:.2f} GiB",
            f"{first_task(entry)['artifact_bytes'] / 1e6:.2f} MB",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(results: Dict[str, Any], path: str) -> None:
    """Scores against parameters of a task, a panel for each task."""
    figure = Figure(figsize=(12, 8), layout="constrained")
    panels = figure.subplots(-(-len(TASKS) // 2), 2, squeeze=False).flat
    for axes, (task, (_, _, score)) in zip(panels, TASKS.items()):
        for method, entry in results.items():
            if set(entry["tasks"]) != set(TASKS):
                continue
            found = entry["tasks"][task]
            place = found["parameters"], 100 * found["score"]
            axes.plot(*place, "o", color="black", markersize=4)
            name, _, arguments = method.partition("(")
            size = f" {arguments[5:-1]}" if name == "houlsby" else ""
            axes.annotate(
                name + size,
                place,
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=7,
            )
        axes.set_xscale("log")
        axes.set_title(f"{task}: {score}")
        axes.grid(alpha=0.3)
    figure.supxlabel("parameters of a task, its head included")
    figure.supylabel("score x 100")
    figure.savefig(path, dpi=110)


def report(output_dir: str) -> None:
    """Writes the results, the table and the figure."""
    results = collect(output_dir)
    RESULTS.parent.mkdir(exist_ok=True)
    files.write_json(str(RESULTS), results)
    table = to_markdown(results)
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    figure = f"![Scores against parameters of a task]({FIGURE.name})\n"
    files.write_text(
        str(PAGE), f"{before}{BEGIN}\n{table}\n{figure}\n{END}{after}"
    )
    draw(results, str(FIGURE))
    print(table)


def main() -> None:
    """Runs what is not finished, then reports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--glue_dir", help="folder of MRPC, RTE, CoLA, SST-2")
    parser.add_argument("--init_checkpoint", help="the pretrained BERT")
    parser.add_argument("--output_dir", required=True, help="of all runs")
    parser.add_argument("--only", default="", help="part of a method's name")
    parser.add_argument(
        "--report", action="store_true", help="only report what is finished"
    )
    arguments = parser.parse_args()
    for name in ("glue_dir", "init_checkpoint", "output_dir"):
        value = getattr(arguments, name)
        if value:
            setattr(arguments, name, os.path.abspath(value))
        elif not arguments.report:
            parser.error(f"--{name} is missing")
    try:
        if not arguments.report:
            run_all(arguments)
        report(arguments.output_dir)
    except UserError as error:
        sys.exit(f"error: {error}")


def run_all(arguments: Any) -> None:
    """Runs what is not finished, task by task."""
    wanted = [
        (task, method)
        for task in TASKS
        for method in METHODS
        if arguments.only in method
    ]
    for number, (task, method) in enumerate(wanted, 1):
        if is_finished(arguments.output_dir, task, method):
            continue
        print(f"[{number}/{len(wanted)}] {task} {method}", flush=True)
        run(arguments, task, method)


if __name__ == "__main__":
    main()
