"""Prints the versions and the machine, for a report about a fault."""

import importlib.metadata
import os
import platform

PACKAGES = ("numpy", "safetensors", "tokenizers", "scikit-learn")
# Instructions that decide which kernels compute.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
# Environment variables that change what is computed, or how fast.
VARIABLES = ("TF_ENABLE_", "TF_NUM_", "TF_XLA_", "XLA_", "OMP_", "CUDA_")


def _processor() -> tuple[str, str]:
    """Names the processor, and its instructions; "" where nothing says them."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = dict(
                (part.strip() for part in line.split(":", 1))
                for line in file
                if ":" in line
            )
    except OSError:
        return platform.processor(), ""
    flags = lines.get("flags", "").split()
    return (
        lines.get("model name", platform.machine()),
        " ".join(name for name in INSTRUCTIONS if name in flags),
    )


def main() -> None:
    """Prints a line for each fact."""
    import adapter_bert.start_tensorflow  # noqa: F401

    import tensorflow as tf

    from adapter_bert.bert import onednn

    processor, instructions = _processor()
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
        "instructions": instructions,
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
