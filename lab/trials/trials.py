"""A trial: what is done to a run, drawn from a seed, and what comes of it."""

import json
import pathlib
import random
import shutil
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from lab.trials import starts
from lab.trials.references import Reference
from lab.trials.runs import RUNS, Run, differences
from lab.trials.starts import NEVER, End, Moment

# What trials come to. SAME: the run ends, and its files are those of a run that
# was left alone. REFUSED: it says in one line what is wrong, and has changed
# nothing. DIFFERENT: it ends, with other files. LOST: it does not go on, it
# fails otherwise than by its line, or has changed what was good.
SAME, REFUSED, DIFFERENT, LOST = "same", "refused", "different", "lost"
FAULTS = (DIFFERENT, LOST)
# The material's folder; a trial may have a copy.
DATA = "data"
# The program that changes its process, and is then another program.
INSIDE = "lab/trials/inside.py"
PLACES = "places.json"
# One in so many trials starts its programs as a user does.
UNFORKED = 12


class Outcome(NamedTuple):
    """What a trial has come to.

    Attributes:
        what: SAME, REFUSED, DIFFERENT or LOST.
        note: what was done, and what of it was seen.
        is_forked: whether its programs were forks.
        kills: how often the run was killed.
    """

    what: str
    note: str
    is_forked: bool = True
    kills: int = 0


def run_of(seed: int) -> Run:
    """The kind of run of a trial."""
    return RUNS[seed % len(RUNS)]


def chance_of(only: str, seed: int) -> random.Random:
    """All that is drawn of a trial is drawn from this."""
    return random.Random(f"{only} {seed}")


class Bench:
    """The folders of a trial, and how its programs are started.

    Attributes:
        kills: how often one of them was killed.
    """

    def __init__(
        self,
        work: pathlib.Path,
        reference: Reference,
        place: pathlib.Path,
        forked: bool = True,
    ):
        """Takes the soak's folder, what is expected, and the trial's folder."""
        self.work = work
        self.data = work / DATA
        self.reference, self.place, self.forked = reference, place, forked
        self.run = reference.run
        self.kills = 0

    def begin(self, state: str = "", own_data: bool = False) -> None:
        """Makes the trial's folder: new, or as a reference has left it.

        Args:
            state: of `Reference.states`, or nothing.
            own_data: whether the run reads a copy of the data.
        """
        shutil.rmtree(self.place, ignore_errors=True)
        if state:
            shutil.copytree(self.reference.folder / state, self.place)
        else:
            self.run.begin(self.data, self.place)
        if own_data:
            self.data = self.place / DATA
            shutil.copytree(self.work / DATA, self.data)

    def start(
        self,
        moment: Moment = NEVER,
        largest_file: Optional[int] = None,
        happens: Optional[Callable[[], None]] = None,
        inside: Optional[Dict[str, Any]] = None,
        tracer: Sequence[str] = (),
    ) -> End:
        """Starts the run.

        Args:
            moment: when it is killed.
            largest_file: bytes after which a write into any file fails.
            happens: what is done at the moment instead of a kill.
            inside: what `soak.inside` changes in its process.
            tracer: words before the command line, as of `starts.start`.
        """
        command = self.run.command(self.data, self.place)
        if inside:
            command = [INSIDE, json.dumps(inside), *command]
        end = starts.start(
            command,
            str(self.place),
            self.forked and not tracer,
            moment,
            largest_file,
            happens,
            tracer,
        )
        self.kills += end.was_killed
        return end

    def check(self) -> End:
        """Starts the run's own check of what it has written."""
        return starts.start(
            self.run.check_command(self.data, self.place),
            str(self.place),
            self.forked,
        )

    def has_failed(self, end: End) -> bool:
        """Whether a run has ended as it may not where nothing hinders it.

        What a library or an export has done it may refuse to do again.
        """
        return bool(end.code) and (self.run.trains or end.refusal is None)

    def different(self, pattern: str = "") -> List[str]:
        """The files in which the result is not that of the reference."""
        found = differences(
            self.reference.result, self.run.result(self.place), pattern
        )
        if self.data != self.work / DATA:
            # They tell where the data is.
            found = [n for n in found if pathlib.Path(n).name != PLACES]
        return found


def finish(bench: Bench, note: str) -> Outcome:
    """Starts a run that was stopped, and compares what it comes to."""
    end = bench.start()
    different = bench.different()
    if bench.has_failed(end) or (end.code and different):
        return Outcome(LOST, f"{note}; then {about(end)}")
    if different:
        return Outcome(DIFFERENT, f"{note}; then {', '.join(different)}")
    return Outcome(SAME, note)


def about(end: End) -> str:
    """How a program has ended, in a line."""
    if end.is_late:
        return f"no end after {end.seconds:.0f} s"
    lines = end.said.strip().splitlines()[-1:] or ["without a word"]
    return f"code {end.code}: {lines[0][:300]}"
