"""Shows the state of a grid's runs: python scripts/grid_status.py OUTPUT_DIR.

Which run is alive is read off its lock, so on a cluster from any machine that
shares the folder's locks.
"""

import collections
import fcntl
import pathlib
import re
import sys
from typing import Tuple

STATES = ("finished", "running", "interrupted", "failed", "waiting")


def last_line(path: pathlib.Path) -> str:
    """The last line of a file that is not empty, or ""."""
    if not path.exists():
        return ""
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def is_locked(path: pathlib.Path) -> bool:
    """Whether a living process holds a lock file."""
    if not path.exists():
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def state_of(run: pathlib.Path) -> Tuple[str, str]:
    """One of STATES, and what there is to say of a run that is not finished."""
    if (run / "done").exists():
        return "finished", ""
    # The program's own log lines open with a letter, date and place.
    log = re.sub(r"^[IWE]\d{4} \S+ +\d+ \S+\] ", "", last_line(run / "log.txt"))
    if is_locked(run / "lock"):
        return "running", log
    if (run / "failed").exists():
        return "failed", last_line(run / "failed")
    if (run / "attempts.tsv").exists():
        return "interrupted", log
    return "waiting", ""


def main(output: pathlib.Path) -> None:
    """Prints how many runs are in each state, and those that need a look."""
    grid = output / "grid.tsv"
    if not grid.exists():
        sys.exit(f"error: {grid} does not exist; start the sweep first")
    names = [line.split("\t")[0] for line in grid.read_text().splitlines()]
    states = {name: state_of(output / "runs" / name) for name in names}
    counts = collections.Counter(state for state, _ in states.values())
    print(f"{'state':12} runs")
    for state in STATES:
        print(f"{state:12} {counts[state]:4}")
    print(f"{'all':12} {len(names):4}")
    for state in ("running", "interrupted", "failed"):
        for name in names:
            if states[name][0] == state:
                print(f"{state}: {name}: {states[name][1][:200]}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/grid_status.py OUTPUT_DIR")
    main(pathlib.Path(sys.argv[1]))
