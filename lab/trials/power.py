"""Runs whose machine loses its power, and which are started again after it.

A run is recorded once, call by call (`system_calls`). What a disk may hold at
any moment of it (`disk`) is then made in the trial's folder.
"""

import json
import pathlib
import tempfile
from typing import List, Tuple

from lab.trials import starts, system_calls
from lab.trials.disk import Disk, order_faults
from lab.trials.references import folder_of
from lab.trials.runs import OUT, PASSING, Run
from lab.trials.trials import LOST, Bench, Outcome, about, chance_of, finish

POWER = "power"
# Beside a reference's own folders: what a recorded run writes, its calls, and
# where it gives names too early.
PLACE, CALLS, FAULTS = "power", "power-calls", "power-faults.json"
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
    faults = _faults(disk, system_calls.read(folder / CALLS, place), place)
    (folder / FAULTS).write_text(json.dumps(faults))


def _faults(
    disk: Disk, operations: List[system_calls.Operation], place: pathlib.Path
) -> List[str]:
    """Compares what a recording comes to with what is there.

    Args:
        disk: as it was before.
        operations: of the recording.
        place: the folder as the run has left it.

    Returns:
        As `order_faults`.

    Raises:
        RuntimeError: it comes to something else.
    """
    faults = order_faults(disk, operations, is_kept)
    expected, found = disk.contents(), Disk(place).contents()
    names = {*expected, *found}
    wrong = sorted(n for n in names if expected.get(n) != found.get(n))
    if wrong:
        raise RuntimeError(f"{place}: not recorded as is: {', '.join(wrong)}")
    return faults


def is_kept(path: str) -> bool:
    """Whether a file of a trial's folder is one that is compared."""
    inside, _, name = path.partition("/")
    return bool(inside == OUT and name and not PASSING.fullmatch(name))


def run_trial(seed: int, bench: Bench) -> Outcome:
    """Cuts the power as the seed says, and lets the run go to its end."""
    chance = chance_of(f"{POWER} cut", seed)
    folder = bench.reference.folder
    operations = system_calls.read(folder / CALLS, folder / PLACE)
    faults = json.loads((folder / FAULTS).read_text())
    bench.begin()
    cuts = []
    for number, share in enumerate(draw(seed)):
        disk = Disk(bench.place)
        if number:
            whole = Disk(bench.place)
            # From what is left no recording begins.
            end, operations = _go_on(bench)
            if bench.has_failed(end):
                return Outcome(LOST, f"{_note(cuts)}; then {about(end)}")
            faults = _faults(whole, operations, bench.place)
        if faults:
            return Outcome(LOST, f"not on the disk in time: {faults}")
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
