"""TensorFlow Serving's REST for an exported model, as an ASGI application.

Source: TensorFlow Serving, "RESTful API". Unlike there, `text_b` may be left
out, which means "", `:answer` has the same answers in a shorter form, and
`:embed` gives vectors. The application also serves a page, where a person types
a text and sees every task's answer.
"""

import asyncio
import base64
import contextlib
import dataclasses
import functools
import json
import pathlib
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import prometheus_client
import tensorflow as tf
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from adapter_bert.serving.answers import from_outputs
from adapter_bert.serving.batching import Batcher, Bounds, Overloaded
from adapter_bert.serving.exported import (
    EMBED,
    SIGNATURE,
    ExportedModel,
    Row,
    refusal,
)


class PatientProtocol(H11Protocol):
    """HTTP that cuts off slow clients, since a few could hold a server.

    Covers requests that do not come or come byte by byte, and answers that
    are not taken.
    """

    def __init__(self, *arguments: Any, patience: float, **named: Any):
        """Takes uvicorn's arguments and seconds from one answer to the next."""
        super().__init__(*arguments, **named)
        self._patience = patience
        self._end: Optional[asyncio.TimerHandle] = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Begins to wait anew."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        """Stops waiting."""
        super().connection_lost(exc)
        self._end.cancel()

    def _wait(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = self.loop.call_later(self._patience, self.transport.abort)


FOLDER = pathlib.Path(__file__).parent
FILES = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css"}
# The page runs its own script alone, and talks to its own server alone.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


# HTTP's code for an answer that nobody reads, since the client is gone.
GONE = 499


# What follows a model's name in a path, and what is asked for thereby.
PREDICT, ANSWER = "predict", "answer"
KINDS = (PREDICT, ANSWER, EMBED)


class _Asked(NamedTuple):
    """A row that waits, for its vector or for its outputs."""

    row: Row
    for_vector: bool


class Refused(HTTPException):
    """An error for the client, instead of an answer."""


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


class RestServer:
    """The application `app`, and what its requests share."""

    def __init__(self, model: ExportedModel, name: str, limits: Limits):
        """Takes a model, its name for clients, and limits."""
        self._model, self._name, self._limits = model, name, limits
        self._held = 0
        self._batcher: Any = None
        self._registry = CollectorRegistry()
        kept = {"registry": self._registry, "namespace": "adapter_bert"}
        self._requests = Counter(
            "requests",
            "Requests for answers, by HTTP's code.",
            ["code"],
            **kept,
        )
        self._rows = Counter(
            "rows", "Rows answered, by task.", ["task"], **kept
        )
        self._seconds = Histogram(
            "request_seconds", "From a request to its answer.", **kept
        )
        sizes = [2**n for n in range(11)]
        self._batch_rows = Histogram(
            "batch_rows", "Rows computed at once.", buckets=sizes, **kept
        )
        self._waiting = Gauge("waiting_rows", "Rows not yet computed.", **kept)
        routes = [
            Route("/tasks", self._tell_tasks),
            Route("/metrics", self._tell_metrics),
            *(Route(path, _send_file) for path in FILES),
        ]
        one = "/v1/models/{name}"
        for path in (f"{one}/versions/{{version}}", one):
            routes += [
                *(
                    Route(
                        f"{path}:{kind}",
                        functools.partial(self._predict, kind=kind),
                        methods=["POST"],
                    )
                    for kind in KINDS
                ),
                Route(f"{path}/metadata", self._tell_metadata),
                Route(path, self._tell_status),
            ]
        self.app = Starlette(
            routes=routes,
            lifespan=self._live,
            exception_handlers={
                HTTPException: _refuse_http,
                Refused: _refuse,
                Exception: _fail,
            },
        )

    @contextlib.asynccontextmanager
    async def _live(self, app: Starlette):
        """Answers all accepted requests before the end."""
        self._batcher = Batcher(
            self._compute,
            lambda asked: len(asked.row.text) + len(asked.row.text_b),
            self._limits.batching,
        )
        self._waiting.set_function(lambda: self._batcher.waiting)
        yield
        await self._batcher.close()

    def _compute(self, asked: Sequence[_Asked]) -> List[Any]:
        """The outputs or the vector of each row."""
        self._batch_rows.observe(len(asked))
        found: Dict[int, Any] = {}
        for for_vector, compute in (
            (False, self._model.answers),
            (True, self._model.vectors),
        ):
            numbers = [
                n for n, one in enumerate(asked) if one.for_vector == for_vector
            ]
            if numbers:
                rows = [asked[n].row for n in numbers]
                found.update(zip(numbers, compute(rows)))
        return [found[n] for n in range(len(asked))]

    def _check_name(self, request: Request) -> None:
        """Raises `Refused` for another model or version."""
        name = request.path_params["name"]
        version = request.path_params.get("version", self._model.version)
        if (name, version) != (self._name, self._model.version):
            raise Refused(
                404,
                f"no model {name[:80]!r}, version {version[:20]}; there is "
                f"{self._name!r}, version {self._model.version}",
            )

    async def _tell_tasks(self, request: Request) -> Response:
        """All that the page needs to know."""
        return JSONResponse(
            {
                "name": self._name,
                "version": self._model.version,
                "max_rows": self._limits.max_rows,
                "max_body_bytes": self._limits.max_body_bytes,
                "tasks": list(self._model.tasks.values()),
            }
        )

    async def _tell_status(self, request: Request) -> Response:
        self._check_name(request)
        status = {
            "version": self._model.version,
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
        return JSONResponse({"model_version_status": [status]})

    async def _tell_metadata(self, request: Request) -> Response:
        self._check_name(request)
        signatures = {"signature_def": self._signatures}
        spec = {
            "name": self._name,
            "signature_name": "",
            "version": self._model.version,
        }
        metadata = {"signature_def": signatures}
        return JSONResponse({"model_spec": spec, "metadata": metadata})

    @property
    def _signatures(self) -> Dict[str, Any]:
        """The model's signatures by name."""
        named = {SIGNATURE: self._model.signature}
        if self._model.vector_signature:
            named[EMBED] = self._model.vector_signature
        return named

    async def _tell_metrics(self, request: Request) -> Response:
        return Response(
            prometheus_client.generate_latest(self._registry),
            media_type=prometheus_client.CONTENT_TYPE_LATEST,
        )

    async def _predict(self, request: Request, kind: str) -> Response:
        """Computes rows, and counts."""
        began = time.monotonic()
        status = 500
        try:
            self._check_name(request)
            if kind == EMBED and not self._model.vector_signature:
                raise Refused(
                    404,
                    "the model gives no vectors; export it with --embeddings",
                )
            response = await self._respond(request, kind)
            status = response.status_code
        except Refused as refused:
            status = refused.status_code
            raise
        finally:
            self._requests.labels(str(status)).inc()
            self._seconds.observe(time.monotonic() - began)
        return response

    async def _respond(self, request: Request, kind: str) -> Response:
        """Answers, vectors, or the signature's outputs, within the time."""
        try:
            asked, is_columns, outputs = await asyncio.wait_for(
                self._compute_request(request, kind), self._limits.timeout
            )
        except asyncio.TimeoutError as error:
            raise Refused(
                504, f"no answer within {self._limits.timeout:g} seconds"
            ) from error
        except Overloaded as error:
            raise Refused(429, str(error)) from error
        except tf.errors.InvalidArgumentError as error:
            raise Refused(400, refusal(error)) from error
        for one in asked:
            self._rows.labels(one.row.task.decode()).inc()
        if kind == EMBED:
            return JSONResponse({"embeddings": outputs})
        if kind == ANSWER:
            answers = []
            for one, found in zip(asked, outputs):
                name = one.row.task.decode()
                answer = from_outputs(self._model.tasks[name], found)
                answers.append({"task": name, **answer})
            return JSONResponse({"answers": answers})
        if not is_columns:
            return JSONResponse({"predictions": outputs})
        if any(one.for_vector for one in asked):
            # A signature's only output has no name.
            return JSONResponse({"outputs": outputs})
        names = outputs[0] if outputs else ()
        columns = {name: [row[name] for row in outputs] for name in names}
        return JSONResponse({"outputs": columns})

    async def _compute_request(self, request: Request, kind: str):
        """What a request asks, whether by columns, and the outputs."""
        body = bytearray()
        try:
            await self._read(request, body)
            rows, is_columns, signature = read_rows(
                body, self._limits.max_rows, list(self._signatures)
            )
            if kind == ANSWER and signature == EMBED:
                raise Refused(400, f"an answer has no vectors; ask :{EMBED}")
            for number, row in enumerate(rows, 1):
                problem = self._model.problem(row) or self._excess(row)
                if problem:
                    raise Refused(400, f"row {number}: {problem}")
            for_vectors = EMBED in (kind, signature)
            asked = [_Asked(row, for_vectors) for row in rows]
            return asked, is_columns, await self._ask(request, asked)
        finally:
            self._held -= len(body)

    def _excess(self, row: Row) -> Optional[str]:
        most = self._limits.max_text_bytes
        for name in ("text", "text_b"):
            size = len(getattr(row, name))
            if size > most:
                return f"{name} has {size} bytes, of at most {most}"
        return None

    async def _read(self, request: Request, body: bytearray) -> None:
        """Appends a request's body, and counts its bytes as held."""
        most = self._limits.max_body_bytes
        try:
            async for part in request.stream():
                body += part
                self._held += len(part)
                if len(body) > most:
                    raise Refused(413, f"more than {most} bytes")
                if self._held > self._limits.max_held_bytes:
                    raise Refused(429, "too many requests are being read")
        except ClientDisconnect as error:
            raise Refused(GONE, "the client is gone") from error

    async def _ask(
        self, request: Request, asked: Sequence[_Asked]
    ) -> List[Any]:
        """The outputs or vectors, unless the client leaves before."""
        asking = asyncio.ensure_future(self._batcher.ask(asked))
        leaving = asyncio.ensure_future(_until_gone(request))
        try:
            await asyncio.wait(
                [asking, leaving], return_when=asyncio.FIRST_COMPLETED
            )
            if not asking.done():
                raise Refused(GONE, "the client is gone")
            return asking.result()
        finally:
            asking.cancel()
            leaving.cancel()


async def _until_gone(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _send_file(request: Request) -> Response:
    return FileResponse(FOLDER / FILES[request.scope["path"]], headers=HEADERS)


async def _refuse(request: Request, error: Exception) -> Response:
    status = error.status_code
    # In seconds.
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse({"error": error.detail}, status, headers)


async def _fail(request: Request, error: Exception) -> Response:
    """Reports a defect; the log has the traceback."""
    return JSONResponse({"error": "the server has failed"}, 500)


async def _refuse_http(request: Request, error: Exception) -> Response:
    message = f"{error.detail}: {request.method} {request.url.path[:200]}"
    return JSONResponse({"error": message}, error.status_code, error.headers)


def read_rows(
    body: bytes, max_rows: int, signatures: Sequence[str] = (SIGNATURE,)
) -> Tuple[List[Row], bool, str]:
    """The rows of a request, whether they are columns, and the signature.

    Args:
        body: JSON, with `instances` (a list of objects) or `inputs` (an
            object of lists).
        max_rows: limit for a request.
        signatures: those of the model, the default one first.

    Raises:
        Refused: the body is something else; the message says where and why.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(400, "the body is no JSON object")
    signature = found.get("signature_name", "")
    if signature == "":
        signature = signatures[0]
    if signature not in signatures:
        known = " and ".join(map(repr, signatures))
        only = "is {} only" if len(signatures) == 1 else "are {}"
        raise Refused(
            400, f"unknown signature_name; there {only.format(known)}"
        )
    unknown = set(found) - {"signature_name", "instances", "inputs"}
    if unknown:
        raise Refused(400, f"the body has an unknown {min(unknown)[:80]!r}")
    if ("instances" in found) == ("inputs" in found):
        raise Refused(400, 'expected either "instances" or "inputs"')
    if "inputs" in found:
        rows = _read_columns(found["inputs"])
    else:
        rows = found["instances"]
        if not isinstance(rows, list):
            raise Refused(400, '"instances" is no list')
    if len(rows) > max_rows:
        raise Refused(400, f"{len(rows)} rows, of at most {max_rows}")
    read = [
        _read_row(row, f"row {number}") for number, row in enumerate(rows, 1)
    ]
    return read, "inputs" in found, signature


def _read_columns(columns: Any) -> List[Dict[str, Any]]:
    """Columns of equal length as a list of objects."""
    if not isinstance(columns, dict) or not all(
        isinstance(values, list) for values in columns.values()
    ):
        raise Refused(400, '"inputs" is no object of lists')
    if len(set(map(len, columns.values()))) != 1:
        raise Refused(400, "the lists of inputs are not equally long")
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _read_row(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise Refused(400, f"{where} is no object")
    unknown = set(row) - set(Row._fields)
    if unknown:
        raise Refused(
            400,
            f"{where} has an unknown {min(unknown)[:80]!r}; expected "
            f"{', '.join(Row._fields)}",
        )
    row = {"text_b": "", **row}
    return Row(*(_read_text(row.get(x), f"{where}: {x}") for x in Row._fields))


def _read_text(value: Any, where: str) -> bytes:
    """A text, or bytes as TensorFlow Serving has them."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise Refused(400, f"{where} holds half a character") from error
    if isinstance(value, dict) and set(value) == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (TypeError, ValueError) as error:
            raise Refused(400, f"{where} is no base64") from error
    raise Refused(
        400, f"{where} is {'missing' if value is None else 'no text'}"
    )
