"""Records what cleanlab says of labels, for tests/test_label_errors.py.

    python -m venv .venv-cleanlab
    .venv-cleanlab/bin/pip install cleanlab==2.9.0
    .venv-cleanlab/bin/python lab/speed/peers/record_label_errors.py

Probabilities are drawn, and some of the labels are not the most probable ones.
"""

import json
import pathlib

import numpy as np
from cleanlab.count import num_label_issues
from cleanlab.rank import get_label_quality_scores

FILE = "tests/golden/label_errors.json"
# Rows and classes of a case.
CASES = ((60, 2), (80, 4))


def record(seed: int, rows: int, classes: int) -> dict:
    """The probabilities and labels of a case, and cleanlab's answers."""
    rng = np.random.default_rng(seed)
    drawn = rng.dirichlet(np.full(classes, 0.4), rows).round(4) + 1e-4
    probabilities = (drawn / drawn.sum(axis=1, keepdims=True)).round(9)
    labels = probabilities.argmax(axis=1)
    wrong = rng.random(rows) < 0.2
    labels[wrong] = rng.integers(classes, size=wrong.sum())
    scores = get_label_quality_scores(
        labels, probabilities, method="normalized_margin"
    )
    return {
        "probabilities": probabilities.tolist(),
        "labels": labels.tolist(),
        "normalized_margin": scores.tolist(),
        "worst": np.argsort(scores)[:5].tolist(),
        "off_diagonal_calibrated": int(
            num_label_issues(
                labels,
                probabilities,
                estimation_method="off_diagonal_calibrated",
            )
        ),
    }


if __name__ == "__main__":
    found = [record(seed, *case) for seed, case in enumerate(CASES)]
    pathlib.Path(FILE).write_text(json.dumps(found) + "\n")
