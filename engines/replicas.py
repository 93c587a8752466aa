"""Updates variables of which several devices hold a copy (tf.distribute)."""

from typing import Any, Callable, List, Sequence, Tuple

import tensorflow as tf

from optimization import AdamWeightDecay, clip


def train(
    optimizer: AdamWeightDecay,
    loss: tf.Tensor,
    gradients: Sequence[tf.Tensor],
    step: tf.Variable,
) -> Tuple[tf.Tensor, List[tf.Operation]]:
    """Adds up over all devices, clips, and updates every copy alike.

    Called on each device, or on the only one. Every device computes the same
    update of its own copy, so that no variable has to travel.

    Args:
        optimizer: holds the variables and their slots.
        loss: float32 [], this device's share.
        gradients: this device's shares.
        step: integer [], counted up by one.

    Returns:
        The whole batch's loss, float32 [], and the updates.
    """
    replica = tf.distribute.get_replica_context()
    loss, *gradients = replica.all_reduce(
        tf.distribute.ReduceOp.SUM, [loss, *gradients]
    )
    rates = optimizer.rates(tf.convert_to_tensor(step) + 1)

    def update(strategy, gradients, *rates) -> List[tf.Operation]:
        def on_device(function: Callable, variable: Any, *args: Any):
            return strategy.extended.update(
                variable, function, args=args, group=False
            )

        updates = optimizer.apply(gradients, rates, on_device)
        # Everything else of this step reads the step before it is counted.
        with tf.control_dependencies(tf.nest.flatten(updates)):
            updates.append(on_device(count_one, step))
        return tf.nest.flatten(updates)

    updates = replica.merge_call(update, args=(clip(gradients), *rates))
    return loss, updates


def count_one(step: tf.Variable) -> tf.Operation:
    """Adds one to the step."""
    return tf.group(step.assign_add(1))
