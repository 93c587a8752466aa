"""BERTs in other forms: there and back, and what is refused."""

# Fixtures are imported.
# ruff: noqa: F401, F811

import dataclasses
import json
import shutil
from functools import partial

import numpy as np
import pytest
import refusals
import safetensors.numpy
from conftest import (
    TINY_WORDS,
    open_checkpoint,
    read_json,
    run_process,
    write_json,
    write_lines,
)
from hub_modules import write_tf1, write_tf2
from safetensors.numpy import load_file, save_file
from test_hub_module import masked_lm
from test_sources import check_values, google_bert, save_tensorflow

from adapter_bert.checkpoints import sources
from adapter_bert.commands import convert as convert_command

pytestmark = pytest.mark.newer_stack

HEADS = 2


@pytest.fixture
def convert(run_main, capsys):
    """Runs the script within this process."""

    def run(source, to, target, *more):
        run_main(
            convert_command,
            f"--init_checkpoint={source}",
            f"--to={to}",
            f"--output_dir={target}",
            *more,
        )
        return capsys.readouterr().out

    return run


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    write_lines(path, TINY_WORDS)
    return path


def check(folder, weights, config):
    opened = open_checkpoint(folder)
    assert set(opened.weights.shapes) == set(weights)
    check_values(opened.weights, weights)
    read = sources.read_config(opened)
    assert read.hidden_act in ("gelu", "gelu_new")
    assert dataclasses.replace(read, hidden_act="gelu") == config
    assert sources.read_tokenizer(opened, read).vocab_size == 30


@pytest.mark.parametrize("kind", ["google", "tf1", "tf2", "version 1"])
def test_there_and_back_is_bit_for_bit_the_same(
    convert, tmp_path, words, masked_lm, tiny_config, kind
):
    next_sentence = {
        "cls/seq_relationship/output_weights": np.ones((2, 16), np.float32),
        "cls/seq_relationship/output_bias": np.full(2, -0.0, np.float32),
    }
    source, values = tmp_path / "source", masked_lm
    if kind == "google":
        values = {**masked_lm, **next_sentence}
        source.mkdir()
        save_tensorflow(source / "bert_model.ckpt", values)
        words.rename(source / "vocab.txt")
        write_json(source / "bert_config.json", vars(tiny_config))
    elif kind == "tf1":
        write_tf1(source, words, values, HEADS)
    else:
        generation = 1 if kind == "version 1" else 3
        write_tf2(source, words, values, HEADS, generation)
    first, other, back = (tmp_path / name for name in ("first", "hf", "back"))
    printed = convert(source, "google", first)
    assert printed.startswith(
        f"wrote {first}/bert_model.ckpt: {len(values)} vari"
    )
    assert printed.endswith(", --do_lower_case=true\n")
    again = convert(first, "hugging_face", other)
    assert again.split(": ")[1] == printed.split(": ")[1]
    convert(other, "google", back)
    for folder in (first, other, back):
        check(folder, values, tiny_config)
    for path in first.iterdir():
        assert path.read_bytes() == (back / path.name).read_bytes(), path


def test_from_hugging_face_and_back(convert, tmp_path, tiny_bert):
    """Where gelu is the error function."""
    source = shutil.copytree(tiny_bert, tmp_path / "source")
    first, back = tmp_path / "first", tmp_path / "back"
    config = {**read_json(source / "config.json"), "model_type": "bert"}
    write_json(source / "config.json", config)
    refusals.check(
        lambda: convert(source, "google", first),
        "do not know; --activation=gelu writ",
    )
    assert not first.exists()
    printed = convert(source, "google", first, "--activation=gelu")
    written = read_json(first / "bert_config.json")
    assert written["hidden_act"] == "gelu"
    difference, worst = printed.splitlines()[1].rsplit(" ", 1)
    assert difference == (
        "hidden_act is gelu, not gelu_erf: the last layer's outputs for 4 rows "
        "of random tokens differ by at most"
    )
    assert 1e-6 < float(worst) < 0.01
    convert(first, "hugging_face", back)
    written = read_json(back / "config.json")
    assert written["hidden_act"] == "gelu_new"
    length = read_json(back / "tokenizer_config.json")["model_max_length"]
    assert length == written["max_position_embeddings"]
    for flag, message in (
        ("--pooling=cls", "--pooling and --normalize are for --to=sentence"),
        ("--normalize=false", "leave them out"),
    ):
        refusals.check(
            partial(convert, source, "hugging_face", tmp_path / "x", flag),
            message,
        )
    refusals.check(
        lambda: convert(
            source, "hugging_face", tmp_path / "x", "--activation=gelu"
        ),
        "--activation is of Google's programs",
    )
    for name, *parts in (
        ("swish", "hidden_act is swish, which Google's programs do not know; "),
        ("relu", "hidden_act is relu, which ", "leave --activation=gelu out"),
    ):
        write_json(source / "config.json", {**config, "hidden_act": name})
        refusals.check(
            lambda: convert(
                source, "google", tmp_path / "x", "--activation=gelu"
            ),
            *parts,
        )
    write_json(source / "config.json", {**config, "hidden_act": "gelu_new"})
    convert(source, "google", tmp_path / "x")
    read = read_json(tmp_path / "x" / "bert_config.json")
    assert read["hidden_act"] == "gelu"
    before, after = (
        load_file(folder / "model.safetensors") for folder in (source, back)
    )
    assert set(after) == {f"bert.{name}" for name in before}
    for name, value in before.items():
        np.testing.assert_array_equal(after[f"bert.{name}"], value)


def test_a_head_keeps_labels_and_kind(convert, tmp_path, tiny_bert):
    source = shutil.copytree(tiny_bert, tmp_path / "source")
    head = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "so so", "1": "good", "2": "bad"},
        "label2id": {"so so": 0, "good": 1, "bad": 2},
    }
    path = source / "config.json"
    write_json(path, {**read_json(path), **head})
    path = source / "model.safetensors"
    values = load_file(path)
    values["classifier.bias"] = np.arange(3, dtype=np.float32)
    save_file(values, path)
    first, back = tmp_path / "first", tmp_path / "back"
    convert(source, "google", first, "--activation=gelu")
    convert(first, "hugging_face", back)
    for folder in (source, first, back):
        opened = open_checkpoint(folder)
        assert opened.labels == ("so so", "good", "bad")
        assert opened.head == head
        assert opened.weights.read("output_bias").tolist() == [0, 1, 2]


def test_labels_without_names_are_counted(convert, tmp_path, tiny_bert):
    source = shutil.copytree(tiny_bert, tmp_path / "source")
    head = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(n): f"LABEL_{n}" for n in range(3)},
    }
    path = source / "config.json"
    write_json(path, {**read_json(path), **head})
    write_json(source / "tokenizer_config.json", {"model_max_length": 20})
    convert(source, "hugging_face", tmp_path / "out")
    written = read_json(tmp_path / "out" / "config.json")
    assert {name: written[name] for name in head} == head
    described = read_json(tmp_path / "out" / "tokenizer_config.json")
    assert described["model_max_length"] == 20


def test_a_case_that_no_word_tells_is_kept(
    convert, tmp_path, words, tiny_weights
):
    """As of a script without capital letters."""
    signs = [*TINY_WORDS[:5], *map(chr, range(0x4E00, 0x4E19))]
    words.write_text("\n".join(signs) + "\n", encoding="utf-8")
    source = write_tf2(
        tmp_path / "source", words, tiny_weights, HEADS, lower=False
    )
    theirs, google, again = (tmp_path / n for n in ("hf", "google", "again"))
    assert "--do_lower_case=false" in convert(source, "hugging_face", theirs)
    assert "--do_lower_case=false" in convert(theirs, "google", google)
    assert "--do_lower_case=false" in convert(google, "hugging_face", again)
    for folder in (theirs, again):
        described = read_json(folder / "tokenizer_config.json")
        assert described["do_lower_case"] is False
        opened = open_checkpoint(folder)
        config = sources.read_config(opened)
        assert not sources.read_tokenizer(opened, config).do_lower_case


def test_a_trainings_slots_are_left_out(
    convert, google_bert, tiny_weights, tiny_config, tmp_path
):
    """As of a checkpoint of Google's program."""
    save_tensorflow(
        google_bert / "bert_model.ckpt",
        {
            **tiny_weights,
            "global_step": np.asarray(3, np.int64),
            "bert/pooler/dense/bias/adam_m": np.ones(16, np.float32),
        },
    )
    convert(google_bert, "google", tmp_path / "out")
    check(tmp_path / "out", tiny_weights, tiny_config)


def test_refusals(convert, google_bert, golden_dir, tmp_path, tiny_weights):
    for name in ("vocab.txt", "config.json", "bert_model.ckpt.index"):
        there = tmp_path / name.replace(".", "_")
        there.mkdir()
        (there / name).write_text("mine")
        # Before anything is read.
        refusals.check(
            lambda to=there: convert("/nowhere", "google", to),
            f"BERT's {name}; choose another",
        )
        assert (there / name).read_text() == "mine"
    adapted = golden_dir / "adapter_bert_tiny"
    vocabulary = tmp_path / "vocab.txt"
    size = read_json(adapted / "bert_config.json")["vocab_size"]
    filling = [f"[unused{i}]" for i in range(size - len(TINY_WORDS))]
    vocabulary.write_text("\n".join([*TINY_WORDS, *filling]))
    refusals.check(
        lambda: convert(
            adapted / "model.ckpt-20",
            "google",
            tmp_path / "out",
            f"--vocab_file={vocabulary}",
        ),
        "adapters",
        " no part of a plain BERT",
    )
    part = {k: v for k, v in tiny_weights.items() if "layer_1/inter" not in k}
    save_tensorflow(google_bert / "bert_model.ckpt", part)
    refusals.check(
        lambda: convert(google_bert, "hugging_face", tmp_path / "out"),
        "lacks the variable ",
        "layer_1/inter",
    )
    assert not (tmp_path / "out").exists()
