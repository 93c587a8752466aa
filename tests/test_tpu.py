"""The search for a TPU."""

import pytest

from engines import Hardware
from engines.strategy import StrategyEngine
from errors import UserError


def test_no_tpu_is_one_clear_line(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    for hardware, words in (
        (Hardware(use_tpu=True), "--tpu_name"),
        (
            Hardware(use_tpu=True, tpu_name="local"),
            "'local' cannot be used: this TensorFlow is not built for TPUs",
        ),
    ):
        with pytest.raises(UserError, match=words):
            StrategyEngine(hardware).check_devices()


def test_another_machines_tpu_is_refused_before_any_work(monkeypatch):
    # No metadata, so no zone and no project.
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    with pytest.raises(UserError, match="'far' is not this machine's own"):
        StrategyEngine(Hardware(use_tpu=True, tpu_name="far")).check_devices()


def test_its_own_name_is_tried_as_the_local_one(monkeypatch):
    monkeypatch.setenv("TPU_WORKER_ID", "0")
    monkeypatch.setenv("TPU_NAME", "mine")
    with pytest.raises(UserError, match="TPU 'mine' cannot be used"):
        StrategyEngine(Hardware(use_tpu=True)).check_devices()
