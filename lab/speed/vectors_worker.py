"""Trains vectors in a process of its own, by `run_vectors.py` itself.

    .venv/bin/python -m lab.speed.vectors_worker '{"task_name": "STS-B", ...}'

The one argument is a JSON object of flags. Requests and answers are as in
`worker.py`. The request after the last step is answered when the dev set has
been scored, with `scores`.
"""

import json
import sys
import tempfile
import unittest.mock
from typing import Any

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert import flags
from adapter_bert.commands import run_vectors
from adapter_bert.optimization import Schedule
from adapter_bert.reports import collect_runs
from adapter_bert.training import loop
from lab.speed.worker import Meter, answer


def make_meter(
    schedule: Schedule, first_step: int, batch_size: int, log_dir: Any
) -> Meter:
    """Takes what a `TrainingProgress` takes."""
    del schedule, first_step, log_dir
    return Meter(batch_size)


def main() -> None:
    """Trains and evaluates as the flags say."""
    given = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        given["output_dir"] = f"{folder}/out"
        with (
            unittest.mock.patch.object(loop, "TrainingProgress", make_meter),
            flags.of_keywords(run_vectors.SETTINGS, given, "the benchmark"),
        ):
            answer(scores=collect_runs.evaluated(run_vectors.run()))


if __name__ == "__main__":
    main()
