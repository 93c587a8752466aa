r"""Answers texts over the network with a model of `adapter-bert export`.

    .venv/bin/adapter-bert serve --model=exported --port=8501
    curl localhost:8501/v1/models/adapter_bert:predict -d \
        '{"instances": [{"task": "mrpc", "text": "a", "text_b": "b"}]}'

The server speaks TensorFlow Serving's REST. docs/serving.md tells more.
"""

import contextlib
import dataclasses
import functools
import re
import resource
import socket
from typing import Iterator

import adapter_bert.start_tensorflow  # noqa: F401

import uvicorn
from absl import logging

from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, Range, Topic, read
from adapter_bert.serving.batching import Bounds
from adapter_bert.serving.exported import ExportedModel
from adapter_bert.serving.http_api import Limits, PatientProtocol, RestServer

# Connections that wait to be accepted.
BACKLOG = 2048
LARGE = Range(lambda value: value >= 1, "expected more")


@dataclasses.dataclass(frozen=True)
class Served:
    """The served model, and the limits of the server."""

    model: str = Topic.SERVED.setting(
        "", "Folder that adapter-bert export wrote, its --output_dir."
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
    timeout_s: int = Topic.LIMITS.setting(
        60,
        "Seconds until a request is given up. A connection without an answer "
        "is cut off after twice as long.",
        LARGE,
    )


SETTINGS = (Served,)


def limits_from_flags() -> Limits:
    """What the flags allow; checks name and port too.

    Raises:
        UserError: one is too small or too large, or would always refuse a
            request that another allows.
    """
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


def listen() -> socket.socket:
    """A socket at the flags' address; raises UserError if unusable."""
    with _at_address():
        family, kind, protocol, _, address = socket.getaddrinfo(
            FLAGS.host, FLAGS.port, type=socket.SOCK_STREAM
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    return found


@contextlib.contextmanager
def _at_address() -> Iterator[None]:
    """Makes errors about the flags' address a UserError."""
    try:
        yield
    # A name with an empty part is a `UnicodeError`.
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"cannot listen at {FLAGS.host}, port {FLAGS.port}: {error}; "
            "choose another --host or --port"
        ) from error


def main() -> None:
    """Serves until a signal; raises UserError if flags or model are wrong."""
    logging.set_verbosity(logging.INFO)
    if not FLAGS.model:
        raise UserError("--model is missing: the folder of an exported model")
    limits = limits_from_flags()
    listening = listen()
    # A connection is a file, and few files are allowed by default.
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if allowed != most:
        logging.info("open files: up to %d, raised from %d", most, allowed)
    model = ExportedModel(FLAGS.model)
    model.warm_up()
    server = RestServer(model, FLAGS.name, limits)
    # From now on clients wait; before, they are refused. Another server may
    # have taken the address meanwhile.
    with _at_address():
        listening.listen(BACKLOG)
    logging.info(
        "%s version %s, %d tasks, at http://%s:%d/v1/models/%s",
        FLAGS.model,
        model.version,
        len(model.tasks),
        FLAGS.host,
        listening.getsockname()[1],
        FLAGS.name,
    )
    uvicorn.Server(
        uvicorn.Config(
            server.app,
            http=functools.partial(
                PatientProtocol, patience=2.0 * FLAGS.timeout_s
            ),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="on",
            backlog=BACKLOG,
            timeout_keep_alive=FLAGS.timeout_s,
            timeout_graceful_shutdown=FLAGS.timeout_s,
        )
    ).run(sockets=[listening])
