"""Texts in, answers out: equal to each task alone, whatever else is loaded."""

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import SENTENCES, load_predictor, open_bert, scores
from numpy.testing import assert_allclose, assert_array_equal
from task_files import TINY_CONTEXTS
from tiny_artifacts import CLASSIFICATION, LENGTH, make_artifact

from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.predictor import Predictor
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.from_description import restore_task

pytestmark = pytest.mark.older_stack

ROWS = [text for text, _ in SENTENCES]


@pytest.fixture
def make(tiny_bert, tmp_path):
    """Writes an adapter of a name, and tells its folder."""

    def write(name, text="houlsby(size=4)", **more):
        folder = tmp_path / name
        make_artifact(folder, tiny_bert, text, **more)
        return str(folder)

    return write


@pytest.fixture
def load(make, bert):
    """A predictor with one adapter, which is called `a`."""

    def load(*arguments, **more):
        predictor = Predictor(bert)
        predictor.add(make("a", *arguments, **more), "a")
        return predictor

    return load


@pytest.mark.gate
@pytest.mark.parametrize("text", ["houlsby(size=3)", "lt_sft"])
def test_narrow_kernels_change_no_bit(make, tiny_bert, monkeypatch, text):
    """`lt_sft` adds to kernels, and so has them whole."""
    folder = make("a", text)
    answers, types = [], []
    for _ in range(2):
        bert = open_bert(tiny_bert, compute_dtype="bfloat16")
        predictor = Predictor(bert)
        predictor.add(folder, "a")
        answers.append(predictor("a", ROWS))
        types.append({v.dtype for v in bert.variables.values()})
        monkeypatch.setattr(FrozenBert, "_kept_as", lambda *_: tf.float32)
    assert answers[0] == answers[1]
    assert types == [{tf.bfloat16, tf.float32}, {tf.float32}]


def test_an_adapter_in_the_place_of_another_builds_nothing(make, bert):
    first = make("first", seed=1)
    second = make("second", seed=2)
    predictor = Predictor(bert)
    predictor.add(first, "task")
    before = scores(predictor("task", ROWS))
    kind, variables = predictor.task("task").kind, dict(bert.variables)
    predictor.add(second, "task")
    after = scores(predictor("task", ROWS))
    predictor.add(first, "other")
    assert abs(before - after).max() > 1e-3
    assert_array_equal(scores(predictor("other", ROWS)), before)
    assert predictor.task("other").kind is kind
    assert kind.function.experimental_get_tracing_count() == 1
    assert all(bert.variables[name] is v for name, v in variables.items())
    # What an adapter holds is its own: none of BERT's variables.
    values = predictor.task("task").values.get()
    assert sum(v.shape.num_elements() for v in values.values()) < 3000


def test_a_text_a_list_and_an_iterator(load, monkeypatch):
    monkeypatch.setattr("adapter_bert.answering.row_stream.CHUNK", 3)
    predictor = load()
    expected = predictor("a", ROWS)
    assert isinstance(expected, list)
    alone = predictor("a", ROWS[0])
    assert alone["label"] == expected[0]["label"]
    assert_allclose(scores([alone]), scores(expected[:1]), atol=1e-6)
    read = []

    def texts():
        for row in ROWS:
            read.append(row)
            yield row

    answers = predictor("a", texts())
    assert not read
    first = next(answers)
    assert len(read) == 3
    streamed = scores([first, *answers])
    assert_allclose(streamed, scores(expected), atol=1e-6)
    assert predictor("a", []) == []
    assert list(predictor("a", iter([]))) == []


def test_where_pairs_are_not_told_both_are_taken(make, bert):
    either = {**CLASSIFICATION, "pairs": None}
    folder = make("a", description=either)
    single = make("single")
    predictor = Predictor(bert)
    predictor.add(folder, "a")
    predictor.add(single, "single")
    rows = [ROWS[0], (ROWS[1], ROWS[2]), ROWS[3]]
    single = predictor("single", rows[::2])
    alone = [single[0], predictor("a", rows[1]), single[1]]
    assert_allclose(scores(predictor("a", rows)), scores(alone), atol=1e-6)
    # Two choices come besides.
    description = {"name": "custom", "pairs": None, "choices": 2}
    predictor.add(make("choices", description=description), "choices")
    for texts in (ROWS[:3], ROWS[:4]):
        [answer] = predictor("choices", [tuple(texts)])
        assert len(answer.scores) == 2


def test_settings_of_an_artifact_are_used(load, make):
    squad = {"name": "squad"}
    settings = {"max_answer_length": 1, "max_query_length": 8}
    predictor = load(description=squad, task_settings=settings)
    rows = [(question, context) for context, _, question in TINY_CONTEXTS]
    assert all(len(a["answer"].split()) <= 1 for a in predictor("a", rows))
    settings = {"doc_stride": "far"}
    folder = make("bad", description=squad, task_settings=settings)
    refusals.check(
        lambda: predictor.add(folder), "doc_stride is 'far', expected"
    )


def test_questions_leave_room_for_their_contexts(make, bert):
    folder = make("q", description={"name": "squad"})
    long = "a cat sat on the mat and ran " * 20
    predictor = Predictor(bert, max_seq_length=LENGTH // 2 + 4)
    predictor.add(folder, "q")
    assert predictor("q", (long, long))["answer"] in long
    predictor = Predictor(bert, max_seq_length=LENGTH // 2 + 3)
    message = "max_seq_length is 15, but the task needs room for 16 tokens"
    refusals.check(lambda: predictor.add(folder, "q"), message)


def test_names(make, bert, tiny_bert):
    folders = [make("a"), make("b", seed=1)]
    refusals.check(
        lambda: load_predictor(tiny_bert, folders),
        "two adapters are of the task custom",
    )
    predictor = load_predictor(tiny_bert, dict(zip("ab", folders)))
    assert predictor.names == ["a", "b"]
    predictor = Predictor(bert)
    refusals.check(
        lambda: predictor("a", "the cat"),
        "no adapter is called 'a'; loaded: no",
    )
    assert predictor.add(folders[0]) == "custom"
    refusals.check(lambda: predictor.remove("a"), "loaded: custom")
    predictor.remove("custom")
    assert predictor.names == []


def test_the_length_is_the_adapters_own_unless_another_is_given(make, bert):
    folder = make("a")
    predictor = Predictor(bert)
    predictor.add(folder)
    long = " ".join(["cat"] * 100)
    cut = " ".join(["cat"] * (LENGTH - 2))
    assert predictor("custom", long) == predictor("custom", cut)
    other = Predictor(bert, max_seq_length=10)
    other.add(folder)
    assert other("custom", long) == other("custom", "cat " * 8)
    refusals.check(
        lambda: Predictor(bert, max_seq_length=33).add(folder),
        "max_seq_length is 33, but the model",
    )
    folder = make("long", training={"max_seq_length": 33})
    refusals.check(
        lambda: predictor.add(folder), "training.max_seq_length is 33, but"
    )


def test_infinite_outputs_are_refused(load):
    predictor = load()
    values = predictor.task("a").values.get()
    values["output_bias"] = tf.constant([np.nan, 0.0], tf.float32)
    refusals.check(
        lambda: predictor("a", "the cat"),
        "custom: the model's outputs for 1 of",
    )


def test_heads_of_other_sizes_and_layers_are_other_kinds(bert):
    """Though their variables have the same names and shapes."""

    def kind(description, **settings):
        task = restore_task(description, settings, "test")
        return bert.kind(parse("lora(2)"), task)

    squad = {"name": "squad"}
    assert kind(squad) is kind(squad, doc_stride=7)
    assert kind(squad) is not kind(squad, n_best_size=3)
    layers = {"layers": 2, "pooler": False}
    tanh = {**CLASSIFICATION, "head": {**layers, "activation": "tanh"}}
    relu = {**CLASSIFICATION, "head": {**layers, "activation": "relu"}}
    assert kind(tanh) is kind(tanh)
    assert len({id(kind(t)) for t in (CLASSIFICATION, tanh, relu)}) == 3


@pytest.mark.gate
def test_many_kinds_are_no_reason_for_a_warning(make, bert, caplog):
    """TensorFlow warns of a function that it traces five times in a row."""
    predictor = Predictor(bert)
    for size in range(1, 7):
        folder = make(f"a{size}", f"lora(rank={size})")
        predictor.add(folder, "a")
        predictor("a", ROWS[:2])
    assert "retracing" not in caplog.text
