"""Adapters of vectors: answered in mixed batches, exported, served."""

import numpy as np
import pytest
import refusals
from conftest import module_fixture
from exported_models import request
from tiny_artifacts import CLASSIFICATION, make_adapters

from adapter_bert.answering.embeddings import embed
from adapter_bert.answering.predictor import Predictor
from adapter_bert.answering.trained_task import load_task
from adapter_bert.server.live_library import LiveLibrary

pytestmark = pytest.mark.newer_stack

TEXTS = ["the cat sat", "a dog ran", "", "the mat " * 40]
TASKS = {
    "query": (
        "houlsby(size=4)",
        {"name": "vectors", "pooling": "mean", "normalize": True},
    ),
    "document": (
        "lora(rank=2)",
        {
            "name": "vectors",
            "pooling": "cls",
            "normalize": False,
            "sizes": [8, 4],
        },
    ),
    "label": ("houlsby(size=3)", CLASSIFICATION),
}


@module_fixture
def folders(tiny_bert, tmp_path_factory):
    return make_adapters(tmp_path_factory.mktemp("made"), tiny_bert, TASKS)


@module_fixture
def tasks(bert, folders):
    return {n: load_task(bert, folder, None) for n, folder in folders.items()}


@module_fixture
def expected(bert, tasks):
    """Each task's vectors, computed without a head or other tasks."""
    return {
        name: embed(
            bert,
            TEXTS,
            task=tasks[name],
            pooling=about["pooling"],
            normalize=about["normalize"],
        )
        for name, (_, about) in TASKS.items()
        if about["name"] == "vectors"
    }


def close(vectors, expected):
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_the_adapter_says_how_vectors_are_made(bert, tasks, expected):
    def vectors(name, **how):
        return embed(bert, TEXTS, task=tasks[name], **how)

    for name, values in expected.items():
        close(vectors(name), values)
    close(vectors("document", size=8), expected["document"][:, :8])
    unit = vectors("document", pooling="trained", size=4, normalize=True)
    close(np.linalg.norm(unit, axis=1), 1)
    assert vectors("document", size=16).shape == (4, 16)
    # Any size of what was not trained for vectors.
    assert vectors("label", size=5).shape == (4, 5)
    for name, how, message in (
        ("document", {"size": 5}, "the adapter was trained for 4, 8, 16"),
        ("label", {"pooling": "trained"}, "neither the adapter nor the BERT's"),
    ):
        refusals.check(lambda n=name, h=how: vectors(n, **h), message)


def test_a_library_is_asked_for_vectors(bert, folders, expected, shelf):
    shelf.add(folders["label"], "label")
    served = LiveLibrary(shelf, Predictor(bert))
    assert "embed" not in served.signatures
    shelf.add(folders["query"], "query")
    served.look()
    assert served.signatures["embed"]["outputs"]["embedding"]
    rows = [request(b"query", text.encode()) for text in TEXTS]
    questions = [served.accept(row, kind="embed") for row in rows]
    close(served.compute(questions), expected["query"])
    label = request(b"label", b"the cat")
    both = [served.accept(row) for row in (*rows, label)]
    outputs = served.outputs(both, served.compute(both))
    close([row["vector"] for row in outputs[:-1]], expected["query"])
    assert outputs[-1]["vector"] == [0.0] * 16
    refusals.check(
        lambda: served.accept(label, kind="embed"), "label gives answers"
    )
