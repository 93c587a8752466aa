"""Folders that may not be used, or are gone, for the time of one start.

Afterwards they are as they were, and the run must go on.
"""

import contextlib
import fcntl
import pathlib
import re
import shutil
import stat
from typing import Any, List, NamedTuple, Optional

from adapter_bert import folder_lock
from adapter_bert.serving import saved_model
from lab.trials import mounts
from lab.trials.references import HALF, WHOLE, Reference
from lab.trials.runs import OUT, SOURCE
from lab.trials.starts import NEVER, Moment
from lab.trials.trials import (
    DIFFERENT,
    LOST,
    Bench,
    Outcome,
    about,
    chance_of,
    finish,
)

# It may not be read or written; it is moved away, or unmounted.
KINDS = PERMISSION, VANISHED = "permission", "vanished"
# What a folder's or a file's owner may do: nothing, or one thing less.
FOLDER_MODES = (0o000, 0o500, 0o300, 0o600)
FILE_MODES = (0o000, 0o400, 0o200)
# Of the changes of a whole run about so many are left.
LEFT = {"": 1.0, HALF: 0.5, WHOLE: 0.2}
# By which a training, or another program, keeps others out of its folder.
LOCKS = {True: folder_lock.RUN_LOCK, False: saved_model.LOCK_FILE}


class Plan(NamedTuple):
    """What happens to a run, drawn from a seed.

    Attributes:
        state: from which it begins: nothing, half or whole.
        share: of the reference's changes, when it happens; None before the
            start.
        reads: whether it happens to what is read, not to what is written.
        which: of the files and folders there, as a share.
        mode: that it gets, as a share of all modes.
        mounted: whether it is unmounted, not moved.
    """

    state: str
    share: Optional[float]
    reads: bool
    which: float
    mode: float
    mounted: bool


def draw(only: str, seed: int) -> Plan:
    """What the seed says."""
    chance = chance_of(only, seed)
    return Plan(
        chance.choice(("", "", HALF, WHOLE)),
        chance.random() if chance.random() < 0.75 else None,
        chance.random() < 0.3,
        chance.random(),
        chance.random(),
        chance.random() < 0.5,
    )


def run_trial(only: str, seed: int, bench: Bench) -> Outcome:
    """Does what the seed says, undoes it, and lets the run go to its end."""
    plan = draw(only, seed)
    if not bench.run.trains or plan.state not in bench.reference.states:
        plan = plan._replace(state="")
    bench.begin(plan.state, own_data=True)
    trial = _forbid if only == PERMISSION else _take_away
    return trial(plan, bench)


def moment_of(plan: Plan, reference: Reference) -> Moment:
    """When it happens."""
    if plan.share is None:
        return NEVER
    changes = plan.share * LEFT[plan.state] * reference.changes
    return Moment(changes=1 + int(changes))


def places(bench: Bench, reads: bool) -> List[pathlib.Path]:
    """The files and folders that a run reads, or writes, from the top."""
    if not reads:
        return [bench.place / OUT]
    named = re.findall(r"\{data\}/([^/\s]+)", " ".join(bench.run.words))
    found = [bench.data / name for name in dict.fromkeys(named)]
    if SOURCE in bench.run.given:
        found.append(bench.place / SOURCE)
    return found


def _inner(tops: List[pathlib.Path]) -> List[pathlib.Path]:
    """These, and what is in them, in order."""
    return [path for top in tops for path in (top, *sorted(top.rglob("*")))]


def _forbid(plan: Plan, bench: Bench) -> Outcome:
    """Takes a right to a file or folder away."""
    changed: List[Any] = []

    def forbid() -> None:
        found = _inner(places(bench, plan.reads))
        # The folder itself as often as all that is in it.
        which = max(0, int((2 * plan.which - 1) * len(found)))
        path = found[which]
        # A temporary file may be gone by now.
        with contextlib.suppress(FileNotFoundError):
            before = stat.S_IMODE(path.stat().st_mode)
            modes = FOLDER_MODES if path.is_dir() else FILE_MODES
            mode = modes[int(plan.mode * len(modes))]
            path.chmod(mode)
            changed.append((path, before, mode))

    moment = moment_of(plan, bench.reference)
    if moment == NEVER:
        forbid()
    try:
        end = bench.start(moment, happens=forbid, inside={"rights": False})
    finally:
        for path, before, _ in changed:
            # It may have been replaced, or deleted.
            with contextlib.suppress(FileNotFoundError):
                path.chmod(before)
    note = "it had ended before"
    for path, _, mode in changed:
        name = path.relative_to(bench.place)
        when = _when(moment)
        note = f"{plan.state or 'new'}: {name} {mode:04o} {when}"
    return _go_on(bench, end, note)


def _when(moment: Moment) -> str:
    return "at the start" if moment == NEVER else f"at change {moment.changes}"


def _go_on(bench: Bench, end, note: str) -> Outcome:
    """What it comes to, when all is as before."""
    if end.code == 0:
        different = bench.different()
        if different:
            return Outcome(DIFFERENT, f"{note}: {', '.join(different)}")
    elif end.refusal is None:
        return Outcome(LOST, f"{note}: {about(end)}")
    return finish(bench, f"{note}: {about(end) if end.code else 'ended'}")


class Away:
    """A folder or file that can be moved away."""

    def __init__(self, path: pathlib.Path):
        """Takes its path, where it is now."""
        self.path = path
        self._away = path.with_name(f"{path.name}.away")

    def take(self) -> None:
        """Moves it."""
        self.path.rename(self._away)

    def give_back(self) -> List[str]:
        """Moves it back; tells which files have come into its place."""
        left = self._left()
        shutil.rmtree(self.path, ignore_errors=True)
        self._away.rename(self.path)
        return left

    def _left(self) -> List[str]:
        """The names of the files there; empty folders do no harm."""
        return [path.name for path in _inner([self.path]) if path.is_file()]

    def end(self) -> None:
        """Leaves it where it was."""


class Mounted(Away):
    """A folder that is mounted, and can be unmounted.

    Where it is mounted there is an empty folder.
    """

    def __init__(self, path: pathlib.Path):
        """Mounts a folder where it is.

        Raises:
            OSError: this is not allowed.
        """
        super().__init__(path)
        path.rename(self._away)
        path.mkdir()
        mounts.bind(self._away, path)

    def take(self) -> None:
        """Unmounts it, although it is in use."""
        mounts.take(self.path)

    def give_back(self) -> List[str]:
        """Mounts it again; tells which files have come into its place."""
        left = self._left()
        shutil.rmtree(self.path)
        self.path.mkdir()
        mounts.bind(self._away, self.path)
        return left

    def end(self) -> None:
        """Makes a plain folder of it."""
        mounts.take(self.path)
        self.path.rmdir()
        self._away.rename(self.path)


def _take_away(plan: Plan, bench: Bench) -> Outcome:
    """Takes a folder away, and gives it back when the run has ended."""
    found = places(bench, plan.reads)
    path = found[int(plan.which * len(found))]
    is_mounted = plan.mounted and path.is_dir() and mounts.are_own()
    thing = (Mounted if is_mounted else Away)(path)
    if plan.share is None and not plan.reads:
        # A run would begin in a new folder.
        plan = plan._replace(share=plan.mode)
    try:
        return _without(thing, plan, bench)
    finally:
        thing.end()


def _without(thing: Away, plan: Plan, bench: Bench) -> Outcome:
    is_taken: List[bool] = []

    def take() -> None:
        # Before a run holds its folder, it may well begin in a new one.
        lock = thing.path / LOCKS[bench.run.trains]
        if plan.reads or is_locked(lock):
            thing.take()
            is_taken.append(True)

    moment = moment_of(plan, bench.reference)
    if moment == NEVER:
        take()
    end = bench.start(moment, happens=take)
    how = "unmounted" if isinstance(thing, Mounted) else "moved away"
    name = thing.path.relative_to(bench.place)
    note = f"{plan.state or 'new'}: {name} {how} {_when(moment)}"
    if not is_taken:
        return _go_on(bench, end, f"{note}, which it was not")
    left = thing.give_back()
    if left:
        what = f"{', '.join(left)} came into its place"
        return Outcome(LOST, f"{note}: {what}; {about(end)}")
    return _go_on(bench, end, note)


def is_locked(path: pathlib.Path) -> bool:
    """Whether a process holds a lock file."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
