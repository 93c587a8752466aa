"""TensorFlow Serving's REST for a shelf, as an ASGI application.

Source: TensorFlow Serving, "RESTful API". Unlike there, `text_b` may be left
out, which means "", `:answer` has the same answers in a shorter form,
`:explain` tells what each word adds to them, `:embed` gives vectors, and
`:rerank` orders the documents of a query. Endpoints that clients of other
servers know are aliases (`client_endpoints.py`). Bodies and answers may be
gzip. A page lets a person ask every task.
"""

import asyncio
import base64
import functools
import json
import pathlib
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

import h11
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from adapter_bert.answering.answers import ranked
from adapter_bert.graph.exported import (
    EMBED,
    SIGNATURE,
    Row,
    Tasks,
    shown_names,
)
from adapter_bert.json_lines import unique_keys
from adapter_bert.server.client_endpoints import (
    ALIASES,
    MODELS,
    Alias,
    describe_model,
    error_content,
    list_models,
)
from adapter_bert.server.http_guard import ADMIN, Tokens, guarded
from adapter_bert.server.request_core import (
    GONE,
    Limits,
    Refused,
    RequestCore,
    check_count,
)
from adapter_bert.server.request_metrics import CONTENT_TYPE
from adapter_bert.server.shelf import ANSWER, EXPLAIN, Question
from adapter_bert.tasks.kinds import RERANK

# The header that ends a connection after an answer.
CLOSE = (b"connection", b"close")
# Headers of a request that tell how long its body is.
LENGTHS = {b"content-length", b"transfer-encoding"}


class PatientProtocol(H11Protocol):
    """HTTP that cuts off slow clients, since a few could hold a server.

    Covers requests that do not come or come byte by byte, and answers that
    are not taken. What is no HTTP is refused in the form of other refusals.
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
# What a page of another origin may send.
CORS_HEADERS = ("Authorization", "Content-Encoding", "Content-Type")
FOLDER = pathlib.Path(__file__).parent
FILES = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css"}
# The page runs its own script alone, and talks to its own server alone.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
# What follows the model's name and a colon in a path.
VERBS = ("predict", ANSWER, EXPLAIN, EMBED, RERANK)
POSTED = tuple(f":{verb}" for verb in VERBS)
# Empty ones of `:predict`, which fills up a tagger's rows to the longest.
MOST_WORDS = 10**6


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
        self._core, self._shelf = core, core.shelf
        # A look may take long, and requests need asyncio's threads.
        self._looker = ThreadPoolExecutor(1, "look")
        contents = {
            "/tasks": self._tasks,
            "/healthz": lambda: {"status": "alive"},
            "/readyz": self._readiness,
            MODELS: lambda: list_models(self._shelf.tasks),
        }
        posts = {
            path: functools.partial(self._post, verb=alias.verb, alias=alias)
            for path, alias in ALIASES.items()
        }
        model = f"{MODELS}/{{name}}"
        for path in f"{model}/versions/{{version}}", model:
            for verb in VERBS:
                posts[f"{path}:{verb}"] = functools.partial(
                    self._post, verb=verb
                )
            contents[f"{path}/metadata"] = self._metadata
            contents[path] = self._status
        if admin:
            contents[f"{ADMIN}models"] = self._admin
            posts[f"{ADMIN}reload"] = self._reload
        # The first path is TensorFlow Serving's.
        metrics = ("/monitoring/prometheus/metrics", "/metrics")
        gets = {
            **dict.fromkeys(metrics, self._metrics),
            **dict.fromkeys(FILES, _send_file),
            **{path: self._getting(tell) for path, tell in contents.items()},
        }
        routes = [
            Route(path, answer, methods=[method])
            for method, answers in (("POST", posts), ("GET", gets))
            for path, answer in answers.items()
        ]
        middleware = [
            Middleware(
                GZipMiddleware,
                minimum_size=GZIP_BYTES,
                compresslevel=GZIP_LEVEL,
            )
        ]
        if origins:
            middleware.append(
                Middleware(
                    CORSMiddleware,
                    allow_origins=list(origins),
                    allow_methods=["GET", "POST"],
                    allow_headers=CORS_HEADERS,
                )
            )
        # Last: a browser asks without a token whether its page may ask.
        if tokens or admin:
            count = core.metrics.count_refused
            middleware.append(
                Middleware(guarded, tokens=tokens, admin=admin, count=count)
            )
        self.app = Starlette(
            routes=routes,
            middleware=middleware,
            # All accepted requests are answered before the end.
            lifespan=lambda app: core.live(),
            exception_handlers={HTTPException: _refuse, Exception: _fail},
        )
        # A client of JSON follows no redirect; other paths are not there.
        self.app.router.redirect_slashes = False

    def _getting(self, tell: Callable[[], Any]) -> Callable[..., Any]:
        async def answer(request: Request) -> Response:
            if request.scope["path"].endswith(POSTED):
                raise HTTPException(405, headers={"Allow": "POST"})
            name = request.path_params.get("name")
            # A client of OpenAI's asks for a task; other paths are TensorFlow
            # Serving's.
            is_plain = request.scope["path"] == f"{MODELS}/{name}"
            if (
                is_plain
                and name != self._core.name
                and name in self._shelf.tasks
            ):
                return JSONResponse(describe_model(name))
            self._check_path(request)
            return JSONResponse(tell())

        return answer

    def _check_path(self, request: Request) -> None:
        name, version = self._core.name, self._shelf.version
        place = {"name": name, "version": version, **request.path_params}
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

    def _tasks(self) -> dict[str, Any]:
        limits = self._core.limits
        return {
            "name": self._core.name,
            "version": self._shelf.version,
            "max_rows": limits.max_rows,
            "max_body_bytes": limits.max_body_bytes,
            "tasks": list(self._shelf.tasks.values()),
            "explained": self._shelf.explained(),
        }

    def _readiness(self) -> dict[str, Any]:
        if self._core.is_ending:
            raise Refused(503, "the server is ending")
        if not self._shelf.tasks:
            raise Refused(503, "no task is there to answer")
        return {"status": "ready"}

    def _status(self) -> dict[str, Any]:
        status = {
            "version": self._shelf.version,
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
        return {"model_version_status": [status]}

    def _metadata(self) -> dict[str, Any]:
        spec = {
            "name": self._core.name,
            "signature_name": "",
            "version": self._shelf.version,
        }
        metadata = {"signature_def": {"signature_def": self._shelf.signatures}}
        return {"model_spec": spec, "metadata": metadata}

    def _admin(self) -> dict[str, Any]:
        model = {
            "name": self._core.name,
            **self._status(),
            "tasks": {self._shelf.version: sorted(self._shelf.tasks)},
            "left_out": dict(self._shelf.left_out),
        }
        return {"models": [model]}

    async def _metrics(self, request: Request) -> Response:
        return Response(self._core.metrics.tell(), media_type=CONTENT_TYPE)

    async def _reload(self, request: Request) -> Response:
        """Looks for changes now, and tells what is served then."""
        # Whoever waits no more does not end the look.
        loop = asyncio.get_running_loop()
        looking = loop.run_in_executor(self._looker, self._shelf.look)
        await self._core.in_time(looking)
        return JSONResponse(self._admin())

    async def _post(
        self, request: Request, verb: str, alias: Optional[Alias] = None
    ) -> Response:
        request.state.alias = alias
        with self._core.counted() as request.state.tasks:
            self._check_path(request)
            answering = self._answer(request, verb)
            return JSONResponse(await self._core.in_time(answering))

    async def _answer(self, request: Request, verb: str) -> Any:
        """Answers in the client's form, and holds the request until then."""
        state = request.state
        with self._core.holding() as hold:
            content = await self._content(request, verb, hold)
            if not state.alias:
                return content
            # Texts are read again to count their tokens.
            return await asyncio.to_thread(
                state.alias.tell,
                state.body,
                content,
                lambda: self._shelf.count_tokens(state.questions),
            )

    async def _content(
        self, request: Request, verb: str, hold: Callable[[int], None]
    ) -> dict[str, Any]:
        """Gives answers, vectors, ranks, or the signature's outputs."""
        body = await self._read(request, hold)
        if verb == RERANK:
            return await self._ranks(request, body)
        rows, is_columns, signature = read_rows(
            body, self._core.limits.max_rows, list(self._shelf.signatures)
        )
        kind = verb if verb in (EXPLAIN, EMBED) else ANSWER
        if signature == EMBED:
            if verb in (ANSWER, EXPLAIN):
                raise Refused(400, f"an answer has no vectors; ask :{EMBED}")
            kind = EMBED
        questions = self._core.accept(rows, kind)
        results = await self._ask(request, questions)
        if verb == EMBED:
            return {"embeddings": results}
        if verb in (ANSWER, EXPLAIN):
            answers = [
                {"task": question.task, **self._shelf.answer(question, result)}
                for question, result in zip(questions, results)
            ]
            return {"answers": answers}
        form = "outputs" if is_columns else "predictions"
        if kind == EMBED:
            # A signature's only output has no name.
            return {form: results}
        words = [len(result.get("tokens", ())) for result in results]
        if len(words) * max(words, default=0) - sum(words) > MOST_WORDS:
            raise Refused(
                413,
                f"{len(words)} rows, each filled up to {max(words)} words; ask "
                f":{ANSWER}, or send long and short rows apart",
            )
        outputs = self._shelf.outputs(questions, results)
        if not is_columns:
            return {form: outputs}
        described = self._shelf.signatures[SIGNATURE].get("outputs", {})
        names = outputs[0] if outputs else sorted(described)
        return {form: {name: [row[name] for row in outputs] for name in names}}

    async def _ranks(self, request: Request, body: bytes) -> dict[str, Any]:
        rows, top_n = read_query(body, self._core.limits, self._shelf.tasks)
        questions = self._core.accept(rows)
        results = await self._ask(request, questions)
        answers = map(self._shelf.answer, questions, results)
        task = questions[0].task
        return {"task": task, "results": ranked(list(answers), top_n)}

    async def _read(
        self, request: Request, hold: Callable[[int], None]
    ) -> bytes:
        """Reads a request's body, all bytes of which are held."""
        most = self._core.limits.max_body_bytes
        coding = request.headers.get("content-encoding", "identity").lower()
        if coding not in ("identity", "gzip", "x-gzip"):
            raise Refused(
                415,
                f"unknown Content-Encoding {coding[:80]!r}; expected gzip or "
                "none",
                {"Accept-Encoding": "gzip"},
            )
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                hold(len(chunk))
                _check_size(body, most)
        except ClientDisconnect as error:
            raise Refused(GONE, "the client is gone") from error
        if coding != "identity":
            body = _unpack(body, most)
            hold(len(body))
        alias = request.state.alias
        if not alias:
            return body
        request.state.body = _read_object(body, {*alias.members})
        native = alias.translate(
            request.state.body, self._shelf, self._core.limits.max_rows
        )
        return json.dumps(native).encode()

    async def _ask(
        self, request: Request, questions: Sequence[Question]
    ) -> list[Any]:
        """Computes outputs or vectors, unless the client leaves before."""
        request.state.questions = questions
        request.state.tasks += [question.task for question in questions]
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


def _check_size(body: bytes, most: int) -> None:
    if len(body) > most:
        raise Refused(413, f"more than {most} bytes")


def _unpack(body: bytes, most: int) -> bytes:
    unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        content = unpacking.decompress(body, most + 1)
    except zlib.error as error:
        raise Refused(400, f"the body is not gzip: {error}") from error
    _check_size(content, most)
    if not unpacking.eof:
        raise Refused(400, "the gzip of the body is cut off")
    if unpacking.unused_data:
        raise Refused(400, "the body goes on behind the end of its gzip")
    return content


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _send_file(request: Request) -> Response:
    return FileResponse(FOLDER / FILES[request.scope["path"]], headers=HEADERS)


async def _refuse(request: Request, error: HTTPException) -> Response:
    message, headers = error.detail, dict(error.headers or {})
    if not isinstance(error, Refused):
        path = request.scope["path"][:200]
        message += f": {request.method} {path}"
    if "Allow" in headers:
        message += f"; use {headers['Allow']}"
    if error.status_code == 429:
        # In seconds.
        headers["Retry-After"] = "1"
    content = error_content(request.scope["path"], error.status_code, message)
    return JSONResponse(content, error.status_code, headers)


async def _fail(request: Request, error: Exception) -> Response:
    """Reports a defect; the log has the traceback."""
    content = error_content(request.scope["path"], 500, "the server has failed")
    return JSONResponse(content, 500)


def read_rows(
    body: bytes, max_rows: int, signatures: Sequence[str] = (SIGNATURE,)
) -> tuple[list[Row], bool, str]:
    """Reads a request: its rows, if they are columns, and the signature.

    Args:
        body: JSON, with `instances` (a list of objects) or `inputs` (an
            object of lists).
        max_rows: limit for a request.
        signatures: those of the model, the default one first.

    Raises:
        Refused: the body is something else; the message says where and why.
    """
    members = {"signature_name", "instances", "inputs"}
    content = _read_object(body, members)
    signature = content.get("signature_name", "")
    if signature == "":
        signature = signatures[0]
    if signature not in signatures:
        names = " and ".join(map(repr, signatures))
        raise Refused(400, f"unknown signature_name, expected {names}")
    if ("instances" in content) == ("inputs" in content):
        raise Refused(400, 'expected either "instances" or "inputs"')
    if "inputs" in content:
        rows = _read_columns(content["inputs"])
    else:
        rows = content["instances"]
        if not isinstance(rows, list):
            raise Refused(400, '"instances" is no list')
    check_count(rows, max_rows)
    read = [
        _read_row(row, f"row {number}") for number, row in enumerate(rows, 1)
    ]
    return read, "inputs" in content, signature


def read_query(
    body: bytes, limits: Limits, tasks: Tasks
) -> tuple[list[Row], Optional[int]]:
    """Reads a query's documents as rows, and how many are wanted or None.

    `task` of the body may be left out if one of the shelf's reranks. Raises
    `Refused` for another body.
    """
    content = _read_object(body, {"query", "documents", "task", "top_n"})
    documents, top_n = content.get("documents"), content.get("top_n")
    if not isinstance(documents, list) or not documents:
        raise Refused(400, '"documents" is no list of at least one text')
    check_count(documents, limits.max_rows)
    if top_n is not None and not (type(top_n) is int and top_n > 0):
        raise Refused(400, '"top_n" is no whole number above 0')
    rerankers = [n for n, task in tasks.items() if task["kind"] == RERANK]
    named = content.get("task")
    chosen = [n for n in rerankers if named in (None, n)]
    if len(chosen) != 1:
        raise Refused(
            400 if rerankers else 404,
            f'"task" is {json.dumps(named)[:80]}, expected a task of the kind '
            f"{RERANK}: {shown_names(rerankers) or 'there is none'}",
        )
    query, [task] = _read_text(content.get("query"), "query"), chosen
    rows = [
        Row(query, _read_text(text, f"document {number}"), task.encode())
        for number, text in enumerate(documents, 1)
    ]
    # The query is computed anew with each document.
    size = sum(len(row.text) + len(row.text_b) for row in rows)
    if size > limits.max_body_bytes:
        raise Refused(
            413,
            f"the documents, each with the query, have {size} bytes, of at "
            f"most {limits.max_body_bytes}",
        )
    return rows, top_n


def _read_object(body: bytes, members: set[str]) -> dict[str, Any]:
    try:
        content = json.loads(body, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise Refused(400, "the body is not a JSON object")
    unknown = set(content) - members
    if unknown:
        raise Refused(400, f"the body has an unknown {min(unknown)[:80]!r}")
    return content


def _read_columns(columns: Any) -> list[dict[str, Any]]:
    if not isinstance(columns, dict) or not all(
        isinstance(values, list) for values in columns.values()
    ):
        raise Refused(400, '"inputs" is no object of lists')
    if len(set(map(len, columns.values()))) != 1:
        raise Refused(400, "the lists of inputs are not equally long")
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _read_row(values: Any, where: str) -> Row:
    if not isinstance(values, dict):
        raise Refused(400, f"{where} is no object")
    unknown = set(values) - set(Row._fields)
    if unknown:
        raise Refused(
            400,
            f"{where} has an unknown {min(unknown)[:80]!r}; expected "
            f"{', '.join(Row._fields)}",
        )

    def read(name: str, default: Any = None, an_entry: str = "") -> Any:
        value = values.get(name)
        # An optional member may be null.
        value = default if value is None else value
        if an_entry and isinstance(value, list):
            return tuple(_read_text(x, f"{where}: {an_entry}") for x in value)
        return _read_text(value, f"{where}: {name}")

    choices = read("choices", [], "a choice")
    if isinstance(choices, bytes):
        raise Refused(400, f"{where}: choices is no list")
    # Columns have "" at the end of rows with fewer choices than others.
    count = next((n for n in range(len(choices), 0, -1) if choices[n - 1]), 0)
    text = read("text", an_entry="a word of text")
    return Row(text, read("text_b", ""), read("task"), choices[:count])


def _read_text(value: Any, where: str) -> bytes:
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
