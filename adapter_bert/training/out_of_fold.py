"""Predictions of rows by models that were trained on the other rows.

The rows are divided into folds. A model is trained for each fold, on all other
folds, and predicts the fold. Layers below everything trained are computed once
for all models.
"""

import dataclasses
from typing import Dict, Optional, Tuple

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
    """Some rows of others, with the outputs of frozen layers if these have any.

    Attributes:
        inner: all rows.
        rows: int64 [B], those that are chosen.
    """

    inner: Features
    rows: np.ndarray

    @classmethod
    def of(cls, inner: Features, rows: np.ndarray) -> "Chosen":
        """Chooses rows, with their labels."""
        labels = {name: x[rows] for name, x in inner.labels.items()}
        own = inner.tokens, inner.segments, inner.starts
        return cls(*own, labels, inner, rows)

    def unlabelled(self) -> "Chosen":
        return dataclasses.replace(self, labels={})

    @property
    def lengths(self) -> np.ndarray:
        return self.inner.lengths[self.rows]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        return self.inner.sequences(self.rows[rows])

    def added(self, length: Optional[int]) -> Dict[str, Tuple[Tuple, type]]:
        """As of all rows."""
        return self.inner.added(length)

    def finish(
        self, batch: Batch, rows: np.ndarray, step: Optional[int]
    ) -> None:
        """As of all rows."""
        self.inner.finish(batch, self.rows[rows], step)


def predict(
    experiment: Experiment, task: Task, rows: Rows, fold: np.ndarray
) -> Dict[str, np.ndarray]:
    """The outputs of a task's head for rows that its training has not seen.

    Args:
        experiment: how each model is trained; its folder is not used.
        task: with its labels.
        rows: with labels.
        fold: int64 [N], the fold of each row, from 0.

    Returns:
        The head's outputs by name, [N, ...].

    Raises:
        UserError: the BERT is trained already, the BERT, the method or the
            rows do not fit one another, or a training diverges.
    """
    with files.temporary_folder() as folder:
        experiment = dataclasses.replace(
            experiment,
            task=task,
            do_train=True,
            # Models that follow one another share its process.
            engine="strategy",
            output_dir=folder,
            frozen_layers_dir=experiment.frozen_layers_dir or folder,
        )
        engine = experiments.start_engine(experiment)
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
        setup = complete(experiment, model, task)
        features = task.featurize(
            rows, setup.model.tokenizer, experiment.max_seq_length
        )
        if features.cut_rows:
            logging.warning(
                "%d of %d rows are cut (--max_seq_length)",
                features.cut_rows,
                len(rows),
            )
        job = experiments.make_job(engine, setup)
        known = features
        if lowest_layer(setup.table, setup.model.config.num_hidden_layers):
            frozen_outputs.check(setup)
            known = frozen_outputs.FrozenLayers(setup, job, features).read(
                engine
            )
        found: Dict[str, np.ndarray] = {}
        folds = int(fold.max()) + 1
        for number in range(folds):
            logging.info("fold %d of %d", number + 1, folds)
            with files.temporary_folder() as own:
                of_fold = dataclasses.replace(job, output_dir=own)
                others = Chosen.of(known, np.flatnonzero(fold != number))
                loop.run_steps(
                    engine,
                    setup,
                    of_fold,
                    others,
                    loop.make_schedule(setup, others),
                    0,
                )
                asked = np.flatnonzero(fold == number)
                with engine.predictor(of_fold) as predictor:
                    outputs = predictor.predict(
                        Chosen.of(known, asked),
                        experiment.eval_batch_size,
                        f"fold {number + 1}",
                    )
            check_finite(outputs, rows.path)
            for name, values in outputs.items():
                shape = len(rows), *values.shape[1:]
                found.setdefault(name, np.empty(shape, values.dtype))
                found[name][asked] = values
    return found
