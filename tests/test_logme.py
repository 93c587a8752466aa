"""LogME equals the evidence of the model that its docstring states."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from adapter_bert.tasks.logme import logme

pytestmark = pytest.mark.newer_stack


def log_density(features, column, ratio, noise):
    """Of labels under a normal with the covariance that weights and noise give.

    Weights have the precision ratio * noise.
    """
    rows = len(features)
    covariance = (np.eye(rows) + features @ features.T / ratio) / noise
    _, log_determinant = np.linalg.slogdet(covariance)
    distance = column @ np.linalg.solve(covariance, column)
    return -(rows * np.log(2 * np.pi) + log_determinant + distance) / 2


def brute_force(features, column):
    """The greatest density on a grid of both precisions, made finer twice."""
    centre, reach = np.zeros(2), 8.0
    for _ in range(9):
        powers = [np.linspace(c - reach, c + reach, 33) for c in centre]
        densities = {
            (ratio, noise): log_density(
                features, column, 10.0**ratio, 10.0**noise
            )
            for ratio in powers[0]
            for noise in powers[1]
        }
        centre = np.array(max(densities, key=densities.get))
        reach /= 4
    return max(densities.values()) / len(column)


@pytest.mark.parametrize("shape", [(12, 3), (6, 9)])
def test_the_evidence_is_the_greatest_of_all_precisions(shape):
    rng = default_rng(3)
    features = rng.normal(size=shape)
    numbers = features[:, 0] - features[:, 1] + rng.normal(size=shape[0])
    evidence = logme(features, numbers[:, np.newaxis])
    assert evidence == pytest.approx(brute_force(features, numbers), abs=1e-4)
    labels = np.eye(2)[(numbers > 0).astype(int)]
    columns = [brute_force(features, column) for column in labels.T]
    assert logme(features, labels) == pytest.approx(np.mean(columns), abs=1e-4)


@given(st.integers(2, 20), st.integers(1, 20), st.integers(0, 1000))
def test_scales_of_features_and_rotations_change_nothing(rows, width, seed):
    rng = default_rng(seed)
    features = rng.normal(size=(rows, width))
    numbers = rng.normal(size=(rows, 1))
    evidence = logme(features, numbers)
    assert np.isfinite(evidence)
    turned = features @ np.linalg.qr(rng.normal(size=(width, width)))[0]
    assert logme(1e3 * turned, numbers) == pytest.approx(evidence, abs=1e-6)
