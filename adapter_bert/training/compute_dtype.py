"""The dtype that a run computes in: float32, or bfloat16 where it is faster."""

import time
from typing import Dict, Optional

import tensorflow as tf
from absl import logging

AUTO = "auto"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
# What `--compute_dtype` may be.
DTYPES = (FLOAT32, BFLOAT16, AUTO)
# From which ratio on products in bfloat16 make a whole step faster: it has
# casts, and much that is no product. From which on they are worth a warning.
WORTHWHILE, SLOWER = 1.1, 0.9
# GPUs of this compute capability on have units for bfloat16.
AMPERE = (8, 0)
# Rows, inner size and columns of a product; about those of a BERT-base's layer.
SIZES = (512, 768, 1536)


def rates() -> Dict[str, float]:
    """Products per second by dtype, of a CPU: the best of five each.

    Of 2 x 512 x 768 x 1536 = 1.2 billion operations, with as many threads as
    TensorFlow takes for one.
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
    # By turns, so that both see the same machine; the first is the warm-up.
    for number in range(6):
        for dtype, (left, right) in pairs.items():
            began = time.perf_counter()
            # Its end is waited for.
            tf.matmul(left, right)[0, 0].numpy()
            seconds = time.perf_counter() - began
            if number:
                best[dtype] = max(best[dtype], 1.0 / seconds)
    return best


def choose_dtype(
    wanted: str, use_tpu: bool = False, known: Optional[str] = None
) -> str:
    """The type to compute in.

    Args:
        wanted: one of `DTYPES`.
        use_tpu: whether a TPU computes.
        known: what the run has begun with, if it goes on.

    Returns:
        `float32` or `bfloat16`. On a CPU it is measured if `wanted` is `auto`
        and nothing is known; of a bfloat16 that is slower there is a warning.
    """
    if wanted == FLOAT32:
        return wanted
    if wanted == AUTO and known:
        logging.info("--compute_dtype=auto: %s, as this run began", known)
        return known
    gpus = tf.config.list_physical_devices("GPU")
    if use_tpu or gpus:
        # Made for it, or not; a single product would measure its launch.
        is_made_for_it = use_tpu or all(map(_has_bfloat16, gpus))
        by_device = BFLOAT16 if is_made_for_it else FLOAT32
        return by_device if wanted == AUTO else wanted
    found = rates()
    ratio = found[BFLOAT16] / found[FLOAT32]
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
    """Whether a GPU has units for products in bfloat16."""
    details = tf.config.experimental.get_device_details(gpu)
    return details.get("compute_capability", (0, 0)) >= AMPERE
