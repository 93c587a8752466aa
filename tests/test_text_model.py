"""Text in, answers out, in one graph: equal to the predictor's."""

import itertools
import json
import types
from dataclasses import replace

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    TINY_WORDS,
    load_predictor,
    module_fixture,
    open_bert,
    read_json,
    trained_task,
    write_bert,
    write_json,
)
from exported_models import as_rows
from test_joint_answers import LIBRARY, TEXTS, assert_equal
from tiny_artifacts import make_adapters, make_artifact

from adapter_bert.answering.answers import from_outputs
from adapter_bert.answering.embeddings import Embedder, VectorForm
from adapter_bert.answering.predictor import Predictor
from adapter_bert.answering.trained_task import load_task
from adapter_bert.graph import saved_model
from adapter_bert.graph.exported import ExportedModel
from adapter_bert.graph.text_model import TextModel

pytestmark = pytest.mark.newer_stack

NEGATIVE = dict(version_2_with_negative=True, doc_stride=3, max_query_length=9)
MRPC = {"name": "mrpc", "labels": ["0", "1"], "pairs": True}
STSB = {"name": "sts-b", "regression": True, "pairs": True}
# Beside those of the mixed batches: other windows, "no answer".
TASKS = {
    **{name: LIBRARY[name][:2] for name in LIBRARY if name != "whole"},
    "prefix": ("prefix(length=3)", MRPC),
    "stsb": ("bitfit", STSB),
    "either": ("ia3", {**LIBRARY["pair"][1], "pairs": None}),
    "negative": ("lora(rank=3)", {"name": "squad"}, NEGATIVE),
}


@module_fixture
def folders(tiny_bert, tmp_path_factory):
    place = tmp_path_factory.mktemp("adapters")
    return make_adapters(place, tiny_bert, TASKS)


@module_fixture
def predictor(tiny_bert, folders):
    return load_predictor(tiny_bert, folders)


@module_fixture
def load(tiny_bert, folders):
    """A BERT, and some of the adapters or all on it."""
    bert = open_bert(tiny_bert)

    def make(*names):
        return bert, {
            name: load_task(bert, folders[name], None)
            for name in names or folders
        }

    return make


@module_fixture
def model(load):
    return TextModel(*load(), batch_size=5)


def ask(model, questions):
    """The model's answers, each as the predictor gives it."""
    columns = list(zip(*as_rows(questions)))[:3]
    outputs = model.serve(*(tf.constant(x, tf.string) for x in columns))
    lists = [values.numpy().tolist() for values in outputs.values()]
    return [as_answer(dict(zip(outputs, row))) for row in zip(*lists)]


def as_answer(outputs):
    """An answer, without the description of its task."""
    outputs = json.loads(json.dumps(outputs, default=bytes.decode))
    names = [name for name in outputs["labels"] if name]
    task = {"kind": outputs["kind"], "labels": names, "label_separator": "|"}
    return from_outputs(task, outputs)


def check(model, predictor, questions, **more):
    expected = predictor.ask(questions)
    for answer_of_graph, answer in zip(ask(model, questions), expected):
        assert_equal(answer_of_graph, answer, **more)


EDGES = (
    "a slow dog ran , the film was not bad .",
    "",
    " \t\n",
    "\x00",
    "\u00e9\u0301 \U0001f600 cat\u200b\u202fmat",
    "[SEP] cat",
    "the cat sat on the mat . " * 400,
    "i" * 100_000,
)


@pytest.mark.gate
def test_texts_of_any_kind(model, predictor):
    questions = []
    for name, text in itertools.product(TASKS, EDGES):
        if 1 in predictor.task(name).numbers_of_texts:
            questions.append((name, (text,)))
        if 2 in predictor.task(name).numbers_of_texts:
            questions += [(name, ("a cat", text)), (name, (text, "a cat sat"))]
    # For a task that reads texts and pairs no second text is one text.
    questions.remove(("either", ("a cat", "")))
    check(model, predictor, questions)


def test_what_is_no_utf_8_is_left_out(model):
    def answers(question, context):
        outputs = model.serve(
            tf.constant([question, question]),
            tf.constant([context, context]),
            tf.constant(["squad", "pair"]),
        )
        return {
            name: values.numpy().tolist() for name, values in outputs.items()
        }

    torn = answers(b"is the \xff cat in ?", b"\xc3 the cat\xfe sat \xe2\x82")
    assert torn == answers("is the  cat in ?", " the cat sat ")


def test_nothing_of_it_is_trained(model):
    assert model.variables and model.trainable_variables == ()


def test_no_rows(model):
    nothing = tf.constant([], tf.string)
    outputs = model.serve(nothing, nothing, nothing)
    assert {len(values) for values in outputs.values()} == {0}


@module_fixture
def few(load):
    """A model of two tasks, and a function that changes a head's variable."""
    bert, tasks = load("large", "stsb")
    model = TextModel(bert, tasks, batch_size=4)
    heads = dict(zip(tasks, model._heads.numpy()))

    def change(name, variable, function):
        table = model._model.tables[f"head_{heads[name]}/{variable}"]
        table.assign(function(table.value()))

    return model, change


def test_an_output_that_is_no_number_is_refused(few):
    model, change = few
    columns = ["a", "b"], ["", "c"], ["large", "stsb"]
    model.serve(*map(tf.constant, columns))
    for number, (name, odd) in enumerate(
        (("large", [0.0, np.inf, 0.0]), ("stsb", [np.inf])), 1
    ):
        change(name, "output_bias", lambda bias, odd=odd: bias + odd)
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            model.serve(*map(tf.constant, columns))
        change(name, "output_bias", tf.zeros_like)
        message = f"row {number}: an output of the task {name} is no number"
        assert message in caught.value.message
    model.serve(*map(tf.constant, columns))


def test_a_score_is_within_its_range(few):
    model, change = few

    def value(bias):
        """The score from 0 to 5, to which a number is added."""
        change("stsb", "output_bias", lambda x: tf.zeros_like(x) + bias)
        columns = [["a"], ["b"], ["stsb"]]
        return float(model.serve(*map(tf.constant, columns))["value"][0])

    within = value(2.0)
    assert 1.0 < within < 4.0
    assert value(2.5) == pytest.approx(within + 0.5, abs=1e-5)
    assert (value(-9.0), value(9.0)) == (0.0, 5.0)


def test_of_equal_labels_the_first_is_taken(few):
    model, change = few
    for name in ("output_bias", "output_weights"):
        change("large", name, tf.zeros_like)
    [answer] = ask(model, [("large", ("a cat",))])
    assert answer["label"] == "x"
    thirds = dict.fromkeys("xyz", pytest.approx(1 / 3))
    assert answer["scores"] == thirds


@pytest.mark.gate
def test_a_task_alone_without_labels(load):
    model = TextModel(*load("stsb"), batch_size=4)
    outputs = model.serve(*map(tf.constant, [["a"], ["b"], ["stsb"]]))
    assert outputs["scores"].shape == outputs["labels"].shape == (1, 0)
    assert outputs["label"].numpy().tolist() == [b""]


def test_what_cannot_share_a_bert_is_refused(load, tiny_bert, tmp_path):
    bert, tasks = load("small", "large")
    cased = types.SimpleNamespace(do_lower_case=False)
    cased = replace(tasks["large"], tokenizer=cased)
    refusals.check(
        lambda: TextModel(bert, {"cased": cased, "small": tasks["small"]}, 4),
        "small reads lower-cased text, cased",
    )
    text = "stack({'a': houlsby(size=3)}, ia3)"
    make_artifact(tmp_path / "norms", tiny_bert, text)
    norms = trained_task(bert, tmp_path / "norms")
    refusals.check(
        lambda: TextModel(bert, {**tasks, "norms": norms}, 4), "has a part that"
    )
    pooled = {"name": "vectors", "pooling": "mean", "normalize": True}
    narrow = {"in_features": 16, "out_features": 4, "bias": False}
    dense = {"dense": [{**narrow, "activation": "tanh"}]}
    both = {}
    for name, more in (("narrow", dense), ("wide", {})):
        described = {**pooled, **more}
        make_artifact(tmp_path / name, tiny_bert, "ia3", description=described)
        both[name] = trained_task(bert, tmp_path / name)
    model = TextModel(bert, both, 4)
    refusals.check(
        lambda: ask(model, [("wide", (TEXTS[0],))]), "vectors of several sizes"
    )


@pytest.mark.gate
@pytest.mark.parametrize("way", ["compute_dtype", "adapter_dtype"])
def test_in_bfloat16(tiny_bert, folders, predictor, way):
    """What is computed, or the values of adapters in memory."""
    half, names = {way: "bfloat16"}, ("large", "small")
    bert = open_bert(tiny_bert, **(half if way == "compute_dtype" else {}))
    tasks = {name: load_task(bert, folders[name], None) for name in names}
    more = half if way == "adapter_dtype" else {}
    model = TextModel(bert, tasks, batch_size=4, **more)
    if more:
        assert model.size < TextModel(bert, tasks, batch_size=4).size
    questions = [("large", (TEXTS[0],)), ("small", (TEXTS[1],))]
    for one, other in zip(ask(model, questions), predictor.ask(questions)):
        assert one["label"] == other["label"]
        # Far above float32's rounding.
        difference = abs(one["probability"] - other["probability"])
        assert 1e-6 < difference < 0.01


@pytest.mark.gate
def test_vectors_are_those_of_single_adapters(load, tmp_path):
    """Of mixed batches; also where answers are of several windows."""
    bert, tasks = load("small", "prefix", "squad")
    texts = ("the cat sat", "a dog"), ("mat " * 40, "the " * 9), ("", "")
    rows = [
        (name, row[: len(loaded.task.columns)])
        for row in texts
        for name, loaded in tasks.items()
    ]
    form = VectorForm("mean", (1, -2), normalize=True)
    model = TextModel(bert, tasks, batch_size=4, form=form)
    output = saved_model.export(model, bert, tasks, str(tmp_path / "exported"))
    loaded = ExportedModel(str(tmp_path / "exported"))
    for row, (name, texts_of_row) in zip(loaded.vectors(as_rows(rows)), rows):
        alone = Embedder(bert, tasks[name], form)([texts_of_row])[0]
        np.testing.assert_allclose(row, alone, atol=1e-6)
    manifest = read_json(output, "assets.extra", "tasks.json")
    assert manifest["embeddings"] == {
        "pooling": "mean",
        "layers": [1, -2],
        "normalize": True,
        "size": None,
        "dense": [],
        "left_out": 0,
        "prompt": None,
    }
    refusals.check(
        lambda: TextModel(bert, tasks, 4, form=VectorForm("tokens")),
        "gives one vector for a text; pass --embedd",
    )


@pytest.mark.gate
@pytest.mark.parametrize("segments", [1, 2])
def test_the_rules_of_the_tokenizers_files(
    tmp_path, tiny_config, tiny_weights, segments
):
    """With one vector of segments both texts of a pair get it."""
    name = "bert/embeddings/token_type_embeddings"
    values = {**tiny_weights, name: tiny_weights[name][:segments]}
    config = replace(tiny_config, type_vocab_size=segments)
    bert = tmp_path / "bert"
    bert.mkdir()
    write_bert(bert, [*TINY_WORDS[:-1], "\u00e9"], config, values)
    rules = {"truncation_side": "left", "strip_accents": False}
    if segments > 1:
        rules["model_input_names"] = ["input_ids", "attention_mask"]
    write_json(bert / "tokenizer_config.json", rules)
    frozen, tasks = open_bert(bert), {}
    predictor = Predictor(frozen)
    for name, task in ("pair", MRPC), ("squad", {"name": "squad"}):
        folder = tmp_path / name
        make_artifact(folder, bert, "houlsby(size=4)", None, task)
        tasks[name] = trained_task(frozen, folder)
        predictor.add(str(folder), name)
    assert tasks["pair"].tokenizer.second_segment == 0
    model = TextModel(frozen, tasks, batch_size=5)
    texts = "\u00c9 cat " + "the mat sat on " * 9, "is a dog fast " * 7
    rows = [(name, row) for name in tasks for row in (texts, ("\u00c9", "on"))]
    check(model, predictor, rows)
