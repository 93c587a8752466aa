"""Tagging and multiple choice in an exported model, next to other tasks."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT
from prediction_log import PredictionLog
from test_http_api import LIMITS, Server
from test_joint_answers import LIBRARY, TAGS, TEXTS, assert_equal
from tiny_artifacts import make_artifact

from adapter_bert.errors import UserError
from adapter_bert.serving import saved_model
from adapter_bert.serving.answers import from_outputs
from adapter_bert.serving.embeddings import Embedder, VectorForm
from adapter_bert.serving.exported import ExportedModel, Row, choice_table
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.predictor import Predictor
from adapter_bert.serving.shelf import ExportedShelf as ServedExport
from adapter_bert.serving.shelf import RequestRow as AskedRow
from adapter_bert.serving.text_model import TextModel
from adapter_bert.serving.trained_task import load_task

# A long sentence has many windows; the last has words without tokens and with
# too many.
SENTENCES = (
    *TEXTS,
    "",
    "the cat\u00a0sat " * 40,
    f"a\u3000cat \u200b {'cat,' * 30} sat\tin \u4eac\u4eac .",
)
PLAIN = {"name": "custom", "choices": 2, "pairs": False}
COLUMNS = {"columns": ["text", "one", "two"]}
LONG = "the cat sat on the mat . " * 9
# (method, task, its settings, rows).
TASKS = {
    "small": (*LIBRARY["small"][:2], {}, [(text,) for text in TEXTS]),
    "squad": (*LIBRARY["squad"][:2], {}, LIBRARY["squad"][2]),
    "tags": ("lora(rank=4)", TAGS, {}, [(text,) for text in SENTENCES]),
    "few": (
        "houlsby(size=3)",
        {"name": "tagging", "tags": ["I-X", "O", "B-X"]},
        {},
        [(text,) for text in SENTENCES],
    ),
    "choice": (
        "lora(rank=3)",
        PLAIN,
        COLUMNS,
        [("a cat", "sat", "a dog ran"), (LONG, "a", LONG), ("", "a", "cat")],
    ),
    "swag": (
        "ia3",
        {"name": "swag", "choices": 4},
        {},
        [("a cat", "it", "sat", "ran", "a dog .", LONG), (LONG, LONG, *"acat")],
    ),
    "copa": (
        "houlsby(size=4)",
        {"name": "copa", "choices": 2},
        {},
        [("it is slow", "cause", "a", LONG), (LONG, "effect", "a", "cat")],
    ),
}


@pytest.fixture(scope="module")
def folders(tiny_bert, tmp_path_factory):
    """The adapters' folders, by name."""
    place = tmp_path_factory.mktemp("adapters")
    for seed, (name, (method, task, settings, _)) in enumerate(TASKS.items()):
        more = {"task_settings": settings} if settings else {}
        make_artifact(place / name, tiny_bert, method, None, task, seed, **more)
    return {name: str(place / name) for name in TASKS}


@pytest.fixture(scope="module")
def parts(tiny_bert, folders):
    bert = FrozenBert.open(str(tiny_bert))
    tasks = {
        name: load_task(bert, folder, None) for name, folder in folders.items()
    }
    form = VectorForm("mean")
    return TextModel(bert, tasks, batch_size=5, form=form), bert, tasks


@pytest.fixture(scope="module")
def exported(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    saved_model.export(*parts, str(folder))
    return folder


@pytest.fixture(scope="module")
def served(exported):
    return ServedExport(ExportedModel(str(exported)))


def mixed_questions():
    """(task, texts) of rows of all tasks, in random order."""
    rows = [(name, row) for name, (*_, some) in TASKS.items() for row in some]
    return [rows[n] for n in np.random.default_rng(0).permutation(len(rows))]


@pytest.fixture(scope="module")
def expected(tiny_bert, folders):
    """What the predictor answers to `mixed_questions`."""
    return Predictor.load(str(tiny_bert), folders).ask(mixed_questions())


def as_asked(name, texts):
    """A row of a request."""
    given = [text.encode() for text in texts]
    count = TASKS[name][1].get("choices", 0)
    first, choices = given[: len(given) - count], given[len(given) - count :]
    text, text_b = (*first, b"")[:2]
    return AskedRow(name.encode(), text, text_b, tuple(choices))


def assert_near(found, expected):
    """Words exactly, numbers to the sixth digit."""
    assert_equal(found, expected)
    for name, value in expected.items():
        numbers = value if isinstance(value, dict) else {name: value}
        told = found[name] if isinstance(value, dict) else found
        for key, number in numbers.items():
            if isinstance(number, float):
                assert told[key] == pytest.approx(number, rel=1e-6, abs=1e-6)


def test_answers_are_those_of_predict(served, expected):
    questions = [served.accept(as_asked(*row)) for row in mixed_questions()]
    results = served.compute(questions)
    for question, result, answer in zip(questions, results, expected):
        found = served.answer(question, result)
        assert found.pop("adapter") == served.tasks[question.task]["adapter"]
        assert_near(found, answer)
    # The random tags are of several types, and some continue others.
    tags = {tag for one in expected for tag in one.get("tags", ())}
    assert {"O", "B-X", "I-X"} <= tags
    numbers = {one["choice"] for one in expected if "choice" in one}
    assert len(numbers) > 1


def test_the_outputs_of_a_request_are_as_wide_as_its_rows(served):
    short, long = (
        served.accept(AskedRow(b"tags", text.encode()))
        for text in ("a cat", LONG)
    )
    results = served.compute([short, long])
    (one,) = served.outputs([short], results[:1])
    assert one["tokens"] == ["a", "cat"] and len(one["tags"]) == 2
    widths = [len(x["tags"]) for x in served.outputs([short, long], results)]
    assert widths == [len(LONG.split())] * 2


@pytest.mark.parametrize(
    "python",
    [
        pytest.param(sys.executable, marks=pytest.mark.gate, id="this"),
        pytest.param(os.environ.get("OTHER_PYTHON"), id="other"),
    ],
)
def test_it_loads_without_this_project(
    python, exported, served, expected, tmp_path
):
    """With the other TensorFlow, too, as `.ci/run` asks of both."""
    if not python:
        pytest.skip("OTHER_PYTHON names no interpreter with another TensorFlow")
    asked = [as_asked(*row) for row in mixed_questions()]
    rows = [Row(row.text, row.text_b, row.task, row.choices) for row in asked]
    columns = {
        name: [getattr(row, name).decode() for row in rows]
        for name in ("text", "text_b", "task")
    }
    table = choice_table(rows).tolist()
    columns["choices"] = [[x.decode() for x in cells] for cells in table]
    shutil.copy(ROOT / "tests" / "load_exported.py", tmp_path)
    done = subprocess.run(
        [str(ROOT / python), "load_exported.py", str(exported / "1")],
        input=json.dumps(columns),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for found in json.loads(done.stdout):
        assert len(found) == len(expected)
        for row, one, answer in zip(asked, found, expected):
            task = served.tasks[row.task.decode()]
            assert_near(from_outputs(task, one), answer)


def test_over_http(exported, expected):
    limits = dataclasses.replace(
        LIMITS, timeout=60.0, max_body_bytes=9999, max_text_bytes=9999
    )
    server = Server(limits, ExportedModel(str(exported)))
    code, told = server.ask(None, "GET", "/v1/models/tiny/metadata")
    signatures = told["metadata"]["signature_def"]["signature_def"]
    inputs = signatures["serving_default"]["inputs"]
    assert set(inputs) == {"text", "text_b", "task", "choices"}
    assert set(signatures["embed"]["inputs"]) == {"text", "text_b", "task"}
    # One row of each task.
    of_task = dict(zip((name for name, _ in mixed_questions()), expected))
    rows = dict(mixed_questions())
    for name, answer in of_task.items():
        texts = rows[name]
        row = as_asked(name, texts)
        asked = {"task": name, "text": row.text.decode()}
        asked["text_b"] = row.text_b.decode()
        if row.choices:
            asked["choices"] = [text.decode() for text in row.choices]
        path = "/v1/models/tiny:answer"
        code, told = server.ask({"instances": [asked]}, path=path)
        assert code == 200, told
        (found,) = told["answers"]
        assert found.pop("task") == name and found.pop("adapter")
        assert_near(found, json.loads(json.dumps(answer)))
    # As TensorFlow Serving's clients ask a model with tasks of four choices.
    padded = {"task": "choice", "text": "a", "text_b": "", "choices": ["b"] * 2}
    padded["choices"] += ["", ""]
    code, told = server.ask({"instances": [padded]})
    assert code == 200 and told["predictions"][0]["kind"] == "multiple choice"
    # A vector needs no choices.
    vector = {"instances": [{"task": "choice", "text": "a"}]}
    code, told = server.ask(vector, path="/v1/models/tiny:embed")
    assert code == 200 and len(told["embeddings"]) == 1
    server.close()


def test_words_of_a_list(served):
    lists = AskedRow(b"tags", (b"the", b"cat\xff"))
    question = served.accept(lists)
    assert question.row.text == b"the cat"
    for words in ((b"New York", b"sleeps"), (b"", b"a")):
        with pytest.raises(UserError, match="is empty or holds white space"):
            served.accept(AskedRow(b"tags", words))


@pytest.mark.parametrize(
    "row, message",
    [
        (AskedRow(b"choice", b"a"), "choice has 2 choices, but the row has 0"),
        (AskedRow(b"small", b"a", b"", (b"b",)), "small has no choices, but"),
        (AskedRow(b"tags", b"a", b"b"), "the task tags reads one text, but"),
        (AskedRow(b"copa", b"a", b"cause", (b"b", b" ")), "'choice2' is empty"),
        (
            AskedRow(b"copa", b"a", b"why", (b"b", b"c")),
            "text_b is 'why', expected cause or effect",
        ),
        (AskedRow(b"small", (b"a",)), "reads texts, but text is a list of"),
    ],
)
def test_rows_that_are_refused(served, row, message):
    with pytest.raises(UserError, match=message):
        served.accept(row)


@pytest.mark.parametrize(
    "columns, message",
    [
        (
            (["a"], [""], ["choice"], [["b"]]),
            "row 1: the task choice reads as many choices as it has labels",
        ),
        ((["a"], [""], ["small"], [["b"]]), "row 1: the task small reads as"),
        ((["a"], ["why"], ["copa"], [["b", "c"]]), "copa reads another text_b"),
        ((["a"], [], ["small"], [[""]]), "text, text_b, task and choices must"),
    ],
)
def test_what_the_graph_refuses(parts, columns, message):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        parts[0].serve(*(tf.constant(x, tf.string) for x in columns))
    assert message in caught.value.message


def test_an_output_that_is_no_number_is_refused(tiny_bert, folders):
    bert = FrozenBert.open(str(tiny_bert))
    tasks = {name: load_task(bert, folders[name], None) for name in ("tags",)}
    model = TextModel(bert, tasks, batch_size=4)
    bias = model._model.tables["head_0/output_bias"]
    bias.assign(bias.value() + [0.0, np.inf, 0.0, 0.0, 0.0])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        model.serve(*map(tf.constant, [["a cat"], [""], ["tags"]]))
    message = "row 1: an output of the task tags is no number"
    assert message in caught.value.message


def test_vectors_read_a_text_or_a_pair(parts, exported):
    _, bert, tasks = parts
    rows = [
        ("tags", ("the cat " * 20,)),
        ("choice", ("a cat",)),
        ("copa", ("a cat", "a dog")),
    ]
    asked = [
        Row(*(x.encode() for x in (*(*texts, "")[:2], name)))
        for name, texts in rows
    ]
    found = ExportedModel(str(exported)).vectors(asked)
    for vector, (name, texts) in zip(found, rows):
        alone = Embedder(bert, tasks[name], VectorForm("mean"))([texts])[0]
        np.testing.assert_allclose(vector, alone, rtol=0, atol=1e-6)


def test_warm_up(parts, exported):
    ExportedModel(str(exported)).warm_up()
    folder = pathlib.Path(exported, "1", "assets.extra")
    path = str(folder / "tf_serving_warmup_requests")
    sizes = []
    for record in tf.data.TFRecordDataset(path):
        read = PredictionLog.FromString(record.numpy())
        columns = {
            name: tf.constant(tf.make_ndarray(value))
            for name, value in read.predict_log.request.inputs.items()
        }
        sizes.append(len(parts[0].serve(**columns)["kind"]))
    assert sizes == [1, len(TASKS)]
