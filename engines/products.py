"""Which type of matrix products is the faster one on this machine."""

import time
from typing import Dict, Optional

import tensorflow as tf
from absl import logging

AUTO = "auto"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
# What `--compute_dtype` may be.
DTYPES = (FLOAT32, BFLOAT16, AUTO)
# From which ratio on products in bfloat16 make a whole step faster: it has
# casts, and much that is no product.
WORTHWHILE = 1.1
# Rows, inner size and columns of a product; about those of a BERT-base's layer.
SIZES = (512, 768, 1536)


def rates() -> Dict[str, float]:
    """Products per second by dtype, the best of some in a tenth of a second.

    Of 2 x 512 x 768 x 1536 = 1.2 billion operations each, with as many threads
    as TensorFlow takes for one.
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
        use_tpu: whether a TPU computes, which is made for bfloat16.
        known: what the run has begun with, if it goes on.

    Returns:
        `float32` or `bfloat16`. It is measured if `wanted` is `auto` and
        nothing is known; of a bfloat16 that is slower here there is a warning.
    """
    if wanted == FLOAT32:
        return wanted
    if use_tpu:
        return BFLOAT16 if wanted == AUTO else wanted
    if wanted == AUTO and known:
        logging.info("--compute_dtype=auto: %s, as this run began", known)
        return known
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
    if ratio < 1:
        logging.warning(
            "products in bfloat16 are %.2f times as fast as in float32 on this "
            "machine; --compute_dtype=float32 would be faster",
            ratio,
        )
    return wanted
