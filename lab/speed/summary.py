"""Writes one table of what the benchmarks beside the peer have found.

    .venv/bin/python -m lab.speed.summary

Reads `results/compare.json` and `results/start.json`, which `make benchmark`
writes. The table is the first one of docs/performance.md. Every cell but the
last column's is a ratio to the peer, in which more is better for speed, and
less for times and memory.
"""

import json
from typing import Any, Dict, List, Mapping

from adapter_bert import command_line
from adapter_bert.errors import UserError
from lab.speed import compare, start

BEGIN, END = "<!-- summary: begin -->\n", "<!-- summary: end -->\n"
HEADER = (
    "",
    "speed, usual padding",
    "speed, grouped by length",
    "memory, usual padding",
    "share of the products' best",
)
# Short names of the rows that are compared.
ROWS = {"pairs": "MRPC", "sentences": "CoLA"}


def to_markdown(compared: Mapping[str, Any], started: Mapping[str, Any]) -> str:
    """The table.

    Args:
        compared: what `compare` wrote.
        started: what `start` wrote.
    """
    lines = [
        f"{compared['machine']['processor']}, {compared['machine']['cores']} "
        f"cores; TensorFlow {compared['versions']['tensorflow']}; medians of "
        f"{compared['rounds']} rounds, of {started['rounds']} for whole "
        "programs.",
        "",
        _row(HEADER),
        _row(["---"] * len(HEADER)),
    ]
    names = ROWS if compared["rows"] == compare.GLUE_ROWS else {}
    for name, found in compared["comparisons"].items():
        kind, rows, model, dtype = name.split("-")
        ratio, memory = found["ratio"], found["memory_bytes"]
        grouped = ratio.get("grouped")
        cells = [
            f"{kind} {names.get(rows, rows)}, {model}, {dtype}",
            f"{ratio['dynamic']['median']:.2f}",
            f"{grouped['median']:.2f}" if grouped else "",
            f"{memory['ours'] / memory['dynamic']:.2f}",
            f"{found['share_of_peak']:.0%}",
        ]
        lines.append(_row(cells))
    for which, found in started["summary"].items():
        for engine, ratio in found["ratio"].items():
            # The peer's program groups by length.
            cells = [f"time to {which}, {engine}", "", f"{ratio['median']:.2f}"]
            lines.append(_row([*cells, "", ""]))
    return "\n".join(lines) + "\n"


def _row(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def read_results() -> List[Dict[str, Any]]:
    """What the two benchmarks have written.

    Raises:
        UserError: one of them has not been run.
    """
    found = []
    for module in (compare, start):
        if not module.RESULTS.exists():
            raise UserError(
                f"there is no {module.RESULTS}; run {module.__name__} first"
            )
        found.append(json.loads(module.RESULTS.read_text()))
    return found


def main() -> None:
    """Writes the table into docs/performance.md; raises as `read_results`."""
    table = to_markdown(*read_results())
    print(table)
    compare.write_table(table, BEGIN, END)


if __name__ == "__main__":
    command_line.run(main)
