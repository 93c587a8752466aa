"""Runs whose machine loses its power, and which are started again after it.

A run is recorded once, call by call (`system_calls`). What a disk may hold at
any moment of it (`disk`) is then made in the trial's folder.
"""

import pathlib
import tempfile
from typing import List, Tuple

from soak import starts, system_calls
from soak.disk import Disk, order_faults
from soak.references import folder_of
from soak.runs import OUT, PASSING, Run
from soak.trials import LOST, Bench, Outcome, about, chance_of, finish

POWER = "power"
# Folders beside a reference's own: what a recorded run writes, and its calls.
PLACE, CALLS = "power", "power-calls"
# In one trial of so many the power goes once more when the run goes on.
AGAIN = 4


def draw(seed: int) -> List[float]:
    """When the power goes: shares of what a run does to its files."""
    chance = chance_of(POWER, seed)
    cuts = 1 if chance.randrange(AGAIN) else 2
    return [chance.random() for _ in range(cuts)]


def record(work: pathlib.Path, run: Run) -> None:
    """Has a run be recorded from its beginning.

    Args:
        work: folder of a soak, with the material in `data`.
        run: of which there is a reference.

    Raises:
        RuntimeError: it fails, or the recording does not tell all of it.
    """
    folder = folder_of(work, run)
    place = folder / PLACE
    run.begin(work / "data", place)
    disk = Disk(place)
    command = run.command(work / "data", place)
    tracer = system_calls.tracer(folder / CALLS)
    end = starts.start(command, str(place), False, tracer=tracer)
    if end.code:
        raise RuntimeError(f"{run.name}, recorded: {about(end)}")
    for operation in system_calls.read(folder / CALLS, place):
        disk.do(operation)
    _compare(disk, place)


def _compare(disk: Disk, place: pathlib.Path) -> None:
    """Compares what a recording comes to with what is there.

    Raises:
        RuntimeError: it is something else.
    """
    expected, found = disk.contents(), Disk(place).contents()
    names = {*expected, *found}
    wrong = sorted(n for n in names if expected.get(n) != found.get(n))
    if wrong:
        raise RuntimeError(f"{place}: not recorded as is: {', '.join(wrong)}")


def is_kept(path: str) -> bool:
    """Whether a file of a trial's folder is one that is compared."""
    inside, _, name = path.partition("/")
    return bool(inside == OUT and name and not PASSING.fullmatch(name))


def run_trial(seed: int, bench: Bench) -> Outcome:
    """Cuts the power as the seed says, and lets the run go to its end."""
    chance = chance_of(f"{POWER} cut", seed)
    folder = bench.reference.folder
    operations = system_calls.read(folder / CALLS, folder / PLACE)
    bench.begin()
    cuts = []
    for number, share in enumerate(draw(seed)):
        disk, whole = Disk(bench.place), Disk(bench.place)
        if number:
            # From what is left no recording begins.
            end, operations = _go_on(bench)
            if end.code and (bench.run.trains or end.refusal is None):
                return Outcome(LOST, f"{_note(cuts)}; then {about(end)}")
        faults = order_faults(whole, operations, is_kept)
        if faults:
            return Outcome(LOST, f"not on the disk in time: {faults}")
        if number:
            _compare(whole, bench.place)
        moment = int(share * (len(operations) + 1))
        for operation in operations[:moment]:
            disk.do(operation)
        disk.cut(chance, bench.place)
        cuts.append(f"{moment} of {len(operations)}")
    return finish(bench, _note(cuts))


def _go_on(bench: Bench) -> Tuple[starts.End, List[system_calls.Operation]]:
    """Starts a run, and tells what it has done to its files."""
    with tempfile.TemporaryDirectory(dir=bench.place.parent) as own:
        calls = pathlib.Path(own) / CALLS
        end = bench.start(tracer=system_calls.tracer(calls))
        return end, system_calls.read(calls, bench.place)


def _note(cuts: List[str]) -> str:
    return f"power cut after {'; '.join(cuts)} changes"
