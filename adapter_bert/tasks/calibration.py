"""Probabilities that say how often answers are right, and answers left out.

`training/calibrating.py` fits them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert.errors import UserError

# Name in an adapter's `task_settings`.
CALIBRATION = "calibration"
# Least and greatest temperature.
COLDEST, HOTTEST = 0.01, 100.0


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What an adapter keeps of dev rows; the defaults change nothing.

    Logits are divided by `temperature`; `abstain_below` is the least
    probability of an answer.
    """

    temperature: float = 1.0
    abstain_below: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        is_fitted = self != Calibration()
        return {CALIBRATION: dataclasses.asdict(self)} if is_fitted else {}

    @property
    def client_facts(self) -> dict[str, Any]:
        least = self.abstain_below
        return {"abstain_below": least} if least else {}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], source: str) -> "Calibration":
        recorded = settings.get(CALIBRATION)
        if recorded is None:
            return cls()
        fields = [field.name for field in dataclasses.fields(cls)]
        if (
            not isinstance(recorded, dict)
            or sorted(recorded) != sorted(fields)
            or any(
                type(value) not in (int, float) for value in recorded.values()
            )
            or not COLDEST <= recorded["temperature"] <= HOTTEST
            or not 0 <= recorded["abstain_below"] <= 1
        ):
            raise UserError(
                f"{source}: task_settings.{CALIBRATION} is "
                f"{str(recorded)[:200]}, expected a temperature from "
                f"{COLDEST} to {HOTTEST:g} and abstain_below, a probability"
            )
        return cls(**recorded)

    def join(
        self, weights: np.ndarray, bias: Optional[np.ndarray], source: str
    ) -> tuple[np.ndarray, Optional[np.ndarray]]:
        """Calibrates a last layer for other programs, which answer all rows.

        Takes and gives weights [C, D] and a bias [C] or None, float32, of the
        adapter `source`.
        """
        if self.abstain_below:
            logging.warning(
                "%s answers below the probability %.4f with no label, which "
                "other programs' files cannot say; they will answer all rows",
                source,
                self.abstain_below,
            )
        if self.temperature == 1:
            return weights, bias
        divisor = np.float32(self.temperature)
        return weights / divisor, None if bias is None else bias / divisor

    def scaled(self, logits: np.ndarray) -> np.ndarray:
        """Divides float32 logits [..., C] by the temperature, in float64."""
        return logits.astype(np.float64) / self.temperature


def calibrated(task: Any, settings: Mapping[str, Any], source: str) -> Any:
    """Restores a task's calibration from `task_settings` of `source`."""
    if not task.chooses_one:
        return task
    calibration = Calibration.restore(settings, source)
    return dataclasses.replace(task, calibration=calibration)
