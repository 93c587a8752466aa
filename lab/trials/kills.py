"""Runs that are killed, or whose writes fail, and are started again."""

import pathlib
import shutil
from typing import List, NamedTuple

from lab.trials import mounts
from lab.trials.references import HALF
from lab.trials.runs import OUT
from lab.trials.starts import Moment
from lab.trials.trials import LOST, Bench, Outcome, about, chance_of, finish

# By the clock; when the folder has changed so often; no file may be larger.
KILL, WRITE, FULL = "kill", "write", "full"
# Bytes of a disk that is filled. What is left of it is a few pages.
DISK, PAGE, PAGES = 2**26, 4096, 12


class Plan(NamedTuple):
    """What is done to a run, drawn from a seed.

    Attributes:
        shares: of the reference's seconds or changes, after which it is killed:
            one for each kill.
        size: which of the reference's files is too large, as a share of them
            all, and how much of it can be written.
        half: whether it begins from a run that was killed before.
        disk: whether it is the disk that is full, and not a file too large.
    """

    shares: List[float]
    size: tuple
    half: bool
    disk: bool


def draw(only: str, seed: int) -> Plan:
    """What the seed says."""
    chance = chance_of(only, seed)
    shares = [chance.random() for _ in range(chance.randint(1, 3))]
    size = chance.random(), chance.random()
    half, disk = chance.random() < 0.5, chance.random() < 0.5
    return Plan(shares, size, half, disk)


def run_trial(only: str, seed: int, bench: Bench) -> Outcome:
    """Does what the seed says, and then lets the run go to its end."""
    plan = draw(only, seed)
    if only == FULL:
        return _full(plan, bench)
    reference = bench.reference
    bench.begin()
    notes = []
    for share in plan.shares:
        if only == KILL:
            moment = Moment(seconds=share * reference.seconds)
            note = f"after {moment.seconds:.3f} s"
        else:
            moment = Moment(changes=1 + int(share * reference.changes))
            note = f"at change {moment.changes}"
        end = bench.start(moment)
        if not end.was_killed:
            notes.append(f"{note} it had ended")
            if bench.has_failed(end):
                return Outcome(LOST, f"killed {'; '.join(notes)}, {about(end)}")
            break
        notes.append(note)
    return finish(bench, f"killed {'; '.join(notes)}")


def _full(plan: Plan, bench: Bench) -> Outcome:
    """Has writes fail once, on a full disk, or as on one."""
    if plan.disk and mounts.are_own():
        return _full_disk(plan, bench)
    sizes = bench.reference.sizes
    which, part = plan.size
    limit = int(part * sizes[int(which * len(sizes))])
    is_half = plan.half and HALF in bench.reference.states
    bench.begin(HALF if is_half else "")
    end = bench.start(largest_file=limit)
    note = f"no file beyond {limit} bytes{', from half' if is_half else ''}"
    if end.code and end.refusal is None:
        return Outcome(LOST, f"{note}: {about(end)}")
    return finish(bench, f"{note}: {'refused' if end.code else 'ended'}")


def _full_disk(plan: Plan, bench: Bench) -> Outcome:
    """Fills the disk of the run's folder while it runs.

    There is room at the start: a run looks for it.
    """
    is_half = plan.half and HALF in bench.reference.states
    bench.begin(HALF if is_half else "")
    out = bench.place / OUT
    content = out.with_name("content")
    out.rename(content)
    out.mkdir()
    mounts.small(out, DISK)
    shutil.copytree(content, out, dirs_exist_ok=True)
    shutil.rmtree(content)
    left = int(plan.size[1] * PAGES) * PAGE
    filling: List[pathlib.Path] = []
    share = plan.shares[0] * (0.5 if is_half else 1.0)
    moment = Moment(changes=1 + int(share * bench.reference.changes))
    try:
        end = bench.start(
            moment, happens=lambda: filling.append(mounts.fill(out, left))
        )
        for path in filling:
            path.unlink()
        shutil.copytree(out, content)
    finally:
        mounts.take(out)
    out.rmdir()
    content.rename(out)
    note = f"{left} bytes left at change {moment.changes}"
    if is_half:
        note += ", from half"
    if end.code and end.refusal is None:
        return Outcome(LOST, f"{note}: {about(end)}")
    how = about(end) if end.code else "ended"
    return finish(bench, f"{note}: {how}")
