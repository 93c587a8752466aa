"""Judges the runs of `prove.sh`, prints a table, writes `prove.json`.

    .venv/bin/python -m lab.devices.judge OUT DEVICE SECONDS

The exit code is 1 if a proof fails.
"""

import hashlib
import pathlib
import statistics
import sys
from typing import Any, Dict, List

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import safetensors.numpy
import tensorflow as tf

from adapter_bert import files
from adapter_bert.reports import report_run

# Of runs in float32 without dropout: largest differences of a loss and of a
# probability, and of trained values, as a share of the norm of all. A TPU
# multiplies in bfloat16.
TOLERANCES = {
    "loss": {"cpu": 1e-5, "gpu": 1e-3, "tpu": 0.05},
    "probability": {"cpu": 1e-5, "gpu": 5e-3, "tpu": 0.1},
    "values": {"cpu": 1e-5, "gpu": 1e-3, "tpu": 0.01},
}
ADAPTER = "adapter/adapter.safetensors"
RATE = "examples_per_second"
DTYPES = ("float32", "bfloat16")


def _losses(run: pathlib.Path) -> Dict[int, float]:
    """The losses of a run's curve, by step."""
    return dict(report_run.read_curves(run)["loss"])


def _probabilities(run: pathlib.Path) -> np.ndarray:
    """The probabilities of the test rows, float64 [N, C]."""
    return np.loadtxt(run / "test_results.tsv", ndmin=2)


def _values(run: pathlib.Path) -> np.ndarray:
    """All trained values, in the order of their names, float64 [N]."""
    found = safetensors.numpy.load_file(run / ADAPTER)
    return np.concatenate(
        [found[name].ravel().astype(np.float64) for name in sorted(found)]
    )


def _differences(expected: pathlib.Path, run: pathlib.Path) -> Dict[str, float]:
    """How far a run is from another."""
    told, losses = _losses(expected), _losses(run)
    right, values = _values(expected), _values(run)
    probabilities = _probabilities(run) - _probabilities(expected)
    return {
        "loss": max(abs(losses[step] - told[step]) for step in told),
        "probability": float(np.abs(probabilities).max()),
        "values": float(np.linalg.norm(values - right) / np.linalg.norm(right)),
    }


def _rate(run: pathlib.Path) -> float:
    """Examples a second: the median of the curve's second half."""
    rates = [rate for _, rate in report_run.read_curves(run)[RATE]]
    return statistics.median(rates[len(rates) // 2 :])


def judge(out: pathlib.Path, device: str, seconds: int) -> Dict[str, Any]:
    """What the runs show, as values of JSON."""
    apart = _differences(out / "cpu", out / "device")
    limits = {name: limit[device] for name, limit in TOLERANCES.items()}
    digests = [
        hashlib.sha256((out / run / ADAPTER).read_bytes()).hexdigest()
        for run in ("whole", "resumed")
    ]
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
        "losses_of_cpu": _losses(out / "cpu"),
        "losses": _losses(out / "device"),
        "differences": apart,
        "tolerances": limits,
        "is_alike": all(apart[name] <= limits[name] for name in apart),
        "resumes_with_same_bits": digests[0] == digests[1],
        "examples_per_second": {
            dtype: _rate(out / f"speed-{dtype}") for dtype in DTYPES
        },
    }


def table(found: Dict[str, Any]) -> List[str]:
    """The lines of the table."""
    yes = {True: "yes", False: "NO"}
    apart = ", ".join(
        f"{name} {value:.1e} (at most {found['tolerances'][name]:g})"
        for name, value in found["differences"].items()
    )
    return [
        f"device                  {', '.join(found['devices'])}",
        f"differs from the CPU    {apart}",
        f"like the CPU            {yes[found['is_alike']]}",
        f"resumes with same bits  {yes[found['resumes_with_same_bits']]}",
        *(
            f"examples/s, {dtype:12}{rate:,.1f}"
            for dtype, rate in found["examples_per_second"].items()
        ),
        f"took                    {found['seconds']} s",
    ]


def main() -> None:
    """Judges; see the file's description."""
    out, device, seconds = sys.argv[1:]
    found = judge(pathlib.Path(out), device, int(seconds))
    files.write_json(f"{out}/prove.json", found)
    print("\n".join(table(found)))
    if not (found["is_alike"] and found["resumes_with_same_bits"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
