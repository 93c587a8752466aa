"""Several tasks at once: BERT is trained for all, an addition for each."""

import dataclasses
from typing import Callable, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Hooks, NoHooks, layer_of
from adapter_bert.errors import UserError
from adapter_bert.methods.base import (
    Declared,
    Part,
    Tensors,
    TuningMethod,
    added_later,
    below,
)
from adapter_bert.methods.composition import Composition, Stack
from adapter_bert.methods.fine_tuning import FineTuning, Full

# Before the names of variables with values for each task.
SCOPE = "per_task/"


def _of_the_task(place: str) -> Callable:

    def act(self, *arguments):
        hooks: Hooks = NoHooks()
        if place in self.example.places:
            # A layer comes first, or the name of a kernel, or neither.
            layer = arguments[0]
            if isinstance(layer, str):
                layer = layer_of(layer)
            elif not isinstance(layer, int):
                layer = None
            hooks = self.of_task(arguments[-1], layer)
        return getattr(hooks, place)(*arguments)

    return act


class PerTaskHooks(Hooks):
    """Hooks of a method, of the values of the batch's own task."""

    def __init__(
        self,
        method: TuningMethod,
        config: encoder.BertConfig,
        values: Tensors,
        count: int,
    ):
        super().__init__(method, config, values)
        self.count = count
        self.example = method.hooks(config, values)
        self.by_token = self.example.by_token
        self.by_values = self.example.by_values

    def of_task(self, context: Context, layer: Optional[int]) -> Hooks:
        """Gives the hooks of the batch's task, for one layer or for none."""
        task = context.task
        if task is None:
            if self.count > 1:
                raise ValueError("a batch does not say which task it is of")
            task = 0
        values = {
            name: tf.gather(value, task)
            for name, value in self.values.items()
            if layer_of(name) in (layer, None)
        }
        return self.method.hooks(self.config, values)

    def layer_kind(self, layer, training):
        return self.example.layer_kind(layer, training)

    begin = _of_the_task("begin")
    words = _of_the_task("words")
    embeddings = _of_the_task("embeddings")
    lengthen = _of_the_task("lengthen")
    project = _of_the_task("project")
    key_value = _of_the_task("key_value")
    before_norm = _of_the_task("before_norm")
    after_norm = _of_the_task("after_norm")


@dataclasses.dataclass(frozen=True)
class PerTask(Composition):
    """Tasks that are trained together: BERT for all, an addition for each.

    A batch is of one task, and goes through the addition of that one. BERT-base
    with `pals`: 109,482,240 and 1,819,836 for each task, 13% more for eight.

    Attributes:
        parts: the method of each task, one that adds to BERT.
        tasks: their names, with commas between them, which the run fills in.

    Source: Stickland and Murray 2019, section 3, for PALs; Pfeiffer et al.
    2021, section 2.2.2, for adapters (MT-A).
    """

    name = "per_task"
    # Stickland and Murray 2019, section 4.
    learning_rate = 2e-5
    tasks: str = added_later("")

    def __post_init__(self):
        super().__post_init__()
        method = self.parts[0].method
        if (
            len(self.parts) != 1
            or self.parts[0].name
            or isinstance(method, FineTuning)
            or method.first_phase
        ):
            raise UserError(
                "per_task takes one method that adds to BERT, and trains it "
                "for each task, as per_task(pals)"
            )

    @property
    def method(self) -> TuningMethod:
        return self.parts[0].method

    def check(self, config):
        if not self.tasks:
            raise UserError(
                "per_task is for several tasks that are trained together; pass "
                "their names, as --task_name=mrpc,rte"
            )
        self.method.check(config)
        places = self.method.hooks(config, {}).places
        for place in ("parameter", "penalty", "prepare"):
            if place in places:
                raise UserError(
                    f"per_task: {self.method} overrides the hook `{place}`, "
                    "which no task can have for itself; expected a method "
                    "without it"
                )

    def for_tasks(self, names):
        return dataclasses.replace(self, tasks=",".join(names))

    def trains(self, config):
        return "bert/.*"

    def variables(self, config, pooler=True):
        count = len(self.tasks.split(","))

        def of_all(added: Declared) -> Declared:
            def initialize(rng, shape):
                return np.stack([added.initializer(rng, shape[1:])] * count)

            def compute(read):
                return np.stack([added.initializer.compute(read)] * count)

            initializer = initialize
            if isinstance(added.initializer, encoder.OfPretrained):
                initializer = encoder.OfPretrained(compute)
            shape = count, *added.shape
            return dataclasses.replace(
                added, shape=shape, initializer=initializer
            )

        added = self.method.variables(config, pooler)
        return {f"{SCOPE}{name}": of_all(one) for name, one in added.items()}

    def hooks(self, config, values):
        count = len(self.tasks.split(","))
        return PerTaskHooks(self.method, config, below(SCOPE, values), count)

    def finish(self, config, values):
        return self, values

    def of_task(self, config, task, values):
        number = self.tasks.split(",").index(task)
        task_values = {k: v[number] for k, v in below(SCOPE, values).items()}
        shared = {k: v for k, v in values.items() if not k.startswith(SCOPE)}
        method, task_values = self.method.finish(config, task_values)
        parts = (Part("", Full()), Part("", method))
        return Stack(parts), {**shared, **task_values}
