"""Operations of graphs, and the kernels that TensorFlow registers for GPUs."""

import functools
from typing import Dict, List, NamedTuple, Set, Tuple

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, kernel_def_pb2
from tensorflow.python.framework import kernels, op_def_registry

# The kind of device, and kernels that serve every kind.
GPU, ANY = "GPU", "DEFAULT"


class Operation(NamedTuple):
    """An operation with its types.

    Attributes:
        name: of the operation.
        types: (attribute, names of types).
    """

    name: str
    types: Tuple[Tuple[str, Tuple[str, ...]], ...]

    def __str__(self) -> str:
        """The operation as `MatMul T=float32`."""
        words = [f"{name}={','.join(of)}" for name, of in self.types]
        return " ".join([self.name, *words])


def operations(graph: tf.compat.v1.GraphDef) -> Set[Operation]:
    """The operations of a graph and of all functions that it reaches.

    Nodes that the graph itself places on a CPU, as those of input pipelines,
    do not count, nor do their functions.
    """
    functions = {f.signature.name: f.node_def for f in graph.library.function}
    found: Set[Operation] = set()
    waiting, seen = [graph.node], set()
    while waiting:
        for node in waiting.pop():
            if "CPU" in node.device.upper():
                continue
            called = {node.op} & set(functions)
            if not called:
                found.add(_operation(node))
            for value in node.attr.values():
                called |= {f.name for f in (value.func, *value.list.func)}
            for name in called & set(functions) - seen:
                seen.add(name)
                waiting.append(functions[name])
    return found


def _operation(node: tf.compat.v1.NodeDef) -> Operation:
    found = []
    for attribute in op_def_registry.get(node.op).attr:
        if attribute.type in ("type", "list(type)"):
            value = node.attr.get(attribute.name, attribute.default_value)
            found.append((attribute.name, _types(value)))
    return Operation(node.op, tuple(sorted(found)))


def _types(value: attr_value_pb2.AttrValue) -> Tuple[str, ...]:
    numbers = [value.type] if value.type else value.list.type
    return tuple(sorted({tf.as_dtype(number).name for number in numbers}))


@functools.lru_cache(None)
def _kernels(device: str) -> Dict[str, List[kernel_def_pb2.KernelDef]]:
    """Kernels by operation; those with a label are for who asks for them."""
    found: Dict[str, List[kernel_def_pb2.KernelDef]] = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.device_type in (device, ANY) and not kernel.label:
            found.setdefault(kernel.op, []).append(kernel)
    return found


def has_kernel(operation: Operation, device: str = GPU) -> bool:
    """Whether this TensorFlow registers a kernel for a kind of device.

    The packages for CPUs register none for GPUs.
    """
    types = dict(operation.types)
    return any(
        all(
            set(types.get(allowed.name, ()))
            <= set(_types(allowed.allowed_values))
            for allowed in kernel.constraint
        )
        for kernel in _kernels(device).get(operation.name, ())
    )
