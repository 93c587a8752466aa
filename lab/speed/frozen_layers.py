"""Measures what it brings to compute frozen layers once.

    .venv/bin/python -m lab.speed.frozen_layers

Trains by turns with the layers below all that is trained computed in each step,
and with their outputs taken from a file, which is written before. Prints rates
and ratios, and writes the table in docs/performance.md.
"""

import argparse
import dataclasses
import json
import os
import tempfile
from typing import Any, Dict, List

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert import command_line, files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.commands import minilm
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.errors import UserError
from lab.speed import compare, processes

RESULTS = compare.RESULTS.parent / "frozen_layers.json"
BEGIN = "<!-- frozen layers: begin -->\n"
END = "<!-- frozen layers: end -->\n"
DTYPES = ("float32", "bfloat16")
# Of a measurement; a multiple of the batches that are grouped by length.
STEPS = 24


def methods(config: BertConfig) -> List[str]:
    """Only the head, a layer, adapters in the upper half."""
    layers = config.num_hidden_layers
    upper = f"{layers // 2}-{layers - 1}"
    return ["head", "top_layers(k=1)", f"houlsby(size=64, layers='{upper}')"]


def measure(
    method: str, dtype: str, rows: str, model: Dict[str, Any], rounds: int
) -> Dict[str, Any]:
    """Rates in examples per second, and their ratios, of one method."""
    options = {
        "kind": "train",
        "rows": rows,
        "batch_size": compare.BATCH_SIZE,
        "dtype": dtype,
        "method": method,
        **model,
    }
    measured = processes.measure_in_turn(
        {
            name: processes.Worker(
                processes.OURS,
                {**options, "cached": name == "once"},
                # A few steps of it would be too short to measure.
                STEPS * (8 if name == "once" else 1),
            )
            for name in ("each step", "once")
        },
        rounds,
    )
    rates = {
        name: [m["examples"] / m["seconds"] for m in values]
        for name, values in measured.items()
    }
    return {
        "examples_per_second": {
            name: compare.spread(values) for name, values in rates.items()
        },
        "ratio": compare.spread_of_ratios(rates["once"], rates["each step"]),
    }


def to_markdown(results: Dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    machine = results["machine"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores; TensorFlow "
        f"{results['versions']['tensorflow']}; batches of "
        f"{compare.BATCH_SIZE}, {results['rounds']} rounds; {results['rows']}.",
        "",
        "| | frozen layers in each step, examples/s | once, examples/s | "
        "ratio (lowest to highest) |",
        "|---|---|---|---|",
    ]
    for name, found in results["methods"].items():
        rates = found["examples_per_second"]
        cells = [
            f"`{name.rpartition(' ')[0]}`, {name.rpartition(' ')[2]}",
            compare.format_spread(rates["each step"]),
            compare.format_spread(rates["once"]),
            compare.format_ratio(found["ratio"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures all.

    Raises:
        UserError: a model or its rows cannot be read, there is nothing to
            measure, or a process has died.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--glue_dir", default=os.environ.get("GLUE_DIR", ""))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a method and dtype")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        raise UserError(
            f"--rounds={arguments.rounds} measures nothing; expected at least 1"
        )
    folder = minilm.folder()
    config = BertConfig.from_json_file(os.path.join(folder, "config.json"))
    tokenizer = FullTokenizer(os.path.join(folder, "vocab.txt"), True)
    model = {"model": folder, "config": dataclasses.asdict(config)}
    results = {
        **compare.environment(),
        "rounds": arguments.rounds,
        "rows": "MRPC" if arguments.glue_dir else "the project's own pairs",
        "methods": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        rows = os.path.join(scratch, "pairs.npz")
        found = compare.read_features(tokenizer, arguments.glue_dir)
        processes.write_rows(rows, found["pairs"])
        for method in methods(config):
            for dtype in DTYPES:
                name = f"{method} {dtype}"
                if arguments.only not in name:
                    continue
                results["methods"][name] = measure(
                    method, dtype, rows, model, arguments.rounds
                )
                print(name, json.dumps(results["methods"][name]), flush=True)
    table = to_markdown(results)
    print(table)
    if not arguments.only:
        files.write_json(str(RESULTS), results)
        compare.write_table(table, BEGIN, END)


if __name__ == "__main__":
    command_line.run(main)
