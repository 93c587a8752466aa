"""Adapters taken out of a trained run."""

import os
import shlex
import sys

import numpy as np
import pytest
import refusals
from conftest import ROOT, read_json, read_lines, run_command, write_json
from safetensors.numpy import load_file
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.commands import ablate

pytestmark = pytest.mark.older_stack
TAGGING = {"name": "tagging", "tags": ["O", "B-X", "I-X"]}


@pytest.fixture
def take_out(tiny_bert, tmp_path):
    """Ablates an adapter of a method; returns its folder and the ablation's."""

    def make(method="houlsby(size=2)", description=CLASSIFICATION, seed=0):
        run = tmp_path / f"{method}{seed}"
        make_artifact(
            run / "adapter",
            tiny_bert,
            method,
            description=description,
            seed=seed,
            data_name="news",
        )
        ablate.ablate_run(str(run), str(tmp_path / "out"))
        return run / "adapter", tmp_path / "out"

    return make


@pytest.mark.gate
def test_spans_of_layers_are_taken_out_and_evaluated(
    classify, tiny_flags, tmp_path
):
    tiny_flags.update(num_train_epochs=2, do_eval=True, learning_rate=3e-2)
    classify(**tiny_flags)
    run, out = tiny_flags["output_dir"], tmp_path / "ablation"
    run_command(
        ROOT / "scripts" / "ablate.sh",
        out,
        "--grid",
        "--",
        "--task_name=custom",
        f"--data_dir={tiny_flags['data_dir']}",
        "--max_seq_length=24",
        "--cpu_lanes=1",
        env={**os.environ, "RUN": str(run), "PYTHON": sys.executable},
        check=True,
    )
    for row in read_lines(out / "grid.tsv"):
        _, program, *words = shlex.split(row.split("\t")[1])
        assert program == "run_classifier.py"
        classify(**dict(word[2:].split("=", 1) for word in words))
    about = read_json(out / "ablation.json")
    assert (about["layers"], about["score"]) == (2, "accuracy")
    losses = {
        path.parent.name: read_json(path)["eval_loss"]
        for path in (out / "runs").glob("*/eval_results.json")
    }
    whole = read_json(run / "eval_results.json")["eval_loss"]
    assert losses.pop("none") == whole
    assert sorted(losses) == ["layers0-0", "layers0-1", "layers1-1"]
    assert len({whole, *losses.values()}) == 4


def test_an_adapter_of_tags_is_told_by_its_data_and_f1(take_out):
    _, out = take_out(description=TAGGING)
    about = read_json(out / "ablation.json")
    assert (about["name"], about["score"]) == ("news", "f1")


def test_only_what_leads_up_in_those_layers_is_zero(take_out):
    adapter, out = take_out()
    before, after = (
        load_file(folder / "adapter.safetensors")
        for folder in (adapter, out / "adapters" / "layers1-1")
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


def test_another_adapters_ablation_is_not_mixed_in(take_out):
    take_out()
    refusals.check(lambda: take_out(seed=2), "the ablation of another adapter")


def test_the_bert_of_a_copied_run_is_given(take_out, monkeypatch, capsys):
    adapter, out = take_out()
    write_json(adapter.parent / "places.json", {"base": "/elsewhere"})
    words = ["ablate", str(adapter.parent), str(out), "/bert"]
    monkeypatch.setattr(sys, "argv", words)
    ablate.main()
    assert capsys.readouterr().out.splitlines()[:2] == ["/bert", "none"]


def test_a_method_without_adapters_is_refused(take_out):
    refusals.check(lambda: take_out("bitfit"), "has no adapters to take out")
