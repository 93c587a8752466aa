"""What a process holds while it works, and whether that grows."""

import os
import statistics
from typing import Callable, Dict, List, NamedTuple, Sequence

# Of the work after the warm-up: its first and its last part are compared.
COMPARED = 0.1
# Growth of the memory from which on it is a leak.
MOST_GROWTH = 0.02


class Sample(NamedTuple):
    """What a process holds.

    Attributes:
        done: share of its work that is done.
        memory: bytes that are resident.
        peak: the most that was, in bytes.
        files: that are open.
        threads: that run.
    """

    done: float
    memory: int
    peak: int
    files: int
    threads: int


class Growth(NamedTuple):
    """Medians of the samples after the warm-up, and at the end.

    Attributes:
        memory: bytes, of each.
        files: numbers of open files, of each.
        threads: numbers of threads, of each.
        peak: the most memory at any time, in bytes.
    """

    memory: Sequence[float]
    files: Sequence[float]
    threads: Sequence[float]
    peak: int

    @property
    def share(self) -> float:
        """By which memory has grown, as a share of what it was."""
        before, after = self.memory
        return (after - before) / before

    @property
    def is_flat(self) -> bool:
        """Whether nothing leaks."""
        counts = (self.files, self.threads)
        return self.share < MOST_GROWTH and all(
            after <= before for before, after in counts
        )


def sample(process: int, done: float) -> Sample:
    """What a process holds now, as Linux tells.

    Raises:
        OSError: it has ended.
    """
    with open(f"/proc/{process}/status") as file:
        lines = (line.split(":", 1) for line in file)
        status: Dict[str, str] = {name: text for name, text in lines}
    # A process that has ended, and was not waited for, holds nothing.
    if "VmRSS" not in status:
        raise ProcessLookupError(f"process {process} has ended")
    return Sample(
        done,
        int(status["VmRSS"].split()[0]) * 1024,
        int(status["VmHWM"].split()[0]) * 1024,
        len(os.listdir(f"/proc/{process}/fd")),
        int(status["Threads"]),
    )


def growth(samples: Sequence[Sample], warm_up: float) -> Growth:
    """Compares the end with the beginning.

    Args:
        samples: of a whole work.
        warm_up: share of the work that is left out: it has not seen all there
            is before, and what it holds grows.

    Raises:
        ValueError: one part has no samples.
    """
    part = COMPARED * (1 - warm_up)

    def of(begin: float, end: float) -> List[Sample]:
        return [s for s in samples if begin <= s.done <= end]

    parts = (of(warm_up, warm_up + part), of(1 - part, 1.0))
    if not all(parts):
        raise ValueError(f"{len(samples)} samples are too few")

    def medians(value: Callable[[Sample], int]) -> List[float]:
        return [statistics.median(map(value, part)) for part in parts]

    return Growth(
        medians(lambda s: s.memory),
        medians(lambda s: s.files),
        medians(lambda s: s.threads),
        max(s.peak for s in samples),
    )
