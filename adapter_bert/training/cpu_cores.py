"""The processor's name and the number of cores that the process may use."""

import math
import os
import platform
from typing import List


def count(groups: str = "/sys/fs/cgroup") -> int:
    """Cores that affinity and a container's quota allow the process.

    A fraction of a core in a quota is rounded up.

    Args:
        groups: mount point of the container's control group on Linux.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    # Version 2 of control groups has one file, version 1 two.
    words = " ".join(_lines(os.path.join(groups, "cpu.max"))).split()
    if not words:
        for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"):
            words += _lines(os.path.join(groups, "cpu", name))
    # Unlimited is `max`, or -1 in version 1.
    if len(words) == 2 and words[0] not in ("max", "-1"):
        quota = math.ceil(int(words[0]) / int(words[1]))
        cores = min(cores, max(1, quota))
    return cores


def name() -> str:
    """The processor's name in /proc/cpuinfo, else Python's name for it."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _lines(path: str) -> List[str]:
    """A file's lines; none if the file is missing or unreadable."""
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
