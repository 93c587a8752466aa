"""Settings while a graph is built, and gradients that end with their graph."""

import contextlib
import contextvars
import weakref
from collections.abc import Iterator
from typing import Any, Callable

import tensorflow as tf
from tensorflow.python.framework import ops


def setting(default: Any = False) -> tuple[Callable, Callable]:
    """Makes a setting that holds while a graph is built.

    Gives a function that returns it, and a context manager that sets it.
    """
    variable = contextvars.ContextVar("setting", default=default)

    @contextlib.contextmanager
    def building(value: Any = True) -> Iterator[None]:
        token = variable.set(value)
        try:
            yield
        finally:
            variable.reset(token)

    return variable.get, building


def leave_with_graph(output: tf.Tensor) -> None:
    """Has the registry forget a custom gradient when its graph is gone.

    A registered gradient holds its graph, so neither would ever be freed. Here
    the graph of `output` holds the gradient instead.
    """
    if tf.executing_eagerly():
        # Tapes alone know the gradient.
        return
    graph = output.graph
    name = output.op.get_attr("_gradient_op_type").decode()
    entries = ops.gradient_registry._registry
    backward = weakref.ref(entries[name]["type"])
    held = getattr(graph, "_gradients_of_adapter_bert", ())
    graph._gradients_of_adapter_bert = (*held, backward())
    entries[name]["type"] = lambda *arguments: backward()(*arguments)
    weakref.finalize(graph, entries.pop, name, None).atexit = False
