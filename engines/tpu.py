"""Which TPU there is."""

import os
from typing import Any

import tensorflow as tf

from engines import Hardware
from errors import UserError, first_line


def name_of(hardware: Hardware) -> str:
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


def resolve(hardware: Hardware) -> Any:
    """The resolver of the TPU that the flags or the environment name.

    Raises:
        UserError: no TPU was named or answers, or it is of another machine.
    """
    name = name_of(hardware)
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
        raise UserError(
            f"the TPU {name_of(hardware)!r} cannot be used: {first_line(error)}"
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
