"""The type to compute in: asked for, measured, or as a run began."""

import logging

import pytest
import refusals
from conftest import read_json

from adapter_bert.training import devices, engines, fastest_dtype
from adapter_bert.training.fastest_dtype import choose_dtype

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def machine(monkeypatch):
    """Sets how fast products in bfloat16 are, and counts measurements."""

    def set_ratio(ratio):
        count = []

        def rates():
            count.append(1)
            return {"float32": 100.0, "bfloat16": 100.0 * ratio}

        monkeypatch.setattr(fastest_dtype, "rates", rates)
        return count

    return set_ratio


def test_both_types_are_measured():
    rates = fastest_dtype.rates()
    assert set(rates) == {"float32", "bfloat16"}
    assert all(rate > 0 for rate in rates.values())


@pytest.mark.parametrize(
    "ratio,chosen", [(0.5, "float32"), (1.05, "float32"), (1.8, "bfloat16")]
)
def test_auto_is_what_is_faster(machine, ratio, chosen):
    machine(ratio)
    assert choose_dtype("auto") == chosen


def test_what_is_known_is_not_measured(machine):
    count = machine(3.0)
    assert choose_dtype("float32") == "float32"
    assert choose_dtype("auto", begun_with="float32") == "float32"
    assert choose_dtype("auto", use_tpu=True) == "bfloat16"
    assert choose_dtype("bfloat16", use_tpu=True) == "bfloat16"
    assert not count


def test_a_slower_bfloat16_is_told_in_one_line(machine, caplog):
    machine(0.5)
    assert choose_dtype("bfloat16") == "bfloat16"
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "0.50 times as fast as in float32" in record.getMessage()
    caplog.clear()
    machine(1.4)
    assert choose_dtype("bfloat16") == "bfloat16"
    assert not [r for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.gate
def test_a_run_goes_on_in_the_type_of_its_beginning(
    classify, tiny_flags, machine
):
    machine(2.0)
    flags = {
        **tiny_flags,
        "compute_dtype": "auto",
        "num_train_epochs": 1,
        "save_checkpoints_steps": 2,
    }
    classify(**flags)
    path = tiny_flags["output_dir"] / "run.json"
    run = read_json(path)
    assert run["training"]["compute_dtype"] == "bfloat16"
    count = machine(0.5)
    classify(**flags, do_eval=True)
    again = read_json(path)
    assert again["training"] == run["training"] and not count


@pytest.mark.parametrize(
    "capability,chosen",
    [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")],
)
def test_a_gpu_is_made_for_it_or_not(machine, monkeypatch, capability, chosen):
    count = machine(3.0 if chosen == "float32" else 0.1)
    monkeypatch.setattr(
        devices.tf.config, "list_physical_devices", lambda kind: ["a GPU"]
    )
    monkeypatch.setattr(
        devices.tf.config.experimental,
        "get_device_details",
        lambda gpu: {"compute_capability": capability},
    )
    assert choose_dtype("auto") == chosen
    assert not count


def test_several_processes_do_not_choose_each_for_itself(
    classify, tiny_flags, monkeypatch
):
    monkeypatch.setattr(engines, "is_cluster", lambda: True)
    refusals.check(
        lambda: classify(**tiny_flags, compute_dtype="auto"),
        "auto needs one process, but TF_CON",
    )
