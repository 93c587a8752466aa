"""Requests to a shelf: limits, common batches, counts."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

from adapter_bert.answering.explanations import EXPLAINED
from adapter_bert.errors import UserError
from adapter_bert.graph.exported import EMBED
from adapter_bert.server.batching import Batcher, Bounds, Overloaded
from adapter_bert.server.request_metrics import RequestMetrics
from adapter_bert.server.shelf import (
    ANSWER,
    EXPLAIN,
    Question,
    RequestRow,
    Shelf,
)

Done = TypeVar("Done")
# HTTP's code for an answer that nobody reads, since the client is gone.
GONE = 499


class Refused(HTTPException):
    """An error for the client, instead of an answer; its code is HTTP's."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a server, the flags of `adapter-bert serve`.

    Attributes:
        max_held_bytes: total of the requests being read or computed.
        timeout: seconds until a request is answered.
    """

    max_body_bytes: int
    max_held_bytes: int
    max_rows: int
    max_text_bytes: int
    batching: Bounds
    timeout: float


class RequestCore:
    """Answers requests.

    Attributes:
        name: the shelf's, for clients.
        shelf: what answers.
        limits: of requests.
        metrics: of requests.
        is_ending: whether it is no more ready; requests are taken still.
    """

    def __init__(self, name: str, shelf: Shelf, limits: Limits):
        self.name, self.shelf, self.limits = name, shelf, limits
        self.is_ending = False
        self._held = 0
        # One computes explanations, whose graphs are traced at first use, so
        # that no other row waits for them.
        self._batchers: dict[bool, Batcher] = {}
        self.metrics = RequestMetrics(name, lambda: shelf.tasks, self._waiting)

    def unready(self) -> str:
        """Why no client should ask any more, or not yet; "" if one may."""
        if self.is_ending:
            return "the server is ending"
        return "" if self.shelf.tasks else "no task is there to answer"

    def _waiting(self) -> int:
        """Rows that are not yet computed."""
        return sum(one.waiting for one in self._batchers.values())

    @contextlib.asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        """Answers in the running event loop; at the end all accepted rows."""
        bounds = self.limits.batching

        def size_of(question: Question) -> int:
            # Explanations are computed one by one. Each is a batch of its own,
            # so that rows of clients that have gone are not computed.
            is_whole = question.kind == EXPLAIN
            return bounds.batch_bytes if is_whole else question.size

        self._batchers = {
            explains: Batcher(self._compute, size_of, bounds)
            for explains in (False, True)
        }
        yield
        for batcher in self._batchers.values():
            await batcher.close()

    def _compute(self, questions: Sequence[Question]) -> list[Any]:
        """Computes each row's outputs, vector or explained answer."""
        self.metrics.count_batch(len(questions))
        results: dict[int, Any] = {}
        for kind, compute in (
            (ANSWER, self.shelf.compute),
            (EMBED, self.shelf.vectors),
            (EXPLAIN, self.shelf.explanations),
        ):
            alike = {n: x for n, x in enumerate(questions) if x.kind == kind}
            if alike:
                results.update(zip(alike, compute(list(alike.values()))))
        return [results[n] for n in range(len(questions))]

    def accept(
        self, rows: Sequence[RequestRow], kind: str = ANSWER
    ) -> list[Question]:
        """Makes questions of rows, of a kind as in `Question`.

        Raises `Refused` for wrong or long ones, and for a shelf without the
        kind.
        """
        if kind == EMBED and EMBED not in self.shelf.signatures:
            raise Refused(
                404, "the model gives no vectors; export it with --embeddings"
            )
        # Once for all rows, as libraries may have thousands of tasks.
        explained = set(self.shelf.explained()) if kind == EXPLAIN else set()
        if kind == EXPLAIN and not explained:
            raise Refused(
                404,
                self.shelf.unexplained()
                or "the model explains no answers: a library's tasks of "
                f"{', '.join(EXPLAINED)} do, exported models do not",
            )
        questions = []
        for number, row in enumerate(rows, 1):
            question = self._question(row.without_padding(), number, kind)
            if kind == EXPLAIN and question.task not in explained:
                raise Refused(
                    400,
                    f"row {number}: answers of the task {question.task} are "
                    "not explained; explained are tasks of "
                    f"{', '.join(EXPLAINED)}",
                )
            questions.append(question)
        return questions

    def _question(self, row: RequestRow, number: int, kind: str) -> Question:
        most = self.limits.max_text_bytes
        for name, size in row.sizes().items():
            if size > most:
                raise Refused(
                    400,
                    f"row {number}: {name} has {size} bytes, of at most {most}",
                )
        try:
            return self.shelf.accept(row, kind)
        except UserError as error:
            raise Refused(400, f"row {number}: {error}") from error

    async def ask(self, questions: Sequence[Question]) -> list[Any]:
        """What each row is asked for; raises as `Batcher.ask`."""
        explains = any(one.kind == EXPLAIN for one in questions)
        return await self._batchers[explains].ask(questions)

    def hold(self, count: int) -> None:
        """Counts bytes of a request as held; raises `Refused` if too many.

        `release` is for all of them, those that were too many too.
        """
        self._held += count
        if self._held > self.limits.max_held_bytes:
            raise Refused(429, "too many requests are being read")

    def release(self, count: int) -> None:
        """Counts bytes as held no more."""
        self._held -= count

    async def in_time(self, answering: Awaitable[Done]) -> Done:
        """What comes of a request; raises `Refused` for what is refused."""
        try:
            return await asyncio.wait_for(answering, self.limits.timeout)
        except asyncio.TimeoutError as error:
            raise Refused(
                504, f"no answer within {self.limits.timeout:g} seconds"
            ) from error
        except Overloaded as error:
            raise Refused(429, str(error)) from error
        except UserError as error:
            raise Refused(400, str(error)) from error

    @contextlib.contextmanager
    def counted(self) -> Iterator[list[str]]:
        """Counts a request, its time, and its rows by a list of their tasks."""
        began = time.monotonic()
        tasks: list[str] = []
        code = 500
        try:
            yield tasks
            code = 200
        except Refused as refused:
            code = refused.status_code
            raise
        except asyncio.CancelledError:
            code = GONE
            raise
        finally:
            self.metrics.count(tasks, code, time.monotonic() - began)
