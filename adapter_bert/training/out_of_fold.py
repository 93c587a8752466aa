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
from adapter_bert.training.prediction import check_finite
from adapter_bert.training.run import make_schedule, run_steps
from adapter_bert.training.settings import Experiment
from adapter_bert.training.setup import lowest_layer, make_job, open_model


class Chosen:
    """Some `rows`, int64 [B], of others, also their frozen outputs."""

    def __init__(self, inner: Features, rows: np.ndarray):
        self._inner, self._rows = inner, rows
        self.labels = {name: x[rows] for name, x in inner.labels.items()}
        self.lengths = inner.lengths[rows]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._rows)

    def unlabelled(self) -> "Chosen":
        """Gives the rows, whose outputs are known, without labels."""
        chosen = Chosen(self._inner, self._rows)
        chosen.labels = {}
        return chosen

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """int64 [B, *row_shape]."""
        return self._inner.sequences(self._rows[rows])

    def finish(
        self, batch: Batch, rows: np.ndarray, step: Optional[int]
    ) -> None:
        """Changes a batch as the others' `finish`."""
        self._inner.finish(batch, self._rows[rows], step)


class Trainings:
    """Trains a task on parts of its rows, and answers other parts."""

    def __init__(
        self, experiment: Experiment, task: Task, rows: Rows, folder: str
    ):
        experiment = dataclasses.replace(
            experiment,
            task=task,
            do_train=True,
            # Models that follow one another share its process.
            engine="strategy",
            output_dir=folder,
            frozen_layers_dir=experiment.frozen_layers_dir or folder,
        )
        self._engine, experiment = experiments.start(experiment)
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
        self._rows = rows
        self._model = dataclasses.replace(model, task=task)
        features = task.featurize(
            rows, model.tokenizer, experiment.max_seq_length
        )
        if features.cut_rows:
            logging.warning(
                "%d of %d rows are cut (--max_seq_length)",
                features.cut_rows,
                len(rows),
            )
        self._job = make_job(self._engine, self._model)
        self._known = features
        if lowest_layer(self._job.table, model.config.num_hidden_layers):
            frozen_outputs.check(self._model, self._job)
            layers = frozen_outputs.FrozenLayers(
                self._engine, self._model, self._job, features
            )
            self._known = layers.known(features)
            self._job = layers.upper(self._job)

    def predict(
        self, trained: np.ndarray, fold_rows: np.ndarray, name: str
    ) -> dict[str, np.ndarray]:
        """Gives the head's outputs for some rows, after a training on others.

        Takes rows as int64 [M] and [N]. Gives the outputs by name, [N, ...].
        """
        with files.temporary_folder() as folder:
            job = dataclasses.replace(self._job, output_dir=folder)
            chosen = Chosen(self._known, trained)
            schedule = make_schedule(self._model, chosen)
            run_steps(self._engine, self._model, job, chosen, schedule)
            with self._engine.predictor(job) as predictor:
                outputs = predictor.predict(
                    Chosen(self._known, fold_rows),
                    self._model.experiment.eval_batch_size,
                    name,
                )
        check_finite(outputs, self._rows.path)
        return outputs


def predict(
    experiment: Experiment, task: Task, rows: Rows, fold: np.ndarray
) -> dict[str, np.ndarray]:
    """Gives the head's outputs for rows that its training has not seen.

    `fold`, int64 [N], is the fold of each row, from 0. Gives [N, ...] by name.
    """
    with files.temporary_folder() as folder:
        trainings = Trainings(experiment, task, rows, folder)
        gathered: dict[str, np.ndarray] = {}
        folds = int(fold.max()) + 1
        for number in range(folds):
            logging.info("fold %d of %d", number + 1, folds)
            fold_rows = np.flatnonzero(fold == number)
            outputs = trainings.predict(
                np.flatnonzero(fold != number), fold_rows, f"fold {number + 1}"
            )
            for name, values in outputs.items():
                shape = len(rows), *values.shape[1:]
                gathered.setdefault(name, np.empty(shape, values.dtype))
                gathered[name][fold_rows] = values
    return gathered
