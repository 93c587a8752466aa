"""Adapters, libraries and runs that earlier versions wrote are read."""

from pathlib import Path
from shutil import copytree

import pytest
import record_compat
from conftest import read_json
from numpy.testing import assert_allclose
from safetensors.numpy import load_file

import adapter_bert as ab

VERSIONS = sorted((Path(__file__).parent / "compat").iterdir())


@pytest.fixture(params=VERSIONS, ids=lambda folder: folder.name)
def version(request, tmp_path):
    """A copy of what a version wrote."""
    return copytree(request.param, tmp_path / "version")


@pytest.fixture
def bert(version):
    return ab.load_bert(version / "bert")


def assert_alike(computed, recorded):
    """Equal answers, whose numbers differ by rounding at most."""
    assert isinstance(computed, type(recorded)) or computed == recorded
    if isinstance(recorded, float):
        assert_allclose(computed, recorded, rtol=1e-4, atol=1e-5)
    elif isinstance(recorded, (dict, list)):
        assert len(computed) == len(recorded)
        is_dict = isinstance(recorded, dict)
        for key in recorded if is_dict else range(len(recorded)):
            assert_alike(computed[key], recorded[key])
    else:
        assert computed == recorded


@pytest.mark.gate
def test_a_library_answers_as_it_did(version, bert):
    recorded = read_json(version / "answers.json")
    answers = record_compat.answers(bert, ab.Library(version / "library"))
    assert_alike(answers, recorded)


def test_a_run_is_read_and_not_trained_again(version, bert):
    run = ab.Run(version / "runs" / "classes")
    scores = run.scores
    adapter = load_file(f"{run.adapter}/adapter.safetensors")
    assert 0 <= scores["accuracy"] <= 1 and run.curve["loss"]
    again = record_compat.train("classes", bert, version / "runs")
    assert_alike(again.scores, scores)
    values = load_file(f"{again.adapter}/adapter.safetensors")
    assert set(values) == set(adapter)
    for name in values:
        assert_allclose(values[name], adapter[name])


@pytest.mark.gate
def test_a_run_that_was_killed_goes_on(version, bert):
    run = record_compat.go_on(bert, version / "killed")
    values = load_file(f"{run.adapter}/adapter.safetensors")
    recorded = load_file(version / "ended_adapter" / "adapter.safetensors")
    assert set(values) == set(recorded)
    for name in values:
        assert_allclose(values[name], recorded[name], rtol=1e-2, atol=1e-3)
