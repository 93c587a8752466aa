"""Custom gradients that save only the activations the backward pass needs.

TensorFlow's own gradient of a function saves every tensor that any operation of
the gradient names. In a layer of BERT with adapters, half of these serve only
gradients of frozen matrices. Here both passes are traced into one graph, which
is cut in two: operations that depend on the output's gradient are the backward
pass, and the tensors they read are saved. No gradients of second order.
"""

from collections.abc import Sequence
from typing import Callable, Optional

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from adapter_bert.bert.functional import anew, custom_gradient

CHECKS = "CheckNumerics", "CheckNumericsV2"


def differentiable(
    function: Callable[..., tf.Tensor],
    specs: Sequence[tf.TensorSpec],
    sources: Sequence[int],
) -> Callable[..., tf.Tensor]:
    """Gives a function a gradient that saves no more than it reads.

    The function gives one tensor and reads nothing but arguments like `specs`,
    of which those at the places `sources` have a gradient: None if it does not
    matter to the output.

    Raises:
        ValueError: the function does more than to compute its output.
    """
    if not sources:
        return _once(function, specs)
    passes = _Passes(function, specs, sources)

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        @custom_gradient
        def compute(*watched: tf.Tensor):
            values = list(tensors)
            for place, value in zip(sources, watched):
                # Else a tape would have TensorFlow's own gradient made too.
                values[place] = tf.stop_gradient(value)
            output, *kept = passes.forward(*values)
            kept += [values[place] for place in passes.read]

            def gradient(upstream: tf.Tensor) -> list[Optional[tf.Tensor]]:
                slopes = iter(passes.backward(upstream, *kept))
                return [next(slopes) if x else None for x in passes.matters]

            return output, gradient

        return compute(*(tensors[place] for place in sources))

    return call


def recomputed(
    function: Callable[..., tf.Tensor],
) -> Callable[..., tf.Tensor]:
    """Begins a function's backward pass with the forward pass, under XLA.

    The function gives one tensor and reads nothing else that has a gradient.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """

    @custom_gradient
    def call(*arguments: tf.Tensor):
        # Else a tape would have TensorFlow's own gradient made too.
        output = function(*map(tf.stop_gradient, arguments))

        def gradient(upstream: tf.Tensor) -> list[Optional[tf.Tensor]]:
            # With the gradient among them, nothing is computed before it.
            upstream, *again = anew(upstream, *arguments)
            sources = [x for x in again if x.dtype.is_floating]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                output = function(*again)
            slopes = iter(tape.gradient(output, sources, upstream))
            return [
                next(slopes) if x.dtype.is_floating else None for x in again
            ]

        return output, gradient

    return call


def _once(function: Callable, specs: Sequence[tf.TensorSpec]) -> Callable:
    return tf.function(
        function,
        autograph=False,
        experimental_attributes={"_noinline": True},
    ).get_concrete_function(*specs)


class _Passes:
    """Both passes of a function, cut out of one graph.

    Attributes:
        forward: takes the arguments, gives the output and the saved tensors.
        read: places of the arguments that the backward pass reads.
        backward: takes the gradient of the output, the saved tensors and the
            arguments at `read`; gives gradients of sources that matter.
        matters: for each source, whether the output depends on it.
    """

    def __init__(
        self,
        function: Callable[..., tf.Tensor],
        specs: Sequence[tf.TensorSpec],
        sources: Sequence[int],
    ):
        traced = []

        def trace(*arguments: tf.Tensor) -> tf.Tensor:
            watched = [arguments[place] for place in sources]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(watched)
                output = function(*arguments)
            upstream = tf.compat.v1.placeholder(output.dtype, output.shape)
            gradients = tape.gradient(
                output, watched, output_gradients=upstream
            )
            self.matters = [g is not None for g in gradients]
            gradients = [
                tf.convert_to_tensor(g) for g in gradients if g is not None
            ]
            traced.extend([arguments, output, upstream, gradients])
            return output

        graph = tf.function(trace, autograph=False)
        graph = graph.get_concrete_function(*specs).graph
        # The copies below call functions that live as long as the graph.
        self._graph = graph
        arguments, output, upstream, gradients = traced
        late = _depend_on(upstream)
        backward, read = _between(
            gradients,
            lambda op: (
                op.name in late or op.type == "Const" or _is_widening(op)
            ),
        )
        places = {x.name: place for place, x in enumerate(arguments)}
        self.read = [places[x.name] for x in read if x.name in places]
        not_kept = {*places, upstream.name}
        kept = [x for x in read if x.name not in not_kept]
        forward, _ = _between([output, *kept], lambda op: True)
        # Some shapes are known better than operations tell.
        definition = graph.as_graph_def(add_shapes=True)
        only_checks = _with_checks_alone(definition)
        for op in graph.control_outputs:
            if op.name not in forward and op.name not in only_checks:
                raise ValueError(f"{op.type} {op.name} would be left out")
        self.forward = _run(definition, forward, arguments, [output, *kept])
        self.backward = _run(
            definition,
            backward,
            [upstream, *kept, *(arguments[place] for place in self.read)],
            gradients,
        )


def _with_checks_alone(definition: tf.compat.v1.GraphDef) -> set[str]:
    """Names operations with no effect but checks of numbers.

    `tf.debugging.enable_check_numerics` puts these into every graph.
    """
    functions = {f.signature.name: f for f in definition.library.function}

    def is_harmless(node: tf.compat.v1.NodeDef) -> bool:
        if node.op in CHECKS:
            return True
        bodies = [
            functions[value.func.name]
            for value in node.attr.values()
            if value.func.name in functions
        ]
        if bodies:
            return all(
                map(is_harmless, [n for b in bodies for n in b.node_def])
            )
        return not op_def_registry.get(node.op).is_stateful

    return {node.name for node in definition.node if is_harmless(node)}


def _depend_on(source: tf.Tensor) -> set[str]:
    dependent: set[str] = set()
    # Operations come after those that they read.
    for op in source.graph.get_operations():
        before = [x.op for x in op.inputs] + list(op.control_inputs)
        if any(x is source.op or x.name in dependent for x in before):
            dependent.add(op.name)
    return dependent


def _between(
    outputs: Sequence[tf.Tensor], is_inside: Callable[[tf.Operation], bool]
) -> tuple[set[str], list[tf.Tensor]]:
    """Finds the part of a graph that `outputs` need, of operations `is_inside`.

    Gives the names of its operations, without placeholders, and the tensors of
    others that it reads or that are outputs.
    """
    inside: set[str] = set()
    read: dict[str, tf.Tensor] = {}
    waiting = [(x.op, x) for x in outputs]
    while waiting:
        op, tensor = waiting.pop()
        if op.type == "Placeholder" or not is_inside(op):
            # Control dependencies on earlier operations are met.
            if tensor is not None:
                read[tensor.name] = tensor
        elif op.name not in inside:
            inside.add(op.name)
            waiting += [(x.op, x) for x in op.inputs]
            waiting += [(x, None) for x in op.control_inputs]
    return inside, list(read.values())


def _run(
    graph: tf.compat.v1.GraphDef,
    part: set[str],
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
) -> Callable[..., list[tf.Tensor]]:
    copied = tf.compat.v1.GraphDef(
        versions=graph.versions, library=graph.library
    )
    # Of an operation's outputs the first has the operation's name alone.
    read = set()
    for node in graph.node:
        if node.name in part:
            copy = copied.node.add()
            copy.CopyFrom(node)
            # `_class` may name operations that are not copied.
            copy.attr.pop("_class", None)
            copy.input[:] = [
                name
                for name in node.input
                if not name.startswith("^") or name[1:] in part
            ]
            read.update(
                f"{name}:0" if ":" not in name else name for name in copy.input
            )
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
    inputs, outputs = [x.name for x in inputs], [x.name for x in outputs]
    computed = [name for name in outputs if name not in inputs]

    def compute(*arguments: tf.Tensor) -> list[tf.Tensor]:
        values = dict(zip(inputs, arguments))
        imported = tf.graph_util.import_graph_def(
            copied,
            {name: x for name, x in values.items() if name in read},
            return_elements=computed,
            name="",
        )
        values.update(zip(computed, imported))
        return [values[name] for name in outputs]

    return _once(compute, specs)


def _is_widening(operation: tf.Operation) -> bool:
    """Tells what widens int8: soon done again, large to keep."""
    if operation.type not in ("Cast", "Mul", "Identity"):
        return False
    first = operation.inputs[0]
    return first.dtype == tf.int8 or _is_widening(first.op)
