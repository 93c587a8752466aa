"""Requests of any protocol: who answers, limits, common batches, counts."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import (
    Any,
    NamedTuple,
    TypeVar,
)

from starlette.exceptions import HTTPException

from adapter_bert.errors import UserError
from adapter_bert.serving.batching import Batcher, Bounds, Overloaded
from adapter_bert.serving.explanations import EXPLAINED
from adapter_bert.serving.exported import EMBED
from adapter_bert.serving.request_metrics import RequestMetrics
from adapter_bert.serving.served import AskedRow, Question, ServedModel
from adapter_bert.serving.served_models import NotServed, ServedModels
from adapter_bert.serving.shadow import Answered

Done = TypeVar("Done")
# What is asked of a row, next to its vector (`EMBED`).
ANSWER, EXPLAIN = "answer", "explain"
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


class Asked(NamedTuple):
    """A row that waits.

    Attributes:
        model: the version that the request found, which stays until then.
        kind: `ANSWER` for outputs, `EMBED` or `EXPLAIN`.
        row: as the client sent it.
    """

    model: ServedModel
    question: Question
    kind: str
    row: AskedRow


@dataclasses.dataclass
class Counted:
    """A request that is counted at its end.

    Attributes:
        name: of the model.
        asked: accepted rows.
    """

    name: str = ""
    asked: Sequence[Asked] = ()


class RequestCore:
    """Answers the requests of all protocols of a server.

    Attributes:
        models: what is served.
        limits: of requests.
        metrics: of requests.
        is_ending: whether it is no more ready; requests are taken still.
        is_closed: whether no further requests are taken.
    """

    def __init__(self, models: ServedModels, limits: Limits):
        """Takes what is served, and limits."""
        self.models, self.limits = models, limits
        self.is_ending = self.is_closed = False
        self._held = 0
        # One computes explanations, whose graphs are traced at first use, so
        # that no other row waits for them.
        self._batchers: dict[bool, Batcher] = {}
        self.metrics = RequestMetrics(lambda: models.models, self._waiting)

    def unready(self) -> str:
        """Why no client should ask any more, or not yet; "" if one may."""
        if self.is_ending:
            return "the server is ending"
        served = [
            x for m in self.models.models.values() for x in m.served.values()
        ]
        if not any(one.tasks for one in served):
            return "no task is there to answer"
        return ""

    def _waiting(self) -> int:
        """Rows that are not yet computed."""
        return sum(one.waiting for one in self._batchers.values())

    @contextlib.asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        """Answers in the running event loop; at the end all accepted rows."""
        bounds = self.limits.batching

        def size_of(asked: Asked) -> int:
            # Explanations are computed one by one. Each is a batch of its own,
            # so that rows of clients that have gone are not computed.
            is_whole = asked.kind == EXPLAIN
            return bounds.batch_bytes if is_whole else asked.question.size

        self._batchers = {
            explains: Batcher(self._compute, size_of, bounds)
            for explains in (False, True)
        }
        async with contextlib.AsyncExitStack() as stack:
            if self.models.shadow:
                await stack.enter_async_context(
                    self.models.shadow.live(
                        lambda: self._waiting() > 0, self.metrics
                    )
                )
            yield
            for batcher in self._batchers.values():
                await batcher.close()

    def _compute(self, asked: Sequence[Asked]) -> list[Any]:
        """The outputs, vector or explained answer of each row."""
        self.metrics.count_batch(len(asked))
        alike: dict[Any, list[int]] = {}
        for number, one in enumerate(asked):
            alike.setdefault((one.model, one.kind), []).append(number)
        found: dict[int, Any] = {}
        for (model, kind), numbers in alike.items():
            compute = {
                ANSWER: model.compute,
                EMBED: model.vectors,
                EXPLAIN: model.explanations,
            }[kind]
            questions = [asked[n].question for n in numbers]
            found.update(zip(numbers, compute(questions)))
        return [found[n] for n in range(len(asked))]

    def find(
        self, name: str, version: str = "", label: str = ""
    ) -> ServedModel:
        """A version, by default the newest; raises `Refused` for others."""
        try:
            return self.models.version(name, version, label)
        except NotServed as error:
            raise Refused(404, str(error)) from error

    def accept(
        self, model: ServedModel, rows: Sequence[AskedRow], kind: str = ANSWER
    ) -> list[Asked]:
        """Rows that wait, of a kind as of `Asked`.

        Raises `Refused` for wrong or long ones, and for a model without the
        kind.
        """
        if kind == EMBED and EMBED not in model.signatures:
            raise Refused(
                404, "the model gives no vectors; export it with --embeddings"
            )
        # Once for all rows, as libraries may have thousands of tasks.
        explained = set(model.explained()) if kind == EXPLAIN else set()
        if kind == EXPLAIN and not explained:
            raise Refused(
                404,
                model.unexplained()
                or "the model explains no answers: a library's tasks of "
                f"{', '.join(EXPLAINED)} do, exported models do not",
            )
        asked = []
        for number, given in enumerate(rows, 1):
            row = given.without_padding()
            question = self._question(model, row, number, kind == EMBED)
            if kind == EXPLAIN and question.task not in explained:
                raise Refused(
                    400,
                    f"row {number}: answers of the task {question.task} are "
                    "not explained; explained are tasks of "
                    f"{', '.join(EXPLAINED)}",
                )
            asked.append(Asked(model, question, kind, row))
        return asked

    def _question(
        self, model: ServedModel, row: AskedRow, number: int, for_vector: bool
    ) -> Question:
        most = self.limits.max_text_bytes
        for name, size in row.sizes().items():
            if size > most:
                raise Refused(
                    400,
                    f"row {number}: {name} has {size} bytes, of at most {most}",
                )
        try:
            return model.accept(row, for_vector)
        except UserError as error:
            raise Refused(400, f"row {number}: {error}") from error

    async def ask(self, asked: Sequence[Asked]) -> list[Any]:
        """What each row is asked for; raises as `Batcher.ask`."""
        explains = any(one.kind == EXPLAIN for one in asked)
        found = await self._batchers[explains].ask(asked)
        if self.models.shadow:
            self.models.shadow.offer(
                [
                    Answered(one.row, one.model, one.question, result)
                    for one, result in zip(asked, found)
                    if one.kind != EMBED
                ]
            )
        return found

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
    def counted(self) -> Iterator[Counted]:
        """Counts a request and its time, whatever comes of it."""
        began = time.monotonic()
        request, code = Counted(), 500
        try:
            yield request
            code = 200
        except Refused as refused:
            code = refused.status_code
            raise
        except asyncio.CancelledError:
            code = GONE
            raise
        finally:
            tasks = [one.question.task for one in request.asked]
            seconds = time.monotonic() - began
            self.metrics.count(request.name, tasks, code, seconds)
