"""Measures the gain of computing frozen layers once.

    .venv/bin/python -m lab.speed.frozen_layers

Trains by turns with the layers below all that is trained computed in each step,
and with their outputs taken from a file, which is written before. Prints rates
and ratios, and writes the table in docs/performance.md.
"""

import json
import os
import tempfile
from typing import Any, Dict, List

from adapter_bert import command_line
from lab import report
from lab.speed import measuring
from lab.speed.measuring import BATCH_SIZE, DTYPES, OURS, Worker

EACH, ONCE = "each step", "once"
# Of a measurement: a multiple of the batches that are grouped by length. A few
# steps with the outputs from a file would be too short to measure.
STEPS = {EACH: 24, ONCE: 8 * 24}


def methods(layers: int) -> List[str]:
    """Only the head, a layer, adapters in the upper half."""
    upper = f"{layers // 2}-{layers - 1}"
    return ["head", "top_layers(k=1)", f"houlsby(size=64, layers='{upper}')"]


def measure(options: Dict[str, Any], rounds: int) -> Dict[str, Any]:
    """Rates in examples per second, and their ratios, of one method."""
    options = {**options, "kind": "train", "batch_size": BATCH_SIZE}
    workers = {
        name: Worker(OURS, {**options, "cached": name == ONCE}, steps)
        for name, steps in STEPS.items()
    }
    rates = measuring.rates(measuring.in_turn(workers, rounds))
    return {
        "examples_per_second": measuring.spreads(rates),
        "ratio": measuring.ratio(rates[ONCE], rates[EACH]),
    }


def to_markdown(results: Dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    rows = [
        [
            "",
            "frozen layers in each step, examples/s",
            "once, examples/s",
            "ratio (lowest to highest)",
        ]
    ]
    for name, found in results["methods"].items():
        method, _, dtype = name.rpartition(" ")
        rates = found["examples_per_second"]
        cells = [measuring.cell(rates[way]) for way in STEPS]
        ratio = measuring.ratio_cell(found["ratio"])
        rows.append([f"`{method}`, {dtype}", *cells, ratio])
    about = f"batches of {BATCH_SIZE}, {results['rounds']} rounds; "
    return measuring.table(results, about + results["rows"], rows)


def main() -> None:
    """Measures all.

    Raises:
        UserError: a model or its rows cannot be read, there is nothing to
            measure, or a process has died.
    """
    parser = measuring.make_parser(__doc__, rounds=5)
    measuring.add_data(parser)
    parser.add_argument("--only", default="", help="part of a method and dtype")
    arguments = measuring.parse(parser)
    model = measuring.open_model()
    results: Dict[str, Any] = {
        **report.environment(),
        "rounds": arguments.rounds,
        "rows": "MRPC" if arguments.glue_dir else "the project's own pairs",
        "methods": {},
    }
    found = measuring.read_features(model["model"], arguments.glue_dir)
    with tempfile.TemporaryDirectory() as scratch:
        rows = os.path.join(scratch, "pairs.npz")
        measuring.write_rows(rows, found["pairs"])
        for method in methods(model["config"]["num_hidden_layers"]):
            for dtype in DTYPES:
                name = f"{method} {dtype}"
                if arguments.only in name:
                    options = {"method": method, "dtype": dtype, "rows": rows}
                    one = measure({**model, **options}, arguments.rounds)
                    results["methods"][name] = one
                    print(name, json.dumps(one), flush=True)
    table = to_markdown(results)
    print(table)
    if not arguments.only:
        measuring.publish("frozen_layers", results, table)


if __name__ == "__main__":
    command_line.run(main)
