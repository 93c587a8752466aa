"""Judges the runs of `prove.sh`, prints a table, writes `prove.json`.

    .venv/bin/python -m lab.devices.judge OUT DEVICE SECONDS

Losses are compared where runs' curves have them, at every tenth step. The exit
code is 1 if a proof fails.
"""

import pathlib
import statistics
import sys
from typing import Any, Dict, List

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import safetensors.numpy
import tensorflow as tf

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from adapter_bert.reports import report_run

# Of runs in float32 without dropout: largest differences of a loss and of a
# probability, and of trained values, as a share of the norm of all. A TPU
# multiplies in bfloat16.
TOLERANCES = {
    "loss": {"cpu": 1e-5, "gpu": 1e-3, "tpu": 0.05},
    "probability": {"cpu": 1e-5, "gpu": 5e-3, "tpu": 0.1},
    "values": {"cpu": 1e-5, "gpu": 1e-3, "tpu": 0.01},
}
# Runs that are compared with the CPU's. A TPU computes by XLA alone.
COMPARED = {
    "cpu": ("device", "xla"),
    "gpu": ("device", "xla"),
    "tpu": ("device",),
}
ADAPTER = "adapter/adapter.safetensors"
RATE = "examples_per_second"
DTYPES = ("float32", "bfloat16")
AGAIN = "run lab/devices/prove.sh again, with another OUT"


def _curve(run: pathlib.Path, name: str) -> Dict[int, float]:
    """A curve of a run, by step.

    Raises:
        UserError: there is none.
    """
    found = report_run.read_curves(run).get(name)
    if not found:
        raise UserError(f"{run} has no curve {name!r}; {AGAIN}")
    return dict(found)


def _losses(run: pathlib.Path) -> Dict[int, float]:
    return _curve(run, "loss")


def _rate(run: pathlib.Path) -> float:
    """Examples a second: the median of the curve's second half."""
    rates = [*_curve(run, RATE).values()]
    return statistics.median(rates[len(rates) // 2 :])


def _probabilities(run: pathlib.Path) -> np.ndarray:
    """The probabilities of the test rows, float64 [N, C].

    Raises:
        UserError: they cannot be read.
    """
    path = run / "test_results.tsv"
    lines = files.read_text(str(path), "the probabilities").splitlines()
    try:
        return np.loadtxt(lines, ndmin=2)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; {AGAIN}") from error


def _adapter(run: pathlib.Path) -> bytes:
    """The file of trained values; raises as `files.read_bytes`."""
    return files.read_bytes(str(run / ADAPTER), "the adapter")


def _values(run: pathlib.Path) -> np.ndarray:
    """All trained values, in the order of their names, float64 [N].

    Raises:
        UserError: they cannot be read.
    """
    try:
        found = safetensors.numpy.load(_adapter(run))
    except safetensors.SafetensorError as error:
        path = run / ADAPTER
        raise UserError(f"{path} is damaged: {error}; {AGAIN}") from error
    return np.concatenate(
        [found[name].ravel().astype(np.float64) for name in sorted(found)]
    )


def differences(expected: pathlib.Path, run: pathlib.Path) -> Dict[str, float]:
    """How far a run is from another of the same steps.

    Args:
        expected: folder of the run of the CPU.
        run: folder of the run of the device.

    Returns:
        A difference for each of `TOLERANCES`.

    Raises:
        UserError: a file is missing or damaged, the runs are of other steps,
            rows or values, or a number is not finite.
    """
    folders = expected, run
    losses = [_losses(folder) for folder in folders]
    numbers = {
        "steps": [np.array([*curve]) for curve in losses],
        "losses": [np.array([*curve.values()]) for curve in losses],
        "probabilities": [_probabilities(folder) for folder in folders],
        "values": [_values(folder) for folder in folders],
    }
    for name, pair in numbers.items():
        for folder, value in zip(folders, pair):
            if not np.isfinite(value).all():
                raise UserError(
                    f"{folder} has {name} that are not finite; lower "
                    "--learning_rate"
                )
        if pair[0].shape != pair[1].shape:
            raise UserError(
                f"{run} has {name} of the shape {pair[1].shape}, expected "
                f"{pair[0].shape} as {expected}; {AGAIN}"
            )
    if np.any(numbers["steps"][0] != numbers["steps"][1]):
        raise UserError(
            f"{run} has losses of other steps than {expected}; {AGAIN}"
        )
    apart = {name: given - right for name, (right, given) in numbers.items()}
    whole = np.linalg.norm(numbers["values"][0])
    return {
        "loss": float(np.max(np.abs(apart["losses"]))),
        "probability": float(np.max(np.abs(apart["probabilities"]))),
        "values": float(np.linalg.norm(apart["values"]) / whole),
    }


def judge(out: pathlib.Path, device: str, seconds: int) -> Dict[str, Any]:
    """Findings of the runs, as values of JSON.

    Args:
        out: folder of the runs.
        device: of `COMPARED`.
        seconds: that the runs took.

    Raises:
        UserError: as `differences`.
    """
    limits = {name: limit[device] for name, limit in TOLERANCES.items()}
    apart = {
        name: differences(out / "cpu", out / name) for name in COMPARED[device]
    }
    names = tf.config.list_physical_devices(device.upper())
    return {
        "device": device,
        "devices": [
            tf.config.experimental.get_device_details(name).get(
                "device_name", name.name
            )
            for name in names
        ],
        "tensorflow": tf.__version__,
        "seconds": seconds,
        "losses": {name: _losses(out / name) for name in ("cpu", *apart)},
        "differences": apart,
        "tolerances": limits,
        "is_alike": {
            name: all(found[key] <= limits[key] for key in limits)
            for name, found in apart.items()
        },
        "resumes_with_same_bits": _adapter(out / "whole")
        == _adapter(out / "resumed"),
        "examples_per_second": {
            dtype: _rate(out / f"speed-{dtype}") for dtype in DTYPES
        },
    }


def table(found: Dict[str, Any]) -> List[str]:
    """The lines of the table."""
    yes = {True: "yes", False: "NO"}
    compared = []
    for name, of_run in found["differences"].items():
        apart = ", ".join(
            f"{key} {value:.1e} (at most {found['tolerances'][key]:g})"
            for key, value in of_run.items()
        )
        label = "with XLA" if name == "xla" else "as it is"
        compared += [
            f"{label}, from the CPU  {apart}",
            f"{label}, like the CPU  {yes[found['is_alike'][name]]}",
        ]
    return [
        f"device                  {', '.join(found['devices'])}",
        *compared,
        f"resumes with same bits  {yes[found['resumes_with_same_bits']]}",
        *(
            f"examples/s, {dtype:12}{rate:,.1f}"
            for dtype, rate in found["examples_per_second"].items()
        ),
        f"took                    {found['seconds']} s",
    ]


def main() -> None:
    """Judges; see the file's description.

    Raises:
        UserError: as `judge`.
        SystemExit: a proof fails.
    """
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("device", choices=COMPARED)
    parser.add_argument("seconds", type=int, metavar="SECONDS")
    arguments = parser.parse_args()
    found = judge(arguments.out, arguments.device, arguments.seconds)
    files.write_json(str(arguments.out / "prove.json"), found)
    print("\n".join(table(found)))
    if not (
        all(found["is_alike"].values()) and found["resumes_with_same_bits"]
    ):
        sys.exit(1)


if __name__ == "__main__":
    command_line.run(main)
