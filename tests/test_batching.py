"""Requests are computed together, in order, and none disturbs another."""

import asyncio
import threading
import weakref

import hypothesis
import hypothesis.strategies as st
import pytest

from adapter_bert.server.batching import Batcher, Bounds

pytestmark = pytest.mark.newer_stack


class Computer:
    """Doubles numbers, as slowly as the test wants; fails at negative ones."""

    def __init__(self):
        self.batches = []
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self, rows):
        self.batches.append(list(rows))
        assert self.may_go.wait(10)
        if min(rows) < 0:
            raise ValueError(f"negative: {min(rows)}")
        return [2 * row for row in rows]


def run(test, max_batch=4, max_bytes=1000):
    """Runs a test with a computer and a batcher in a loop of its own.

    A row's bytes are its number.
    """

    async def main():
        computer = Computer()
        bounds = Bounds(max_batch, max_bytes, 100)
        batcher = Batcher(computer, abs, bounds)
        await test(computer, batcher)
        await asyncio.wait_for(batcher.close(), 10)
        assert batcher.waiting == 0

    asyncio.run(asyncio.wait_for(main(), 30))


async def hold(computer, batcher):
    """A request that is being computed until the computer may go on."""
    computer.may_go.clear()
    first = asyncio.ensure_future(batcher.ask([0]))
    while not computer.batches:
        await asyncio.sleep(0.001)
    return first


def later(batcher, *requests):
    """Requests that wait, of some rows each."""
    return [asyncio.ensure_future(batcher.ask(rows)) for rows in requests]


def test_requests_that_wait_are_computed_together():
    async def test(computer, batcher):
        first = await hold(computer, batcher)
        rest = later(batcher, [1], [2], [3], [4], [5])
        await asyncio.sleep(0)
        assert batcher.waiting == 1 + 5
        computer.may_go.set()
        assert await first == [0]
        assert await asyncio.gather(*rest) == [[2], [4], [6], [8], [10]]
        assert computer.batches == [[0], [1, 2, 3, 4], [5]]
        assert await batcher.ask([]) == []

    run(test)


def test_requests_take_turns():
    async def test(computer, batcher):
        first = await hold(computer, batcher)
        rows = list(range(1, 8)), [20, 20], [30, 30]
        great, *small = later(batcher, *rows)
        await asyncio.sleep(0)
        computer.may_go.set()
        assert await first == [0]
        assert await asyncio.gather(*small) == [[40, 40], [60, 60]]
        assert not great.done()
        assert await great == [2, 4, 6, 8, 10, 12, 14]
        turns = [1, 2, 20, 30], [20, 30, 3, 4], [5, 6, 7]
        assert computer.batches == [[0], *turns]

    run(test)


@hypothesis.given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=7), max_size=8),
    st.integers(1, 5),
    st.integers(1, 20),
)
@hypothesis.settings(max_examples=50)
def test_every_row_is_computed_once(requests, max_batch, max_bytes):
    async def test(computer, batcher):
        answers = await asyncio.gather(*map(batcher.ask, requests))
        assert answers == [[2 * row for row in rows] for rows in requests]
        computed = sum(computer.batches, [])
        assert sorted(computed) == sorted(sum(requests, []))
        for batch in computer.batches:
            assert len(batch) <= max_batch
            assert len(batch) == 1 or sum(batch) <= max_bytes

    run(test, max_batch, max_bytes)


def test_a_request_that_fails_disturbs_no_other():
    async def test(computer, batcher):
        first = await hold(computer, batcher)
        rest = later(batcher, [1], [-2, 5, 6], [3, 3])
        await asyncio.sleep(0)
        computer.may_go.set()
        await first
        results = await asyncio.gather(*rest, return_exceptions=True)
        assert (results[0], results[2]) == ([2], [6, 6])
        assert str(results[1]) == "negative: -2"
        # What was left of the one that failed is not computed.
        assert 6 not in sum(computer.batches, [])

    run(test)


def test_rows_are_not_kept_after_their_answer():
    class Row(float):
        """A row that can be watched."""

    async def test(computer, batcher):
        row = Row(3)
        assert await batcher.ask([row]) == [6]
        gone = weakref.ref(row)
        computer.batches.clear()
        del row
        while gone():
            await asyncio.sleep(0.001)

    run(test)
