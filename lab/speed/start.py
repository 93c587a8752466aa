"""Compares whole programs with AdapterHub's `adapters`, from the command on.

    .venv/bin/python -m lab.speed.start

A user waits for the first steps, and for the end of a small run: imports,
reading, graphs and files count as much as steps there. `run_classifier.py`,
with each engine, and the peer's program (`peers/adapters_start.py`) train the
same adapters on the same files, in processes that take turns. Writes
`results/start.json` and a table in docs/performance.md.
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
from typing import Any, Dict, List, Sequence, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import tensorflow as tf

from adapter_bert import command_line, files
from adapter_bert.commands import minilm
from adapter_bert.errors import UserError
from adapter_bert.tasks import get_task
from adapter_bert.tasks.custom import custom_task
from adapter_bert.training import cpu_cores
from adapter_bert.training.engines import ENGINES
from lab.speed import compare, processes
from lab.speed.compare import ADAPTER_SIZE, BATCH_SIZE, ROOT

RESULTS = ROOT / "lab" / "results" / "start.json"
BEGIN, END = "<!-- start: begin -->\n", "<!-- start: end -->\n"

STEPS = 3
# What is measured, and the time of a process that tells it.
THIRD_STEP, WHOLE_RUN = "third step", "whole small run"
TIMES = {THIRD_STEP: "step", WHOLE_RUN: "exit"}
PEER = "peer"
# Lines are to be seen as soon as they are written, and nothing be fetched.
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that every measurement runs from its start to its end.

    Attributes:
        command: the program with its arguments, except `--output_dir`.
        step_line: part of the line that says that the last step is done; ""
            where that is not measured.
    """

    command: Sequence[str]
    step_line: str = ""

    def measure(self) -> Dict[str, float]:
        """Runs the program, with an empty folder for what it writes.

        Returns:
            Seconds from the command to the process's `exit`, and to the
            `step` line if one is named.

        Raises:
            UserError: the program has failed, or there was no such line.
        """
        times: Dict[str, float] = {}
        last = ""
        with tempfile.TemporaryDirectory() as scratch:
            command = [*self.command, f"--output_dir={scratch}/out"]
            began = time.perf_counter()
            with subprocess.Popen(
                command,
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
        again = f"run it alone to see more: {shlex.join(self.command)}"
        if code:
            raise UserError(
                f"a measured program has ended with exit code {code}, its last "
                f"line {last!r}; {again}"
            )
        if self.step_line and "step" not in times:
            raise UserError(
                f"a measured program printed no line with {self.step_line!r}, "
                f"its last is {last!r}; {again}"
            )
        return times

    def stop(self) -> None:
        """Nothing is left to be ended."""


def find_data(glue_dir: str) -> Tuple[str, List[str], Dict[str, int]]:
    """The data that both sides read: RTE, or pairs of `data/`.

    Args:
        glue_dir: folder of GLUE's tasks, or "" for the project's own texts.

    Returns:
        Their folder, the flags of `run_classifier.py` that name them, and the
        number of rows of `train` and `dev`.

    Raises:
        UserError: they cannot be read, or are too few for the first steps.
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
    counts = {split: len(found) for split, found in rows.items()}
    if counts["train"] < STEPS * BATCH_SIZE:
        raise UserError(
            f"{folder} holds {counts['train']} training rows, expected at "
            f"least {STEPS * BATCH_SIZE}, {STEPS} batches; pass another "
            "--glue_dir"
        )
    return folder, flags, counts


def engines() -> List[str]:
    """Those of ours that run with this TensorFlow."""
    return [
        name
        for name in ENGINES
        if name != "estimator" or hasattr(tf, "estimator")
    ]


def programs(
    arguments: argparse.Namespace,
) -> Tuple[Dict[str, Dict[str, Program]], Dict[str, int]]:
    """What is to be run, for each thing that is measured, and on how much.

    Args:
        arguments: as `main` reads them.

    Returns:
        The programs by measurement and side, and the rows of `find_data`.

    Raises:
        UserError: the model or the data cannot be read.
    """
    folder, flags, counts = find_data(arguments.glue_dir)
    model = arguments.model or minilm.folder()
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
        str(ROOT / "lab" / "speed" / "peers" / "adapters_start.py"),
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
    return {
        THIRD_STEP: {
            **_with_engines(third),
            PEER: Program([*peer, f"--steps={STEPS}"], f"step {STEPS}\n"),
        },
        WHOLE_RUN: {
            **_with_engines(whole),
            PEER: Program([*peer, "--epochs=1"]),
        },
    }, counts


def _with_engines(program: Program) -> Dict[str, Program]:
    return {
        engine: dataclasses.replace(
            program, command=[*program.command, f"--engine={engine}"]
        )
        for engine in engines()
    }


def summarize(
    measured: Dict[str, List[Dict[str, float]]], which: str
) -> Dict[str, Any]:
    """Medians, spreads and ratios of one measurement.

    Args:
        measured: what the rounds found for each side.
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
        "seconds": {
            side: compare.spread(values) for side, values in seconds.items()
        },
        "ratio": {
            side: compare.spread_of_ratios(values, seconds[PEER])
            for side, values in seconds.items()
            if side != PEER
        },
    }


def to_markdown(results: Dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    machine, counts = results["machine"], results["rows"]
    sides = [*results["summary"][THIRD_STEP]["ratio"]]
    header = [
        "",
        *(f"ours, {side}, s" for side in sides),
        "peer, s",
        *(f"{side} / peer" for side in sides),
    ]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores; TensorFlow "
        f"{results['versions']['tensorflow']}; batches of {BATCH_SIZE}, "
        f"adapters of size {ADAPTER_SIZE}, {results['rounds']} rounds; "
        f"{results['data']}, {counts['train']:,} rows of training and "
        f"{counts['dev']:,} of evaluation.",
        "",
        _row(header),
        "|" + "---|" * len(header),
    ]
    for name, summary in results["summary"].items():
        seconds, ratio = summary["seconds"], summary["ratio"]
        cells = [compare.format_spread(seconds[s]) for s in [*sides, PEER]]
        cells += [compare.format_ratio(ratio[side]) for side in sides]
        lines.append(_row([name, *cells]))
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measures both ends, and writes what was found.

    Raises:
        UserError: there is no such peer, nothing to measure, no model or no
            data, or a program has failed.
    """
    parser = compare.make_parser(__doc__.split("\n")[0], rounds=5)
    arguments = parser.parse_args()
    compare.check_arguments(arguments)
    compared, counts = programs(arguments)
    results = {
        **compare.environment(),
        "rounds": arguments.rounds,
        "data": "RTE" if arguments.glue_dir else "the project's own texts",
        "rows": counts,
        "summary": {},
        "measurements": {},
    }
    for name, sides in compared.items():
        measured = processes.measure_in_turn(sides, arguments.rounds)
        results["measurements"][name] = measured
        summary = summarize(measured, TIMES[name])
        results["summary"][name] = summary
        print(name, json.dumps(summary, indent=1), flush=True)
    table = to_markdown(results)
    print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    files.write_json(str(RESULTS), results)
    compare.write_table(table, BEGIN, END)


if __name__ == "__main__":
    command_line.run(main)
