"""Tagging and multiple choice in an exported model, next to other tasks."""

import contextlib
import dataclasses
import pathlib

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import module_fixture, open_bert, trained_task
from exported_models import as_rows, request
from prediction_log import PredictionLog
from test_http_api import LIMITS, Server
from test_joint_answers import CLASSIFICATION, TAGS
from tiny_artifacts import make_adapters

from adapter_bert.answering.embeddings import Embedder, VectorForm
from adapter_bert.graph import saved_model
from adapter_bert.graph.exported import ExportedModel
from adapter_bert.graph.text_model import TextModel
from adapter_bert.server import http_api
from adapter_bert.server.shelf import ExportedShelf

pytestmark = [pytest.mark.newer_stack, pytest.mark.gate]

PLAIN = {"name": "custom", "choices": 2, "pairs": False}
COLUMNS = {"columns": ["text", "one", "two"]}
FIELDS = "tags", "tokens", "entity_starts", "entity_texts"
# Method, task, and settings if there are some.
TASKS = {
    "small": ("houlsby(size=3)", CLASSIFICATION),
    "tags": ("lora(rank=4)", TAGS),
    "choice": ("lora(rank=3)", PLAIN, COLUMNS),
    "copa": ("houlsby(size=4)", {"name": "copa", "choices": 2}),
}


@module_fixture
def made(tiny_bert, tmp_path_factory):
    """A model, its BERT and its tasks."""
    bert, place = open_bert(tiny_bert), tmp_path_factory.mktemp("adapters")
    folders = make_adapters(place, tiny_bert, TASKS)
    tasks = {name: trained_task(bert, x) for name, x in folders.items()}
    form = VectorForm("mean")
    return TextModel(bert, tasks, batch_size=5, form=form), bert, tasks


@module_fixture
def model(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    saved_model.export(*made, str(folder))
    return ExportedModel(str(folder))


@module_fixture
def served(model):
    return ExportedShelf(model)


def test_the_outputs_of_a_request_are_as_wide_as_its_rows(served):
    short, long = (
        served.accept(request(b"tags", text)) for text in (b"a cat", b"a " * 9)
    )
    results = served.compute([short, long])
    # Not as many as its batch's longest has.
    assert results[0]["tokens"] == ["a", "cat"]
    [one] = served.outputs([short], results[:1])
    assert one["tokens"] == ["a", "cat"] and len(one["tags"]) == 2
    apart = [*served.compute([short]), *served.compute([long])]

    def widths(questions, results):
        outputs = served.outputs(questions, results)
        return [[len(x[name]) for name in FIELDS] for x in outputs]

    assert widths([short], apart[:1]) == widths([short], results[:1])
    first, last = widths([short, long], apart)
    assert first == last and first[0] == 9
    assert [first, last] == widths([short, long], results)


def test_over_http(model, monkeypatch):
    limits = dataclasses.replace(LIMITS, timeout=60.0)
    # As TensorFlow Serving's clients ask a model with tasks of four choices.
    padded = {"task": "choice", "text": "a", "text_b": ""}
    padded["choices"] = ["b", "b", "", ""]
    with contextlib.closing(Server(limits, model)) as server:
        code, answer = server.ask(None, "GET", "/v1/models/tiny/metadata")
        signatures = answer["metadata"]["signature_def"]["signature_def"]
        inputs = {name: set(one["inputs"]) for name, one in signatures.items()}
        texts = {"text", "text_b", "task"}
        assert inputs["serving_default"] == {*texts, "choices"}
        assert inputs["embed"] == texts
        code, answer = server.ask({"instances": [padded]})
        assert code == 200
        assert answer["predictions"][0]["kind"] == "multiple choice"
        monkeypatch.setattr(http_api, "MOST_WORDS", 3)
        rows = [
            {"task": "tags", "text": "a"},
            {"task": "tags", "text": 5 * "a "},
        ]
        code, answer = server.ask({"instances": rows})
        assert code == 413 and "up to 5 words" in answer["error"]
        assert server.ask({"instances": rows[1:]})[0] == 200
        # A vector needs no choices.
        row = {"instances": [{"task": "choice", "text": "a"}]}
        code, answer = server.ask(row, path="/v1/models/tiny:embed")
        assert code == 200 and len(answer["embeddings"]) == 1


def test_words_of_a_list(served):
    question = served.accept(request(b"tags", (b"the", b"cat\xff")))
    assert question.row.text == b"the cat"


@refusals.table(
    {
        "no choices": (request(b"choice", b"a"), "choice has 2", "has 0"),
        "choices": (request(b"small", b"a", b"", (b"b",)), "has no choices"),
        "a pair": (request(b"tags", b"a", b"b"), "tags reads one text"),
        "a blank": (
            request(b"copa", b"a", b"cause", (b"b", b" ")),
            "'choice2' is empty",
        ),
        "another question": (
            request(b"copa", b"a", b"why", (b"b", b"c")),
            "'why'",
            "cause or effect",
        ),
        "words of a text": (
            request(b"small", (b"a",)),
            "is a list of words",
        ),
        "two words": (request(b"tags", (b"New York", b"a")), "white space"),
        "no word": (request(b"tags", (b"", b"a")), "white space"),
    }
)
def test_rows_that_are_refused(served, call, parts):
    refusals.check(lambda: served.accept(call), *parts)


def test_vectors_read_a_text_or_a_pair(made, model):
    _, bert, tasks = made
    rows = [
        ("tags", ("the cat " * 20,)),
        ("choice", ("a cat",)),
        ("copa", ("a cat", "a dog")),
    ]
    for vector, (name, texts) in zip(model.vectors(as_rows(rows)), rows):
        alone = Embedder(bert, tasks[name], VectorForm("mean"))([texts])[0]
        np.testing.assert_allclose(vector, alone, atol=1e-6)


def test_warm_up(made, model):
    model.warm_up()
    folder = pathlib.Path(model._place, "assets.extra")
    path = str(folder / "tf_serving_warmup_requests")
    sizes = []
    for record in tf.data.TFRecordDataset(path):
        read = PredictionLog.FromString(record.numpy())
        columns = {
            name: tf.constant(tf.make_ndarray(value))
            for name, value in read.predict_log.request.inputs.items()
        }
        sizes.append(len(made[0].serve(**columns)["kind"]))
    assert sizes == [1, len(TASKS)]
