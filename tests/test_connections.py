"""Connections are cut off on which nothing gets on."""

import functools
import socket
import threading
import time

import pytest
import uvicorn

from adapter_bert.serving.rest import PatientProtocol

pytestmark = pytest.mark.newer_stack

PATIENCE = 0.5
# More than the system keeps for a client that does not read.
GREAT = b"x" * 50_000_000
REQUEST = b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n"


async def app(scope, receive, send):
    content = GREAT if scope["path"] == "/great" else b"small"
    length = str(len(content)).encode()
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", length)],
        }
    )
    await send({"type": "http.response.body", "body": content})


@pytest.fixture(scope="module")
def running():
    """The port of a server, and the server."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=functools.partial(PatientProtocol, patience=PATIENCE),
            timeout_keep_alive=60,
            log_config=None,
        )
    )
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server has ended"
        time.sleep(0.01)
    yield listening.getsockname()[1], server
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture
def connection(running):
    with socket.create_connection(("127.0.0.1", running[0])) as connection:
        connection.settimeout(10)
        yield connection


def read_to_end(connection):
    """What comes until the connection is closed or reset."""
    found = b""
    try:
        while True:
            part = connection.recv(2**16)
            if not part:
                return found
            found += part
    except ConnectionResetError:
        return found


def trickle(connection):
    """Sends a request byte by byte until the other side has had enough."""
    for _ in range(100):
        try:
            connection.sendall(b"G")
        except OSError:
            return
        time.sleep(0.1)
    raise AssertionError("the connection is still open")


def wait_for(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def test_a_client_that_says_nothing(connection):
    began = time.monotonic()
    assert read_to_end(connection) == b""
    assert PATIENCE / 2 < time.monotonic() - began < 5


def test_a_client_that_is_slow(connection):
    trickle(connection)


def test_a_client_that_is_slow_later(connection):
    connection.sendall(REQUEST % b"small")
    assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
    trickle(connection)


def test_a_client_that_does_not_read(connection, running):
    connections = running[1].server_state.connections
    wait_for(lambda: connections)
    connection.sendall(REQUEST % b"great")
    wait_for(lambda: not connections)
    assert len(read_to_end(connection)) < len(GREAT)


def test_a_client_that_keeps_asking(connection):
    for _ in range(10):
        connection.sendall(REQUEST % b"small")
        found = b""
        while not found.endswith(b"small"):
            part = connection.recv(2**16)
            assert part, "the connection was cut off"
            found += part
        time.sleep(PATIENCE / 4)
