"""`adapter-bert export` as a user runs it."""

import pytest
import refusals
import tensorflow as tf
from conftest import (
    flag_words,
    own_lines,
    program_fixture,
    read_json,
    run_process,
)
from test_joint_answers import LIBRARY
from tiny_artifacts import make_adapters, make_artifact

from adapter_bert.commands import export as export_command
from adapter_bert.graph.exported import ExportedModel, Row
from adapter_bert.library.adapter_library import AdapterLibrary

pytestmark = pytest.mark.newer_stack

NAMES = ("small", "pair", "whole")


export = program_fixture(export_command)


@pytest.fixture
def flags(tiny_bert, tmp_path, shelf):
    tasks = {name: LIBRARY[name][:2] for name in NAMES}
    for name, folder in make_adapters(tmp_path, tiny_bert, tasks).items():
        shelf.add(folder, name)
    return {
        "init_checkpoint": tiny_bert,
        "library": tmp_path / "shelf",
        "output_dir": tmp_path / "exported",
    }


def test_a_model_without_tasks_is_not_exported(
    export, flags, tiny_bert, tmp_path
):
    make_artifact(tmp_path / "alone", tiny_bert, "full")
    del flags["library"]
    adapter = f"alone={tmp_path / 'alone'}"
    refusals.check(
        lambda: export(**flags, adapter=adapter, skip_unsupported=True),
        "1 of 1 tasks",
        "serve --library",
    )
    assert not flags["output_dir"].exists()


@pytest.mark.gate
def test_tasks_that_cannot_be_exported_are_skipped(
    export, flags, tiny_bert, tmp_path, caplog
):
    make_artifact(tmp_path / "top", tiny_bert, "top_layers(k=1)")
    AdapterLibrary(str(flags["library"])).add(str(tmp_path / "top"), "top")
    refusals.check(
        lambda: export(**flags),
        "top was trained by ",
        ", which changes BERT's",
        " (2 of 4 tasks are",
    )
    assert not flags["output_dir"].exists()
    export(**flags, skip_unsupported=True)
    path = flags["output_dir"] / "1" / "assets.extra" / "tasks.json"
    tasks = read_json(path)["tasks"]
    assert [task["name"] for task in tasks] == ["pair", "small"]
    left_out = [x for x in caplog.messages if x.startswith("left out: ")]
    assert [x.split()[2] for x in left_out] == ["top", "whole"]


@pytest.mark.gate
def test_an_export(flags, export, tmp_path):
    words = flag_words({**flags, "task": "small,pair"})
    done = run_process(*words, program="export")
    folder = tmp_path / "exported" / "1"
    lines = own_lines(done.stderr)
    assert f"wrote {folder}: small, pair" in lines[-1]
    # TensorFlow's own list of hundreds of names is not shown.
    assert len(lines) < 8 and max(map(len, lines)) < 300
    loaded = tf.saved_model.load(str(folder))
    outputs = loaded.serve(
        tf.constant(["a cat", "a dog"]),
        tf.constant(["", "the dog"]),
        tf.constant(["small", "pair"]),
    )
    assert outputs["label"][0] in (b"bad", b"good")
    assert outputs["label"][1] in (b"no", b"yes")

    form = {"embeddings": "mean", "layers": "-1,0"}
    export(
        **{**flags, **form},
        task="pair",
        max_seq_length=9,
        predict_batch_size=2,
    )
    model = ExportedModel(str(tmp_path / "exported"))
    [vector] = model.vectors([Row(b"a cat", b"a dog", b"pair")])
    # Two layers, side by side.
    assert len(vector) == 32
    path = tmp_path / "exported" / "2" / "assets.extra" / "tasks.json"
    [task] = read_json(path)["tasks"]
    assert (task["name"], task["max_seq_length"]) == ("pair", 9)


@refusals.table(
    {
        "no folder": ({"output_dir": ""}, "--output_dir is missing"),
        "no adapter": ({"library": ""}, "no adapter is named; pass --adapter"),
        "another task": ({"task": "nobody"}, "nobody"),
        "a long row": (
            {"task": "small", "max_seq_length": 99},
            "only 32 positions",
        ),
    }
)
def test_what_cannot_be_exported(flags, export, call, parts):
    refusals.check(lambda: export(**{**flags, **call}), *parts)
