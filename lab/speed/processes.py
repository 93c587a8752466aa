"""Worker processes of the benchmarks, which measure when they are asked."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Mapping, Protocol, Sequence

import numpy as np

from adapter_bert.data.input_pipeline import Features
from adapter_bert.errors import UserError

OURS = (sys.executable, "-m", "lab.speed.worker")


class Measurable(Protocol):
    """What takes turns with others."""

    def measure(self) -> Dict[str, float]:
        """One measurement."""

    def stop(self) -> None:
        """Ends it, after its last measurement."""


class Worker:
    """One process that holds a model; see `worker.py` for its protocol."""

    def __init__(
        self, command: Sequence[str], options: Dict[str, Any], steps: int = 0
    ):
        """Starts it; it gets ready meanwhile.

        Args:
            command: the program; `options` become its one argument.
            options: the model, the rows and what to do with them.
            steps: of a training in each measurement.
        """
        self._request = json.dumps({"steps": steps}) + "\n"
        # A worker that ends on request leaves its checkpoints behind.
        self._scratch = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TMPDIR": self._scratch.name},
        )

    def measure(self) -> Dict[str, float]:
        """One measurement.

        Raises:
            UserError: the process has died.
        """
        try:
            self._process.stdin.write(self._request)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # The empty answer says it.
        line = self._process.stdout.readline()
        if not line:
            raise UserError(
                f"the benchmark's process {self._process.args} has died with "
                f"exit code {self._process.wait()}; run it alone to see why"
            )
        return json.loads(line)

    def stop(self) -> None:
        """Ends the process, and removes its temporary files."""
        # A dead process did not read its last request, which is still to be
        # written; `measure` has said so.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._scratch.cleanup()


def measure_in_turn(
    workers: Mapping[str, Measurable], rounds: int
) -> Dict[str, List[Dict[str, float]]]:
    """Measures all workers in turn, A B C A B C, and stops them.

    A first round is thrown away: it builds graphs and fills caches.
    """
    measured: Dict[str, List[Dict[str, float]]] = {name: [] for name in workers}
    try:
        for number in range(rounds + 1):
            for name, worker in workers.items():
                values = worker.measure()
                if number:
                    measured[name].append(values)
    finally:
        for worker in workers.values():
            worker.stop()
    return measured


def write_rows(path: str, features: Features) -> None:
    """Writes tokenized rows with labels 0 and 1 for both sides to read."""
    np.savez(
        path,
        tokens=features.tokens,
        segments=features.segments,
        starts=features.starts,
        # Which label is right makes no difference to speed.
        labels=(np.arange(len(features)) % 2).astype(np.int32),
    )
