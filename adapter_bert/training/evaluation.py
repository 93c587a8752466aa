"""Answers for the splits of a run, and scores on the dev sets."""

from typing import Any, NamedTuple

import numpy as np

from adapter_bert.data.input_pipeline import Features
from adapter_bert.tasks.task import ScoresAndData, SplitNames
from adapter_bert.training.prediction import RowPredictor, check_finite
from adapter_bert.training.setup import Setup

# Values of `Hooks.observe`, float32 [rows, ...], by name.
Shown = dict[str, np.ndarray]


class Splits(NamedTuple):
    """Splits to evaluate and those to predict, which may be the same."""

    dev: SplitNames
    test: SplitNames

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for _, name in (*self.dev, *self.test)))


class Rows(NamedTuple):
    """Rows of splits by name: what the task keeps of them, features."""

    splits: Splits
    kept: dict[str, Any]
    features: dict[str, Features]


def answer(
    setup: Setup, predictor: RowPredictor, rows: Rows, splits: Splits
) -> tuple[dict[str, Any], dict[str, Shown]]:
    """Gives the task's answers and the values of `Hooks.observe`, by split."""
    experiment, evaluated = setup.experiment, dict(splits.dev).values()
    answers, shown = {}, {}
    for name in splits.names:
        outputs, features = {}, rows.features[name]
        how = experiment.predict_batch_size, "predict"
        # A split that is both is evaluated.
        if name in evaluated:
            how = experiment.eval_batch_size, "eval"
        # No rows if no context has a token.
        if len(features):
            outputs = predictor.predict(features, *how)
            check_finite(outputs, name)
        shown[name] = {
            key: outputs.pop(key)
            for key in setup.model.method.observes
            if key in outputs
        }
        answers[name] = setup.task.decode(rows.kept[name], features, outputs)
    return answers, shown


def score(
    setup: Setup, rows: Rows, answers: dict[str, Any]
) -> dict[str, ScoresAndData]:
    """Gives the result of `Task.score_tables` for the dev splits."""
    return setup.task.score_tables(
        {
            suffix: setup.task.evaluate(
                rows.kept[name], rows.features[name], answers[name]
            )
            for suffix, name in rows.splits.dev
        },
        fingerprints(rows.splits, rows.features),
    )


def fingerprints(
    splits: Splits, features: dict[str, Features]
) -> dict[str, str]:
    """Gives the fingerprint of each dev split's rows."""
    return {name: features[name].fingerprint() for _, name in splits.dev}
