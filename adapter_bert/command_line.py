"""A program's start and end: encoding, errors, closed pipes, Ctrl-C."""

import contextlib
import gc
import io
import os
import pathlib
import select
import signal
import sys
from collections.abc import Iterator
from typing import Any

from adapter_bert.errors import UserError

# 128 and SIGPIPE, which Windows does not have.
CLOSED_PIPE = 141
ROOT = pathlib.Path(__file__).parents[1]


class _Stdout(io.FileIO):
    def write(self, content: Any) -> int:
        """Writes bytes, and returns their number.

        Raises:
            SystemExit: the pipe is closed, or the disk is full.
        """
        try:
            while (written := super().write(content)) is None:
                # Another program made the pipe non-blocking.
                select.select([], [self], [])
            return written
        except OSError as error:
            # Else the rest of the buffer would be written at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(CLOSED_PIPE) from error
            raise SystemExit(
                f"error: cannot write to stdout: {error.strerror}; redirect it "
                "to where there is room"
            ) from error


def _as_utf8() -> contextlib.AbstractContextManager:
    """Makes paths, arguments, stdout and stderr UTF-8 in every locale.

    TensorFlow reads every path as UTF-8. Python chooses the encoding from the
    locale at its start, so the program is started again in other locales.

    Returns:
        A context in which `sys.stdout` is UTF-8. A closed stdout refuses all.
    """
    is_utf8 = sys.getfilesystemencoding() == "utf-8"
    if not is_utf8 and os.environ.get("PYTHONUTF8") != "1":
        arguments = pathlib.Path("/proc/self/cmdline").read_bytes().split(b"\0")
        os.execve(
            sys.executable,
            [sys.executable, *arguments[1:-1]],
            {**os.environ, "PYTHONUTF8": "1"},
        )
    # Else a file opened later would become a closed stdin, stdout or stderr.
    while (free := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(free)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stdout is not sys.__stdout__:
        # Redirected, as in a test.
        return contextlib.nullcontext()
    raw = _Stdout(
        1 if sys.stdout else os.open(os.devnull, os.O_RDONLY),
        "w",
        closefd=False,
    )
    return contextlib.redirect_stdout(
        io.TextIOWrapper(
            io.BufferedWriter(raw),
            "utf-8",
            "backslashreplace",
            line_buffering=True,
        )
    )


class _WithoutPandas:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextlib.contextmanager
def run() -> Iterator[None]:
    """Runs its body as a program, from start to end.

    A `UserError` is one line on stderr and exit code 1. After a closed pipe,
    by `head`, the program ends silently with SIGPIPE's exit code.

    Raises:
        SystemExit: the program does not succeed.
    """
    sys.meta_path.insert(0, _WithoutPandas)
    with _as_utf8():
        try:
            try:
                yield
            finally:
                sys.meta_path.remove(_WithoutPandas)
                # Python would print an error of its own at exit.
                sys.stdout.flush()
                # Saves a garbage collection at exit.
                gc.freeze()
        except UserError as error:
            raise SystemExit(f"error: {error}") from error
        except KeyboardInterrupt as error:
            raise SystemExit(128 + signal.SIGINT) from error
