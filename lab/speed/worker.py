"""Trains or predicts in a process of its own, as far as it is told to.

    .venv/bin/python -m lab.speed.worker '{"kind": "train", ...}'

The one argument is a JSON object (see `compare.py`). Each line on stdin asks
for one measurement, and a line of JSON on stdout answers: `examples` and
`seconds`, `tokens` (padding included), `flops` counted for them, and
`peak_bytes`, the most memory that this process has held. With the kind
`tasks` it holds many tasks on one BERT (see `serving.py`), and answers rows a
second: of one task, of a random mix, and of the mix one task after another.
"""

import dataclasses
import functools
import gc
import json
import os
import sys
import tempfile
import time
import unittest.mock
from typing import Any, Callable, Dict, List

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf

from adapter_bert import optimization
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import sources
from adapter_bert.checkpoints.weights import choose_initial_values
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.tables import Layout
from adapter_bert.methods.registry import parse
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.loaded_task import LoadedTask, load_task
from adapter_bert.serving.mixed_bert import MixedBert
from adapter_bert.tasks import task_model
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.training import prediction
from adapter_bert.training.engines import Hardware, Job, choose_engine
from adapter_bert.training.frozen_layers import KnownOutputs, lowest_layer
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


def make_job(options: Dict[str, Any], folder: str) -> Job:
    """The model that the options describe, with its initial values."""
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
    lowest = lowest_layer(table, config.num_hidden_layers)
    return Job(
        lambda create: task_model.TaskModel(
            config, method, TASK.build_head, create, lowest
        ),
        table,
        values,
        folder,
        seed=1,
        length=None,
        compute_dtype=options["dtype"],
        narrow=task_model.narrow_variables(config, method, table),
    )


class Meter:
    """Stands in for a progress: counts, and waits for the next request."""

    def __init__(
        self, options: Dict[str, Any], job: Job, length_of: Callable[[int], int]
    ):
        """Takes what gives the padded length of a step's batch."""
        self._batch_size = options["batch_size"]
        self._length_of = length_of
        config = encoder.BertConfig(**options["config"])
        self._flops = functools.partial(
            flops.training, config, job.table, self._batch_size
        )
        self._first = None
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
            self._answer(range(self._first, step))
            self._wait()

    def _answer(self, steps: range) -> None:
        seconds = time.perf_counter() - self._began
        tokens = [self._length_of(step) for step in steps]
        answer(
            examples=len(steps) * self._batch_size,
            seconds=seconds,
            tokens=sum(tokens) * self._batch_size,
            flops=sum(map(self._flops, tokens)),
        )

    def _wait(self) -> None:
        self._steps = request()["steps"]
        self._first = None


def request() -> Dict[str, Any]:
    """The next request; ends the process when there are no more."""
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


def train(engine: Any, job: Job, options: Dict[str, Any]) -> None:
    """Trains for as long as there are requests."""
    rows, size = read_rows(options["rows"]), options["batch_size"]
    plan = input_pipeline.TrainPlan(rows.lengths, size, MANY_STEPS, 1)
    lengths = rows.lengths

    def length_of(step: int) -> int:
        return int(lengths[plan.rows(step)].max())

    if options.get("cached"):
        rows = _with_outputs(rows, job, options)
    engine.train(
        job,
        rows,
        plan,
        optimization.Schedule(1e-4, MANY_STEPS, MANY_STEPS // 10),
        0,
        size,
        MANY_STEPS,
        Meter(options, job, length_of),
    )


def _with_outputs(
    rows: Features, job: Job, options: Dict[str, Any]
) -> Features:
    """The rows with outputs of frozen layers, all zero, in a file."""
    config = encoder.BertConfig(**options["config"])
    first_token = (
        lowest_layer(job.table, config.num_hidden_layers)
        == config.num_hidden_layers
    )
    count = len(rows) if first_token else len(rows.tokens)
    is_half = options["dtype"] == "bfloat16"
    dtype = np.uint16 if is_half else np.float32
    path = os.path.join(job.output_dir, "outputs.npy")
    np.save(path, np.zeros((count, config.hidden_size), dtype))
    return KnownOutputs.of(rows, np.load(path, mmap_mode="r"), first_token)


class BatchClock:
    """Stands in for the progress of a prediction: when batches were done."""

    def __init__(self, *args: Any):
        del args
        self.times: List[float] = []
        self.counts: List[int] = []

    def update(self, count: int) -> None:
        """A batch is done."""
        self.times.append(time.perf_counter())
        self.counts.append(count)

    def close(self) -> None:
        """Nothing is shown."""


def predict(engine: Any, job: Job, options: Dict[str, Any]) -> None:
    """Predicts all rows at each request; the first batch is not measured."""
    rows, size = read_rows(options["rows"]), options["batch_size"]
    config = encoder.BertConfig(**options["config"])
    batches = input_pipeline.sorted_batches(rows, size)[1:]
    lengths = [int(rows.lengths[batch].max()) for batch in batches]
    predictor = engine.predictor(job)
    while request():
        clock = BatchClock()
        with unittest.mock.patch.object(
            prediction, "Progress", lambda *args, clock=clock: clock
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


class Tasks:
    """Many tasks on one BERT in memory, and rows for them."""

    def __init__(self, options: Dict[str, Any]):
        """Loads the tasks.

        Args:
            options: `model` and `folders`; `batches` of `batch_size` rows of
                `tokens` are measured.
        """
        self._options = options
        self._rng = np.random.default_rng(0)
        self._bert = FrozenBert.open(options["model"])
        self._tasks: List[LoadedTask] = [
            load_task(self._bert, folder, None) for folder in options["folders"]
        ]
        self._tables = MixedBert(self._bert)
        self._are_mixed = all(task.can_mix for task in self._tasks)
        if self._are_mixed:
            self._tables.reserve(task.kind for task in self._tasks)
            self._places = [
                task.values.place(task.kind, self._tables)
                for task in self._tasks
            ]
            # Once, so that all of its memory is there.
            self._mixed(self._rows(), self._choose())
        gc.collect()
        self.memory = resident_memory()
        # For the ways of single tasks, which do not read tables.
        self._values = [
            {name: tf.identity(v) for name, v in task.values.get().items()}
            for task in self._tasks
        ]

    def _rows(self) -> np.ndarray:
        names = ("batches", "batch_size", "tokens")
        shape = [self._options[name] for name in names]
        words = self._bert.config.vocab_size
        return self._rng.integers(0, words, shape).astype(np.int32)

    def _choose(self) -> np.ndarray:
        """Tasks of all rows; different ones within a batch, if there are."""
        count, size = len(self._tasks), self._options["batch_size"]
        return np.stack(
            [
                self._rng.choice(count, size, replace=size > count)
                for _ in range(self._options["batches"])
            ]
        )

    def measure(self) -> Dict[str, float]:
        """Rows a second in each of the ways that are possible."""
        rows, chosen = self._rows(), self._choose()
        ones = self._rng.integers(0, len(self._tasks), len(rows))
        found = {"one": _seconds(self._one, rows, ones)}
        if self._are_mixed:
            found["mixed"] = _seconds(self._mixed, rows, chosen)
        found["one after another"] = _seconds(self._in_turn, rows, chosen)
        return {way: chosen.size / s for way, s in found.items()}

    def _one(self, rows: np.ndarray, ones: np.ndarray) -> None:
        """Computes batches of one task each."""
        for ids, number in zip(rows, ones):
            self._alone(ids, number)

    def _mixed(self, rows: np.ndarray, chosen: np.ndarray) -> None:
        """Computes batches of all tasks."""
        for ids, tasks in zip(rows, chosen):
            numbers = [self._places[n].task.number for n in tasks]
            batch = _features(ids)
            batch["task"] = np.array(numbers, np.int32)[:, np.newaxis]
            batch["question"] = np.arange(len(ids), dtype=np.int32)[:, None]
            self._tables.compute(batch)

    def _in_turn(self, rows: np.ndarray, chosen: np.ndarray) -> None:
        """Computes all rows of the first task, then all of the second one."""
        flat = rows.reshape(-1, rows.shape[-1])
        for number in np.unique(chosen):
            own = flat[chosen.ravel() == number]
            for first in range(0, len(own), rows.shape[1]):
                self._alone(own[first : first + rows.shape[1]], number)

    def _alone(self, ids: np.ndarray, number: int) -> None:
        batch = _features(ids)
        batch["row"] = np.arange(len(ids), dtype=np.int32)
        self._tasks[number].kind.compute(self._values[number], batch)


def _features(ids: np.ndarray) -> Dict[str, np.ndarray]:
    return {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": np.zeros_like(ids),
    }


def answer_tasks(options: Dict[str, Any]) -> None:
    """Measures tasks for as long as there are requests."""
    tasks = Tasks(options)
    while request():
        found = {**tasks.measure(), "memory_bytes": tasks.memory}
        print(json.dumps(found), flush=True)


def resident_memory() -> int:
    """Bytes that this process occupies now; Linux only."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def matrix_products(options: Dict[str, Any]) -> None:
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


def _seconds(compute: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    compute(*arguments)
    return time.perf_counter() - began


def main() -> None:
    """Serves requests of one kind."""
    options = json.loads(sys.argv[1])
    alone = {"products": matrix_products, "tasks": answer_tasks}
    if options["kind"] in alone:
        alone[options["kind"]](options)
        return
    with tempfile.TemporaryDirectory() as folder:
        engine = choose_engine("auto")[0](Hardware())
        engine.check_devices()
        job = dataclasses.replace(make_job(options, folder), lanes=engine.lanes)
        {"train": train, "predict": predict}[options["kind"]](
            engine, job, options
        )


if __name__ == "__main__":
    main()
