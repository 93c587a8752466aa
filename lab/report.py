"""Tables of measurements, and the pages and files that hold them."""

import importlib.util
import pathlib
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from adapter_bert import files
from adapter_bert.training import cpu_cores

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "lab" / "results"
SPEED = ROOT / "results" / "performance.md"
RELIABILITY = ROOT / "results" / "reliability.md"

Table = Sequence[Sequence[str]]


def tensorflow() -> str:
    """Returns the installed TensorFlow's version, found without loading it."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "?"


def has_estimator() -> bool:
    """Tells whether the installed TensorFlow has TPUEstimator."""
    return importlib.util.find_spec("tensorflow_estimator") is not None


def environment() -> dict[str, Any]:
    """Returns the machine and the versions on which a number depends."""
    return {
        "machine": {"processor": cpu_cores.name(), "cores": cpu_cores.count()},
        "versions": {
            "tensorflow": tensorflow(),
            "python": platform.python_version(),
        },
    }


def markdown(table: Table, rule: str = "---") -> str:
    """A table in Markdown.

    Args:
        table: the header, then the rows.
        rule: of all columns but the first; `---:` aligns numbers.
    """
    header, *rows = [f"| {' | '.join(row)} |" for row in table]
    rules = f"|---{f'|{rule}' * (len(table[0]) - 1)}|"
    return "\n".join([header, rules, *rows, ""])


def plain(table: Table) -> str:
    """A table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = []
    for first, *others in table:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(w) for cell, w in zip(others, widths[1:])]
        lines.append("  ".join(cells) + "\n")
    return "".join(lines)


def marks(name: str) -> tuple[str, str]:
    """Returns the lines of a page between which a table stands."""
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"


def write(page: pathlib.Path, name: str, text: str) -> None:
    """Puts a text between its marks in a page."""
    begin, end = marks(name)
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    files.write_text(str(page), f"{before}{begin}\n{text}\n{end}{after}")
