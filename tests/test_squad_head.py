"""The head of question answering: its logits, its loss, what it puts out."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from engine_jobs import SQUAD

from adapter_bert.bert.hooks import Context
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.squad import NEVER, SpanHead, best_logits


def make_head(hidden_size, config, n_best_size=4):
    rng = np.random.default_rng(0)
    names = []

    def create(name, shape, initializer):
        names.append((name, shape))
        return tf.constant(rng.normal(size=shape), tf.float32)

    config = dataclasses.replace(config, hidden_size=hidden_size)
    head = SpanHead(n_best_size, config, create)
    assert names == [
        ("cls/squad/output_weights", (2, hidden_size)),
        ("cls/squad/output_bias", (2,)),
    ]
    return head


def make_context(lengths, tokens, training):
    mask = np.arange(tokens) < np.array(lengths)[:, np.newaxis]
    seed = tf.constant([1, 2]) if training else None
    return Context(tf.constant(mask, tf.int32), training, seed)


SEQUENCE = np.random.default_rng(1).normal(size=(2, 7, 6)).astype(np.float32)


def test_logits_are_products_with_the_weights(tiny_config):
    head = make_head(6, tiny_config)
    logits = head(None, SEQUENCE, make_context([7, 7], 7, training=True))
    assert set(logits) == {"start_logits", "end_logits"}
    weights, bias = head.weights.numpy(), head.bias.numpy()
    for number, name in enumerate(("start_logits", "end_logits")):
        expected = np.zeros((2, 7))
        for row in range(2):
            for place in range(7):
                product = SEQUENCE[row, place] @ weights[number]
                expected[row, place] = product + bias[number]
        np.testing.assert_allclose(logits[name], expected, atol=1e-5)


def test_outside_training_the_best_logits_are_put_out(tiny_config):
    head = make_head(6, tiny_config, n_best_size=3)
    trained = head(None, SEQUENCE, make_context([7, 5], 7, training=True))
    best = head.select(trained)
    for side in ("start", "end"):
        logits = trained[f"{side}_logits"].numpy()
        order = np.argsort(-logits, axis=1)[:, :3]
        assert best[f"{side}_indexes"].numpy().tolist() == order.tolist()
        np.testing.assert_array_equal(
            best[f"{side}_logits"], np.take_along_axis(logits, order, axis=1)
        )
    first = [trained[f"{side}_logits"][:, 0] for side in ("start", "end")]
    np.testing.assert_array_equal(best["null_logits"], np.stack(first, axis=1))


def test_the_loss_is_the_mean_of_two_softmax_losses(tiny_config):
    head = make_head(6, tiny_config)
    logits = {
        # Softmax: 0.1, 0.2, 0.7 and 0.25, 0.5, 0.25.
        "start_logits": tf.constant(np.log([[1.0, 2.0, 7.0]]), tf.float32),
        "end_logits": tf.constant(np.log([[1.0, 2.0, 1.0]]), tf.float32),
    }
    for start, end, probability in ((2, 1, 0.35), (0, 0, 0.025)):
        labels = {"start_positions": [start], "end_positions": [end]}
        np.testing.assert_allclose(
            head.loss(logits, labels), [-np.log(probability) / 2], rtol=1e-6
        )


@pytest.mark.parametrize("padded", [8, 20])
def test_padding_neither_wins_nor_changes_the_loss(tiny_config, padded):
    head = make_head(6, tiny_config)
    lengths = [7, 4]
    labels = {"start_positions": [6, 0], "end_positions": [2, 3]}
    # What stands at the padding would win.
    weights = head.weights.numpy()
    filling = 20 * weights.sum(axis=0)
    assert (weights @ filling > np.abs(SEQUENCE @ weights.T).max() + 2).all()
    sequence = np.tile(filling, (2, padded, 1))
    for row, length in enumerate(lengths):
        sequence[row, :length] = SEQUENCE[row, :length]

    def outputs(tokens):
        part = sequence[:, :tokens]
        trained = head(None, part, make_context(lengths, tokens, True))
        return {**head.select(trained), "loss": head.loss(trained, labels)}

    short, long = outputs(7), outputs(padded)
    for name in short:
        np.testing.assert_allclose(
            long[name], short[name], rtol=1e-5, err_msg=name
        )
    for side in ("start", "end"):
        assert sorted(long[f"{side}_indexes"][1].numpy()) == [0, 1, 2, 3]


def test_a_window_shorter_than_the_list_is_filled_up():
    logits = tf.constant([[[1.0, 3.0, 2.0]], [[6.0, 5.0, 7.0]]])
    best = best_logits(logits, 5)
    never = [np.float32(NEVER)] * 2
    assert best["start_logits"].numpy().tolist() == [[3.0, 2.0, 1.0, *never]]
    assert best["end_logits"].numpy().tolist() == [[7.0, 6.0, 5.0, *never]]
    starts, ends = (
        best[f"{side}_indexes"].numpy()[0].tolist() for side in ("start", "end")
    )
    assert starts[:3] == [1, 2, 0]
    assert ends[:3] == [2, 0, 1]
    # The rest is beyond the window.
    assert min(starts[3:] + ends[3:]) >= 3
    assert best["null_logits"].numpy().tolist() == [[1.0, 6.0]]


def test_of_equal_logits_the_first_places_are_kept():
    logits = tf.constant([[[1.0, 2.0, 2.0, 1.0, 1.0]], [[0.0] * 5]])
    best = best_logits(logits, 3)
    assert best["start_indexes"].numpy().tolist() == [[1, 2, 0]]
    assert best["end_indexes"].numpy().tolist() == [[0, 1, 2]]


# V = 30 words, P = 32, D = 16, I = 32, L = 2: without the pooler's 272.
EMBEDDINGS = (30 + 32 + 2) * 16
LAYER = 4 * (16 * 16 + 16) + (16 * 32 + 32) + (32 * 16 + 16)
LAYER_NORM = 2 * 16
HEAD = 2 * 16 + 2
BERT = EMBEDDINGS + 2 * LAYER + 5 * LAYER_NORM
ADAPTER = 2 * 4 * 16 + 16 + 4


@pytest.mark.parametrize(
    "method,total,trained",
    [
        (
            "houlsby(size=4)",
            BERT + 4 * ADAPTER + HEAD,
            4 * ADAPTER + 5 * LAYER_NORM + HEAD,
        ),
        ("full", BERT + HEAD, BERT + HEAD),
        ("top_layers(k=1)", BERT + HEAD, LAYER + 2 * LAYER_NORM + HEAD),
        ("layernorm", BERT + HEAD, 5 * LAYER_NORM + HEAD),
        ("head", BERT + HEAD, HEAD),
    ],
)
def test_there_is_no_pooler_whatever_is_trained(
    tiny_config, method, total, trained
):
    table = task_model.list_parameters(
        tiny_config, parse(method), SQUAD.build_head
    )
    assert not [p.name for p in table.parameters if "pooler" in p.name]
    assert table.total_count == total
    assert table.trained_count == trained
    head = {p.name: p.shape for p in table.trained if p.group == "head"}
    assert head == {
        "cls/squad/output_weights": (2, 16),
        "cls/squad/output_bias": (2,),
    }


def test_tasks_have_one_kind_of_head_if_as_many_logits_are_kept():
    other = dataclasses.replace(SQUAD, doc_stride=7, max_answer_length=9)
    assert other.head_kind == SQUAD.head_kind
    assert hash(other.head_kind) == hash(SQUAD.head_kind)
    more = dataclasses.replace(SQUAD, n_best_size=6)
    assert more.head_kind != SQUAD.head_kind
