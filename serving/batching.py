"""Rows of many requests, computed in common batches.

While one batch is computed the next one gathers: nothing waits for company,
and the busier the server, the fuller its batches.
"""

import asyncio
import collections
import concurrent.futures
from typing import Any, Callable, Deque, List, NamedTuple, Sequence


class Overloaded(Exception):
    """More is waiting than may."""


class _Request(NamedTuple):
    """Rows that wait, and what their client waits for."""

    rows: Sequence[Any]
    answers: "asyncio.Future[List[Any]]"


class Batcher:
    """Computes the rows of requests in the order in which these came.

    All of it runs in one event loop but `compute`, which has a thread.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Any]], List[Any]],
        max_batch_rows: int,
        max_waiting_rows: int,
    ):
        """Takes what computes.

        Args:
            compute: of rows gives the answers, in order.
            max_batch_rows: that are computed at once, but for a request that
                has more by itself.
            max_waiting_rows: of requests that are not yet computed.
        """
        self._compute = compute
        self._max_batch, self._max_waiting = max_batch_rows, max_waiting_rows
        self._queue: Deque[_Request] = collections.deque()
        self._waiting = 0
        self._arrived = asyncio.Event()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "compute")
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def waiting(self) -> int:
        """Rows that are not yet computed."""
        return self._waiting

    async def ask(self, rows: Sequence[Any]) -> List[Any]:
        """The answers to rows.

        Whoever cancels this before their turn has them not computed.

        Raises:
            Overloaded: too many rows are waiting.
            Exception: what `compute` raises of these rows.
        """
        if self._waiting + len(rows) > self._max_waiting:
            raise Overloaded(
                f"{self._waiting} rows are waiting, of at most "
                f"{self._max_waiting}"
            )
        if not rows:
            return []
        answers = asyncio.get_running_loop().create_future()
        self._queue.append(_Request(rows, answers))
        self._waiting += len(rows)
        self._arrived.set()
        return await answers

    async def close(self) -> None:
        """Ends when all that waits is computed."""
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
                    self._waiting -= sum(len(r.rows) for r in batch)

    def _take(self) -> List[_Request]:
        """The next requests, without those that nobody waits for any more."""
        batch: List[_Request] = []
        count = 0
        while self._queue:
            request = self._queue[0]
            if batch and count + len(request.rows) > self._max_batch:
                break
            self._queue.popleft()
            if request.answers.done():
                self._waiting -= len(request.rows)
                continue
            batch.append(request)
            count += len(request.rows)
        return batch

    async def _answer(self, batch: List[_Request]) -> None:
        """Computes some requests at once; if that fails, each by itself."""
        rows = [row for request in batch for row in request.rows]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._thread, self._compute, rows
            )
        except Exception as error:  # noqa: BLE001 - the client is told.
            if len(batch) == 1:
                if not batch[0].answers.done():
                    batch[0].answers.set_exception(error)
                return
            for request in batch:
                await self._answer([request])
            return
        first = 0
        for request in batch:
            end = first + len(request.rows)
            if not request.answers.done():
                request.answers.set_result(found[first:end])
            first = end
