r"""Answers texts over the network, with a library or an exported model.

    .venv/bin/adapter-bert serve --init_checkpoint=$BERT --library=DIR
    curl localhost:8501/v1/models/adapter_bert:answer -d \
        '{"instances": [{"task": "mrpc", "text": "a", "text_b": "b"}]}'

serves the adapters that the library has at that time. `--model=exported` serves
a model of `adapter-bert export`. docs/serve.md tells more.
"""

import contextlib
import dataclasses
import functools
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any, Callable, Optional

import adapter_bert.start_tensorflow  # noqa: F401

import uvicorn
from absl import logging

from adapter_bert.answering.predictor import Predictor
from adapter_bert.errors import UserError
from adapter_bert.flags import (
    FLAGS,
    NOT_NEGATIVE,
    POSITIVE,
    Range,
    Topic,
    is_given,
    read,
)
from adapter_bert.graph.exported import ExportedModel
from adapter_bert.library import flags as adapter_flags
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.server import json_log
from adapter_bert.server.batching import Bounds
from adapter_bert.server.http_api import PatientProtocol, RestServer
from adapter_bert.server.http_guard import Tokens, origin_of, read_tokens
from adapter_bert.server.live_library import LiveLibrary
from adapter_bert.server.request_core import Limits, RequestCore
from adapter_bert.server.shelf import ExportedShelf, Shelf

TEXT, JSON = "text", "json"
# Connections that wait to be accepted.
BACKLOG = 2048
# Seconds that a batch may take after the requests' time is over.
UNTIL_ABORT = 5


@dataclasses.dataclass(frozen=True)
class Serving:
    """Says what is served, and the limits of the server."""

    model: str = Topic.SERVED.setting(
        "",
        "Folder that adapter-bert export wrote, its --output_dir, whose newest "
        "version is served instead of --init_checkpoint and --library.",
    )
    poll_seconds: int = Topic.SERVED.setting(
        10,
        "Seconds from one look at --library to the next.",
        POSITIVE,
    )
    name: str = Topic.SERVED.setting(
        "adapter_bert",
        "Name of the model in its URL.",
        Range(
            lambda value: re.fullmatch(r"[\w.-]+", value, re.ASCII),
            "expected letters, digits, _ . -",
        ),
    )
    host: str = Topic.SERVED.setting(
        "127.0.0.1",
        "Address to listen at; only this machine can ask at 127.0.0.1.",
    )
    port: int = Topic.SERVED.setting(
        8501,
        "Port to listen at; 0 takes any that is free.",
        Range(lambda value: 0 <= value < 2**16, "expected 0 to 65535"),
    )
    cors_origins: list[str] = Topic.SERVED.setting(
        [],
        "Origins whose pages may ask too (CORS), as https://example.org, or *.",
    )
    token_file: str = Topic.SERVED.setting(
        "",
        "File of tokens, one on each line; each request needs one of them: "
        "Authorization: Bearer TOKEN.",
    )
    admin_token_file: str = Topic.SERVED.setting(
        "",
        "File of tokens, one on each line, for requests to /admin/, which are "
        "refused otherwise.",
    )
    ssl_certfile: str = Topic.SERVED.setting(
        "", "File of a certificate (PEM), for https; with --ssl_keyfile."
    )
    ssl_keyfile: str = Topic.SERVED.setting(
        "", "File of the certificate's key (PEM)."
    )
    log_format: str = Topic.SERVED.setting(
        TEXT, "Form of the log's lines.", choices=(TEXT, JSON)
    )
    token_requests: Optional[int] = Topic.LIMITS.setting(
        None,
        "Most requests of a token in a minute, on average, and at once after a "
        "pause; default: any number.",
        POSITIVE,
    )
    max_body_mb: int = Topic.LIMITS.setting(
        1, "Largest request, in MB.", POSITIVE
    )
    max_held_mb: int = Topic.LIMITS.setting(
        256, "Largest total of all requests at a time, in MB.", POSITIVE
    )
    max_rows: int = Topic.LIMITS.setting(
        1024, "Most rows of a request.", POSITIVE
    )
    max_text_kb: int = Topic.LIMITS.setting(
        100, "Longest text, in kB.", POSITIVE
    )
    max_waiting_rows: int = Topic.LIMITS.setting(
        8192, "Most rows that may wait to be computed.", POSITIVE
    )
    max_batch_rows: int = Topic.LIMITS.setting(
        128, "Most rows that are computed at once, of any requests.", POSITIVE
    )
    max_batch_kb: int = Topic.LIMITS.setting(
        128, "Most text that is computed at once, in kB.", POSITIVE
    )
    end_s: int = Topic.LIMITS.setting(
        30,
        "Seconds that requests have to end after SIGTERM or Ctrl-C.",
        POSITIVE,
    )
    drain_s: int = Topic.LIMITS.setting(
        0,
        "Seconds after SIGTERM or Ctrl-C, before those of --end_s, in which "
        "requests are still taken, while /readyz says 503 to load balancers.",
        NOT_NEGATIVE,
    )
    keep_alive_s: Optional[int] = Topic.LIMITS.setting(
        None,
        "Seconds that a connection waits for its next request; default: "
        "--timeout_s.",
        POSITIVE,
    )
    timeout_s: int = Topic.LIMITS.setting(
        60,
        "Seconds until a request is given up. A connection without an answer "
        "is cut off after twice as long, or so long after --keep_alive_s.",
        POSITIVE,
    )


SETTINGS = (Serving, adapter_flags.OneBert)


class EndingServer(uvicorn.Server):
    """A server that ends within a time after a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        core: RequestCore,
        seconds: int,
        drain: int = 0,
    ):
        """Takes what answers, and how long the end takes.

        Args:
            config: of uvicorn.
            core: answers, and is not ready any more from a signal on.
            seconds: from the last taken request to the process's end.
            drain: seconds before, from a signal on.
        """
        super().__init__(config)
        self._core, self._seconds, self._drain = core, seconds, drain

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begins to end, at a second signal without taking requests."""
        drain = 0 if self._core.is_ending else self._drain
        self._core.is_ending = True
        if drain:
            _later(drain, lambda: self.should_exit or self._end(sig, frame))
        else:
            self._end(sig, frame)

    def _end(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        _later(self._seconds, functools.partial(_abort, self._seconds))


def _later(seconds: int, call: Callable[[], Any]) -> None:
    timer = threading.Timer(seconds, call)
    # A daemon, so that a process that is done does not wait for the time.
    timer.daemon = True
    timer.start()


def _abort(seconds: int) -> None:
    logging.error("a batch did not end within %d seconds", seconds)
    os._exit(1)


def limits_of(serving: Serving) -> Limits:
    """Gives the limits in bytes, rows and seconds."""
    return Limits(
        max_body_bytes=min(serving.max_body_mb, serving.max_held_mb) * 10**6,
        max_held_bytes=serving.max_held_mb * 10**6,
        max_rows=min(serving.max_rows, serving.max_waiting_rows),
        max_text_bytes=serving.max_text_kb * 1000,
        batching=Bounds(
            batch_rows=serving.max_batch_rows,
            batch_bytes=serving.max_batch_kb * 1000,
            waiting_rows=serving.max_waiting_rows,
        ),
        timeout=serving.timeout_s,
    )


def check_certificate(serving: Serving) -> None:
    """Checks that the files of https belong together."""
    certificate, key = serving.ssl_certfile, serving.ssl_keyfile
    if not (certificate or key):
        return
    if not (certificate and key):
        raise UserError("--ssl_certfile and --ssl_keyfile go together")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without a password; with one, OpenSSL would ask the terminal.
        context.load_cert_chain(certificate, key, password="")
    # `ssl.SSLError` is an `OSError`.
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot use --ssl_certfile {certificate} with --ssl_keyfile "
            f"{key}: {error}; expected PEM files, the key without a password"
        ) from error


def open_shelf(serving: Serving) -> Shelf:
    """Loads what the flags name, ready to answer."""
    if serving.model:
        model = ExportedModel(serving.model)
        model.warm_up()
        return ExportedShelf(model)
    settings = adapter_flags.read_flags(adapter_flags.OneBert)
    library = AdapterLibrary(settings.library)
    predictor = Predictor(
        adapter_flags.open_bert(settings),
        settings.predict_batch_size,
        settings.max_seq_length,
        settings.adapter_dtype,
        library.path,
    )
    live = LiveLibrary(library, predictor)
    live.watch(serving.poll_seconds)
    return live


def listen(serving: Serving) -> socket.socket:
    """Takes a socket at the flags' host and port; 0 is any that is free."""
    with _at_address(serving):
        family, kind, protocol, _, address = socket.getaddrinfo(
            serving.host, serving.port, type=socket.SOCK_STREAM
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    return listening


@contextlib.contextmanager
def _at_address(serving: Serving) -> Iterator[None]:
    try:
        yield
    # A name with an empty part is a `UnicodeError`.
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"cannot listen at {serving.host}, port {serving.port}: {error}; "
            "choose another --host or --port"
        ) from error


def _allow_files() -> None:
    """Raises the limit of open files, of which a connection is one."""
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # On macOS the most may be without limit, and is refused.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        if allowed != most:
            logging.info("open files: up to %d, raised from %d", most, allowed)


def main() -> None:
    """Serves until a signal."""
    serving = read(Serving)
    if serving.log_format == JSON:
        json_log.use()
    if bool(serving.model) == bool(FLAGS.library):
        raise UserError(
            "pass one of the two: --init_checkpoint and --library, or --model, "
            "the folder of an exported model"
        )
    for field in dataclasses.fields(adapter_flags.OneBert):
        if serving.model and is_given(field.name):
            raise UserError(
                f"--{field.name} is for --library; leave it out for --model"
            )
    if serving.token_requests and not serving.token_file:
        raise UserError("--token_requests needs tokens; pass --token_file too")
    check_certificate(serving)
    tokens, admin = (
        Tokens(read_tokens(path), per_minute) if path else None
        for path, per_minute in (
            (serving.token_file, serving.token_requests),
            (serving.admin_token_file, None),
        )
    )
    origins = list(map(origin_of, serving.cors_origins))
    listening = listen(serving)
    _allow_files()
    shelf = open_shelf(serving)
    core = RequestCore(serving.name, shelf, limits_of(serving))
    rest = RestServer(core, origins, tokens, admin)
    # From now on clients wait; before, they are refused. Another server may
    # have taken the address meanwhile.
    with _at_address(serving):
        listening.listen(BACKLOG)
    logging.info(
        "%s version %s, %d tasks, at %s://%s:%d/v1/models/%s",
        serving.model or FLAGS.library,
        shelf.version,
        len(shelf.tasks),
        "https" if serving.ssl_certfile else "http",
        serving.host,
        listening.getsockname()[1],
        serving.name,
    )
    keep_alive = serving.keep_alive_s or serving.timeout_s
    # A connection may wait, and then has time for an answer.
    patience = serving.timeout_s + max(serving.timeout_s, keep_alive)
    server = EndingServer(
        uvicorn.Config(
            rest.app,
            http=functools.partial(PatientProtocol, patience=patience),
            ws="none",
            ssl_certfile=serving.ssl_certfile or None,
            ssl_keyfile=serving.ssl_keyfile or None,
            log_config=None,
            access_log=False,
            lifespan="on",
            backlog=BACKLOG,
            timeout_keep_alive=keep_alive,
            timeout_graceful_shutdown=serving.end_s,
        ),
        core,
        serving.end_s + UNTIL_ABORT,
        serving.drain_s,
    )
    server.run(sockets=[listening])
