"""Trains by few rows: vectors in a first phase, then a head fitted to them."""

import dataclasses
from collections.abc import Sequence
from typing import Optional

import numpy as np
from absl import logging

from adapter_bert.checkpoints import google, training_state
from adapter_bert.errors import UserError
from adapter_bert.tasks import few_rows
from adapter_bert.training.engines import check_alone
from adapter_bert.training.prediction import check_finite
from adapter_bert.training.two_phases import FirstPhase

# Of scikit-learn's solver.
MOST_STEPS = 1000


class FewRows(FirstPhase):
    """Trains vectors by labels, and saves them with a fitted head."""

    def check(self, run):
        experiment = run.experiment
        unfit = {
            "--adapter or a run as --init_checkpoint, which have a head": (
                run.model.trained and not run.model.new_head
            ),
            f"{run.model.method.name}, which trains twice": (
                run.model.method.first_phase
            ),
            "scores of steps, as by --eval_steps": (
                experiment.training.eval_steps
            ),
            "--cache_frozen_layers": experiment.cache_frozen_layers,
        }
        if names := [name for name, is_used in unfit.items() if is_used]:
            raise UserError(
                "--few_shot trains vectors, and fits a new head at the end; "
                f"it cannot be used with {' or '.join(names)}"
            )
        check_alone("--few_shot")

    def first(self, run):
        return run.model.method, few_rows.LabelledVectors

    def second(self, run, first):
        """Fits the head, and writes the checkpoint of the whole training."""
        features, table = run.features["train"], run.job.table
        logging.info("phase 2 of 2: a linear head of %d rows", len(features))
        # Settings that may change while a run goes on change no bits.
        first = dataclasses.replace(first, predict_tokens=0)
        with run.engine.predictor(first) as predictor:
            outputs = predictor.predict(
                features, run.experiment.training.batch_size, "vectors"
            )
        check_finite(outputs, "train")
        values = {
            name: np.zeros(shape, np.float32)
            for name, shape in table.slots.items()
        }
        if self._table.trained:
            weights = google.open_tensorflow(self._checkpoint)
            values.update(
                (p.name, weights.read(p.name)) for p in self._table.trained
            )
        values.update(
            fit(
                outputs["vectors"],
                features.labels["label_ids"],
                run.task.class_weights,
            )
        )
        steps = run.schedule.num_train_steps
        values["global_step"] = np.int64(steps)
        training_state.save_training(run.folder, steps, values)
        run.checkpoint, run.step = training_state.latest_step(run.folder)
        run.is_over = True


def fit(
    vectors: np.ndarray,
    labels: np.ndarray,
    class_weights: Optional[Sequence[float]] = None,
) -> dict[str, np.ndarray]:
    """Fits logistic regression: variables of a `ClassificationHead` by name.

    Takes float32 [rows, D], int [rows], and a weight of each class or None.
    """
    # Slow to load.
    from sklearn.linear_model import LogisticRegression

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    weights = class_weights and dict(enumerate(class_weights))
    model = LogisticRegression(class_weight=weights, max_iter=MOST_STEPS)
    model.fit(vectors / lengths, labels)
    head = {"output_weights": model.coef_, "output_bias": model.intercept_}
    if len(model.classes_) == 2:
        # scikit-learn has one row for both.
        head = {
            name: np.concatenate([-value, value]) / 2
            for name, value in head.items()
        }
    return {name: value.astype(np.float32) for name, value in head.items()}
