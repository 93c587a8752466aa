"""Compiles steps of runs for TPUs and GPUs, on a machine without them.

    make compilers-matrix
    .venv-compilers/bin/python -m lab.devices.matrix --method=lora --bert=tiny

Every method and head is compiled for `v5e` and `h100`, on a BERT of two layers;
the default method for all devices, and at the sizes of MiniLM, BERT-base and
BERT-large. `results/devices.json` gets the compilers' accounts, and goes on
where it was left; results/devices.md gets its tables from it.
"""

import argparse
import dataclasses
import importlib.metadata
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert import command_line, files
from adapter_bert.accelerators import devices
from adapter_bert.accelerators import step as steps
from adapter_bert.accelerators.account import COUNTING, Compiled, roofline
from adapter_bert.accelerators.devices import (
    DEVICES,
    GPU,
    PACKAGES,
    Device,
)
from adapter_bert.accelerators.step import Step, StepEngine
from adapter_bert.errors import UserError, first_line
from adapter_bert.training.settings import LAYERS
from lab import report
from lab.devices import runs
from lab.devices.runs import DTYPES, PREDICTION, STEPS, DeviceRun

RESULTS = report.ROOT / "results" / "devices.json"
PAGE = report.ROOT / "results" / "devices.md"
# For which every method and head is compiled.
MAIN = ("v5e", "h100")
LARGE = ("BERT-base", "BERT-large")
NO_SIZES = "None of these steps has been compiled yet.\n"
SIZES_HEADER = [
    "step",
    "memory, GB",
    "temporaries, GB",
    "GFLOP",
    "moved, GB",
    "at best, ms",
    "at best, examples/s",
    "bound by",
]
# Cores of a host that share a batch.
CORES = 8
Cell = dict[str, Any]
Wanted = tuple[str, DeviceRun]


def cells() -> list[Wanted]:
    """Returns the matrix: devices and runs, the quickest first."""
    default = [
        DeviceRun(dtype=dtype, step=step) for dtype in DTYPES for step in STEPS
    ]
    all_cells = [(device, run) for device in DEVICES for run in default]
    all_cells += [
        (device, run)
        for device in MAIN
        for run in runs.runs()
        if (device, run) not in all_cells
    ]
    sizes = [(bert, device) for bert in LARGE for device in MAIN]
    sizes += [("MiniLM", device) for device in DEVICES]
    all_cells += [
        (device, dataclasses.replace(run, bert=bert))
        for bert, device in sizes
        for run in default
        if bert != "BERT-large" or run.dtype == "bfloat16"
    ]
    more = [
        DeviceRun(bert="MiniLM", cores=CORES),
        DeviceRun(dtype="bfloat16", bert="BERT-large", recompute=LAYERS),
    ]
    return all_cells + [(device, run) for run in more for device in MAIN]


def compile_cell(device: str, run: DeviceRun, data: pathlib.Path) -> Cell:
    """Returns the compiler's account of a run's step, sizes in bytes of a core.

    Args:
        device: of `DEVICES`.
        run: the run.
        data: folder of `runs.make`.
    """
    began = time.monotonic()
    cell = {"device": device, **dataclasses.asdict(run)}
    rows, length, _ = runs.SIZES[run.bert]
    cell.update(rows=rows, length=length, compiles=False, reason="")
    step = _take(device, run, data)
    # Other environments have no JAX.
    from adapter_bert.accelerators import compilers

    try:
        cell.update(_account(step, devices.find(device, run.cores)))
    except (compilers.Refusal, UserError) as error:
        # Of the compiler, or of the translation.
        cell["reason"] = first_line(error)[:300]
    cell["seconds"] = round(time.monotonic() - began, 1)
    cell["date"] = time.strftime("%Y-%m-%d")
    return cell


def _take(device: str, run: DeviceRun, data: pathlib.Path) -> Step:
    is_tpu = DEVICES[device].platform != GPU
    rows, _, _ = runs.SIZES[run.bert]
    with runs.with_flags(
        run,
        data,
        StepEngine,
        use_tpu=is_tpu,
        use_xla=not is_tpu,
        num_tpu_cores=run.cores,
        num_devices=0 if is_tpu else run.cores,
    ) as module:
        return steps.take(module.main, rows if run.step == PREDICTION else 0)


def _account(step: Step, device: Device) -> Cell:
    from adapter_bert.accelerators import compilers

    lowered = compilers.lower(step, device)
    compiled = compilers.compile_lowered(lowered, device)
    # Else every step stays in memory.
    compilers.jax.clear_caches()
    return {
        **dataclasses.asdict(compiled),
        "memory": compiled.memory,
        "compiles": True,
    }


def key(device: str, run: DeviceRun) -> tuple[str, ...]:
    """A cell's device and run."""
    return device, *dataclasses.astuple(run)


def key_of(cell: Cell) -> tuple[str, ...]:
    """Returns the key of a cell that was compiled."""
    names = [field.name for field in dataclasses.fields(DeviceRun)]
    return tuple(cell[name] for name in ("device", *names))


def versions() -> dict[str, str]:
    """TensorFlow and the compilers, as they are installed."""
    names = dict.fromkeys(
        name for packages in PACKAGES.values() for name in packages
    )
    try:
        installed = {name: importlib.metadata.version(name) for name in names}
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(f"{error}; make compilers installs it") from error
    return {"tensorflow": report.tensorflow(), **installed}


def read(path: pathlib.Path) -> dict[str, Any]:
    """A file of cells; none if it is missing."""
    made = {"versions": versions(), "counting": COUNTING}
    if not path.exists():
        return {**made, "cells": []}
    table = files.read_json(str(path), "the devices")
    if not isinstance(table, dict) or set(table) != {*made, "cells"}:
        raise UserError(f"{path} is no file of devices, as this program writes")
    for name, value in made.items():
        if table[name] != value:
            raise UserError(
                f"{path} was made with {name} {table[name]}, but this program "
                f"has {value}; delete it, or name another file by --json"
            )
    keys = {key(*one) for one in cells()}
    unknown = [cell for cell in table["cells"] if key_of(cell) not in keys]
    if unknown:
        raise UserError(
            f"{path} has the step {', '.join(map(str, key_of(unknown[0])))}, "
            "which is not of the matrix; delete it, or name another file by "
            "--json"
        )
    return table


def page_tables(table: dict[str, Any]) -> dict[str, str]:
    """Returns the page's texts by the names of their marks."""
    made = {key_of(cell): cell for cell in table["cells"]}
    dates = sorted({cell["date"] for cell in table["cells"]})
    packages = ", ".join(f"{n} {v}" for n, v in table["versions"].items())
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    about = (
        f"Compiled on {days} by {packages}: {len(made)} of the "
        f"{len(cells())} steps of the whole matrix.\n"
    )

    def dtypes(device: str, run: DeviceRun) -> str:
        """In which a step compiles; those that do not are marked."""
        words = []
        for dtype in DTYPES:
            of_dtype = dataclasses.replace(run, dtype=dtype)
            cell = made.get(key(device, of_dtype))
            if cell:
                words.append(dtype if cell["compiles"] else f"not {dtype}")
        return ", ".join(words) or "not tried"

    all_devices = [["device", *STEPS]]
    for device in DEVICES:
        row = [dtypes(device, DeviceRun(step=step)) for step in STEPS]
        all_devices.append([f"`{device}`", *row])
    heads = [f"{step}, `{device}`" for device in MAIN for step in STEPS]
    kinds = [["method", "task", *heads]]
    names = dict.fromkeys((run.method, run.head) for _, run in cells())
    for method, head in names:
        row = [
            dtypes(device, DeviceRun(method, head, step=step))
            for device in MAIN
            for step in STEPS
        ]
        kinds.append([f"`{method}`", head, *row])
    sizes = [SIZES_HEADER]
    for cell in table["cells"]:
        is_counted = cell["compiles"] and cell["flops"] is not None
        if is_counted and cell["bert"] != runs.TINY:
            sizes.append(_row_of_size(cell))
    return {
        "all devices": f"{about}\n{report.markdown(all_devices)}",
        "matrix": report.markdown(kinds),
        "sizes": report.markdown(sizes, "---:") if sizes[1:] else NO_SIZES,
    }


def _row_of_size(cell: Cell) -> list[str]:
    device = DEVICES[cell["device"]]
    names = (field.name for field in dataclasses.fields(Compiled))
    compiled = Compiled(**{name: cell[name] for name in names})
    best = roofline(compiled, device, cell["dtype"], cell["rows"])
    words = [cell["bert"], cell["step"], cell["dtype"]]
    words.append(f"{cell['rows']} x {cell['length']}")
    words += [f"{cell['cores']} cores"] if cell["cores"] > 1 else []
    words += ["`--recompute=layers`"] if cell["recompute"] == LAYERS else []
    return [
        ", ".join([*words, f"`{cell['device']}`"]),
        f"{cell['memory'] / 1e9:.2f} of {device.memory / 1e9:.0f}",
        f"{cell['temporaries'] / 1e9:.2f}",
        f"{cell['flops'] / 1e9:,.0f}",
        f"{cell['moved'] / 1e9:.1f}",
        f"{1e3 * best['seconds_at_best']:.1f}",
        f"{best['examples_per_second_at_best']:,.0f}",
        best["bound_by"],
    ]


def write_page(table: dict[str, Any]) -> None:
    """Writes the tables of results/devices.md."""
    for name, text in page_tables(table).items():
        report.write(PAGE, name, text)


def compile_all(
    wanted: Sequence[Wanted], path: pathlib.Path, data: pathlib.Path
) -> list[Cell]:
    """Compiles cells that a file lacks, and keeps each in it at once.

    Returns:
        The wanted cells.
    """
    earlier = read(path)
    # A refusal is tried again.
    made = {key_of(c): c for c in earlier["cells"] if c["compiles"]}
    missing = [one for one in wanted if key(*one) not in made]
    began = time.monotonic()
    for number, (device, run) in enumerate(missing, 1):
        cell = compile_cell(device, run, data)
        made[key(device, run)] = cell
        left = (time.monotonic() - began) / number * (len(missing) - number)
        name = ", ".join(map(str, key(device, run)))
        print(
            f"{number} of {len(missing)}, {left / 60:.0f} minutes left: "
            f"{name}: {cell['reason'] or 'compiles'}, {cell['seconds']} s",
            file=sys.stderr,
            flush=True,
        )
        # In the order of the matrix, whenever they were compiled.
        ordered = [key(*one) for one in cells()]
        earlier["cells"] = sorted(
            made.values(), key=lambda cell: ordered.index(key_of(cell))
        )
        files.write_json(str(path), earlier)
        if path.resolve() == RESULTS:
            write_page(earlier)
    return [made[key(*one)] for one in wanted]


def main() -> None:
    """Compiles, and writes the page.

    Raises:
        SystemExit: a step does not compile.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=tuple(DEVICES), action="append")
    parser.add_argument("--method", help="only steps of this method")
    parser.add_argument("--head", help="only steps of this kind of task")
    parser.add_argument("--dtype", choices=DTYPES, help="of products")
    parser.add_argument("--step", choices=STEPS)
    parser.add_argument("--bert", choices=tuple(runs.SIZES))
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    wanted = [
        (device, run)
        for device, run in cells()
        if device in (arguments.device or DEVICES)
        and all(
            getattr(arguments, name)
            in (None, getattr(run, name).partition("(")[0])
            for name in ("method", "head", "dtype", "step", "bert")
        )
    ]
    if not wanted:
        raise UserError("no step of the matrix is asked for")
    with tempfile.TemporaryDirectory() as folder:
        runs.make(pathlib.Path(folder))
        results = compile_all(wanted, arguments.json, pathlib.Path(folder))
    failed = [cell for cell in results if not cell["compiles"]]
    print(f"{len(results) - len(failed)} of {len(results)} steps compile")
    if failed:
        raise SystemExit(f"{len(failed)} steps do not compile")


if __name__ == "__main__":
    with command_line.run():
        main()
