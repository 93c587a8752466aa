"""Adapters and trainings in the form of google-research/adapter-bert."""

# Fixtures are imported.
# ruff: noqa: F811

import dataclasses
import shutil

import numpy as np
import pytest
import refusals
from conftest import (
    open_bert,
    open_checkpoint,
    read_adapter_config,
    read_json,
    trained_task,
    write_lines,
)
from exchanged import assert_same_values, change
from numpy.testing import assert_allclose, assert_array_equal
from test_convert_checkpoint import convert  # noqa: F401 (a fixture)
from test_golden_model import Recorded
from test_sources import save_tensorflow
from tiny_artifacts import CLASSIFICATION, make_artifact, read_base

from adapter_bert.answering.embeddings import embed
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import adapter_artifact, google, sources
from adapter_bert.checkpoints.weights import identify
from adapter_bert.training import run_files


@pytest.fixture
def google_tiny(convert, tiny_bert, tmp_path):
    """The tiny BERT in Google's form."""
    folder = tmp_path / "google_tiny"
    shutil.copytree(tiny_bert, tmp_path / "source")
    change(tmp_path / "source" / "config.json", hidden_act="gelu_new")
    convert(tmp_path / "source", "google", folder)
    return folder


def read(folder):
    weights = google.open_tensorflow(str(folder / "bert_model.ckpt"))
    return {name: weights.read(name) for name in weights.shapes}


def states_of(folder, adapter, rows):
    """Hidden states that this program computes, of a BERT with an adapter."""
    bert = open_bert(folder)
    task = trained_task(bert, adapter) if adapter else None
    return embed(bert, rows, task=task, layers=(0, -1), max_seq_length=24)


def test_golden_names_and_values(convert, golden_dir, tmp_path, folders):
    """What upstream's program has written, from its parts."""
    recorded = Recorded(golden_dir / "adapter_bert_tiny", "model.ckpt-20")
    values = {n: v.numpy() for n, v in recorded.variables.items()}
    trained = {n for n, _ in recorded.trained}
    base, adapter = folders("base"), folders("adapter")
    names = encoder.list_variables(recorded.config)
    save_tensorflow(base / "bert_model.ckpt", {n: values[n] for n in names})
    shutil.copy(golden_dir / "adapter_bert_tiny/bert_config.json", base)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    words += map("[unused{}]".format, range(recorded.config.vocab_size - 6))
    write_lines(base / "vocab.txt", words)
    opened = open_checkpoint(base)
    adapter_artifact.write(
        str(adapter),
        {
            "method": f"houlsby(size={recorded.training['adapter_size']})",
            "task": {**CLASSIFICATION, "labels": ["0", "1", "2"]},
            "base": identify(opened.weights, names).describe(),
            "tokenizer": sources.read_tokenizer(
                opened, recorded.config
            ).describe(),
            "bert_config": dataclasses.asdict(recorded.config),
        },
        {name: values[name] for name in trained},
    )
    out = tmp_path / "out"
    printed = convert(base, "adapter_bert", out, f"--adapter={adapter}")
    assert "adapters of size 8, hidden_size of feedforward_adapter" in printed
    values_out = read(out)
    shapes = {n: list(v.shape) for n, v in values_out.items()}
    assert shapes == dict(recorded.training["all"])
    for name, value in values.items():
        assert_array_equal(values_out[name], value, err_msg=name)
    config = read_json(out / "bert_config.json")
    assert config["hidden_act"] == "gelu"


@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "method, size",
    [
        ("houlsby(size=4, layers='1', sites='ffn')", 4),
        ("lora(rank=2)", 64),
    ],
)
def test_same_outputs(convert, google_tiny, tmp_path, folders, method, size):
    """Also where the method has no adapters at some places, or at all."""
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    make_artifact(adapter, google_tiny, method)
    convert(google_tiny, "adapter_bert", out, f"--adapter={adapter}")
    values_out = read(out)
    places = [n for n in values_out if n.endswith("adapters/weights1")]
    assert len(places) == 4
    assert {values_out[name].shape for name in places} == {(16, size)}
    assert all(np.abs(values_out[name]).max() > 0 for name in places)
    # As a whole model of the program's adapters.
    config = read_adapter_config(adapter)
    config["method"] = f"houlsby(size={size})"
    kept = {
        name: value
        for name, value in values_out.items()
        if "adapters" in name or "LayerNorm" in name or "output_" in name[:7]
    }
    whole, plain = folders("whole"), tmp_path / "plain"
    shutil.copytree(google_tiny, plain)
    save_tensorflow(
        plain / "bert_model.ckpt", {n: values_out[n] for n in read(google_tiny)}
    )
    config["base"] = read_base(plain)[2].describe()
    adapter_artifact.write(str(whole), config, kept)
    rows = ["the cat sat", "a dog on the mat"]
    assert_allclose(
        states_of(plain, whole, rows),
        states_of(google_tiny, adapter, rows),
        atol=1e-5,
    )


@pytest.mark.newer_stack
def test_a_training(convert, classify, tiny_flags, google_tiny, tmp_path):
    """Gives what its adapter gives, also before its end."""
    # As run_classifier_with_tfhub.py calls it.
    del tiny_flags["init_checkpoint"]
    tiny_flags["bert_hub_module_handle"] = google_tiny
    classify(**{**tiny_flags, "num_train_epochs": 1})
    run = tiny_flags["output_dir"]
    a, b = tmp_path / "a", tmp_path / "b"
    adapter = run / run_files.ADAPTER
    convert(google_tiny, "adapter_bert", a, f"--adapter={adapter}")
    shutil.rmtree(adapter)
    convert(run, "adapter_bert", b)
    assert (a / "bert_model.ckpt.index").read_bytes() == (
        b / "bert_model.ckpt.index"
    ).read_bytes()
    assert_same_values(read(b), read(a))
    for more, message in (
        ([], "adds computation to BERT, so it can"),
        ([f"--adapter={a}"], "pass the BERT as --init_checkpoint"),
    ):
        refusals.check(
            lambda m=more: convert(run, "google", tmp_path / "c", *m), message
        )


@pytest.mark.newer_stack
def test_refusals(convert, google_tiny, tiny_bert, tmp_path):
    out = tmp_path / "out"
    for number, (bert, method, message) in enumerate(
        (
            (google_tiny, "", "has no adapter to write for adapter-"),
            (
                google_tiny,
                "prefix(length=2)",
                "computes houlsby alone, and prefix adds",
            ),
            (google_tiny, "houlsby(depth=2)", "have no depth but houlsby's"),
            (
                google_tiny,
                "houlsby(nonlinearity='relu')",
                "have no nonlinearity but",
            ),
            (google_tiny, "houlsby(layer_norm=True)", "have no layer_norm but"),
            (google_tiny, "houlsby(gating=True)", "have no gating but"),
            (google_tiny, "houlsby(sizes='1:2')", "have no sizes but"),
            (tiny_bert, "houlsby", "the gelu of the error function, whi"),
        )
    ):
        adapter, more = tmp_path / str(number), []
        if method:
            make_artifact(adapter, bert, method)
            more = [f"--adapter={adapter}"]
        refusals.check(
            lambda b=bert, m=more: convert(b, "adapter_bert", out, *m), message
        )
    assert not out.exists()
    printed = convert(
        tiny_bert, "adapter_bert", out, *more, "--activation=gelu"
    )
    assert "of random tokens differ by at most" in printed.splitlines()[2]
