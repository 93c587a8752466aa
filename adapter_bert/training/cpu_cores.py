"""Finds the processor's name, and the cores that the process may use."""

import math
import os
import pathlib
import platform

GROUPS = "/sys/fs/cgroup"


def count(groups: str = GROUPS, process: str = "/proc/self/cgroup") -> int:
    """Counts the cores that affinity and a container's quota allow, rounded up.

    `groups` is the folder of Linux's control groups, `process` names the
    process's own.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    root = pathlib.Path(groups)
    # As `0::/a/b`, in version 2. A container may see its own as the root.
    paths = [line[4:] for line in _lines(process) if line.startswith("0::/")]
    inner = root.joinpath(*paths)
    quotas = [
        " ".join(_lines(folder / "cpu.max"))
        for folder in (inner, *inner.parents)
    ]
    # Version 1.
    quotas.append(
        " ".join(
            line
            for name in ("quota", "period")
            for line in _lines(root / "cpu" / f"cpu.cfs_{name}_us")
        )
    )
    for words in map(str.split, quotas):
        # Unlimited is `max`, or -1 in version 1.
        if len(words) == 2 and words[0] not in ("max", "-1"):
            cores = min(cores, max(1, math.ceil(int(words[0]) / int(words[1]))))
    return cores


def name() -> str:
    """Gives the processor's name of /proc/cpuinfo, else Python's."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _lines(path: os.PathLike) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
