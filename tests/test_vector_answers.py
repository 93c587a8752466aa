"""Adapters of vectors: answered in mixed batches, exported, served."""

import json

import numpy as np
import pytest
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.errors import UserError
from adapter_bert.serving import saved_model
from adapter_bert.serving.embeddings import VectorForm, embed
from adapter_bert.serving.exported import ExportedModel, Row
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.library import AdapterLibrary
from adapter_bert.serving.live_library import LiveLibrary
from adapter_bert.serving.predictor import Predictor
from adapter_bert.serving.shelf import RequestRow as AskedRow
from adapter_bert.serving.text_model import TextModel
from adapter_bert.serving.trained_task import load_task

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
    "other": (
        "lora(rank=2)",
        {"name": "vectors", "pooling": "mean", "normalize": False},
    ),
    "label": ("houlsby(size=3)", CLASSIFICATION),
}


@pytest.fixture(scope="module")
def bert(tiny_bert):
    return FrozenBert.open(str(tiny_bert))


@pytest.fixture(scope="module")
def folders(tiny_bert, tmp_path_factory):
    place = tmp_path_factory.mktemp("vectors")
    for seed, (name, (method, described)) in enumerate(TASKS.items()):
        make_artifact(place / name, tiny_bert, method, None, described, seed)
    return {name: str(place / name) for name in TASKS}


@pytest.fixture(scope="module")
def tasks(bert, folders):
    return {n: load_task(bert, folder, None) for n, folder in folders.items()}


@pytest.fixture(scope="module")
def expected(bert, tasks):
    """Each task's vectors, computed without a head or other tasks."""
    forms = {"query": ("mean", True), "document": ("cls", False)}
    return {
        name: embed(
            bert, TEXTS, task=tasks[name], pooling=pooling, normalize=normalize
        )
        for name, (pooling, normalize) in {
            **forms,
            "other": ("mean", False),
        }.items()
    }


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_vectors_alone_and_in_a_mixed_batch(bert, folders, expected):
    """Rows of two poolings and of a classification are one batch."""
    predictor = Predictor(bert)
    for name, folder in folders.items():
        predictor.add(folder, name)
    alone = predictor("query", TEXTS)
    close([answer.vector for answer in alone], expected["query"])
    assert list(alone[0]) == ["vector"]
    names = [name for name in TASKS for _ in TEXTS]
    answers = predictor.ask(list(zip(names, TEXTS * len(TASKS))))
    for name, values in expected.items():
        found = [a.vector for a, n in zip(answers, names) if n == name]
        close(found, values)
    labels = [a.label for a, n in zip(answers, names) if n == "label"]
    assert labels == [a.label for a in predictor("label", TEXTS)]
    together = predictor(list(TASKS), TEXTS)
    close([row["document"].vector for row in together], expected["document"])


@pytest.mark.newer_stack
def test_the_adapter_says_how_vectors_are_made(bert, tasks, expected):
    for name, values in expected.items():
        close(embed(bert, TEXTS, task=tasks[name]), values)
    document = tasks["document"]
    cut = embed(bert, TEXTS, task=document, size=8)
    close(cut, expected["document"][:, :8])
    unit = embed(
        bert, TEXTS, task=document, pooling="trained", size=4, normalize=True
    )
    close(np.linalg.norm(unit, axis=1), 1)
    assert embed(bert, TEXTS, task=document, size=16).shape == (4, 16)
    # Any size of what was not trained for vectors.
    assert embed(bert, TEXTS, task=tasks["label"], size=5).shape == (4, 5)
    for name, how, message in (
        ("document", {"size": 5}, "the adapter was trained for 4, 8, 16"),
        ("query", {"size": 8}, "the adapter was trained for 16"),
        ("label", {"pooling": "trained"}, "neither the adapter nor the BERT's"),
    ):
        with pytest.raises(UserError, match=message):
            embed(bert, TEXTS, task=tasks[name], **how)


@pytest.mark.newer_stack
def test_an_exported_model_gives_vectors(bert, tasks, expected, tmp_path):
    """Among the answers, and by the signature of vectors."""
    with pytest.raises(UserError, match="query has vectors of another form"):
        TextModel(
            bert,
            {name: tasks[name] for name in ("query", "document")},
            8,
            form=VectorForm("trained", normalize=None),
        )
    form = VectorForm("mean", normalize=True)
    model = TextModel(bert, tasks, 8, form=form)
    folder = str(tmp_path / "exported")
    saved_model.export(model, bert, tasks, folder)
    exported = ExportedModel(folder)
    rows = [
        Row(text.encode(), b"", name.encode())
        for name in TASKS
        for text in TEXTS
    ]
    answers = exported.answers(rows)
    for number, name in enumerate(TASKS):
        own = answers[number * len(TEXTS) :][: len(TEXTS)]
        found = np.array([answer["vector"] for answer in own])
        if name in expected:
            assert {answer["kind"] for answer in own} == {"vectors"}
            close(found, expected[name])
        else:
            assert not found.any()
    close(exported.vectors(rows[: len(TEXTS)]), expected["query"])


@pytest.mark.newer_stack
def test_a_library_is_asked_for_vectors(bert, folders, expected, tmp_path):
    library = AdapterLibrary(str(tmp_path / "shelf"), create=True)
    library.add(folders["label"], "label")
    served = LiveLibrary(library, Predictor(bert))
    assert "embed" not in served.signatures
    library.add(folders["query"], "query")
    served.look()
    assert served.signatures["embed"]["outputs"]["embedding"]
    rows = [AskedRow(b"query", text.encode()) for text in TEXTS]
    asked = [served.accept(row, kind="embed") for row in rows]
    close(served.vectors(asked), expected["query"])
    answer = served.answer(asked[0], served.compute(asked)[0])
    assert list(answer) == ["adapter", "vector"]
    json.dumps(answer)
    label = AskedRow(b"label", b"the cat")
    both = [*asked, served.accept(label)]
    outputs = served.outputs(both, served.compute(both))
    close([row["vector"] for row in outputs[:-1]], expected["query"])
    assert outputs[-1]["vector"] == [0.0] * 16
    with pytest.raises(UserError, match="the task label gives answers, and no"):
        served.accept(label, kind="embed")
