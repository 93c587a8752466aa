"""Choices in batches: they stay together, and share a loss."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from task_files import PROPERTY
from test_methods import METHOD_TEXTS
from tiny_model import TinyModel

from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Choices, Features, make_batch
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import TASKS
from adapter_bert.tasks.multiple_choice import ChoiceHead

pytestmark = pytest.mark.older_stack


@st.composite
def choices_of(draw):
    count = draw(st.integers(1, 5))
    choices = draw(st.integers(2, 4))
    lengths = draw(
        st.lists(
            st.integers(1, 6),
            min_size=count * choices,
            max_size=count * choices,
        )
    )
    sequences = [
        (list(range(10 * i, 10 * i + n)), [i % 2] * n)
        for i, n in enumerate(lengths)
    ]
    labels = {"label_ids": np.arange(count, dtype=np.int32)}
    pairs = Features.from_rows(sequences, labels)
    return Choices(**vars(pairs), choices=choices), sequences


@PROPERTY
@hypothesis.given(choices_of(), st.data())
def test_a_rows_choices_stay_together_in_its_batch(made, data):
    features, sequences = made
    assert len(features) * features.choices == len(sequences)
    longest = [
        max(
            len(tokens)
            for tokens, _ in sequences[row * features.choices :][
                : features.choices
            ]
        )
        for row in range(len(features))
    ]
    assert features.lengths.tolist() == longest
    rows = np.array(
        data.draw(
            st.lists(st.integers(0, len(features) - 1), min_size=1, max_size=6)
        )
    )
    batch = make_batch(features, rows, None)
    shape = (len(rows), features.choices, max(longest[row] for row in rows))
    for name in ("input_ids", "input_mask", "segment_ids"):
        assert batch[name].shape == shape
    assert batch["label_ids"].tolist() == rows.tolist()
    for place, row in enumerate(rows):
        for choice in range(features.choices):
            tokens, segments = sequences[row * features.choices + choice]
            mask = batch["input_mask"][place, choice].astype(bool)
            assert mask.tolist() == [True] * len(tokens) + [False] * (
                shape[2] - len(tokens)
            )
            for name, values in (
                ("input_ids", tokens),
                ("segment_ids", segments),
            ):
                assert batch[name][place, choice][mask].tolist() == values
                assert not batch[name][place, choice][~mask].any()


@PROPERTY
@hypothesis.given(choices_of())
def test_in_predictions_every_choice_is_a_row(made):
    features, sequences = made
    alone = features.unlabelled()
    assert len(alone) == len(sequences)
    rows = np.arange(len(alone))
    batch = make_batch(alone, rows, None)
    assert batch["input_mask"].sum(axis=1).tolist() == [
        len(tokens) for tokens, _ in sequences
    ]


def test_a_dataset_has_the_shape_of_its_batches():
    features = Choices(
        **vars(
            Features.from_rows(
                [([1, 2], [0, 0])] * 6, {"label_ids": np.zeros(2, np.int32)}
            )
        ),
        choices=3,
    )
    batch = make_batch(features, np.array([0, 1]), 5)
    dataset = input_pipeline.to_dataset(lambda: iter([batch]), features, 5, 2)
    (found,) = dataset
    assert found["input_ids"].shape == (2, 3, 5)


def test_the_loss_is_the_cross_entropy_over_a_rows_choices(tiny_config):
    head = ChoiceHead(
        tiny_config, lambda name, shape, _: tf.zeros(shape), TASKS["copa"].head
    )
    logits = np.array([[1.0, 3.0, 0.0], [2.0, 2.0, 2.0]], np.float32)
    labels = np.array([1, 0], np.int32)
    found = head.loss(
        {"logits": tf.constant(logits.reshape(6, 1))}, {"label_ids": labels}
    )
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        found, -np.log(shares[[0, 1], labels]), rtol=1e-6
    )


@pytest.mark.parametrize("text", METHOD_TEXTS)
def test_every_method_computes_choices_as_rows(tiny_config, text):
    tiny = TinyModel(tiny_config, parse(text))
    expected = tiny.logits()
    rows = dict(tiny.features)
    for name in ("input_ids", "input_mask", "segment_ids"):
        tiny.features[name] = tf.reshape(rows[name], [2, 2, 9])
    np.testing.assert_allclose(tiny.logits(), expected, atol=1e-6)
