"""Modules of TF-Hub and Kaggle as the pretrained BERT."""

# Fixtures are imported.
# ruff: noqa: F401, F811

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    TINY_WORDS,
    open_bert,
    open_checkpoint,
    write_json,
    write_lines,
)
from hub_modules import write_tf1, write_tf2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import limited
from roberta_folders import open_tokenizer
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from test_masked_lm import random_head
from test_setup import experiment
from test_sources import check_values, refuses

from adapter_bert.bert import encoder
from adapter_bert.checkpoints import hub_module, sources
from adapter_bert.checkpoints.weights import identify
from adapter_bert.errors import UserError
from adapter_bert.training.setup import open_model

# test_sources.py reads modules with both TensorFlows.
pytestmark = pytest.mark.newer_stack

HEADS = 2
CASED = [*TINY_WORDS[:-1], "The"]
WRITERS = {
    "tf1": write_tf1,
    "tf2": write_tf2,
    "tf2, version 1": partial(write_tf2, generation=1),
}


@pytest.fixture(params=WRITERS)
def write(request):
    """Writes a module of each kind in turn."""
    return WRITERS[request.param]


@pytest.fixture
def words(tmp_path):
    """Writes a vocabulary with a name of its own."""

    def write_words(words=TINY_WORDS):
        path = tmp_path / "words" / "my_vocab.txt"
        path.parent.mkdir(exist_ok=True)
        write_lines(path, words)
        return path

    return write_words


@pytest.fixture
def tf2(tmp_path, words, tiny_weights):
    """Writes a module of TensorFlow 2, by default of the tiny BERT."""

    def write_module(values=tiny_weights, heads=HEADS, **options):
        folder = tmp_path / "module"
        return str(write_tf2(folder, words(), values, heads, **options))

    return write_module


@pytest.fixture
def masked_lm(tiny_weights, tiny_config):
    """The tiny BERT with its masked language model's head."""
    return {**tiny_weights, **random_head(tiny_config)}


def test_a_module_is_the_bert_that_it_was_made_of(
    write, words, tmp_path, masked_lm, tiny_config
):
    folder = write(tmp_path / "small_bert" / "1", words(), masked_lm, HEADS)
    opened = open_checkpoint(folder)
    assert set(opened.weights.shapes) == set(masked_lm)
    check_values(opened.weights, masked_lm)
    assert opened.path == opened.weights.source
    assert sources.read_config(opened) == tiny_config
    # By its file as well, as a finished run's folder names it.
    again = open_checkpoint(opened.path)
    assert again.weights.shapes == opened.weights.shapes
    base = identify(again.weights, encoder.list_variables(tiny_config))
    assert base.describe()["name"] == "small_bert"


@pytest.mark.parametrize("lower", [True, False])
def test_a_run_gets_sizes_vocabulary_and_case(
    write,
    words,
    tmp_path,
    tiny_weights,
    tiny_config,
    tiny_bert,
    experiment,
    lower,
):
    vocabulary = words(TINY_WORDS if lower else CASED)
    folder = write(
        tmp_path / "module", vocabulary, tiny_weights, HEADS, lower=lower
    )
    vocabulary.unlink()
    flags = replace(experiment, init_checkpoint=str(folder), do_lower_case=None)
    model = open_model(flags)
    assert model.config == tiny_config
    assert model.tokenizer.do_lower_case is lower
    assert ("The" in model.tokenizer.vocabulary) is not lower
    expected = open_model(
        replace(experiment, init_checkpoint=str(tiny_bert))
    ).base.fingerprint
    assert model.base.fingerprint == expected
    # What is named goes before.
    named = replace(
        flags,
        vocab_file=str(tiny_bert / "vocab.txt"),
        do_lower_case=True,
        bert_config_file=str(tiny_bert / "config.json"),
    )
    tokenizer = open_model(named).tokenizer
    assert tokenizer.do_lower_case and "out" in tokenizer.vocabulary
    # No shape tells of it.
    config = tmp_path / "config.json"
    write_json(config, {**vars(tiny_config), "num_attention_heads": 4})
    named = replace(named, bert_config_file=str(config))
    refusals.check(
        lambda: open_model(named),
        "4 attention heads, but ",
        " has 2; leav",
    )


def test_the_module_says_the_case_where_words_do_not(
    write, words, tmp_path, tiny_weights
):
    """As of a script without capital letters."""
    signs = [*TINY_WORDS[:5], *map(chr, range(0x4E00, 0x4E19))]
    folder = write(
        tmp_path / "module", words(signs), tiny_weights, HEADS, lower=False
    )
    assert open_tokenizer(folder).do_lower_case is False


@pytest.mark.parametrize("lower", [True, False])
def test_a_module_that_contradicts_its_vocabulary_can_be_used(
    words, tmp_path, tiny_weights, lower
):
    vocabulary = words(CASED if lower else TINY_WORDS)
    folder = write_tf2(
        tmp_path / "module", vocabulary, tiny_weights, HEADS, lower=lower
    )
    right = str(not lower).lower()
    with pytest.raises(
        UserError,
        match=f"{lower}, but the vocab.*; pass --do_lower_case={right}",
    ):
        open_tokenizer(folder)
    open_tokenizer(folder, do_lower_case=not lower)
    # Each adapter says its own.
    bert = open_bert(folder)
    assert bert.tokenizer(not lower).do_lower_case is not lower


@pytest.fixture
def tf1(tmp_path, words, tiny_weights):
    """A module of TensorFlow 1; changes the description of its graphs."""
    folder = write_tf1(tmp_path / "module", words(), tiny_weights, HEADS)
    path = folder / "saved_model.pb"

    def change(edit):
        model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
        for graph in model.meta_graphs:
            edit(graph)
        path.write_bytes(model.SerializeToString())
        return open_checkpoint(folder)

    return change


def test_tf1_without_its_attention_needs_a_config(tf1, tiny_bert):
    opened = tf1(lambda graph: graph.graph_def.ClearField("node"))
    refusals.check(
        lambda: sources.read_config(opened),
        "lies next to ",
        " --bert_config_file",
    )
    sources.read_config(opened, str(tiny_bert / "config.json"))


@pytest.mark.parametrize("name", ["scale", "case"])
@pytest.mark.parametrize("sizes", [[2**40], [2**31, 2], [-1]])
def test_a_constant_of_terabytes_is_damage(tf1, name, sizes):
    """A single value stands for all of them, however many it claims."""

    def edit(graph):
        output = graph.signature_def["tokenization_info"].outputs[
            "do_lower_case"
        ]
        wanted = {
            "scale": hub_module.TF1_SCALE,
            "case": output.name.split(":")[0],
        }[name]
        [node] = [n for n in graph.graph_def.node if n.name == wanted]
        for size in sizes:
            node.attr["value"].tensor.tensor_shape.dim.add(size=size)

    with limited(more=2**30), pytest.raises(UserError, match="no single numb"):
        tf1(edit)


def test_a_vocabulary_outside_of_the_assets_is_refused(tf1):
    def edit(graph):
        [packed] = graph.collection_def["saved_model_assets"].any_list.value
        asset = meta_graph_pb2.AssetFileDef()
        packed.Unpack(asset)
        asset.filename = "../../vocab.txt"
        packed.Pack(asset)

    refusals.check(lambda: tf1(edit), "vocabulary is ../../vocab.txt")


def test_a_module_without_a_vocabulary_asks_for_one(tmp_path, tiny_weights):
    folder = write_tf2(tmp_path / "module", None, tiny_weights, HEADS)
    refusals.check(
        lambda: open_tokenizer(folder),
        "no vocab.txt ",
        "next to ",
        "vocab_fil",
    )


@pytest.mark.parametrize(
    "name, message",
    [
        ("embedding_projection/kernel", "{} is no part of BERT"),
        ("transformer/layer_0/gate/kernel", "{} is no part of BERT"),
        ("encoder/layer_1/self_attention/heads/kernel", "{} is no part of BER"),
        ("second/pooler_transform/bias", "holds bert/pooler/dense/bias twice"),
    ],
)
def test_other_models_are_refused_by_what_they_have(tf2, name, message):
    more = [(name, np.ones((2, 2), np.float32))]
    with pytest.raises(UserError, match=message.format(name)):
        open_checkpoint(tf2(more=more))


def test_what_has_no_part_in_bert_is_left_out(tf2, tiny_weights):
    more = [("predictions/transform/logits/bias", np.ones(2, np.float32))]
    weights = open_checkpoint(tf2(more=more)).weights
    assert set(weights.shapes) == set(tiny_weights)


@pytest.mark.parametrize(
    "lacking",
    ["bert/embeddings/position_embeddings", "attention/self/query/kernel"],
)
def test_a_module_without_a_part_is_refused(tf2, tiny_weights, lacking):
    part = {k: v for k, v in tiny_weights.items() if lacking not in k}
    refusals.check(lambda: open_checkpoint(tf2(part)), lacking)


def test_the_first_version_has_googles_shapes(tf2, tiny_weights, tiny_bert):
    """Which do not tell the number of heads."""
    opened = open_checkpoint(tf2(heads=None, generation=1))
    check_values(opened.weights, tiny_weights)
    refusals.check(
        lambda: sources.read_config(opened),
        "lies next to ",
        " --bert_config_file",
    )
    sources.read_config(opened, str(tiny_bert / "config.json"))


def test_matrices_of_other_shapes_are_refused(tf2, tiny_weights):
    name = "bert/encoder/layer_0/attention/self/query/kernel"
    part = {k: v for k, v in tiny_weights.items() if k != name}
    odd = tiny_weights[name].reshape(-1)
    more = [("transformer/layer_0/self_attention/query/kernel", odd)]
    refuses(tf2(part, more=more), "shape [256], expected [hidden")


def test_the_pooler_of_a_pretraining_is_the_trained_one(tf2, tiny_weights):
    """BERT's own, which is there too, was left as it began."""
    pooler = "bert/pooler/dense/"
    trained = {k: 2 * v + 1 for k, v in tiny_weights.items() if pooler in k}
    scope = "next_sentence/pooler_dense/"
    more = [(k.replace(pooler, scope), v) for k, v in trained.items()]
    weights = open_checkpoint(tf2(more=more)).weights
    check_values(weights, trained)


@pytest.mark.parametrize("variables", [[], [("dense/kernel", np.ones(2))]])
def test_a_module_of_something_else_is_refused(tf2, tmp_path, variables):
    """As those that only make ids of texts."""
    folder = tf2({}, more=variables)
    refuses(folder, "saved_model.pb: bert/encoder/layer_0")
    (tmp_path / "module" / "variables" / "variables.index").unlink()
    refuses(folder, "holds no BERT: it has no variables")
