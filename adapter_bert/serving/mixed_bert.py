"""One BERT that computes rows of many tasks in one batch.

The values of all tasks lie in tables. So a task that comes builds nothing
again, unless it is the first with its method or its head.

Values of many tasks in tables, of which each task has a row.
"""

import collections
import dataclasses
import threading
import weakref
from typing import Any, Dict, Hashable, Iterable, List, Mapping, Tuple

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.methods.base import changed_by
from adapter_bert.serving import mixed_model
from adapter_bert.serving.frozen_bert import Batch, FrozenBert, TaskKind, Values
from adapter_bert.serving.mixed_hooks import scope_of
from adapter_bert.serving.mixed_model import HeadKind, Layout, MixedModel
from adapter_bert.tasks import task_model
from adapter_bert.tasks.task_model import ParameterTable

# A full table grows by this share of its rows, or by so many.
GROWTH, LEAST_GROWTH = 1 / 16, 4


class Slot:
    """A row of tables; it is free again when nobody holds it any more.

    A call that computes with a row holds its slot, so that a row is never
    written while it is read.
    """

    def __init__(self, number: int):
        """Takes the number of the row."""
        self.number = number


class Slots:
    """The rows of tables that are filled together."""

    def __init__(self, first: int = 0):
        """Takes the first row that may be given out."""
        self._next = first
        self._free: List[int] = []

    @property
    def count(self) -> int:
        """How many rows were ever given out, and those before them."""
        return self._next

    def take(self) -> Slot:
        """A row that nobody holds."""
        if self._free:
            number = self._free.pop()
        else:
            number, self._next = self._next, self._next + 1
        slot = Slot(number)
        weakref.finalize(slot, self._free.append, number).atexit = False
        return slot


class Table:
    """A variable [rows, ...] that grows."""

    def __init__(self, shape: encoder.Shape, dtype: tf.DType = tf.float32):
        """Takes the shape of a row, and the type that values are kept in."""
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
        """The first entries of a row, as many as `shape` has, float32."""
        value = tf.cast(tf.gather(self.variable, row), tf.float32)
        if tuple(shape) != self.shape:
            value = value[tuple(slice(size) for size in shape)]
        return value


Shapes = Mapping[str, Tuple[int, ...]]


def can_mix(table: ParameterTable) -> bool:
    """Whether a task leaves BERT's matrices as they are.

    What parts of its method have changed of BERT is not mixed either, nor is
    what a method does by the hook `parameter`.
    """
    return not table.hooks.acts_at("parameter") and all(
        not changed_by(p.name)
        if p.is_added
        else not p.trained or len(p.shape) == 1
        for p in table.parameters
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Kind:
    """What tasks with one method, or with one head, have in common.

    Attributes:
        scope: of their tables.
        form: the method, as wide as the widest, or the head.
        number: of the kind.
        shapes: of a task's values, by name.
        slots: rows of the tables.
    """

    scope: str
    form: Any
    number: int
    shapes: Shapes
    slots: Slots = dataclasses.field(default_factory=Slots)


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """A task in the tables; it is gone when nobody holds this any more.

    Attributes:
        task: its number, by which rows name it.
        head: number of its kind of heads.
        rows: table, its row and the shape of the value, by the value's name.
    """

    task: Slot
    head: int
    rows: Mapping[str, Tuple[Table, Slot, Tuple[int, ...]]]

    def values(self) -> Values:
        """The task's values, as they were put into the tables."""
        return {
            name: table.read(slot.number, shape)
            for name, (table, slot, shape) in self.rows.items()
        }


class MixedBert:
    """Tables of tasks, and what computes rows of any of them.

    Several threads may add tasks and compute.
    """

    def __init__(self, bert: FrozenBert, adapter_dtype: str = "float32"):
        """Takes the BERT, which is not copied.

        Args:
            bert: that all tasks were trained upon.
            adapter_dtype: in which what methods have added is kept; heads and
                LayerNorms are float32.
        """
        self._bert = bert
        self._adapter_dtype = tf.as_dtype(adapter_dtype)
        self._methods: Dict[Hashable, _Kind] = {}
        self._heads: Dict[Hashable, _Kind] = {}
        # The two of each kind of tasks.
        self._kinds: Dict[Hashable, Tuple[_Kind, _Kind]] = {}
        self._tables: Dict[str, Table] = {}
        self._own: List[str] = []
        # The first row holds BERT's own values.
        self._own_slots = Slots(first=1)
        self._tasks = Slots()
        self._places = Table((mixed_model.PLACES,), tf.int32)
        self._function: Any = None
        self._lock = threading.Lock()

    def put(self, kind: TaskKind, values: Values) -> Place:
        """Puts a task's values into the tables.

        Args:
            kind: of the task, which `can_mix`.
            values: float32, as `TaskKind.compute` takes them.
        """
        with self._lock:
            method, head = self._forms(kind)
            rows = {}
            slots = [method.slots.take(), head.slots.take()]
            for form, slot in zip((method, head), slots):
                for name in form.shapes:
                    table = self._tables[f"{form.scope}{name}"]
                    table.write(slot.number, values[name])
                    rows[name] = table, slot, tuple(values[name].shape)
            own = sorted(set(values) & set(self._bert.variables))
            slots.append(self._put_own({name: values[name] for name in own}))
            for name in own:
                table = self._tables[f"own/{name}"]
                rows[name] = table, slots[-1], table.shape
            task = self._tasks.take()
            place = [method.number, slots[0].number, head.number]
            place += [slot.number for slot in slots[1:]]
            self._places.write(task.number, tf.constant(place))
            return Place(task, head.number, rows)

    def reserve(self, kinds: Iterable[TaskKind]) -> None:
        """Makes room for tasks of these kinds, so that tables grow once."""
        with self._lock:
            forms = [form for kind in kinds for form in self._forms(kind)]
            for form, count in collections.Counter(forms).items():
                for name in form.shapes:
                    table = self._tables[f"{form.scope}{name}"]
                    table.reserve(form.slots.count + count)

    def compute(self, batch: Batch) -> Dict[str, tf.Tensor]:
        """What `MixedModel` gives.

        Args:
            batch: its features. Whoever calls holds the tasks' places.
        """
        with self._lock:
            if self._function is None:
                self._function = self._make_function()
            function = self._function
        return function.get_concrete_function()(batch)

    def _forms(self, kind: TaskKind) -> Tuple[_Kind, _Kind]:
        """The kind of a task's method and that of its head."""
        if kind.key not in self._kinds:
            found = self._method_of(kind), self._head_of(kind)
            self._kinds[kind.key] = found
        return self._kinds[kind.key]

    def _method_of(self, kind: TaskKind) -> _Kind:
        """The kind of a task's method, with its tables."""
        method = kind.method.widened()
        table = task_model.list_parameters(
            self._bert.config, method, kind.build_head
        )
        shapes = {
            p.name: p.shape
            for p in table.parameters
            if p.is_added and p.group != "head"
        }
        key = str(method), tuple(shapes.items())
        if key not in self._methods:
            number = len(self._methods)
            found = _Kind(scope_of(number), method, number, shapes)
            self._add_kind(self._methods, key, found, self._adapter_dtype)
        return self._methods[key]

    def _head_of(self, kind: TaskKind) -> _Kind:
        """The kind of a task's head, with its tables."""
        shapes = {
            p.name: p.shape for p in kind.table.parameters if p.group == "head"
        }
        key = kind.head_kind, tuple(shapes.items())
        if key not in self._heads:
            number = len(self._heads)
            head = HeadKind(kind.build_head, tuple(shapes))
            found = _Kind(f"head_{number}/", head, number, shapes)
            self._add_kind(self._heads, key, found)
        return self._heads[key]

    def _add_kind(
        self,
        kinds: Dict[Hashable, _Kind],
        key: Hashable,
        found: _Kind,
        dtype: tf.DType = tf.float32,
    ) -> None:
        for name, shape in found.shapes.items():
            self._tables[f"{found.scope}{name}"] = Table(shape, dtype)
        kinds[key] = found
        self._function = None

    def _put_own(self, values: Values) -> Slot:
        """Puts a task's values of BERT's own variables into their tables."""
        for name, value in values.items():
            if name in self._own:
                continue
            # The tasks before left it as it is.
            table = self._tables[f"own/{name}"] = Table(value.shape)
            for row in range(self._own_slots.count):
                table.write(row, self._bert.variables[name])
            self._own.append(name)
            self._function = None
        if not values:
            return Slot(0)
        slot = self._own_slots.take()
        for name in self._own:
            value = values.get(name, self._bert.variables[name])
            self._tables[f"own/{name}"].write(slot.number, value)
        return slot

    def model(self) -> MixedModel:
        """What computes all kinds that there are, of the tables' variables."""
        methods, heads = self._methods.values(), self._heads.values()
        layout = Layout(
            config=self._bert.config,
            methods=tuple(kind.form for kind in methods),
            method_names=tuple(tuple(kind.shapes) for kind in methods),
            heads=tuple(kind.form for kind in heads),
            own=tuple(sorted(self._own)),
        )
        tables = {name: t.variable for name, t in self._tables.items()}
        return MixedModel(
            layout, self._bert.variables, tables, self._places.variable
        )

    def _make_function(self) -> Any:
        """The same as a function, which is traced when called."""
        model = self.model()

        @tf.function(input_signature=[mixed_model.FEATURES], autograph=False)
        def compute(batch):
            return self._bert.predict(model, batch)

        return compute
