"""This machine's devices: a strategy for them, and what they compute in."""

import threading

import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context

from adapter_bert.errors import UserError
from adapter_bert.training import cpu_cores
from adapter_bert.training.engines import is_cluster
from adapter_bert.training.settings import FLOAT32, Hardware

# More than four were not measured.
MAX_LANES = 8
# Of a training batch at once (results/performance.md).
LANE_ROWS = 32

_lock = threading.Lock()


def count(hardware: Hardware) -> int:
    """Gives the number of GPUs to use, or of logical CPUs without a GPU."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus and hardware.num_devices > gpus:
        raise UserError(
            f"--num_devices is {hardware.num_devices}, but there are only "
            f"{gpus} GPUs"
        )
    return hardware.num_devices or gpus or 1


def use_lanes(hardware: Hardware) -> int:
    """Chooses the number of lanes and sets TensorFlow's threads for them.

    Cores that share each operation wait for one another at its end; cores with
    a lane each, a group of rows, do not.
    """
    others = hardware.use_tpu or hardware.num_devices > 1
    if others or tf.config.list_physical_devices("GPU"):
        return 1
    cores = cpu_cores.count()
    lanes = hardware.cpu_lanes or min(cores, MAX_LANES)
    if lanes >= cores > 1:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(1)
        except RuntimeError:
            # TensorFlow has already run something.
            logging.info("each operation keeps all cores, next to the lanes")
    return lanes


def divide(rows: int, lanes: int) -> int:
    """Chooses the number of parts of a training batch that lanes compute.

    The parts are equal, and a lane gets at most `LANE_ROWS` rows of one. 1 if
    lanes would get less than a quarter of that, and with one lane.
    """
    if lanes == 1:
        return 1
    most = lanes * LANE_ROWS
    for parts in range(1, 4 * rows // most + 1):
        if rows % parts == 0 and rows // parts <= most:
            return parts
    return 1


def choose_graph_optimizer(hardware: Hardware, compute_dtype: str) -> None:
    """Turns TensorFlow's graph optimizer (Grappler) on where that pays.

    In float32 on a CPU, Grappler doubles the time to build a graph and makes
    none faster (results/performance.md); in bfloat16 it saves some casts. Its
    rewriting of sums stays off, for equal bits. On GPUs, products in float32
    do not use TensorFloat-32, which has 10 bits; this holds for the whole
    process, the rest for the functions of this thread, and of threads that
    have called none yet.
    """
    tf.config.experimental.enable_tensor_float_32_execution(
        hardware.use_tpu or compute_dtype != FLOAT32
    )
    accelerated = hardware.use_tpu or tf.config.list_physical_devices("GPU")
    with _lock:
        tf.config.optimizer.set_experimental_options(
            {
                "disable_meta_optimizer": not accelerated
                and compute_dtype == FLOAT32,
                "arithmetic_optimization": False,
            }
        )
        # TensorFlow would read them at the next call of a function. By then
        # another thread may have set its own, which changes this one's bits.
        _ = context.context().function_call_options


def names(hardware: Hardware) -> list[str]:
    """Names the devices, as `GPU:0`.

    Without a GPU, the CPU becomes several logical devices, for tests.
    """
    number = count(hardware)
    if tf.config.list_physical_devices("GPU"):
        return [f"GPU:{i}" for i in range(number)]
    if number > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * number
        try:
            tf.config.set_logical_device_configuration(cpu, logical)
        except RuntimeError as error:
            # TensorFlow has already run something.
            if len(tf.config.list_logical_devices("CPU")) < number:
                raise UserError(
                    f"--num_devices={number} makes logical CPUs, which a "
                    "process that has computed cannot; start another one"
                ) from error
    return [f"CPU:{i}" for i in range(number)]


def strategy(hardware: Hardware) -> tf.distribute.Strategy:
    """Gives the strategy of a training.

    A TPU has `--num_tpu_cores`, and a worker takes all of its GPUs.
    """
    if hardware.use_tpu:
        from adapter_bert.training import tpu

        return tpu.strategy(hardware)
    if is_cluster():
        gpus = len(tf.config.list_physical_devices("GPU"))
        if hardware.num_devices not in (0, gpus or 1):
            raise UserError(
                "--num_devices is for one process, but TF_CONFIG names "
                "several, and each takes all of its GPUs; leave it out, or "
                "hide some by CUDA_VISIBLE_DEVICES"
            )
        from adapter_bert.training import multi_worker

        return multi_worker.strategy()
    devices = names(hardware)
    if len(devices) == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(devices)
