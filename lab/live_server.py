"""A running `adapter-bert serve`, its log and its memory."""

import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from adapter_bert.errors import UserError
from lab.report import ROOT

NAME = "adapter_bert"
ANSWER = f"/v1/models/{NAME}:answer"
ADDRESS = re.compile(rf"http://127\.0\.0\.1:(\d+)/v1/models/{NAME}")
# Seconds until a server must have loaded all it serves, and until an answer.
START_S, ANSWER_S = 600.0, 120.0


class LiveServer:
    """A server in a process of its own, for a `with` statement.

    Attributes:
        port: at 127.0.0.1, at which it answers.
    """

    def __init__(self, folder: pathlib.Path, flags: Sequence[str]):
        """Starts the process.

        Args:
            folder: that is there; the log is written into it.
            flags: of `adapter-bert serve`, without `--port`.
        """
        self._log = folder / "server.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "adapter_bert", "serve"),
                    *("--port=0", *flags),
                ],
                cwd=ROOT,
                stderr=log,
            )
        self.port = 0

    def __enter__(self) -> "LiveServer":
        """Waits until it answers."""
        until = time.monotonic() + START_S
        try:
            while not (address := ADDRESS.search(self.log())):
                if not self.is_alive or time.monotonic() > until:
                    last = self.log().strip().splitlines()[-1:] or ["no log"]
                    raise UserError(f"the server did not start: {last[0]}")
                time.sleep(0.1)
        except BaseException:
            self.kill()
            raise
        self.port = int(address[1])
        return self

    def __exit__(self, *_: Any) -> None:
        """Ends it as its operator would, or at once if it does not end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends the process as the system would, without any warning."""
        self._process.kill()
        self._process.wait()

    @property
    def is_alive(self) -> bool:
        """Tells whether the process runs."""
        return self._process.poll() is None

    def log(self) -> str:
        """All that it has logged."""
        return self._log.read_text(errors="replace")

    def memory_mb(self) -> float:
        """Reads the process's memory, VmRSS, in MB; 0 if it has ended."""
        try:
            status = open(f"/proc/{self._process.pid}/status").read()
        except OSError:
            return 0.0
        resident = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(resident[1]) * 1024 / 1e6 if resident else 0.0


class Client:
    """A connection that is kept open, and opened anew where it has ended."""

    def __init__(self, port: int):
        """Takes the port of a server at 127.0.0.1."""
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", port, timeout=ANSWER_S
        )

    def ask(self, body: bytes) -> tuple[int, bytes]:
        """Returns the code and the body of an answer to a request for answers.

        Raises:
            OSError, http.client.HTTPException: there is no answer.
        """
        try:
            self._connection.request("POST", ANSWER, body)
            response = self._connection.getresponse()
            return response.status, response.read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def body_of(rows: Sequence[tuple[str, str]]) -> bytes:
    """Returns the body of a request of rows, each a task and a text."""
    instances = [{"task": task, "text": text} for task, text in rows]
    return json.dumps({"instances": instances}).encode()
