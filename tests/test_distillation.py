"""Losses of heads that learn another model's outputs."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

from adapter_bert.tasks.multi_label import MultiLabelHead
from adapter_bert.tasks.text_classification import ClassificationHead
from adapter_bert.tasks.text_regression import RegressionHead

pytestmark = pytest.mark.newer_stack

OURS = np.float32([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]])
THEIRS = np.float32([[0.5, 1.0, -1.5], [2.0, 2.0, -4.0]])


def create(name, shape, initializer):
    return tf.zeros(shape)


def softmax(logits):
    odds = np.exp(logits)
    return odds / odds.sum(axis=1, keepdims=True)


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def of_one_label(temperature):
    """Cross entropy times the squared temperature."""
    wanted = softmax(THEIRS / temperature)
    logs = np.log(softmax(OURS / temperature))
    return -(wanted * logs).sum(axis=1) * temperature**2


def of_sets(temperature):
    """The mean of binary cross entropies, likewise."""
    wanted, shares = sigmoid(THEIRS / temperature), sigmoid(OURS / temperature)
    terms = wanted * np.log(shares) + (1 - wanted) * np.log(1 - shares)
    return -terms.mean(axis=1) * temperature**2


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize(
    "made, expected",
    [(ClassificationHead, of_one_label), (MultiLabelHead, of_sets)],
)
def test_logits_are_softened(tiny_config, made, expected, temperature):
    head = made(3, tiny_config, create)
    losses = head.distillation_loss(
        {"logits": tf.constant(OURS)},
        {"logits": tf.constant(THEIRS)},
        temperature,
    )
    assert_allclose(losses, expected(temperature), rtol=1e-5)


def test_numbers_have_no_temperature(tiny_config):
    head = RegressionHead(tiny_config, create)
    losses = head.distillation_loss(
        {"scores": tf.constant(OURS[0])},
        {"scores": tf.constant(THEIRS[0])},
        3.0,
    )
    assert_allclose(losses, (OURS[0] - THEIRS[0]) ** 2)
