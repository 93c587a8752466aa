"""RoBERTa and XLM-R against transformers, and what a run of them does."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from conftest import entry_point, run_process
from roberta_folders import (
    BOTH,
    change,
    copy_roberta,
    open_tokenizer,
    read_recorded,
)
from tiny_artifacts import CLASSIFICATION, make_artifact, read_base

import adapter_library
import export_model
import modeling
import run_mlm
import task_model
from errors import UserError
from hooks import Context, Hooks
from methods.composition import Composition
from methods.parsing import parse
from methods.registry import METHODS
from scripts import convert_checkpoint, merge_adapter
from serving.library import AdapterLibrary
from serving.predictor import Predictor
from task_model import TaskModel
from tasks.masked_lm import MaskedLMHead
from tasks.restored import restore_task
from tasks.table_files import Layout
from tasks.text_classification import TextClassification
from weights import pretrained, run_record

TASK = TextClassification("tiny", Layout(0), Layout(0), labels=("a", "b"))


@pytest.fixture(scope="module")
def recorded(golden_dir):
    """Opens the recording of a name."""
    return lambda name: read_recorded(golden_dir, name)


@pytest.fixture
def folder(golden_dir, tmp_path):
    """A RoBERTa's folder, which may be changed."""
    return copy_roberta(golden_dir, tmp_path)


def reader(weights):
    """A `create` that takes every value from a model's weights."""

    def create(name, shape, initializer):
        value = weights.read(name)
        assert value.shape == tuple(shape), name
        return tf.constant(value)

    return create


def features_of(values):
    ids = values["input_ids"]
    return {
        "input_ids": tf.constant(ids),
        "segment_ids": tf.zeros_like(ids),
        "input_mask": tf.constant(values["input_mask"]),
    }


@BOTH
def test_golden_hidden_states(recorded, name):
    found = recorded(name)
    assert found.config.layer_norm_eps == 1e-5
    assert found.config.hidden_act == "gelu_erf"
    assert found.config.first_position == 2
    assert found.config.max_tokens == 40 == found.values["input_ids"].shape[1]
    create = reader(found.opened.weights)
    bert = modeling.Bert(found.config, create, Hooks(), pooler=False)
    features = features_of(found.values)
    output = bert(
        features["input_ids"],
        features["segment_ids"],
        Context(features["input_mask"]),
    )
    real = found.values["input_mask"] > 0
    for computed, expected in (
        (output.embedding_output, "embedding_output"),
        (output.sequence_output, "sequence_output"),
    ):
        np.testing.assert_allclose(
            computed.numpy()[real], found.values[expected][real], atol=1e-5
        )


def test_golden_logits_of_masked_tokens(recorded):
    found = recorded("roberta")
    create = reader(found.opened.weights)
    head = MaskedLMHead(found.config, create)
    bert = modeling.Bert(found.config, create, Hooks(), pooler=False)
    features = features_of(found.values)
    context = Context(features["input_mask"])
    hidden = bert(
        features["input_ids"], features["segment_ids"], context
    ).sequence_output
    places = np.tile(found.values["places"], (len(hidden), 1))
    logits = head(bert, hidden, context, tf.constant(places), places * 0)
    np.testing.assert_allclose(
        logits["logits"], found.values["logits"], atol=1e-5
    )


def test_golden_logits_of_texts(recorded):
    """A model that transformers have tuned: its head is read as well."""
    found = recorded("xlm-roberta")
    create = reader(found.opened.weights)
    model = TaskModel(found.config, parse("head"), TASK.build_head, create)
    features = features_of(found.values)
    outputs = model(features, Context(features["input_mask"]))
    np.testing.assert_allclose(
        outputs["logits"], found.values["logits"], atol=1e-5
    )


def test_a_bare_model_is_the_same_model(folder):
    path = folder / "model.safetensors"
    _, config, base = read_base(folder)
    tensors = safetensors.numpy.load_file(path)
    bare = {
        name[len("roberta.") :]: value
        for name, value in tensors.items()
        if name.startswith("roberta.")
    }
    # transformers write a pooler that was never trained.
    bare["pooler.dense.weight"] = np.zeros([16, 16], np.float32)
    bare["embeddings.position_ids"] = np.arange(42)[np.newaxis]
    safetensors.numpy.save_file(bare, path)
    assert read_base(folder)[2].fingerprint == base.fingerprint
    assert not any("pooler" in n for n in modeling.list_variables(config))


@pytest.mark.parametrize(
    "method", [m for m in METHODS if not issubclass(METHODS[m], Composition)]
)
def test_a_layer_of_the_head_stands_for_the_pooler(recorded, method):
    config = recorded("roberta").config
    # The tiny model has two layers.
    text = method + "(first=1)" * (method == "adapterdrop")
    table = task_model.list_parameters(config, parse(text), TASK.build_head)
    assert not any(p.group == "pooler" for p in table.parameters)
    head = {p.name: p.shape for p in table.parameters if p.group == "head"}
    assert head == {
        "hidden_weights_0": (16, 16),
        "hidden_bias_0": (16,),
        "output_weights": (2, 16),
        "output_bias": (2,),
    }


@pytest.fixture
def flags(folder, tiny_data, tmp_path):
    return {
        "task_name": "custom",
        "data_dir": tiny_data,
        "init_checkpoint": folder,
        "output_dir": tmp_path / "out",
        "do_train": True,
        "do_eval": True,
        "max_seq_length": 40,
        "train_batch_size": 8,
        "learning_rate": 1e-2,
        "num_train_epochs": 12,
        "adapter_size": 8,
        "cpu_lanes": 1,
    }


def arguments(flags):
    return [f"--{name}={value}" for name, value in flags.items()]


def test_texts_are_learned_and_answered(flags, folder, tiny_data, tmp_path):
    # Grouped by length, a batch would be one text again and again.
    flags.update(train_batch_size=40, length_pool_batches=1)
    run_process(*arguments({**flags, "num_train_epochs": 60}))
    out = tmp_path / "out"
    scores = json.loads((out / "eval_results.json").read_text())
    assert scores["eval_accuracy"] == 1.0
    assert (out / "adapter" / "adapter.safetensors").stat().st_size < 30_000
    again = {
        "task_name": "custom",
        "data_dir": tiny_data,
        "init_checkpoint": folder,
        "adapter": out / "adapter",
        "output_dir": tmp_path / "again",
        "max_seq_length": 40,
        "do_eval": True,
        "do_predict": True,
    }
    run_process(*arguments(again))
    found = json.loads((tmp_path / "again" / "eval_results.json").read_text())
    assert found["eval_loss"] == pytest.approx(scores["eval_loss"], abs=1e-6)
    lines = (tmp_path / "again" / "test_predictions.tsv").read_text()
    predictor = Predictor.load(str(folder), {"one": str(out / "adapter")})
    texts = (tiny_data / "test.tsv").read_text().splitlines()[1:]
    labels = [a["label"] for a in predictor("one", texts)]
    assert labels == [row.split("\t")[1] for row in lines.splitlines()[1:]]


def test_words_are_tagged(folder, tiny_ner, tmp_path, tag):
    tag(
        data_dir=tiny_ner,
        init_checkpoint=folder,
        output_dir=tmp_path / "out",
        do_train=True,
        do_eval=True,
        max_seq_length=40,
        train_batch_size=8,
        learning_rate=1e-2,
        num_train_epochs=12,
        adapter_size=8,
        cpu_lanes=1,
    )
    scores = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert scores["eval_f1"] > 0.5


def test_questions_are_learned(folder, tiny_squad, tmp_path, answer):
    answer(
        train_file=tiny_squad / "v1.json",
        predict_file=tiny_squad / "v1.json",
        init_checkpoint=folder,
        output_dir=tmp_path / "out",
        do_train=True,
        do_eval=True,
        max_seq_length=40,
        max_query_length=12,
        doc_stride=8,
        train_batch_size=8,
        learning_rate=1e-2,
        num_train_epochs=20,
        tuning_method="full",
        cpu_lanes=1,
    )
    scores = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert scores["eval_f1"] > 50


def test_masked_tokens_are_learned_with_the_pretrained_head(
    folder, tiny_texts, tmp_path, caplog
):
    with entry_point(run_mlm) as model_text:
        model_text(
            train_file=tiny_texts / "train.txt",
            eval_file=tiny_texts / "eval.txt",
            init_checkpoint=folder,
            output_dir=tmp_path / "out",
            do_train=True,
            do_eval=True,
            max_seq_length=40,
            train_batch_size=8,
            num_train_epochs=2,
            whole_word_masking=True,
            adapter_size=4,
            cpu_lanes=1,
        )
    for name in ("transform/dense/kernel", "output_bias"):
        assert f"cls/predictions/{name}: taken from" in caplog.text
    scores = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert scores["eval_perplexity"] > 1


@pytest.fixture
def adapter(folder, tmp_path):
    """An adapter upon the RoBERTa, with random values."""
    place = tmp_path / "library" / "one"
    task = restore_task(CLASSIFICATION, {}, "test")
    make_artifact(place, folder, "lora(rank=2)", task)
    return place


def test_no_model_with_text_in_is_made(folder, adapter, tmp_path):
    with entry_point(export_model) as export:
        with pytest.raises(UserError, match="a RoBERTa, but an exported model"):
            export(
                init_checkpoint=folder,
                adapter=adapter,
                output_dir=tmp_path / "exported",
            )


def test_other_programs_adapters_are_neither_read_nor_written(
    folder, adapter, golden_dir, tmp_path
):
    library = AdapterLibrary(str(tmp_path / "other"), create=True)
    with pytest.raises(UserError, match="is of a RoBERTa, but other programs"):
        adapter_library.import_adapter(
            library,
            str(golden_dir / "exchange" / "peft" / "lora"),
            "theirs",
            str(folder),
        )
    library.add(str(adapter), "one")
    with pytest.raises(UserError, match="is of a RoBERTa, but other programs"):
        adapter_library.export_adapter(
            library, "one", str(tmp_path / "theirs"), "peft"
        )


@pytest.mark.parametrize("to", ["google", "hugging_face"])
def test_no_other_form_is_written(folder, tmp_path, monkeypatch, to):
    command = ["convert", f"--init_checkpoint={folder}", f"--to={to}"]
    command.append(f"--output_dir={tmp_path / 'new'}")
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(UserError, match="a RoBERTa, which cannot be written"):
        convert_checkpoint.main()
    assert not (tmp_path / "new").exists()


def test_no_adapter_is_merged(folder, adapter, tmp_path, monkeypatch):
    command = ["merge", f"--init_checkpoint={folder}", f"--adapter={adapter}"]
    command.append(f"--output_dir={tmp_path / 'new'}")
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(UserError, match="a RoBERTa, which cannot be written"):
        merge_adapter.main()
    assert not (tmp_path / "new").exists()


def test_an_adapter_of_another_tokenizer_is_refused(folder, adapter):
    def swap(tokenizer):
        tokenizer["pre_tokenizer"]["add_prefix_space"] = True

    change(folder / "tokenizer.json", swap)
    with pytest.raises(UserError, match="was trained with another vocabulary"):
        Predictor.load(str(folder), {"one": str(adapter)})


def test_how_texts_are_cut_makes_no_other_tokenizer(folder, adapter):
    def cut(tokenizer):
        tokenizer["truncation"] = {
            "direction": "Right",
            "max_length": 3,
            "strategy": "LongestFirst",
            "stride": 0,
        }

    change(folder / "tokenizer.json", cut)
    Predictor.load(str(folder), {"one": str(adapter)})


@pytest.mark.parametrize(
    "length, message",
    [
        (41, "is 41, but the model has only 40 positions"),
        (3, "is 3, but the task needs room for 4 tokens"),
    ],
)
def test_a_length_that_does_not_fit(flags, classify, length, message):
    with pytest.raises(UserError, match=message):
        classify(**{**flags, "max_seq_length": length})


def test_what_was_trained_before_there_were_robertas_is_known(tiny_bert):
    _, config, base = read_base(tiny_bert)
    tokenizer = open_tokenizer(tiny_bert)
    described = dataclasses.asdict(config)
    for name in ("layer_norm_eps", "first_position"):
        del described[name]
        assert f"bert_config.{name}" in run_record.LATER
    description = {
        "base": base.describe(),
        "tokenizer": tokenizer.describe(),
        "bert_config": described,
    }
    pretrained.check_same_model(description, "x", base, config, tokenizer)
    other = dataclasses.replace(config, layer_norm_eps=1e-5)
    with pytest.raises(UserError, match="layer_norm_eps 1e-12, but .* 1e-05"):
        pretrained.check_same_model(description, "x", base, other, tokenizer)
