"""Predictions of rows by models that were trained on the other rows.

A model is trained for each fold, on all other folds, and predicts the fold.
Layers below everything trained are computed once for all models.
"""

import dataclasses
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.data.tables import Rows
from adapter_bert.errors import UserError
from adapter_bert.tasks.task import Task
from adapter_bert.training import experiment as experiments
from adapter_bert.training import frozen_outputs
from adapter_bert.training.engines import Engine
from adapter_bert.training.frozen_outputs import Around, lowest_layer
from adapter_bert.training.prediction import check_finite
from adapter_bert.training.run import make_schedule, run_steps
from adapter_bert.training.settings import Experiment
from adapter_bert.training.setup import Model, make_job, open_model
from adapter_bert.training.training_step import Job


class Chosen(Around):
    """Some `rows`, int64 [B], of others, also their frozen outputs."""

    def __init__(self, inner: Features, rows: np.ndarray):
        super().__init__(inner)
        self._rows = rows
        self.labels = {name: x[rows] for name, x in inner.labels.items()}
        self.columns = {name: x[rows] for name, x in inner.columns.items()}
        self.lengths = inner.lengths[rows]

    def __len__(self) -> int:
        return len(self._rows)

    def unlabelled(self) -> "Chosen":
        chosen = Chosen(self.inner, self._rows)
        chosen.labels = {}
        return chosen

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """int64 [B, *row_shape]."""
        return self.inner.sequences(self._rows[rows])

    def finish(
        self, batch: Batch, rows: np.ndarray, step: Optional[int]
    ) -> None:
        self.inner.finish(batch, self._rows[rows], step)


def predict(
    experiment: Experiment, task: Task, rows: Rows, fold: np.ndarray
) -> dict[str, np.ndarray]:
    """Gives the head's outputs for rows that its training has not seen.

    `fold`, int64 [N], is the fold of each row, from 0. Gives [N, ...] by name.
    """
    with files.temporary_folder() as folder:
        engine, model, job, features = _prepare(experiment, task, rows, folder)
        gathered: dict[str, np.ndarray] = {}
        folds = int(fold.max()) + 1
        for number in range(folds):
            logging.info("fold %d of %d", number + 1, folds)
            others = Chosen(features, np.flatnonzero(fold != number))
            fold_rows = np.flatnonzero(fold == number)
            schedule = make_schedule(model, others)
            with files.temporary_folder() as fold_folder:
                fold_job = dataclasses.replace(job, output_dir=fold_folder)
                run_steps(engine, model, fold_job, others, schedule)
                with engine.predictor(fold_job) as predictor:
                    outputs = predictor.predict(
                        Chosen(features, fold_rows),
                        experiment.eval_batch_size,
                        f"fold {number + 1}",
                    )
            check_finite(outputs, rows.path)
            for name, values in outputs.items():
                shape = len(rows), *values.shape[1:]
                gathered.setdefault(name, np.empty(shape, values.dtype))
                gathered[name][fold_rows] = values
    return gathered


def _prepare(
    experiment: Experiment, task: Task, rows: Rows, folder: str
) -> tuple[Engine, Model, Job, Any]:
    experiment = dataclasses.replace(
        experiment,
        task=task,
        do_train=True,
        # Models that follow one another share its process.
        engine="strategy",
        output_dir=folder,
        frozen_layers_dir=experiment.frozen_layers_dir or folder,
    )
    engine, experiment = experiments.start(experiment)
    model = open_model(experiment)
    if model.trained is not None:
        raise UserError(
            f"{model.trained.weights.source} is trained, maybe on these "
            "rows; pass the pretrained BERT as --init_checkpoint"
        )
    if model.method.first_phase:
        raise UserError(
            f"{model.method.name} is trained in two phases, which models "
            "of folds are not; pass another --tuning_method"
        )
    model = dataclasses.replace(model, task=task)
    features = task.featurize(rows, model.tokenizer, experiment.max_seq_length)
    if features.cut_rows:
        logging.warning(
            "%d of %d rows are cut (--max_seq_length)",
            features.cut_rows,
            len(rows),
        )
    job = make_job(engine, model)
    if lowest_layer(job.table, model.config.num_hidden_layers):
        frozen_outputs.check(model, job)
        layers = frozen_outputs.FrozenLayers(engine, model, job, features)
        features, job = layers.apply(features, job)
    return engine, model, job, features
