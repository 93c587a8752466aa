"""The operations with gradients of their own compute the plain formulas."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from ways_to_compute import WAYS

from adapter_bert.bert import functional

RATE = 0.3


# The formulas, in numpy and for TensorFlow to differentiate.


def gelu_in_numpy(x):
    return x * (1 + np.tanh(math.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def gelu_erf_in_numpy(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def layer_norm_in_numpy(x, gamma, beta):
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-12)
    return gamma * (x - x.mean(axis=-1, keepdims=True)) / deviation + beta


def plain_layer_norm(x, gamma, beta):
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(x - mean), axis=-1, keepdims=True)
    return gamma * (x - mean) / tf.sqrt(variance + 1e-12) + beta


def drop_in_numpy(x, keep):
    return np.where(keep, x, 0) / (1 - RATE)


def plain_drop(x, keep):
    return x * tf.cast(keep, x.dtype) / (1 - RATE)


def attend_in_numpy(query, key, value, bias, keep=None):
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    scores = scores + bias
    odds = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = odds / odds.sum(axis=-1, keepdims=True)
    return (shares if keep is None else drop_in_numpy(shares, keep)) @ value


def plain_attend(query, key, value, bias, keep=None):
    scores = tf.einsum("bnth,bnsh->bnts", query, key)
    shares = tf.nn.softmax(scores / math.sqrt(query.shape[-1]) + bias)
    shares = shares if keep is None else plain_drop(shares, keep)
    return tf.einsum("bnts,bnsh->bnth", shares, value)


def drop(x, keep):
    return functional.drop(x, keep, RATE)


def attend(query, key, value, bias, keep=None):
    return functional.attend(query, key, value, bias, keep, RATE)


IN_NUMPY = {
    functional.gelu: gelu_in_numpy,
    functional.gelu_erf: gelu_erf_in_numpy,
    functional.layer_norm: layer_norm_in_numpy,
    drop: drop_in_numpy,
    attend: attend_in_numpy,
}
PLAIN = {
    functional.gelu: functools.partial(tf.nn.gelu, approximate=True),
    functional.gelu_erf: functools.partial(tf.nn.gelu, approximate=False),
    functional.layer_norm: plain_layer_norm,
    drop: plain_drop,
    attend: plain_attend,
}
# How many of the arguments have gradients; they come first.
DIFFERENTIABLE = {
    functional.gelu: 1,
    functional.gelu_erf: 1,
    functional.layer_norm: 3,
    drop: 1,
    attend: 3,
}


def normal(*shape, seed=0, mean=0.0, deviation=1.0):
    rng = np.random.default_rng([seed, *shape])
    return rng.normal(mean, deviation, shape).astype(np.float32)


def kept(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).random(shape) >= RATE


def norm_arguments(*shape):
    """Rows of another mean and deviation, and weights."""
    size = shape[-1]
    return (
        normal(*shape, mean=3.0, deviation=7.0),
        normal(size, seed=1, mean=1.0, deviation=0.5),
        normal(size, seed=2),
    )


def attend_arguments(b, n, t, s, h, dropped):
    """The last key of every row but the first is masked."""
    bias = np.zeros((b, 1, 1, s), np.float32)
    if s > 1:
        bias[1:, ..., -1] = -10000.0
    arguments = [
        normal(b, n, t, h, seed=1, deviation=2.0),
        normal(b, n, s, h, seed=2, deviation=2.0),
        normal(b, n, s, h, seed=3),
        bias,
    ]
    return (*arguments, kept(b, n, t, s)) if dropped else tuple(arguments)


CASES = {
    "gelu": (functional.gelu, (normal(4, 3, 50, deviation=3.0),)),
    "gelu_erf": (functional.gelu_erf, (normal(4, 3, 50, deviation=3.0),)),
    "LayerNorm of a matrix": (functional.layer_norm, norm_arguments(5, 24)),
    "LayerNorm": (functional.layer_norm, norm_arguments(3, 5, 24)),
    "drop": (drop, (normal(3, 5, 7), kept(3, 5, 7))),
    "attend": (attend, attend_arguments(2, 3, 5, 5, 4, False)),
    "attend to more": (attend, attend_arguments(2, 3, 4, 7, 4, False)),
    "attend, dropout": (attend, attend_arguments(2, 3, 5, 5, 4, True)),
    "attend to more, dropout": (attend, attend_arguments(2, 3, 4, 7, 4, True)),
}


def differentiate(function, count, upstream, *arguments):
    """The function's value, and its gradients to `count` arguments."""
    with tf.GradientTape() as tape:
        tape.watch(arguments[:count])
        value = function(*arguments)
    gradients = tape.gradient(
        value, arguments[:count], tf.cast(upstream, value.dtype)
    )
    return [value, *gradients]


def widened(arguments):
    return [
        tf.constant(a if a.dtype == bool else a.astype(np.float64))
        for a in arguments
    ]


def check_close(actual, expected, tolerance):
    """Compares with a tolerance that is relative to the largest number.

    Of small numbers only, which are differences of larger ones, to 0.1.
    """
    actual, expected = np.array(actual), np.array(expected)
    assert actual.shape == expected.shape
    largest = np.abs(expected).max(initial=0.1)
    np.testing.assert_allclose(
        actual.astype(np.float64), expected, rtol=0, atol=tolerance * largest
    )


def check_operation(operation, arguments, way="eager", tolerance=1e-5):
    """Compares value and gradients with those of the formula in float64."""
    count = DIFFERENTIABLE[operation]
    upstream = normal(*operation(*arguments).shape, seed=9)
    expected = differentiate(
        PLAIN[operation], count, upstream, *widened(arguments)
    )
    actual = WAYS[way](
        functools.partial(differentiate, operation, count, upstream), arguments
    )
    for ours, plain in zip(actual, expected):
        assert ours.dtype == np.float32
        check_close(ours, plain, tolerance)


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_formula_in_numpy(case):
    operation, arguments = CASES[case]
    wide = [a.numpy() for a in widened(arguments)]
    check_close(operation(*arguments), IN_NUMPY[operation](*wide), 1e-6)


@pytest.mark.newer_stack
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_formula(case, way):
    check_operation(*CASES[case], way)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(shape=st.lists(st.integers(0, 5), max_size=4))
def test_gelu_takes_every_shape(shape):
    for operation in (functional.gelu, functional.gelu_erf):
        check_operation(operation, (normal(*shape, deviation=3.0),))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=3),
    # Of two numbers the one's place tells the other's.
    size=st.integers(3, 70),
)
def test_layer_norm_takes_every_shape(shape, size):
    check_operation(
        functional.layer_norm, norm_arguments(*shape, size), tolerance=1e-4
    )


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(*[st.integers(1, 6)] * 5),
    dropped=st.booleans(),
)
def test_attention_takes_every_shape(sizes, dropped):
    # With a single key gradients are zero, as differences of equal numbers.
    check_operation(attend, attend_arguments(*sizes, dropped), tolerance=1e-4)


def test_no_rows_are_no_defect():
    """A lane has none where a batch has fewer rows than there are lanes."""
    shape = [0, 5, 24]
    x = tf.zeros(shape)
    assert functional.gelu(x).shape == shape
    assert functional.layer_norm(x, tf.ones([24]), tf.ones([24])).shape == shape
    arguments = [tf.zeros([0, 3, 5, 4])] * 3 + [tf.zeros([0, 1, 1, 5])]
    assert attend(*arguments).shape == [0, 3, 5, 4]


@pytest.mark.parametrize("case", CASES)
def test_bfloat16_stays_bfloat16_and_is_close_to_float32(case):
    """Inputs that bfloat16 holds exactly; 2.5% in the root mean square.

    The worst, 2.1%, is attention's gradient to the query. In float32 its last
    difference would have 1.6%, and attention would take an eighth longer.
    """
    operation, arguments = CASES[case]
    count = DIFFERENTIABLE[operation]
    arguments = [tf.constant(a) for a in arguments]
    # The weights of LayerNorm are variables, which stay float32.
    places = range(len(arguments))
    places = [0] if operation is functional.layer_norm else places
    narrow, wide = list(arguments), list(arguments)
    for place in places:
        if arguments[place].dtype == tf.float32:
            narrow[place] = tf.cast(arguments[place], tf.bfloat16)
            wide[place] = tf.cast(narrow[place], tf.float32)
    shape = operation(*arguments).shape
    upstream = tf.cast(normal(*shape, seed=9), tf.bfloat16)
    actual, expected = (
        differentiate(operation, count, upstream, *inputs)
        for inputs in (narrow, wide)
    )
    assert actual[0].dtype == tf.bfloat16
    for gradient, argument in zip(actual[1:], narrow):
        assert gradient.dtype == argument.dtype
    for ours, plain in zip(actual, expected):
        error = np.square(
            tf.cast(ours, tf.float64) - tf.cast(plain, tf.float64)
        )
        assert error.mean() < 0.025**2 * np.square(plain).mean()


def test_the_attention_bias_gets_no_gradient():
    arguments = [tf.constant(a) for a in CASES["attend"][1]]
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        outputs = attend(*arguments)
    gradients = tape.gradient(outputs, arguments)
    assert [g is None for g in gradients] == [False, False, False, True]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("operation", [functional.gelu, functional.gelu_erf])
def test_gelu_of_large_numbers_is_they_or_zero(operation, dtype):
    x = tf.constant([20.0, 1e4, 1e12, -20.0, -1e4, -1e12], dtype)
    value, gradient = differentiate(operation, 1, tf.ones([6]), x)
    np.testing.assert_array_equal(value, tf.nn.relu(x))
    np.testing.assert_array_equal(
        gradient, tf.constant([1, 1, 1, 0, 0, 0], dtype)
    )


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_layer_norm_of_constant_rows_is_finite(dtype):
    x = tf.constant([[0.0] * 8, [1.0] * 8, [-1e4] * 8], dtype)
    gamma, beta = tf.fill([8], 2.0), tf.range(8.0)
    upstream = normal(3, 8)
    value, *gradients = differentiate(
        functional.layer_norm, 3, upstream, x, gamma, beta
    )
    np.testing.assert_array_equal(value, tf.cast([beta] * 3, dtype))
    for gradient in gradients:
        assert np.isfinite(tf.cast(gradient, tf.float32)).all()


def test_rows_may_have_their_own_scales_and_biases():
    rng = np.random.default_rng(0)
    x, gamma, beta = (
        rng.normal(size=shape).astype(np.float32)
        for shape in ((3, 2, 4), (3, 4), (3, 4))
    )
    for row in range(3):
        np.testing.assert_allclose(
            functional.layer_norm(x, tf.constant(gamma), beta)[row],
            functional.layer_norm(x[row], gamma[row], beta[row]),
            atol=1e-6,
        )
    found = functional.add_bias(x.reshape(6, 4), tf.constant(beta))
    np.testing.assert_array_equal(found, (x + beta[:, None]).reshape(6, 4))


@pytest.mark.parametrize(
    "name, formula",
    [
        ("leaky_relu", lambda x: np.where(x > 0, x, 0.01 * x)),
        ("mish", lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        ("quick_gelu", lambda x: x / (1 + np.exp(-1.702 * x))),
    ],
)
def test_activations_of_other_programs_are_their_formulas(name, formula):
    x = normal(50, deviation=3.0)
    found = functional.activation(name)(tf.constant(x))
    check_close(found, formula(x.astype(np.float64)), 1e-6)
