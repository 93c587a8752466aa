"""The variables of a job's model: made in a TensorFlow 1 graph, or at once."""

from typing import Collection, Dict

import tensorflow as tf

from adapter_bert.bert.encoder import CreateVariable
from adapter_bert.checkpoints.weights import InitialValues
from adapter_bert.training.training_step import Job

v1 = tf.compat.v1
Variables = Dict[str, tf.Variable]


def at_once(
    job: Job,
    values: InitialValues,
    variables: Variables,
    trained: Collection[str] = (),
) -> CreateVariable:
    """A `create` that makes variables on all devices of a strategy's scope.

    Args:
        job: the model.
        values: the first values.
        variables: filled with what is made, by name.
        trained: names of the variables that gradients are taken of.
    """

    def create(name, shape, initializer):
        del shape, initializer  # The values have been chosen already.
        if name in variables:
            raise ValueError(f"the variable name {name} is taken twice")
        variables[name] = tf.Variable(
            tf.cast(values[name](), job.dtype_of(name)),
            trainable=name in trained,
        )
        return variables[name]

    return create


def in_graph(job: Job, variables: Variables) -> CreateVariable:
    """A `create` that makes variables from the job's first values in a graph.

    Frozen variables are in the collection of local variables: they are given
    their pretrained values at every start and stay out of checkpoints.

    Args:
        job: the model.
        variables: filled with what is made, by name.
    """
    trained = {p.name for p in job.table.trained}

    def create(name, shape, initializer):
        del initializer  # The job's first values have been chosen already.
        if name in variables:
            raise ValueError(f"the variable name {name} is taken twice")

        def initial_value():
            value = tf.numpy_function(job.initial_values[name], [], tf.float32)
            value.set_shape(shape)
            return tf.cast(value, job.dtype_of(name))

        kind = "GLOBAL" if name in trained else "LOCAL"
        with v1.name_scope(None):
            variables[name] = v1.Variable(
                initial_value,
                name=name,
                trainable=name in trained,
                collections=[getattr(v1.GraphKeys, f"{kind}_VARIABLES")],
                use_resource=True,
            )
        return variables[name]

    return create


def slot_in_graph(name: str, shape) -> tf.Variable:
    """A variable of the optimizer, zero at first, in a graph."""
    with v1.name_scope(None):
        return v1.Variable(
            lambda: tf.zeros(shape),
            name=name,
            trainable=False,
            use_resource=True,
        )
