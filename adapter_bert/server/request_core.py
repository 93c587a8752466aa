"""Requests to a shelf: limits, common batches, counts."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any, Callable, TypeVar

from starlette.exceptions import HTTPException

from adapter_bert.answering.explanations import EXPLAINED
from adapter_bert.errors import UserError
from adapter_bert.graph.exported import EMBED, Row
from adapter_bert.server.batching import Batcher, Bounds, Overloaded
from adapter_bert.server.request_metrics import RequestMetrics
from adapter_bert.server.shelf import (
    ANSWER,
    EXPLAIN,
    Question,
    Shelf,
)

Done = TypeVar("Done")
# HTTP's code for an answer that nobody reads, since the client is gone.
GONE = 499


class Refused(HTTPException):
    """An error for the client, instead of an answer; its code is HTTP's."""


def check_count(rows: Sequence[Any], max_rows: int) -> None:
    """Refuses a request of more rows."""
    if len(rows) > max_rows:
        raise Refused(400, f"{len(rows)} rows, of at most {max_rows}")


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
        self.metrics = RequestMetrics(
            name,
            lambda: shelf.tasks,
            lambda: sum(one.waiting for one in self._batchers.values()),
        )

    @contextlib.asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        """Answers in the running event loop; at the end all accepted rows."""

        def compute(questions: Sequence[Question]) -> list[Any]:
            self.metrics.count_batch(len(questions))
            return self.shelf.compute(questions)

        self._batchers = {
            explains: Batcher(
                compute, lambda question: question.size, self.limits.batching
            )
            for explains in (False, True)
        }
        yield
        for batcher in self._batchers.values():
            await batcher.close()

    def accept(self, rows: Sequence[Row], kind: str = ANSWER) -> list[Question]:
        """Makes questions of rows, of a kind as in `Question`.

        Raises `Refused` for wrong or long ones, and for a shelf without the
        kind.
        """
        if kind == EMBED and EMBED not in self.shelf.signatures:
            raise Refused(
                404,
                "the model gives no vectors; export it with --embeddings, or "
                "add an adapter of vectors to the library (:answer has those "
                "of an exported task of vectors)",
            )
        if kind == EXPLAIN and not self.shelf.explained():
            raise Refused(
                404,
                "the model explains no answers: a library's tasks of "
                f"{', '.join(EXPLAINED)} do, unless the BERT has no mask "
                "token; exported models do not",
            )
        most, questions = self.limits.max_text_bytes, []
        for number, row in enumerate(rows, 1):
            sizes = {}
            for name in ("text", "text_b", "choices"):
                value = getattr(row, name)
                is_one = isinstance(value, bytes)
                sizes[name] = len(value) if is_one else sum(map(len, value))
                if sizes[name] > most:
                    raise Refused(
                        400,
                        f"row {number}: {name} has {sizes[name]} bytes, of at "
                        f"most {most}",
                    )
            try:
                question = self.shelf.accept(row, kind)
            except UserError as error:
                raise Refused(400, f"row {number}: {error}") from error
            # Explanations are computed one by one. Each is a batch of its own,
            # so that rows of clients that have gone are not computed.
            size = sum(sizes.values())
            if kind == EXPLAIN:
                size = self.limits.batching.batch_bytes
            questions.append(question._replace(size=size))
        adapters = {question.task: question.of for question in questions}
        if any(x.of is not adapters[x.task] for x in questions):
            # One was replaced meanwhile; a request is answered by one.
            return self.accept(rows, kind)
        return questions

    async def ask(self, questions: Sequence[Question]) -> list[Any]:
        """What each row is asked for; raises as `Batcher.ask`."""
        explains = any(one.kind == EXPLAIN for one in questions)
        return await self._batchers[explains].ask(questions)

    @contextlib.contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Gives a function that counts bytes of a request as held, in there.

        It raises `Refused` if all requests hold too many.
        """
        held = 0

        def hold(count: int) -> None:
            nonlocal held
            held += count
            self._held += count
            if self._held > self.limits.max_held_bytes:
                raise Refused(429, "too many requests are being read")

        try:
            yield hold
        finally:
            self._held -= held

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
        except (RecursionError, UserError) as error:
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
