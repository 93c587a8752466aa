"""Starts an adapter that learns new labels, and measures what it forgets."""

import dataclasses
import os
from typing import Any

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.tables import list_labels
from adapter_bert.errors import UserError
from adapter_bert.tasks import new_labels, task_model
from adapter_bert.tasks.new_labels import BIAS, FEATURES, OLD_LOGITS, WEIGHTS
from adapter_bert.training import evaluation, multi_worker
from adapter_bert.training.engines import Engine
from adapter_bert.training.prediction import RowPredictor, check_finite
from adapter_bert.training.setup import Model, Setup
from adapter_bert.training.training_step import Job

FORGETTING_FILE = "forgetting.json"


def check(model: Model) -> None:
    """Refuses an adapter, or a place, that cannot learn new labels."""
    source = model.sources.trained.source
    if model.method.parts:
        raise UserError(
            f"--extend_labels is for an adapter of one method, but {source} is "
            f"the composition {str(model.method)[:200]}; pass another --adapter"
        )
    if multi_worker.is_cluster():
        raise UserError(
            "--extend_labels needs one process, but TF_CONFIG names several"
        )


def begin(
    engine: Engine, setup: Setup, job: Job, features: Features
) -> tuple[Job, Features]:
    """Gives the job the head's new rows; with distillation old logits too."""
    task, model = setup.task, setup.model
    old = len(task.old_labels)
    logging.info(
        "new labels: %s; old labels, whose rows stay: %s",
        list_labels(task.labels[old:]),
        list_labels(task.old_labels),
    )

    def build_head(config: Any, create: Any) -> new_labels.NewLabelsHead:
        head = task.build_head(config, create)
        head.shows_features = True
        return head

    shown = dataclasses.replace(
        job,
        build_model=lambda create: task_model.TaskModel(
            model.config, model.method, build_head, create
        ),
        # Settings that may change while a run goes on change no bits.
        predict_tokens=0,
    )
    values = _first_values(job)
    with engine.predictor(shown) as predictor:
        # The folder may hold checkpoints.
        predictor.load(values)
        outputs = predictor.predict(
            features, setup.experiment.training.batch_size, "old adapter"
        )
    check_finite(outputs, "train")
    logits = outputs["logits"]
    imprinted = new_labels.imprint(
        outputs[FEATURES],
        features.labels["label_ids"],
        logits,
        values[WEIGHTS],
        old,
    )
    begun = {
        # A head of another program may have no bias.
        name: np.concatenate([values[name][:old], rows])
        for name, rows in zip((WEIGHTS, BIAS), imprinted)
        if name in values
    }
    job = dataclasses.replace(
        job,
        initial_values={
            **job.initial_values,
            **{name: value.copy for name, value in begun.items()},
        },
    )
    if task.distill_weight:
        labels = {**features.labels, OLD_LOGITS: logits[:, :old]}
        features = dataclasses.replace(features, labels=labels)
    return job, features


def measure_forgetting(
    setup: Setup,
    job: Job,
    predictor: RowPredictor,
    rows: evaluation.Rows,
    answers: dict[str, Any],
) -> None:
    """Writes and logs accuracies of old and new labels, before and after.

    The predictor gets the values that the training of `job` began with.
    `answers` are the training's result, by split.
    """
    ((_, name),) = rows.splits.dev
    predictor.load(_first_values(job))
    dev = evaluation.Splits(rows.splits.dev, ())
    begun, _ = evaluation.answer(setup, predictor, rows, dev)
    measured = new_labels.forgetting(
        rows.features[name].labels["label_ids"],
        begun[name]["logits"],
        answers[name]["logits"],
        len(setup.task.old_labels),
    )
    path = os.path.join(setup.experiment.output_dir, FORGETTING_FILE)
    files.write_json(path, measured)
    of_old, of_new = measured["old_labels"], measured["new_labels"]
    if of_old["rows"]:
        logging.info(
            "accuracy on %d dev rows of old labels: %.4f before, %.4f after "
            "(%.4f among old labels alone)",
            of_old["rows"],
            of_old["before"],
            of_old["after"],
            of_old["after_among_old"],
        )
    else:
        logging.warning(
            "no dev row has an old label, so nothing tells how much the "
            "adapter has forgotten; add such rows to the dev file"
        )
    if of_new["rows"]:
        logging.info(
            "accuracy on %d dev rows of new labels: %.4f",
            of_new["rows"],
            of_new["after"],
        )


def _first_values(job: Job) -> dict[str, np.ndarray]:
    return {p.name: job.initial_values[p.name]() for p in job.table.trained}
