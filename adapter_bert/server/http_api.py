"""TensorFlow Serving's REST for a shelf, as an ASGI application.

Source: TensorFlow Serving, "RESTful API". Unlike there, `text_b` may be left
out, which means "", `:answer` has the same answers in a shorter form,
`:explain` tells what each word adds to them, and `:embed` gives vectors.
Bodies and answers may be gzip. A page lets a person ask every task.
"""

import asyncio
import base64
import functools
import json
import pathlib
import re
import zlib
from collections.abc import Sequence
from typing import Any, Callable, Optional

import h11
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from adapter_bert.graph.exported import EMBED, SIGNATURE
from adapter_bert.json_lines import unique_keys
from adapter_bert.server.http_guard import ADMIN, TokenGuard, Tokens
from adapter_bert.server.request_core import GONE, Refused, RequestCore
from adapter_bert.server.request_metrics import CONTENT_TYPE
from adapter_bert.server.shelf import ANSWER, EXPLAIN, Question, RequestRow

# The header that ends a connection after an answer.
CLOSE = (b"connection", b"close")
# Headers of a request that tell how long its body is.
LENGTHS = {b"content-length", b"transfer-encoding"}
# Seconds after a client's end at which it is written to. The first time a
# client that is gone refuses, and the second time the system knows.
PROBES = (1, 2)


class PatientProtocol(H11Protocol):
    """HTTP that cuts off slow clients, since a few could hold a server.

    Covers requests that do not come or come byte by byte, and answers that
    are not taken. What is no HTTP is refused in the form of other refusals.
    A client that has only ended its sending is answered.
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

    def handle_events(self) -> None:
        """Reads what has come; ends connections whose requests are unclear.

        Where two headers tell a body's length, a proxy may have read another
        length than this server (RFC 9112, 6.1).
        """
        super().handle_events()
        headers = self.headers or []
        if CLOSE not in headers and LENGTHS <= {name for name, _ in headers}:
            headers.append(CLOSE)

    def eof_received(self) -> bool:
        """Keeps the connection for an answer that is asked for already."""
        cycle = self.cycle
        if (
            not cycle
            or cycle.more_body
            or cycle.response_complete
            # TLS ends in both directions at once.
            or self.scheme == "https"
        ):
            return False
        cycle.keep_alive = False
        for seconds in PROBES:
            self.loop.call_later(seconds, self._probe)
        return True

    def _probe(self) -> None:
        """Writes to a client, since one that is gone refuses what comes."""
        if (
            self.conn.our_state is h11.SEND_RESPONSE
            and self.conn.their_http_version == b"1.1"
            and not self.transport.is_closing()
        ):
            going_on = h11.InformationalResponse(
                status_code=100, headers=[], reason=b"Continue"
            )
            self.transport.write(self.conn.send(going_on))

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP, and ends the connection."""
        # Else the answer has begun before the rest of its request came.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            refusal = JSONResponse({"error": msg}, 400)
            headers = [*refusal.raw_headers, CLOSE]
            for event in (
                h11.Response(
                    status_code=400, headers=headers, reason=b"Bad Request"
                ),
                h11.Data(data=refusal.body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        # The application may be answering the part that was right.
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _wait(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = self.loop.call_later(self._patience, self.transport.abort)


# Answers of at least so many bytes are compressed, and how much.
GZIP_BYTES, GZIP_LEVEL = 1000, 5
ACCEPTED = "Accept-Encoding"
# What a page of another origin may send.
CORS_HEADERS = ("Authorization", "Content-Encoding", "Content-Type")
# The first path is TensorFlow Serving's.
METRICS = ("/monitoring/prometheus/metrics", "/metrics")
FOLDER = pathlib.Path(__file__).parent
FILES = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css"}
# The page runs its own script alone, and talks to its own server alone.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}

# Members of a row, of which all but the first and the last may be left out.
MEMBERS = ("text", "text_b", "choices", "task")
# What follows the model's name and a colon in a path.
VERBS = ("predict", ANSWER, EXPLAIN, EMBED)


class RestServer:
    """Serves by the application `app`."""

    def __init__(
        self,
        core: RequestCore,
        origins: Sequence[str] = (),
        tokens: Optional[Tokens] = None,
        admin: Optional[Tokens] = None,
    ):
        """Takes what answers, and what clients may do.

        Args:
            core: answers.
            origins: those whose pages may ask too, or `*` for all (CORS).
            tokens: those of which each request needs one; None for none.
            admin: those of which a request to `ADMIN` needs one; None for no
                such requests.
        """
        self._core = core
        routes = [
            Route("/tasks", self._tell_tasks),
            Route("/healthz", self._tell_health),
            Route("/readyz", self._tell_readiness),
            *(Route(path, self._tell_metrics) for path in METRICS),
            *(Route(path, _send_file) for path in FILES),
        ]
        model = "/v1/models/{name}"
        for path in f"{model}/versions/{{version}}", model:
            for verb in VERBS:
                post = functools.partial(self._post, verb=verb)
                routes += [
                    Route(f"{path}:{verb}", post, methods=["POST"]),
                    Route(f"{path}:{verb}", _refuse_get),
                ]
            routes += [
                Route(f"{path}/metadata", self._tell_metadata),
                Route(path, self._tell_status),
            ]
        if admin:
            routes += [
                Route(f"{ADMIN}models", self._tell_admin),
                Route(f"{ADMIN}reload", self._reload, methods=["POST"]),
            ]
        self.app = Starlette(
            routes=routes,
            middleware=_middleware(
                origins, tokens, admin, core.metrics.count_refused
            ),
            # All accepted requests are answered before the end.
            lifespan=lambda app: core.live(),
            exception_handlers={
                HTTPException: _refuse_http,
                Refused: _refuse,
                Exception: _fail,
            },
        )
        # A client of JSON follows no redirect; other paths are not there.
        self.app.router.redirect_slashes = False

    def _check_path(self, request: Request) -> None:
        """Refuses paths that name another model or version."""
        name, version = self._core.name, self._core.shelf.version
        place = {"version": version, **request.path_params}
        if place["name"] != name:
            raise Refused(
                404, f"no model {place['name'][:80]!r}; there is {name!r}"
            )
        if place["version"] != version:
            raise Refused(
                404,
                f"no version {place['version'][:20]} of {name!r}; there is "
                f"{version}",
            )

    async def _tell_tasks(self, request: Request) -> Response:
        shelf, limits = self._core.shelf, self._core.limits
        return JSONResponse(
            {
                "name": self._core.name,
                "version": shelf.version,
                "max_rows": limits.max_rows,
                "max_body_bytes": limits.max_body_bytes,
                "tasks": list(shelf.tasks.values()),
                "explained": shelf.explained(),
            }
        )

    def _status(self) -> dict[str, Any]:
        """Gives the only version's state in TensorFlow Serving's form."""
        status = {
            "version": self._core.shelf.version,
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
        return {"model_version_status": [status]}

    async def _tell_status(self, request: Request) -> Response:
        self._check_path(request)
        return JSONResponse(self._status())

    async def _tell_metadata(self, request: Request) -> Response:
        self._check_path(request)
        spec = {
            "name": self._core.name,
            "signature_name": "",
            "version": self._core.shelf.version,
        }
        metadata = {
            "signature_def": {"signature_def": self._core.shelf.signatures}
        }
        return JSONResponse({"model_spec": spec, "metadata": metadata})

    async def _tell_health(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def _tell_readiness(self, request: Request) -> Response:
        why = self._core.unready()
        if why:
            return JSONResponse({"error": why}, 503)
        return JSONResponse({"status": "ready"})

    async def _tell_metrics(self, request: Request) -> Response:
        return Response(self._core.metrics.tell(), media_type=CONTENT_TYPE)

    async def _tell_admin(self, request: Request) -> Response:
        shelf = self._core.shelf
        model = {
            "name": self._core.name,
            **self._status(),
            "tasks": {shelf.version: sorted(shelf.tasks)},
            "left_out": dict(shelf.left_out),
        }
        return JSONResponse({"models": [model]})

    async def _reload(self, request: Request) -> Response:
        """Looks for changes now, and tells what is served then."""
        # Whoever waits no more does not end the look.
        looking = asyncio.to_thread(self._core.shelf.look)
        await self._core.in_time(looking)
        return await self._tell_admin(request)

    async def _post(self, request: Request, verb: str) -> Response:
        with self._core.counted() as tasks:
            self._check_path(request)
            return await self._core.in_time(self._respond(request, verb, tasks))

    async def _respond(
        self, request: Request, verb: str, tasks: list[str]
    ) -> Response:
        """Answers, explained ones, vectors, or the signature's outputs.

        `tasks` gets those of the accepted rows.
        """
        shelf = self._core.shelf
        body = bytearray()
        try:
            await self._read(request, body)
            rows, is_columns, signature = read_rows(
                body, self._core.limits.max_rows, list(shelf.signatures)
            )
            if verb in (ANSWER, EXPLAIN) and signature == EMBED:
                raise Refused(400, f"an answer has no vectors; ask :{EMBED}")
            kind = EXPLAIN if verb == EXPLAIN else ANSWER
            if EMBED in (verb, signature):
                kind = EMBED
            questions = self._core.accept(rows, kind)
            tasks += [question.task for question in questions]
            results = await self._ask(request, questions)
        finally:
            self._core.release(len(body))
        if verb == EMBED:
            return JSONResponse({"embeddings": results})
        if verb in (ANSWER, EXPLAIN):
            answers = [
                {"task": question.task, **shelf.answer(question, result)}
                for question, result in zip(questions, results)
            ]
            return JSONResponse({"answers": answers})
        form = "outputs" if is_columns else "predictions"
        if kind == EMBED:
            # A signature's only output has no name.
            return JSONResponse({form: results})
        outputs = shelf.outputs(questions, results)
        if not is_columns:
            return JSONResponse({form: outputs})
        names = outputs[0] if outputs else shelf.output_names()
        columns = {name: [row[name] for row in outputs] for name in names}
        return JSONResponse({form: columns})

    async def _read(self, request: Request, body: bytearray) -> None:
        """Appends a request's body, and counts its bytes as held."""
        most = self._core.limits.max_body_bytes
        packed = _Gzip() if _is_packed(request) else None
        arrived = 0
        try:
            async for chunk in request.stream():
                arrived += len(chunk)
                if packed:
                    # Never more than the first byte that is refused.
                    chunk = packed.unpack(chunk, most + 1 - len(body))
                body += chunk
                self._core.hold(len(chunk))
                if max(arrived, len(body)) > most:
                    raise Refused(413, f"more than {most} bytes")
            if packed:
                packed.check_end()
        except ClientDisconnect as error:
            raise Refused(GONE, "the client is gone") from error

    async def _ask(
        self, request: Request, questions: Sequence[Question]
    ) -> list[Any]:
        """Computes outputs or vectors, unless the client leaves before."""
        asking = asyncio.ensure_future(self._core.ask(questions))
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


class _Gzip:
    """Unpacks a body that comes in chunks; raises `Refused` for no gzip."""

    def __init__(self):
        self._unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def unpack(self, chunk: bytes, most: int) -> bytes:
        """Gives a chunk's content, at most so many bytes."""
        try:
            content = self._unpacking.decompress(chunk, most)
        except zlib.error as error:
            raise Refused(400, f"the body is not gzip: {error}") from error
        if self._unpacking.unused_data:
            raise Refused(400, "the body goes on behind the end of its gzip")
        return content

    def check_end(self) -> None:
        """Raises `Refused` for a body that is cut off."""
        if not self._unpacking.eof:
            raise Refused(400, "the gzip of the body is cut off")


def _is_packed(request: Request) -> bool:
    """Tells if a body is gzip; raises `Refused` for other encodings."""
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding not in ("identity", "gzip", "x-gzip"):
        raise Refused(
            415,
            f"unknown Content-Encoding {coding[:80]!r}; expected gzip or none",
            {ACCEPTED: "gzip"},
        )
    return coding != "identity"


class _GzipWhereTaken(GZipMiddleware):
    """Compresses for clients that take gzip, and not for `gzip;q=0`."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = MutableHeaders(scope=scope)
            accepted = ",".join(headers.getlist(ACCEPTED))
            # Starlette looks for the letters alone.
            headers[ACCEPTED] = "gzip" if takes_gzip(accepted) else "identity"
        await super().__call__(scope, receive, send)


def takes_gzip(accepted: str) -> bool:
    """Reads the header `Accept-Encoding` (RFC 9110, 12.5.3)."""
    codings = re.sub(r"\s", "", accepted.lower()).split(",")
    weights = dict(coding.partition(";q=")[::2] for coding in codings)
    weight = next(
        (weights[x] for x in ("gzip", "x-gzip", "*") if x in weights), "0"
    )
    return not re.fullmatch(r"0(\.0*)?", weight)


def _middleware(
    origins: Sequence[str],
    tokens: Optional[Tokens],
    admin: Optional[Tokens],
    count: Callable[[int], None],
) -> list[Middleware]:
    """Compression, CORS for some origins, and last the check of tokens.

    A browser asks without a token whether its page may ask.
    """
    layers = [
        Middleware(
            _GzipWhereTaken, minimum_size=GZIP_BYTES, compresslevel=GZIP_LEVEL
        )
    ]
    if origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["GET", "POST"],
                allow_headers=CORS_HEADERS,
            )
        )
    if tokens or admin:
        layers.append(
            Middleware(TokenGuard, tokens=tokens, admin=admin, count=count)
        )
    return layers


async def _refuse_get(request: Request) -> Response:
    path = request.url.path[:200]
    raise Refused(405, f"use POST: {path} reads rows", {"Allow": "POST"})


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _send_file(request: Request) -> Response:
    return FileResponse(FOLDER / FILES[request.scope["path"]], headers=HEADERS)


async def _refuse(request: Request, error: Exception) -> Response:
    status, headers = error.status_code, error.headers
    if status == 429:
        # In seconds.
        headers = {"Retry-After": "1"}
    return JSONResponse({"error": error.detail}, status, headers)


async def _fail(request: Request, error: Exception) -> Response:
    """Reports a defect; the log has the traceback."""
    return JSONResponse({"error": "the server has failed"}, 500)


async def _refuse_http(request: Request, error: Exception) -> Response:
    message = f"{error.detail}: {request.method} {request.url.path[:200]}"
    return JSONResponse({"error": message}, error.status_code, error.headers)


def read_rows(
    body: bytes, max_rows: int, signatures: Sequence[str] = (SIGNATURE,)
) -> tuple[list[RequestRow], bool, str]:
    """Reads a request: its rows, if they are columns, and the signature.

    Args:
        body: JSON, with `instances` (a list of objects) or `inputs` (an
            object of lists).
        max_rows: limit for a request.
        signatures: those of the model, the default one first.

    Raises:
        Refused: the body is something else; the message says where and why.
    """
    try:
        content = json.loads(body, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise Refused(400, "the body is not a JSON object")
    signature = content.get("signature_name", "")
    if signature == "":
        signature = signatures[0]
    if signature not in signatures:
        names = " and ".join(map(repr, signatures))
        raise Refused(400, f"unknown signature_name, expected {names}")
    unknown = set(content) - {"signature_name", "instances", "inputs"}
    if unknown:
        raise Refused(400, f"the body has an unknown {min(unknown)[:80]!r}")
    if ("instances" in content) == ("inputs" in content):
        raise Refused(400, 'expected either "instances" or "inputs"')
    if "inputs" in content:
        rows = _read_columns(content["inputs"])
    else:
        rows = content["instances"]
        if not isinstance(rows, list):
            raise Refused(400, '"instances" is no list')
    if len(rows) > max_rows:
        raise Refused(400, f"{len(rows)} rows, of at most {max_rows}")
    read = [
        _read_row(row, f"row {number}") for number, row in enumerate(rows, 1)
    ]
    return read, "inputs" in content, signature


def _read_columns(columns: Any) -> list[dict[str, Any]]:
    """Columns of equal length as a list of objects."""
    if not isinstance(columns, dict) or not all(
        isinstance(values, list) for values in columns.values()
    ):
        raise Refused(400, '"inputs" is no object of lists')
    if len(set(map(len, columns.values()))) != 1:
        raise Refused(400, "the lists of inputs are not equally long")
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _read_row(row: Any, where: str) -> RequestRow:
    if not isinstance(row, dict):
        raise Refused(400, f"{where} is no object")
    unknown = set(row) - set(MEMBERS)
    if unknown:
        raise Refused(
            400,
            f"{where} has an unknown {min(unknown)[:80]!r}; expected "
            f"{', '.join(MEMBERS)}",
        )
    # An optional member may be null.
    row = {name: value for name, value in row.items() if value is not None}
    row = {"text_b": "", "choices": [], **row}
    text, choices = row.get("text"), row["choices"]
    if not isinstance(choices, list):
        raise Refused(400, f"{where}: choices is no list")

    def read_list(values: list[Any], name: str) -> tuple[bytes, ...]:
        return tuple(_read_text(value, f"{where}: {name}") for value in values)

    return RequestRow(
        task=_read_text(row.get("task"), f"{where}: task"),
        text=read_list(text, "a word of text")
        if isinstance(text, list)
        else _read_text(text, f"{where}: text"),
        text_b=_read_text(row["text_b"], f"{where}: text_b"),
        choices=read_list(choices, "a choice"),
    )


def _read_text(value: Any, where: str) -> bytes:
    """A text, or bytes as TensorFlow Serving has them."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise Refused(400, f"{where} holds half a character") from error
    if isinstance(value, dict) and set(value) == {"b64"}:
        # Many encoders leave the padding out.
        try:
            padding = "=" * (-len(value["b64"]) % 4)
            return base64.b64decode(value["b64"] + padding, validate=True)
        except (TypeError, ValueError) as error:
            raise Refused(400, f"{where} is no base64") from error
    raise Refused(
        400, f"{where} is {'missing' if value is None else 'no text'}"
    )
