"""Trains or predicts in a process of its own, one measurement a request.

    .venv/bin/python -m lab.speed.worker '{"kind": "train", ...}'

The one argument is a JSON object (see `compare.py`). Each line on stdin asks
for one measurement, and a line of JSON on stdout answers: `examples` and
`seconds`, `tokens` (padding included), `flops` counted for them, and
`peak_bytes`, the most memory that this process has held.
"""

import dataclasses
import functools
import json
import os
import sys
import tempfile
import time
import unittest.mock
from typing import Any, Callable

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf

from adapter_bert import optimization
from adapter_bert.bert import encoder, onednn
from adapter_bert.checkpoints import sources
from adapter_bert.checkpoints.weights import choose_initial_values
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.tables import Layout
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.training import devices, prediction
from adapter_bert.training.engines import Course, choose_engine
from adapter_bert.training.settings import Hardware
from adapter_bert.training.training_step import Job
from lab.speed import flops

TASK = TextClassification("benchmark", Layout(0), Layout(0), labels=("0", "1"))
# A training is planned longer than anyone will measure it.
MANY_STEPS = 10**6


def read_rows(path: str) -> Features:
    """Reads rows that `measuring.write_rows` wrote."""
    with np.load(path) as saved:
        labels = {"label_ids": saved["labels"]}
        return Features(
            saved["tokens"], saved["segments"], saved["starts"], labels
        )


def make_job(options: dict[str, Any], folder: str) -> Job:
    """Returns the model that the options describe, with its initial values."""
    config = encoder.BertConfig(**options["config"])
    method = parse(options["method"])
    table = task_model.list_parameters(config, method, TASK.build_head)
    if options["model"]:
        opened = sources.open_init_checkpoint(options["model"])
        values = choose_initial_values(
            table.parameters, opened.weights, None, seed=1, fresh_head=True
        )
    else:
        values = {
            p.name: functools.partial(
                encoder.initial_values, p.name, p.shape, p.initializer, 1
            )
            for p in table.parameters
        }
    return Job(
        lambda create: task_model.TaskModel(
            config, method, TASK.build_head, create
        ),
        table,
        values,
        folder,
        seed=1,
        length=None,
        use_onednn=onednn.is_available(options["dtype"]),
        compute_dtype=options["dtype"],
        narrow=task_model.narrow_variables(table),
    )


class Meter:
    """Stands in for a progress: counts, and waits for the next request."""

    def __init__(
        self, options: dict[str, Any], job: Job, length_of: Callable[[int], int]
    ):
        """Takes what gives the padded length of a step's batch."""
        config = encoder.BertConfig(**options["config"])
        self._length_of = length_of
        self._batch_size = options["batch_size"]
        self._flops = functools.partial(
            flops.training, config, job.table, self._batch_size
        )
        self._began = 0.0
        self._wait()

    def update(
        self, step: int, loss: float = 0.0, is_timed: bool = True
    ) -> None:
        """A training has done a step; when is known if it is timed."""
        del loss
        if not is_timed:
            return
        # The first step after a pause had its batch made in the pause.
        if self._first is None:
            self._first, self._began = step, time.perf_counter()
        elif step - self._first >= self._steps:
            seconds = time.perf_counter() - self._began
            answer(
                examples=(step - self._first) * self._batch_size,
                seconds=seconds,
                **self.work(range(self._first, step)),
            )
            self._wait()

    def work(self, steps: range) -> dict[str, float]:
        """`tokens` of steps from 0, padding included, and `flops`."""
        tokens = [self._length_of(step) for step in steps]
        return {
            "tokens": sum(tokens) * self._batch_size,
            "flops": sum(map(self._flops, tokens)),
        }

    def close(self) -> None:
        """Nothing is shown."""

    def _wait(self) -> None:
        self._steps = request()["steps"]
        self._first = None


def request() -> dict[str, Any]:
    """Returns the next request; ends the process when there are no more."""
    line = sys.stdin.readline()
    if not line:
        sys.stdout.flush()
        os._exit(0)
    return json.loads(line)


def answer(**values: Any) -> None:
    """Prints one measurement."""
    with open("/proc/self/status") as file:
        peak = next(line for line in file if line.startswith("VmHWM"))
    values["peak_bytes"] = int(peak.split()[1]) * 1024
    print(json.dumps(values), flush=True)


def train(engine: Any, job: Job, options: dict[str, Any]) -> None:
    """Trains for as long as there are requests."""
    rows, size = read_rows(options["rows"]), options["batch_size"]
    plan = input_pipeline.TrainPlan(rows.lengths, size, MANY_STEPS, 1)
    lengths = rows.lengths

    def length_of(step: int) -> int:
        return int(lengths[plan.rows(step)].max())

    schedule = optimization.Schedule(1e-4, MANY_STEPS, MANY_STEPS // 10)
    course = Course(rows, plan, schedule, 0, size, MANY_STEPS)
    engine.train(job, course, Meter(options, job, length_of))


class BatchClock:
    """Stands in for the progress of a prediction: when batches were done."""

    def __init__(self):
        self.times: list[float] = []
        self.counts: list[int] = []

    def update(self, count: int) -> None:
        """A batch is done."""
        self.times.append(time.perf_counter())
        self.counts.append(count)

    def close(self) -> None:
        """Nothing is shown."""


def predict(engine: Any, job: Job, options: dict[str, Any]) -> None:
    """Predicts all rows at each request; the first batch is not measured."""
    rows, size = read_rows(options["rows"]), options["batch_size"]
    config = encoder.BertConfig(**options["config"])
    batches = input_pipeline.sorted_batches(rows, size)[1:]
    lengths = [int(rows.lengths[batch].max()) for batch in batches]
    predictor = engine.predictor(job)
    while request():
        clock = BatchClock()
        with unittest.mock.patch.object(
            prediction, "Progress", lambda *_, clock=clock: clock
        ):
            predictor.predict(rows, size, "benchmark")
        answer(
            examples=sum(clock.counts[1:]),
            seconds=clock.times[-1] - clock.times[0],
            tokens=sum(n * len(b) for n, b in zip(lengths, batches)),
            flops=sum(
                flops.forward(config, job.table, len(b), n)
                for n, b in zip(lengths, batches)
            ),
        )


def matrix_products(options: dict[str, Any]) -> None:
    """Multiplies square matrices, the machine's best case, at each request."""
    size, count = 2048, 8
    dtype = tf.as_dtype(options["dtype"])
    left, right = (
        tf.cast(tf.random.normal([size, size]), dtype) for _ in range(2)
    )

    @tf.function
    def multiply() -> tf.Tensor:
        product = right
        for _ in range(count):
            product = tf.matmul(left, product)
        return product

    multiply()
    while request():
        best = min(_seconds(lambda: multiply().numpy()) for _ in range(5))
        answer(examples=0, seconds=best, tokens=0, flops=2 * size**3 * count)


def _seconds(compute: Callable[[], Any]) -> float:
    began = time.perf_counter()
    compute()
    return time.perf_counter() - began


def main() -> None:
    """Serves requests of one kind."""
    options = json.loads(sys.argv[1])
    if options["kind"] == "products":
        matrix_products(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        engine = choose_engine("auto")[0](Hardware())
        engine.check_devices()
        job = dataclasses.replace(
            make_job(options, folder),
            lanes=engine.lanes,
            parts=devices.divide(options["batch_size"], engine.lanes),
        )
        {"train": train, "predict": predict}[options["kind"]](
            engine, job, options
        )


if __name__ == "__main__":
    main()
