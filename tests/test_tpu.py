"""The search for a TPU."""

import types

import pytest
import tensorflow as tf

from adapter_bert.errors import UserError
from adapter_bert.training import tpu
from adapter_bert.training.engines import Hardware
from adapter_bert.training.strategy import StrategyEngine


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


@pytest.mark.parametrize(
    "hosts, cores, words",
    [
        (1, 8, None),
        (1, 4, "has 4 cores, but --num_tpu_cores is 8"),
        (1, 16, "has 16 cores, but --num_tpu_cores is 8"),
        (2, 8, "has 2 hosts; only one is supported"),
    ],
)
def test_a_tpu_has_one_host_and_the_cores_asked_for(
    monkeypatch, hosts, cores, words
):
    """There is none here: TensorFlow's part is made up."""
    found = types.SimpleNamespace(
        extended=types.SimpleNamespace(num_hosts=hosts),
        num_replicas_in_sync=cores,
    )
    for place, name, made_up in (
        (tf.config, "experimental_connect_to_cluster", None),
        (tf.tpu.experimental, "initialize_tpu_system", None),
        (tf.distribute, "TPUStrategy", found),
    ):
        monkeypatch.setattr(place, name, lambda _, given=made_up: given)
    hardware = Hardware(use_tpu=True, tpu_name="local", num_tpu_cores=8)
    if words is None:
        assert tpu.strategy(hardware) is found
        return
    with pytest.raises(UserError, match=words):
        tpu.strategy(hardware)
