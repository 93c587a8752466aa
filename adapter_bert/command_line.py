"""How a program begins and ends: encoding, errors, a closed pipe, Ctrl-C."""

import argparse
import contextlib
import gc
import io
import os
import pathlib
import select
import signal
import sys
from typing import Any, Callable, NoReturn

from adapter_bert.errors import UserError


class Parser(argparse.ArgumentParser):
    """Reads a command line, and says in one line what is wrong with it."""

    def error(self, message: str) -> NoReturn:
        """Ends the program as every error of a user's does.

        Raises:
            UserError: always.
        """
        raise UserError(f"{message}; {self.prog} --help tells what is expected")


class _Stdout(io.FileIO):
    """Standard output, whose errors end the program."""

    def write(self, content: Any) -> int:
        """Writes bytes, and tells how many.

        Raises:
            SystemExit: nobody reads them any more, or there is no room.
        """
        try:
            while (written := super().write(content)) is None:
                # Another program has set the pipe to refuse when it is full.
                select.select([], [self], [])
            return written
        except OSError as error:
            # What is left in the buffer would be written again at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(128 + signal.SIGPIPE) from error
            raise SystemExit(
                f"error: cannot write to stdout: {error.strerror}; redirect it "
                "to where there is room"
            ) from error


def _as_utf8() -> contextlib.AbstractContextManager:
    """Makes paths, arguments, stdout and stderr UTF-8, whatever the locale.

    TensorFlow takes every path for UTF-8. Python takes the locale's word, once
    at its start. So the program is started anew where the locale says
    otherwise.

    Returns:
        A context within which `sys.stdout` is so. A closed one refuses all.
    """
    is_utf8 = sys.getfilesystemencoding() == "utf-8"
    if not is_utf8 and os.environ.get("PYTHONUTF8") != "1":
        given = pathlib.Path("/proc/self/cmdline").read_bytes().split(b"\0")
        os.execve(
            sys.executable,
            [sys.executable, *given[1:-1]],
            {**os.environ, "PYTHONUTF8": "1"},
        )
    # What is opened next would be taken for one of the three that is closed.
    while (free := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(free)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stdout is not sys.__stdout__:
        # Somebody else's, as a test's.
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


def run(main: Callable[[], None]) -> None:
    """Runs a program's `main`, within which the whole program happens.

    What a user can cause is one line on stderr and exit code 1. If nobody
    reads what is printed any more, as `head` after its lines, the program
    ends without a word, with the code of a program that the pipe's signal
    ends.

    Raises:
        SystemExit: the program ends otherwise than by its success.
    """
    with _as_utf8():
        try:
            try:
                main()
            finally:
                # Here, since at its very end Python complains by itself.
                sys.stdout.flush()
                # The process ends: what is left need not be searched for
                # garbage.
                gc.freeze()
        except UserError as error:
            raise SystemExit(f"error: {error}") from error
        except KeyboardInterrupt as error:
            raise SystemExit(128 + signal.SIGINT) from error
