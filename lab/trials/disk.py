"""What of a folder's files a disk holds when the power goes.

docs/reliability.md says which disks are meant. Of each file the content as of
its last sync is on the disk. Files are made, renamed and deleted on the disk in
the order in which programs do it, as file systems with a journal have it; but
how far the disk has come, only a folder's sync tells.
"""

import os
import pathlib
import random
import shutil
from typing import Callable, Dict, List, NamedTuple, Optional, Set, Union

from lab.trials.system_calls import (
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

# What the disk has of a file that has changed since its last sync: the file as
# it was then; all; the beginning; the beginning, and zeros after it.
HOW = ("old", "whole", "cut", "zeroed")


class File:
    """A file, whatever it is called.

    Attributes:
        content: as programs see it.
        synced: as it was at its last sync.
        is_synced: whether it has not changed since.
    """

    def __init__(self, content: bytes = b""):
        """Takes the content, which is on the disk."""
        self.content = bytearray(content)
        self.synced = content
        self.is_synced = True

    def left(self, chance: random.Random) -> bytes:
        """What may be left of it."""
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
    """A folder.

    Attributes:
        changes: how many there had been, of all names, after its last one.
        unsynced: the names that it got after its last sync.
    """

    def __init__(self):
        """Makes one that is on the disk."""
        self.changes = 0
        self.unsynced: Set[str] = set()


Names = Dict[str, Union[File, Folder]]


class _Change(NamedTuple):
    """Of names; `node` gets the name `path`, or that goes, or becomes `new`."""

    path: str
    new: str = ""
    node: Optional[Union[File, Folder]] = None


def _change(names: Names, change: _Change) -> None:
    path, new, node = change
    if node is not None:
        names[path] = node
    elif new:
        below = [name for name in names if name.startswith(f"{path}/")]
        for name in (path, *below):
            names[new + name[len(path) :]] = names.pop(name)
    else:
        del names[path]


class Disk:
    """A folder that programs work on, and what of it is on the disk."""

    def __init__(self, folder: pathlib.Path):
        """Takes the files that are there; they are on the disk."""
        self._first: Names = {"": Folder()}
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            self._first[name] = (
                Folder() if path.is_dir() else File(path.read_bytes())
            )
        self._names: Names = dict(self._first)
        self._changes: List[_Change] = []
        # Of these, so many are on the disk.
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
            grown = bytes(max(0, size - len(node.content)))
            node.content[size:] = grown
            node.is_synced = False
        elif what == WRITE:
            at = len(node.content) if number is None else number
            node.content.extend(bytes(max(0, at - len(node.content))))
            node.content[at : at + len(content)] = content
            node.is_synced = False

    def _add(self, change: _Change, *paths: str) -> None:
        """Changes names, of which those folders that hold `paths` know."""
        _change(self._names, change)
        self._changes.append(change)
        for path in paths:
            folder = self._names[os.path.dirname(path)]
            folder.changes = len(self._changes)
            folder.unsynced.discard(os.path.basename(path))
        if change.node is not None or change.new:
            folder.unsynced.add(os.path.basename(paths[-1]))

    def contents(self) -> Dict[str, bytes]:
        """The files as programs see them."""
        return {
            name: bytes(node.content)
            for name, node in self._names.items()
            if isinstance(node, File)
        }

    def below(self, path: str) -> Names:
        """What there is under a path, that itself included."""
        return {
            name: node
            for name, node in self._names.items()
            if not path or name == path or name.startswith(f"{path}/")
        }

    def cut(self, chance: random.Random, folder: pathlib.Path) -> None:
        """Leaves what a disk may hold if the power goes now.

        Args:
            chance: by which it is drawn.
            folder: for it; what is there is deleted.
        """
        names = dict(self._first)
        come = chance.randint(self._certain, len(self._changes))
        for change in self._changes[:come]:
            _change(names, change)
        shutil.rmtree(folder, ignore_errors=True)
        # A folder before what is in it.
        for name in sorted(names):
            node = names[name]
            if isinstance(node, Folder):
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(node.left(chance))


def order_faults(
    disk: Disk, operations: List[Operation], lasts: Callable[[str], bool]
) -> List[str]:
    """Where a program gives or takes names before it has synced what it must.

    Args:
        disk: as it was before.
        operations: of the program, to its end.
        lasts: whether a file of this path counts. Of others nothing is asked.
    """
    faults = []
    for operation in operations:
        what, path, new = operation[:3]
        if what == RENAME and lasts(new):
            faults += [f"{new}: renamed, but {n}" for n in _lacks(disk, path)]
        elif what == DELETE and lasts(path):
            if isinstance(disk.below(path)[path], File):
                lacks = _names_lack(disk, "", lasts)
                faults += [f"{path}: deleted, but {n}" for n in lacks]
        disk.do(operation)
    unsynced = [n for n in _contents_lack(disk, "") if lasts(n.split(":")[0])]
    return faults + unsynced + _names_lack(disk, "", lasts)


def _lacks(disk: Disk, path: str) -> List[str]:
    """What of a file, or a folder with all in it, is not on the disk."""
    return _contents_lack(disk, path) + _names_lack(disk, path, lambda _: True)


def _contents_lack(disk: Disk, path: str) -> List[str]:
    return [
        f"{name}: not synced"
        for name, node in disk.below(path).items()
        if isinstance(node, File) and not node.is_synced
    ]


def _names_lack(
    disk: Disk, path: str, lasts: Callable[[str], bool]
) -> List[str]:
    found = []
    for name, node in disk.below(path).items():
        if isinstance(node, Folder):
            paths = (os.path.join(name, own) for own in sorted(node.unsynced))
            found += [f"{p}: its folder not synced" for p in paths if lasts(p)]
    return found
