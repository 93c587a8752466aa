"""Kinds of trials: a fault, and the judgement of the run.

results/reliability.md says what each kind tries.
"""

import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import stat
import time
from collections.abc import Sequence
from concurrent import futures
from typing import Any, Callable

from adapter_bert import folder_lock
from adapter_bert.graph import saved_model
from lab.trials import linux
from lab.trials.runs import FIRST_PHASE, OUT, PASSING, SOURCE, digests
from lab.trials.starts import NEVER, End, Moment
from lab.trials.trial import (
    DAY,
    HALF,
    LOST,
    REFUSED,
    SAME,
    WHOLE,
    Bench,
    Outcome,
    Plan,
    of,
)

KILL, WRITE, FULL, DAMAGE, PERMISSION, VANISHED, CLOCK, TWO = (
    "kill",
    "write",
    "full",
    "damage",
    "permission",
    "vanished",
    "clock",
    "two",
)
DAMAGES = ("cut", "flipped", "emptied", "deleted", "zeroed")
# One trial of damage in so many may choose any file.
ANY = 20
# Bytes of a disk that is filled. A few pages of it are left.
DISK, PAGE, PAGES = 2**26, 4096, 12
# What the owner of a folder or a file may do: nothing, or one thing less.
FOLDER_MODES = (0o000, 0o500, 0o300, 0o600)
FILE_MODES = (0o000, 0o400, 0o200)
# By which a training, or another program, keeps others out of its folder.
LOCKS = {True: folder_lock.RUN_LOCK, False: saved_model.LOCK_FILE}
IN_USE = "is in use by another process"


def kill(plan: Plan, bench: Bench) -> Outcome:
    """Kills a run after some time, once or more often."""
    seconds = bench.reference.seconds
    return _kill(plan, bench, lambda share: Moment(seconds=share * seconds))


def kill_writing(plan: Plan, bench: Bench) -> Outcome:
    """Kills a run when its folder has changed so often."""
    return _kill(plan, bench, bench.moment)


def _kill(
    plan: Plan, bench: Bench, moment_of: Callable[[float], Moment]
) -> Outcome:
    bench.begin()
    notes = []
    for moment in map(moment_of, plan.shares[: plan.count]):
        end = bench.start(moment)
        notes.append(str(moment))
        if not end.was_killed:
            notes[-1] += " it had ended"
            if bench.has_failed(end):
                return Outcome(LOST, f"killed {'; '.join(notes)}, {end}")
            break
    return bench.finish(f"killed {'; '.join(notes)}")


def fill(plan: Plan, bench: Bench) -> Outcome:
    """Has writes fail once, on a full disk, or as on one."""
    state = bench.begin(plan.state and HALF)
    if plan.mounts and linux.has_own_mounts():
        return _fill_disk(plan, bench, state)
    limit = int(plan.part * of(bench.reference.sizes, plan.which))
    end = bench.start(largest_file=limit)
    return bench.go_on(end, f"{state}: no file beyond {limit} bytes")


def _fill_disk(plan: Plan, bench: Bench, state: str) -> Outcome:
    """Fills the disk of the run's folder while it runs.

    There is room at the start: a run looks for it.
    """
    out = bench.place / OUT
    content = out.with_name("content")
    out.rename(content)
    out.mkdir()
    linux.mount_memory(out, DISK)
    shutil.copytree(content, out, dirs_exist_ok=True)
    shutil.rmtree(content)
    left = int(plan.part * PAGES) * PAGE
    filling: list[pathlib.Path] = []
    moment = bench.moment(plan.shares[0], state)
    try:
        end = bench.start(moment, lambda: filling.append(linux.fill(out, left)))
        for path in filling:
            path.unlink()
        shutil.copytree(out, content)
    finally:
        linux.unmount(out)
    out.rmdir()
    content.rename(out)
    return bench.go_on(end, f"{state}: {left} bytes left {moment}")


def damage(plan: Plan, bench: Bench) -> Outcome:
    """Damages a file of a run, and runs it again."""
    state = bench.begin(HALF if plan.is_first else WHOLE)
    is_any = plan.rare < 1 / ANY
    before = digests(bench.place)
    names = sorted(n for n in before if is_any or not PASSING.fullmatch(n))
    name, how = of(names, plan.which), of(DAMAGES, plan.how)
    if name in bench.run.optional and how == "deleted":
        how = "emptied"
    done = do_damage(bench.place / name, how, plan.part)
    note = f"{state}: {name} {done}"
    end = bench.start()
    if end.code == 0 and bench.run.check:
        end = bench.check()
    if end.refusal is not None:
        # A damaged file may be made anew, or given up.
        after = digests(bench.place)
        changed = [
            other
            for other, digest in before.items()
            if after.get(other) != digest
            and other != name
            and not PASSING.fullmatch(other)
        ]
        note = f"{note}: {end}"
        if changed:
            return Outcome(LOST, f"{note}, but changed {', '.join(changed)}")
        return Outcome(REFUSED, note)
    if end.code:
        return Outcome(LOST, f"{note}: {end}")
    # Files of a first phase are not read when it is over.
    return bench.judge(note, FIRST_PHASE if bench.run.trains else "")


def do_damage(path: pathlib.Path, how: str, part: float) -> str:
    """Damages a file at a part of its size, and says how."""
    content = bytearray(path.read_bytes())
    place = int(part * len(content))
    if how == "deleted":
        path.unlink()
        return how
    if how == "emptied" or not content:
        path.write_bytes(b"")
        return "emptied"
    if how == "flipped":
        bit = int(part * 1e9) % 8
        content[place] ^= 1 << bit
        path.write_bytes(content)
        return f"bit {bit} of byte {place} flipped"
    # Zeros, as a file system may leave what had not reached the disk.
    zeros = len(content) - place if how == "zeroed" else 0
    path.write_bytes(content[:place] + bytes(zeros))
    return f"{how} after {place} bytes"


def places(bench: Bench, reads: bool) -> list[pathlib.Path]:
    """Gets the files and folders that a run reads, or writes, from the top."""
    if not reads:
        return [bench.place / OUT]
    named = re.findall(r"\{data\}/([^/\s]+)", " ".join(bench.run.words))
    paths = [bench.data / name for name in dict.fromkeys(named)]
    if SOURCE in bench.run.copied:
        paths.append(bench.place / SOURCE)
    return paths


def forbid(plan: Plan, bench: Bench) -> Outcome:
    """Takes a right to a file or folder away, for the time of one start."""
    state = bench.begin(plan.state, own_data=True)
    changed: list[Any] = []

    def take() -> None:
        tops = places(bench, plan.reads)
        paths = [p for top in tops for p in (top, *sorted(top.rglob("*")))]
        # The folder itself as often as all that is in it.
        path = paths[max(0, int((2 * plan.which - 1) * len(paths)))]
        # A temporary file may be gone by now.
        with contextlib.suppress(FileNotFoundError):
            before = stat.S_IMODE(path.stat().st_mode)
            modes = FOLDER_MODES if path.is_dir() else FILE_MODES
            path.chmod(of(modes, plan.part))
            changed.append((path, before, of(modes, plan.part)))

    moment = NEVER if plan.is_first else bench.moment(plan.shares[0], state)
    if plan.is_first:
        take()
    try:
        end = bench.start(moment, take, rights=False)
    finally:
        for path, before, _ in changed:
            # It may have been replaced, or deleted.
            with contextlib.suppress(FileNotFoundError):
                path.chmod(before)
    note = "it had ended before"
    for path, _, mode in changed:
        name = path.relative_to(bench.place)
        note = f"{state}: {name} {mode:04o} {moment}"
    return bench.go_on(end, note)


class Away:
    """A folder or file that can be moved away, or unmounted.

    A folder that is mounted has an empty one in its place when it is taken.
    """

    def __init__(self, path: pathlib.Path, is_mounted: bool = False):
        """Takes its path, and mounts it there if asked to; raises OSError."""
        self.path, self.is_mounted = path, is_mounted
        self._away = path.with_name(f"{path.name}.away")
        if is_mounted:
            path.rename(self._away)
            self._mount()

    def _mount(self) -> None:
        self.path.mkdir()
        linux.bind(self._away, self.path)

    def take(self) -> None:
        """Takes it away, although it is in use."""
        if self.is_mounted:
            linux.unmount(self.path)
        else:
            self.path.rename(self._away)

    def give_back(self) -> list[str]:
        """Gives it back; tells which files have come into its place."""
        # Empty folders do no harm.
        left = [p.name for p in self.path.rglob("*") if p.is_file()]
        left += [self.path.name] if self.path.is_file() else []
        shutil.rmtree(self.path, ignore_errors=True)
        if self.is_mounted:
            self._mount()
        else:
            self._away.rename(self.path)
        return left

    def end(self) -> None:
        """Makes a plain folder of it."""
        if self.is_mounted:
            linux.unmount(self.path)
            self.path.rmdir()
            self._away.rename(self.path)


def vanish(plan: Plan, bench: Bench) -> Outcome:
    """Takes a folder away, and gives it back when the run has ended."""
    state = bench.begin(plan.state, own_data=True)
    path = of(places(bench, plan.reads), plan.which)
    is_mounted = plan.mounts and path.is_dir() and linux.has_own_mounts()
    thing = Away(path, is_mounted)
    is_taken: list[bool] = []

    def take() -> None:
        # Before a run holds its folder, it may well begin in a new one.
        if plan.reads or is_locked(path / LOCKS[bench.run.trains]):
            thing.take()
            is_taken.append(True)

    moment = bench.moment(plan.shares[0], state)
    # A run would begin in a new folder.
    if plan.is_first and plan.reads:
        moment = NEVER
        take()
    how = "unmounted" if is_mounted else "moved away"
    note = f"{state}: {path.relative_to(bench.place)} {how} {moment}"
    try:
        end = bench.start(moment, take)
        if not is_taken:
            return bench.go_on(end, f"{note}, which it was not")
        left = thing.give_back()
        if left:
            what = f"{', '.join(left)} came into its place"
            return Outcome(LOST, f"{note}: {what}; {end}")
        return bench.go_on(end, note)
    finally:
        thing.end()


def is_locked(path: pathlib.Path) -> bool:
    """Tells whether a process holds a lock file."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def set_clocks(plan: Plan, bench: Bench) -> Outcome:
    """Starts a run under wrong clocks; it must never be refused.

    It is killed in each start but the last one. Before each start, all of its
    files get another time.
    """
    notes = [bench.begin(plan.state and HALF)]
    wrong = iter(plan.wrong)
    for number in range(plan.count):
        share = plan.shares[number]
        is_last = number == plan.count - 1
        when = time.time() + next(wrong)
        for path in sorted(bench.place.rglob("*")):
            os.utime(path, (when, when))
        first, then = next(wrong), next(wrong)
        jump = share * bench.reference.seconds
        end = bench.start(
            NEVER if is_last else bench.moment(share),
            clock=[[0.0, first], [jump, then]],
        )
        notes.append(f"clock {first / DAY:+.1f} days, then {then / DAY:+.1f}")
        if bench.has_failed(end) and not end.was_killed:
            return Outcome(LOST, f"{'; '.join(notes)}: {end}")
    return bench.finish("; ".join(notes))


def start_several(plan: Plan, bench: Bench) -> Outcome:
    """Starts several processes in one folder.

    One process of a training may run, and the others are refused in a line.
    Programs that change a library, or export, wait for one another.
    """
    state = bench.begin(plan.state)
    seconds = bench.reference.seconds
    ends = together(plan, seconds, [bench.start] * max(2, plan.count))
    note = f"{state}: {_about(ends)}"
    for end in ends:
        refusal = end.refusal or ""
        is_refused = IN_USE in refusal if bench.run.trains else refusal
        if end.code and not is_refused and not end.was_killed:
            return Outcome(LOST, f"{note}: {end}")
    if not any(end.was_killed for end in ends):
        if all(end.code for end in ends):
            return Outcome(LOST, f"{note}: none has run")
        outcome = bench.judge(note)
        if outcome.what != SAME:
            return outcome
    return bench.finish(note)


def together(
    plan: Plan, seconds: float, starts: Sequence[Callable[[Moment], End]]
) -> list[End]:
    """Starts processes as a plan says, and waits for their ends.

    Half of the time all start at once. The first may be killed.

    Args:
        plan: of the trial.
        seconds: that a run takes alone.
        starts: each starts a program, which is killed at a moment.
    """

    def watch(number: int) -> End:
        is_late = plan.which < 0.5
        time.sleep(plan.shares[number] * seconds if is_late else 0)
        is_killed = number == 0 and plan.rare < 0.4
        moment = Moment(seconds=plan.part * seconds) if is_killed else NEVER
        return starts[number](moment)

    with futures.ThreadPoolExecutor(len(starts)) as pool:
        return list(pool.map(watch, range(len(starts))))


def _about(ends: Sequence[End]) -> str:
    outcomes = {True: "was killed", False: "was refused"}
    return "; ".join(
        outcomes[end.was_killed] if end.code else "ended" for end in ends
    )


# What is done to a run, by the name of its kind.
TRIALS = {
    KILL: kill,
    WRITE: kill_writing,
    FULL: fill,
    DAMAGE: damage,
    PERMISSION: forbid,
    VANISHED: vanish,
    CLOCK: set_clocks,
    TWO: start_several,
}
