"""Runs a program in a process that is not as the others.

    .venv/bin/python lab/trials/inside.py '{"clock": [[0, -86400]]}' PROGRAM ...

`clock`: seconds after the start, and by how much the clock is wrong from then
on; as Python sees it, not TensorFlow's own code. `rights`: modes of files mean
nothing for the superuser; false changes that.
"""

import ctypes
import datetime
import json
import pathlib
import runpy
import sys
import time
from typing import List, Sequence, Tuple

# Of <linux/capability.h>.
_VERSION, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 0x20080522, 1, 2


def set_clock(changes: Sequence[Tuple[float, float]]) -> None:
    """Makes this process see another time of day, whose pace is right.

    Args:
        changes: in order, seconds from now on, and what the clock adds then.
    """
    began, right, right_ns = time.monotonic(), time.time, time.time_ns

    def wrong() -> float:
        past = time.monotonic() - began
        found = [added for moment, added in changes if past >= moment]
        return found[-1] if found else 0.0

    class Clock(datetime.datetime):
        """What `now` asks is the time that this process sees."""

        @classmethod
        def now(cls, tz=None):
            """The wrong time."""
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls):
            """The wrong time."""
            now = cls.fromtimestamp(time.time(), datetime.timezone.utc)
            return now.replace(tzinfo=None)

    time.time = lambda: right() + wrong()
    time.time_ns = lambda: right_ns() + int(wrong() * 1e9)
    datetime.datetime = Clock


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Part(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("effective", "permitted", "inheritable")
    ]


def drop_rights() -> None:
    """Has the modes of files count for this process, whoever runs it.

    Raises:
        OSError: the system does not let it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, parts = _Header(_VERSION, 0), (_Part * 2)()
    if libc.capget(ctypes.byref(header), parts):
        raise OSError(ctypes.get_errno(), "capget")
    kept = ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    for name, _ in _Part._fields_:
        setattr(parts[0], name, getattr(parts[0], name) & kept)
    if libc.capset(ctypes.byref(header), parts):
        raise OSError(ctypes.get_errno(), "capset")


def main(arguments: List[str]) -> None:
    """Changes the process, and becomes the program."""
    about, *command = arguments
    changed = json.loads(about)
    if not changed.get("rights", True):
        drop_rights()
    if "clock" in changed:
        set_clock(changed["clock"])
    root = pathlib.Path(__file__).resolve().parents[2]
    # As for the program itself.
    sys.path[0] = str(root)
    if command[0].endswith(".py"):
        sys.argv = command
        runpy.run_path(str(root / command[0]), run_name="__main__")
    else:
        sys.argv = ["adapter-bert", *command]
        runpy.run_module("adapter_bert", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
