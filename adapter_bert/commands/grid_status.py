"""Shows the state of a grid's runs.

    .venv/bin/adapter-bert grid_status OUTPUT_DIR [--is_running]

A run's lock tells whether the run is alive, on a cluster from any machine, if
the shared disk has locks. With --is_running nothing is printed; the exit code
is 0 if a run is alive, 3 if none is.
"""

import collections
import pathlib
import re
import sys

from adapter_bert import folder_lock

STATES = ("finished", "running", "interrupted", "failed", "waiting")


def last_line(path: pathlib.Path) -> str:
    """Returns the last line of a file; "" if missing or empty."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1] if lines else ""


def is_locked(path: pathlib.Path) -> bool:
    """Tells whether a living process holds a lock file."""
    if not path.exists():
        return False
    with open(path) as file:
        try:
            # A shared lock, which no other status sees.
            folder_lock.lock(file.fileno(), shared=True)
        except BlockingIOError:
            return True
    return False


def state_of(run: pathlib.Path) -> tuple[str, str]:
    """Gives one of STATES, and the last message of an unfinished run.

    The run may begin or end meanwhile: it begins its list of attempts under
    its lock, and writes its end before it releases the lock.
    """
    has_begun = (run / "attempts.tsv").exists()
    is_running = is_locked(run / "lock")
    if (run / "done").exists():
        return "finished", ""
    if not is_running and (run / "failed").exists():
        return "failed", last_line(run / "failed")
    if not (is_running or has_begun):
        return "waiting", ""
    # The program's own log lines open with a letter, date and place.
    log = re.sub(r"^[IWE]\d{4} \S+ +\d+ \S+\] ", "", last_line(run / "log.txt"))
    return "running" if is_running else "interrupted", log


def read_names(output: pathlib.Path) -> list[str]:
    """Returns the names of a grid's runs."""
    grid = output / "grid.tsv"
    if not grid.exists():
        sys.exit(f"error: {grid} does not exist; start the sweep first")
    # Paths in a row may hold what `splitlines` takes for a line's end.
    return re.findall(r"(?m)^[^\t\n]+", grid.read_text())


def show(output: pathlib.Path) -> None:
    """Prints the number of runs in each state, and the runs to look at."""
    names = read_names(output)
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


def main() -> None:
    """Shows the states, or tells whether a run is alive."""
    output = pathlib.Path(*sys.argv[1:2])
    if len(sys.argv) == 2:
        show(output)
    elif sys.argv[2:] == ["--is_running"]:
        runs = (output / "runs" / name for name in read_names(output))
        sys.exit(0 if any(is_locked(run / "lock") for run in runs) else 3)
    else:
        sys.exit(f"usage: {__doc__.strip().splitlines()[2].strip()}")
