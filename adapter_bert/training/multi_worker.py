"""Several workers: the environment variable TF_CONFIG, and the chief."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from adapter_bert.errors import UserError, first_line

VARIABLE = "TF_CONFIG"
# The chief's old name.
MASTER = "master"
# TensorFlow's errors where a worker is lost.
LOST_WORKER = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)


def read() -> tuple[dict[str, Any], str, int]:
    """Reads the cluster of TF_CONFIG, and the task of this process.

    Gives addresses by the kind of task, `chief` or `worker`; this process's
    kind and index. Without a cluster `{}`, "" and 0.
    """
    try:
        config = json.loads(os.environ.get(VARIABLE) or "{}")
        cluster = dict(config.get("cluster") or {})
        kind, index = "", 0
        if cluster:
            kind, index = config["task"]["type"], int(config["task"]["index"])
        if not {*cluster, kind or MASTER} <= {"chief", MASTER, "worker"}:
            raise ValueError("only chief and worker tasks are supported")
        if {"chief", MASTER} <= set(cluster):
            raise ValueError("master is another name of chief; keep one")
        for hosts in cluster.values():
            if not isinstance(hosts, list) or not all(
                isinstance(host, str) for host in hosts
            ):
                raise ValueError(f"{hosts!r} is no list of host:port")
        if cluster:
            cluster[kind][index]
            if index < 0:
                raise ValueError(f"the index is {index}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"the environment variable {VARIABLE} cannot be used "
            f"({first_line(error)}); expected JSON as in "
            '{"cluster": {"worker": ["host:port", ...]}, '
            '"task": {"type": "worker", "index": 0}}'
        ) from error
    modern = {MASTER: "chief"}
    cluster = {modern.get(name, name): x for name, x in cluster.items()}
    return cluster, modern.get(kind, kind), index


def count() -> int:
    """Counts the processes that TF_CONFIG names."""
    return sum(map(len, read()[0].values()))


def strategy() -> tf.distribute.Strategy:
    """Gives the strategy for all workers; waits for them."""
    cluster, kind, index = read()
    # TensorFlow would take no GPU unless told, and expects as many of all
    # workers.
    gpus = len(tf.config.list_physical_devices("GPU"))
    logging.info("waiting for all %d workers", count())
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(cluster),
                task_type=kind,
                task_id=index,
                num_accelerators={"GPU": gpus},
                rpc_layer="grpc",
            )
        )
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the workers of {VARIABLE} cannot be used: {first_line(error)}"
        ) from error


def is_chief() -> bool:
    """Tells whether this process writes the files."""
    cluster, kind, index = read()
    return kind == "chief" or "chief" not in cluster and index == 0


def check_agreement(
    strategy: tf.distribute.Strategy, first_step: int, training: str
) -> None:
    """Compares where workers begin, and the text of what they are to train."""
    digest = hashlib.sha256(training.encode()).digest()
    mine = [[first_step, int.from_bytes(digest[:7], "big")]]

    @tf.function(autograph=False)
    def gather() -> tf.Tensor:
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_gather(
                tf.constant(mine, tf.int64), axis=0
            )
        )

    pairs = strategy.experimental_local_results(gather())[0].numpy()
    steps, digests = (sorted(set(values)) for values in pairs.T.tolist())
    if len(steps) == len(digests) == 1:
        return
    # A worker that ended now could take the answer from one that is still
    # receiving it. A second round begins when all have the first answer.
    with contextlib.suppress(tf.errors.OpError):
        gather()
    if len(steps) > 1:
        raise UserError(
            "the workers see different checkpoints in --output_dir (steps "
            f"{steps}); it must be one folder that all of them share"
        )
    raise UserError(
        "the workers have different flags or training data; start all "
        "of them with the same"
    )


@contextlib.contextmanager
def one_line_of_lost_workers() -> Iterator[None]:
    """Makes one line of the errors that follow when another worker stops."""
    try:
        yield
    except LOST_WORKER as error:
        raise UserError(
            "another worker has stopped; see its log, then start all of "
            f"them again ({first_line(error)})"
        ) from error
