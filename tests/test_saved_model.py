"""The folder of an exported model, and what loads it without this project."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT
from test_asking import LIBRARY, assert_equal
from test_text_model import as_answer, as_numbers
from tiny_artifacts import make_artifact

from errors import UserError
from serving import saved_model
from serving.frozen_bert import FrozenBert
from serving.loaded_task import load_task
from serving.predictor import Predictor
from serving.text_model import TextModel
from tasks.restored import restore_task

NAMES = ("small", "pair", "score", "squad")


@pytest.fixture(scope="module")
def folders(tiny_bert, tmp_path_factory):
    place = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(NAMES):
        method, description, _ = LIBRARY[name]
        task = restore_task(description, {}, "test")
        make_artifact(place / name, tiny_bert, method, task, description, seed)
    return {name: str(place / name) for name in NAMES}


@pytest.fixture(scope="module")
def parts(tiny_bert, folders):
    """A model, its BERT and its tasks."""
    bert = FrozenBert.open(str(tiny_bert))
    tasks = {
        name: load_task(bert, folder, None) for name, folder in folders.items()
    }
    return TextModel(bert, tasks, batch_size=8), bert, tasks


@pytest.fixture(scope="module")
def exported(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    assert saved_model.export(*parts, str(folder)) == str(folder / "1")
    return folder / "1"


@pytest.fixture(scope="module")
def questions():
    """Rows of all tasks, in random order."""
    rows = [
        (name, row if isinstance(row, tuple) else (row,))
        for name in NAMES
        for row in LIBRARY[name][2]
    ]
    return [rows[n] for n in np.random.default_rng(0).permutation(len(rows))]


def load_and_ask(python, folder, questions, place):
    """The answers of a process that has nothing of this project.

    Args:
        python: the interpreter.
        folder: of the model.
        questions: (task, texts) of each row.
        place: an empty folder, in which the process runs.
    """
    texts = [(*row, "")[:2] for _, row in questions]
    columns = {
        "text": [text for text, _ in texts],
        "text_b": [text_b for _, text_b in texts],
        "task": [name for name, _ in questions],
    }
    shutil.copy(ROOT / "tests" / "load_exported.py", place)
    done = subprocess.run(
        [python, "load_exported.py", str(folder)],
        input=json.dumps(columns),
        capture_output=True,
        text=True,
        cwd=place,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check(python, exported, questions, tiny_bert, folders, place):
    predictor = Predictor.load(str(tiny_bert), folders)
    expected = predictor.ask(questions)
    for found in load_and_ask(python, exported, questions, place):
        for one, answer in zip(found, expected):
            assert_equal(as_answer(one), as_numbers(answer))
        assert len(found) == len(expected)


@pytest.mark.gate
def test_it_loads_without_this_project(
    exported, questions, tiny_bert, folders, tmp_path
):
    check(sys.executable, exported, questions, tiny_bert, folders, tmp_path)


def test_it_loads_with_the_other_tensorflow(
    exported, questions, tiny_bert, folders, tmp_path
):
    python = os.environ.get("OTHER_PYTHON")
    if not python:
        pytest.skip("OTHER_PYTHON names no interpreter with another TensorFlow")
    python = str(ROOT / python)
    check(python, exported, questions, tiny_bert, folders, tmp_path)


def test_weights_are_variables(exported, parts):
    assert (exported / "saved_model.pb").stat().st_size < 3_000_000
    saved = tf.train.list_variables(str(exported / "variables" / "variables"))
    count = sum(int(np.prod(shape)) for _, shape in saved)
    assert count > sum(
        v.shape.num_elements() for v in parts[1].variables.values()
    )


def test_what_it_says_of_its_tasks(exported, parts):
    told = json.loads((exported / "assets.extra" / "tasks.json").read_text())
    assert told["base"] == parts[1].base.describe()
    tasks = {task.pop("name"): task for task in told["tasks"]}
    assert list(tasks) == list(NAMES)
    assert tasks["small"] == {
        "kind": "classification",
        "columns": ["text"],
        "texts": [1],
        "method": "houlsby(size=3, init_scale=0.01)",
        "max_seq_length": 24,
        "labels": ["bad", "good"],
    }
    assert tasks["score"]["kind"] == "regression"
    assert tasks["squad"]["kind"] == "questions"
    assert tasks["squad"]["columns"] == ["question", "context"]


def test_requests_that_warm_a_server_up(exported, parts):
    prediction_log = pytest.importorskip(
        "tensorflow_serving.apis.prediction_log_pb2"
    )
    path = exported / "assets.extra" / "tf_serving_warmup_requests"
    sizes = []
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        assert request.model_spec.signature_name == "serving_default"
        columns = {
            name: tf.constant(tf.make_ndarray(value))
            for name, value in request.inputs.items()
        }
        sizes.append(len(parts[0].serve(**columns)["kind"]))
    assert sizes == [1, len(NAMES)]


def test_many_tasks_warm_up_with_some_of_them(parts, monkeypatch):
    prediction_log = pytest.importorskip(
        "tensorflow_serving.apis.prediction_log_pb2"
    )
    monkeypatch.setattr(saved_model, "WARM_UP_ROWS", 2)
    # Lengths of more than seven bits.
    names = [letter * 200 for letter in "abc"]
    tasks = dict.fromkeys(names, parts[2]["small"])
    found = []
    for request in saved_model.warm_up_requests(tasks):
        log = prediction_log.PredictionLog.FromString(request)
        asked = log.predict_log.request.inputs["task"]
        found.append([name.decode() for name in tf.make_ndarray(asked)])
    assert found == [names[:1], names[:2]]


def test_versions(parts, tmp_path, monkeypatch):
    folder = tmp_path / "exported"
    assert saved_model.next_version(str(folder)) == 1
    for name in ("1", "9", ".10.tmp-of-a-killed-export"):
        (folder / name).mkdir(parents=True)
    assert saved_model.next_version(str(folder)) == 10
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds thesis.txt, which is no ver"):
        saved_model.next_version(str(folder))
    with pytest.raises(UserError, match="is a file"):
        saved_model.next_version(str(folder / "thesis.txt"))
    with pytest.raises(UserError, match="is no local folder"):
        saved_model.next_version("gs://bucket/exported")


def test_of_an_export_that_fails_nothing_is_left(parts, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise tf.errors.ResourceExhaustedError(None, None, "no space left")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(UserError, match="cannot write the model: no space"):
        saved_model.export(*parts, str(tmp_path / "exported"))
    assert list((tmp_path / "exported").iterdir()) == []
