"""Runs that see a wrong clock, which goes back and forth, and wrong file times.

What a process sees is the clock of Python. TensorFlow's own code sees the right
one. Files get times of years ago and of years to come between two starts.
"""

import os
import pathlib
import random
import time
from typing import List, NamedTuple, Tuple

from lab.trials.references import HALF, Reference
from lab.trials.starts import NEVER, Moment
from lab.trials.trials import LOST, Bench, Outcome, about, chance_of, finish

CLOCK = "clock"
HOUR = 3600.0
DAY, YEAR = 24 * HOUR, 365 * 24 * HOUR
# By how much a clock may be wrong.
WRONG = (0.0, HOUR, DAY, YEAR, 20 * YEAR)


class Start(NamedTuple):
    """A start of a run, drawn from a seed.

    Attributes:
        clock: by how much it is wrong at first, in seconds, and later.
        changes: of the reference's seconds, the share after which it does.
        killed: of the reference's changes, the share after which it is killed.
        files: by how much the times of all files are wrong before.
    """

    clock: Tuple[float, float]
    changes: float
    killed: float
    files: float


class Plan(NamedTuple):
    """What the seed says.

    Attributes:
        starts: of the run; it is killed in each of them.
        last: that is not killed.
        half: whether it begins from a run that was killed before.
    """

    starts: List[Start]
    last: Start
    half: bool


def draw(seed: int) -> Plan:
    """What the seed says."""
    chance = chance_of(CLOCK, seed)
    starts = [_draw_start(chance) for _ in range(chance.randint(1, 3))]
    return Plan(starts[1:], starts[0], chance.random() < 0.5)


def _draw_start(chance: random.Random) -> Start:
    wrong = [chance.choice(WRONG) * chance.choice((-1, 1)) for _ in range(3)]
    clock = wrong[0], wrong[1]
    return Start(clock, chance.random(), chance.random(), wrong[2])


def run_trial(seed: int, bench: Bench) -> Outcome:
    """Starts a run under clocks that are wrong, and compares what it comes to.

    It must never be refused.
    """
    plan = draw(seed)
    is_half = plan.half and HALF in bench.reference.states
    bench.begin(HALF if is_half else "")
    notes = ["from half" if is_half else "from nothing"]
    for start in (*plan.starts, plan.last):
        set_times(bench.place, start.files)
        is_last = start is plan.last
        moment = NEVER if is_last else _moment(start, bench.reference)
        later = start.changes * bench.reference.seconds
        clock = [[0.0, start.clock[0]], [later, start.clock[1]]]
        end = bench.start(moment, inside={"clock": clock})
        notes.append(
            f"files {start.files / DAY:+.1f} days, clock "
            f"{start.clock[0] / DAY:+.1f}, then {start.clock[1] / DAY:+.1f}"
        )
        if bench.has_failed(end) and not end.was_killed:
            return Outcome(LOST, f"{'; '.join(notes)}: {about(end)}")
    return finish(bench, "; ".join(notes))


def _moment(start: Start, reference: Reference) -> Moment:
    return Moment(changes=1 + int(start.killed * reference.changes))


def set_times(folder: pathlib.Path, wrong: float) -> None:
    """Makes all files of a folder as old, or as new, as by a wrong clock."""
    when = time.time() + wrong
    for path in sorted(folder.rglob("*")):
        os.utime(path, (when, when))
