"""Compiles a run's step for a TPU or GPU, on a machine without either.

    .venv/bin/adapter-bert compile v5e --json=v5e.json -- run_classifier.py \\
        --task_name=MRPC --do_train=true --data_dir=$GLUE_DIR/MRPC \\
        --init_checkpoint=$BERT --output_dir=unused

The program opens the run's files and builds its first step: a training step, or
with --do_predict alone a step of prediction. Google's and NVIDIA's compilers
then say whether the step compiles, the memory that it takes, and the work that
it does. Nothing is computed, and nothing is written into --output_dir.

The compilers are in an environment of their own, which `make compilers` makes.
"""

import argparse
import dataclasses
import hashlib
import importlib
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from adapter_bert import command_line
from adapter_bert.accelerators import devices
from adapter_bert.accelerators.devices import GPU, Device
from adapter_bert.errors import UserError, first_line

ROOT = pathlib.Path(__file__).parents[2]
# The environment's interpreter, where this one lacks the compilers.
PYTHON = "ADAPTER_BERT_COMPILERS"
PROGRAMS = ("run_classifier", "run_squad", "run_tagger", "run_mlm")
# Seconds between lines of progress.
INTERVAL = 10.0
# Shares of the memory that a batch of --fit fills at first, then if it fails.
FILLS = (0.98, 0.93, 0.85)


def main() -> None:
    """Compiles, prints a table, and writes JSON.

    Raises:
        UserError: the device is unknown, the compilers are missing, the run is
            refused, or the step does not compile.
    """
    given = sys.argv[1:]
    own, rest = given, []
    if "--" in given:
        place = given.index("--")
        own, rest = given[:place], given[place + 1 :]
    arguments = _parser().parse_args(own)
    device = devices.find(arguments.device, arguments.cores)
    if not rest:
        raise UserError(
            "the run is missing: its program and flags follow `--`, as in "
            "adapter-bert compile v5e -- run_classifier.py --do_train=true ..."
        )
    program = rest[0].removesuffix(".py")
    if program not in PROGRAMS:
        raise UserError(
            f"unknown program {rest[0]!r}; expected {', '.join(PROGRAMS)}"
        )
    if arguments.program and arguments.cores > 1:
        raise UserError(
            f"--program is of one core, found --cores={arguments.cores}; leave "
            "one of them out"
        )
    if arguments.record_steps < 1:
        raise UserError(
            f"--record_steps is {arguments.record_steps}; expected >= 1"
        )
    _find_compilers()
    found = _account(program, rest[1:], device, arguments)
    print(_table(found), end="")
    if arguments.json:
        from adapter_bert import files

        files.write_json(arguments.json, found)
    if not found["compiles"]:
        raise UserError(f"the step does not compile: {found['reason']}")


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("device", help=f"one of {', '.join(devices.DEVICES)}")
    parser.add_argument(
        "--cores",
        type=int,
        default=1,
        help="cores of one host that divide the batch; default: %(default)s",
    )
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument(
        "--fit",
        action="store_true",
        help="also find the largest batch that fits, by further compiles",
    )
    parser.add_argument(
        "--program",
        help="file for the step as a program that JAX runs without TensorFlow "
        "(lab/devices/run_program.py), with what it gives on this CPU",
    )
    parser.add_argument(
        "--values",
        choices=("run", "seed"),
        default="run",
        help="weights of --program: the run's, which are stored, or drawn "
        "where it runs, which makes a small file; default: %(default)s",
    )
    parser.add_argument(
        "--record_steps",
        type=int,
        default=40,
        help="training steps that --program records; default: %(default)s",
    )
    return parser


def _find_compilers() -> None:
    """Goes on in the environment that has the compilers.

    Raises:
        UserError: there is none.
    """
    if importlib.util.find_spec("jax"):
        return
    named = os.environ.get(PYTHON)
    python = pathlib.Path(named or ROOT / ".venv-compilers/bin/python")
    if not python.exists():
        raise UserError(
            f"the compilers are missing: there is no {python}; run `make "
            f"compilers`, or set {PYTHON} to an interpreter that has them"
        )
    os.execv(python, [python, "-m", "adapter_bert", "compile", *sys.argv[1:]])


def _take(program: str, words: List[str], device: Device, cores: int) -> Any:
    """The first step of the run."""
    import adapter_bert.start_tensorflow  # noqa: F401

    from absl import flags as absl_flags
    from absl import logging

    from adapter_bert import flags
    from adapter_bert.accelerators import step
    from adapter_bert.training import engines

    engines.ENGINES["step"] = f"{step.__name__}.{step.StepEngine.__name__}"
    module = importlib.import_module(f"adapter_bert.commands.{program}")
    flags.define(module.SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        is_gpu = device.platform == GPU
        flags.parse(
            absl_flags.FLAGS,
            [
                f"adapter-bert compile: {program}",
                *words,
                "--engine=step",
                f"--output_dir={folder}/out",
                f"--use_tpu={not is_gpu}",
                f"--use_xla={is_gpu}",
                f"--num_tpu_cores={cores}",
            ],
        )
        logging.set_verbosity(logging.WARNING)
        return step.take(cores, module.main)


def _account(
    program: str, words: List[str], device: Device, arguments: Any
) -> Dict[str, Any]:
    """What the compiler says of the run's step, as values of JSON."""
    step = _take(program, words, device, arguments.cores)
    if arguments.program and step.schedule:
        most = step.schedule.num_train_steps
        if arguments.record_steps > most:
            raise UserError(
                f"the run has {most} steps, but --record_steps is "
                f"{arguments.record_steps}; raise --num_train_epochs"
            )
    from adapter_bert.accelerators import compilers

    frozen, trained, slots = step.values()
    length = step.batch["input_ids"].shape[-1]
    found = {
        "device": arguments.device,
        "cores": arguments.cores,
        "program": program,
        "step": "training" if step.schedule else "prediction",
        "method": step.job.table.method,
        "dtype": step.job.compute_dtype,
        "rows": step.rows,
        "length": length,
        "versions": compilers.versions(device),
        "memory_of_core": device.memory,
        "weights": _bytes(frozen) + _bytes(trained),
        "optimizer": _bytes(slots),
        "batch": _bytes(step.batch) // arguments.cores,
    }
    name = f"{arguments.device}, {step.rows} x {length}"
    compiled, reason = _compile(step, device, name)
    found.update(compiles=compiled is not None, reason=reason)
    if compiled is None:
        return found
    found.update(dataclasses.asdict(compiled))
    found.update(_roofline(step, device, compiled))
    if arguments.fit:
        found["largest_batch"] = _fit(step, device, compiled)
    if arguments.program:
        from adapter_bert.accelerators import program as programs

        told = "device", "program", "step", "method", "dtype", "rows", "length"
        programs.write(
            arguments.program,
            step,
            {name: found[name] for name in told},
            arguments.values,
            arguments.record_steps,
        )
    return found


def _bytes(values: Any) -> int:
    return sum(value.nbytes for value in values.values())


def _compile(step: Any, device: Device, name: str) -> Tuple[Any, str]:
    """The compiler's account, or None and the compiler's reason.

    Accounts are kept by the hash of the translated step and of the compiler.
    """
    import jax

    from adapter_bert import files
    from adapter_bert.accelerators import compilers

    with _Clock(f"{name}: translating"):
        lowered = compilers.lower(step, device)
    told = [lowered.as_text(), str(device), compilers.versions(device)]
    key = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    folder = pathlib.Path(
        os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache",
        "adapter_bert/compiled",
    )
    kept = folder / f"{key}.json"
    if not kept.exists():
        try:
            with _Clock(f"{name}: compiling"):
                compiled = compilers.compile_lowered(lowered)
            account, reason = dataclasses.asdict(compiled), ""
        except jax.errors.JaxRuntimeError as error:
            account, reason = None, first_line(error)
        files.make_folder(str(folder))
        files.write_json(str(kept), {"account": account, "reason": reason})
    known = files.read_json(str(kept), "the compiler's account")
    account, reason = known["account"], known["reason"]
    return account and compilers.Compiled(**account), reason


def _roofline(step: Any, device: Device, compiled: Any) -> Dict[str, Any]:
    """The shortest time of a step that the peak rates allow, in seconds."""
    products = compiled.flops / device.flops[step.job.compute_dtype]
    memory = compiled.moved / device.bandwidth
    seconds = max(products, memory)
    return {
        "seconds_at_best": seconds,
        "examples_per_second_at_best": step.rows / seconds,
        "bound_by": "products" if products > memory else "memory",
    }


def _fit(step: Any, device: Device, compiled: Any) -> Optional[int]:
    """The largest batch whose step fits, over all cores, confirmed.

    Memory grows linearly with rows: one more compile gives the slope, a third
    confirms.
    """
    rows, unit = step.rows, 8 * step.cores
    more, _ = _compile(step.with_rows(2 * rows), device, f"{2 * rows} rows")
    if more is None:
        return rows
    slope = (more.memory - compiled.memory) / rows
    for fill in FILLS:
        room = fill * device.memory - compiled.memory
        most = int(rows + room / slope) // unit * unit
        if most <= rows:
            return rows
        fits, _ = _compile(step.with_rows(most), device, f"{most} rows")
        if fits is not None and fits.memory <= device.memory:
            return most
    return 2 * rows


class _Clock:
    """Tells how long work takes that cannot tell how far it is."""

    def __init__(self, what: str):
        self._what, self._ended = what, threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        self._thread.join()

    def _tell(self) -> None:
        while not self._ended.wait(INTERVAL):
            seconds = time.monotonic() - self._began
            print(f"{self._what}, {seconds:.0f} s", file=sys.stderr, flush=True)


def _table(found: Dict[str, Any]) -> str:
    """The account, for people."""
    versions = " ".join(f"{n} {v}" for n, v in found["versions"].items())
    lines = [
        f"{found['program']}, {found['step']}, {found['method']}: "
        f"{found['rows']} rows of {found['length']} tokens, {found['dtype']}, "
        f"on {found['device']} ({found['cores']} cores)",
        f"compiled by        {versions}",
        f"compiles           {'yes' if found['compiles'] else 'no'}",
    ]
    if found["compiles"]:
        own = found["outputs"] - found["reused"]
        total = found["arguments"] + own + found["temporaries"] + found["code"]
        parts = {
            "memory of a core": total,
            "  weights": found["weights"],
            "  optimizer": found["optimizer"],
            "  batch": found["batch"],
            "  temporaries": found["temporaries"],
            "  code": found["code"],
        }
        lines += [f"{n:19}{v / 1e6:,.0f} MB" for n, v in parts.items()]
        lines[3] += f" of {found['memory_of_core'] / 1e6:,.0f}"
        lines += [
            f"operations         {found['flops'] / 1e9:,.1f} GFLOP",
            f"bytes moved        {found['moved'] / 1e9:,.2f} GB (counted by "
            f"{found['counter']})",
            f"at best            {found['seconds_at_best'] * 1e3:,.2f} ms, "
            f"{found['examples_per_second_at_best']:,.0f} examples/s, bound "
            f"by {found['bound_by']}",
        ]
    if found.get("largest_batch"):
        lines.append(f"largest batch      {found['largest_batch']} rows")
    return "\n".join(lines) + "\n"
