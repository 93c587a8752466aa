"""What each kind of run comes to when it is left alone, and half of one."""

import json
import pathlib
import shutil
from typing import Dict, List, NamedTuple

from lab.trials import runs, starts
from lab.trials.runs import Contents, Run
from lab.trials.starts import Moment

ABOUT = "about.json"
WHOLE, HALF, FORKED = "whole", "half", "forked"


class Reference(NamedTuple):
    """A run that was left alone.

    Attributes:
        run: its kind.
        folder: of `whole`, what it has left, and `half`, what it leaves where
            it is killed on its way, if there is anything.
        result: as of `Run.result`.
        seconds: that it took as a fork.
        changes: of its folder, meanwhile.
        sizes: bytes of each file that it writes.
    """

    run: Run
    folder: pathlib.Path
    result: Contents
    seconds: float
    changes: int
    sizes: List[int]

    @property
    def states(self) -> List[str]:
        """From what it can go on: names of folders within its own."""
        return [name for name in (WHOLE, HALF) if (self.folder / name).is_dir()]


def folder_of(work: pathlib.Path, run: Run) -> pathlib.Path:
    """Where the reference of a run lies."""
    return work / "references" / run.name.replace(" ", "_").replace(",", "")


def make(work: pathlib.Path, run: Run, forked: bool = True) -> None:
    """Runs a kind of run alone, twice, and half of it.

    Args:
        work: folder of a soak, with the material in `data`.
        run: what to run.
        forked: whether it can be forked.

    Raises:
        RuntimeError: it fails, or does not come to the same each time.
    """
    data, folder = work / "data", folder_of(work, run)
    found: Dict[str, Contents] = {}
    for name in (WHOLE, FORKED):
        place = folder / name
        run.begin(data, place)
        # The first as a user starts it.
        is_fork = forked and name == FORKED
        end = starts.start(run.command(data, place), str(place), is_fork)
        if end.code:
            raise RuntimeError(
                f"{run.name} ended with {end.code}: {end.said[-2000:]}"
            )
        found[name] = run.result(place)
    different = runs.differences(found[WHOLE], found[FORKED])
    if different:
        raise RuntimeError(f"{run.name} is not the same twice: {different}")
    shutil.rmtree(folder / FORKED)
    about = {
        "result": found[WHOLE],
        "seconds": end.seconds,
        "changes": end.changes,
        "sizes": [
            path.stat().st_size
            for path in sorted((folder / WHOLE).rglob("*"))
            if path.is_file()
        ],
    }
    (folder / ABOUT).write_text(json.dumps(about))
    if run.trains:
        _make_half(data, folder, run, end.changes, forked)


def _make_half(
    data: pathlib.Path,
    folder: pathlib.Path,
    run: Run,
    changes: int,
    forked: bool,
) -> None:
    """Kills a run on its way, with a checkpoint if it comes to that."""
    for tenths in (5, 7, 9):
        half = folder / HALF
        if half.is_dir():
            shutil.rmtree(half)
        run.begin(data, half)
        starts.start(
            run.command(data, half),
            str(half),
            forked,
            Moment(changes=changes * tenths / 10),
        )
        if any(half.rglob("model.ckpt-*.index")):
            return


def read(work: pathlib.Path, run: Run) -> Reference:
    """The reference that `make` has made."""
    folder = folder_of(work, run)
    return Reference(run, folder, **json.loads((folder / ABOUT).read_text()))
