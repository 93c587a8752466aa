"""Which TPU there is."""

import os
from typing import Any

import tensorflow as tf

from engines import Hardware, tpu_node
from errors import UserError, first_line

# The name of the TPU that a machine has itself.
LOCAL = "local"
# What TensorFlow says of an operation that it only knows by name.
NO_KERNELS = "no registered kernels"


def name_of(hardware: Hardware) -> str:
    """The name of the TPU.

    Raises:
        UserError: neither a flag nor the environment names one.
    """
    name = hardware.tpu_name or os.environ.get("TPU_NAME") or hardware.master
    if not name:
        raise UserError(
            "--use_tpu=true needs --tpu_name or the environment variable "
            "TPU_NAME (local on a TPU VM)"
        )
    return name


def resolve(hardware: Hardware) -> Any:
    """The resolver of this machine's own TPU.

    Raises:
        UserError: no TPU was named, or it is not this machine's.
    """
    name = name_of(hardware)
    # Batches and initial values are made in this process.
    if name != LOCAL and not tpu_node.is_own(name):
        raise tpu_node.refusal(name, hardware.tpu_zone, hardware.gcp_project)
    # By any other name the resolver would look for one over the network.
    return tf.distribute.cluster_resolver.TPUClusterResolver(tpu=LOCAL)


def strategy(hardware: Hardware) -> tf.distribute.Strategy:
    """The strategy for all of its cores.

    Raises:
        UserError: as `resolve`; or it has other cores than were asked for.
    """
    resolver = resolve(hardware)
    try:
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        found = tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        why = first_line(error)
        if NO_KERNELS in str(error):
            why = (
                "this TensorFlow is not built for TPUs; docs/cloud_tpu.md says "
                "which one is"
            )
        raise UserError(
            f"the TPU {name_of(hardware)!r} cannot be used: {why}"
        ) from error
    if found.extended.num_hosts > 1:
        raise UserError(
            f"the TPU {name_of(hardware)!r} has {found.extended.num_hosts} "
            "hosts; only one is supported"
        )
    if found.num_replicas_in_sync != hardware.num_tpu_cores:
        raise UserError(
            f"the TPU {name_of(hardware)!r} has "
            f"{found.num_replicas_in_sync} cores, but --num_tpu_cores is "
            f"{hardware.num_tpu_cores}"
        )
    return found
