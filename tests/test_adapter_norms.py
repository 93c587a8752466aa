"""Norms of an adapter's values."""

import dataclasses
import json
import math

import numpy as np
import pytest
from html_reader import Page
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.errors import UserError
from adapter_bert.reports.html_page import page
from adapter_bert.reports.report_run import measure, norm_section
from adapter_bert.tasks.restored import restore_task

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def artifact(tmp_path, tiny_config):
    """Writes an artifact of some values."""

    def make(values):
        config = {
            "method": "houlsby(size=4)",
            "base": {"fingerprint": "f"},
            "task": CLASSIFICATION,
            "tokenizer": {},
            "bert_config": dataclasses.asdict(tiny_config),
        }
        adapter_artifact.write(str(tmp_path / "adapter"), config, values)
        return tmp_path

    (tmp_path / "adapter").mkdir()
    return make


def shown(folder):
    made = Page(page("Run", [norm_section(folder, 2, "norms")]).decode())
    made.check()
    return made


def test_values_of_a_place_are_one_norm(artifact):
    place = "bert/encoder/layer_{}/output/adapters/{}"
    folder = artifact(
        {
            place.format(0, "weights1"): np.array([[3.0, 0.0]], np.float32),
            place.format(0, "biases1"): np.array([4.0], np.float32),
            place.format(1, "weights1"): np.array([[0.5]], np.float32),
            # BERT's own.
            "bert/encoder/layer_0/output/LayerNorm/gamma": np.ones(16),
            "output_bias": np.array([1.0, 1.0], np.float32),
        }
    )
    norms = measure(adapter_artifact.read(str(folder / "adapter")), "x")
    assert norms == {
        "bert/encoder/output/adapters": {0: (25.0, 3), 1: (0.25, 1)},
        "output_bias": {None: (2.0, 2)},
    }
    made = shown(folder)
    assert made.texts("td") == ["5", "0.5", f"{math.sqrt(2):.4g}", "2"]
    assert len(made.all("figure")) == 1


def test_a_head_alone_has_no_layers(artifact):
    made = shown(artifact({"output_bias": np.zeros(2, np.float32)}))
    assert "adds nothing to the layers" in made.text
    assert not made.all("figure")


def test_what_lacks_a_layer_has_a_dash(artifact):
    made = shown(
        artifact(
            {
                "bert/encoder/layer_0/a/x": np.ones(1, np.float32),
                "bert/encoder/layer_1/b/x": np.ones(4, np.float32),
            }
        )
    )
    assert made.texts("td") == ["1", "–", "–", "2"]


@pytest.mark.parametrize(
    "method", ["houlsby(size=4)", "lora(rank=2)", "prefix", "pals", "bitfit"]
)
def test_methods_are_shown_without_values_of_berts_own(
    tmp_path, tiny_bert, method
):
    task = restore_task(CLASSIFICATION, {}, "")
    make_artifact(tmp_path / "adapter", tiny_bert, method, task)
    made = shown(tmp_path)
    assert "LayerNorm" not in "".join(made.texts("th"))
    assert len(made.all("figure")) == (method != "bitfit")


def test_no_adapter_is_said(tmp_path):
    assert "The run has no adapter here." in shown(tmp_path).text


def test_a_damaged_adapter_is_one_line(artifact):
    folder = artifact({"output_bias": np.zeros(2, np.float32)})
    (folder / "adapter" / adapter_artifact.WEIGHTS_FILE).write_bytes(b"x")
    with pytest.raises(UserError, match="copy the adapter again"):
        norm_section(folder, 2, "norms")


def test_sizes_that_are_none_are_one_line(artifact):
    folder = artifact({"output_bias": np.zeros(2, np.float32)})
    path = folder / "adapter" / adapter_artifact.CONFIG_FILE
    config = json.loads(path.read_text())
    config["bert_config"]["ears"] = 2
    del config[files.SEAL]
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match="bert_config is none"):
        norm_section(folder, 2, "norms")
