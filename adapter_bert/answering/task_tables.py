"""Tables of all tasks' values, which grow, and the BERT that reads them.

A batch holds rows of many tasks. A new task builds no new graph, unless it is
the first with its method or its head.
"""

import collections
import dataclasses
import threading
import weakref
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from adapter_bert.answering import mixed_model
from adapter_bert.answering.frozen_bert import (
    Batch,
    FrozenBert,
    TaskKind,
    Values,
)
from adapter_bert.answering.mixed_hooks import scope_of
from adapter_bert.answering.mixed_model import MixedModel
from adapter_bert.bert import encoder
from adapter_bert.methods.base import changed_by
from adapter_bert.tasks.task_model import ParameterTable

# A full table grows by this share of its rows, or by so many.
GROWTH, LEAST_GROWTH = 1 / 16, 4


class Slot:
    """A row of tables, which is free again when its slot has no reference.

    Calls hold the slots of their rows, so no row is written while it is read.
    """

    def __init__(self, number: int):
        self.number = number


class Slots:
    """Rows of tables that are filled together."""

    def __init__(self, first: int = 0):
        self._next = first
        self._free: list[int] = []

    @property
    def count(self) -> int:
        """One more than the greatest number in use so far."""
        return self._next

    def take(self) -> Slot:
        if self._free:
            number = self._free.pop()
        else:
            number, self._next = self._next, self._next + 1
        slot = Slot(number)
        weakref.finalize(slot, self._free.append, number).atexit = False
        return slot


class GrowingTable:
    """A variable [rows, ...] that grows."""

    def __init__(self, shape: encoder.Shape, dtype: tf.DType = tf.float32):
        self.shape = tuple(shape)
        self._rows = 0
        self.variable = tf.Variable(
            tf.zeros([0, *self.shape], dtype),
            trainable=False,
            shape=[None, *self.shape],
        )

    def reserve(self, rows: int) -> None:
        """Makes room for so many rows in all."""
        if rows > self._rows:
            added = rows - self._rows
            more = tf.zeros([added, *self.shape], self.variable.dtype)
            self.variable.assign(tf.concat([self.variable, more], axis=0))
            self._rows = rows

    def write(self, row: int, value: tf.Tensor) -> None:
        """Writes a row, with zeros at the ends where it has fewer entries."""
        value = tf.cast(value, self.variable.dtype)
        if row >= self._rows:
            added = max(int(self._rows * GROWTH), LEAST_GROWTH)
            self.reserve(max(self._rows + added, row + 1))
        missing = [
            [0, wide - size] for wide, size in zip(self.shape, value.shape)
        ]
        if any(after for _, after in missing):
            value = tf.pad(value, missing)
        # `scatter_update` of the variable takes three times as long.
        tf.raw_ops.ResourceScatterUpdate(
            resource=self.variable.handle, indices=row, updates=value
        )

    def read(self, row: int, shape: encoder.Shape) -> tf.Tensor:
        """Reads the first `shape` entries of a row, float32."""
        value = tf.cast(tf.gather(self.variable, row), tf.float32)
        if tuple(shape) != self.shape:
            value = value[tuple(slice(size) for size in shape)]
        return value


Shapes = Mapping[str, tuple[int, ...]]


def can_mix(table: ParameterTable) -> bool:
    """True if no method, nor its hook `parameter`, changes BERT's matrices."""
    return "parameter" not in table.hooks.places and all(
        not changed_by(p.name)
        if p.is_added
        else not p.trained or len(p.shape) == 1
        for p in table.parameters
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Kind:
    """Tasks with one method, as wide as the widest, or one form of heads.

    `shapes` are those of a task's values, `slots` the rows of the tables.
    """

    scope: str
    form: Any
    number: int
    shapes: Shapes
    slots: Slots = dataclasses.field(default_factory=Slots)


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """A task in the tables, until its place has no reference.

    `head` is the number of its kind of heads, `rows` are table, row and shape
    of each value, `least_model` is the first model that computes the task.
    """

    task: Slot
    head: int
    rows: Mapping[str, tuple[GrowingTable, Slot, tuple[int, ...]]]
    least_model: int

    def values(self) -> Values:
        """Reads the task's values from the tables."""
        return {
            name: table.read(slot.number, shape)
            for name, (table, slot, shape) in self.rows.items()
        }


class MixedBert:
    """Tables of tasks; several threads may add tasks and compute."""

    def __init__(self, bert: FrozenBert, adapter_dtype: str = "float32"):
        """Makes no tables yet, and no copy of BERT.

        Args:
            bert: that all tasks were trained on.
            adapter_dtype: type of methods' added variables; heads and
                LayerNorms are float32.
        """
        self._bert = bert
        self._adapter_dtype = tf.as_dtype(adapter_dtype)
        self._methods: dict[Hashable, _Kind] = {}
        self._heads: dict[Hashable, _Kind] = {}
        # The two of each kind of tasks.
        self._kinds: dict[Hashable, tuple[_Kind, _Kind]] = {}
        self._tables: dict[str, GrowingTable] = {}
        self._own: list[str] = []
        # The first row holds BERT's own values.
        self._own_slots = Slots(first=1)
        self._tasks = Slots()
        self._places = GrowingTable((mixed_model.PLACES,), tf.int32)
        # A new kind of tasks makes a new model. The one before computes its
        # own tasks until the new one is traced.
        self._newest_model = 0
        self._traced_model = -1
        self._functions: dict[int, Any] = {}
        self._lock = threading.Lock()

    def put(self, kind: TaskKind, values: Values) -> Place:
        """Puts a task that `can_mix`, with values for `TaskKind.compute`."""
        with self._lock:
            method, head = self._forms(kind)
            rows = {}
            slots = [method.slots.take(), head.slots.take()]
            for form, slot in zip((method, head), slots):
                for name in form.shapes:
                    table = self._tables[f"{form.scope}{name}"]
                    table.write(slot.number, values[name])
                    rows[name] = table, slot, tuple(values[name].shape)
            bert_names = sorted(set(values) & set(self._bert.variables))
            slots.append(
                self._put_own({name: values[name] for name in bert_names})
            )
            for name in bert_names:
                table = self._tables[f"own/{name}"]
                rows[name] = table, slots[-1], table.shape
            task = self._tasks.take()
            place = [method.number, slots[0].number, head.number]
            place += [slot.number for slot in slots[1:]]
            self._places.write(task.number, tf.constant(place))
            return Place(task, head.number, rows, self._newest_model)

    def reserve(self, kinds: Iterable[TaskKind]) -> None:
        """Makes room for tasks of these kinds, so that tables grow once."""
        with self._lock:
            forms = [form for kind in kinds for form in self._forms(kind)]
            for form, count in collections.Counter(forms).items():
                for name in form.shapes:
                    table = self._tables[f"{form.scope}{name}"]
                    table.reserve(form.slots.count + count)

    def compute(self, batch: Batch, least_model: int) -> dict[str, tf.Tensor]:
        """Computes a `MixedModel`'s outputs; callers hold the tasks' places.

        `least_model` is the greatest one of the batch's places. While one
        thread traces the model of a new kind, others go on with the one before.
        """
        with self._lock:
            number = self._traced_model
            if number < least_model:
                number = self._newest_model
            if number not in self._functions:
                self._functions[number] = self._make_function()
            function = self._functions[number]
        traced = function.get_concrete_function()
        with self._lock:
            if number > self._traced_model:
                self._traced_model = number
                self._functions = {
                    n: one for n, one in self._functions.items() if n >= number
                }
        return traced(batch)

    def _forms(self, kind: TaskKind) -> tuple[_Kind, _Kind]:
        if kind.key in self._kinds:
            return self._kinds[kind.key]
        method = kind.method.widened()
        added = method.variables(self._bert.config)
        shapes = {name: one.shape for name, one in added.items()}
        key = str(method), tuple(shapes.items())
        number = len(self._methods)
        made = _Kind(scope_of(number), method, number, shapes)
        method = self._add(self._methods, key, made, self._adapter_dtype)
        shapes = {
            p.name: p.shape for p in kind.table.parameters if p.group == "head"
        }
        key = kind.head_kind, tuple(shapes.items())
        number = len(self._heads)
        made = _Kind(f"head_{number}/", kind.build_head, number, shapes)
        head = self._add(self._heads, key, made)
        self._kinds[kind.key] = method, head
        return method, head

    def _add(
        self,
        kinds: dict[Hashable, _Kind],
        key: Hashable,
        made: _Kind,
        dtype: tf.DType = tf.float32,
    ) -> _Kind:
        if key not in kinds:
            for name, shape in made.shapes.items():
                self._tables[f"{made.scope}{name}"] = GrowingTable(shape, dtype)
            kinds[key] = made
            self._newest_model += 1
        return kinds[key]

    def _put_own(self, values: Values) -> Slot:
        for name, value in values.items():
            if name in self._own:
                continue
            # The tasks before left it as it is.
            table = self._tables[f"own/{name}"] = GrowingTable(value.shape)
            for row in range(self._own_slots.count):
                table.write(row, self._bert.variables[name])
            self._own.append(name)
            self._newest_model += 1
        if not values:
            return Slot(0)
        slot = self._own_slots.take()
        for name in self._own:
            value = values.get(name, self._bert.variables[name])
            self._tables[f"own/{name}"].write(slot.number, value)
        return slot

    def model(self) -> MixedModel:
        """Makes the model of all present kinds, on the tables' variables."""
        return MixedModel(
            self._bert.config,
            tuple(kind.form for kind in self._methods.values()),
            tuple(kind.form for kind in self._heads.values()),
            self._bert.variables,
            {name: table.variable for name, table in self._tables.items()},
            self._places.variable,
        )

    def _make_function(self) -> Any:
        model = self.model()

        @tf.function(input_signature=[mixed_model.FEATURES], autograph=False)
        def compute(batch):
            return self._bert.predict(model, batch)

        return compute
