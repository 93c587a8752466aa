"""`adapter-bert export` as a user runs it."""

import json

import pytest
import tensorflow as tf
from conftest import entry_point, own_lines, run_process
from test_joint_answers import LIBRARY
from tiny_artifacts import make_artifact

from adapter_bert.commands import export as export_command
from adapter_bert.errors import UserError
from adapter_bert.serving.library import AdapterLibrary

pytestmark = pytest.mark.newer_stack

NAMES = ("small", "pair", "whole")


@pytest.fixture
def export():
    """Runs `adapter-bert export` with flags, within this process."""
    with entry_point(export_command) as run:
        yield run


@pytest.fixture
def flags(tiny_bert, tmp_path):
    shelf = AdapterLibrary(str(tmp_path / "shelf"), create=True)
    for name in NAMES:
        method, description, _ = LIBRARY[name]
        make_artifact(tmp_path / name, tiny_bert, method, None, description)
        shelf.add(str(tmp_path / name), name)
    return {
        "init_checkpoint": tiny_bert,
        "library": tmp_path / "shelf",
        "output_dir": tmp_path / "exported",
    }


def test_tags_are_not_exported_yet(export, flags, tiny_bert, tmp_path):
    description = {"name": "tagging", "tags": ["O", "B-X", "I-X"]}
    make_artifact(tmp_path / "tags", tiny_bert, "ia3", None, description)
    del flags["library"]
    with pytest.raises(UserError, match="the task tagging is of a kind that"):
        export(**flags, adapter=tmp_path / "tags")
    assert not flags["output_dir"].exists()


def test_an_export(flags, export, tmp_path):
    with pytest.raises(UserError, match="whole was trained by full, which ch"):
        export(**flags)
    assert not (tmp_path / "exported").exists()

    words = {**flags, "task": "small,pair"}.items()
    command = [f"--{name}={value}" for name, value in words]
    done = run_process(*command, program="export")
    folder = tmp_path / "exported" / "1"
    lines = own_lines(done.stderr)
    assert f"wrote {folder}: small, pair" in lines[-1]
    # TensorFlow's own list of hundreds of names is not shown.
    assert len(lines) < 8 and max(map(len, lines)) < 300
    loaded = tf.saved_model.load(str(folder))
    found = loaded.serve(
        tf.constant(["a cat", "a dog"]),
        tf.constant(["", "the dog"]),
        tf.constant(["small", "pair"]),
    )
    assert found["label"][0] in (b"bad", b"good")
    assert found["label"][1] in (b"no", b"yes")

    export(**flags, task="pair", max_seq_length=9, predict_batch_size=2)
    told = tmp_path / "exported" / "2" / "assets.extra" / "tasks.json"
    (task,) = json.loads(told.read_text())["tasks"]
    assert (task["name"], task["max_seq_length"]) == ("pair", 9)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"output_dir": ""}, "--output_dir is missing"),
        ({"init_checkpoint": ""}, "--init_checkpoint is missing"),
        ({"library": ""}, "no adapter is named; pass --adapter=FOLDER"),
        ({"task": "nobody"}, "nobody"),
        ({"predict_batch_size": 0}, "predict_batch_size is 0, which is too"),
        ({"max_seq_length": 2}, "--max_seq_length is 2, which is too small"),
        (
            {"task": "small", "max_seq_length": 99},
            "but the model has only 32 positions",
        ),
        ({"output_dir": "gs://bucket/exported"}, "is no local folder"),
    ],
)
def test_what_cannot_be_exported(flags, export, changed, message):
    with pytest.raises(UserError, match=message):
        export(**{**flags, **changed})
