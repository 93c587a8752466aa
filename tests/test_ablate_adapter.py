"""Adapters taken out of a trained run."""

import json
import os
import sys

import numpy as np
import pytest
import safetensors.numpy
from conftest import ROOT, run_command
from tiny_artifacts import make_artifact

from adapter_bert.commands import ablate
from adapter_bert.errors import UserError
from adapter_bert.tasks.restored import restore_task

pytestmark = pytest.mark.older_stack


@pytest.fixture
def trained(classify, tiny_flags):
    """Trains with a method, and returns the output folder."""

    def train(**flags):
        tiny_flags.update(num_train_epochs=2, do_eval=True, **flags)
        classify(**tiny_flags)
        return tiny_flags["output_dir"]

    return train


@pytest.mark.gate
def test_spans_of_layers_are_taken_out_and_evaluated(
    trained, tiny_flags, tmp_path
):
    run = trained(learning_rate=3e-2)
    out = tmp_path / "ablation"
    done = run_command(
        ROOT / "scripts" / "ablate.sh",
        out,
        "--",
        "--task_name=custom",
        f"--data_dir={tiny_flags['data_dir']}",
        "--max_seq_length=24",
        "--cpu_lanes=1",
        env={**os.environ, "RUN": str(run), "PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    about = json.loads((out / "ablation.json").read_text())
    assert (about["layers"], about["score"]) == (2, "accuracy")
    losses = {
        path.name: json.loads((path / "eval_results.json").read_text())[
            "eval_loss"
        ]
        for path in (out / "runs").iterdir()
    }
    whole = json.loads((run / "eval_results.json").read_text())["eval_loss"]
    assert losses.pop("none") == whole
    assert sorted(losses) == ["layers0-0", "layers0-1", "layers1-1"]
    assert len({whole, *losses.values()}) == 4


def test_an_adapter_of_tags_is_told_by_its_data_and_f1(tiny_bert, tmp_path):
    description = {"name": "tagging", "tags": ["O", "B-X", "I-X"]}
    task = restore_task(description, {}, "test")
    make_artifact(
        tmp_path / "run" / "adapter",
        tiny_bert,
        "houlsby(size=2)",
        task,
        description,
        data_name="news",
    )
    ablate.ablate_run(str(tmp_path / "run"), str(tmp_path / "out"))
    about = json.loads((tmp_path / "out" / "ablation.json").read_text())
    assert (about["name"], about["score"]) == ("news", "f1")


@pytest.mark.gate
def test_only_what_leads_up_in_those_layers_is_zero(trained, tmp_path):
    run = trained()
    ablate.ablate_run(str(run), str(tmp_path))
    before = safetensors.numpy.load_file(run / "adapter/adapter.safetensors")
    after = safetensors.numpy.load_file(
        tmp_path / "adapters/layers1-1/adapter.safetensors"
    )
    changed = {
        name for name in before if not np.array_equal(before[name], after[name])
    }
    assert changed == {
        f"bert/encoder/layer_1/{site}output/adapters/{name}2"
        for site in ("attention/", "")
        for name in ("weights", "biases")
    }
    assert not any(after[name].any() for name in changed)


@pytest.mark.gate
def test_another_adapters_ablation_is_not_mixed_in(
    trained, tiny_flags, tmp_path
):
    ablate.ablate_run(str(trained()), str(tmp_path / "ablation"))
    tiny_flags["output_dir"] = tmp_path / "other"
    other = trained(seed=2)
    with pytest.raises(UserError, match="the ablation of another adapter"):
        ablate.ablate_run(str(other), str(tmp_path / "ablation"))


@pytest.mark.gate
def test_a_method_without_adapters_is_refused(trained, tmp_path, tiny_flags):
    del tiny_flags["adapter_size"]
    run = trained(tuning_method="bitfit")
    with pytest.raises(UserError, match="has no adapters to take out"):
        ablate.ablate_run(str(run), str(tmp_path))
