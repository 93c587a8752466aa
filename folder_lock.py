"""One process at a time writes into a folder.

The lock goes with the process that holds it, however that ends, also on a
disk that several machines share. Its file stays: deleted, two processes could
hold locks on two files of one name. Remote folders (`gs://`) have no locks.
"""

import contextlib
import errno
import fcntl
import os
import socket
from typing import Iterator

from absl import logging

from errors import UserError

# Of a run. Not `lock`: a sweep holds that of its run's folder.
RUN_LOCK = "run.lock"
# What file systems without locks answer.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def hold(
    folder: str, lock_file: str = RUN_LOCK, wait: bool = False
) -> Iterator[None]:
    """Holds the lock of a folder, which must be there.

    Args:
        folder: local, or `gs://`, where nothing is locked.
        lock_file: name of the file in it that is locked.
        wait: whether to wait until no other process holds it.

    Raises:
        UserError: another process holds it, or its file cannot be written.
    """
    if "://" in folder:
        yield
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
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read(200).strip() or "that does not say which"
            raise UserError(
                f"{folder} is in use by another process ({holder}); wait for "
                "its end, or choose another --output_dir"
            ) from error
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
            _sign(file)
        yield


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
