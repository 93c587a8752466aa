"""How a program ends: what is seen of errors, a closed pipe and Ctrl-C."""

import gc
import os
import signal
import sys
from typing import Callable

from errors import UserError


def run(main: Callable[[], None]) -> None:
    """Runs a program's `main`, within which the whole program happens.

    What a user can cause is one line on stderr and exit code 1. If nobody
    reads what is printed any more, as `head` after its lines, the program
    ends without a word, with the code of a program that the pipe's signal
    ends.

    Raises:
        SystemExit: the program ends otherwise than by its success.
    """
    try:
        try:
            main()
        finally:
            # Here, since at its very end Python complains by itself.
            if sys.stdout:
                sys.stdout.flush()
            # The process ends: what is left need not be searched for garbage.
            gc.freeze()
    except BrokenPipeError as error:
        # What is left in the buffer would be written again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from error
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt as error:
        raise SystemExit(128 + signal.SIGINT) from error
