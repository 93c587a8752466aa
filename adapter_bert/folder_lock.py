"""One process at a time writes into a folder.

The lock (flock, or Windows' own) ends with the process that holds it, also on a
disk that several machines share. Its file is never deleted, since two processes
could then lock two files of one name. Remote folders (`gs://`) have no locks.

Whoever gets the lock names temporary files; those that a killed process left
are deleted.

A folder may be moved or unmounted while a process writes into it, and another
may take its place; so `check` precedes every write.

Readers take no lock: `read_beside_writer` reads again if files were replaced.
"""

import contextlib
import errno
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from typing import Any, Callable

from absl import logging

from adapter_bert.errors import UserError

try:
    import fcntl
except ImportError:
    # Windows.
    fcntl = None

# The lock of a run; a sweep holds `lock` in the same folder.
RUN_LOCK = "run.lock"
# Errors of file systems without locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

# The byte that Windows locks, where nothing is read. It has no shared locks.
LOCKED_BYTE = 2**30

# The folders that this process holds: absolute path, and stat when locked.
_held: list[tuple[str, os.stat_result]] = []


def check(path: str) -> None:
    """Checks that the held folder of a file to be written is still there."""
    if "://" in path:
        return
    path = os.path.abspath(path)
    for folder, before in tuple(_held):
        is_inside = path == folder or path.startswith(folder + os.sep)
        if is_inside and not _is_still(folder, before):
            raise UserError(
                f"{folder} is not there any more, or is another folder than "
                "the one that was written into: it was moved, deleted or "
                "unmounted; bring it back, then start the same command again"
            )


def _is_still(path: str, before: os.stat_result) -> bool:
    try:
        return os.path.samestat(before, os.stat(path))
    except OSError:
        return False


def lock(opened: int, shared: bool = False, wait: bool = False) -> None:
    """Locks a file of this descriptor until it is closed.

    Raises:
        BlockingIOError: another process holds it, and this one does not wait.
        OSError: the disk has no locks.
    """
    if fcntl:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(opened, how if wait else how | fcntl.LOCK_NB)
        return
    import msvcrt

    while True:
        os.lseek(opened, LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(opened, msvcrt.LK_NBLCK, 1)
            return
        except PermissionError as error:
            if not wait:
                raise BlockingIOError(*error.args) from error
        time.sleep(0.1)


@contextlib.contextmanager
def hold(
    folder: str,
    lock_file: str = RUN_LOCK,
    wait: bool = False,
    unfinished: str = "",
) -> Iterator[bool]:
    """Holds the lock of an existing folder.

    Args:
        folder: local, or `gs://`, where nothing is locked.
        lock_file: name of the locked file in it.
        wait: whether to wait for another process that holds the lock.
        unfinished: expression for the names of temporary files that are written
            under this lock; those of killed processes are deleted.

    Yields:
        Whether the folder is locked; False where a disk has no locks.
    """
    if "://" in folder:
        yield False
        return
    path = os.path.join(folder, lock_file)
    try:
        # Read as well: it names the holder.
        file = open(
            path,
            "a+",
            encoding="utf-8",
            errors="replace",
            # A link that someone put there is not followed.
            opener=lambda path, how: os.open(
                path, how | getattr(os, "O_NOFOLLOW", 0), 0o666
            ),
        )
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        why = "it is a link; delete it" if is_link else error.strerror
        raise UserError(f"cannot write {path}: {why}") from error
    is_locked = False
    with file:
        try:
            try:
                lock(file.fileno())
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read(200).strip() or "that does not say which"
                in_use = f"{folder} is in use by another process ({holder})"
                if not wait:
                    raise UserError(
                        f"{in_use}; wait for its end, or choose another "
                        "--output_dir"
                    ) from error
                logging.info("%s: waiting for its end", in_use)
                lock(file.fileno(), wait=True)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise UserError(
                    f"cannot lock {path}: {error.strerror}"
                ) from error
            logging.warning(
                "%s cannot be locked (%s): see to it that no other process "
                "writes there",
                folder,
                error.strerror,
            )
        else:
            is_locked = True
            with contextlib.suppress(OSError):
                # A full disk is noticed by later writes. The file's own buffer
                # would fail again on close.
                file.truncate(0)
                text = f"process {os.getpid()} on {socket.gethostname()}\n"
                os.write(file.fileno(), text.encode())
        with _registered(folder, path, file.fileno()):
            if is_locked and unfinished:
                _delete_left(folder, unfinished)
            yield is_locked


@contextlib.contextmanager
def share(folder: str, unfinished: str) -> Iterator[None]:
    """Holds a shared lock of a local folder, without a lock file.

    Nothing is locked or deleted where a disk has no such locks.

    Args:
        folder: its path.
        unfinished: as for `hold`; files are deleted if no other process holds
            the lock.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            opened = os.open(folder, os.O_RDONLY)
            held.callback(os.close, opened)
            with contextlib.suppress(BlockingIOError):
                lock(opened)
                _delete_left(folder, unfinished)
            lock(opened, shared=True, wait=True)
        yield


def _delete_left(folder: str, unfinished: str) -> None:
    """Deletes temporary files of killed processes, as far as allowed."""
    # No other process may hold the lock.
    left = []
    with contextlib.suppress(OSError):
        # Later reads tell of a folder that cannot be read.
        left = os.listdir(folder)
    for name in filter(re.compile(unfinished).fullmatch, left):
        path = os.path.join(folder, name)
        logging.info("deleting %s, left by a killed process", path)
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            # A file or a link.
            os.unlink(path)


@contextlib.contextmanager
def _registered(folder: str, lock: str, opened: int) -> Iterator[None]:
    """Tells `check` of a folder, its lock file, and that file's descriptor."""
    path = os.path.abspath(folder)
    try:
        place = path, os.stat(path)
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}") from error
    if not _is_still(lock, os.fstat(opened)):
        raise UserError(
            f"{lock} was deleted or taken away while this process waited for "
            "it; start the same command again"
        )
    _held.append(place)
    try:
        yield
    except UserError:
        raise
    except Exception:
        # Libraries raise many errors for a folder that is gone.
        check(folder)
        raise
    finally:
        _held.remove(place)


def read_beside_writer(look: Callable[[], Any], read: Callable[[Any], Any]):
    """Returns the result of `read`, given what `look` has seen.

    Another process may replace the files in between. So an error counts only if
    `look` still sees the same.
    """
    while True:
        seen = look()
        try:
            return read(seen)
        except UserError:
            if look() == seen:
                raise
