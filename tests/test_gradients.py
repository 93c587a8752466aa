"""A function cut in two: the same numbers, and little kept between."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from adapter_bert.bert import functional
from adapter_bert.bert import gradients as saved_gradients
from adapter_bert.bert.gradients import differentiable

ROWS, SIZE = 6, 4


def spec_of(x):
    return tf.TensorSpec(x.shape, x.dtype)


def layer(x, kernel, bias, seed, number):
    """Something of all that a layer does."""
    inner = functional.gelu(x @ kernel + bias)
    keep = functional.keep_mask(tf.shape(inner), 0.3, seed)
    inner = functional.drop(inner, keep, 0.3)
    added = tf.cond(number > 2, lambda: tf.tanh(inner * bias), lambda: inner)
    return functional.layer_norm(x + added, bias, bias) * tf.cast(
        number, tf.float32
    )


@pytest.fixture
def arguments():
    rng = np.random.default_rng(0)
    x, kernel, bias = (
        tf.constant(rng.normal(size=shape), tf.float32)
        for shape in ((ROWS, SIZE), (SIZE, SIZE), (SIZE,))
    )
    return [x, kernel, bias, tf.constant([3, 4]), tf.constant(3)]


def gradients(function, arguments, sources):
    watched = [arguments[place] for place in sources]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        output = function(*arguments)
        loss = tf.reduce_sum(output**3)
    return [output, *tape.gradient(loss, watched)]


def cut_in_two(function, arguments, sources):
    return differentiable(function, [spec_of(x) for x in arguments], sources)


def check_close(values, expected, atol=1e-5):
    for one, other in zip(values, expected):
        assert_allclose(one, other, rtol=1e-5, atol=atol)


@pytest.mark.newer_stack
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("sources", [[0], [2], [0, 1, 2]])
@pytest.mark.parametrize("is_graph", [False, True])
def test_values_and_gradients_are_those_of_the_function(
    arguments, number, sources, is_graph
):
    arguments[4] = tf.constant(number)
    cut = cut_in_two(layer, arguments, sources)
    expected = gradients(layer, arguments, sources)
    compute = gradients
    if is_graph:
        compute = tf.function(gradients, autograph=False)
    actual = compute(cut, arguments, sources)
    assert len(actual) == 1 + len(sources)
    # Gradients are as large as a thousand.
    check_close(actual, expected, atol=1e-3)


def kept_by(function, arguments, sources):
    """Shapes of what goes from the forward pass to the backward pass."""
    specs = [spec_of(x) for x in arguments]
    passes = saved_gradients._Passes(function, specs, sources)
    outputs = passes.forward.structured_outputs[1:]
    return [tuple(x.shape) for x in outputs if x.dtype.is_floating], passes.read


def test_what_nobody_reads_is_not_kept(arguments):
    x, kernel, bias = arguments[:3]

    def dense(x, kernel, bias):
        return functional.gelu(x @ kernel + bias)

    # Gelu's slope, and the kernel; not what the kernel was multiplied by.
    assert kept_by(dense, [x, kernel, bias], [0]) == ([(ROWS, SIZE)], [1])
    # If the kernel is trained, that too.
    shapes, read = kept_by(dense, [x, kernel, bias], [0, 1])
    assert (shapes, sorted(read)) == ([(ROWS, SIZE)], [0, 1])


def test_what_does_not_matter_has_no_gradient_and_keeps_nothing(arguments):
    x, kernel, _ = arguments[:3]

    def square(x, kernel):
        return tf.square(x)

    cut = cut_in_two(square, [x, kernel], [0, 1])
    _, of_x, of_kernel = gradients(cut, [x, kernel], [0, 1])
    assert_allclose(of_x, 6 * x**5, rtol=1e-5)
    assert of_kernel is None
    assert kept_by(square, [x, kernel], [0, 1]) == ([], [0])


def test_functions_that_it_calls_outlive_the_tracing():
    """TensorFlow would forget them with the graph that they were made in."""

    def branch(x):
        return tf.cond(x[0] > 0, lambda: tf.sin(x), lambda: tf.square(x))

    x = tf.constant([0.5, 2.0])
    cut = differentiable(branch, [spec_of(x)], [0])
    gc.collect()
    output, of_x = gradients(cut, [x], [0])
    assert_allclose(output, np.sin(x), rtol=1e-6)
    assert_allclose(of_x, 3 * np.sin(x) ** 2 * np.cos(x), rtol=1e-5)


def test_what_does_more_than_compute_is_refused():
    def checked(x):
        tf.debugging.assert_positive(x)
        return tf.square(x)

    with pytest.raises(ValueError, match="Assert.* would be left out"):
        differentiable(checked, [tf.TensorSpec([2], tf.float32)], [0])


def test_checks_of_numbers_are_no_effect(arguments):
    """`enable_check_numerics` puts them after all operations, also in `If`s."""

    def branched(x, *others):
        return layer(tf.cond(x[0, 0] > 9, lambda: x, lambda: x + 1), *others)

    tf.debugging.enable_check_numerics()
    try:
        cut = cut_in_two(branched, arguments, [0])
        output, _ = gradients(cut, arguments, [0])
    finally:
        tf.debugging.disable_check_numerics()
    assert_allclose(output, branched(*arguments), rtol=1e-5)


def test_no_gradient_but_its_own_is_made(arguments):
    """TensorFlow would make one of a function that it differentiates."""
    cut = cut_in_two(layer, arguments, [0, 2])

    @tf.function(autograph=False)
    def compute():
        return gradients(cut, arguments, [0, 2])

    graph = compute.get_concrete_function().graph.as_graph_def()
    names = {function.signature.name for function in graph.library.function}
    assert names and not [n for n in names if n.startswith("__forward_")]


def test_all_calls_in_a_graph_are_of_one_function(arguments):
    """TensorFlow would else put a copy of it at the place of each call."""
    cut = cut_in_two(layer, arguments, [])
    graph = tf.function(
        lambda x: cut(cut(x, *arguments[1:]), *arguments[1:]), autograph=False
    ).get_concrete_function(spec_of(arguments[0]))
    library = graph.graph.as_graph_def().library.function
    kept = [f.signature.name for f in library if f.attr["_noinline"].b]
    calls = [
        node.attr["f"].func.name
        for node in graph.graph.as_graph_def().node
        if node.attr["f"].func.name
    ]
    assert len(kept) == 1 and calls == kept * 2
