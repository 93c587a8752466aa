"""Runs tests in forks of a process that has imported TensorFlow alone.

    .venv/bin/python -m lab.trials.mutant_tests

It runs in a copy of the project, whose files it may change. Each line of stdin
is a request, each line of stdout its answer, both JSON: `tests` are run with
another `source` in the file of `path`.
"""

import importlib
import json
import multiprocessing
import os
import pathlib
import select
import signal
import sys
import time
from typing import Any, Dict, List, NamedTuple, Sequence

import adapter_bert.start_tensorflow  # noqa: F401

import pytest
import tensorflow as tf  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What may be imported before a fork, beside TensorFlow: nothing of the project.
FOREIGN = ("hypothesis", "safetensors.numpy", "scipy.stats", "sklearn.metrics")
# What tests come to. TIMED_OUT: one takes longer than it may.
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
# Why tests were stopped.
LATE, OUT_OF_TIME = "late", "out of time"


class End(NamedTuple):
    """How tests have ended.

    Attributes:
        code: pytest's, below 0 the signal that ended it.
        said: what the fork has told, one of `began` and `failed` each time.
        stopped: LATE if a test took too long, OUT_OF_TIME if all did, or "".
    """

    code: int
    said: List[Dict[str, str]]
    stopped: str


class _Tells:
    """Has pytest tell which test begins, and which fails."""

    def __init__(self, pipe: int):
        self._pipe = pipe

    def _say(self, **values: str) -> None:
        os.write(self._pipe, (json.dumps(values) + "\n").encode())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._say(began=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._say(failed=report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._say(failed=report.nodeid)


def _become(pipe: int, tests: Sequence[str]) -> None:
    """Runs tests as `python -m pytest` does, until one fails."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    sys.argv = ["pytest"]
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", closefd=False)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # As `.ci/run`, all but the slow ones.
    options += ["-m", "not slow"]
    code = pytest.main([*options, *tests], plugins=[_Tells(pipe)])
    os._exit(int(code))


def run(tests: Sequence[str], patience: float, limit: float) -> End:
    """Runs tests in a fork.

    Args:
        tests: as pytest names them.
        patience: seconds after which a test is given up, and all.
        limit: seconds after which no more tests are run.
    """
    until = time.monotonic() + limit
    reading, writing = os.pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_become, args=(writing, tests)
    )
    process.start()
    os.close(writing)
    text, stopped = b"", ""
    while True:
        left = until - time.monotonic()
        wait = max(min(patience, left), 0.0)
        if not select.select([reading], [], [], wait)[0]:
            stopped = LATE if wait == patience else OUT_OF_TIME
            # What the tests have started ends as well.
            os.killpg(process.pid, signal.SIGKILL)
            break
        part = os.read(reading, 65536)
        if not part:
            break
        text += part
    process.join()
    os.close(reading)
    said = [json.loads(line) for line in text.decode().splitlines()]
    return End(process.exitcode, said, stopped)


def judge(
    tests: Sequence[str], patience: float, limit: float
) -> Dict[str, str]:
    """What tests make of the sources as they are.

    Args:
        tests: as of `run`.
        patience: as of `run`.
        limit: as of `run`.

    Returns:
        `outcome`, and `by`: the test that failed or took too long, or
        OUT_OF_TIME where none has failed in time.
    """
    end = run(tests, patience, limit)
    failed = [line["failed"] for line in end.said if "failed" in line]
    if failed:
        return {"outcome": KILLED, "by": failed[0]}
    if end.stopped == LATE:
        began = [line["began"] for line in end.said if "began" in line]
        return {"outcome": TIMED_OUT, "by": (began or [""])[-1]}
    if end.stopped or end.code == pytest.ExitCode.OK:
        return {"outcome": SURVIVED, "by": end.stopped}
    if end.code == pytest.ExitCode.NO_TESTS_COLLECTED:
        return {"outcome": SURVIVED, "by": ""}
    if end.code == pytest.ExitCode.USAGE_ERROR and not all(
        (ROOT / test.partition("::")[0]).exists() for test in tests
    ):
        raise RuntimeError(f"pytest cannot run {' '.join(tests)}")
    # The tests themselves cannot be read, or `conftest.py`.
    return {"outcome": KILLED, "by": f"pytest ended with {end.code}"}


def answer(request: Dict[str, Any]) -> Dict[str, Any]:
    """Does what a request asks, and leaves the file as it was.

    Returns:
        As `judge`, and the `seconds` that it took.
    """
    began = time.monotonic()
    path = ROOT / request["path"]
    before = path.read_text()
    path.write_text(request["source"])
    try:
        found: Dict[str, Any] = judge(
            request["tests"], request["patience"], request["limit"]
        )
    finally:
        path.write_text(before)
    found["seconds"] = round(time.monotonic() - began, 1)
    return found


def main() -> None:
    """Answers all requests."""
    for name in FOREIGN:
        importlib.import_module(name)
    # A source that has changed twice within a second would be mistaken.
    sys.dont_write_bytecode = True
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
