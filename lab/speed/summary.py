"""Writes one table of both benchmarks that `make benchmark` runs.

    .venv/bin/python -m lab.speed.summary

Reads `compare.json` and `start.json` of `lab/results`. The table is the first
one of docs/performance.md. Every cell but the last column's is a ratio to the
peer, in which more is better for speed, and less for times and memory.
"""

import json
from typing import Any, Dict, List, Mapping

from adapter_bert import command_line
from adapter_bert.errors import UserError
from lab import report
from lab.speed import compare, measuring

SOURCES = ("compare", "start")
# Short names of the rows that are compared.
ROWS = {"pairs": "MRPC", "sentences": "CoLA"}


def to_markdown(compared: Mapping[str, Any], started: Mapping[str, Any]) -> str:
    """The table.

    Args:
        compared: the results of `compare`.
        started: the results of `start`.
    """
    rows = [
        [
            "",
            "speed, usual padding",
            "speed, grouped by length",
            "memory, usual padding",
            "share of the products' best",
        ]
    ]
    names = ROWS if compared["rows"] == compare.GLUE_ROWS else {}
    for name, found in compared["comparisons"].items():
        kind, texts, model, dtype = name.split("-")
        ratio, memory = found["ratio"], found["memory_bytes"]
        grouped = ratio.get("grouped")
        rows.append(
            [
                f"{kind} {names.get(texts, texts)}, {model}, {dtype}",
                f"{ratio['dynamic']['median']:.2f}",
                f"{grouped['median']:.2f}" if grouped else "",
                f"{memory['ours'] / memory['dynamic']:.2f}",
                f"{found['share_of_peak']:.0%}",
            ]
        )
    for which, found in started["summary"].items():
        for engine, ratio in found["ratio"].items():
            # The peer's program groups by length.
            median = f"{ratio['median']:.2f}"
            rows.append([f"time to {which}, {engine}", "", median, "", ""])
    about = (
        f"medians of {compared['rounds']} rounds, of {started['rounds']} for "
        "whole programs"
    )
    return measuring.table(dict(compared), about, rows)


def read_results() -> List[Dict[str, Any]]:
    """The results of the two benchmarks.

    Raises:
        UserError: one of them has not been run.
    """
    found = []
    for name in SOURCES:
        path = report.RESULTS / f"{name}.json"
        if not path.exists():
            raise UserError(f"there is no {path}; run lab.speed.{name} first")
        found.append(json.loads(path.read_text()))
    return found


def main() -> None:
    """Writes the table into docs/performance.md; raises as `read_results`."""
    text = to_markdown(*read_results())
    print(text)
    report.write(report.SPEED, "summary", text)


if __name__ == "__main__":
    command_line.run(main)
