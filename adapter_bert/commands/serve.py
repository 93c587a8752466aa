r"""Answers texts over the network, with a library or an exported model.

    .venv/bin/adapter-bert serve --init_checkpoint=$BERT --library=DIR
    curl localhost:8501/v1/models/adapter_bert:answer -d \
        '{"instances": [{"task": "mrpc", "text": "a", "text_b": "b"}]}'

serves the adapters that the library has at that time. `--model=exported` serves
a model of `adapter-bert export`, `--model_config_file` several.

The server speaks TensorFlow Serving's REST, and its gRPC with `--grpc_port`.
docs/serve.md tells more.
"""

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import resource
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import (
    Any,
    Callable,
    Optional,
)

import adapter_bert.start_tensorflow  # noqa: F401

import uvicorn
from absl import logging

from adapter_bert import files
from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, NOT_NEGATIVE, Range, Topic, read
from adapter_bert.serving import flags as adapter_flags
from adapter_bert.serving import json_log
from adapter_bert.serving.batching import Bounds
from adapter_bert.serving.exported import GRAPH, is_version, versions_in
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.http_api import PatientProtocol, RestServer
from adapter_bert.serving.http_guard import Tokens, origin_of, read_tokens
from adapter_bert.serving.library import AdapterLibrary
from adapter_bert.serving.live_library import LiveLibrary
from adapter_bert.serving.model_versions import (
    LibraryVersion,
    ModelVersions,
    VersionFolder,
    VersionPolicy,
)
from adapter_bert.serving.predictor import Predictor
from adapter_bert.serving.request_core import Limits, RequestCore
from adapter_bert.serving.served_models import ServedModels
from adapter_bert.serving.shadow import Shadow

LATEST, ALL, SPECIFIC = POLICIES = ("latest", "all", "specific")
TEXT, JSON = "text", "json"
# Connections that wait to be accepted.
BACKLOG = 2048
# Seconds that a batch may take after the requests' time is over.
UNTIL_ABORT = 5
LARGE = Range(lambda value: value >= 1, "expected more")


@dataclasses.dataclass(frozen=True)
class Served:
    """The served model, and the limits of the server."""

    model: str = Topic.SERVED.setting(
        "",
        "Folder that adapter-bert export wrote, its --output_dir, instead of "
        "--init_checkpoint and --library.",
    )
    model_version_policy: str = Topic.SERVED.setting(
        LATEST,
        "Versions of --model that are served: the newest one, all, or those "
        "of --model_versions.",
        choices=POLICIES,
    )
    model_versions: list[str] = Topic.SERVED.setting(
        [], "Numbers of versions for --model_version_policy=specific, as 3,4."
    )
    model_config_file: str = Topic.SERVED.setting(
        "",
        "TensorFlow Serving's file of several exported models, instead of "
        "--model.",
    )
    shadow: str = Topic.SERVED.setting(
        "",
        "Library, or folder of an exported model, whose answers to the same "
        "rows are compared with the served ones in the metrics, and given to "
        "no client.",
    )
    shadow_init_checkpoint: str = Topic.SERVED.setting(
        "",
        "The pretrained BERT of a library of --shadow; default: "
        "--init_checkpoint.",
    )
    poll_seconds: int = Topic.SERVED.setting(
        10,
        "Seconds from one look at --library, --model, --model_config_file or "
        "--shadow to the next.",
        LARGE,
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
    grpc_port: Optional[int] = Topic.SERVED.setting(
        None,
        "Port for gRPC, 0 for any that is free; default: no gRPC.",
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
        LARGE,
    )
    max_body_mb: int = Topic.LIMITS.setting(1, "Largest request, in MB.", LARGE)
    max_held_mb: int = Topic.LIMITS.setting(
        256, "Largest total of all requests at a time, in MB.", LARGE
    )
    max_rows: int = Topic.LIMITS.setting(1024, "Most rows of a request.", LARGE)
    max_text_kb: int = Topic.LIMITS.setting(100, "Longest text, in kB.", LARGE)
    max_waiting_rows: int = Topic.LIMITS.setting(
        8192, "Most rows that may wait to be computed.", LARGE
    )
    max_batch_rows: int = Topic.LIMITS.setting(
        128, "Most rows that are computed at once, of any requests.", LARGE
    )
    max_batch_kb: int = Topic.LIMITS.setting(
        128, "Most text that is computed at once, in kB.", LARGE
    )
    end_s: int = Topic.LIMITS.setting(
        30, "Seconds that requests have to end after SIGTERM or Ctrl-C.", LARGE
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
        LARGE,
    )
    timeout_s: int = Topic.LIMITS.setting(
        60,
        "Seconds until a request is given up. A connection without an answer "
        "is cut off after twice as long, or so long after --keep_alive_s.",
        LARGE,
    )


SETTINGS = (Served, adapter_flags.OneBert)


class EndingServer(uvicorn.Server):
    """A server that ends within a time after a signal.

    Attributes:
        problem: why it has ended without one.
    """

    problem: Optional[UserError] = None

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
        """Lets uvicorn wait for requests, but not for long."""
        self._core.is_closed = True
        super().handle_exit(sig, frame)
        _later(self._seconds, functools.partial(_abort, self._seconds))

    @contextlib.asynccontextmanager
    async def beside(
        self, live: Callable[[], contextlib.AbstractAsyncContextManager[None]]
    ) -> AsyncIterator[None]:
        """Lets another server live as long; ends if that one cannot begin."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(live())
            except UserError as error:
                self.problem, self.should_exit = error, True
            yield


def _later(seconds: int, call: Callable[[], Any]) -> None:
    timer = threading.Timer(seconds, call)
    # A daemon, so that a process that is done does not wait for the time.
    timer.daemon = True
    timer.start()


def _abort(seconds: int) -> None:
    """Ends the process, whatever is being computed."""
    logging.error("a batch did not end within %d seconds", seconds)
    os._exit(1)


def limits_from_flags() -> Limits:
    """What the flags allow; checks name and port too."""
    read(Served)
    for name, of_all in (
        ("max_rows", "max_waiting_rows"),
        ("max_body_mb", "max_held_mb"),
    ):
        if FLAGS[of_all].value < FLAGS[name].value:
            raise UserError(
                f"--{of_all} is {FLAGS[of_all].value}, so that no request of "
                f"--{name} ({FLAGS[name].value}) would ever be taken; raise "
                f"--{of_all}, or lower --{name}"
            )
    return Limits(
        max_body_bytes=FLAGS.max_body_mb * 10**6,
        max_held_bytes=FLAGS.max_held_mb * 10**6,
        max_rows=FLAGS.max_rows,
        max_text_bytes=FLAGS.max_text_kb * 1000,
        batching=Bounds(
            batch_rows=FLAGS.max_batch_rows,
            batch_bytes=FLAGS.max_batch_kb * 1000,
            waiting_rows=FLAGS.max_waiting_rows,
        ),
        timeout=FLAGS.timeout_s,
    )


def _check_served() -> None:
    """Raises UserError unless the flags name one thing to serve."""
    if FLAGS.model and FLAGS.model_config_file:
        raise UserError(
            "--model and --model_config_file are both passed; pass one of them"
        )
    exported = "model_config_file" if FLAGS.model_config_file else "model"
    of_library = [f.name for f in dataclasses.fields(adapter_flags.OneBert)]
    for name in of_library:
        if FLAGS[exported].value and FLAGS[name].value != FLAGS[name].default:
            raise UserError(
                f"--{name} is for serving a library, and --{exported} is "
                "passed too; pass one of the two"
            )
    if not (FLAGS[exported].value or FLAGS.library):
        raise UserError(
            "nothing to serve is named; pass --init_checkpoint and --library, "
            "or --model, the folder of an exported model"
        )
    for name in ("model_version_policy", "model_versions"):
        if not FLAGS.model and FLAGS[name].value != FLAGS[name].default:
            raise UserError(f"--{name} needs --model; pass --model too")
    if FLAGS.model_config_file and FLAGS["name"].value != FLAGS["name"].default:
        raise UserError(
            "--name is passed, and --model_config_file has the models' names"
        )
    _check_shadow()


def _check_shadow() -> None:
    """Raises UserError unless --shadow names another model, or none."""
    shadow = FLAGS.shadow
    if not shadow:
        if FLAGS.shadow_init_checkpoint:
            raise UserError("--shadow_init_checkpoint needs --shadow")
        return
    if FLAGS.model_config_file:
        raise UserError(
            "--shadow is for one model; pass --library or --model instead of "
            "--model_config_file"
        )
    if not files.is_folder(shadow):
        raise UserError(
            f"--shadow is {shadow}, where there is no folder; pass a library, "
            "or the --output_dir of adapter-bert export"
        )
    served = "model" if FLAGS.model else "library"
    if os.path.realpath(shadow) == os.path.realpath(FLAGS[served].value):
        raise UserError(
            f"--shadow and --{served} are one folder, {shadow}; pass the "
            "folder of another model"
        )
    if _is_export(shadow):
        if FLAGS.shadow_init_checkpoint:
            raise UserError(
                f"--shadow_init_checkpoint is for a library, and --shadow="
                f"{shadow} is an exported model; pass one of the two"
            )
        return
    AdapterLibrary(shadow)
    if FLAGS.model and not FLAGS.shadow_init_checkpoint:
        raise UserError(
            f"--shadow is {shadow}, which holds no version of an exported "
            "model; of a library pass --shadow_init_checkpoint too"
        )


def _is_export(folder: str) -> bool:
    """Whether a folder has an exported model, and not adapters."""
    return any(
        files.exists(os.path.join(folder, version, GRAPH))
        for version in versions_in(folder)
    )


def read_policy() -> VersionPolicy:
    """The policy that the flags name; raises UserError for contradictions."""
    versions = FLAGS.model_versions
    if (FLAGS.model_version_policy == SPECIFIC) != bool(versions):
        raise UserError(
            f"--model_version_policy={SPECIFIC} and --model_versions go "
            "together"
        )
    for version in versions:
        if not is_version(version):
            raise UserError(
                f"--model_versions has {version!r}, expected numbers with "
                "commas between them, as 3,4"
            )
    return VersionPolicy(
        1 if FLAGS.model_version_policy == LATEST else None, tuple(versions)
    )


def check_certificate() -> None:
    """Raises UserError unless the files of https belong together."""
    certificate, key = FLAGS.ssl_certfile, FLAGS.ssl_keyfile
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


def open_models() -> ServedModels:
    """Loads what the flags name, ready to answer."""
    if FLAGS.model_config_file:
        config = _import_of("model_config_file", "model_config")
        return ServedModels.of_file(
            functools.partial(config.read_config, FLAGS.model_config_file)
        )
    bert = None
    model: ModelVersions
    if FLAGS.model:
        model = VersionFolder(FLAGS.model, read_policy(), {})
    else:
        asked = adapter_flags.read_asked(adapter_flags.OneBert)
        library = AdapterLibrary(asked.library)
        bert = adapter_flags.open_bert(asked)
        model = _live(library, bert, asked)
    shadow = None
    if FLAGS.shadow:
        shadow = Shadow(FLAGS.name, model, _open_shadow(bert), FLAGS.shadow)
    return ServedModels({FLAGS.name: model}, shadow)


def _open_shadow(bert: Optional[FrozenBert]) -> ModelVersions:
    """Loads --shadow; `bert` is that of --init_checkpoint."""
    if _is_export(FLAGS.shadow):
        return VersionFolder(FLAGS.shadow, VersionPolicy(), {})
    asked = read(adapter_flags.OneBert)
    if FLAGS.shadow_init_checkpoint:
        # The other BERT's files are next to it.
        asked = dataclasses.replace(
            asked,
            init_checkpoint=FLAGS.shadow_init_checkpoint,
            bert_config_file="",
            vocab_file="",
        )
        bert = adapter_flags.open_bert(asked)
    return _live(AdapterLibrary(FLAGS.shadow), bert, asked)


def _live(
    library: AdapterLibrary, bert: FrozenBert, asked: adapter_flags.OneBert
) -> LibraryVersion:
    """A library's tasks, loaded; raises UserError if it cannot be read."""
    predictor = Predictor(
        bert,
        asked.predict_batch_size,
        asked.max_seq_length,
        asked.adapter_dtype,
        library.path,
    )
    return LibraryVersion(LiveLibrary(library, predictor))


def _import_of(flag: str, module: str) -> ModuleType:
    """The module that a flag needs."""
    try:
        return importlib.import_module(f"adapter_bert.serving.{module}")
    except ImportError as error:
        raise UserError(
            f"--{flag} needs the packages grpcio and tensorflow-serving-api "
            f"({error}); make setup installs them"
        ) from error


def _read_tokens(flag: str, per_minute: Optional[int] = None) -> Any:
    """The tokens of a flag's file, or None without one; raises UserError."""
    path = FLAGS[flag].value
    return Tokens(read_tokens(path), per_minute) if path else None


def listen(port: int) -> socket.socket:
    """A socket at the flags' host; raises UserError if unusable."""
    with _at_address(port):
        family, kind, protocol, _, address = socket.getaddrinfo(
            FLAGS.host, port, type=socket.SOCK_STREAM
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    return found


@contextlib.contextmanager
def _at_address(port: int) -> Iterator[None]:
    """Makes errors about the flags' host and a port a UserError."""
    try:
        yield
    # A name with an empty part is a `UnicodeError`.
    except (OSError, UnicodeError) as error:
        flag = "port" if port == FLAGS.port else "grpc_port"
        raise UserError(
            f"cannot listen at {FLAGS.host}, port {port}: {error}; choose "
            f"another --host or --{flag}"
        ) from error


def main() -> None:
    """Serves until a signal; raises UserError if flags or model are wrong."""
    logging.set_verbosity(logging.INFO)
    if FLAGS.log_format == JSON:
        json_log.use()
    _check_served()
    limits = limits_from_flags()
    if FLAGS.token_requests and not FLAGS.token_file:
        raise UserError("--token_requests needs tokens; pass --token_file too")
    tokens = _read_tokens("token_file", FLAGS.token_requests)
    admin = _read_tokens("admin_token_file")
    origins = list(map(origin_of, FLAGS.cors_origins))
    check_certificate()
    listening = listen(FLAGS.port)
    if FLAGS.grpc_port is not None:
        grpc_api = _import_of("grpc_port", "grpc_api")
        # gRPC listens by itself, when there is something to answer with.
        listen(FLAGS.grpc_port).close()
    # A connection is a file, and few files are allowed by default.
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if allowed != most:
        logging.info("open files: up to %d, raised from %d", most, allowed)
    models = open_models()
    models.watch(FLAGS.poll_seconds)
    core = RequestCore(models, limits)
    live = contextlib.nullcontext
    if FLAGS.grpc_port is not None:
        address = grpc_api.Address(FLAGS.host, FLAGS.grpc_port)
        live = grpc_api.GrpcServer(
            core, address, FLAGS.end_s, tokens, _certificate()
        ).live
    rest = RestServer(core, origins, tokens, admin, lambda: server.beside(live))
    # From now on clients wait; before, they are refused. Another server may
    # have taken the address meanwhile.
    with _at_address(FLAGS.port):
        listening.listen(BACKLOG)
    for name, model in models.models.items():
        versions = model.served
        logging.info(
            "%s version %s, %d tasks, at %s://%s:%d/v1/models/%s",
            FLAGS.model or FLAGS.library or FLAGS.model_config_file,
            ", ".join(versions),
            len(list(versions.values())[-1].tasks),
            "https" if FLAGS.ssl_certfile else "http",
            FLAGS.host,
            listening.getsockname()[1],
            name,
        )
    keep_alive = FLAGS.keep_alive_s or FLAGS.timeout_s
    # A connection may wait, and then has time for an answer.
    patience = FLAGS.timeout_s + max(FLAGS.timeout_s, keep_alive)
    server = EndingServer(
        uvicorn.Config(
            rest.app,
            http=functools.partial(PatientProtocol, patience=patience),
            ws="none",
            ssl_certfile=FLAGS.ssl_certfile or None,
            ssl_keyfile=FLAGS.ssl_keyfile or None,
            log_config=None,
            access_log=False,
            lifespan="on",
            backlog=BACKLOG,
            timeout_keep_alive=keep_alive,
            timeout_graceful_shutdown=FLAGS.end_s,
        ),
        core,
        FLAGS.end_s + UNTIL_ABORT,
        FLAGS.drain_s,
    )
    server.run(sockets=[listening])
    if server.problem:
        raise server.problem


def _certificate() -> Optional[tuple[bytes, bytes]]:
    """Key and certificate of https, which `check_certificate` has read."""
    if not FLAGS.ssl_certfile:
        return None
    key, certificate = (
        files.read_bytes(path, "the file of https")
        for path in (FLAGS.ssl_keyfile, FLAGS.ssl_certfile)
    )
    return key, certificate
