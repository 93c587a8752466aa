"""Processor's name and the number of cores that the process may use."""

import math
import os
import platform
from collections.abc import Iterator


def count(proc: str = "/proc/self") -> int:
    """Counts the cores that affinity and a container's quota allow, rounded up.

    `proc` is the process's folder with `cgroup` and `mountinfo` on Linux.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quotas = [
        quota
        for mount, folder in _control_groups(proc)
        for quota in _quotas(mount, folder)
    ]
    return min([cores, *(max(1, math.ceil(quota)) for quota in quotas)])


def name() -> str:
    """Gives the processor's name of /proc/cpuinfo, else Python's."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _control_groups(proc: str) -> Iterator[tuple[str, str]]:
    """(mount point, folder) of the control groups that may limit cores."""
    groups = {}
    for line in _lines(os.path.join(proc, "cgroup")):
        # As `0::/a/b` (version 2) or `4:cpu,cpuacct:/a/b` (version 1).
        _, kinds, path = line.split(":", 2)
        groups.update((kind, path) for kind in kinds.split(","))
    for line in _lines(os.path.join(proc, "mountinfo")):
        place, _, kind = line.partition(" - ")
        _, _, _, root, mount = place.split(" ")[:5]
        system, _, options = kind.split(" ", 2)
        if system == "cgroup2":
            path = groups.get("")
        elif system == "cgroup" and "cpu" in options.split(","):
            path = groups.get("cpu")
        else:
            continue
        if path is None:
            continue
        # A container may see its own group as the root.
        inside = os.path.relpath(path, root)
        if inside.split(os.sep)[0] == os.pardir:
            inside = os.curdir
        yield mount, os.path.normpath(os.path.join(mount, inside))


def _quotas(mount: str, folder: str) -> Iterator[float]:
    while True:
        words = " ".join(_lines(os.path.join(folder, "cpu.max"))).split()
        if not words:
            words = [
                *_lines(os.path.join(folder, "cpu.cfs_quota_us")),
                *_lines(os.path.join(folder, "cpu.cfs_period_us")),
            ]
        # Unlimited is `max`, or -1 in version 1.
        if len(words) == 2 and words[0] not in ("max", "-1"):
            yield int(words[0]) / int(words[1])
        if folder == mount:
            return
        folder = os.path.dirname(folder)


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
