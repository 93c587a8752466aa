"""Limits of what a piece of a test may take: memory, and files' sizes."""

import contextlib
import pathlib
import resource
import signal


@contextlib.contextmanager
def limited(more=None, fsize=None):
    """Within it, this process gets no more than that.

    Args:
        more: bytes of memory beside what it has.
        fsize: bytes of a file.
    """
    wanted = {}
    if more is not None:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more
        wanted[resource.RLIMIT_AS] = most
    if fsize is not None:
        wanted[resource.RLIMIT_FSIZE] = fsize
    before = {kind: resource.getrlimit(kind) for kind in wanted}
    # Else a file that is too large ends the process.
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for kind, most in wanted.items():
            resource.setrlimit(kind, (most, before[kind][1]))
        yield
    finally:
        for kind, limit in before.items():
            resource.setrlimit(kind, limit)
        signal.signal(signal.SIGXFSZ, handler)
