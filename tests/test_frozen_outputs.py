"""Frozen layers that are computed once: the same training, and which files."""

import errno
import io
import logging
import os
import subprocess
import sys
from shutil import copytree, rmtree
from unittest import mock

import numpy as np
import pytest
import refusals
from conftest import ROOT, flag_words, read_json, write_json, write_json_lines
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from run_folders import artifact_bytes, check_nearly_equal, kill_and_go_on
from safetensors.numpy import load_file, save_file
from test_multiple_choice import copa_row
from tiny_artifacts import make_artifact

from adapter_bert.data.input_pipeline import Features, make_batch
from adapter_bert.data.tables import Layout
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.masked_lm import MaskedLM
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.training import engines, frozen_outputs
from adapter_bert.training.frozen_outputs import (
    FROZEN_OUTPUTS,
    KnownOutputs,
    lowest_layer,
)

pytestmark = pytest.mark.older_stack

TOP = "top_layers(k=1)"
TASK = TextClassification("tiny", Layout(0), Layout(0), labels=("a", "b"))


@pytest.fixture
def without_size(still_bert, tmp_path):
    """Flags of a run of a method of its own, which keeps its outputs."""

    def make(flags, **more):
        del flags["adapter_size"]
        return {
            **flags,
            "init_checkpoint": still_bert,
            "num_train_epochs": 2,
            "frozen_layers_dir": tmp_path / "kept",
            **more,
        }

    return make


@pytest.fixture
def flags(tiny_flags, without_size):
    return without_size(tiny_flags)


@pytest.fixture
def cached(flags):
    return {**flags, "cache_frozen_layers": True, "tuning_method": "head"}


LOWEST = {
    "head": 2,
    "top_layers(k=1)": 1,
    "top_layers(k=2)": 0,
    "pfeiffer(size=4, layers='1')": 1,
    "houlsby(size=4, layers='1')": 1,
    "adapterdrop(first=1, size=4)": 1,
    "adapterdrop(first=1, size=4, robust=true)": 0,
    "houlsby(size=4)": 0,
    "bitfit": 0,
    "full": 0,
    "layernorm": 0,
    "lt_sft(sparsity=0.05)": 0,
    "compacter(size=8)": 0,
    "mad_x(size=4, inverse_size=4, layers='1')": 0,
    "stack({'a': pfeiffer(size=4)}, pfeiffer(size=4, layers='1'))": 0,
    "stack({'a': pfeiffer(layers='1')}, top_layers(k=1))": 1,
    "stack({'a': top_layers(1)}, head)": 1,
    "stack({'a': lora(2, targets='pooler')}, head)": 2,
}


@pytest.mark.parametrize("text, lowest", LOWEST.items())
def test_the_lowest_layer_that_is_not_the_pretrained_ones(
    tiny_config, text, lowest
):
    table = task_model.list_parameters(
        tiny_config, parse(text), TASK.build_head
    )
    assert lowest_layer(table, 2) == lowest


@pytest.mark.gate
@pytest.mark.parametrize(
    "engine, text, more",
    [
        ("strategy", TOP, {"gradient_accumulation_steps": 2}),
        (
            "estimator",
            "houlsby(size=4, layers='1')",
            {"use_xla": True, "max_seq_length": 16},
        ),
        (
            "strategy",
            "pfeiffer(size=4, layers='1')",
            {"compute_dtype": "bfloat16"},
        ),
    ],
)
def test_without_dropout_it_is_the_same_training(
    classify, flags, tmp_path, engine, text, more
):
    tolerance = 2e-2 if "compute_dtype" in more else 2e-5
    flags.update(more, engine=engine, tuning_method=text, do_eval=True)
    check_same(classify, flags, tmp_path, tolerance)
    losses = []
    for cached in (False, True):
        folder = tmp_path / str(cached)
        losses.append(read_json(folder, "eval_results.json")["eval_loss"])
        described = read_json(folder, "run.json")["training"]
        assert described["cache_frozen_layers"] is cached
    assert_allclose(*losses, 0, tolerance)


def check_same(run, flags, folder, tolerance=2e-5):
    """Trains in both ways, and compares the adapters."""
    for cached in (False, True):
        run(
            **{**flags, "output_dir": folder / str(cached)},
            cache_frozen_layers=cached,
        )
    alone, kept = (
        sorted((folder / name).rglob("adapter.safetensors"))
        for name in ("False", "True")
    )
    assert len(alone) == len(kept) > 0
    for one, other in zip(alone, kept):
        check_nearly_equal(one.parent.parent, other.parent.parent, tolerance)


@pytest.mark.gate
def test_questions_are_learned_the_same(
    answer, squad_flags, without_size, tmp_path
):
    flags = without_size(squad_flags, learning_rate=1e-3, tuning_method=TOP)
    check_same(answer, flags, tmp_path)


@pytest.mark.gate
def test_tags_are_learned_the_same(tag, ner_flags, without_size, tmp_path):
    """Of the last layer the head reads all tokens; of others another file."""
    flags = without_size(ner_flags, learning_rate=1e-3, tuning_method="head")
    check_same(tag, flags, tmp_path)
    flags.update(output_dir=tmp_path / TOP, tuning_method=TOP)
    tag(**flags, cache_frozen_layers=True)
    assert len(kept_files(flags)) == 2


@pytest.mark.gate
def test_tasks_are_learned_together_the_same(
    classify, glue_flags, without_size, tmp_path
):
    flags = without_size(glue_flags, learning_rate=1e-3, do_eval=False)
    check_same(classify, {**flags, "tuning_method": TOP}, tmp_path)


@pytest.mark.gate
def test_choices_are_learned_the_same(classify, flags, tmp_path):
    rows = [copa_row(number) for number in range(16)]
    write_json_lines(tmp_path / "train.jsonl", rows)
    flags.update(task_name="copa", data_dir=tmp_path, learning_rate=1e-3)
    check_same(classify, {**flags, "tuning_method": "head"}, tmp_path)


@pytest.mark.gate
def test_a_killed_training_goes_on_with_what_was_kept(
    classify, cached, tmp_path
):
    cached.update(num_train_epochs=40, save_checkpoints_steps=10)
    cached.update(tuning_method=TOP)
    whole, killed = kill_and_go_on(classify, cached, tmp_path)
    assert artifact_bytes(killed) == artifact_bytes(whole)


@pytest.mark.gate
def test_two_runs_at_once_compute_it_once(cached, tmp_path):
    words = flag_words(cached)
    folders = [tmp_path / name for name in ("one", "two")]
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "run_classifier.py", *words),
                f"--output_dir={folder}",
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for folder in folders
    ]
    logs = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], logs
    for words in ("are kept in", "are taken from"):
        assert sum(f"frozen layers {words}" in log for log in logs) == 1
    assert artifact_bytes(folders[0]) == artifact_bytes(folders[1])


def test_a_finished_training_needs_no_file_any_more(classify, cached):
    """Steps are scored between; what was refused before has written nothing."""
    refusals.check(
        lambda: classify(**cached, frozen_layers_gb=1e-9),
        "frozen_layers_gb allows 1e-09",
    )
    cached.update(do_eval=True, eval_steps=5)
    classify(**cached)
    curve = read_json(cached["output_dir"] / "dev_scores.json")
    assert {"5", "10"} <= set(curve["scores"])
    rmtree(cached["frozen_layers_dir"])
    classify(**cached, frozen_layers_gb=1e-9)
    assert not cached["frozen_layers_dir"].exists()


def test_several_processes_and_masked_tokens_are_refused(monkeypatch):
    monkeypatch.setattr(engines, "is_cluster", lambda: True)
    job = mock.MagicMock(table=task_model.ParameterTable("head", ()))
    model = mock.MagicMock()
    model.config.num_hidden_layers = 2
    for is_fixed, part in ((True, "TF_CONFIG"), (False, "others in each step")):
        model.task.rows_are_fixed = is_fixed
        refusals.check(lambda: frozen_outputs.check(model, job), part)
    assert not MaskedLM.rows_are_fixed


def kept_files(flags):
    folder = flags["frozen_layers_dir"]
    return sorted(n for n in os.listdir(folder) if n.endswith(".npy"))


@pytest.mark.gate
def test_runs_share_a_file_and_others_have_their_own(
    classify, cached, tmp_path, caplog
):
    caplog.set_level(logging.INFO)

    def run(name, **more):
        caplog.clear()
        classify(**{**cached, **more, "output_dir": tmp_path / name})
        return "are taken from" in caplog.text

    assert not run("one")
    assert "frozen layers, part 1 of 1: " in caplog.text
    # Of the same bits, whoever computes them.
    assert run("two") and len(kept_files(cached)) == 1
    assert artifact_bytes(tmp_path / "two") == artifact_bytes(tmp_path / "one")
    assert run("rate", learning_rate=1e-4, seed=4)
    assert not run("half", compute_dtype="bfloat16")
    assert not run("shorter", max_seq_length=6)
    assert not run("layers", tuning_method=TOP)
    assert len(kept_files(cached)) == 4
    # Another BERT of this size, and this one computed otherwise.
    changed = copytree(cached["init_checkpoint"], tmp_path / "changed")
    path = changed / "model.safetensors"
    values = load_file(path)
    save_file(
        {name: value + np.float32(1e-3) for name, value in values.items()}, path
    )
    assert not run("another BERT", init_checkpoint=changed)
    config = read_json(changed / "config.json")
    heads = tmp_path / "heads.json"
    write_json(heads, {**config, "num_attention_heads": 4})
    assert not run("heads", bert_config_file=heads)
    assert len(kept_files(cached)) == 6
    # Labels are no part of what is kept.
    other = tmp_path / "other"
    copytree(cached["data_dir"], other)
    table = (other / "train.tsv").read_text()
    (other / "train.tsv").write_text(
        table.replace("\tgood", "\t?").replace("\tbad", "\tgood")
    )
    assert run("labels", data_dir=other)
    # By default next to the data.
    del cached["frozen_layers_dir"]
    assert not run("other_data", data_dir=other)
    assert os.listdir(other / "frozen_layers")
    del cached["data_dir"]
    assert run("named", train_file=other / "train.tsv")


@pytest.mark.gate
def test_what_was_cut_off_is_computed_again(classify, cached, tmp_path):
    classify(**cached)
    first = artifact_bytes(cached["output_dir"])
    [name] = kept_files(cached)
    kept = cached["frozen_layers_dir"] / name
    # As a killed process leaves it.
    kept.rename(f"{kept}.1.new")
    classify(**{**cached, "output_dir": tmp_path / "again"})
    assert os.listdir(kept.parent).count(name) == 1
    assert not list(kept.parent.glob("*.new"))
    assert artifact_bytes(tmp_path / "again") == first
    # One that is cut short is told, and one that is no array.
    content, archive = kept.read_bytes(), io.BytesIO()
    np.savez(archive, np.zeros(2))
    cached["output_dir"] = tmp_path / "cut"
    for written in (b"", content[: len(content) // 2], archive.getvalue()):
        kept.write_bytes(written)
        refusals.check(lambda: classify(**cached), kept, "delete it")


@pytest.mark.parametrize("seconds", [0, 4e9])
def test_what_a_killed_process_left_goes_whatever_the_clock_says(
    classify, cached, seconds
):
    kept = cached["frozen_layers_dir"]
    kept.mkdir()
    users = kept / "notes.new"
    users.mkdir()
    half = kept / "other.npy.2.new"
    half.write_bytes(b"half")
    os.utime(half, (seconds, seconds))

    refusals.check(
        lambda: classify(**cached, frozen_layers_gb=1e-9),
        "where 0 GB are kept already",
    )
    assert not half.exists() and users.exists()


@pytest.mark.parametrize(
    "number, is_refused", [(errno.ENOSPC, True), (errno.EOPNOTSUPP, False)]
)
def test_a_disk_that_is_full_meanwhile_is_one_line(
    classify, cached, monkeypatch, number, is_refused
):
    """A write into a mapped file would end the process by a signal."""

    def reserve(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(frozen_outputs.os, "posix_fallocate", reserve)
    if is_refused:
        refusals.check(
            lambda: classify(**cached), "cannot write", "No space left"
        )
        assert not list(cached["frozen_layers_dir"].glob("*.n*"))
    else:
        classify(**cached)
        assert len(kept_files(cached)) == 1


@pytest.mark.parametrize(
    "change, parts",
    [
        ({"tuning_method": "houlsby"}, ["houlsby", "in the lowest layer"]),
        ({"frozen_layers_dir": "gs://bucket/x"}, ["gs://bucket", "a folder"]),
        ({"frozen_layers_dir": "/dev/null/x"}, ["/dev/null/x"]),
    ],
)
def test_what_cannot_be_kept_is_refused(classify, cached, change, parts):
    refusals.check(lambda: classify(**{**cached, **change}), *parts)


def test_an_evaluation_does_not_mind(classify, cached, still_bert, tmp_path):
    """As of a method for which nothing could be kept."""
    adapter = tmp_path / "adapter"
    make_artifact(adapter, still_bert, "houlsby(size=4)")
    del cached["tuning_method"]
    cached.update(do_train=False, do_eval=True, adapter=adapter)
    classify(**cached)


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    data=st.data(),
    first_token=st.booleans(),
)
def test_batches_hold_the_outputs_of_their_tokens(lengths, data, first_token):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    count = int(starts[-1])
    rows = Features(
        np.arange(count, dtype=np.int32), np.zeros(count, np.uint8), starts, {}
    )
    # Of each token its own number.
    numbers = starts[:-1] if first_token else np.arange(count)
    outputs = np.stack([numbers, -numbers], axis=1).astype(np.float32)
    cached = KnownOutputs(rows, outputs, first_token)
    assert len(cached) == len(lengths)
    places = st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=9)
    chosen = np.array(data.draw(places))
    batch = make_batch(cached, chosen, None)
    batched = batch[FROZEN_OUTPUTS]
    ids, mask = batch["input_ids"], batch["input_mask"]
    if first_token:
        ids, mask = ids[:, :1], mask[:, :1]
    assert_array_equal(batched[..., 0], ids * mask)
    assert_array_equal(batched[..., 1], -ids * mask)
    (shape, dtype) = cached.added(None)[FROZEN_OUTPUTS]
    assert len(shape) + 1 == batched.ndim and dtype == batched.dtype
    taken = rows.take(chosen)
    for number, row in enumerate(chosen):
        assert_array_equal(
            taken.tokens[slice(*taken.starts[number : number + 2])],
            rows.tokens[slice(*starts[row : row + 2])],
        )
