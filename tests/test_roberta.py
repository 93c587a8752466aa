"""RoBERTa and XLM-R against transformers, and what a run of them does."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import read_json
from numpy.testing import assert_allclose
from roberta_folders import BOTH
from safetensors.numpy import load_file, save_file
from tiny_artifacts import read_base

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Hooks
from adapter_bert.data.tables import Layout
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.masked_lm import MaskedLMHead
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.tasks.text_classification import TextClassification

pytestmark = pytest.mark.newer_stack

TASK = TextClassification("tiny", Layout(0), Layout(0), labels=("a", "b"))


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


def output_of(roberta):
    """The encoder, and its output for what was recorded."""
    create = reader(roberta.opened.weights)
    variables = encoder.declare(roberta.config, pooler=False)
    values = encoder.make_variables(variables, create)
    bert = encoder.Bert(roberta.config, values, Hooks())
    ids, segments, mask = features_of(roberta.values).values()
    return bert, bert(ids, segments, Context(mask))


@BOTH
def test_golden_hidden_states(recorded_roberta, name):
    roberta = recorded_roberta(name)
    assert roberta.config.layer_norm_eps == 1e-5
    assert roberta.config.hidden_act == "gelu_erf"
    assert roberta.config.first_position == 2
    assert (
        roberta.config.max_tokens == 40 == roberta.values["input_ids"].shape[1]
    )
    _, output = output_of(roberta)
    real = roberta.values["input_mask"] > 0
    for computed, expected in (
        (output.embedding_output, "embedding_output"),
        (output.sequence_output, "sequence_output"),
    ):
        assert_allclose(
            computed.numpy()[real], roberta.values[expected][real], atol=1e-5
        )


def test_golden_logits_of_masked_tokens(recorded_roberta):
    roberta = recorded_roberta("roberta")
    head = MaskedLMHead(roberta.config, reader(roberta.opened.weights))
    bert, output = output_of(roberta)
    hidden = output.sequence_output
    context = Context(tf.constant(roberta.values["input_mask"]))
    places = np.tile(roberta.values["places"], (len(hidden), 1))
    logits = head(bert, hidden, context, tf.constant(places), places * 0)
    assert_allclose(logits["logits"], roberta.values["logits"], atol=1e-5)


def test_golden_logits_of_texts(recorded_roberta):
    """A model that transformers have tuned: its head is read as well."""
    roberta = recorded_roberta("xlm-roberta")
    create = reader(roberta.opened.weights)
    model = TaskModel(roberta.config, parse("head"), TASK.build_head, create)
    features = features_of(roberta.values)
    outputs = model(features, Context(features["input_mask"]))
    assert_allclose(outputs["logits"], roberta.values["logits"], atol=1e-5)


def test_a_bare_model_is_the_same_model(roberta_folder):
    path = roberta_folder / "model.safetensors"
    _, config, base = read_base(roberta_folder)
    tensors = load_file(path)
    bare = {
        name[len("roberta.") :]: value
        for name, value in tensors.items()
        if name.startswith("roberta.")
    }
    # transformers write a pooler that was never trained.
    bare["pooler.dense.weight"] = np.zeros([16, 16], np.float32)
    bare["embeddings.position_ids"] = np.arange(42)[np.newaxis]
    save_file(bare, path)
    assert read_base(roberta_folder)[2].fingerprint == base.fingerprint
    assert not any("pooler" in n for n in encoder.list_variables(config))


@pytest.fixture
def flags(roberta_folder, tmp_path):
    """Of a training, but for its data."""
    return {
        "init_checkpoint": roberta_folder,
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


def scores_of(flags):
    return read_json(flags["output_dir"] / "eval_results.json")


@pytest.mark.gate
def test_words_are_tagged(flags, tiny_ner, tag):
    tag(**flags, data_dir=tiny_ner)
    assert scores_of(flags)["eval_f1"] > 0.5


def test_questions_are_learned(flags, tiny_squad, answer):
    del flags["adapter_size"]
    flags.update(num_train_epochs=20, max_query_length=12, doc_stride=8)
    answer(
        **flags,
        train_file=tiny_squad / "v1.json",
        predict_file=tiny_squad / "v1.json",
        tuning_method="full",
    )
    assert scores_of(flags)["eval_f1"] > 50
