"""An exported model that is loaded to be asked."""

import shutil
from functools import partial

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import read_json, write_json
from exported_models import NAMES
from test_http_api import Server

from adapter_bert import files
from adapter_bert.answering.answers import from_outputs
from adapter_bert.graph.exported import ExportedModel, Row, problem

pytestmark = pytest.mark.newer_stack


SPAN = {"answer": "a", "start": 2, "end": 3, "score": 1.5, "null_score": 0.0}
NONE = {"answer": "", "start": -1, "end": -1}


@pytest.mark.parametrize(
    "changed, expected",
    [
        ({}, {"null_score": None}),
        ({"null_score": 2.0}, {}),
        # "No answer" is likelier, nothing is possible, there are no tokens.
        ({**NONE, "null_score": 2.0}, {}),
        ({**NONE, "score": 0.0, "null_score": 2.0}, {"score": None}),
        ({**NONE, "score": 0.0}, {"score": None}),
    ],
)
def test_what_an_answer_to_a_question_lacks_is_null(changed, expected):
    outputs = {**SPAN, **changed}
    if outputs["start"] < 0:
        expected = {"start": None, "end": None, **expected}
    answer = from_outputs({"kind": "questions"}, outputs)
    assert answer == {**outputs, **expected}


def test_problems_are_those_that_the_model_would_have(tiny_exported):
    model = ExportedModel(str(tiny_exported))
    assert list(model.tasks) == list(NAMES)
    model.warm_up()
    for row in (
        Row(b"a", b"", b"no\xff"),
        Row(b"a", b"", "\u00e9".encode() * 90),
        Row(b"a", b"b", b"small"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            model.answers([row])
        assert f"row 1: {problem(model.tasks, row)}" in caught.value.message


def test_the_newest_version_is_taken(tiny_exported, tmp_path):
    for version in ("2", "10"):
        shutil.copytree(tiny_exported / "1", tmp_path / version)
    (tmp_path / ".11.tmp-of-a-killed-export").mkdir()
    model = ExportedModel(str(tmp_path))
    assert model.version == "10"
    signature = model.signature
    assert set(signature["inputs"]) == {"text", "text_b", "task"}
    assert signature["outputs"]["label"]["dtype"] == "DT_STRING"


def every_damage(content):
    """Cut at lengths of every class, and with a bit flipped in some places."""
    size = len(content)
    for length in {0, 1, size // 4, size // 2, size - 2, size - 1}:
        yield content[:length]
    for place in (0, size // 3, size // 2, size - 2):
        yield (
            content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
        )


def test_every_damaged_file_is_named_in_one_line(tiny_exported, tmp_path):
    folder = tmp_path / "exported"
    shutil.copytree(tiny_exported, folder)
    paths = [p for p in (folder / "1").rglob("*") if p.is_file()]
    names = {path.relative_to(folder / "1").as_posix() for path in paths}
    assert names == {
        "assets.extra/tasks.json",
        "assets.extra/tf_serving_warmup_requests",
        "fingerprint.pb",
        "saved_model.pb",
        "variables/variables.data-00000-of-00001",
        "variables/variables.index",
    }
    load = partial(ExportedModel, str(folder))
    for path in paths:
        content = path.read_bytes()
        for damaged in every_damage(content):
            path.write_bytes(damaged)
            refusals.check(load, path)
        path.unlink()
        refusals.check(load, f"{path} does not exist")
        path.write_bytes(content)
    assert load().tasks
    shutil.rmtree(folder / "1")
    refusals.check(load, "holds no version of an exported")


@pytest.mark.parametrize("key", ["name", "kind", "columns", "texts"])
def test_a_task_that_was_changed_by_hand_is_refused(
    tiny_exported, tmp_path, key
):
    """Without a seal nothing else shows the change."""
    shutil.copytree(tiny_exported, tmp_path, dirs_exist_ok=True)
    [path] = tmp_path.glob("*/assets.extra/tasks.json")
    manifest = read_json(path)
    del manifest[files.SEAL], manifest["tasks"][-1][key]
    write_json(path, manifest)
    refusals.check(
        lambda: ExportedModel(str(tmp_path)),
        f"it has no tasks.[].{key} of type",
    )


def test_a_task_that_answers_no_number_is_named(tiny_exported):
    """At the start of a server, and to a client."""
    model = ExportedModel(str(tiny_exported))
    # A table of one number for each task; there is one task.
    variables = model._loaded._model_variables
    [bias] = [v for v in variables if v.shape.as_list() == [1, 1]]
    bias.assign(bias + np.inf)
    reason = "an output of the task score is no number"
    refusals.check(model.warm_up, "1: ", f"{reason}; export it")
    server = Server(model=model)
    try:
        row = {"task": "score", "text": "a", "text_b": ""}
        assert server.ask({"instances": [row]}) == (400, {"error": reason})
    finally:
        server.close()
