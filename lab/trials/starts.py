"""Starts a program, and ends it where that is wanted.

A program is started as a user does it, or as a fork of this process, which has
imported TensorFlow and has run nothing of it: that takes a second or two less.
Of each kind of run both ways are compared before anything else is tried.
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import pathlib
import resource
import runpy
import select
import signal
import subprocess
import sys
import time
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence

import tensorflow as tf

from lab.trials.changes import Changes

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Seconds after which a program does not end any more.
PATIENCE = 300.0
# What programs import when they are needed.
LATE = (
    "adapter_bert.training.strategy",
    "sklearn.metrics",
    "scipy.stats",
    "seqeval.metrics",
)


class Moment(NamedTuple):
    """When something is done to a program; by what comes first.

    Attributes:
        seconds: after its start.
        changes: of its folder.
    """

    seconds: float = PATIENCE
    changes: float = float("inf")


NEVER = Moment()


class End(NamedTuple):
    """How a program has ended.

    Attributes:
        code: its exit code; below 0 the signal that ended it.
        said: what it has written to stderr.
        seconds: that it took.
        changes: that its folder has seen.
        is_late: whether it was killed because it did not end.
    """

    code: int
    said: str
    seconds: float
    changes: int
    is_late: bool

    @property
    def was_killed(self) -> bool:
        """Whether it has come to the moment."""
        return self.code == -signal.SIGKILL and not self.is_late

    @property
    def refusal(self) -> Optional[str]:
        """The line by which a program refuses; None if it does not.

        Nothing else than that line tells of an error.
        """
        lines = self.said.strip().splitlines() or [""]
        is_one = self.code == 1 and lines[-1].startswith("error: ")
        if not is_one or "Traceback (most recent call last)" in self.said:
            return None
        return lines[-1]


def preload(programs: Sequence[str]) -> None:
    """Imports what forks need, so that each of them does not."""
    with_estimator = (
        "adapter_bert.training.estimator" if has_estimator() else None
    )
    names = [f"adapter_bert.commands.{program}" for program in programs]
    for name in filter(None, [*names, *LATE, with_estimator]):
        importlib.import_module(name)
    # It stays, and is not copied when it is searched for garbage.
    gc.freeze()


def has_estimator() -> bool:
    """Whether this TensorFlow has TPUEstimator."""
    return hasattr(tf, "estimator")


def start(
    command: Sequence[str],
    folder: str,
    forked: bool = True,
    moment: Moment = NEVER,
    largest_file: Optional[int] = None,
    happens: Optional[Callable[[], None]] = None,
    tracer: Sequence[str] = (),
) -> End:
    """Runs a program to its end, or until it is killed.

    Args:
        command: a subcommand of adapter-bert, or the path of a program, and
            its arguments.
        folder: that it writes into.
        forked: whether it is a fork of this process.
        moment: when it is killed.
        largest_file: bytes after which a write into any file fails.
        happens: what is done at the moment instead.
        tracer: words before the command line of one that is not forked.
    """
    reading, writing = os.pipe()
    changes = Changes(folder)
    began = time.monotonic()
    if forked:
        started = _Fork(command, writing, largest_file)
    else:
        words = [*tracer, sys.executable, *words_of(command)]
        started = _Process(words, writing, largest_file)
    os.close(writing)
    said: List[bytes] = []
    is_late = False
    try:
        waiting = select.poll()
        waiting.register(reading, select.POLLIN)
        waiting.register(changes.number, select.POLLIN)
        is_open = True
        while is_open:
            left = began + min(moment.seconds, PATIENCE) - time.monotonic()
            if left <= 0 or changes.count >= moment.changes:
                if happens and moment != NEVER:
                    happens()
                    moment = NEVER
                    continue
                is_late = left <= 0 and moment.seconds >= PATIENCE
                started.kill()
                break
            for number, _ in waiting.poll(left * 1000):
                if number == changes.number:
                    changes.read()
                else:
                    part = os.read(reading, 65536)
                    said.append(part)
                    is_open = bool(part)
        code = started.wait()
        seconds = time.monotonic() - began
        changes.read()
    finally:
        started.kill()
        started.wait()
        # What was said before the kill is of no use.
        os.close(reading)
        changes.close()
    text = b"".join(said).decode("utf-8", "replace")
    return End(code, text, seconds, changes.count, is_late)


def words_of(command: Sequence[str]) -> List[str]:
    """A command as words after `python`."""
    is_file = command[0].endswith(".py")
    return [*(() if is_file else ("-m", "adapter_bert")), *command]


def become(command: Sequence[str]) -> None:
    """Runs a command in this process, as `python` does with its words."""
    if command[0].endswith(".py"):
        sys.argv = list(command)
        runpy.run_path(str(ROOT / command[0]), run_name="__main__")
    else:
        sys.argv = ["adapter-bert", *command]
        runpy.run_module("adapter_bert", run_name="__main__")


def _limit(largest_file: Optional[int]) -> None:
    """Has writes beyond a size fail in this process.

    Python ignores the signal that comes with it.
    """
    if largest_file is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))


class _Process:
    """A program as a user starts it."""

    def __init__(
        self, command: Sequence[str], stderr: int, largest_file: Optional[int]
    ):
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            preexec_fn=lambda: _limit(largest_file),
        )
        self.kill = self._process.kill
        self.wait = self._process.wait


class _Fork:
    """A program in a fork of this process."""

    def __init__(
        self, command: Sequence[str], stderr: int, largest_file: Optional[int]
    ):
        self._process = multiprocessing.get_context("fork").Process(
            target=_become, args=(command, stderr, largest_file)
        )
        self._process.start()

    def kill(self) -> None:
        """With SIGKILL, if it still runs."""
        self._process.kill()

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        self._process.join()
        return self._process.exitcode


def _become(
    command: Sequence[str], stderr: int, largest_file: Optional[int]
) -> None:
    """Runs a program as a process of its own does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(stderr, 2)
    os.close(stderr)
    # pytest and others put something else in their place.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.chdir(ROOT)
    _limit(largest_file)
    become(command)


@contextlib.contextmanager
def forks(count: int, target, *arguments) -> Iterator[List]:
    """Runs a function in some forks, which end when the block is left."""
    context = multiprocessing.get_context("fork")
    made = [
        context.Process(target=target, args=arguments) for _ in range(count)
    ]
    for process in made:
        process.start()
    try:
        yield made
    finally:
        for process in made:
            process.terminate()
            process.join()
