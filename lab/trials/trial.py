"""A trial of a run: its plan, its folders, its outcome."""

import dataclasses
import json
import pathlib
import random
import shutil
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

from lab.trials import runs
from lab.trials.runs import Contents, ProgramRun
from lab.trials.starts import NEVER, End, Moment, start

# The outcomes. SAME: the run ends, and its files are those of a run that was
# left alone. REFUSED: it says in one line what is wrong, and has changed
# nothing. DIFFERENT: it ends, with other files. LOST: it does not go on, fails
# otherwise than by a line, or has changed what was good.
SAME, REFUSED, DIFFERENT, LOST = "same", "refused", "different", "lost"
FAULTS = (DIFFERENT, LOST)
WHOLE, HALF = "whole", "half"
# The material's folder, which a trial may copy, and a reference's
# description.
DATA, ABOUT = "data", "about.json"


class Outcome(NamedTuple):
    """Outcome of a trial, and a note of what was done and seen."""

    what: str
    note: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """Choices that a seed draws; each kind of trial reads some of them.

    A share is a number from 0 to 1.
    """

    state: str  # from which the run begins: "", HALF or WHOLE
    shares: tuple[float, ...]  # of the run, when something happens
    count: int  # how often it happens, 1 to 3
    is_first: bool  # whether it happens before the start
    which: float  # of several files, a share
    part: float  # of a file or a disk, a share
    how: float  # of several ways, a share
    reads: bool  # whether it happens to what is read, not written
    mounts: bool  # whether mounts are used
    rare: float  # a share, for what happens seldom
    wrong: tuple[float, ...]  # seconds, of clocks and files' times

    @classmethod
    def draw(cls, only: str, seed: int) -> "Plan":
        """Draws the plan of a kind of trial and a seed."""
        chance = random.Random(f"{only} {seed}")
        return cls(
            chance.choice(("", "", HALF, WHOLE)),
            tuple(chance.random() for _ in range(3)),
            chance.randint(1, 3),
            chance.random() < 0.25,
            chance.random(),
            chance.random(),
            chance.random(),
            chance.random() < 0.3,
            chance.random() < 0.5,
            chance.random(),
            tuple(
                chance.choice(WRONG) * chance.choice((-1, 1)) for _ in range(9)
            ),
        )


HOUR = 3600.0
DAY, YEAR = 24 * HOUR, 365 * 24 * HOUR
# By how much a clock may be wrong.
WRONG = (0.0, HOUR, DAY, YEAR, 20 * YEAR)


def of(things: Sequence[Any], share: float) -> Any:
    """Returns the thing at a share of their number."""
    return things[int(share * len(things))]


class Reference(NamedTuple):
    """A run that was left alone; `half` of its folder is a killed one."""

    run: ProgramRun
    folder: pathlib.Path  # of the folders WHOLE and HALF
    result: Contents
    seconds: float
    changes: int  # of its folder
    sizes: list[int]  # bytes of each file that it writes

    def has(self, state: str) -> bool:
        """Tells whether a run can begin from a state."""
        return self.run.trains and (self.folder / state).is_dir()


def folder_of(work: pathlib.Path, run: ProgramRun) -> pathlib.Path:
    """Returns the folder of a run's reference."""
    return work / "references" / run.name.replace(" ", "_").replace(",", "")


def make_reference(work: pathlib.Path, run: ProgramRun) -> None:
    """Does a run without faults, and half of one.

    Args:
        work: folder of a soak, with the material in `data`.
        run: the kind of run.

    Raises:
        RuntimeError: it fails.
    """
    data, folder = work / DATA, folder_of(work, run)
    whole, half = folder / WHOLE, folder / HALF
    run.begin(data, whole)
    end = start(run.command(data, whole), str(whole))
    if end.code:
        raise RuntimeError(f"{run.name}: {end}: {end.stderr[-2000:]}")
    about = {
        "result": run.result(whole),
        "seconds": end.seconds,
        "changes": end.changes,
        "sizes": [p.stat().st_size for p in whole.rglob("*") if p.is_file()],
    }
    (folder / ABOUT).write_text(json.dumps(about))
    # With a checkpoint, if it comes to one.
    for share in (0.5, 0.7, 0.9) if run.trains else ():
        shutil.rmtree(half, ignore_errors=True)
        run.begin(data, half)
        moment = Moment(changes=share * end.changes)
        start(run.command(data, half), str(half), moment)
        if any(half.rglob("model.ckpt-*.index")):
            break


def read_reference(work: pathlib.Path, run: ProgramRun) -> Reference:
    """Returns the reference that `make_reference` has made."""
    folder = folder_of(work, run)
    return Reference(run, folder, **json.loads((folder / ABOUT).read_text()))


class Bench:
    """Folders of a trial, and its programs.

    Attributes:
        kills: how often one of them was killed.
    """

    def __init__(
        self, work: pathlib.Path, reference: Reference, place: pathlib.Path
    ):
        """Takes the soak's folder, the reference, and the trial's folder."""
        self.work, self.data = work, work / DATA
        self.reference, self.place = reference, place
        self.run = reference.run
        self.kills = 0

    def begin(self, state: str = "", own_data: bool = False) -> str:
        """Makes the trial's folder: new, or as the reference has left it.

        Args:
            state: of the reference, if it has that one.
            own_data: whether the run reads a copy of the data.

        Returns:
            The state, for a note.
        """
        shutil.rmtree(self.place, ignore_errors=True)
        state = state if state and self.reference.has(state) else ""
        if state:
            shutil.copytree(self.reference.folder / state, self.place)
        else:
            self.run.begin(self.data, self.place)
        if own_data:
            self.data = self.place / DATA
            shutil.copytree(self.work / DATA, self.data)
        return state or "new"

    def start(
        self,
        moment: Moment = NEVER,
        happens: Optional[Callable[[], None]] = None,
        tracer: Sequence[str] = (),
        **inside: Any,
    ) -> End:
        """Starts the run, with the arguments of `starts.start`."""
        command = self.run.command(self.data, self.place)
        end = start(command, str(self.place), moment, happens, inside, tracer)
        self.kills += end.was_killed
        return end

    def check(self) -> End:
        """Starts the run's own check of its files."""
        run = dataclasses.replace(self.run, words=self.run.check)
        return start(run.command(self.data, self.place), str(self.place))

    def moment(self, share: float, state: str = "") -> Moment:
        """Returns the moment at a share of the changes that a run makes."""
        left = {HALF: 0.5, WHOLE: 0.2}.get(state, 1.0)
        return Moment(changes=1 + int(share * left * self.reference.changes))

    def has_failed(self, end: End) -> bool:
        """Tells whether an undisturbed run has failed.

        A library or an export may refuse to do a second time what is done.
        """
        return bool(end.code) and (self.run.trains or end.refusal is None)

    def different(self, ignored: str = "") -> list[str]:
        """Returns the files that differ from the reference.

        Args:
            ignored: the beginning of paths that do not count.
        """
        differences = runs.differences(
            self.reference.result, self.run.result(self.place), ignored
        )
        if self.data != self.work / DATA:
            # They tell where the data is.
            differences = [
                n for n in differences if not n.endswith("places.json")
            ]
        return differences

    def judge(self, note: str, ignored: str = "") -> Outcome:
        """SAME or DIFFERENT, by the files."""
        different = self.different(ignored)
        if different:
            return Outcome(DIFFERENT, f"{note}; then {', '.join(different)}")
        return Outcome(SAME, note)

    def finish(self, note: str) -> Outcome:
        """Starts a run that was stopped, and compares its files."""
        end = self.start()
        if self.has_failed(end) or (end.code and self.different()):
            return Outcome(LOST, f"{note}; then {end}")
        return self.judge(note)

    def go_on(self, end: End, note: str) -> Outcome:
        """Judges a hindered run, and lets it go on without the hindrance."""
        note = f"{note}: {end}"
        if end.code and end.refusal is None:
            return Outcome(LOST, note)
        outcome = Outcome(SAME, note) if end.code else self.judge(note)
        return self.finish(note) if outcome.what == SAME else outcome
