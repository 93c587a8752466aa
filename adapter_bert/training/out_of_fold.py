"""Predictions of rows by models that were trained on the other rows.

A model is trained for each fold, on all other folds, and predicts the fold.
Layers below everything trained are computed once for all models.
"""

import dataclasses
from typing import Optional

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.data.tables import Rows
from adapter_bert.errors import UserError
from adapter_bert.tasks.task import Task
from adapter_bert.training import experiment as experiments
from adapter_bert.training import frozen_outputs, loop
from adapter_bert.training.compute_dtype import choose_dtype
from adapter_bert.training.prediction import check_finite
from adapter_bert.training.settings import Experiment
from adapter_bert.training.setup import complete, lowest_layer, open_model


@dataclasses.dataclass(frozen=True)
class Chosen(Features):
    """Holds some `rows`, int64 [B], of `inner`, also their frozen outputs."""

    inner: Features
    rows: np.ndarray

    @classmethod
    def of(cls, inner: Features, rows: np.ndarray) -> "Chosen":
        labels = {name: x[rows] for name, x in inner.labels.items()}
        columns = inner.tokens, inner.segments, inner.starts
        return cls(*columns, labels, inner, rows)

    def unlabelled(self) -> "Chosen":
        return dataclasses.replace(self, labels={})

    @property
    def lengths(self) -> np.ndarray:
        return self.inner.lengths[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        return self.inner.sequences(self.rows[rows])

    def added(self, length: Optional[int]) -> dict[str, tuple[tuple, type]]:
        return self.inner.added(length)

    def finish(
        self, batch: Batch, rows: np.ndarray, step: Optional[int]
    ) -> None:
        self.inner.finish(batch, self.rows[rows], step)


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
        self._engine = experiments.start_engine(experiment)
        dtype = choose_dtype(
            experiment.compute_dtype, experiment.hardware.use_tpu
        )
        experiment = dataclasses.replace(experiment, compute_dtype=dtype)
        model = open_model(experiment)
        if model.sources.trained is not None:
            raise UserError(
                f"{model.sources.trained.source} is trained, maybe on these "
                "rows; pass the pretrained BERT as --init_checkpoint"
            )
        if model.method.first_phase:
            raise UserError(
                f"{model.method.name} is trained in two phases, which models "
                "of folds are not; pass another --tuning_method"
            )
        self._rows = rows
        self._setup = setup = complete(experiment, model, task)
        features = task.featurize(
            rows, setup.model.tokenizer, experiment.max_seq_length
        )
        if features.cut_rows:
            logging.warning(
                "%d of %d rows are cut (--max_seq_length)",
                features.cut_rows,
                len(rows),
            )
        self._job = experiments.make_job(self._engine, setup)
        self._known = features
        if lowest_layer(setup.table, setup.model.config.num_hidden_layers):
            frozen_outputs.check(setup)
            self._known = frozen_outputs.FrozenLayers(
                setup, self._job, features
            ).read(self._engine)

    def predict(
        self, trained: np.ndarray, fold_rows: np.ndarray, name: str
    ) -> dict[str, np.ndarray]:
        """Gives the head's outputs for some rows, after a training on others.

        Takes rows as int64 [M] and [N]. Gives the outputs by name, [N, ...].
        """
        with files.temporary_folder() as folder:
            job = dataclasses.replace(self._job, output_dir=folder)
            chosen = Chosen.of(self._known, trained)
            schedule = loop.make_schedule(self._setup, chosen)
            loop.run_steps(self._engine, self._setup, job, chosen, schedule, 0)
            with self._engine.predictor(job) as predictor:
                outputs = predictor.predict(
                    Chosen.of(self._known, fold_rows),
                    self._setup.experiment.eval_batch_size,
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
