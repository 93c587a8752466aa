"""When what is written is on the disk, and not only handed to the system.

Until then a loss of power may take it: of a file that was renamed it leaves an
empty one, and of two files the older one alone. Remote files (`gs://`) appear
when they are whole; here nothing is done for them.
"""

import errno
import os

import tensorflow as tf

from storage import folder_lock

# What is answered of a folder that cannot be synced: by file systems of some
# networks, and where it may be written but not read.
NO_SYNC = (
    errno.EACCES,
    errno.EBADF,
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
)


def sync(path: str) -> None:
    """Waits until a file's content, or a folder's names, are on the disk.

    Raises:
        OSError: the disk has not taken it.
    """
    if "://" in path:
        return
    try:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def sync_all(folder: str) -> None:
    """Syncs a local folder with all that is in it; raises as `sync`."""
    for path, _, names in os.walk(folder):
        for name in (*names, ""):
            sync(os.path.join(path, name))


def replace(written: str, path: str) -> None:
    """Gives a file that is written its name.

    It is on the disk before it has the name, and has the name there when this
    returns.

    Args:
        written: the file.
        path: its name, on the same disk; a file that has it is replaced.

    Raises:
        tf.errors.OpError, OSError: it cannot be renamed or synced.
        UserError: its folder is gone that this process holds.
    """
    folder_lock.check(path)
    sync(written)
    tf.io.gfile.rename(written, path, overwrite=True)
    sync(os.path.dirname(path) or ".")


def make_folder(path: str) -> None:
    """Makes a folder, and those above it that are missing.

    Raises:
        tf.errors.OpError, OSError: it cannot be made.
    """
    if "://" in path:
        tf.io.gfile.makedirs(path)
        return
    changed = []
    above = os.path.abspath(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
        changed.append(above)
    os.makedirs(path, exist_ok=True)
    for folder in changed:
        sync(folder)
