"""Frozen layers that are computed once: the same training, and which files."""

import errno
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import safetensors.numpy
from conftest import ROOT, entry_point
from hypothesis import given
from hypothesis import strategies as st
from run_folders import artifact_bytes, check_nearly_equal, kill_and_go_on
from task_files import PROPERTY
from test_multiple_choice import copa_row, write_json

from adapter_bert import folder_lock
from adapter_bert.commands import run_mlm
from adapter_bert.data.input_pipeline import Features, make_batch
from adapter_bert.data.tables import Layout
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.training import frozen_outputs
from adapter_bert.training.frozen_outputs import KnownOutputs, lowest_layer

pytestmark = pytest.mark.older_stack

TASK = TextClassification("tiny", Layout(0), Layout(0), labels=("a", "b"))


@pytest.fixture
def flags(tiny_flags, still_bert, tmp_path):
    values = {k: v for k, v in tiny_flags.items() if k != "adapter_size"}
    return {
        **values,
        "init_checkpoint": still_bert,
        "num_train_epochs": 2,
        "frozen_layers_dir": tmp_path / "kept",
    }


def adapter(folder):
    return safetensors.numpy.load_file(
        folder / "adapter" / "adapter.safetensors"
    )


@pytest.mark.parametrize(
    "text,lowest",
    [
        ("head", 2),
        ("top_layers(k=1)", 1),
        ("top_layers(k=2)", 0),
        ("pfeiffer(size=4, layers='1')", 1),
        ("houlsby(size=4, layers='1')", 1),
        ("adapterdrop(first=1, size=4)", 1),
        ("adapterdrop(first=1, size=4, robust=true)", 0),
        ("houlsby(size=4)", 0),
        ("bitfit", 0),
        ("full", 0),
        ("layernorm", 0),
        ("lt_sft(sparsity=0.05)", 0),
        ("compacter(size=8)", 0),
        ("mad_x(size=4, inverse_size=4, layers='1')", 0),
        ("stack({'a': pfeiffer(size=4)}, pfeiffer(size=4, layers='1'))", 0),
        ("stack({'a': pfeiffer(layers='1')}, top_layers(k=1))", 1),
    ],
)
def test_the_lowest_layer_that_is_not_the_pretrained_ones(
    tiny_config, text, lowest
):
    table = task_model.list_parameters(
        tiny_config, parse(text), TASK.build_head
    )
    assert lowest_layer(table, 2) == lowest


@pytest.mark.gate
@pytest.mark.parametrize(
    "engine,text,more",
    [
        ("estimator", "head", {}),
        ("strategy", "top_layers(k=1)", {"gradient_accumulation_steps": 2}),
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
    found = {}
    for cached in (False, True):
        folder = tmp_path / str(cached)
        classify(
            **{**flags, **more, "output_dir": folder},
            engine=engine,
            tuning_method=text,
            cache_frozen_layers=cached,
            do_eval=True,
        )
        results = json.loads((folder / "eval_results.json").read_text())
        found[cached] = adapter(folder), results
        run = json.loads((folder / "run.json").read_text())
        assert run["training"]["cache_frozen_layers"] is cached
    half = more.get("compute_dtype") == "bfloat16"
    (before, scores), (after, others) = found[False], found[True]
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_allclose(
            after[name], value, atol=2e-2 if half else 2e-5, err_msg=name
        )
    assert others["eval_loss"] == pytest.approx(
        scores["eval_loss"], abs=2e-2 if half else 1e-5
    )


def check_same(run, flags, folder, **more):
    """Trains in both ways, and compares the adapters."""
    for cached in (False, True):
        run(
            **{**flags, **more, "output_dir": folder / str(cached)},
            cache_frozen_layers=cached,
            frozen_layers_dir=folder / "kept",
        )
    alone, kept = (
        sorted((folder / name).rglob("adapter.safetensors"))
        for name in ("False", "True")
    )
    assert len(alone) == len(kept) > 0
    for one, other in zip(alone, kept):
        check_nearly_equal(one.parent.parent, other.parent.parent, 2e-5)


TOP = "top_layers(k=1)"


def without_size(flags, bert, **more):
    values = {k: v for k, v in flags.items() if k != "adapter_size"}
    return {
        **values,
        "init_checkpoint": bert,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        **more,
    }


@pytest.mark.gate
def test_questions_are_learned_the_same(
    answer, squad_flags, still_bert, tmp_path
):
    flags = without_size(squad_flags, still_bert, tuning_method=TOP)
    check_same(answer, flags, tmp_path)


@pytest.mark.gate
def test_tags_are_learned_the_same(tag, ner_flags, still_bert, tmp_path):
    """Of the last layer the head reads all tokens."""
    flags = without_size(ner_flags, still_bert, tuning_method="head")
    check_same(tag, flags, tmp_path)


def test_more_frozen_layers_are_in_another_file(
    tag, ner_flags, still_bert, tmp_path
):
    kept = {"frozen_layers_dir": tmp_path / "kept"}
    for text in (TOP, "head"):
        flags = without_size(ner_flags, still_bert, tuning_method=text, **kept)
        tag(
            **{**flags, "output_dir": tmp_path / text},
            cache_frozen_layers=True,
        )
    assert len(kept_files(kept)) == 2


@pytest.mark.gate
def test_tasks_are_learned_together_the_same(
    classify, glue_flags, still_bert, tmp_path
):
    flags = without_size(
        glue_flags, still_bert, tuning_method=TOP, do_eval=False
    )
    check_same(classify, flags, tmp_path)


@pytest.mark.gate
def test_choices_are_learned_the_same(
    classify, tiny_flags, still_bert, tmp_path
):
    rows = [copa_row(number) for number in range(16)]
    write_json(tmp_path / "train.jsonl", rows)
    flags = without_size(
        tiny_flags,
        still_bert,
        tuning_method="head",
        task_name="copa",
        data_dir=tmp_path,
    )
    check_same(classify, flags, tmp_path)


@pytest.mark.gate
def test_a_killed_training_goes_on_with_what_was_kept(
    classify, flags, tmp_path
):
    flags.update(num_train_epochs=40, save_checkpoints_steps=10)
    flags.update(tuning_method=TOP, cache_frozen_layers=True)
    whole, killed = kill_and_go_on(classify, flags, tmp_path)
    assert artifact_bytes(killed) == artifact_bytes(whole)


@pytest.mark.gate
def test_two_runs_at_once_compute_it_once(flags, tmp_path):
    flags.update(tuning_method=TOP, cache_frozen_layers=True)
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    folders = [tmp_path / name for name in ("one", "two")]
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "run_classifier.py",
                *arguments,
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
    assert sum("frozen layers are kept in" in log for log in logs) == 1
    assert sum("frozen layers are taken from" in log for log in logs) == 1
    assert artifact_bytes(folders[0]) == artifact_bytes(folders[1])


def test_a_refused_folder_is_free_for_another_run(classify, flags):
    """What is refused has written nothing."""
    refused = {**flags, "cache_frozen_layers": True, "frozen_layers_gb": 1e-9}
    with pytest.raises(UserError, match="frozen_layers_gb allows 1e-09"):
        classify(**refused, tuning_method=TOP)
    classify(**flags, tuning_method=TOP)


def test_a_finished_training_needs_no_file_any_more(classify, flags):
    """Steps are scored between."""
    flags.update(cache_frozen_layers=True, tuning_method=TOP)
    flags.update(do_eval=True, eval_steps=5)
    classify(**flags)
    found = json.loads((flags["output_dir"] / "dev_scores.json").read_text())
    assert {"5", "10"} <= set(found["scores"])
    shutil.rmtree(flags["frozen_layers_dir"])
    classify(**flags, frozen_layers_gb=1e-9)
    assert not flags["frozen_layers_dir"].exists()


def test_several_processes_are_refused(classify, flags, monkeypatch):
    monkeypatch.setattr(frozen_outputs.multi_worker, "is_cluster", lambda: True)
    setup = types.SimpleNamespace(
        experiment=None,
        task=types.SimpleNamespace(rows_are_fixed=True),
        table=task_model.ParameterTable("head", ()),
        model=types.SimpleNamespace(
            config=types.SimpleNamespace(num_hidden_layers=2)
        ),
    )
    with pytest.raises(UserError, match="needs one process, but TF_CONFIG"):
        frozen_outputs.check(setup)


def test_masked_tokens_are_refused(still_bert, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat .\n" * 8)
    with entry_point(run_mlm) as run:
        with pytest.raises(UserError, match="others in each step"):
            run(
                init_checkpoint=still_bert,
                train_file=path,
                tuning_method=TOP,
                do_train=True,
                max_seq_length=16,
                output_dir=tmp_path / "out",
                cache_frozen_layers=True,
                frozen_layers_dir=tmp_path / "kept",
            )
    assert not (tmp_path / "out" / "run.json").exists()


def kept_files(flags):
    folder = flags["frozen_layers_dir"]
    return sorted(n for n in os.listdir(folder) if n.endswith(".npy"))


@pytest.mark.gate
def test_runs_share_a_file_and_others_have_their_own(
    classify, flags, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    flags.update(cache_frozen_layers=True, tuning_method="head")

    def run(name, **more):
        caplog.clear()
        classify(**{**flags, **more, "output_dir": tmp_path / name})
        return "are taken from" in caplog.text

    assert not run("one")
    # Of the same bits, whoever computes them.
    first = adapter(tmp_path / "one")
    assert run("two") and len(kept_files(flags)) == 1
    for name, value in adapter(tmp_path / "two").items():
        np.testing.assert_array_equal(value, first[name])
    assert run("rate", learning_rate=1e-4, seed=4)
    assert not run("half", compute_dtype="bfloat16")
    assert not run("shorter", max_seq_length=6)
    assert not run("layers", tuning_method="top_layers(k=1)")
    assert len(kept_files(flags)) == 4
    # Another BERT of this size, and this one computed otherwise.
    changed = shutil.copytree(flags["init_checkpoint"], tmp_path / "changed")
    path = changed / "model.safetensors"
    values = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file(
        {name: value + np.float32(1e-3) for name, value in values.items()}, path
    )
    assert not run("another BERT", init_checkpoint=changed)
    config = json.loads((changed / "config.json").read_text())
    heads = tmp_path / "heads.json"
    heads.write_text(json.dumps({**config, "num_attention_heads": 4}))
    assert not run("heads", bert_config_file=heads)
    assert len(kept_files(flags)) == 6
    # Labels are no part of what is kept.
    other = tmp_path / "other"
    shutil.copytree(flags["data_dir"], other)
    table = (other / "train.tsv").read_text()
    (other / "train.tsv").write_text(
        table.replace("\tgood", "\t?").replace("\tbad", "\tgood")
    )
    assert run("labels", data_dir=other)
    # By default next to the data.
    del flags["frozen_layers_dir"]
    assert not run("other_data", data_dir=other)
    assert os.listdir(other / "frozen_layers")
    del flags["data_dir"]
    assert run("named", train_file=other / "train.tsv")


@pytest.mark.gate
def test_what_was_cut_off_is_computed_again(classify, flags, tmp_path):
    flags.update(cache_frozen_layers=True, tuning_method="top_layers(k=1)")
    classify(**flags)
    first = adapter(flags["output_dir"])
    kept = flags["frozen_layers_dir"]
    (name,) = kept_files(flags)
    # As a killed process leaves it.
    (kept / name).rename(kept / f"{name}.1.new")
    classify(**{**flags, "output_dir": tmp_path / "again"})
    assert kept_files(flags) == [name]
    assert not list(kept.glob("*.new"))
    for key, value in adapter(tmp_path / "again").items():
        np.testing.assert_array_equal(value, first[key])
    # One that is cut short is told, and one that is no array.
    content = (kept / name).read_bytes()
    archive = io.BytesIO()
    np.savez(archive, np.zeros(2))
    wrong = (b"", content[: len(content) // 2], archive.getvalue())
    for number, written in enumerate(wrong):
        (kept / name).write_bytes(written)
        with pytest.raises(UserError, match="delete it to compute it again"):
            classify(**{**flags, "output_dir": tmp_path / f"cut{number}"})


@pytest.mark.parametrize("seconds", [0, 4e9])
def test_what_another_process_writes_is_kept_whatever_the_clock_says(
    classify, flags, seconds
):
    flags.update(cache_frozen_layers=True, tuning_method="head")
    kept = flags["frozen_layers_dir"]
    kept.mkdir()
    half = kept / "other.npy.2.new"
    half.write_bytes(b"half")
    os.utime(half, (seconds, seconds))
    refused = {**flags, "frozen_layers_gb": 1e-9}
    with folder_lock.hold(str(kept), frozen_outputs.LOCK):
        with pytest.raises(UserError, match="GB are kept already"):
            classify(**refused)
        assert half.exists()
    with pytest.raises(UserError, match="where 0 GB are kept already"):
        classify(**refused)
    assert not half.exists()


def test_a_file_that_goes_while_it_is_looked_at_is_passed_over(classify, flags):
    """Another process renames what it has written."""
    flags.update(cache_frozen_layers=True, tuning_method="head")
    kept = flags["frozen_layers_dir"]
    kept.mkdir()
    # A name that is listed, and leads to nothing.
    (kept / "gone.npy").symlink_to("nowhere")
    classify(**flags)
    assert len(kept_files(flags)) == 2


@pytest.mark.parametrize(
    "number,is_refused", [(errno.ENOSPC, True), (errno.EOPNOTSUPP, False)]
)
def test_a_disk_that_is_full_meanwhile_is_one_line(
    classify, flags, monkeypatch, number, is_refused
):
    """A write into a mapped file would end the process by a signal."""
    flags.update(cache_frozen_layers=True, tuning_method="head")

    def reserve(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(frozen_outputs.os, "posix_fallocate", reserve)
    if is_refused:
        with pytest.raises(UserError, match="cannot write .*No space left"):
            classify(**flags)
        assert not list(flags["frozen_layers_dir"].glob("*.n*"))
    else:
        classify(**flags)
        assert len(kept_files(flags)) == 1


@pytest.mark.parametrize(
    "change,words",
    [
        ({"tuning_method": "houlsby"}, "in the lowest layer, so that nothing"),
        ({"frozen_layers_gb": 1e-9}, "GB in .*, where 0 GB .* allows 1e-09"),
        ({"frozen_layers_dir": "gs://bucket/x"}, "a folder of this machine"),
        ({"frozen_layers_dir": "/dev/null/x"}, "/dev/null/x"),
    ],
)
def test_what_cannot_be_kept_is_refused(classify, flags, change, words):
    flags.update(cache_frozen_layers=True, tuning_method="head")
    with pytest.raises(UserError, match=words) as caught:
        classify(**{**flags, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.gate
def test_an_evaluation_does_not_mind(classify, flags):
    """As of a method for which nothing could be kept."""
    classify(**flags, tuning_method="houlsby(size=4)")
    classify(
        **{**flags, "do_train": False, "do_eval": True},
        tuning_method="houlsby(size=4)",
        cache_frozen_layers=True,
    )


@PROPERTY
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
    known = KnownOutputs.of(rows, outputs, first_token)
    assert len(known) == len(lengths)
    chosen = np.array(
        data.draw(
            st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=9)
        )
    )
    batch = make_batch(known, chosen, None)
    found = batch[task_model.FROZEN_OUTPUTS]
    ids, mask = batch["input_ids"], batch["input_mask"]
    if first_token:
        ids, mask = ids[:, :1], mask[:, :1]
    np.testing.assert_array_equal(found[..., 0], ids * mask)
    np.testing.assert_array_equal(found[..., 1], -ids * mask)
    (shape, dtype) = known.added(None)[task_model.FROZEN_OUTPUTS]
    assert len(shape) + 1 == found.ndim and dtype == found.dtype
    taken = rows.take(chosen)
    for number, row in enumerate(chosen):
        own = taken.tokens[taken.starts[number] : taken.starts[number + 1]]
        np.testing.assert_array_equal(
            own, rows.tokens[starts[row] : starts[row + 1]]
        )
