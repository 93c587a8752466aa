"""Which devices there are, as a tf.distribute strategy."""

import json
import os
from typing import Any, List

import tensorflow as tf
from absl import logging

from engines import Hardware
from errors import UserError, first_line

# Every lane adds about two seconds to the building of the graph.
MAX_LANES = 8


def count(hardware: Hardware) -> int:
    """How many GPUs of this machine to use; without a GPU, logical CPUs.

    Raises:
        UserError: there are fewer GPUs than were asked for.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus and hardware.num_devices > gpus:
        raise UserError(
            f"--num_devices is {hardware.num_devices}, but there are only "
            f"{gpus} GPUs"
        )
    return hardware.num_devices or gpus or 1


def use_lanes(hardware: Hardware) -> int:
    """Chooses the number of lanes and sets TensorFlow's threads for them.

    Several cores that share each operation wait for one another at its end;
    lanes that compute whole groups of rows, one core each, do not.

    Raises:
        UserError: several lanes were asked for beside other devices.
    """
    others = hardware.use_tpu or hardware.num_devices > 1
    if others or tf.config.list_physical_devices("GPU"):
        if hardware.cpu_lanes > 1:
            raise UserError(
                f"--cpu_lanes={hardware.cpu_lanes} is for training on one "
                "CPU device; leave it out on a GPU or TPU and with "
                "--num_devices"
            )
        return 1
    cores = _cores()
    lanes = hardware.cpu_lanes or min(cores, MAX_LANES)
    if lanes >= cores > 1:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(1)
        except RuntimeError:
            # Too late: TensorFlow has run something.
            logging.info("each operation keeps all cores, beside the lanes")
    return lanes


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def names(hardware: Hardware) -> List[str]:
    """Names of the devices, as `GPU:0`.

    Without a GPU the CPU is divided into as many logical devices, which shows
    that a training on several devices works, not that it is faster.

    Raises:
        UserError: as `count`.
    """
    number = count(hardware)
    if tf.config.list_physical_devices("GPU"):
        return [f"GPU:{i}" for i in range(number)]
    if number > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * number
        try:
            tf.config.set_logical_device_configuration(cpu, logical)
        except RuntimeError:
            # Too late to divide: TensorFlow has run something.
            if len(tf.config.list_logical_devices("CPU")) < number:
                raise
    return [f"CPU:{i}" for i in range(number)]


def strategy(hardware: Hardware) -> tf.distribute.Strategy:
    """The strategy for a training.

    Raises:
        UserError: a device is missing, or TF_CONFIG cannot be used.
    """
    workers = bool(os.environ.get("TF_CONFIG"))
    if hardware.num_devices and (hardware.use_tpu or workers):
        raise UserError(
            f"--num_devices={hardware.num_devices} is for one machine without "
            "a TPU; leave it out under TF_CONFIG (a worker takes all of its "
            "GPUs) and with --use_tpu (--num_tpu_cores)"
        )
    if hardware.use_tpu:
        return _tpu_strategy(hardware)
    if workers:
        return _worker_strategy()
    devices = names(hardware)
    if len(devices) == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(devices)


def prediction_strategy(
    training_strategy: tf.distribute.Strategy,
) -> tf.distribute.Strategy:
    """The strategy for a prediction, which one worker computes alone."""
    if is_multi_worker(training_strategy):
        return tf.distribute.get_strategy()
    return training_strategy


def is_multi_worker(found: tf.distribute.Strategy) -> bool:
    """Whether other processes take part."""
    return isinstance(found, tf.distribute.MultiWorkerMirroredStrategy)


def count_workers(found: tf.distribute.Strategy) -> int:
    """Processes that take part."""
    if not is_multi_worker(found):
        return 1
    cluster = found.cluster_resolver.cluster_spec().as_dict()
    return sum(map(len, cluster.values()))


def is_chief(training_strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes the files."""
    if not is_multi_worker(training_strategy):
        return True
    resolver = training_strategy.cluster_resolver
    if resolver.task_type == "worker":
        cluster = resolver.cluster_spec().as_dict()
        return "chief" not in cluster and resolver.task_id == 0
    return resolver.task_type == "chief"


def tpu_name(hardware: Hardware) -> str:
    """The name of the TPU.

    Raises:
        UserError: neither a flag nor the environment names one.
    """
    # The resolver itself does not know "local" from the environment.
    name = hardware.tpu_name or os.environ.get("TPU_NAME") or hardware.master
    if not name:
        raise UserError(
            "--use_tpu=true needs --tpu_name or the environment variable "
            "TPU_NAME (local on a TPU VM)"
        )
    return name


def resolve_tpu(hardware: Hardware) -> Any:
    """The resolver of the TPU that the flags or the environment name.

    Raises:
        UserError: no TPU was named or answers, or it is of another machine.
    """
    name = tpu_name(hardware)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=name,
            zone=hardware.tpu_zone or None,
            project=hardware.gcp_project or None,
        )
        master = resolver.master()
    except Exception as error:
        # Whatever the cloud's client libraries raise: all of it means that
        # no TPU answers to this name.
        raise UserError(
            f"no TPU answers to the name {name!r}: {first_line(error)}"
        ) from error
    if master not in ("", "local"):
        # Batches and initial values are made in this process.
        raise UserError(
            f"the TPU {name!r} is on another machine ({master}); run on "
            "the TPU VM itself with --tpu_name=local (TPU nodes, which "
            "were reached over the network, were retired in 2025)"
        )
    return resolver


def _tpu_strategy(hardware: Hardware) -> tf.distribute.Strategy:
    resolver = resolve_tpu(hardware)
    try:
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        found = tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the TPU {tpu_name(hardware)!r} cannot be used: "
            f"{first_line(error)}"
        ) from error
    if found.extended.num_hosts > 1:
        raise UserError(
            f"the TPU {tpu_name(hardware)!r} has {found.extended.num_hosts} "
            "hosts; only one is supported"
        )
    if found.num_replicas_in_sync != hardware.num_tpu_cores:
        raise UserError(
            f"the TPU {tpu_name(hardware)!r} has "
            f"{found.num_replicas_in_sync} cores, but --num_tpu_cores is "
            f"{hardware.num_tpu_cores}"
        )
    return found


def _worker_strategy() -> tf.distribute.Strategy:
    try:
        config = json.loads(os.environ["TF_CONFIG"])
        kind = config["task"]["type"]
        config["cluster"][kind][config["task"]["index"]]
        if set(config["cluster"]) - {"chief", "worker"}:
            raise ValueError("only chief and worker tasks are supported")
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            "the environment variable TF_CONFIG cannot be used "
            f"({first_line(error)}); expected JSON as in "
            '{"cluster": {"worker": ["host:port", ...]}, '
            '"task": {"type": "worker", "index": 0}}'
        ) from error
    logging.info(
        "waiting for all %d workers", sum(map(len, config["cluster"].values()))
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the workers of TF_CONFIG cannot be used: {first_line(error)}"
        ) from error
