"""Asks two servers behind nginx, while these are killed and tasks change.

    .venv/bin/python -m lab.trials.proxy --minutes=10

Two processes of `adapter-bert serve` answer from one library, behind nginx with
the configuration of docs/serving.md. Every 15 seconds one of them is killed, or
ended by SIGTERM, and started again. Meanwhile adapters of the library come, are
replaced and go, once a second, and every answer is compared with that of its
adapter alone. The exit code is 1 if an answer is wrong or a request is lost.
Answers that a killed process had half sent are cut off, which clients see.
"""

import argparse
import concurrent.futures
import contextlib
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from typing import Iterator, List, Sequence

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert import command_line, files
from adapter_bert.commands import minilm
from adapter_bert.errors import UserError
from lab import report
from lab.live_server import LiveServer
from lab.speed import live_load

PAGE = report.ROOT / "docs" / "serving.md"
NGINX = "nginx"
SERVERS = 2
# Seconds from the start of a server to the end of the next one, and until nginx
# must listen.
ENDED_S, LISTENS_S = 15.0, 10.0
# A whole configuration; without files outside of a folder.
WHOLE = """\
daemon off;
user root;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
access_log off;
client_body_temp_path {folder}/body;
proxy_temp_path {folder}/proxy;
fastcgi_temp_path {folder}/fastcgi;
uwsgi_temp_path {folder}/uwsgi;
scgi_temp_path {folder}/scgi;
{server}
}}
"""


def free_ports(count: int) -> List[int]:
    """Ports at 127.0.0.1 that no program listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def configuration(page: str, port: int, servers: Sequence[int]) -> str:
    """The configuration of a page, with other addresses.

    Args:
        page: Markdown with a block that begins with `upstream`.
        port: at which nginx is to listen.
        servers: ports, of as many servers as the page has.
    """
    [block] = re.findall(
        r"^    upstream .*?^    }\n    server .*?^    }$", page, re.M | re.S
    )
    left = iter(servers)
    block = re.sub(
        r"server [\d.]+:\d+",
        lambda _: f"server 127.0.0.1:{next(left)}",
        block,
    )
    if [*left]:
        raise AssertionError("the page has fewer servers")
    return block.replace("listen 80;", f"listen 127.0.0.1:{port};")


@contextlib.contextmanager
def nginx(folder: pathlib.Path, text: str, port: int) -> Iterator[None]:
    """Runs nginx with a configuration, which listens at a port.

    Raises:
        UserError: there is no nginx, or it does not start.
    """
    program = shutil.which(NGINX)
    if program is None:
        raise UserError(
            f"no program {NGINX}; install it, as by apt-get install nginx-light"
        )
    path = folder / "nginx.conf"
    path.write_text(WHOLE.format(folder=folder, server=text))
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(path)])
    try:
        until = time.monotonic() + LISTENS_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if process.poll() is not None or time.monotonic() > until:
                raise UserError(f"{NGINX} does not listen at {port}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


class Servers:
    """Servers of a library, each at its own port.

    Attributes:
        ends: how many were killed, how many ended by SIGTERM, and how many of
            these had not answered all.
        tracebacks: in the logs of those that have ended.
    """

    def __init__(
        self, folder: pathlib.Path, flags: Sequence[str], ports: Sequence[int]
    ):
        """Starts all, and waits until they answer."""
        self._folder, self._flags, self._ports = folder, flags, ports
        self.ends = {"killed": 0, "terminated": 0, "not_in_time": 0}
        self.tracebacks = 0
        self._running: List[LiveServer] = []
        try:
            for number in range(len(ports)):
                self._running.append(self._start(number))
        except BaseException:
            self.stop()
            raise

    def _start(self, number: int) -> LiveServer:
        folder = self._folder / f"server{number}"
        folder.mkdir(exist_ok=True)
        server = LiveServer(folder, self._flags, self._ports[number])
        return server.__enter__()

    def end_in_turn(self, is_over: threading.Event, pause: float) -> None:
        """Ends one after the other, and starts it again, until the event."""
        turn = 0
        while not is_over.wait(pause):
            number, is_killed = turn % len(self._running), turn % 4 < 2
            server = self._running[number]
            if is_killed:
                server.kill()
                self.ends["killed"] += 1
            else:
                server.__exit__()
                self.ends["terminated"] += 1
                self.ends["not_in_time"] += not server.has_answered_all
            self._count_tracebacks(server)
            self._running[number] = self._start(number)
            turn += 1

    def _count_tracebacks(self, server: LiveServer) -> None:
        self.tracebacks += server.log().count("Traceback")

    def memory_mb(self) -> float:
        """Resident memory of all, in MB."""
        return sum(server.memory_mb() for server in self._running)

    def stop(self) -> None:
        """Ends all."""
        for server in self._running:
            server.__exit__()
            self._count_tracebacks(server)


def parse() -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UserError: it lasts no time.
    """
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--output_dir", default="out/proxy", type=pathlib.Path)
    parser.add_argument("--model", help="a pretrained BERT's folder")
    arguments = parser.parse_args()
    if not arguments.minutes > 0:
        raise UserError("--minutes asks nothing; expected more than 0")
    return arguments


def main() -> None:
    """Asks, and writes and prints what came of the requests.

    Raises:
        UserError: the command line lasts no time, there is no nginx, or a
            server does not start.
        SystemExit: an answer was wrong, or a request was lost.
    """
    arguments = parse()
    logging.set_verbosity(logging.INFO)
    model = arguments.model or minilm.folder()
    output = arguments.output_dir.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        shelf, texts, known = live_load.make_shelf(folder, model)
        port, *ports = free_ports(1 + SERVERS)
        text = configuration(PAGE.read_text(encoding="utf-8"), port, ports)
        with nginx(folder, text, port):
            flags = live_load.server_flags(model, shelf.library)
            servers = Servers(output, flags, ports)
            asking = live_load.Asking(port, shelf, texts, known)
            is_over = threading.Event()
            try:
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    ending = pool.submit(servers.end_in_turn, is_over, ENDED_S)
                    try:
                        live_load.change_and_ask(
                            servers, shelf, asking, 60 * arguments.minutes
                        )
                    finally:
                        is_over.set()
                    ending.result()
            finally:
                servers.stop()
    found = {
        **asking.counts,
        "cut_off": asking.cut_off,
        **servers.ends,
        "changes": sum(shelf.counts.values()),
        "tracebacks": servers.tracebacks,
    }
    results = {
        **report.environment(),
        "minutes": arguments.minutes,
        **found,
        "faults": asking.faults,
    }
    files.write_json(str(output / "proxy.json"), results)
    print(report.plain([[*found], [f"{count:,}" for count in found.values()]]))
    defects = servers.tracebacks + servers.ends["not_in_time"]
    defects += asking.cut_off > live_load.ASKING * servers.ends["killed"]
    if asking.faults or defects or not asking.counts["answers"]:
        raise SystemExit(f"the faults are in {output}/proxy.json")


if __name__ == "__main__":
    command_line.run(main)
