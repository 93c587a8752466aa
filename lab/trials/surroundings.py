"""Runs a program with a wrong clock, without rights, or with limits.

    python -m lab.trials.surroundings '{"clock": [[0, -86400]]}' PROGRAM ...

`clock`: seconds after the start, and how wrong the clock is from then on, as
Python sees it, not TensorFlow's own code. `rights`: false drops the superuser's
rights, so that files' modes apply. `largest_file`: bytes beyond which writes
into a file fail.
"""

import datetime
import json
import resource
import runpy
import sys
import time
from collections.abc import Sequence

from lab.trials import linux


def set_clock(changes: Sequence[tuple[float, float]]) -> None:
    """Makes this process see another time of day, whose pace is right.

    Args:
        changes: in order, seconds from now on, and by how much the clock is
            wrong then.
    """
    began, right, right_ns = time.monotonic(), time.time, time.time_ns

    def wrong() -> float:
        past = time.monotonic() - began
        shifts = [added for moment, added in changes if past >= moment]
        return shifts[-1] if shifts else 0.0

    class Clock(datetime.datetime):
        """Tells the time that this process sees."""

        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls):
            return cls.now(datetime.timezone.utc).replace(tzinfo=None)

    time.time = lambda: right() + wrong()
    time.time_ns = lambda: right_ns() + int(wrong() * 1e9)
    datetime.datetime = Clock


def main(arguments: list[str]) -> None:
    """Changes the process, and becomes the program."""
    about, *command = arguments
    changed = json.loads(about)
    if not changed.get("rights", True):
        linux.drop_rights()
    if "largest_file" in changed:
        # Python ignores the signal that comes with it.
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        limits = (changed["largest_file"], hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    if "clock" in changed:
        set_clock(changed["clock"])
    if command[0].endswith(".py"):
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
    else:
        sys.argv = ["adapter-bert", *command]
        runpy.run_module("adapter_bert", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
