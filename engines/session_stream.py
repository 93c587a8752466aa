"""A graph's session that stays open: batches go in, outputs come out.

The session lives in a thread of its own. There it may wait for batches, and
TensorFlow's defaults, which are those of a thread, are the graph's there only:
elsewhere operations are computed at once, as ever.
"""

import queue
import threading
import weakref
from typing import Any, Callable, Iterator, Sequence

from input_pipeline import Batch


class SessionStream:
    """Computes batches in a session, in order."""

    def __init__(
        self, start: Callable[[Callable[[], Iterator[Batch]]], Iterator[Any]]
    ):
        """Starts the thread.

        Args:
            start: builds the graph, whose dataset reads the given generator,
                and yields its outputs, each when it is asked for.
        """
        self._batches: queue.SimpleQueue = queue.SimpleQueue()
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        thread = threading.Thread(
            target=_serve,
            args=(start, self._batches, self._requests, self._answers),
            # Python would wait for another kind before it closes anything.
            daemon=True,
        )
        thread.start()
        # Called by the program's end too, which would wait for ever for a
        # dataset that waits for batches.
        self._end = weakref.finalize(self, _end, self._requests, thread)

    def put(self, batches: Sequence[Batch]) -> None:
        """Hands in the batches of one output."""
        for batch in batches:
            self._batches.put(batch)
        self._requests.put(True)

    def get(self) -> Any:
        """The next output; raises what the graph raised."""
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """Ends the session and waits for its end."""
        self._end()


def _serve(
    start: Callable,
    batches: queue.SimpleQueue,
    requests: queue.SimpleQueue,
    answers: queue.SimpleQueue,
) -> None:
    """What the thread does until it is told to end."""
    last, has_ended = None, False

    def read() -> Iterator[Batch]:
        nonlocal last, has_ended
        if has_ended:
            # A TPU's input is read again and again, for batches that mark the
            # end on each core.
            if last is not None:
                yield last
            return
        while True:
            batch = batches.get()
            if batch is None:
                has_ended = True
                return
            last = batch
            yield batch

    try:
        outputs = start(read)
        while requests.get():
            answers.put(next(outputs))
        if last is not None:
            batches.put(None)
            for _ in outputs:
                pass
    except BaseException as error:
        # It is raised where the answer is awaited. The dataset may be waiting
        # for a batch, and is waited for when the session goes.
        batches.put(None)
        answers.put(error)


def _end(requests: queue.SimpleQueue, thread: threading.Thread) -> None:
    requests.put(False)
    thread.join()
