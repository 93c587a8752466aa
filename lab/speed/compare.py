"""Compares speed and memory with AdapterHub's `adapters` and peft, in one run.

    make benchmark

Both sides train, or predict with, the same weights, rows, batch size,
precision and adapter size, in processes that take turns. The machine's own
matrix products are measured between them. Writes `lab/results/compare.json`
and the table in results/performance.md.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
from typing import Any, NamedTuple

from adapter_bert import command_line
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import packaged_models
from adapter_bert.errors import UserError
from adapter_bert.training import cpu_cores
from lab import report
from lab.speed import measuring
from lab.speed.measuring import (
    ADAPTER_SIZE,
    BATCH_SIZE,
    DTYPES,
    MAX_LENGTH,
    OURS,
    PEERS,
    Measured,
    Worker,
)

# The rows where GLUE is at hand.
GLUE_ROWS = "MRPC and CoLA"
PREDICTED_ROWS = 512
# Of MPNet's LoRA.
RANK = 8
# How AdapterHub's users pad: as its examples do, as is usual, and by the
# Trainer's option that most leave off.
PADDINGS = {
    "full": f"padded to {MAX_LENGTH}",
    "dynamic": "padded to the longest of a batch",
    "grouped": "grouped by length",
}


class Comparison(NamedTuple):
    """A configuration of ours and the peer's.

    Attributes:
        kind: `train` or `predict`.
        rows: `pairs` or `sentences`.
        model: `minilm`, `base`, which has random weights, or `mpnet`, which has
            LoRA and peft as its peer, since `adapters` lacks it.
        dtype: of the computation.
        steps: of ours in each measurement, a multiple of the batches that are
            grouped by length together, so that all lengths occur.
        peer_steps: of the peer's.
    """

    kind: str
    rows: str
    model: str
    dtype: str
    steps: int = 0
    peer_steps: int = 0

    @property
    def name(self) -> str:
        """Returns the name for people and for `--only`."""
        return "-".join(self[:4])

    @property
    def options(self) -> dict[str, Any]:
        """Options of both sides that name what is trained."""
        if self.model == "mpnet":
            return {"method": f"lora(rank={RANK})", "lora_rank": RANK}
        return {
            "method": f"houlsby(size={ADAPTER_SIZE})",
            "adapter_size": ADAPTER_SIZE,
        }

    @property
    def paddings(self) -> list[str]:
        """Returns the peer's ways of padding that are measured."""
        is_small = self.kind == "train" and self.model == "minilm"
        return list(PADDINGS) if is_small else ["dynamic"]


TRAININGS = (
    ("pairs", "minilm", 24, 12),
    ("sentences", "minilm", 48, 32),
    ("pairs", "base", 8, 4),
    ("pairs", "mpnet", 8, 4),
)
PREDICTIONS = ("pairs", "minilm"), ("sentences", "minilm"), ("pairs", "mpnet")
COMPARISONS = [
    *(
        Comparison("train", rows, model, dtype, steps, peer_steps)
        for rows, model, steps, peer_steps in TRAININGS
        for dtype in DTYPES
    ),
    *(
        Comparison("predict", rows, model, dtype)
        for rows, model in PREDICTIONS
        for dtype in DTYPES
    ),
]


def compare(
    one: Comparison, rows: str, model: dict[str, Any], peer: str, rounds: int
) -> Measured:
    """Measures `products`, `ours` and each of the peer's paddings.

    Args:
        one: the comparison.
        rows: file of the rows.
        model: the options that name the BERT.
        peer: the peer's Python.
        rounds: of measurements.
    """
    options = {
        "kind": one.kind,
        "rows": rows,
        "batch_size": BATCH_SIZE,
        "dtype": one.dtype,
        **one.options,
        "cores": cpu_cores.count(),
        **model,
    }
    theirs = [peer, str(PEERS / "adapters_worker.py")]
    workers = {
        "products": Worker(OURS, {**options, "kind": "products"}),
        "ours": Worker(OURS, options, one.steps),
    }
    for padding in one.paddings:
        # All batches of full length are slow.
        steps = one.peer_steps // (4 if padding == "full" else 1)
        workers[padding] = Worker(
            theirs, {**options, "padding": padding}, steps
        )
    return measuring.in_turn(workers, rounds)


def summarize(measured: Measured) -> dict[str, Any]:
    """Medians, spreads and ratios of one comparison."""
    rates = measuring.rates(measured)
    peak, used = (
        [m["flops"] / m["seconds"] for m in measured[name]]
        for name in ("products", "ours")
    )
    return {
        "examples_per_second": measuring.spreads(rates),
        # Ours against each peer, measured one after the other.
        "ratio": {
            name: measuring.ratio(rates["ours"], values)
            for name, values in rates.items()
            if name != "ours"
        },
        "peak_gflops": statistics.median(peak) / 1e9,
        "share_of_peak": measuring.ratio(used, peak)["median"],
        "memory_bytes": {
            name: measured[name][-1]["peak_bytes"] for name in rates
        },
        "tokens_per_example": {
            name: sum(m["tokens"] for m in measured[name])
            / sum(m["examples"] for m in measured[name])
            for name in rates
        },
    }


def to_markdown(results: dict[str, Any]) -> str:
    """Returns the table of results/performance.md."""
    rows = [
        [
            "",
            "ours, examples/s",
            "peer's padding",
            "peer, examples/s",
            "ratio (lowest to highest)",
            "memory, ours / peer",
            "of the products' best of 5",
        ]
    ]
    for name, pair in results["comparisons"].items():
        rates, memory = (
            pair["examples_per_second"],
            pair["memory_bytes"],
        )
        first = [name.replace("-", " "), measuring.cell(rates["ours"])]
        last = f"{pair['share_of_peak']:.0%} of {pair['peak_gflops']:.0f}"
        last += " GFLOP/s"
        for padding, ratio in pair["ratio"].items():
            ours, theirs = memory["ours"], memory[padding]
            rows.append(
                [
                    *first,
                    PADDINGS[padding],
                    measuring.cell(rates[padding]),
                    measuring.ratio_cell(ratio),
                    f"{ours / 2**30:.2f} / {theirs / 2**30:.2f} GiB = "
                    f"{ours / theirs:.2f}",
                    last,
                ]
            )
            first, last = ["", ""], ""
    about = (
        f"batches of {BATCH_SIZE}, adapters of size {ADAPTER_SIZE}, LoRA of "
        f"rank {RANK} for mpnet, "
        f"{results['rounds']} rounds; {results['rows']}"
    )
    return measuring.table(results, about, rows)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = measuring.make_parser(__doc__, rounds=3)
    parser.add_argument("--only", default="", help="part of a name")
    arguments = measuring.parse(parser)
    names = [one.name for one in COMPARISONS]
    if not any(arguments.only in name for name in names):
        raise UserError(
            f"no comparison's name holds --only={arguments.only}; they are "
            f"{', '.join(names)}"
        )
    return arguments


def main() -> None:
    """Runs the comparisons that the arguments name."""
    arguments = parse_arguments()
    minilm = measuring.open_model(arguments.model)
    base = BertConfig(minilm["config"]["vocab_size"])
    models = {
        "minilm": minilm,
        "base": {"model": None, "config": dataclasses.asdict(base)},
    }
    results: dict[str, Any] = {
        **report.environment(),
        "rounds": arguments.rounds,
        "rows": GLUE_ROWS if arguments.glue_dir else measuring.OWN_TEXTS,
        "comparisons": {},
        "measurements": {},
    }
    chosen = [one for one in COMPARISONS if arguments.only in one.name]
    if any(one.model == "mpnet" for one in chosen):
        models["mpnet"] = measuring.open_model(packaged_models.folder("mpnet"))
    # The model of random weights has MiniLM's vocabulary.
    features = {
        name: measuring.read_features(
            model["model"] or minilm["model"], arguments.glue_dir
        )
        for name, model in models.items()
    }
    with tempfile.TemporaryDirectory() as scratch:
        for one in chosen:
            path = f"{scratch}/rows.npz"
            count = PREDICTED_ROWS if one.kind == "predict" else 0
            measuring.write_rows(path, features[one.model][one.rows], count)
            model, peer = models[one.model], arguments.peer_python
            measured = compare(one, path, model, peer, arguments.rounds)
            summary = summarize(measured)
            results["measurements"][one.name] = measured
            results["comparisons"][one.name] = summary
            print(one.name, json.dumps(summary, indent=1), flush=True)
    table = to_markdown(results)
    print(table)
    if not arguments.only:
        measuring.publish("compare", results, table)


if __name__ == "__main__":
    with command_line.run():
        main()
