"""Starts a program, and kills it at a moment."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

from lab.report import ROOT
from lab.trials.linux import Changes

# Seconds after which a program is taken for one that does not end.
PATIENCE = 300.0


class Moment(NamedTuple):
    """Moment when something is done to a program; the first that comes."""

    seconds: float = PATIENCE  # after its start
    changes: float = float("inf")  # of its folder

    def __str__(self) -> str:
        if self == NEVER:
            return "at the start"
        if self.changes < float("inf"):
            return f"at change {self.changes:.0f}"
        return f"after {self.seconds:.3f} s"


NEVER = Moment()


class End(NamedTuple):
    """End of a program."""

    code: int  # its exit code; below 0 the signal that ended it
    stderr: str
    seconds: float
    changes: int  # of its folder
    is_late: bool  # whether it was killed because it did not end

    @property
    def was_killed(self) -> bool:
        """Tells whether it has come to the moment."""
        return self.code == -signal.SIGKILL and not self.is_late

    @property
    def refusal(self) -> Optional[str]:
        """Returns the line by which a program refuses; None if it does not.

        No other line tells of an error.
        """
        lines = self.stderr.strip().splitlines() or [""]
        is_one = self.code == 1 and lines[-1].startswith("error: ")
        if not is_one or "Traceback (most recent call last)" in self.stderr:
            return None
        return lines[-1]

    def __str__(self) -> str:
        if self.is_late:
            return f"no end after {self.seconds:.0f} s"
        if not self.code:
            return "ended"
        lines = self.stderr.strip().splitlines()[-1:] or ["without a word"]
        return f"code {self.code}: {lines[0][:300]}"


def start(
    command: Sequence[str],
    folder: str,
    moment: Moment = NEVER,
    happens: Optional[Callable[[], None]] = None,
    inside: Optional[Any] = None,
    tracer: Sequence[str] = (),
) -> End:
    """Runs a program to its end, or until it is killed.

    Args:
        command: a subcommand of adapter-bert, or the path of a program, and
            its arguments.
        folder: that it writes into.
        moment: when it is killed.
        happens: is called at the moment instead of a kill.
        inside: what `lab.trials.surroundings` changes in its process.
        tracer: words before the command line.
    """
    module = () if command[0].endswith(".py") else ("-m", "adapter_bert")
    if inside:
        module = ("-m", "lab.trials.surroundings", json.dumps(inside))
    changes = Changes(folder)
    began = time.monotonic()
    process = subprocess.Popen(
        [*tracer, sys.executable, *module, *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    reading = process.stderr.fileno()
    output: list[bytes] = []
    is_late, is_open = False, True
    try:
        waiting = select.poll()
        waiting.register(reading, select.POLLIN)
        waiting.register(changes.number, select.POLLIN)
        while is_open:
            left = began + min(moment.seconds, PATIENCE) - time.monotonic()
            if left <= 0 or changes.count >= moment.changes:
                if happens and moment != NEVER:
                    happens()
                    moment = NEVER
                    continue
                is_late = left <= 0 and moment.seconds >= PATIENCE
                process.kill()
                break
            for number, _ in waiting.poll(left * 1000):
                if number == changes.number:
                    changes.read()
                else:
                    part = os.read(reading, 65536)
                    output.append(part)
                    is_open = bool(part)
        code = process.wait()
        seconds = time.monotonic() - began
        changes.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        changes.close()
    text = b"".join(output).decode("utf-8", "replace")
    return End(code, text, seconds, changes.count, is_late)
