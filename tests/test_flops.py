"""The count of operations against the products of the graphs themselves."""

import numpy as np
import pytest
import tensorflow as tf
from engine_jobs import make_job, zero_step

from adapter_bert.bert.hooks import Context
from lab.speed import flops

pytestmark = pytest.mark.older_stack

ROWS, TOKENS = 3, 7


CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def computed(graph):
    """The operations that lead to a function's outputs; others never run."""
    ops, waiting = set(), [t.op for t in graph.outputs]
    while waiting:
        op = waiting.pop()
        if op not in ops:
            ops.add(op)
            waiting += [t.op for t in op.inputs] + op.control_inputs
    return ops


def products(graph):
    """Operations of all matrix products over tokens, from their shapes.

    A function's count as often as it is called: those of shared layers are not
    inlined, and so compute all that is in them.
    """
    total = 0
    for op in computed(graph):
        if op.type in CALLS:
            called = graph._get_function(op.get_attr("f").name)
            total += products(called.graph)
        if op.type not in ("MatMul", "BatchMatMulV2"):
            continue
        a, b = (tuple(t.shape) for t in op.inputs)
        names = ("transpose_a", "transpose_b")
        if op.type != "MatMul":
            names = ("adj_x", "adj_y")
        inner = a[-2] if op.get_attr(names[0]) else a[-1]
        outer = b[-2] if op.get_attr(names[1]) else b[-1]
        size = 2 * int(np.prod(a)) * outer
        assert None not in a + b and inner in b[-2:]
        # Left out: the head and the product with one-hot segments; there are
        # two classes, and two segments.
        if op.type == "MatMul" and 2 in {*a, *b}:
            continue
        total += size
    return total


def build(config, method, training, share_layers):
    """The graph of a step; shapes are static."""
    job = make_job(config, "unused", method, share_layers=share_layers)
    model, train = zero_step(job, ROWS)

    def predict(ids, labels):
        ones = tf.ones_like(ids)
        features = {"input_ids": ids, "segment_ids": 0 * ones}
        context = Context(ones, share_layers=share_layers)
        return model({**features, "input_mask": ones}, context)

    function = tf.function(train if training else predict, autograph=False)
    graph = function.get_concrete_function(
        tf.TensorSpec([ROWS, TOKENS], tf.int32), tf.TensorSpec([ROWS], tf.int32)
    ).graph
    return job.table, graph


@pytest.mark.gate
@pytest.mark.parametrize(
    "method, share_layers",
    [
        ("houlsby(size=4)", True),
        ('houlsby(size=4, layers="1")', False),
        ("full", True),
        ("top_layers(k=1)", True),
        ("head", True),
    ],
)
def test_the_count_is_that_of_the_graph(tiny_config, method, share_layers):
    table, graph = build(tiny_config, method, False, share_layers)
    expected = flops.forward(tiny_config, table, ROWS, TOKENS)
    size = tiny_config.hidden_size
    pooler = 2 * ROWS * size * size
    assert products(graph) == expected + pooler
    table, graph = build(tiny_config, method, True, share_layers)
    counted = flops.training(tiny_config, table, ROWS, TOKENS)
    names = {p.name for p in table.trained}
    kernel = "bert/pooler/dense/kernel"
    # The gradients of its inputs and of its matrix.
    times = (
        1
        + any(n.startswith("bert/") for n in names - {kernel})
        + (kernel in names)
    )
    assert products(graph) == counted + times * pooler
