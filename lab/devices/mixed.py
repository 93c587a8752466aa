"""A mixed batch: rows of eight tasks, each with an adapter of its own.

XLA takes the rows' tasks as constants, so a batch of other tasks is another
program: they decide how many rows each method has.
"""

import dataclasses
import pathlib
from typing import Any, Dict, Tuple

import numpy as np
import tensorflow as tf

from adapter_bert.accelerators.step import Arrays, Step, Tensors
from adapter_bert.bert.hooks import Context
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.mixed_model import MixedModel
from adapter_bert.serving.task_tables import MixedBert
from adapter_bert.serving.trained_task import LoadedTask, load_task
from adapter_bert.training import devices
from adapter_bert.training.engines import Hardware
from lab import random_adapters
from lab.devices import runs
from lab.trials import tiny_files

# Of two kinds, in turn.
METHODS = ("pfeiffer(size=4)", "lora(rank=2)")
COUNT = 8


def load_tasks(data: pathlib.Path, bert: FrozenBert) -> Dict[str, LoadedTask]:
    """Tasks with adapters of random values, written into `data`."""
    found = {}
    for number in range(COUNT):
        name = f"task-{number}"
        if not (data / name).exists():
            method = METHODS[number % len(METHODS)]
            random_adapters.make_artifact(
                data / name, data / tiny_files.BERT, method, seed=number
            )
        found[name] = load_task(bert, str(data / name), None)
    return found


def open_bert(data: pathlib.Path, dtype: str) -> FrozenBert:
    """The tiny BERT of `data`, for products in a dtype."""
    return FrozenBert.open(str(data / tiny_files.BERT), compute_dtype=dtype)


@dataclasses.dataclass(frozen=True)
class MixedStep(Step):
    """A step of prediction of a mixed model; `job` is None.

    Attributes:
        model: with variables.
        places: of the tasks, which are numbered as the rows.
        dtype: of products.
    """

    model: MixedModel
    places: np.ndarray
    dtype: str

    def values(self) -> Tuple[Arrays, Arrays, Arrays]:
        """All values of the model by name, and nothing that is trained."""
        values = {f"bert:{n}": v.numpy() for n, v in self.model.bert.items()}
        for name, table in self.model.tables.items():
            values[f"table:{name}"] = table.numpy()
        return values, {}, {}

    shapes = values

    def predict(self, frozen: Tensors, batch: Tensors) -> Tensors:
        """The outputs of each form of heads, and the numbers of its rows."""
        parts: Dict[str, Any] = {"bert": {}, "table": {}}
        for name, value in frozen.items():
            part, _, own = name.partition(":")
            parts[part][own] = value
        model = dataclasses.replace(
            self.model,
            bert=parts["bert"],
            tables=parts["table"],
            places=tf.constant(self.places),
        )
        context = Context(batch["input_mask"], dtype=tf.as_dtype(self.dtype))
        numbers = np.arange(self.rows, dtype=np.int32)[:, np.newaxis]
        tasks = dict.fromkeys(("task", "question"), tf.constant(numbers))
        # All heads have one form, so each row has an output.
        return {
            name: tf.reshape(value, [self.rows, *value.shape[1:]])
            for name, value in model({**batch, **tasks}, context).items()
        }


def take(data: pathlib.Path, dtype: str, is_tpu: bool) -> MixedStep:
    """The step of a batch with a row of each task."""
    bert = open_bert(data, dtype)
    devices.choose_graph_optimizer(Hardware(use_tpu=is_tpu), dtype)
    tasks = load_tasks(data, bert)
    tables = MixedBert(bert)
    # A task's values are in the tables as long as its place is held.
    places = [tables.put(t.kind, t.values.get()) for t in tasks.values()]
    model = tables.model()
    length = runs.SIZES[runs.TINY][1]
    ids = np.random.default_rng(0).integers(5, 20, (len(places), length))
    batch = {
        "input_ids": ids.astype(np.int32),
        "input_mask": np.ones(ids.shape, np.int32),
        "segment_ids": np.zeros(ids.shape, np.int32),
    }
    return MixedStep(None, batch, 1, None, model, model.places.numpy(), dtype)
