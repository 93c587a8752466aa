"""The accelerators that are known, and what is refused of them."""

import math

import pytest
import refusals

from adapter_bert.accelerators import devices
from adapter_bert.accelerators.devices import DEVICES, GPU, TPU

pytestmark = pytest.mark.newer_stack


def test_every_device_says_what_the_table_of_figures_needs():
    assert {d.platform for d in DEVICES.values()} == {TPU, GPU}
    for device in DEVICES.values():
        assert device.flops["bfloat16"] >= device.flops["float32"] > 1e12
        # Bytes, and bytes a second.
        assert 8e9 <= device.memory < 2e11
        assert 3e11 <= device.bandwidth < 1e13
        assert bool(device.target) == (device.platform == GPU)


def test_a_host_has_as_many_cores_as_its_topology():
    """A chip of v2, v3 and 7x has two cores."""
    for name, device in DEVICES.items():
        if device.platform == GPU:
            continue
        _, sizes = device.topology.split(":")
        chips = math.prod(map(int, sizes.split("x")))
        halves = 2 if name in ("v2", "v3", "tpu7x") else 1
        assert device.cores == chips * halves


@pytest.mark.parametrize(
    "name, cores, words",
    [
        ("v9", 1, "unknown device 'v9'; expected one of v2, v3"),
        ("h100", 9, "but a host with h100 has 8; expected 1 to 8"),
        ("v5e", 0, "0 cores"),
    ],
)
def test_other_devices_and_numbers_are_refused(name, cores, words):
    refusals.check(lambda: devices.find(name, cores), words)
