"""One process at a time writes into a folder.

The lock goes with the process that holds it, however that ends, also on a
disk that several machines share. Its file stays: deleted, two processes could
hold locks on two files of one name. Remote folders (`gs://`) have no locks.

So a lock tells what a killed process has left under a temporary name from what
a living one writes. Whoever gets the lock deletes it.

A folder may be moved away or unmounted while a process writes into it, and
another may come into its place. So whoever writes asks `check` first.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
from typing import Iterator, List, Tuple

from absl import logging

from adapter_bert.errors import UserError

# Of a run. Not `lock`: a sweep holds that of its run's folder.
RUN_LOCK = "run.lock"
# What file systems without locks answer.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

# What this process holds: of each folder its path from the root, and what it
# was when it was locked.
_held: List[Tuple[str, os.stat_result]] = []


def check(path: str) -> None:
    """Checks that a folder is still there, before a file is written into it.

    Args:
        path: of the file; nothing is known of it unless this process holds a
            folder that it lies in.

    Raises:
        UserError: the folder is gone, or another one is in its place.
    """
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
    """Whether a path leads to the file or folder that it led to before."""
    try:
        return os.path.samestat(before, os.stat(path))
    except OSError:
        return False


@contextlib.contextmanager
def hold(
    folder: str,
    lock_file: str = RUN_LOCK,
    wait: bool = False,
    unfinished: str = "",
) -> Iterator[bool]:
    """Holds the lock of a folder, which must be there.

    Args:
        folder: local, or `gs://`, where nothing is locked.
        lock_file: name of the file in it that is locked.
        wait: whether to wait until no other process holds it.
        unfinished: expression for the names, in the folder, of what is
            written under this lock. What killed processes have left of it is
            deleted once it is locked.

    Yields:
        Whether it is locked; not where a disk has no locks.

    Raises:
        UserError: another process holds it, its file cannot be written, or
            the folder was taken away while this process waited; or it is gone
            and that has led to another error.
    """
    if "://" in folder:
        yield False
        return
    path = os.path.join(folder, lock_file)
    try:
        # Read as well: what the holder has written.
        file = open(
            path, "a+", encoding="utf-8", errors="replace", opener=_open
        )
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        why = "it is a link; delete it" if is_link else error.strerror
        raise UserError(f"cannot write {path}: {why}") from error
    is_locked = False
    with file:
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
                fcntl.flock(file, fcntl.LOCK_EX)
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
            _sign(file)
        with _known(folder, path, file.fileno()):
            if is_locked and unfinished:
                _delete_left(folder, unfinished)
            yield is_locked


@contextlib.contextmanager
def share(folder: str, unfinished: str) -> Iterator[None]:
    """Holds a lock of a local folder that several processes may hold at once.

    It needs no file. Nothing is locked or deleted where a disk has no such
    locks.

    Args:
        folder: its path.
        unfinished: expression for the names, in the folder, of what is
            written under this lock. What killed processes have left of it is
            deleted if no other process holds the lock.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            opened = os.open(folder, os.O_RDONLY)
            held.callback(os.close, opened)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _delete_left(folder, unfinished)
            fcntl.flock(opened, fcntl.LOCK_SH)
        yield


def _delete_left(folder: str, unfinished: str) -> None:
    """Deletes what killed processes have left, as far as it can be deleted.

    Nobody else may hold the lock under which it is written.
    """
    found = []
    with contextlib.suppress(OSError):
        # What follows tells of a folder that cannot be read.
        found = os.listdir(folder)
    for name in filter(re.compile(unfinished).fullmatch, found):
        path = os.path.join(folder, name)
        logging.info("deleting %s, left by a killed process", path)
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            # It is a file, or a link.
            os.unlink(path)


@contextlib.contextmanager
def _known(folder: str, lock: str, opened: int) -> Iterator[None]:
    """Has `check` know a folder.

    Args:
        folder: its path.
        lock: that of its lock's file.
        opened: the number of that file, which is open.

    Raises:
        UserError: it is another folder by now.
    """
    path = os.path.abspath(folder)
    try:
        found = path, os.stat(path)
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}") from error
    if not _is_still(lock, os.fstat(opened)):
        raise UserError(
            f"{lock} was deleted or taken away while this process waited for "
            "it; start the same command again"
        )
    _held.append(found)
    try:
        yield
    except UserError:
        raise
    except Exception:
        # Libraries tell in many ways of a folder that is gone.
        check(folder)
        raise
    finally:
        _held.remove(found)


def _open(path: str, how: int) -> int:
    """Opens a file, but not what a link of its name leads to.

    Whoever made the folder may have put one there, and the file is written.
    """
    return os.open(path, how | os.O_NOFOLLOW, 0o666)


def _sign(file) -> None:
    """Writes which process holds the lock."""
    with contextlib.suppress(OSError):
        # A full disk is found by what follows.
        file.truncate(0)
        text = f"process {os.getpid()} on {socket.gethostname()}\n"
        # Not by the file's buffer, whose rest would fail again at its closing.
        os.write(file.fileno(), text.encode())
