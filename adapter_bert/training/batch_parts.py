"""Steps that compute a batch in parts, or compare all of its rows."""

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from adapter_bert.bert.hooks import NamedTensors
from adapter_bert.graph_building import leave_with_graph
from adapter_bert.tasks.task import ROW_LOSSES, VECTOR_GRADIENTS, BatchHead


def with_batch_loss(
    head: BatchHead,
    forward: Callable[[NamedTensors], tf.Tensor],
    features: NamedTensors,
    parts: int,
) -> NamedTensors:
    """Adds to a device's features what `BatchHead.loss` reads.

    Each device computes the loss of the whole batch, from all devices' vectors.
    `forward` computes the vectors of some rows, [rows C, D].
    """
    if parts == 1:
        vectors = forward(features)
    else:
        divided = _divide_in_parts(features, parts)
        vectors = tf.map_fn(
            forward,
            divided,
            fn_output_signature=tf.TensorSpec([None, head.width], tf.float32),
            parallel_iterations=1,
        )
    rows = tf.shape(features["row"])[0]
    vectors = tf.reshape(vectors, [rows, -1, head.width])
    compared = {name: features[name] for name in head.compares}
    device, first = tf.distribute.get_replica_context(), 0
    if device.num_replicas_in_sync > 1:
        first = device.replica_id_in_sync_group * rows
        vectors, compared = device.all_gather([vectors, compared], axis=0)
        leave_with_graph(vectors)
        for name, value in compared.items():
            value.set_shape([None, *features[name].shape[1:]])
    vectors.set_shape([None, None, head.width])
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(vectors)
        losses = head.batch_loss(vectors, compared)
    gradients = tape.gradient(losses, vectors)
    added = {ROW_LOSSES: losses, VECTOR_GRADIENTS: gradients}
    own_rows = {name: x[first : first + rows] for name, x in added.items()}
    for value in own_rows.values():
        value.set_shape([features["row"].shape[0], *value.shape[1:]])
    return {**features, **own_rows}


def _divide_in_parts(features: NamedTensors, parts: int) -> NamedTensors:
    """Divides rows into equal parts, [parts, B / parts, ...], in order."""
    divided = {}
    for name, value in features.items():
        shape = tf.concat([[parts, -1], tf.shape(value)[1:]], axis=0)
        divided[name] = tf.reshape(value, shape)
        rows = value.shape[0] and value.shape[0] // parts
        divided[name].set_shape([parts, rows, *value.shape[1:]])
    return divided


def sum_over_parts(
    compute: Callable,
    sources: Sequence[Any],
    features: NamedTensors,
    parts: int,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Adds up losses, and gradients like `sources`, of parts of the rows."""
    divided = _divide_in_parts(features, parts)

    def add(number, *sums):
        loss, gradients = compute({k: v[number] for k, v in divided.items()})
        return (
            number + 1,
            *(old + new for old, new in zip(sums, [loss, *gradients])),
        )

    zeros = [tf.zeros([]), *(tf.zeros(s.shape) for s in sources)]
    _, loss, *gradients = tf.while_loop(
        lambda number, *_: number < parts,
        add,
        [tf.constant(0), *zeros],
        parallel_iterations=1,
        maximum_iterations=parts,
    )
    return loss, gradients
