"""Computes rows of many requests in common batches.

While one batch is computed the next one gathers, so no row waits for others,
and a busier server has fuller batches. Requests take turns, a row each, so that
small requests do not wait for large ones.
"""

import asyncio
import collections
import concurrent.futures
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple


class Overloaded(Exception):
    """Too many rows are waiting."""


class Bounds(NamedTuple):
    """Limits of a batch, but a single row may have more bytes, and a queue."""

    batch_rows: int
    batch_bytes: int
    waiting_rows: int


@dataclasses.dataclass(eq=False)
class _Request:
    """A request's rows: `taken` are in batches, `results` are computed."""

    rows: Sequence[Any]
    answers: "asyncio.Future[list[Any]]"
    results: list[Any] = dataclasses.field(default_factory=list)
    taken: int = 0


# Numbers of rows, by request.
_Batch = dict[_Request, int]


class Batcher:
    """Computes the rows of requests, those of each request in order."""

    def __init__(
        self,
        compute: Callable[[Sequence[Any]], list[Any]],
        size_of: Callable[[Any], int],
        bounds: Bounds,
    ):
        """Starts to wait for rows, in the running event loop.

        `compute` runs in a thread. `size_of` returns a row's bytes.
        """
        self._compute, self._size_of, self._bounds = compute, size_of, bounds
        self._queue: collections.deque[_Request] = collections.deque()
        self._waiting = 0
        self._arrived = asyncio.Event()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "compute")
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def waiting(self) -> int:
        """Rows that are not yet computed."""
        return self._waiting

    async def ask(self, rows: Sequence[Any]) -> list[Any]:
        """Answers rows; a cancel drops those that wait.

        Raises:
            Overloaded: too many rows are waiting.
            Exception: as `compute` for these rows.
        """
        if self._waiting + len(rows) > self._bounds.waiting_rows:
            raise Overloaded(
                f"{self._waiting} rows are waiting, of at most "
                f"{self._bounds.waiting_rows}"
            )
        if not rows:
            return []
        answers = asyncio.get_running_loop().create_future()
        self._queue.append(_Request(rows, answers))
        self._waiting += len(rows)
        self._arrived.set()
        return await answers

    async def close(self) -> None:
        """Ends when all waiting rows are computed."""
        while self._queue or self._waiting:
            await asyncio.sleep(0.01)
        self._task.cancel()
        self._thread.shutdown()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue:
                batch = self._take()
                if batch:
                    await self._answer(batch)
                    self._waiting -= sum(batch.values())
                # The rows' model may be waiting for its end.
                del batch

    def _take(self) -> _Batch:
        batch: _Batch = collections.Counter()
        size = 0
        while self._queue and sum(batch.values()) < self._bounds.batch_rows:
            request = self._queue[0]
            if request.answers.done():
                self._queue.popleft()
                self._waiting -= len(request.rows) - request.taken
                continue
            size += self._size_of(request.rows[request.taken])
            if batch and size > self._bounds.batch_bytes:
                break
            self._queue.popleft()
            request.taken += 1
            batch[request] += 1
            if request.taken < len(request.rows):
                # Behind all other requests.
                self._queue.append(request)
        return batch

    async def _answer(self, batch: _Batch) -> None:
        """Computes a batch, and if that fails each request's rows alone."""
        rows = [
            row
            for request, count in batch.items()
            for row in request.rows[request.taken - count : request.taken]
        ]
        loop = asyncio.get_running_loop()
        try:
            computed = await loop.run_in_executor(
                self._thread, self._compute, rows
            )
        except Exception as error:  # noqa: BLE001 - the client is told.
            if len(batch) > 1:
                for request, count in batch.items():
                    await self._answer({request: count})
                return
            (request,) = batch
            if not request.answers.done():
                request.answers.set_exception(error)
            return
        answers = iter(computed)
        for request, count in batch.items():
            request.results += itertools.islice(answers, count)
            is_whole = len(request.results) == len(request.rows)
            if is_whole and not request.answers.done():
                request.answers.set_result(request.results)
