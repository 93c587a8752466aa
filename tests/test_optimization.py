"""The learning rate by hand, and Adam against numpy.

tests/test_accelerators_step.py has both engines' updates.
"""

import numpy as np
import pytest
import tensorflow as tf
from numpy.random import default_rng
from numpy.testing import assert_allclose

from adapter_bert.optimization import (
    AdamWeightDecay,
    Recipe,
    Schedule,
    update_variable,
)

NAMES = (
    "bert/encoder/layer_0/output/dense/kernel",
    "bert/encoder/layer_0/output/dense/bias",
    "bert/encoder/layer_0/output/LayerNorm/gamma",
    "layer_normalization/beta",
    "adapter/biases",
    "output_weights",
)
DECAYED = (NAMES[0], NAMES[5])


@pytest.mark.parametrize(
    "steps, warm_up, rates",
    [
        (10, 4, {1: 0.5, 2: 1, 3: 1.5, 4: 1.2, 5: 1, 10: 0, 15: 0}),
        (4, 0, {1: 1.5, 2: 1, 4: 0}),
    ],
)
def test_the_rate_rises_to_the_end_of_the_warm_up_then_falls(
    steps, warm_up, rates
):
    schedule = Schedule(2.0, num_train_steps=steps, num_warmup_steps=warm_up)
    for step, rate in rates.items():
        assert schedule(step) == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize("warmup", [0, 1, 7, 50])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_numbers_and_tensors_have_the_same_rates(warmup, dtype):
    schedule = Schedule(3e-4, num_train_steps=50, num_warmup_steps=warmup)
    in_graph = tf.function(schedule)
    for step in range(1, 61):
        rate = in_graph(tf.constant(step, dtype))
        assert rate.dtype == tf.float32
        assert rate.shape == ()
        assert_allclose(rate, schedule(step), rtol=1e-5, atol=1e-10)


class Reference:
    """BERT's Adam, by the paper's formulas, in float64."""

    def __init__(self, values, bias_correction):
        self.bias_correction, self.count = bias_correction, 0
        self.values = {n: v.astype(np.float64) for n, v in values.items()}
        self.m = {name: np.zeros(v.shape) for name, v in values.items()}
        self.v = {name: np.zeros(v.shape) for name, v in values.items()}

    def step(self, gradients, learning_rate):
        self.count += 1
        norm = np.sqrt(sum(np.sum(g.astype(float) ** 2) for g in gradients))
        for name, gradient in zip(NAMES, gradients):
            gradient = gradient / max(norm, 1.0)
            m, v, value = self.m[name], self.v[name], self.values[name]
            m += 0.1 * (gradient - m)
            # The kernel's beta is the float32 next to 0.999.
            v += (1 - float(np.float32(0.999))) * (gradient**2 - v)
            decay = 0.01 * value if name in DECAYED else 0.0
            if self.bias_correction:
                # Kingma and Ba 2015, algorithm 1.
                m, v = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
            value -= learning_rate * (m / (np.sqrt(v) + 1e-6) + decay)


def make_values():
    rng = default_rng(0)
    return {name: rng.normal(size=(3, 2)).astype(np.float32) for name in NAMES}


def make_optimizer(values, schedule, bias_correction=False, **more):
    """The optimizer, its variables in order, its slots by name."""
    variables = [(name, tf.Variable(value)) for name, value in values.items()]
    slots = {
        f"{name}/{slot}": tf.Variable(tf.zeros_like(value))
        for name, value in values.items()
        for slot in ("adam_m", "adam_v")
    }
    optimizer = AdamWeightDecay(
        variables, slots, schedule, bias_correction=bias_correction, **more
    )
    return optimizer, variables, slots


def train_step(optimizer, gradients, done=0):
    """One step after some others."""
    step = tf.Variable(done, dtype=tf.int64)
    return optimizer.train(tf.constant(0.0), gradients, step)


@pytest.mark.parametrize("corrected", [False, True])
# The smallest makes epsilon as large as the root of `v`.
@pytest.mark.parametrize("scale", [10.0, 0.01, 1e-5])
def test_three_steps_agree_with_numpy(scale, corrected):
    schedule = Schedule(0.1, num_train_steps=4, num_warmup_steps=2)
    values = make_values()
    optimizer, variables, slots = make_optimizer(values, schedule, corrected)
    reference = Reference(values, corrected)
    rng = default_rng(1)
    for step, rate in enumerate([0.1 * 1 / 2, 0.1 * 2 / 4, 0.1 * 1 / 4]):
        gradients = [
            (scale * rng.normal(size=(3, 2))).astype(np.float32) for _ in NAMES
        ]
        train_step(optimizer, [tf.constant(g) for g in gradients], step)
        reference.step(gradients, rate)
        for name, variable in variables:
            for computed, expected in (
                (variable, reference.values[name]),
                (slots[f"{name}/adam_m"], reference.m[name]),
                (slots[f"{name}/adam_v"], reference.v[name]),
            ):
                assert_allclose(
                    computed, expected, rtol=2e-5, atol=1e-7, err_msg=name
                )


def test_weights_decay_after_all_that_the_gradient_read():
    """Nothing but a dependency orders operations of a TensorFlow 1 graph."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        variable, m, v = (
            v1.Variable(tf.ones([3]), use_resource=True, name=name)
            for name in ("variable", "m", "v")
        )
        gradient = tf.square(variable)
        before = set(graph.get_operations())
        update_variable(0.01, 1.0, variable, m, v, gradient, 0.1)
        [decay] = (
            op
            for op in set(graph.get_operations()) - before
            if op.type == "AssignVariableOp"
        )
        before_decay, ahead = set(), [decay]
        while ahead:
            op = ahead.pop()
            before_decay.add(op)
            ahead += [i.op for i in op.inputs] + op.control_inputs
        assert gradient.op in before_decay


def test_a_recipe_says_whose_weights_do_not_decay():
    assert Recipe().decay_of("x/kernel") == 0.01
    assert Recipe(frozenset({"x/kernel"})).decay_of("x/kernel") == 0.0


def test_a_scaled_rate_moves_as_much_further():
    moved = []
    recipe = Recipe(frozenset({"x", "x/fast"}), {"x/fast": 8.0})
    for name in ("x", "x/fast"):
        optimizer, [(_, variable)], _ = make_optimizer(
            {name: np.float32([1.0, -2.0])},
            Schedule(1e-3, 10, 0),
            recipe=recipe,
        )
        train_step(optimizer, [tf.constant([0.5, 0.25])])
        moved.append(variable.numpy() - [1.0, -2.0])
    assert_allclose(moved[1], 8 * moved[0], rtol=1e-3)
