"""A second model that answers what clients ask, for comparison alone.

Clients get the answers of the model that they ask, and wait for nothing of the
other one, its shadow. The shadow computes a few rows at a time, while no
client's row waits; rows that come faster are dropped and counted.
"""

import asyncio
import collections
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import (
    Any,
    Callable,
    NamedTuple,
)

from absl import logging

from adapter_bert.errors import UserError
from adapter_bert.serving.answers import Answer
from adapter_bert.serving.batching import Batcher, Bounds
from adapter_bert.serving.exported import shown_names
from adapter_bert.serving.model_versions import ModelVersions
from adapter_bert.serving.request_metrics import (
    DIFFERENT,
    DROPPED,
    EQUAL,
    FAILED,
    OUTCOMES,
    RequestMetrics,
)
from adapter_bert.serving.served import AskedRow, Question, ServedModel
from adapter_bert.tasks.kinds import (
    CHOICE,
    CLASSIFICATION,
    MULTI_LABEL,
    QUESTIONS,
    REGRESSION,
    TAGGING,
)

# Members of an answer that are compared, by kind. Vectors of two models are in
# two spaces, so they are not.
COMPARED = {
    CLASSIFICATION: ("label",),
    MULTI_LABEL: ("labels",),
    REGRESSION: ("value",),
    QUESTIONS: ("answer", "start", "end"),
    TAGGING: ("tags",),
    CHOICE: ("choice",),
}
# What two tasks of a name must have in common, and their names in messages.
ALIKE = {
    "kind": "kind",
    "texts": "number of texts",
    "labels": "labels",
    "types": "types of entities",
}
# A client that comes meanwhile shares the processor with few rows.
BOUNDS = Bounds(batch_rows=16, batch_bytes=128_000, waiting_rows=1024)
WAITING_BYTES = 16 * 10**6
# Seconds between looks whether a client's row waits, and for rows at the end.
PAUSE_S, END_S = 0.01, 2


class Answered(NamedTuple):
    """A row that a client has asked.

    Attributes:
        row: as the client sent it.
        question, result: of `model`, which has answered.
    """

    row: AskedRow
    model: ServedModel
    question: Question
    result: Any


class Shadow:
    """The comparison of a model that answers with its shadow.

    Attributes:
        kinds: of the tasks that are compared, by name. Replaced, never
            changed, since other threads read it.
    """

    def __init__(
        self,
        name: str,
        model: ModelVersions,
        shadow: ModelVersions,
        place: str,
        bounds: Bounds = BOUNDS,
    ):
        """Takes loaded models.

        Args:
            name: of the model that answers.
            model: that model.
            shadow: the other one, whose newest version is asked.
            place: the folder of the shadow.
            bounds: of a batch, and of the rows that wait.
        """
        self._name, self._model, self._shadow = name, model, shadow
        self._bounds, self._place = bounds, place
        self.kinds: dict[str, str] = {}
        self._unlike = self._match()
        if self._unlike:
            raise UserError(
                f"--shadow={place} has other tasks of the same names: "
                f"{'; '.join(self._unlike.values())}; expected equal ones"
            )
        if not self.kinds:
            there = shown_names(list(_newest(shadow).tasks)) or "none"
            left_out = "".join(
                f"; {one} is left out: {why}"
                for one, why in list(shadow.left_out.items())[:1]
            )
            wanted = [
                one
                for one, task in _newest(model).tasks.items()
                if task["kind"] in COMPARED
            ]
            raise UserError(
                f"--shadow={place} has no task to compare; its tasks: {there}; "
                f"expected one of: {shown_names(wanted) or 'none'}{left_out}"
            )
        self._rows: Counter[str] = collections.Counter()
        # Of rows that wait or are computed.
        self._asking: set[asyncio.Task] = set()
        self._bytes = 0
        # Classes of errors that the log has.
        self._told: set[type] = set()

    def look(self) -> None:
        """Looks for changes; raises UserError as `ModelVersions.look`."""
        try:
            self._shadow.look()
        finally:
            unlike = self._match()
            for name, why in unlike.items():
                if self._unlike.get(name) != why:
                    logging.warning("not compared with the shadow: %s", why)
            self._unlike = unlike

    def _match(self) -> dict[str, str]:
        """Finds the tasks of both; returns why some are not alike, by name."""
        own, others = _newest(self._model).tasks, _newest(self._shadow).tasks
        unlike = {
            name: why
            for name in own
            if name in others and (why := _difference(own[name], others[name]))
        }
        kinds = {
            name: task["kind"]
            for name, task in own.items()
            if name in others and name not in unlike
        }
        found = {n: kind for n, kind in kinds.items() if kind in COMPARED}
        if found != self.kinds:
            logging.info(
                "compared with the shadow %s: %s",
                self._place,
                shown_names(list(found)) or "none",
            )
        self.kinds = found
        return unlike

    @contextlib.asynccontextmanager
    async def live(
        self, is_busy: Callable[[], bool], metrics: RequestMetrics
    ) -> AsyncIterator[None]:
        """Compares rows in the running event loop.

        At the end rows have `END_S` seconds; the rest is dropped.

        Args:
            is_busy: whether a client's row waits, asked by another thread.
            metrics: count rows.
        """
        self._is_busy, self._metrics = is_busy, metrics
        self._batcher = Batcher(
            self._compute, lambda pair: pair[0].question.size, self._bounds
        )
        yield
        if self._asking:
            _, late = await asyncio.wait(self._asking, timeout=END_S)
            for asking in late:
                asking.cancel()
            await asyncio.gather(*late)
        await self._batcher.close()
        logging.info(
            "rows compared with the shadow %s: %s",
            self._place,
            ", ".join(f"{self._rows[one]} {one}" for one in OUTCOMES),
        )

    def offer(self, answered: Sequence[Answered]) -> None:
        """Takes rows to compare, unless too many wait; returns at once."""
        for one in answered:
            kind = self.kinds.get(one.question.task)
            if kind is None:
                continue
            size = self._bytes + one.question.size
            is_full = len(self._asking) >= self._bounds.waiting_rows
            if is_full or size > WAITING_BYTES:
                self._count(one, DROPPED)
                continue
            self._bytes = size
            asking = asyncio.get_running_loop().create_task(
                self._follow(one, kind)
            )
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _follow(self, one: Answered, kind: str) -> None:
        """Counts what becomes of a row."""
        outcome = FAILED
        try:
            (found,) = await self._batcher.ask([(one, kind)])
            outcome = DIFFERENT if found else EQUAL
            if kind == REGRESSION:
                self._metrics.count_distance(
                    self._name, one.question.task, found
                )
        except asyncio.CancelledError:
            outcome = DROPPED
        except UserError:
            # The message may have the row's text, which no log has.
            pass
        except Exception as error:  # noqa: BLE001 - what answers goes on.
            if type(error) not in self._told:
                logging.exception("the shadow cannot answer")
            self._told.add(type(error))
        finally:
            self._bytes -= one.question.size
            self._count(one, outcome)

    def _count(self, one: Answered, outcome: str) -> None:
        self._rows[outcome] += 1
        self._metrics.count_shadow(self._name, one.question.task, outcome)

    def _compute(self, batch: Sequence[tuple[Answered, str]]) -> list[float]:
        """The distance of both answers to each row, in another thread."""
        while self._is_busy():
            time.sleep(PAUSE_S)
        model = _newest(self._shadow)
        began = time.monotonic()
        questions = [model.accept(one.row) for one, _ in batch]
        results = model.compute(questions)
        self._metrics.count_shadow_batch(self._name, time.monotonic() - began)
        return [
            distance(
                kind,
                one.model.answer(one.question, one.result),
                model.answer(question, result),
            )
            for (one, kind), question, result in zip(batch, questions, results)
        ]


def distance(kind: str, answer: Answer, other: Answer) -> float:
    """The distance of two values, of other answers 0 if they are equal, or 1.

    Equal are the same label or none, the same set of labels, the same place
    and text in a context, the same tags. `kind` is that of the task.
    """
    if kind == REGRESSION:
        return abs(answer.value - other.value)
    if kind == MULTI_LABEL:
        return float(set(answer.labels) != set(other.labels))
    return float(any(answer[n] != other[n] for n in COMPARED[kind]))


def _newest(versions: ModelVersions) -> ServedModel:
    return list(versions.served.values())[-1]


def _difference(task: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Why a task cannot be compared with another of its name, or ""."""
    for member, what in ALIKE.items():
        # An older export may not tell.
        if member not in task or member not in other:
            continue
        found, expected = (
            sorted(map(str, x)) if isinstance(x, list) else x
            for x in (other[member], task[member])
        )
        if found != expected:
            return (
                f"the {what} of {task['name']}: found {_shown(found)}, "
                f"expected {_shown(expected)}"
            )
    return ""


def _shown(value: Any) -> str:
    return shown_names(value) if isinstance(value, list) else value
