"""Work on numbers one after the other, in processes that may die of it."""

import os
import pathlib
import resource
import selectors
import signal
import struct
import time
import traceback
from typing import BinaryIO, Callable, Dict, Iterator, Mapping

Tell = Callable[[int, str], None]
# Work of a name, on numbers, of which each is told before and after.
Work = Callable[[str, range, Tell], None]
# Number, bytes of the text that follows; a process is told apart by its pipe.
HEAD = struct.Struct("<qi")
# In the place of a number: the work itself has failed.
FAILED = -1
DONE = "exit code 0"
# Seconds after which a process that tells nothing is ended.
PATIENCE = 60.0


def limit_memory(more: int) -> None:
    """Lets this process take so many bytes more than it has."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


class Child:
    """A process that works on the numbers of a name.

    Attributes:
        name: of the work.
        pipe: from which is read what it tells.
        number: that it works on, or None between two of them.
        heard: when it last told anything, by `time.monotonic`.
        has_failed: whether its work itself has failed.
    """

    def __init__(self, name: str, numbers: range, work: Work):
        """Starts the process."""
        self.name, self.numbers = name, numbers
        self.number, self.heard = None, time.monotonic()
        self.has_failed = False
        self._rest = b""
        receive, send = os.pipe()
        self._process = os.fork()
        if not self._process:
            os.close(receive)
            _work(name, numbers, work, send)
        os.close(send)
        self.pipe: BinaryIO = open(receive, "rb", buffering=0)

    def read(self, tell: Tell) -> bool:
        """Passes on what it has told; whether it may tell more."""
        content = self.pipe.read(2**16)
        self.heard = time.monotonic()
        self._rest += content
        place = 0
        while len(self._rest) >= place + HEAD.size:
            number, size = HEAD.unpack_from(self._rest, place)
            end = place + HEAD.size + size
            if len(self._rest) < end:
                break
            text = self._rest[place + HEAD.size : end].decode()
            place = end
            if number == FAILED:
                self.has_failed = True
                continue
            self.number = None if text else number
            tell(number, text)
        self._rest = self._rest[place:]
        return bool(content)

    def end(self) -> str:
        """Waits for the process, and says how it has ended.

        Raises:
            ChildProcessError: its work has failed; it has said why.
        """
        self.pipe.close()
        _, status = os.waitpid(self._process, 0)
        if self.has_failed:
            raise ChildProcessError(f"the process of {self.name} has failed")
        if os.WIFSIGNALED(status):
            return signal.Signals(os.WTERMSIG(status)).name
        return f"exit code {os.WEXITSTATUS(status)}"

    def kill(self) -> None:
        """Ends the process."""
        os.kill(self._process, signal.SIGKILL)


def _work(name: str, numbers: range, work: Work, send: int) -> None:
    """What the process does, which does not return."""

    def tell(number: int, text: str) -> None:
        content = text.encode("utf-8", "replace")
        os.write(send, HEAD.pack(number, len(content)) + content)

    try:
        work(name, numbers, tell)
    except KeyboardInterrupt:
        tell(FAILED, "")
    except Exception:
        traceback.print_exc()
        tell(FAILED, "")
    finally:
        os._exit(0)


def feed(
    numbers: Mapping[str, range],
    work: Work,
    tell: Mapping[str, Tell],
    jobs: int = 1,
) -> Iterator[str]:
    """Has work done on numbers, so many names at once.

    A process that dies at a number, or says nothing for `PATIENCE`, is told of
    like any other outcome, and another one goes on after that number.

    Args:
        numbers: by name.
        work: is called in a process of its own.
        tell: by name; is given what `work` tells.
        jobs: processes at a time.

    Yields:
        A name when its numbers are done.

    Raises:
        ChildProcessError: work has failed otherwise.
    """
    waiting = list(numbers.items())
    running: Dict[int, Child] = {}
    with selectors.DefaultSelector() as selector:
        while waiting or running:
            while waiting and len(running) < jobs:
                child = Child(*waiting.pop(0), work)
                running[child.pipe.fileno()] = child
                selector.register(child.pipe, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(timeout=1.0)}
            for key, child in list(running.items()):
                if key in ready and child.read(tell[child.name]):
                    continue
                if key not in ready:
                    if time.monotonic() - child.heard > PATIENCE:
                        child.kill()
                    continue
                selector.unregister(child.pipe)
                del running[key]
                rest = _after(child, tell[child.name])
                if rest:
                    waiting.insert(0, (child.name, rest))
                else:
                    yield child.name


def _after(child: Child, tell: Tell) -> range:
    """What is left of a process's numbers when it has ended."""
    end = child.end()
    if child.number is None:
        if end != DONE:
            raise ChildProcessError(f"{child.name} died between two numbers")
        return range(0)
    tell(child.number, f"the process died of {end}")
    return range(child.number + 1, child.numbers.stop)
