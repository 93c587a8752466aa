"""Cores that the process may use, in made-up control groups."""

import os
import platform

import pytest
from conftest import write_lines

from adapter_bert.training import cpu_cores


@pytest.fixture
def four(monkeypatch):
    """A process that may use four cores of eight."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda process: {1, 3, 5, 6}, raising=False
    )


def test_cores_are_those_that_the_process_may_use(four, monkeypatch, tmp_path):
    """Not all systems tell; then they are those of the machine."""
    assert cpu_cores.count(str(tmp_path)) == 4
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cpu_cores.count(str(tmp_path)) == 8


def processes(folder, group, mounts):
    """A process's files; `mounts` are (root, folder, system, options)."""
    proc = folder / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(group)
    lines = ["22 1 0:2 / / rw - overlay overlay rw"]
    lines += [
        f"{number} 22 0:28 {root} {place} rw,relatime shared:9 - "
        f"{system} cgroup rw,{options}"
        for number, (root, place, system, options) in enumerate(mounts)
    ]
    write_lines(proc / "mountinfo", lines)
    return str(proc)


def write(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("cpu_", "cpu.")).write_text(f"{value}\n")


@pytest.mark.parametrize(
    "root, parent, quota, cores",
    [
        ("max 100000", "max 100000", "max 100000", 4),
        ("max 100000", "max 100000", "200000 100000", 2),
        ("max 100000", "100000 50000", "300000 100000", 2),
        ("50000 100000", "max 100000", "max 100000", 1),
        ("max 100000", "max 100000", "150000 100000", 2),
        ("max 100000", "max 100000", "900000 100000", 4),
        (None, None, "100000 100000", 1),
        (None, None, None, 4),
    ],
)
def test_quotas_of_a_group_and_its_parents_count(
    four, tmp_path, root, parent, quota, cores
):
    mount = tmp_path / "cgroup"
    for folder, value in (("", root), ("a", parent), ("a/b", quota)):
        write(mount / folder, **({"cpu_max": value} if value else {}))
    proc = processes(
        tmp_path, "0::/a/b\n", [("/", mount, "cgroup2", "nsdelegate")]
    )
    assert cpu_cores.count(proc) == cores


@pytest.mark.parametrize("quota, cores", [(-1, 4), (250000, 3), (1000, 1)])
def test_quotas_of_version_1_count(four, tmp_path, quota, cores):
    """Beside a group of version 2 that says nothing."""
    cpu, unified = tmp_path / "cpu,cpuacct", tmp_path / "unified"
    write(cpu, cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000)
    write(cpu / "job", cpu_cfs_quota_us=quota, cpu_cfs_period_us=100000)
    write(unified)
    proc = processes(
        tmp_path,
        "12:memory:/other\n4:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n",
        [
            ("/", tmp_path / "memory", "cgroup", "memory"),
            ("/", cpu, "cgroup", "cpu,cpuacct"),
            ("/", unified, "cgroup2", "nsdelegate"),
        ],
    )
    assert cpu_cores.count(proc) == cores


@pytest.mark.parametrize(
    "root, group",
    [
        ("/docker/1", "/docker/1"),
        ("/docker/1", "/docker/1/.."),
        ("/", "/"),
        ("/", "/../other"),
    ],
)
def test_a_container_may_see_its_own_group_as_the_root(
    four, tmp_path, root, group
):
    mount = tmp_path / "cgroup"
    write(mount, cpu_cfs_quota_us=150000, cpu_cfs_period_us=100000)
    proc = processes(
        tmp_path, f"4:cpu:{group}\n", [(root, mount, "cgroup", "cpu")]
    )
    assert cpu_cores.count(proc) == 2


def test_this_machine_has_a_core():
    assert cpu_cores.count() >= 1


def test_the_processor_has_the_name_that_linux_tells(monkeypatch):
    """Where it tells none, what Python knows."""
    lines = {"/proc/cpuinfo": ["processor\t: 0", "model name\t: Fast: 2 GHz"]}
    monkeypatch.setattr(cpu_cores, "_lines", lines.get)
    monkeypatch.setattr(platform, "processor", lambda: "a kind")
    assert cpu_cores.name() == "Fast: 2 GHz"
    del lines["/proc/cpuinfo"][1]
    assert cpu_cores.name() == "a kind"
