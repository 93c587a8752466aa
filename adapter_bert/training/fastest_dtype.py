"""The dtype that this machine multiplies fastest in."""

import time
from typing import Optional

import tensorflow as tf
from absl import logging

from adapter_bert.training.settings import AUTO, BFLOAT16, FLOAT32

# Matrix products must be this many times as fast in bfloat16 to make a whole
# step faster, which has casts and other operations too; below the second ratio
# bfloat16 gets a warning.
WORTHWHILE, SLOWER = 1.1, 0.9
# The first compute capability of GPUs with units for bfloat16.
AMPERE = (8, 0)
# Rows, inner size and columns of a product, as in a layer of BERT-base.
SIZES = (512, 768, 1536)


def rates() -> dict[str, float]:
    """Measures the CPU's matrix products a second by dtype, the best of five.

    A product has 2 x 512 x 768 x 1536 = 1.2 billion operations.
    """
    rows, inner, columns = SIZES
    pairs = {
        dtype: (
            tf.ones([rows, inner], tf.as_dtype(dtype)),
            tf.ones([inner, columns], tf.as_dtype(dtype)),
        )
        for dtype in (FLOAT32, BFLOAT16)
    }
    best = dict.fromkeys(pairs, 0.0)
    # By turns, so that both dtypes see the same load; the first is a warm-up.
    for number in range(6):
        for dtype, (left, right) in pairs.items():
            began = time.perf_counter()
            # `numpy` waits for the result.
            tf.matmul(left, right)[0, 0].numpy()
            seconds = time.perf_counter() - began
            if number:
                best[dtype] = max(best[dtype], 1.0 / seconds)
    return best


def choose_dtype(
    wanted: str, use_tpu: bool = False, begun_with: Optional[str] = None
) -> str:
    """Chooses the dtype to compute in, `float32` or `bfloat16`.

    `auto` measures both on a CPU; a resumed run goes on with `begun_with`.
    """
    if wanted == FLOAT32:
        return wanted
    if wanted == AUTO and begun_with:
        logging.info("--compute_dtype=auto: %s, as this run began", begun_with)
        return begun_with
    gpus = tf.config.list_physical_devices("GPU")
    if use_tpu or gpus:
        # Not measured: a single product would measure the kernel's launch.
        if wanted == BFLOAT16 or use_tpu or all(map(_has_bfloat16, gpus)):
            return BFLOAT16
        return FLOAT32
    speeds = rates()
    ratio = speeds[BFLOAT16] / speeds[FLOAT32]
    if wanted == AUTO:
        chosen = BFLOAT16 if ratio >= WORTHWHILE else FLOAT32
        logging.info(
            "--compute_dtype=auto: %s; products in bfloat16 are %.2f times as "
            "fast as in float32 here",
            chosen,
            ratio,
        )
        return chosen
    if ratio < SLOWER:
        logging.warning(
            "products in bfloat16 are %.2f times as fast as in float32 on this "
            "machine; --compute_dtype=float32 would be faster",
            ratio,
        )
    return wanted


def _has_bfloat16(gpu: tf.config.PhysicalDevice) -> bool:
    details = tf.config.experimental.get_device_details(gpu)
    return details.get("compute_capability", (0, 0)) >= AMPERE
