"""LogME: how well linear models of given features explain given labels.

Source: You et al. 2021, LogME: Practical Assessment of Pre-trained Models for
Transfer Learning, section 4.
"""

import numpy as np
from scipy import optimize

# Powers of ten of the precisions' ratio that are tried first.
POWERS = np.linspace(-12, 12, 97)


def logme(features: np.ndarray, targets: np.ndarray) -> float:
    """Finds the greatest log evidence of labels, in nats for each row.

    Of each column y of `targets` the model is y = F w + noise, where w is
    normal with precision a, noise with precision b. With t = a / b and the
    singular values s and left vectors u of F, the posterior's mean leaves

        E = sum((u y)^2 t / (t + s^2)) + what no u explains of y^2

    which includes t |w|^2. So the best b is N / E, and the log evidence is

        (N log(N / (2 pi E)) - N - sum(log(1 + s^2 / t))) / 2

    Its maximum over t is searched, where the paper's algorithm 1 iterates
    towards it. Columns are averaged, as in the paper.

    Args:
        features: float [N, D], not all zero.
        targets: float [N, K], a column for each label, 1 where a row has it,
            or one column of numbers. No column is all zero.
    """
    left, singular, _ = np.linalg.svd(
        np.asarray(features, np.float64), full_matrices=False
    )
    rows = len(features)
    # The evidence stays as it is if all features are multiplied.
    squares = (singular / singular[0]) ** 2

    def best(column: np.ndarray) -> float:
        explained = left.T @ column
        along = explained**2
        rest = ((column - left @ explained) ** 2).sum()

        def evidence(power: float) -> float:
            t = 10.0**power
            error = (along * (t / (t + squares))).sum() + rest
            lost = np.log1p(squares / t).sum() / rows
            return (np.log(rows / (2 * np.pi * error)) - 1 - lost) / 2

        start = int(np.argmax(list(map(evidence, POWERS))))
        near = POWERS[max(start - 1, 0) : start + 2]
        best_power = optimize.minimize_scalar(
            lambda power: -evidence(power),
            bounds=(near[0], near[-1]),
            options={"xatol": 1e-9},
        )
        return -best_power.fun

    columns = np.asarray(targets, np.float64).T
    return float(np.mean([best(column) for column in columns]))
