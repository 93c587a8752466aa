"""What happens in a folder while it happens: Linux's inotify.

A program that is killed when the folder has changed so and so often is killed
within its writes, or between two of them. By the clock it seldom is.
"""

import ctypes
import os
import struct
from typing import Dict

_LIBC = ctypes.CDLL(None, use_errno=True)
# Of <sys/inotify.h>.
MODIFY, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
FOLDER = 0x40000000
_EVENT = struct.Struct("iIII")


class Changes:
    """Counts files that are made, written, renamed and deleted.

    Attributes:
        count: of what has been seen.
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
        self._paths: Dict[int, str] = {}
        self._watch(folder)

    def _watch(self, folder: str) -> None:
        """Watches a folder and all that is in it by now."""
        mask = MODIFY | MOVED_FROM | MOVED_TO | CREATE | DELETE
        for path, _, _ in os.walk(folder):
            encoded = os.fsencode(path)
            found = _LIBC.inotify_add_watch(self.number, encoded, mask)
            # It may be gone already.
            if found >= 0:
                self._paths[found] = path

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
