"""BERT's config, its activations, and what its layers promise."""

import json

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import functional
import modeling
from errors import UserError
from hooks import Context, Hooks


@pytest.fixture
def bert(tiny_config):
    return modeling.Bert(tiny_config, modeling.create_variable, Hooks())


def encode(bert, ids, mask):
    context = Context(tf.constant(mask))
    return bert(tf.constant(ids), tf.zeros_like(ids), context).sequence_output


def test_padding_does_not_change_tokens(bert):
    """So a row gives the same whatever batch it is in."""
    short = encode(bert, [[2, 5, 6, 3]], [[1, 1, 1, 1]])
    padded = encode(bert, [[2, 5, 6, 3, 0, 0]], [[1, 1, 1, 1, 0, 0]])
    np.testing.assert_allclose(padded[:, :4], short, atol=1e-5)


def test_every_position_is_seen_by_every_other(bert):
    ids = [[2, 5, 6, 3]]
    other = [[2, 5, 7, 3]]
    mask = [[1, 1, 1, 1]]
    difference = np.abs(encode(bert, ids, mask) - encode(bert, other, mask))
    assert (difference.max(axis=-1) > 1e-6).all()


def test_layer_norm_has_mean_zero_and_deviation_one():
    layer_norm = modeling.LayerNorm("x", 64, modeling.create_variable, Hooks())
    x = tf.random.stateless_normal([5, 64], [1, 2]) * 7 + 3
    y = layer_norm(x, Context(tf.ones([5, 1], tf.int32))).numpy()
    np.testing.assert_allclose(y.mean(axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(y.std(axis=-1), 1, atol=1e-5)


def test_gelu_is_googles_or_hugging_faces_as_the_config_says(
    tmp_path, tiny_config
):
    sizes = vars(tiny_config)
    for extra, expected in (
        ({}, "gelu"),
        ({"model_type": "bert"}, "gelu_erf"),
        ({"model_type": "bert", "hidden_act": "gelu_new"}, "gelu_new"),
    ):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**sizes, **extra}))
        config = modeling.BertConfig.from_json_file(str(path))
        assert config.hidden_act == expected
    x = tf.constant([1.0])
    # Phi(1) = 0.841345; the approximation is 0.841192.
    assert abs(functional.activation("gelu_erf")(x)[0] - 0.841345) < 1e-6
    assert abs(functional.activation("gelu")(x)[0] - 0.841192) < 1e-6


@pytest.mark.parametrize(
    "change,words",
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": 16.5}, "hidden_size is 16.5"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 15}, "not a multiple"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"hidden_act": "sine"}, "unknown activation 'sine'"),
        ({"hidden_dropout_prob": 1}, "_prob is 1, .* number from 0 to 0.99"),
        ({"hidden_dropout_prob": 0.995}, "hidden_dropout_prob is 0.995"),
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob is nan"),
        ({"attention_probs_dropout_prob": -0.1}, "_dropout_prob is -0.1"),
        ({"attention_probs_dropout_prob": "x"}, "attention_probs"),
        ({"initializer_range": -1}, "initializer_range is -1"),
        ({"model_type": "distilbert"}, "model_type is 'distilbert'"),
        ({"layer_norm_eps": 0}, "layer_norm_eps is 0, expected a number above"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps is 'x'"),
        (
            {"model_type": "roberta", "pad_token_id": None},
            "pad_token_id is None, expected the id",
        ),
        (
            {"model_type": "roberta", "pad_token_id": 31},
            "first_position is 32, expected a whole number from 0 to 31",
        ),
        ({"position_embedding_type": "relative"}, "position_embedding_type"),
    ],
)
def test_a_config_that_is_not_bert_is_refused(
    tmp_path, tiny_config, change, words
):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**vars(tiny_config), **change}))
    with pytest.raises(UserError, match=words):
        modeling.BertConfig.from_json_file(str(path))


def test_a_config_without_a_size_names_it(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"vocab_size": 3, "hidden_size": 4}')
    with pytest.raises(UserError, match="lacks num_hidden_layers"):
        modeling.BertConfig.from_json_file(str(path))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(place=st.floats(0, 0.999), byte=st.binary(max_size=3))
def test_a_spoiled_config_is_a_config_or_one_line(
    tmp_path_factory, tiny_config, place, byte
):
    content = json.dumps(vars(tiny_config)).encode()
    at = int(len(content) * place)
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_bytes(content[:at] + byte + content[at + 1 :])
    try:
        modeling.BertConfig.from_json_file(str(path))
    except UserError as error:
        assert "\n" not in str(error)
