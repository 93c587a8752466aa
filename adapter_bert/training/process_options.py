"""TensorFlow's options of the process, given back after a computation."""

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from typing import Any, Optional

import tensorflow as tf
from tensorflow.python.framework import config

from adapter_bert.errors import UserError

_lock = threading.Lock()
_users = 0
_before: Optional[tuple[Any, ...]] = None
# The process whose threads compute.
_process: Optional[int] = None


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restores options of Grappler, TensorFloat-32, determinism and the log.

    Of several threads the last one that leaves does so.
    """
    global _users, _before, _process
    if _process not in (None, os.getpid()):
        raise UserError(
            f"process {os.getpid()} is a fork of {_process}, which has "
            "computed, and TensorFlow's threads are not in a fork; start "
            "processes by multiprocessing.get_context('spawn')"
        )
    _process = os.getpid()
    if not tf.executing_eagerly():
        raise UserError(
            "eager execution is off here, as in a graph or after "
            "tf.compat.v1.disable_v2_behavior(); call adapter_bert where it "
            "is on, or run the programs, as run_classifier.py"
        )
    with _lock:
        _users += 1
        if _users == 1:
            _before = (
                tf.config.optimizer.get_experimental_options(),
                tf.config.experimental.tensor_float_32_execution_enabled(),
                config.is_op_determinism_enabled(),
                tf.get_logger().level,
            )
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                graphs, uses_tensor_float, is_deterministic, level = _before
                # Setting adds to what is set; True is the default.
                tf.config.optimizer.set_experimental_options(
                    {"arithmetic_optimization": True, **graphs}
                )
                tf.config.experimental.enable_tensor_float_32_execution(
                    uses_tensor_float
                )
                if not is_deterministic:
                    # Else `tf.random` without a seed would be refused for ever.
                    config.disable_op_determinism()
                tf.get_logger().setLevel(level)


@contextlib.contextmanager
def of_a_run() -> Iterator[None]:
    """Restores as `restored`, and frees a whole run's graphs at the end."""
    with restored():
        yield
    # Graphs hold themselves.
    gc.collect()
