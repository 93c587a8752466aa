"""BERT's config: sizes and activations, and what it refuses."""

import json

import pytest
import refusals
from conftest import ROOT, write_json
from hypothesis import given
from hypothesis import strategies as st

from adapter_bert.bert.config import BertConfig
from adapter_bert.errors import UserError


@pytest.fixture
def read(tmp_path, tiny_config):
    """Reads a file of the tiny config with some changes."""

    def read(change):
        path = tmp_path / "config.json"
        write_json(path, {**vars(tiny_config), **change})
        return BertConfig.from_json_file(str(path))

    return read


@pytest.mark.parametrize(
    "change, expected",
    [
        ({}, "gelu"),
        ({"model_type": "bert"}, "gelu_erf"),
        ({"model_type": "bert", "hidden_act": "gelu_new"}, "gelu_new"),
    ],
)
def test_gelu_is_googles_or_hugging_faces_as_the_config_says(
    read, change, expected
):
    assert read(change).hidden_act == expected


@pytest.mark.parametrize(
    "change, parts",
    [
        ({"hidden_size": 0}, ["hidden_size is 0"]),
        ({"hidden_size": True}, ["hidden_size is True"]),
        ({"hidden_size": 15}, ["not a multiple"]),
        ({"num_hidden_layers": 1001}, ["from 1 to 1000"]),
        ({"vocab_size": 10**7 + 1}, ["from 1 to 10000000"]),
        ({"hidden_act": "sine"}, ["'sine'"]),
        ({"hidden_dropout_prob": 1}, ["_prob is 1", "from 0 to 0.99"]),
        ({"hidden_dropout_prob": float("nan")}, ["dropout_prob is nan"]),
        ({"attention_probs_dropout_prob": -0.1}, ["_dropout_prob is -0.1"]),
        ({"attention_probs_dropout_prob": "x"}, ["attention_probs"]),
        ({"initializer_range": -1}, ["initializer_range is -1"]),
        ({"model_type": "mobilebert"}, ["'mobilebert'"]),
        ({"layer_norm_eps": 0}, ["layer_norm_eps is 0", "above 0"]),
        ({"layer_norm_eps": 0.011}, ["layer_norm_eps", "at most 0.01"]),
        (
            {"model_type": "roberta", "pad_token_id": None},
            ["pad_token_id is None"],
        ),
        (
            {"model_type": "roberta", "pad_token_id": 31},
            ["first_position is 32", "from 0 to 31"],
        ),
        ({"position_embedding_type": "x"}, ["position_embedding_type"]),
        ({"is_decoder": True}, ["is_decoder is True", "False"]),
    ],
)
def test_a_config_that_is_not_bert_is_refused(read, change, parts):
    refusals.check(lambda: read(change), *parts)


def test_null_is_what_is_not_set(read, tiny_config):
    unset = {"is_decoder": None, "position_embedding_type": None}
    assert read(unset) == tiny_config


def test_defaults_are_those_of_bert_base():
    path = ROOT / "configs" / "bert_base_uncased.json"
    assert BertConfig.from_json_file(str(path)) == BertConfig(
        vocab_size=30522, layer_norm_eps=1e-12, first_position=0
    )


def test_a_config_without_a_size_names_it(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"vocab_size": 3, "hidden_size": 4}')
    refusals.check(
        lambda: BertConfig.from_json_file(str(path)), "lacks num_hidden_layers"
    )


@given(place=st.floats(0, 0.999), byte=st.binary(max_size=3))
def test_a_spoiled_config_is_a_config_or_one_line(
    tmp_path_factory, tiny_config, place, byte
):
    content = json.dumps(vars(tiny_config)).encode()
    at = int(len(content) * place)
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_bytes(content[:at] + byte + content[at + 1 :])
    try:
        BertConfig.from_json_file(str(path))
    except UserError as error:
        assert "\n" not in str(error)
