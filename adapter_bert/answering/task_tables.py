"""Tables of all tasks' values, which grow, and the BERT that reads them.

A batch holds rows of many tasks. A new task builds no new graph, unless it is
the first with its method or its head.
"""

import collections
import dataclasses
import threading
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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

# A full table grows by this share of its rows, or by so many.
GROWTH, LEAST_GROWTH = 1 / 16, 4


class Slot:
    """A row of tables, which is free again when its slot has no reference.

    Calls hold the slots of their rows, so no row is written while it is read.
    """

    def __init__(self, number: int):
        self.number = number


class Slots:
    """Rows of tables that are filled together.

    `count` is one more than the greatest number in use so far.
    """

    def __init__(self):
        self.count = 0
        self._free: list[int] = []

    def take(self) -> Slot:
        if not self._free:
            self._free.append(self.count)
            self.count += 1
        slot = Slot(self._free.pop())
        finalizer = weakref.finalize(slot, self._free.append, slot.number)
        finalizer.atexit = False
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


class _Tables:
    """Tables whose rows are filled together, by name.

    Of tasks with one method, as wide as the widest; of one form of heads; or of
    BERT's variables. `form` is the method or makes the head, `number` counts
    its like, `since` is the first model that has them.
    """

    def __init__(
        self,
        scope: str,
        shapes: Mapping[str, encoder.Shape],
        dtype: tf.DType = tf.float32,
        form: Any = None,
        number: int = 0,
    ):
        self.scope, self.form, self.number = scope, form, number
        self.since = 0
        self.slots = Slots()
        self.tables = {
            # Vectors are short, and scales near 1 would be rounded to 1.
            name: GrowingTable(shape, dtype if shape[1:] else tf.float32)
            for name, shape in shapes.items()
        }

    def put(self, values: Values) -> "_Row":
        """Fills a row."""
        slot = self.slots.take()
        for name, table in self.tables.items():
            table.write(slot.number, values[name])
        shapes = {name: tuple(values[name].shape) for name in self.tables}
        return _Row(self, slot, shapes)


class _Row(NamedTuple):
    of: _Tables
    slot: Slot
    shapes: Mapping[str, encoder.Shape]


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """A task in the tables, until its place has no reference.

    `head` is the number of its kind of heads, `least_model` the first model
    that computes the task.
    """

    task: Slot
    head: int
    rows: Sequence[_Row]
    least_model: int

    def values(self) -> Values:
        """Reads the task's values from the tables."""
        return {
            name: row.of.tables[name].read(row.slot.number, shape)
            for row in self.rows
            for name, shape in row.shapes.items()
        }


class MixedBert:
    """Tables of tasks; several threads may add tasks and compute."""

    def __init__(self, bert: FrozenBert, adapter_dtype: str = "float32"):
        """Makes no tables yet, and no copy of BERT.

        Args:
            bert: that all tasks were trained on.
            adapter_dtype: type of methods' added matrices; their vectors, heads
                and LayerNorms are float32.
        """
        self._bert = bert
        self.dtype = tf.as_dtype(adapter_dtype)
        self._methods: dict[Hashable, _Tables] = {}
        self._heads: dict[Hashable, _Tables] = {}
        # The two of each kind of tasks.
        self._kinds: dict[Hashable, tuple[_Tables, _Tables]] = {}
        # The first row holds BERT's own values.
        self._changed = _Tables("own/", {})
        self._of_bert = _Row(self._changed, self._changed.slots.take(), {})
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
            rows = [method.put(values), head.put(values)]
            rows.append(self._put_changed(values))
            task = self._tasks.take()
            of_method, of_head, of_bert = (row.slot.number for row in rows)
            place = [method.number, of_method, head.number, of_head, of_bert]
            self._places.write(task.number, tf.constant(place))
            # What changes nothing of BERT needs no table of changes.
            least = max(x.of.since for x in rows if x is not self._of_bert)
            return Place(task, head.number, rows, least)

    def reserve(self, kinds: Iterable[TaskKind]) -> None:
        """Makes room for tasks of these kinds, so that tables grow once."""
        with self._lock:
            forms = [form for kind in kinds for form in self._forms(kind)]
            for form, count in collections.Counter(forms).items():
                for table in form.tables.values():
                    table.reserve(form.slots.count + count)

    def compute(self, batch: Batch, least_model: int) -> dict[str, tf.Tensor]:
        """Computes a `MixedModel`'s outputs; callers hold the tasks' places.

        `least_model` is the greatest one of the batch's places. While one
        thread traces the model of a new kind, others go on with the one before.
        A form that cannot be traced holds up the forms that come after it.
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

    def _forms(self, kind: TaskKind) -> tuple[_Tables, _Tables]:
        if kind.key in self._kinds:
            return self._kinds[kind.key]
        method = kind.method.widened()
        added = method.variables(self._bert.config)
        shapes = {name: one.shape for name, one in added.items()}
        key = str(method), tuple(shapes.items())
        if key not in self._methods:
            number = len(self._methods)
            self._methods[key] = _Tables(
                scope_of(number), shapes, self.dtype, method, number
            )
            self._renew(self._methods[key])
        shapes = {
            p.name: p.shape for p in kind.table.parameters if p.group == "head"
        }
        head_key = kind.head_kind, tuple(shapes.items())
        if head_key not in self._heads:
            number = len(self._heads)
            self._heads[head_key] = _Tables(
                f"head_{number}/", shapes, tf.float32, kind.build_head, number
            )
            self._renew(self._heads[head_key])
        both = self._methods[key], self._heads[head_key]
        return self._kinds.setdefault(kind.key, both)

    def _renew(self, tables: _Tables) -> None:
        self._newest_model += 1
        tables.since = self._newest_model

    def _put_changed(self, values: Values) -> _Row:
        of_bert, changed = self._bert.variables, self._changed
        names = sorted(set(values) & set(of_bert))
        for name in names:
            if name not in changed.tables:
                # The tasks before left it as it is.
                table = changed.tables[name] = GrowingTable(values[name].shape)
                for row in range(changed.slots.count):
                    table.write(row, of_bert[name])
                self._renew(changed)
        if not names:
            return self._of_bert
        row = changed.put({**of_bert, **values})
        return row._replace(shapes={name: row.shapes[name] for name in names})

    def model(self) -> MixedModel:
        """Makes the model of all present kinds, on the tables' variables."""
        methods, heads = self._methods.values(), self._heads.values()
        return MixedModel(
            self._bert.config,
            tuple(one.form for one in methods),
            tuple(one.form for one in heads),
            self._bert.variables,
            {
                f"{one.scope}{name}": table.variable
                for one in (*methods, *heads, self._changed)
                for name, table in one.tables.items()
            },
            self._places.variable,
        )

    def _make_function(self) -> Any:
        model = self.model()

        @tf.function(input_signature=[mixed_model.FEATURES], autograph=False)
        def compute(batch):
            return self._bert.predict(model, batch)

        return compute
