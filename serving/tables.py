"""Values of many tasks in tables, of which each task has a row."""

import weakref
from typing import List

import tensorflow as tf

import modeling

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

    def __init__(self, shape: modeling.Shape, dtype: tf.DType = tf.float32):
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

    def read(self, row: int, shape: modeling.Shape) -> tf.Tensor:
        """The first entries of a row, as many as `shape` has, float32."""
        value = tf.cast(tf.gather(self.variable, row), tf.float32)
        if tuple(shape) != self.shape:
            value = value[tuple(slice(size) for size in shape)]
        return value
