"""One run at a time writes into an output folder.

The lock goes with the process that holds it, however that ends, also on a
disk that several machines share. Its file stays: deleted, two runs could hold
locks on two files of one name. Remote folders (`gs://`) have no locks.
"""

import contextlib
import errno
import fcntl
import os
import socket
from typing import Iterator

from absl import logging

from errors import UserError

# Not `lock`: a sweep holds that of its run's folder.
LOCK_FILE = "run.lock"
# What file systems without locks answer.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def hold(folder: str) -> Iterator[None]:
    """Holds the lock of a folder, which must be there.

    Raises:
        UserError: another process holds it, or its file cannot be written.
    """
    if "://" in folder:
        yield
        return
    path = os.path.join(folder, LOCK_FILE)
    try:
        # Read as well: what the holder has written.
        file = open(path, "a+", encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
                "%s cannot be locked (%s): see to it that no other run writes "
                "there",
                folder,
                error.strerror,
            )
        else:
            _sign(file)
        yield


def _sign(file) -> None:
    """Writes which process holds the lock."""
    with contextlib.suppress(OSError):
        # A full disk is found by what follows.
        file.truncate(0)
        text = f"process {os.getpid()} on {socket.gethostname()}\n"
        # Not by the file's buffer, whose rest would fail again at its closing.
        os.write(file.fileno(), text.encode())
