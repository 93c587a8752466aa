"""The search for a TPU."""

import pytest

from engines import Hardware
from engines.strategy import StrategyEngine
from errors import UserError


def test_no_tpu_is_one_clear_line(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    for hardware, words in (
        (Hardware(use_tpu=True), "--tpu_name"),
        (Hardware(use_tpu=True, tpu_name="local"), "'local'"),
    ):
        with pytest.raises(UserError, match=words):
            StrategyEngine(hardware).check_devices()
