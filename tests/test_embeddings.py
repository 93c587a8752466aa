"""Vectors of texts: equal to recorded hidden states, alike in any batch."""

import numpy as np
import pytest
import refusals
from conftest import trained_task
from numpy.testing import assert_allclose, assert_array_equal
from test_golden_model import Recorded
from tiny_artifacts import make_artifact

from adapter_bert.answering.embeddings import (
    Embedder,
    EmbeddingModel,
    VectorForm,
    embed,
    vector_function,
)
from adapter_bert.methods.houlsby import Houlsby

ROWS = ["the cat sat", ("a dog", "on the mat"), "", "the mat " * 40, "a cat"]


def test_texts_with_another_prompt_have_the_same_graph(bert):
    first, second = (
        vector_function(bert, None, VectorForm(prompt=prompt))
        for prompt in ("the", "a")
    )
    assert first is second


def test_golden_hidden_states(golden_dir):
    recorded = Recorded(golden_dir / "adapter_bert_tiny", "model.ckpt-0")
    layers = [recorded.arrays[f"layer_{n}"] for n in range(3)]
    mask = recorded.arrays["input_mask"][..., np.newaxis]
    states = np.concatenate([layers[-1], layers[0]], axis=-1)
    mean = (states * mask).sum(axis=1) / mask.sum(axis=1)
    length = np.linalg.norm(mean, axis=-1, keepdims=True)
    for form, expected in (
        (VectorForm("tokens", (-1, 0)), states),
        (VectorForm("cls", (-1, 0)), states[:, 0]),
        (VectorForm("mean", (2, -3)), mean),
        (VectorForm("mean", (-1, 0), normalize=True), mean / length),
    ):
        model = EmbeddingModel(
            recorded.config,
            Houlsby(recorded.training["adapter_size"]),
            form,
            lambda name, *_: recorded.variables[name],
        )
        vectors = model(recorded.features, recorded.context)["vectors"]
        assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "method", ["houlsby(size=4)", "prefix(length=3)", "top_layers(k=1)"]
)
def test_adapter_changes_vectors_alike_in_any_batch(
    bert, tiny_bert, tmp_path, method
):
    make_artifact(tmp_path / "adapter", tiny_bert, method)
    task = trained_task(bert, tmp_path / "adapter")
    alone = [embed(bert, [row], task=task, pooling="mean") for row in ROWS]
    together = embed(bert, ROWS, task=task, batch_size=2)
    assert (together.dtype, together.shape) == (np.float32, (5, 16))
    assert_allclose(together, np.concatenate(alone), atol=1e-6)
    without = embed(bert, ROWS, max_seq_length=24)
    assert np.abs(together - without).max() > 0.01


@pytest.mark.newer_stack
def test_tokens_have_vectors(bert):
    of_tokens = embed(bert, ROWS, pooling="tokens", layers=(-1, -2))
    first = embed(bert, ROWS, pooling="cls", layers=(-1, -2))
    mean = embed(bert, ROWS, layers=(-1, -2))
    assert of_tokens[0].tokens == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert of_tokens[2].tokens == ["[CLS]", "[SEP]"]
    assert of_tokens[1].tokens.count("[SEP]") == 2
    for number, (tokens, vectors) in enumerate(of_tokens):
        assert vectors.shape == (len(tokens), 32)
        assert_array_equal(vectors[0], first[number])
        assert_allclose(vectors.mean(0), mean[number], atol=1e-6)


@pytest.mark.newer_stack
def test_no_rows_and_many(bert):
    assert embed(bert, []).shape == (0, 16)
    assert embed(bert, [], pooling="tokens") == []
    embedder = Embedder(bert, max_seq_length=8)
    rows = (ROWS[n % 5] for n in range(1500))
    parts = list(embedder.stream(rows))
    assert [len(part) for part in parts] == [1024, 476]
    assert embedder.cut_rows == 300
    assert_allclose(parts[1][4], parts[0][3], atol=1e-6)
    rows = ["a cat"] * 1500 + ["\ud800"]
    refusals.check(lambda: list(embedder.stream(rows)), "row 1501: the text")


@pytest.mark.newer_stack
@refusals.table(
    {
        "a pooling": ({"pooling": "max"}, "'max'", "cls, mean"),
        "a lower layer": ({"layers": [-1, -3]}, "name -3", "the model has 2"),
        "a higher layer": ({"layers": [2]}, "expected -2 to -1, or 0 to 1"),
        "no rows at once": ({"batch_size": 0}, "--predict_batch_size is 0"),
        "no room": ({"max_seq_length": 3}, "--max_seq_length is 3", "4 to"),
        "no position": ({"max_seq_length": 99}, "--max_seq_length is 99"),
        "three texts": ({"rows": ["a", ("a", "b", "c")]}, "row 2", "3 texts"),
        "words": ({"rows": [["a", "b"]]}, "found a tuple, expected a text"),
    }
)
def test_wrong_arguments(bert, call, parts):
    refusals.check(lambda: embed(bert, **{"rows": ["a"], **call}), *parts)
