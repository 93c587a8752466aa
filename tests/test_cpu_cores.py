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


@pytest.mark.parametrize(
    "quota, cores",
    [
        ("max 100000", 4),
        ("200000 100000", 2),
        ("50000 100000", 1),
        ("150000 100000", 2),
        ("900000 100000", 4),
    ],
)
def test_a_quota_counts(four, tmp_path, quota, cores):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert cpu_cores.count(str(tmp_path)) == cores


@pytest.mark.parametrize("quota, cores", [(-1, 4), (250000, 3), (1000, 1)])
def test_quotas_of_version_1_count(four, tmp_path, quota, cores):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_cores.count(str(tmp_path)) == cores


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
