"""What a soak tells: how far it is, its trials, and the page's table."""

import collections
import json
import pathlib
import sys
from typing import Any, Dict, List, Sequence, Tuple

import files
from soak import clock, company, damage, kills, power, surroundings, trials

PAGE = trials.starts.ROOT / "docs" / "reliability.md"
# What is tried, and its column.
COLUMNS = {
    kills.KILL: "killed",
    kills.WRITE: "killed while it writes",
    kills.FULL: "a write fails",
    damage.DAMAGE: "a file is damaged",
    power.POWER: "power cut",
    surroundings.PERMISSION: "a right is missing",
    surroundings.VANISHED: "a folder vanishes",
    clock.CLOCK: "the clock is wrong",
    company.TWO: "several at once",
}
ALL = "all"

Trial = Dict[str, Any]


def say(text: str) -> None:
    """Shows whoever waits how far it is."""
    print(text, file=sys.stderr, flush=True)


def read(folder: pathlib.Path) -> List[Trial]:
    """The trials that the processes of a soak have written down, by seed."""
    found = []
    for path in sorted(folder.glob("trials-*.jsonl")):
        for line in path.read_text().splitlines():
            found.append(json.loads(line))
    return sorted(found, key=lambda trial: trial["seed"])


def rows(found: Sequence[Trial]) -> List[List[str]]:
    """The table: a row for each kind of run, then one for all."""
    names = list(dict.fromkeys(run.name for run in trials.RUNS))
    ordered = [n for n in names if any(t["run"] == n for t in found)]
    table = [
        ["kind of run", "trials", *COLUMNS.values(), "lost", "different"]
        + ["refused"]
    ]
    for name in (*ordered, ALL):
        own = [t for t in found if name in (ALL, t["run"])]
        by_only = collections.Counter(t["only"] for t in own)
        by_what = collections.Counter(t["what"] for t in own)
        numbers = [
            len(own),
            *(by_only[only] for only in COLUMNS),
            by_what[trials.LOST],
            by_what[trials.DIFFERENT],
            by_what[trials.REFUSED],
        ]
        table.append([name, *(f"{number:,}" for number in numbers)])
    return table


def plain(table: Sequence[Sequence[str]]) -> str:
    """The table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = []
    for first, *others in table:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(w) for cell, w in zip(others, widths[1:])]
        lines.append("  ".join(cells) + "\n")
    return "".join(lines)


def markdown_table(table: Sequence[Sequence[str]]) -> str:
    """The table for a page; all columns but the first hold numbers."""
    header, *others = [f"| {' | '.join(row)} |" for row in table]
    rule = "|---" + "|---:" * (len(table[0]) - 1) + "|"
    return "\n".join([header, rule, *others, ""])


def markdown(about: Dict[str, Any], table: Sequence[Sequence[str]]) -> str:
    """The soak's part of docs/reliability.md.

    Args:
        about: `processor`, `cores`, `tensorflow`, `minutes`, `seeds`.
        table: as of `rows`.
    """
    first, last = about["seeds"]
    return (
        f"{about['minutes']:.0f} minutes on {about['cores']} cores "
        f"({about['processor']}), TensorFlow {about['tensorflow']}; "
        f"seeds {first} to {last}.\n\n{markdown_table(table)}"
    )


def marks(name: str) -> Tuple[str, str]:
    """Between which docs/reliability.md holds a table."""
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"


def write_page(
    text: str, name: str = "soak", page: pathlib.Path = PAGE
) -> None:
    """Puts a table between its marks in docs/reliability.md."""
    begin, end = marks(name)
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    files.write_text(str(page), f"{before}{begin}\n{text}\n{end}{after}")
