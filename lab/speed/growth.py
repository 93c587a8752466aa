"""Measures how training's speed and memory grow with the work.

    .venv/bin/python -m lab.speed.growth

Sequence length, batch size, adapter size, number of layers and the lowest
layer with adapters are each varied alone around one model, of MiniLM's size
with random weights, in float32. Every point is a process of its own, one at a
time. Writes `lab/results/growth.json` and docs/growth.png.
"""

import dataclasses
import functools
import statistics
import tempfile
from typing import Any, Dict, List, Tuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from adapter_bert.bert.encoder import BertConfig
from adapter_bert.data.input_pipeline import Features
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from lab import report
from lab.speed import flops, measuring
from lab.speed.worker import TASK

FIGURE = report.ROOT / "docs" / "growth.png"

ROUNDS = 3
# A measurement takes about so many seconds on a machine of so many operations
# a second; the slowest ones take longer.
SECONDS = 2.0
ASSUMED_FLOPS = 150e9
FEWEST_STEPS = 2


@dataclasses.dataclass(frozen=True)
class Point:
    """One training; the values without arguments are those of the base.

    Attributes:
        length: tokens of every row.
        batch_size: rows of a step.
        adapter_size: bottleneck of the adapters.
        layers: of BERT.
        lowest: the lowest layer that has adapters, counted from 0. With 0 all
            have, and the LayerNorm of the embeddings is trained too.
    """

    length: int = 64
    batch_size: int = 32
    adapter_size: int = 64
    layers: int = 6
    lowest: int = 0

    @property
    def config(self) -> BertConfig:
        """The BERT: MiniLM's sizes, but for the number of layers."""
        return BertConfig(
            vocab_size=30522,
            hidden_size=384,
            num_hidden_layers=self.layers,
            num_attention_heads=12,
            intermediate_size=1536,
            hidden_act="gelu_erf",
            max_position_embeddings=512,
        )

    @property
    def method(self) -> str:
        """The tuning method, as `parsing.parse` reads it."""
        if not self.lowest:
            return f"houlsby(size={self.adapter_size})"
        layers = f"{self.lowest}-{self.layers - 1}"
        return f'houlsby(size={self.adapter_size}, layers="{layers}")'

    def count_flops(self) -> int:
        """Counted floating-point operations of a training step."""
        table = task_model.list_parameters(
            self.config, parse(self.method), TASK.build_head
        )
        return flops.training(self.config, table, self.batch_size, self.length)

    def count_steps(self) -> int:
        """Steps of a measurement."""
        steps = round(SECONDS * ASSUMED_FLOPS / self.count_flops())
        return max(FEWEST_STEPS, steps)


# Field of Point -> its values, that of the base among them.
AXES: Dict[str, Tuple[int, ...]] = {
    "length": (16, 32, 64, 128, 256, 512),
    "batch_size": (1, 4, 8, 16, 32, 64),
    "adapter_size": (1, 8, 64, 256, 512),
    "layers": (1, 2, 4, 6, 8, 12),
    "lowest": (0, 1, 2, 3, 4, 5),
}
LABELS = {
    "length": "sequence length (tokens)",
    "batch_size": "batch size (rows)",
    "adapter_size": "adapter size (units)",
    "layers": "layers of BERT",
    "lowest": "lowest layer with adapters",
}


def points(axis: str) -> List[Point]:
    """The base point with one of its values varied."""
    return [
        dataclasses.replace(Point(), **{axis: value}) for value in AXES[axis]
    ]


def make_rows(point: Point) -> Features:
    """Rows of random tokens for two batches, all of the point's length."""
    rng = np.random.default_rng(1)
    count = 2 * point.batch_size
    shape = (count, point.length)
    tokens = rng.integers(1, point.config.vocab_size, shape, np.int32)
    return Features.from_rows([(row, np.zeros_like(row)) for row in tokens], {})


@functools.cache
def measure(point: Point) -> Dict[str, Any]:
    """Trains at one point, in a process of its own.

    Returns:
        `examples_per_second` (median, lowest, highest), `memory_bytes` (the
        whole process's peak; TensorFlow and starting take 0.8 GB of it),
        `flops_per_example` (counted) and `flops_per_second` (median), with
        the point's values and the `steps` of a measurement.
    """
    steps = point.count_steps()
    with tempfile.TemporaryDirectory() as folder:
        rows = f"{folder}/rows.npz"
        measuring.write_rows(rows, make_rows(point))
        options = {
            "kind": "train",
            "rows": rows,
            "batch_size": point.batch_size,
            "dtype": "float32",
            "method": point.method,
            "model": None,
            "config": dataclasses.asdict(point.config),
        }
        worker = measuring.Worker(measuring.OURS, options, steps)
        measured = measuring.in_turn({"ours": worker}, ROUNDS)
    rounds = measured["ours"]
    return {
        **dataclasses.asdict(point),
        "steps": steps,
        "examples_per_second": measuring.spreads(measuring.rates(measured))[
            "ours"
        ],
        "memory_bytes": rounds[-1]["peak_bytes"],
        "flops_per_example": point.count_flops() / point.batch_size,
        "flops_per_second": statistics.median(
            m["flops"] / m["seconds"] for m in rounds
        ),
    }


def draw(axes: Dict[str, List[Dict[str, Any]]], path: str) -> None:
    """Draws a column for each axis: rates above, memory below.

    A dotted line shows what the rates would be if the machine computed the
    counted operations of every point as fast as those of the base.
    """
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    grid = figure.subplots(2, len(axes), sharex="col", sharey="row")
    for (axis, measured), (above, below) in zip(axes.items(), grid.T):
        values = [m[axis] for m in measured]
        medians, lowest, highest = (
            np.array([m["examples_per_second"][key] for m in measured])
            for key in ("median", "lowest", "highest")
        )
        work = np.array([m["flops_per_example"] for m in measured])
        base = values.index(getattr(Point(), axis))
        above.plot(
            values,
            medians[base] * work[base] / work,
            color="0.45",
            ls=":",
            label="rate, if all operations took as long as the base's",
        )
        above.errorbar(
            values,
            medians,
            [medians - lowest, highest - medians],
            color="#0072b2",
            marker="o",
            capsize=2,
            label="rate: median, lowest and highest",
        )
        below.plot(
            values,
            [m["memory_bytes"] / 2**30 for m in measured],
            color="#d55e00",
            marker="s",
            ls="--",
            label="memory: peak of the process",
        )
        if axis != "lowest":
            below.set_xscale("log")
        below.set_xticks(values, [str(value) for value in values])
        below.xaxis.set_minor_locator(NullLocator())
        below.set_xlabel(LABELS[axis])
        for panel in (above, below):
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            panel.yaxis.set_minor_locator(NullLocator())
            panel.tick_params(labelsize="x-small")
            panel.grid(color="0.9")
    grid[0, 0].set_ylabel("training (examples/s)")
    grid[1, 0].set_ylabel("memory (GiB)")
    handles = sum((p.get_legend_handles_labels()[0] for p in grid[:, 0]), [])
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures all axes, or the one that is named."""
    parser = measuring.make_parser(__doc__)
    parser.add_argument("--only", choices=AXES, help="print one axis's points")
    only = parser.parse_args().only
    results: Dict[str, Any] = {
        **report.environment(),
        "rounds": ROUNDS,
        "axes": {},
    }
    for axis in [only] if only else AXES:
        results["axes"][axis] = []
        for point in points(axis):
            found = measure(point)
            results["axes"][axis].append(found)
            print(
                f"{axis} {getattr(point, axis)}: "
                f"{found['examples_per_second']['median']:.1f} examples/s, "
                f"{found['memory_bytes'] / 2**30:.2f} GiB, "
                f"{found['flops_per_second'] / 1e9:.0f} GFLOP/s",
                flush=True,
            )
    if not only:
        measuring.publish("growth", results)
        draw(results["axes"], str(FIGURE))


if __name__ == "__main__":
    main()
