"""Limits of what a piece of a test may take: memory, and files' sizes."""

import contextlib
import resource
import signal

from lab.trials.fuzz_inputs import limit_memory


@contextlib.contextmanager
def limited(more=None, fsize=None):
    """Within it, this process gets no more than that.

    Args:
        more: bytes of memory next to what it has.
        fsize: bytes of a file.
    """
    kinds = resource.RLIMIT_AS, resource.RLIMIT_FSIZE
    before = {kind: resource.getrlimit(kind) for kind in kinds}
    # Else a file that is too large ends the process.
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        if more is not None:
            limit_memory(more)
        if fsize is not None:
            _, hard = before[resource.RLIMIT_FSIZE]
            resource.setrlimit(resource.RLIMIT_FSIZE, (fsize, hard))
        yield
    finally:
        for kind, limit in before.items():
            resource.setrlimit(kind, limit)
        signal.signal(signal.SIGXFSZ, handler)
