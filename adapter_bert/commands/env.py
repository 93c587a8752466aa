"""Prints the versions and the machine, for a report about a fault."""

import contextlib
import importlib.metadata
import os
import pathlib
import platform
import sys

PACKAGES = ("numpy", "safetensors", "tokenizers", "scikit-learn")
# Instructions that decide which kernels compute.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
# Environment variables that change what is computed, or how fast.
VARIABLES = ("TF_ENABLE_", "TF_NUM_", "TF_XLA_", "XLA_", "OMP_", "CUDA_")


def main() -> None:
    """Prints a line for each fact."""
    if sys.argv[1:]:
        sys.exit("usage: adapter-bert env")

    import adapter_bert.start_tensorflow  # noqa: F401

    import tensorflow as tf

    from adapter_bert.bert import onednn
    from adapter_bert.training import cpu_cores

    processor = cpu_cores.name() or platform.machine()
    words: list[str] = []
    with contextlib.suppress(OSError):
        words = pathlib.Path("/proc/cpuinfo").read_text().split()
    gpus = [
        tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    facts = {
        "adapter-bert": adapter_bert.__version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "TPUEstimator": hasattr(tf.compat.v1, "estimator"),
        "packages": ", ".join(
            f"{name} {importlib.metadata.version(name)}" for name in PACKAGES
        ),
        "system": platform.platform(),
        "processor": f"{processor}, {os.cpu_count()} cores",
        "instructions": " ".join(x for x in INSTRUCTIONS if x in words),
        "oneDNN kernels": ", ".join(
            filter(onednn.is_available, ("float32", "bfloat16"))
        ),
        "GPUs": ", ".join(gpus),
        "variables": ", ".join(
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLES)
        ),
    }
    for name, value in facts.items():
        print(f"{name + ':':16}{value or 'none'}")
