"""Probabilities that say how often answers are right, and answers left out.

`training/calibrating.py` fits them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert.errors import UserError
from adapter_bert.tasks.task import has_numbers
from adapter_bert.tasks.text_task import CALIBRATION, Calibration

# Least and greatest temperature.
COLDEST, HOTTEST = 0.01, 100.0


def restore(settings: Mapping[str, Any], source: str) -> Calibration:
    """Reads the calibration of `task_settings` of `source`."""
    recorded = settings.get(CALIBRATION)
    if recorded is None:
        return Calibration()
    fields = [field.name for field in dataclasses.fields(Calibration)]
    if (
        not has_numbers(recorded, fields, 0, HOTTEST)
        or recorded["temperature"] < COLDEST
        or recorded["abstain_below"] > 1
    ):
        raise UserError(
            f"{source}: task_settings.{CALIBRATION} is "
            f"{str(recorded)[:200]}, expected a temperature from "
            f"{COLDEST} to {HOTTEST:g} and abstain_below, a probability"
        )
    return Calibration(**recorded)


def join(
    calibration: Calibration,
    weights: np.ndarray,
    bias: Optional[np.ndarray],
    source: str,
) -> tuple[np.ndarray, Optional[np.ndarray]]:
    """Calibrates a last layer for other programs, which answer all rows.

    Takes and gives weights [C, D] and a bias [C] or None, float32, of the
    adapter `source`.
    """
    if calibration.abstain_below:
        logging.warning(
            "%s answers below the probability %.4f with no label, which "
            "other programs' files cannot say; they will answer all rows",
            source,
            calibration.abstain_below,
        )
    if calibration.temperature == 1:
        return weights, bias
    divisor = np.float32(calibration.temperature)
    return weights / divisor, None if bias is None else bias / divisor


def calibrated(task: Any, settings: Mapping[str, Any], source: str) -> Any:
    """Restores a task's calibration from `task_settings` of `source`."""
    if not task.chooses_one:
        return task
    calibration = restore(settings, source)
    return dataclasses.replace(task, calibration=calibration)
