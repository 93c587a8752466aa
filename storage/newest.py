"""Reading the newest of what another process may write and delete."""

from typing import Callable, TypeVar

from errors import UserError

Found = TypeVar("Found")
Read = TypeVar("Read")


def read_newest(
    find: Callable[[], Found], read: Callable[[Found], Read]
) -> Read:
    """Reads what is found, and looks again if that has gone meanwhile.

    Args:
        find: tells which is the newest, as a value that can be compared.
        read: reads it.

    Raises:
        UserError: as `find`, or as `read` of what is still the newest.
    """
    found = find()
    while True:
        try:
            return read(found)
        except UserError:
            newer = find()
            if newer == found:
                raise
            found = newer
