"""Compares whole programs with AdapterHub's `adapters`, from the command on.

    .venv/bin/python -m lab.speed.start

A user waits for the first steps, and for the end of a small run: imports,
reading, graphs and files count as much as steps there. `run_classifier.py`,
with each engine, and the peer's program (`peers/adapters_start.py`) train the
same adapters on the same files, in processes that take turns. Writes
`lab/results/start.json` and a table in results/performance.md, and the page's
first table if there is a `compare.json` too.
"""

import argparse
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from adapter_bert import command_line
from adapter_bert.checkpoints import packaged_models
from adapter_bert.errors import UserError
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.kinds import get_task
from adapter_bert.training import cpu_cores
from adapter_bert.training.settings import ENGINES
from lab import report
from lab.report import ROOT
from lab.speed import compare, measuring
from lab.speed.measuring import ADAPTER_SIZE, BATCH_SIZE, Measured

STEPS = 3
# The measurements, and the time of a process that each of them reads.
THIRD_STEP, WHOLE_RUN = "third step", "whole small run"
TIMES = {THIRD_STEP: "step", WHOLE_RUN: "exit"}
PEER = "peer"
# Short names of the rows that are compared.
ROWS = {"pairs": "MRPC", "sentences": "CoLA"}
# Lines are to be seen as soon as they are written, and nothing be fetched.
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that every measurement runs from its start to its end.

    Attributes:
        command: the program with its arguments, except `--output_dir`.
        step_line: part of the line that says that the last step is done; ""
            where the step is not measured.
    """

    command: Sequence[str]
    step_line: str = ""

    def measure(self) -> dict[str, float]:
        """Runs the program, with an empty folder for its output.

        Returns:
            Seconds from the command to the process's `exit`, and to the
            `step` line if one is named.
        """
        times: dict[str, float] = {}
        last = ""
        with tempfile.TemporaryDirectory() as scratch:
            began = time.perf_counter()
            with subprocess.Popen(
                [*self.command, f"--output_dir={scratch}/out"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, **ENVIRONMENT},
            ) as process:
                try:
                    for line in process.stdout:
                        if self.step_line and self.step_line in line:
                            times["step"] = time.perf_counter() - began
                        last = line.strip() or last
                    code = process.wait()
                    times["exit"] = time.perf_counter() - began
                finally:
                    # Nothing, unless the benchmark itself is interrupted.
                    process.kill()
        wrong = f"has ended with exit code {code}" if code else ""
        if not wrong and self.step_line and "step" not in times:
            wrong = f"printed no line with {self.step_line!r}"
        if wrong:
            raise UserError(
                f"a measured program {wrong}, its last line {last!r}; run it "
                f"alone to see more: {shlex.join(self.command)}"
            )
        return times

    def stop(self) -> None:
        """Nothing is left to be ended."""

    def on(self, engine: str) -> "Program":
        """Returns the same program with an engine."""
        command = [*self.command, f"--engine={engine}"]
        return dataclasses.replace(self, command=command)


def find_data(glue_dir: str) -> tuple[str, list[str], dict[str, int]]:
    """Returns the data that both sides read: RTE, or pairs of `data/`.

    Args:
        glue_dir: folder of GLUE's tasks, or "" for the project's own texts.

    Returns:
        Their folder, the flags of `run_classifier.py` that name them, and the
        number of rows of `train` and `dev`.
    """
    if glue_dir:
        task, folder = get_task("rte"), os.path.join(glue_dir, "RTE")
        flags = ["--task_name=RTE"]
    else:
        columns = {"text_a_column": "sentence1", "text_b_column": "sentence2"}
        task, folder = custom_task(**columns), str(ROOT / "data/same_meaning")
        flags = ["--task_name=custom"]
        flags += [f"--{flag}={column}" for flag, column in columns.items()]
    _, rows = task.read(folder, ["train", "dev"])
    counts = {split: len(split_rows) for split, split_rows in rows.items()}
    if counts["train"] < STEPS * BATCH_SIZE:
        raise UserError(
            f"{folder} holds {counts['train']} training rows, expected at "
            f"least {STEPS * BATCH_SIZE}, {STEPS} batches; pass another "
            "--glue_dir"
        )
    return folder, flags, counts


def engines() -> list[str]:
    """Our engines that run with this TensorFlow."""
    return [e for e in ENGINES if e != "estimator" or report.has_estimator()]


def programs(
    arguments: argparse.Namespace,
) -> tuple[dict[str, dict[str, Program]], dict[str, int]]:
    """Gets programs of each measurement and side, and the rows of `find_data`.

    Args:
        arguments: of the command line.
    """
    folder, flags, counts = find_data(arguments.glue_dir)
    model = arguments.model or packaged_models.folder("minilm")
    # Half a step more than asked for, since the program rounds down.
    epochs = (STEPS + 0.5) * BATCH_SIZE / counts["train"]
    ours = [
        sys.executable,
        str(ROOT / "run_classifier.py"),
        *flags,
        f"--data_dir={folder}",
        f"--init_checkpoint={model}",
        f"--tuning_method=houlsby(size={ADAPTER_SIZE})",
        "--do_train=true",
        f"--train_batch_size={BATCH_SIZE}",
    ]
    peer = [
        arguments.peer_python,
        str(measuring.PEERS / "adapters_start.py"),
        f"--data_dir={folder}",
        f"--model={model}",
        f"--adapter_size={ADAPTER_SIZE}",
        f"--batch_size={BATCH_SIZE}",
        f"--cores={cpu_cores.count()}",
    ]
    examples = STEPS * BATCH_SIZE
    third = Program(
        [*ours, f"--num_train_epochs={epochs}"],
        f"train: {examples}/{examples} examples",
    )
    whole = Program([*ours, "--num_train_epochs=1", "--do_eval=true"])
    theirs = {
        THIRD_STEP: Program([*peer, f"--steps={STEPS}"], f"step {STEPS}\n"),
        WHOLE_RUN: Program([*peer, "--epochs=1"]),
    }
    return {
        name: {**{e: steps.on(e) for e in engines()}, PEER: theirs[name]}
        for name, steps in ((THIRD_STEP, third), (WHOLE_RUN, whole))
    }, counts


def summarize(measured: Measured, which: str) -> dict[str, Any]:
    """Medians, spreads and ratios of one measurement.

    Args:
        measured: the rounds of each side.
        which: of their times, `step` or `exit`.

    Returns:
        `seconds` of each side, and the `ratio` of each of ours to the peer's,
        which is below 1 where ours takes less time.
    """
    seconds = {
        side: [times[which] for times in rounds]
        for side, rounds in measured.items()
    }
    return {
        "seconds": measuring.spreads(seconds),
        "ratio": {
            side: measuring.ratio(values, seconds[PEER])
            for side, values in seconds.items()
            if side != PEER
        },
    }


def to_markdown(results: dict[str, Any]) -> str:
    """Returns the table of results/performance.md."""
    sides = [*results["summary"][THIRD_STEP]["ratio"]]
    header = ["", *(f"ours, {side}, s" for side in sides), "peer, s"]
    rows = [[*header, *(f"{side} / peer" for side in sides)]]
    for name, summary in results["summary"].items():
        seconds = [
            measuring.cell(summary["seconds"][s]) for s in [*sides, PEER]
        ]
        ratios = [
            measuring.ratio_cell(summary["ratio"][side]) for side in sides
        ]
        rows.append([name, *seconds, *ratios])
    counts = results["rows"]
    about = (
        f"batches of {BATCH_SIZE}, adapters of size {ADAPTER_SIZE}, "
        f"{results['rounds']} rounds; {results['data']}, {counts['train']:,} "
        f"rows of training and {counts['dev']:,} of evaluation"
    )
    return measuring.table(results, about, rows)


def to_summary(compared: dict[str, Any], started: dict[str, Any]) -> str:
    """Makes a table of both benchmarks: all but its last column are ratios.

    Args:
        compared: the results of `compare`.
        started: the results of this benchmark.
    """
    header = "; speed, usual padding; speed, grouped by length; memory, usual "
    rows = [f"{header}padding; share of the products' best".split("; ")]
    names = ROWS if compared["rows"] == compare.GLUE_ROWS else {}
    for name, comparison in compared["comparisons"].items():
        kind, texts, model, dtype = name.split("-")
        ratio, memory = comparison["ratio"], comparison["memory_bytes"]
        grouped = ratio.get("grouped")
        rows.append(
            [
                f"{kind} {names.get(texts, texts)}, {model}, {dtype}",
                f"{ratio['dynamic']['median']:.2f}",
                f"{grouped['median']:.2f}" if grouped else "",
                f"{memory['ours'] / memory['dynamic']:.2f}",
                f"{comparison['share_of_peak']:.0%}",
            ]
        )
    for which, comparison in started["summary"].items():
        for engine, ratio in comparison["ratio"].items():
            # The peer's program groups by length.
            median = f"{ratio['median']:.2f}"
            rows.append([f"time to {which}, {engine}", "", median, "", ""])
    about = f"medians of {compared['rounds']} rounds, of {started['rounds']} "
    return measuring.table(compared, f"{about}for whole programs", rows)


def main() -> None:
    """Measures both ends, and writes what was found."""
    parser = measuring.make_parser(__doc__, rounds=5)
    arguments = measuring.parse(parser)
    compared, counts = programs(arguments)
    results: dict[str, Any] = {
        **report.environment(),
        "rounds": arguments.rounds,
        "data": "RTE" if arguments.glue_dir else measuring.OWN_TEXTS,
        "rows": counts,
        "summary": {},
        "measurements": {},
    }
    for name, sides in compared.items():
        measured = measuring.in_turn(sides, arguments.rounds)
        results["measurements"][name] = measured
        results["summary"][name] = summarize(measured, TIMES[name])
        print(name, json.dumps(results["summary"][name], indent=1), flush=True)
    text = to_markdown(results)
    print(text)
    measuring.publish("start", results, text)
    path = report.RESULTS / "compare.json"
    if path.exists():
        text = to_summary(json.loads(path.read_text()), results)
        report.write(report.SPEED, "summary", text)


if __name__ == "__main__":
    with command_line.run():
        main()
