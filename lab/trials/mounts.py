"""File systems that come and go while programs use them, for this process only.

The process and what it starts get a table of mounts of their own. Only the
superuser may do this.
"""

import contextlib
import ctypes
import functools
import os
import pathlib

_LIBC = ctypes.CDLL(None, use_errno=True)
# Of <sched.h> and <sys/mount.h>.
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = (
    0x20000,
    0x1000,
    0x4000,
    0x40000,
    2,
)


@functools.cache
def are_own() -> bool:
    """Gives this process its own mounts, if it may have them."""
    if _LIBC.unshare(CLONE_NEWNS):
        return False
    return not _LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def bind(folder: pathlib.Path, place: pathlib.Path) -> None:
    """Shows a folder at another place, which must be a folder.

    Raises:
        OSError: it cannot.
    """
    source, target = os.fsencode(folder), os.fsencode(place)
    if _LIBC.mount(source, target, None, MS_BIND, None):
        raise OSError(ctypes.get_errno(), f"mount {place}")


def take(place: pathlib.Path) -> None:
    """Takes away what is shown there, also from those that use it.

    Raises:
        OSError: it cannot.
    """
    if _LIBC.umount2(os.fsencode(place), MNT_DETACH):
        raise OSError(ctypes.get_errno(), f"umount {place}")


def small(place: pathlib.Path, size: int) -> None:
    """Puts an empty file system in memory there, of so many bytes.

    Raises:
        OSError: it cannot.
    """
    about = f"size={size}".encode()
    if _LIBC.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, about):
        raise OSError(ctypes.get_errno(), f"mount {place}")


def fill(place: pathlib.Path, left: int) -> pathlib.Path:
    """Fills a file system up with a file, which is given back.

    Args:
        place: where it is mounted.
        left: bytes that stay free.
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
