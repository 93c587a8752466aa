"""System calls that Python lacks: inotify, mounts, capabilities."""

import contextlib
import ctypes
import functools
import os
import pathlib
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)
# Of <sys/inotify.h>.
MODIFY, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
FOLDER = 0x40000000
_EVENT = struct.Struct("iIII")
# Of <sched.h>, <sys/mount.h> and <linux/capability.h>.
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
_VERSION, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 0x20080522, 1, 2


def _call(name: str, *arguments: object) -> None:
    """Calls a function of the C library.

    Raises:
        OSError: it fails.
    """
    if getattr(_LIBC, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)


class Changes:
    """Counts files that are made, written, renamed and deleted.

    Attributes:
        count: of the changes that have been seen.
        number: of the open file that can be read when something has happened.
    """

    def __init__(self, folder: str):
        """Begins to watch a folder and all that is in it.

        Raises:
            OSError: the system watches no more folders.
        """
        self.count = 0
        self.number = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.number < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self._paths: dict[int, str] = {}
        self._watch(folder)

    def _watch(self, folder: str) -> None:
        mask = MODIFY | MOVED_FROM | MOVED_TO | CREATE | DELETE
        for path, _, _ in os.walk(folder):
            encoded = os.fsencode(path)
            descriptor = _LIBC.inotify_add_watch(self.number, encoded, mask)
            # It may be gone already.
            if descriptor >= 0:
                self._paths[descriptor] = path

    def read(self) -> None:
        """Counts what has happened since, and watches new folders."""
        try:
            content = os.read(self.number, 65536)
        except BlockingIOError:
            return
        place = 0
        while place < len(content):
            watched, mask, _, length = _EVENT.unpack_from(content, place)
            place += _EVENT.size
            name = content[place : place + length].rstrip(b"\0")
            place += length
            self.count += 1
            if mask & FOLDER and mask & (CREATE | MOVED_TO):
                parent = self._paths.get(watched, "")
                self._watch(os.path.join(parent, os.fsdecode(name)))

    def close(self) -> None:
        """Ends the watching."""
        os.close(self.number)


@functools.cache
def has_own_mounts() -> bool:
    """Gives this process a table of mounts of its own, if it may have one."""
    try:
        _call("unshare", CLONE_NEWNS)
        _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    except OSError:
        return False
    return True


def bind(folder: pathlib.Path, place: pathlib.Path) -> None:
    """Shows a folder at another place; raises OSError where it cannot."""
    source, target = os.fsencode(folder), os.fsencode(place)
    _call("mount", source, target, None, MS_BIND, None)


def unmount(place: pathlib.Path) -> None:
    """Unmounts a folder, even if it is in use; raises OSError."""
    _call("umount2", os.fsencode(place), MNT_DETACH)


def mount_memory(place: pathlib.Path, size: int) -> None:
    """Mounts an empty file system of so many bytes; raises OSError."""
    about = f"size={size}".encode()
    _call("mount", b"tmpfs", os.fsencode(place), b"tmpfs", 0, about)


def fill(place: pathlib.Path, left: int) -> pathlib.Path:
    """Fills a file system up, but for some bytes, with a file.

    Args:
        place: where it is mounted.
        left: bytes that stay free.

    Returns:
        The file's path.
    """
    path = place / "filling"
    with open(path, "wb") as file:
        # Others write meanwhile.
        for _ in range(100):
            about = os.statvfs(place)
            size = about.f_bavail * about.f_frsize - left
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
                break
    return path


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Part(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("effective", "permitted", "inheritable")
    ]


def drop_rights() -> None:
    """Drops the superuser's rights to files, for this thread alone.

    Raises:
        OSError: the system does not let it.
    """
    header, parts = _Header(_VERSION, 0), (_Part * 2)()
    _call("capget", ctypes.byref(header), parts)
    kept = ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    for name, _ in _Part._fields_:
        setattr(parts[0], name, getattr(parts[0], name) & kept)
    _call("capset", ctypes.byref(header), parts)
