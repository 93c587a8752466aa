"""Accelerators that a compiler is known for: sizes and peak rates.

Sources: https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and the
page of each version there; NVIDIA's data sheets of T4, V100 SXM2, A10, L4, A100
SXM 40 GB and H100 SXM. Rates are of dense products.
"""

import dataclasses
from collections.abc import Mapping

from adapter_bert.errors import UserError

TPU, GPU = "tpu", "cuda"
TERA, GIGA = 10**12, 10**9
PACKAGES = {
    TPU: ("jax", "libtpu"),
    GPU: ("jax", "jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12"),
}


@dataclasses.dataclass(frozen=True)
class Device:
    """A kind of accelerator. Rates and memory are those of one core.

    A core is what a program sees as one device: half a chip of TPU v2, v3 and
    7x, a whole chip of other TPUs, a GPU.

    Attributes:
        topology: the compiler's name of one host's cores.
        cores: of one host.
        memory: bytes.
        bandwidth: bytes a second.
        flops: floating-point operations a second of products, by dtype.
        target: what XLA's compiler for GPUs has to know.
    """

    name: str
    platform: str
    topology: str
    cores: int
    memory: int
    bandwidth: float
    flops: Mapping[str, float]
    target: str = ""

    @property
    def packages(self) -> tuple[str, ...]:
        """Names the packages on PyPI that compile for it."""
        return PACKAGES[self.platform]


def _tpu(
    name: str,
    host: str,
    cores: int,
    memory: float,
    bandwidth: float,
    flops: float,
) -> Device:
    """Makes a TPU, of sizes in GiB, GB a second and TFLOP a second.

    Products of float32 are computed from factors in bfloat16, as TensorFlow's
    default precision on TPUs has it, so both rates are equal.
    """
    rates = dict.fromkeys(("float32", "bfloat16"), flops * TERA)
    return Device(
        name,
        TPU,
        f"{name}:{host}",
        cores,
        int(memory * 2**30),
        bandwidth * GIGA,
        rates,
    )


def _gpu(
    name: str,
    driver_name: str,
    capability: tuple[int, int],
    multiprocessors: int,
    clock: float,
    bandwidth: float,
    memory: float,
    cache: float,
    shared: int,
    threads: int,
    units: int,
    flops: tuple[float, float],
) -> Device:
    """Makes a GPU, by what its driver and its data sheet say.

    Args:
        clock: GHz.
        bandwidth: GB a second.
        memory: GB.
        cache: MiB of the second level.
        shared: KiB of shared memory of a multiprocessor.
        threads: of a multiprocessor.
        units: of float32 in a multiprocessor.
        flops: TFLOP a second of products in float32 and bfloat16.
    """
    target = f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared * 1024}
  threads_per_core_limit: {threads}
  core_count: {multiprocessors}
  fpus_per_core: {units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(bandwidth * GIGA)}
  l2_cache_size: {int(cache * 2**20)}
  clock_rate_ghz: {clock}
  device_memory_size: {int(memory * GIGA)}
  shared_memory_per_block_optin: {(shared - 1) * 1024}
  cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{driver_name}"
"""
    rates = dict(zip(("float32", "bfloat16"), (x * TERA for x in flops)))
    return Device(
        name,
        GPU,
        "1x1x1",
        8,
        int(memory * GIGA),
        bandwidth * GIGA,
        rates,
        target,
    )


_ALL = (
    _tpu("v2", "2x2", 8, 8, 350, 22.5),
    _tpu("v3", "2x2", 8, 16, 450, 61.5),
    _tpu("v4", "2x2x1", 4, 32, 1228, 275),
    _tpu("v5e", "2x4", 8, 16, 819, 197),
    _tpu("v5p", "2x2x1", 4, 95, 2765, 459),
    _tpu("v6e", "2x4", 8, 32, 1640, 918),
    _tpu("tpu7x", "2x2x1", 8, 96, 3690, 1153.5),
    # NVIDIA names no bfloat16 for the first two: products are computed in
    # float32.
    _gpu(
        "t4", "Tesla T4", (7, 5), 40, 1.59, 320, 16, 4, 64, 1024, 64, (8.1, 8.1)
    ),
    _gpu(
        "v100",
        "Tesla V100-SXM2-16GB",
        (7, 0),
        80,
        1.53,
        900,
        16,
        6,
        96,
        2048,
        64,
        (15.7, 15.7),
    ),
    _gpu(
        "a10",
        "NVIDIA A10",
        (8, 6),
        72,
        1.695,
        600,
        24,
        6,
        100,
        1536,
        128,
        (31.2, 125),
    ),
    _gpu(
        "l4",
        "NVIDIA L4",
        (8, 9),
        58,
        2.04,
        300,
        24,
        48,
        100,
        1536,
        128,
        (30.3, 121),
    ),
    _gpu(
        "a100",
        "NVIDIA A100-SXM4-40GB",
        (8, 0),
        108,
        1.41,
        1555,
        40,
        40,
        164,
        2048,
        64,
        (19.5, 312),
    ),
    _gpu(
        "h100",
        "NVIDIA H100 80GB HBM3",
        (9, 0),
        132,
        1.98,
        3350,
        80,
        50,
        228,
        2048,
        128,
        (67, 989),
    ),
)
DEVICES: dict[str, Device] = {device.name: device for device in _ALL}


def find(name: str, cores: int = 1) -> Device:
    """Gives the device called `name`."""
    if name not in DEVICES:
        raise UserError(
            f"unknown device {name!r}; expected one of {', '.join(DEVICES)}"
        )
    device = DEVICES[name]
    if not 1 <= cores <= device.cores:
        raise UserError(
            f"{cores} cores were asked for, but a host with {name} has "
            f"{device.cores}; expected 1 to {device.cores}"
        )
    return device
