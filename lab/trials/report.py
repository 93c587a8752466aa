"""What a soak tells: how far it is, its trials, and the page's table."""

import json
import pathlib
import sys
from typing import Any, Counter, Dict, Iterable, List, Sequence, Tuple

from adapter_bert import files
from adapter_bert.errors import UserError
from lab.trials import (
    clock,
    company,
    damage,
    kills,
    power,
    surroundings,
    trials,
)

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
ALL, TRIALS = "all", "trials"

Trial = Dict[str, Any]
# Of a kind of run, what is tried and what it came to.
Counts = Counter[Tuple[str, str, str]]


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


def count(found: Iterable[Trial]) -> Counts:
    """How many trials of each kind came to what."""
    return Counter((t["run"], t["only"], t["what"]) for t in found)


def rows(counts: Counts) -> List[List[str]]:
    """The table: a row for each kind of run, then one for all."""
    names = list(dict.fromkeys(run.name for run in trials.RUNS))
    ordered = [n for n in names if any(n == name for name, *_ in counts)]
    table = [
        ["kind of run", "trials", *COLUMNS.values(), "lost", "different"]
        + ["refused"]
    ]
    for name in (*ordered, ALL):
        by: Counter[str] = Counter()
        for (run, only, what), number in counts.items():
            if name in (ALL, run):
                by.update({TRIALS: number, only: number, what: number})
        numbers = by[TRIALS], *(by[only] for only in COLUMNS)
        ends = by[trials.LOST], by[trials.DIFFERENT], by[trials.REFUSED]
        table.append([name, *(f"{n:,}" for n in (*numbers, *ends))])
    return table


def add(
    path: pathlib.Path,
    about: Dict[str, Any],
    counts: Counts,
    page: pathlib.Path = PAGE,
) -> None:
    """Adds a soak to those of a file, and writes the page's table of all.

    Args:
        path: of the file, which may be missing.
        about: as of `markdown`, without the counts.
        counts: of its trials.
        page: that has the table.

    Raises:
        UserError: the file is no such one, or cannot be written.
    """
    soaks = read_soaks(path)
    own = [[*kind, number] for kind, number in sorted(counts.items())]
    soaks.append({**about, "counts": own})
    files.write_json(str(path), soaks)
    together: Counts = Counter()
    for soak in soaks:
        together.update({tuple(k): n for *k, n in soak["counts"]})
    write_page(markdown(soaks, rows(together)), page=page)


def read_soaks(path: pathlib.Path) -> List[Dict[str, Any]]:
    """The soaks of a file; none if it is missing.

    Raises:
        UserError: it is none of `add`.
    """
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text())
        is_list = isinstance(found, list)
        known = is_list and all(isinstance(s["counts"], list) for s in found)
    except (OSError, ValueError, TypeError, KeyError):
        known = False
    if not known:
        raise UserError(f"{path} is no file of soaks, as --add_to writes it")
    return found


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


def markdown(
    soaks: Iterable[Dict[str, Any]], table: Sequence[Sequence[str]]
) -> str:
    """The soaks' part of docs/reliability.md.

    Args:
        soaks: of each `tried`, `counts`, `processor`, `cores`, `tensorflow`,
            `minutes`, `seeds` and, if they were counted, `kills`.
        table: as of `rows`.
    """
    lines = [
        f"- {soak['tried']}: {sum(n for *_, n in soak['counts']):,} trials"
        f"{_kills(soak)} in {soak['minutes']:.0f} minutes on {soak['cores']} "
        f"cores ({soak['processor']}), TensorFlow {soak['tensorflow']}; seeds "
        f"{soak['seeds'][0]} to {soak['seeds'][1]}\n"
        for soak in soaks
    ]
    return f"{''.join(lines)}\n{markdown_table(table)}"


def _kills(soak: Dict[str, Any]) -> str:
    return f" with {soak['kills']:,} kills" if soak.get("kills") else ""


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
