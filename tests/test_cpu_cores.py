"""Cores that the process may use, in made-up control groups."""

import os
import platform

import pytest

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
    for folder, value in (("", root), ("a", parent), ("a/b", quota)):
        write(tmp_path / folder, **({"cpu_max": value} if value else {}))
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/\n0::/a/b\n")
    assert cpu_cores.count(str(tmp_path), str(own)) == cores
    # A container may see its own group as the root.
    own.write_text("0::/docker/1\n")
    (tmp_path / "cpu.max").write_text(quota or "max 1")
    expected = cores if quota and "max" not in quota else 4
    assert parent != "max 100000" or cpu_cores.count(tmp_path, own) == expected


@pytest.mark.parametrize("quota, cores", [(-1, 4), (250000, 3), (1000, 1)])
def test_quotas_of_version_1_count(four, tmp_path, quota, cores):
    write(tmp_path / "cpu", cpu_cfs_quota_us=quota, cpu_cfs_period_us=100000)
    assert cpu_cores.count(str(tmp_path)) == cores


def test_the_processor_has_the_name_that_linux_tells(monkeypatch):
    """Where it tells none, what Python knows."""
    lines = {"/proc/cpuinfo": ["processor\t: 0", "model name\t: Fast: 2 GHz"]}
    monkeypatch.setattr(cpu_cores, "_lines", lines.get)
    monkeypatch.setattr(platform, "processor", lambda: "a kind")
    assert cpu_cores.name() == "Fast: 2 GHz"
    del lines["/proc/cpuinfo"][1]
    assert cpu_cores.name() == "a kind"
