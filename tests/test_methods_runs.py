"""Every method through the entry point, its artifact in another process."""

import json
import os
import shutil

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import ROOT, flag_words, read_json, run_process
from numpy.testing import assert_allclose, assert_array_equal
from run_folders import artifact_bytes, kill
from safetensors.numpy import load_file

from adapter_bert.data.tables import Layout
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.training.settings import ENGINES

pytestmark = [pytest.mark.older_stack, pytest.mark.gate]

# Whose adapters hold more or less than plain tables of trained values.
TEXTS = [
    "compacter(size=8, n=4)",
    "prefix(length=3, inner_size=8)",
    "loreft(rank=2, suffix=1)",
    "lt_sft(sparsity=0.05)",
    "full",
    "vera(rank=5, seed=3, targets='value,intermediate')",
]
ENGINES_HERE = [
    name for name in ENGINES if name == "strategy" or hasattr(tf, "estimator")
]


def without_size(flags):
    """The flags of a method that has no size, or names it itself."""
    return {k: v for k, v in flags.items() if k != "adapter_size"}


def stored_count(table, method, config):
    """Numbers that an artifact holds, indices included."""
    head = sum(p.count for p in table.trained if p.group == "head")
    if not method.changes_few:
        names = {p.name: np.zeros(p.shape) for p in table.trained}
        _, kept = method.finish(config, names)
        return sum(value.size for value in kept.values())
    berts = sum(p.count for p in table.parameters if not p.is_added)
    return 2 * int(round(method.sparsity * berts)) + head


def test_artifacts_predict_the_same_in_another_process(
    classify, tiny_flags, tiny_config, tmp_path
):
    """Trains each method; one fresh process predicts with all of them."""
    requests = []
    for number, text in enumerate(TEXTS):
        trained, again = tmp_path / f"{number}", tmp_path / f"{number}-again"
        flags = {
            **without_size(tiny_flags),
            # Each of the engines gets some of the methods.
            "engine": ENGINES_HERE[number % len(ENGINES_HERE)],
            "tuning_method": text,
            "num_train_epochs": 1,
            "do_predict": True,
            "output_dir": trained,
        }
        classify(**flags)
        requests.append(
            {
                **{k: str(v) for k, v in flags.items()},
                "adapter": str(trained / "adapter"),
                "do_train": "false",
                "output_dir": str(again),
            }
        )
    for request in requests:
        del request["tuning_method"]  # The artifact knows it.
    run_process(
        json.dumps(requests),
        program="tests/predict_adapters.py",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    build_head = TextClassification(
        "tiny", Layout(0), Layout(0), labels=("bad", "good")
    ).build_head
    for number, text in enumerate(TEXTS):
        first, second = (
            np.loadtxt(tmp_path / name / "test_results.tsv")
            for name in (f"{number}", f"{number}-again")
        )
        if text.startswith(("prefix", "loreft")):
            # What other variables made of it is kept in their place.
            assert_allclose(first, second, atol=1e-5, err_msg=text)
        else:
            assert_array_equal(first, second, err_msg=text)
        path = tmp_path / f"{number}" / "adapter" / "adapter.safetensors"
        held = load_file(path)
        method = parse(text)
        table = task_model.list_parameters(tiny_config, method, build_head)
        count = stored_count(table, method, tiny_config)
        size = sum(value.nbytes for value in held.values())
        run = read_json(tmp_path / f"{number}" / "run.json")
        numbers = (v.size for k, v in held.items() if "/indices" not in k)
        assert run["parameters"]["kept"] == sum(numbers), text
        if method.changes_few:
            # Words that never occur do not change, though they were chosen.
            assert 0.5 * 4 * count < size <= 4 * count, text
        else:
            assert size == 4 * count, text


def test_a_robust_adapter_is_used_with_other_layers(
    classify, tiny_flags, tmp_path
):
    flags = without_size(tiny_flags)
    robust = "adapterdrop(first={}, size=4, robust=True)"
    classify(
        **{**flags, "learning_rate": 3e-2},
        tuning_method=robust.format(0),
        do_predict=True,
    )
    adapter = {"adapter": tmp_path / "out" / "adapter", "do_train": False}
    outputs = {}
    for first in (0, 1):
        folder = tmp_path / f"first-{first}"
        classify(
            **{**flags, **adapter, "output_dir": folder},
            tuning_method=robust.format(first),
            do_predict=True,
        )
        outputs[first] = (folder / "test_results.tsv").read_bytes()
    assert outputs[0] == (tmp_path / "out/test_results.tsv").read_bytes()
    assert outputs[0] != outputs[1]


def test_two_phases_go_on_where_they_were_killed(
    classify, tiny_flags, one_layer, tmp_path
):
    """In either phase; the bits are those of a run that was left alone."""
    flags = {
        **without_size(tiny_flags),
        "tuning_method": "lt_sft(0.1)",
        "bert_config_file": one_layer,
        "save_checkpoints_steps": 5,
    }
    del flags["output_dir"]
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    classify(**flags, output_dir=alone)
    flags["output_dir"] = killed
    for phase in ("phase_1", ""):
        words = flag_words(flags)
        kill(words, (killed / phase / "model.ckpt-5.index").exists)
    classify(**flags)
    assert artifact_bytes(alone) == artifact_bytes(killed)
    for folder in (alone, killed):
        cost = read_json(folder / "cost.json")
        assert cost["resumed"] is (folder == killed)


def test_two_phases_answer_questions_without_a_pooler(
    answer, squad_flags, one_layer
):
    flags = {**without_size(squad_flags), "bert_config_file": one_layer}
    flags.update(num_train_epochs=1, do_predict=True)
    answer(**flags, tuning_method="diff_pruning(0.1)")
    assert (flags["output_dir"] / "predictions.json").exists()
    path = flags["output_dir"] / "adapter" / "adapter.safetensors"
    assert any(name.endswith("/indices") for name in load_file(path))


def test_results_of_two_phases_are_not_taken_for_others(
    classify, tiny_flags, one_layer, tmp_path
):
    flags = {
        **without_size(tiny_flags),
        "bert_config_file": one_layer,
        "num_train_epochs": 1,
        "save_checkpoints_steps": 2,
    }
    method = "lt_sft(0.1)"
    classify(**flags, tuning_method=method)
    other, damaged = tmp_path / "other", tmp_path / "damaged"
    for folder in (other, damaged):
        shutil.copytree(tmp_path / "out", folder)

    # A checkpoint is no pretrained BERT.
    further = {**flags, "output_dir": tmp_path / "further"}
    refusals.check(
        lambda: classify(
            **{**further, "init_checkpoint": tmp_path / "out"},
            tuning_method=method,
        ),
        "pass that as --init_checkpoint",
    )

    # An adapter that holds few changes is trained on by `full` alone.
    further["adapter"] = tmp_path / "out" / "adapter"
    for named in ({}, {"tuning_method": method}):
        with pytest.raises(UserError, match='--tuning_method="full" to train'):
            classify(**further, **named)
    classify(**further, tuning_method="full")
    assert (tmp_path / "further" / "adapter").exists()

    # A first phase of other settings.
    for path in other.iterdir():
        if path.is_file():
            path.unlink()
    refusals.check(
        lambda: classify(
            **{**flags, "learning_rate": 1e-3, "output_dir": other},
            tuning_method=method,
        ),
        "phase_1 holds a run with another",
    )

    # A damaged first phase, of a process that was killed after step 4.
    for path in damaged.glob("model.ckpt-5.*"):
        path.unlink()
    listed = damaged / "checkpoint"
    content = 'model_checkpoint_path: "model.ckpt-2"\n'
    listed.write_text(content)
    for path in (damaged / "phase_1").glob("model.ckpt-*.index"):
        path.unlink()
    refusals.check(
        lambda: classify(
            **{**flags, "output_dir": damaged}, tuning_method=method
        ),
        "no checkpoint in ",
        "phase_1 is whole",
    )
    assert listed.read_text() == content
