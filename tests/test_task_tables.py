"""Rows of tables: written once, free again when nobody holds them."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_bert.answering.task_tables import GrowingTable, Slots


@given(st.lists(st.integers(0, 9), max_size=40))
def test_no_row_is_held_twice(steps):
    """A step takes a row, or lets go of one that is held."""
    slots, held = Slots(first=1), []
    for step in steps:
        if step < len(held):
            del held[step]
        else:
            held.append(slots.take())
        numbers = [slot.number for slot in held]
        assert len(set(numbers)) == len(numbers)
        assert all(1 <= number < slots.count for number in numbers)
    assert slots.count <= len(steps) + 1


def test_a_row_that_nobody_holds_is_given_out_again():
    slots = Slots()
    first, second = slots.take(), slots.take()
    assert (first.number, second.number) == (0, 1)
    holders = [first]
    del first
    assert slots.take().number == 2
    del holders[0]
    assert slots.take().number == 0


@settings(max_examples=20)
@given(st.lists(st.integers(0, 30), max_size=20), st.data())
def test_rows_keep_their_values_while_a_table_grows(rows, data):
    table, expected = GrowingTable((3, 2)), {}
    for number, row in enumerate(rows):
        shape = tuple(data.draw(st.integers(1, size)) for size in (3, 2))
        expected[row] = np.full(shape, number + 1, np.float32)
        table.write(row, tf.constant(expected[row]))
    for row, value in expected.items():
        np.testing.assert_array_equal(table.read(row, value.shape), value)
        whole = table.read(row, (3, 2)).numpy()
        assert whole.sum() == value.sum()


@pytest.mark.parametrize(
    "reserved, rows, most", [((5, 3), 5, 5), ((), 100, 107)]
)
def test_a_table_holds_little_that_is_not_used(reserved, rows, most):
    table = GrowingTable((2,))
    for room in reserved:
        table.reserve(room)
    for row in range(rows):
        table.write(row, tf.ones([2]))
    assert rows <= int(tf.shape(table.variable)[0]) <= most
