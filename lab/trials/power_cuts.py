"""Power cuts: the states that a disk may be left in, and the runs that go on.

A run is recorded once, call by call (`strace.py`). Then a moment of the
recording is drawn, and the folder is made as a disk may hold it. Which disks
are meant, results/reliability.md says: the content of a file is there as of its
last sync; files are made, renamed and deleted on the disk in the order in which
programs do it, but only a folder's sync tells how far the disk has come.
"""

import json
import os
import pathlib
import random
import shutil
import tempfile
from typing import Callable, NamedTuple, Optional, Union

from lab.trials import runs, strace, trial
from lab.trials.starts import start
from lab.trials.strace import (
    DELETE,
    EMPTY,
    MAKE_FOLDER,
    OPEN,
    RENAME,
    RESIZE,
    SYNC,
    WRITE,
    Operation,
)
from lab.trials.trial import LOST, Bench, Outcome, Plan

POWER = "power"
# Beside a reference's own folders: the folder of a recorded run, its calls, and
# its faults of order.
PLACE, CALLS, FAULTS = "power", "power-calls", "power-faults.json"
# In one trial of so many the power goes once more when the run goes on.
AGAIN = 4
# A file on the disk that has changed since its last sync: as it was then; all
# of it; its beginning; its beginning, and zeros after it.
HOW = ("old", "whole", "cut", "zeroed")


class File:
    """A file, whatever its name: as programs see it, and as on the disk."""

    def __init__(self, content: bytes = b""):
        """Takes the content, which is on the disk."""
        self.content = bytearray(content)
        # As it was at its last sync, and whether it has not changed since.
        self.synced = content
        self.is_synced = True

    def left(self, chance: random.Random) -> bytes:
        """Draws the content that may be left of it."""
        if self.is_synced:
            return self.synced
        how = chance.choice(HOW)
        place = chance.randint(0, len(self.content))
        if how == "old":
            return self.synced
        if how == "whole":
            return bytes(self.content)
        rest = bytes(len(self.content) - place) if how == "zeroed" else b""
        return bytes(self.content[:place]) + rest


class Folder:
    """A folder, and the names that it got after its last sync."""

    def __init__(self):
        """Makes one that is on the disk."""
        # How many changes of all names there had been after its last one.
        self.changes = 0
        self.unsynced: set[str] = set()


Names = dict[str, Union[File, Folder]]


class _Change(NamedTuple):
    """A change of names: `path` is given to `node`, or goes, or gets `new`."""

    path: str
    new: str = ""
    node: Optional[Union[File, Folder]] = None

    def do(self, names: Names) -> None:
        path = self.path
        if self.node is not None:
            names[path] = self.node
        elif self.new:
            below = [name for name in names if name.startswith(f"{path}/")]
            for name in (path, *below):
                names[self.new + name[len(path) :]] = names.pop(name)
        else:
            del names[path]


class Disk:
    """A folder that programs change, and the part that is on the disk."""

    def __init__(self, folder: pathlib.Path):
        """Takes the files that are there; they are on the disk."""
        self._first: Names = {"": Folder()}
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            is_folder = path.is_dir()
            self._first[name] = (
                Folder() if is_folder else File(path.read_bytes())
            )
        self._names: Names = dict(self._first)
        self._changes: list[_Change] = []
        # So many of them are on the disk.
        self._certain = 0

    def do(self, operation: Operation) -> None:
        """Does what a program does.

        Raises:
            RuntimeError: there is no such file.
        """
        what, path, new, number, content = operation
        if what == MAKE_FOLDER:
            self._add(_Change(path, node=Folder()), path)
            return
        if what == OPEN and path not in self._names:
            self._add(_Change(path, node=File()), path)
            return
        node = self._names.get(path)
        if node is None:
            raise RuntimeError(f"{operation[:4]}: there is no such file")
        if what == RENAME:
            self._add(_Change(path, new), path, new)
        elif what == DELETE:
            self._add(_Change(path), path)
        elif what == SYNC and isinstance(node, Folder):
            self._certain = max(self._certain, node.changes)
            node.unsynced.clear()
        elif what == SYNC:
            node.synced, node.is_synced = bytes(node.content), True
        elif what in (EMPTY, RESIZE):
            size = number or 0
            node.content[size:] = bytes(max(0, size - len(node.content)))
            node.is_synced = False
        elif what == WRITE:
            at = len(node.content) if number is None else number
            node.content.extend(bytes(max(0, at - len(node.content))))
            node.content[at : at + len(content)] = content
            node.is_synced = False

    def _add(self, change: _Change, *paths: str) -> None:
        """Changes names, which the folders that hold `paths` know."""
        change.do(self._names)
        self._changes.append(change)
        for path in paths:
            folder = self._names[os.path.dirname(path)]
            folder.changes = len(self._changes)
            folder.unsynced.discard(os.path.basename(path))
        if change.node is not None or change.new:
            folder.unsynced.add(os.path.basename(paths[-1]))

    def contents(self) -> dict[str, bytes]:
        """Returns the files as programs see them."""
        return {
            name: bytes(node.content)
            for name, node in self._names.items()
            if isinstance(node, File)
        }

    def below(self, path: str) -> Names:
        """A path's file or folder, with all that is in it."""
        return {
            name: node
            for name, node in self._names.items()
            if not path or name == path or name.startswith(f"{path}/")
        }

    def cut(self, chance: random.Random, folder: pathlib.Path) -> None:
        """Leaves what a disk may hold if the power goes now.

        Args:
            chance: by which it is drawn.
            folder: of the files that are left; its own are deleted.
        """
        names = dict(self._first)
        come = chance.randint(self._certain, len(self._changes))
        for change in self._changes[:come]:
            change.do(names)
        shutil.rmtree(folder, ignore_errors=True)
        # A folder before the files in it.
        for name in sorted(names):
            node = names[name]
            if isinstance(node, Folder):
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(node.left(chance))


def order_faults(
    disk: Disk, operations: list[Operation], lasts: Callable[[str], bool]
) -> list[str]:
    """Where a program gives or takes names before it has synced what it must.

    Args:
        disk: as it was before.
        operations: of the program, to its end.
        lasts: whether a file of this path counts. Nothing is asked of others.
    """
    faults = []
    for operation in operations:
        what, path, new = operation[:3]
        if what == RENAME and lasts(new):
            lacks = _contents_lack(disk, path)
            lacks += _names_lack(disk, path, lambda _: True)
            faults += [f"{new}: renamed, but {n}" for n in lacks]
        elif what == DELETE and lasts(path):
            if isinstance(disk.below(path)[path], File):
                lacks = _names_lack(disk, "", lasts)
                faults += [f"{path}: deleted, but {n}" for n in lacks]
        disk.do(operation)
    unsynced = [n for n in _contents_lack(disk, "") if lasts(n.split(":")[0])]
    return faults + unsynced + _names_lack(disk, "", lasts)


def _contents_lack(disk: Disk, path: str) -> list[str]:
    return [
        f"{name}: not synced"
        for name, node in disk.below(path).items()
        if isinstance(node, File) and not node.is_synced
    ]


def _names_lack(
    disk: Disk, path: str, lasts: Callable[[str], bool]
) -> list[str]:
    lacks = []
    for name, node in disk.below(path).items():
        if isinstance(node, Folder):
            paths = (
                os.path.join(name, entry) for entry in sorted(node.unsynced)
            )
            lacks += [f"{p}: its folder not synced" for p in paths if lasts(p)]
    return lacks


def record(work: pathlib.Path, run: runs.ProgramRun) -> None:
    """Records a run from its beginning.

    Args:
        work: folder of a soak, with the material in `data`.
        run: a kind of run that has a reference.

    Raises:
        RuntimeError: it fails, or the recording does not tell all of it.
    """
    folder = trial.folder_of(work, run)
    place = folder / PLACE
    run.begin(work / trial.DATA, place)
    disk = Disk(place)
    command = run.command(work / trial.DATA, place)
    tracer = strace.tracer(folder / CALLS)
    end = start(command, str(place), tracer=tracer)
    if end.code:
        raise RuntimeError(f"{run.name}, recorded: {end}")
    faults = _faults(disk, strace.read(folder / CALLS, place), place)
    (folder / FAULTS).write_text(json.dumps(faults))


def _faults(
    disk: Disk, operations: list[Operation], place: pathlib.Path
) -> list[str]:
    """Returns the faults of order of a recording, which must tell all of a run.

    Args:
        disk: as it was before.
        operations: of the recording.
        place: the folder as the run has left it.

    Raises:
        RuntimeError: the recording comes to other files.
    """
    faults = order_faults(disk, operations, is_kept)
    expected, left = disk.contents(), Disk(place).contents()
    names = {*expected, *left}
    wrong = sorted(n for n in names if expected.get(n) != left.get(n))
    if wrong:
        raise RuntimeError(f"{place}: not recorded as is: {', '.join(wrong)}")
    return faults


def is_kept(path: str) -> bool:
    """Tells whether a file of a trial's folder is one that is compared."""
    inside, _, name = path.partition("/")
    return bool(
        inside == runs.OUT and name and not runs.PASSING.fullmatch(name)
    )


def cut_power(plan: Plan, bench: Bench) -> Outcome:
    """Cuts the power once or twice, and lets the run go to its end."""
    chance = random.Random(plan.how)
    folder = bench.reference.folder
    operations = strace.read(folder / CALLS, folder / PLACE)
    faults = json.loads((folder / FAULTS).read_text())
    bench.begin()
    notes: list[str] = []
    for share in plan.shares[: 2 if plan.rare < 1 / AGAIN else 1]:
        disk, whole = Disk(bench.place), Disk(bench.place)
        if notes:
            # No recording begins from the files that are left.
            with tempfile.TemporaryDirectory(
                dir=bench.place.parent
            ) as temporary:
                place = pathlib.Path(temporary) / CALLS
                end = bench.start(tracer=strace.tracer(place))
                operations = strace.read(place, bench.place)
            if bench.has_failed(end):
                return Outcome(LOST, f"{'; '.join(notes)}; then {end}")
            faults = _faults(whole, operations, bench.place)
        if faults:
            return Outcome(LOST, f"not on the disk in time: {faults}")
        moment = int(share * (len(operations) + 1))
        for operation in operations[:moment]:
            disk.do(operation)
        disk.cut(chance, bench.place)
        notes.append(f"power cut after {moment} of {len(operations)} changes")
    return bench.finish("; ".join(notes))
