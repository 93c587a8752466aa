"""Fits an adapter's calibration to dev rows, or reads the one that it has."""

import contextlib
import dataclasses
import os
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.tasks import calibration
from adapter_bert.training.extras import Answers, Extra, Run, warn_of_loss
from adapter_bert.training.setup import ADAPTER

FILE = "calibration.json"


class Calibrating(Extra):
    """Makes the probabilities of a task's answers say how often it is right."""

    def check(self, run: Run) -> None:
        """Refuses too few dev rows; warns of a calibration that gets lost."""
        if run.experiment.calibrate:
            _measured_rows(run)
        elif run.experiment.do_train:
            warn_of_loss(run, "calibration", "--calibrate=true")

    def end(self, run: Run, answers: Answers) -> None:
        """Gives the task a calibration by the dev answers, or its adapter's."""
        experiment, task = run.experiment, run.task
        if experiment.calibrate:
            name, measured = _measured_rows(run)
            fitted, record = calibration.fit(
                answers.by_split[name]["logits"],
                run.features[name].labels["label_ids"],
                measured,
                experiment.abstain_at,
            )
            run.task = dataclasses.replace(task, calibration=fitted)
            _write(run.folder, run.task.settings, record)
        elif not experiment.do_train:
            folder = experiment.adapter or os.path.join(run.folder, ADAPTER)
            settings = adapter_artifact.settings_of(folder)
            run.task = calibration.calibrated(task, settings, folder)
        else:
            # It tells of an earlier adapter.
            path = os.path.join(run.folder, FILE)
            with (
                files.writing(path),
                contextlib.suppress(tf.errors.NotFoundError),
            ):
                tf.io.gfile.remove(path)


def _measured_rows(run: Run) -> tuple[str, np.ndarray]:
    """Names the dev set of a calibration, and the rows that measure it."""
    _, name = run.dev[0]
    rows = run.rows[name]
    return name, calibration.measured_rows(rows.texts, run.task.strata(rows))


def _write(
    run_folder: str, settings: dict[str, Any], record: dict[str, Any]
) -> None:
    """Writes `calibration.json`, and `settings` into the artifact."""
    path = os.path.join(run_folder, FILE)
    files.write_json(path, record)
    folder = os.path.join(run_folder, ADAPTER)
    adapter_artifact.change_settings(folder, settings)
    logging.info(
        "calibration: temperature %.4g; expected calibration error %.4f (95%%: "
        "%.4f to %.4f), was %.4f (%.4f to %.4f), on %d dev rows; more is in %s",
        record["temperature"] or 1,
        record["after"],
        *record["interval_after"],
        record["before"],
        *record["interval_before"],
        record["rows_measured"],
        path,
    )
    if record["temperature"] is None:
        logging.warning(
            "no temperature that fits one half of the dev rows lowers the log "
            "loss of the other, of whose answers %.1f%% are right: the "
            "probabilities stay as they are; pass more dev rows, and look at "
            "their labels if few answers are right",
            100 * record["accuracy"],
        )
    if "abstain_at" not in record:
        return
    if record["abstain_below"] is None:
        logging.warning(
            "no least probability gives %d dev rows a precision of %g: the "
            "adapter answers all rows; lower --abstain_at",
            record["rows_fitted"],
            record["abstain_at"],
        )
        return
    precision = record["precision"]
    logging.info(
        "no label below the probability %.4f: %.1f%% of %d dev rows have one, "
        "%s",
        record["abstain_below"],
        100 * record["coverage"],
        record["rows_measured"],
        "none is right or wrong"
        if precision is None
        else f"{precision:.1%} of these the right one",
    )
