"""The folder of an exported model, and what loads it without this project."""

import os
import subprocess
import sys

import pytest
import refusals
import tensorflow as tf
from conftest import ROOT, module_fixture, read_json
from exported_models import NAMES, as_rows, make_parts, mixed_questions
from prediction_log import PredictionLog
from tensorflow.core.protobuf import saved_model_pb2

from adapter_bert.answering.trained_task import describe
from adapter_bert.graph import saved_model
from adapter_bert.graph.exported import TEXTS

pytestmark = pytest.mark.newer_stack

FLOAT = tf.float32.as_datatype_enum


@module_fixture
def parts(tiny_bert, tiny_adapters):
    return make_parts(tiny_bert, tiny_adapters)


@pytest.fixture
def exported(tiny_exported):
    return tiny_exported / "1"


def test_weights_are_variables(exported, parts):
    """And no function of gradients holds them in TensorFlow's memory."""
    saved = tf.train.list_variables(str(exported / "variables" / "variables"))
    shapes = sorted(
        tuple(shape) for name, shape in saved if "_model_variables/" in name
    )
    model, bert, _ = parts
    expected = sorted(tuple(tf.shape(v)) for v in model._model_variables)
    assert shapes == expected and len(shapes) > len(bert.variables)
    graph = saved_model_pb2.SavedModel()
    graph.ParseFromString((exported / "saved_model.pb").read_bytes())
    graph = graph.meta_graphs[0].graph_def
    constants = [
        node.attr["value"].tensor.ByteSize()
        for nodes in (graph.node, *(f.node_def for f in graph.library.function))
        for node in nodes
        if node.op == "Const" and node.attr["dtype"].type == FLOAT
    ]
    # Less than a LayerNorm has.
    assert constants and max(constants) < 4 * bert.config.hidden_size
    assert graph.library.function and not graph.library.registered_gradients


def test_keras_loads_it_as_a_layer(exported):
    keras = pytest.importorskip("keras", minversion="3")
    questions = mixed_questions()
    columns = {
        name: tf.constant(texts)
        for name, texts in zip(TEXTS, zip(*as_rows(questions)))
    }
    layer = keras.layers.TFSMLayer(str(exported))
    inputs = {
        name: keras.Input((), name=name, dtype="string") for name in TEXTS
    }
    text, *_ = inputs
    others = {name: inputs[name] for name in TEXTS if name != text}
    model = keras.Model(inputs, layer(inputs[text], **others))
    outputs = model(columns)
    loaded = tf.saved_model.load(str(exported))
    expected = loaded.serve(**columns)
    assert set(outputs) == set(expected)
    for name, values in expected.items():
        assert outputs[name].numpy().tolist() == values.numpy().tolist()


def test_what_it_says_of_its_tasks(exported, parts):
    manifest = read_json(exported / "assets.extra" / "tasks.json")
    assert manifest["base"] == parts[1].base.describe()
    tasks = {task.pop("name"): task for task in manifest["tasks"]}
    assert list(tasks) == list(NAMES)
    assert tasks["small"] == {
        "kind": "classification",
        "columns": ["text"],
        "texts": [1],
        "method": "houlsby(size=3, init_scale=0.01)",
        "max_seq_length": 24,
        "adapter": parts[2]["small"].sha256,
        "labels": ["bad", "good"],
    }
    assert tasks["score"]["kind"] == "regression"
    assert tasks["squad"]["kind"] == "questions"
    assert tasks["squad"]["columns"] == ["question", "context"]


def test_many_tasks_warm_up_with_some_of_them(parts, monkeypatch):
    monkeypatch.setattr(saved_model, "WARM_UP_ROWS", 2)
    # Lengths of more than seven bits.
    names = [letter * 200 for letter in "abc"]
    tasks = [describe(name, parts[2]["small"]) for name in names]
    names_of_requests = []
    for request in saved_model.warm_up_requests(tasks):
        log = PredictionLog.FromString(request)
        column = log.predict_log.request.inputs["task"]
        names_of_requests.append(
            [name.decode() for name in tf.make_ndarray(column)]
        )
    assert names_of_requests == [names[:1], names[:2]]


def test_versions(tmp_path):
    folder = tmp_path / "exported"
    assert saved_model.next_version(str(folder)) == 1
    for name in ("1", "9", ".10.tmp-of-a-killed-export"):
        (folder / name).mkdir(parents=True)
    assert saved_model.next_version(str(folder)) == 10
    for name in ("lost+found", "@eaDir", "caf\udce9"):
        (folder / name).mkdir()
    assert saved_model.next_version(str(folder)) == 10
    (folder / "thesis.txt").write_text("mine")
    for place, words in (
        (folder, "holds thesis.txt"),
        (folder / "thesis.txt", "is a file"),
        ("gs://bucket/exported", "is no local folder"),
    ):
        refusals.check(lambda p=place: saved_model.next_version(str(p)), words)


@pytest.mark.parametrize("step", ["model", "requests"])
def test_of_an_export_that_fails_nothing_is_left(
    parts, tmp_path, monkeypatch, step
):
    def fail(*arguments, **options):
        raise tf.errors.ResourceExhaustedError(None, None, "no space left")

    save = fail if step == "model" else lambda *_, **__: None
    monkeypatch.setattr(tf.saved_model, "save", save)
    monkeypatch.setattr(tf.io, "TFRecordWriter", fail)
    refusals.check(
        lambda: saved_model.export(*parts, str(tmp_path / "exported")),
        "cannot write ",
        "/1: no space left",
    )
    left = [path.name for path in (tmp_path / "exported").iterdir()]
    assert left == [saved_model.LOCK_FILE]


KILLED = """
import os, sys
import adapter_bert.start_tensorflow
from adapter_bert.graph import saved_model
saved_model._write = lambda *_: os.kill(os.getpid(), 9)
saved_model.export(None, None, None, sys.argv[1])
"""


def test_what_a_killed_export_leaves_is_deleted(tmp_path, monkeypatch):
    """Also if its version has come from elsewhere."""
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=ROOT)
    assert killed.returncode == -9
    [left] = tmp_path.glob(".1.tmp-*")
    (tmp_path / ".1.tmp-mine").touch()
    (tmp_path / "1").mkdir()
    monkeypatch.setattr(saved_model, "_write", lambda *_: None)
    saved_model.export(None, None, None, str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == [".1.tmp-mine", ".lock", "1", "2"]
