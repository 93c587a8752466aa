"""Answers texts by a `Predictor`, in a process of its own.

    .venv/bin/python -m lab.speed.predictor_worker '{"model": ...}'

The protocol is that of `worker.py`: a line on stdin asks for one measurement,
and a line of JSON on stdout has its `examples` and `seconds`. The options are
`model`, `adapters` (folders by name), `rows` (a file of JSON, pairs of a task
and a text) and `batch`, the number of rows that are asked at once.
"""

import json
import pathlib
import sys
import time

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert.answering.predictor import Predictor
from lab.speed import worker


def main() -> None:
    """Answers all rows for each request."""
    options = json.loads(sys.argv[1])
    predictor = Predictor.load(options["model"], options["adapters"])
    rows = [*map(tuple, json.loads(pathlib.Path(options["rows"]).read_text()))]
    batch = options["batch"]
    while True:
        worker.request()
        began = time.perf_counter()
        for first in range(0, len(rows), batch):
            predictor.ask(rows[first : first + batch])
        seconds = time.perf_counter() - began
        worker.answer(examples=len(rows), seconds=seconds, tokens=0, flops=0)


if __name__ == "__main__":
    main()
