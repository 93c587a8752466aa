"""`import adapter_bert`: the programs as functions."""

import collections
import datetime
import enum
import gc
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import refusals
import tensorflow as tf
from conftest import (
    ROOT,
    SENTENCES,
    TINY_WORDS,
    entry_point,
    module_fixture,
    read_json,
    read_lines,
    write_json,
    write_json_lines,
    write_lines,
    write_table,
)
from numpy.testing import assert_allclose, assert_array_equal
from task_files import squad_file
from tensorflow.python.framework import config as tf_config
from tensorflow.python.framework import ops
from tiny_artifacts import CLASSIFICATION, make_artifact

import adapter_bert as ab
from adapter_bert import api
from adapter_bert.answering.trained_task import LoadedTask
from adapter_bert.checkpoints import packaged_models
from adapter_bert.commands import audit, run_classifier
from adapter_bert.data import tables
from adapter_bert.data.memory_rows import MemoryRows

ROWS = [{"text": text, "label": label} for text, label in SENTENCES * 3]
SETTINGS = {
    "dev_share": 0.25,
    "tuning_method": "houlsby(size=4)",
    "num_train_epochs": 2,
    "train_batch_size": 8,
    "learning_rate": 3e-3,
    "max_seq_length": 24,
    "cpu_lanes": 1,
}


@module_fixture
def bert(tiny_bert):
    return ab.load_bert(tiny_bert)


@module_fixture
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("api")


@module_fixture
def run(bert, place):
    """A training on rows in memory."""
    return ab.train(bert, ROWS, output_dir=place / "run", **SETTINGS)


@module_fixture
def shelf(run, tiny_adapters, place):
    shelf = ab.Library(place / "shelf")
    shelf.add(run, name="mood")
    shelf.add(Path(next(iter(tiny_adapters.values()))), name="other")
    return shelf


def bits(folder):
    """The bytes that a run's settings decide."""
    folder = Path(folder)
    names = "adapter/adapter.safetensors", "eval_results.json"
    return [(folder / name).read_bytes() for name in names]


@pytest.mark.newer_stack
def test_the_package_loads_tensorflow_at_first_use():
    code = (
        "import gc, sys, weakref, adapter_bert as ab\n"
        "assert {'train', 'Predictor', 'UserError'} <= set(dir(ab))\n"
        "assert ab.UserError and 'tensorflow' not in sys.modules\n"
        "assert not hasattr(ab, 'trian')\n"
        "class Cycle: pass\n"
        "cycle = Cycle()\n"
        "cycle.self, freed = cycle, weakref.ref(cycle)\n"
        "gc.disable()\n"
        "ab.train\n"
        "assert not gc.isenabled()\n"
        "del cycle\n"
        "assert gc.collect() and freed() is None\n"
        "assert not {'matplotlib', 'sklearn'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_it_has_the_bits_of_the_program_and_repeats_them(
    run, bert, tiny_bert, place
):
    table = place / "rows.jsonl"
    write_json_lines(table, ROWS)
    with entry_point(run_classifier) as program:
        program(
            task_name="custom",
            train_file=table,
            do_train=True,
            do_eval=True,
            init_checkpoint=tiny_bert,
            output_dir=place / "program",
            **SETTINGS,
        )
    assert bits(run.output_dir) == bits(place / "program")
    # From the same file, in the same process, which keeps no graph of it.
    gc.collect()
    before = set(ops.gradient_registry.list())
    worked = time.process_time()
    again = ab.train(bert, table, output_dir=place / "again", **SETTINGS)
    worked = time.process_time() - worked
    cost = read_json(place / "again" / "cost.json")
    assert cost["processor_seconds"] <= worked
    assert set(ops.gradient_registry.list()) <= before
    assert bits(again.output_dir) == bits(run.output_dir)
    names = [
        {re.sub(r"\.tfevents\..*", "", p.name) for p in folder.rglob("*")}
        for folder in (place / "program", place / "again")
    ]
    assert names[0] == names[1]


def test_a_run_has_its_scores_curves_and_adapter(run):
    results = read_json(run.output_dir, "eval_results.json")
    assert set(run.scores) == {"accuracy", "macro_f1", "loss"}
    assert run.scores["accuracy"] == results["eval_accuracy"]
    assert run.curve["eval_loss"] == [
        (results["global_step"], pytest.approx(results["loss"], abs=1e-6))
    ]
    assert {"loss", "learning_rate"} <= set(run.curve)
    assert Path(run.adapter, "adapter.safetensors").exists()
    assert run.adapters == {"custom": run.adapter}
    assert run.engine == "StrategyEngine"
    assert run.settings["training"]["seed"] == 1
    assert ab.Run(run.output_dir) == run


def test_a_folder_without_a_run_says_so(tmp_path):
    empty = ab.Run(str(tmp_path))
    assert empty.scores == {} and empty.curve == {}
    refusals.check(lambda: empty.adapter, "holds 0 adapters, expected one")
    refusals.check(lambda: empty.settings, "holds no run.json")


def test_a_bert_that_has_computed_is_pickled(run, bert):
    ab.Predictor(bert, run)
    again = pickle.loads(pickle.dumps(bert))
    assert again.frozen.base == bert.frozen.base


def test_tensorflows_options_are_as_before(run, bert):
    tf_config.disable_op_determinism()
    before = tf.config.optimizer.get_experimental_options()
    scores = ab.evaluate(bert, run.adapter, ROWS, cpu_lanes=1)
    assert set(scores) == set(run.scores)
    assert 0 <= scores["accuracy"] <= 1
    assert tf.config.optimizer.get_experimental_options() == {
        **before,
        "arithmetic_optimization": True,
    }
    # Refused without a seed where determinism is on.
    assert tf.random.normal([1]).shape == 1


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_training_may_check_its_numbers(run, bert, place):
    tf.debugging.enable_check_numerics()
    try:
        checked = ab.train(bert, ROWS, output_dir=place / "checked", **SETTINGS)
    finally:
        tf.debugging.disable_check_numerics()
    assert checked.scores["loss"] == pytest.approx(run.scores["loss"], 1e-4)


def test_it_predicts(run, bert, tmp_path):
    predictor = ab.Predictor(bert, [run], predict_batch_size=4)
    assert predictor.names == ["custom"]
    answers = predictor.predict([text for text, _ in SENTENCES])
    first = answers[0]
    assert isinstance(first, ab.Answer)
    assert first.label == max(first.scores, key=first.scores.get)
    assert first["probability"] == first.probability
    assert json.loads(json.dumps(first)) == first
    with pytest.raises(AttributeError, match="has no value, but label"):
        first.value  # noqa: B018
    # Of any form of rows.
    texts = [{"text": text, "id": 1} for text, _ in SENTENCES]
    assert predictor.predict(texts) == answers
    [one] = predictor.predict(SENTENCES[0][0])
    assert one.probability == pytest.approx(first.probability, abs=1e-6)
    [explained] = predictor.predict(SENTENCES[0][0], explain=True)
    explanation = explained.pop("explanation")
    assert explained == one
    assert explanation["label"] == one.label
    words = [word["text"] for word in explanation["words"]]
    assert words == SENTENCES[0][0].split()
    write_table(tmp_path / "rows.tsv", [SENTENCES[0][:1]], ("text",))
    answers = predictor.predict(tmp_path / "rows.tsv")
    argilla = {"fields": {"text": SENTENCES[0][0]}, "responses": {}}
    assert predictor.predict([argilla]) == answers
    first, second = predictor.predict([argilla, SENTENCES[0][0]])
    assert first == second
    [row] = answers.to_frame().to_dict("records")
    assert row["label"] == answers[0].label
    assert row["scores.good"] == answers[0].scores["good"]


def test_a_library_answers_rows_of_several_tasks(bert, shelf):
    predictor = ab.Predictor(bert, shelf)
    assert predictor.names == ["mood", "other"]
    texts = ["the cat sat", "a dog ran"]
    mood, other = (predictor.predict(texts, task=t) for t in predictor.names)
    mixed = predictor.predict(texts, task=["other", "mood"])
    assert [set(answer.scores) for answer in (mood[1], other[0])] == [
        set(answer.scores) for answer in (mixed[1], mixed[0])
    ]
    assert mixed[1].scores == pytest.approx(mood[1].scores, abs=1e-5)
    predictor.remove("other")
    answers = predictor.predict(texts)
    assert [answer.label for answer in answers] == [x.label for x in mood]
    assert predictor.add(shelf.folder("other"), "again") == "again"


def test_texts_have_vectors(run, bert):
    plain = ab.embed(bert, ["the cat", "a dog ran"], layers=(-1, -2))
    assert plain.dtype == np.float32 and plain.shape == (2, 32)
    for layers in (-1, np.array([-1]), range(-1, 0)):
        one = ab.embed(bert, ["the cat", "a dog ran"], layers=layers)
        assert_array_equal(one, plain[:, :16])
    tuned = ab.embed(
        bert, ["the cat", ("a dog", "ran")], adapter=run, normalize=True
    )
    assert_allclose(np.linalg.norm(tuned, axis=1), 1, rtol=1e-5)
    [tokens] = ab.embed(bert, [{"text": "the cat"}], pooling="tokens")
    assert tokens.tokens == ["[CLS]", "the", "cat", "[SEP]"]


@pytest.mark.newer_stack
def test_wrong_labels_are_found(bert, tiny_bert, place):
    """As by the command, on rows in memory."""
    wrong = {3, 30}
    other = {"good": "bad", "bad": "good"}
    # Copies of a text would stay in one fold.
    rows = [
        (f"{text} {TINY_WORDS[5 + number // 8]}", label)
        for number, (text, label) in enumerate(SENTENCES * 5)
    ]
    for number in wrong:
        text, label = rows[number - 1]
        rows[number - 1] = text, other[label]
    audited = ab.audit(bert, rows, max_seq_length=24)
    assert isinstance(audited, ab.Audit) and audited.rows == 40
    assert {suspect["row"] for suspect in audited.suspects[:2]} == wrong
    write_table(place / "audited.tsv", rows)
    with entry_point(audit) as program:
        program(
            train_file=place / "audited.tsv",
            init_checkpoint=tiny_bert,
            output_dir=place / "audited",
            max_seq_length=24,
        )
    _, *lines = read_lines(place / "audited/suspects.tsv")
    # The file has a header.
    of_file = [{**one, "line": one["line"] + 1} for one in audited.suspects]
    assert [line.split("\t") for line in lines] == [
        [*map(str, list(suspect.values())[:-1]), f"{suspect['score']:.6f}"]
        for suspect in of_file
    ]
    for bad, settings, message in (
        (rows[:3], {}, "rows holds 3 different texts, but --folds is 5"),
        (rows, {"do_eval": True}, "--do_eval is for a run"),
        (rows, {"fold": 3}, "did you mean folds?"),
    ):
        call = partial(ab.audit, bert, bad, **settings)
        refusals.check(call, message)


@pytest.mark.newer_stack
def test_rows_to_label_next(run, bert, place):
    """As by the command, whose tests look at the choice."""
    texts = [text for text, _ in SENTENCES]
    write_table(place / "pool.tsv", [(text,) for text in texts], ("text",))
    chosen = ab.select(bert, texts, 3, adapter=run)
    margins = [row["margin"] for row in chosen]
    assert margins == sorted(margins) and len(margins) == 3
    for row in chosen:
        assert row["text"] == texts[row["row"] - 1]
    path = place / "pool.tsv"
    for pool in ([{"text": text} for text in texts], path, str(path)):
        assert ab.select(bert, pool, 3, adapter=run) == chosen
    centres = ab.select(bert, texts * 2)
    assert {row["text"] for row in centres[:8]} == set(texts)
    assert len(centres) == 16 and set(centres[0]) == {"row", "text", "k_centre"}
    renamed = [{"said": text} for text in texts * 2]
    assert ab.select(bert, renamed, columns="said") == centres
    pairs = ab.select(bert, list(zip(texts, texts[1:])), 2)
    assert set(pairs[0]) == {"row", "text", "text_b", "k_centre"}
    for pool, settings, message in (
        ([], {}, "pool holds no rows"),
        (["a"], {"count": 0}, "--count is 0"),
        ([{"said": "a"}], {}, "pool:1: no key 'text'"),
        (3, {}, "pool: found a int"),
    ):
        call = partial(ab.select, bert, pool, **settings)
        refusals.check(call, message)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_epochs": 3}, "did you mean num_train_epochs?"),
        ({"compute_dtype": "int8"}, "should be one of"),
        ({"do_train": False}, "its arguments, or"),
        ({"describe": True}, "its arguments, or"),
        ({"task_name": None, "output_dir": None}, "--output_dir is missing"),
        ({"vocab_file": "v"}, "load_bert(), say it"),
        ({"bert_hub_module_handle": "v"}, "no keyword 'init_checkpoint': its"),
        ({"label_column": "lable"}, "rows:1: no key 'lable', found 'text'"),
        ({"output_dir": None}, "--output_dir is missing"),
        ({"train_file": "a.csv"}, "its arguments, or"),
    ],
)
def test_errors_are_the_programs(bert, tmp_path, settings, message):
    settings = {**SETTINGS, "output_dir": tmp_path, **settings}
    refusals.check(lambda: ab.train(bert, ROWS, **settings), message)
    assert not list(tmp_path.iterdir())


def test_mistakes_are_one_line(run, bert, shelf, tmp_path):
    not_bert = "bert is a str, expected a Bert, which load_bert"
    predictor = ab.Predictor(bert, shelf)

    def embed(texts=("a",), **settings):
        return lambda: ab.embed(bert, list(texts), **settings)

    def load(adapters, **settings):
        return lambda: ab.Predictor(bert, adapters, **settings)

    def predict(texts, task="mood"):
        return lambda: predictor.predict(texts, task=task)

    for call, message in (
        (lambda: ab.load_bert(tmp_path / "nowhere"), "nowhere"),
        (lambda: ab.train("folder", ROWS), not_bert),
        (lambda: ab.embed("folder", ["a"]), not_bert),
        (lambda: ab.Predictor("folder", run), not_bert),
        (lambda: ab.export("folder", run, "out"), not_bert),
        (load(tmp_path / "nothing"), "nothing"),
        (load(run, compute_dtype="bfloat16"), "takes no keyword 'compute"),
        (load([run, run]), "'custom' is named twice; leave one out"),
        (predict(["a"], None), "pass task=one of mood, other"),
        (predict(["a"], "moods"), "no adapter is called 'moods'"),
        (predict(["a"] * 3, ["mood", "other"]), "names 2 adapters for 3 rows"),
        (predict([{"message": "a"}]), "row 1: found the columns 'message'"),
        (predict(["a", 3]), "row 2: found a int"),
        (predict(3), "texts: found a int, expected rows"),
        (embed(predict_batch_size=0), "--predict_batch_size is 0, expected"),
        (embed(max_seq_length="long"), "expected a whole number"),
        (embed(layers="last"), "--layers is last, exp"),
        (embed(layers=[0.5]), "--layers is 0.5, exp"),
        (embed(layers={-1}), "--layers has a set"),
        (embed(layers=()), "no layer is named"),
        (embed([{"said": "a"}]), "row 1: found the columns"),
        (
            lambda: ab.train(
                bert, ROWS, ROWS, ROWS, task_name="squad", output_dir="out"
            ),
            "eval_rows and predict_rows exclude each other for squad",
        ),
        (
            lambda: ab.train(
                bert, ROWS, adapter=run, init_adapter=run, output_dir="out"
            ),
            "--adapter and --init_adapter exclude each other",
        ),
    ):
        refusals.check(call, message)
    predictor = ab.Predictor(bert, {"mood": run})
    assert predictor.names == ["mood"]
    assert predictor.predict([], task=[]) == predictor.predict([]) == []
    predictor.remove("mood")
    refusals.check(lambda: predictor.predict(["a"]), "0 adapters are loaded")


@module_fixture
def other_columns(run, place):
    """The run's adapter, as if it was trained on other columns."""
    folder = copytree(run.adapter, place / "other_columns")
    path = folder / "adapter_config.json"
    config = read_json(path)
    config["task_settings"].update(columns=["said"], label_column="mood")
    del config["content_sha256"]
    write_json(path, config)
    return folder


@pytest.mark.newer_stack
def test_columns_are_the_adapters(run, bert, other_columns):
    expected = ab.evaluate(bert, run, SENTENCES, cpu_lanes=1)
    table = [{"said": text, "mood": label} for text, label in SENTENCES]
    for rows in (SENTENCES, table):
        scores = ab.evaluate(bert, other_columns, rows, cpu_lanes=1)
        assert scores == expected
    named = {"text_a_column": "text", "label_column": "label"}
    rows = ROWS[: len(SENTENCES)]
    assert expected == ab.evaluate(
        bert, other_columns, rows, cpu_lanes=1, **named
    )


@pytest.mark.newer_stack
def test_a_file_has_the_columns_of_one_task(run, bert, other_columns, tmp_path):
    path = tmp_path / "rows.jsonl"
    write_json_lines(path, [{"text": "a cat", "said": "a dog"}] * 2)
    predictor = ab.Predictor(bert, {"run": run.adapter, "other": other_columns})
    refusals.check(
        lambda: predictor.predict(path, task=["run", "other"]),
        "is read by the columns of one task",
    )


@pytest.mark.newer_stack
def test_an_empty_second_text_is_none(tiny_bert, tmp_path, caplog):
    """Of a task that reads a text or a pair."""
    described = {**CLASSIFICATION, "pairs": None}
    make_artifact(tmp_path / "a", tiny_bert, "ia3", description=described)
    bert = ab.load_bert(tiny_bert, compute_dtype=None)
    predictor = ab.Predictor(bert, tmp_path / "a")
    [expected] = predictor.predict(["the cat"])
    rows = [{"text": "the cat", "text_b": second} for second in ("", None)]
    for answer in predictor.predict(rows):
        assert answer.scores == pytest.approx(expected.scores, abs=1e-6)
    zero, text = predictor.predict(
        [{"text": "the cat", "text_b": second} for second in (0, "0")]
    )
    assert zero.scores == text.scores != expected.scores
    labelled = [{"text": "the cat", "text_b": "a dog", "label": "good"}]
    ab.evaluate(bert, tmp_path / "a", labelled)
    assert "takes one text or two, and one is read" in caplog.text


@pytest.mark.newer_stack
def test_tables_have_vectors(bert, other_columns, tmp_path):
    texts = [text for text, _ in SENTENCES]
    expected = ab.embed(bert, texts, adapter=other_columns)
    path = tmp_path / "rows.tsv"
    write_table(path, [(text, "x") for text in texts], ("said", "id"))
    table_rows = [{"said": text, "text_b": "a dog"} for text in texts]
    for rows in (table_rows, [{"text": text} for text in texts], path):
        vectors = ab.embed(bert, rows, adapter=other_columns)
        assert_array_equal(vectors, expected)
    pair = ab.embed(bert, ("the cat", "a dog"))
    table = {"text": ["the cat"], "text_b": ["a dog"]}
    assert_array_equal(ab.embed(bert, table), pair)
    write_lines(tmp_path / "rows.txt", texts)
    assert_array_equal(
        ab.embed(bert, tmp_path / "rows.txt"), ab.embed(bert, texts)
    )


@pytest.mark.newer_stack
def test_vectors_follow_the_letter_case(tiny_bert, tmp_path):
    folder = copytree(tiny_bert, tmp_path / "bert")
    # Words without capital or small letters tell no case.
    signs = [*TINY_WORDS[:5], "\ud55c", *map(chr, range(0x4E00, 0x4E18))]
    write_lines(folder / "vocab.txt", signs)
    words = {
        ab.embed(
            ab.load_bert(folder, do_lower_case=lower),
            ["\ud55c"],
            pooling="tokens",
        )[0].tokens[1]
        for lower in (True, False)
    }
    assert words == {"[UNK]", "\ud55c"}


def test_a_fork_after_a_computation_is_refused(run, bert):
    child = os.fork()
    if not child:
        try:
            ab.embed(bert, ["a"], adapter=run.adapter)
        except ab.UserError as error:
            os._exit(0 if "is a fork of" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_it_needs_eager_execution(run, tiny_bert):
    """Where it is off nothing is read, which would be of that graph."""
    bert = ab.load_bert(tiny_bert)

    def embed():
        return ab.embed(bert, ["a"], adapter=run.adapter)

    with tf.Graph().as_default():
        refusals.check(embed, "eager execution is off")
    assert embed().shape == (1, 16)


class Tables(dict):
    """What is used of several tables of `datasets`."""

    column_names = {"train": ["text"]}


class Dataset(list):
    """What is used of a table of `datasets`."""

    column_names = ["text", "label"]
    features = {
        "text": object(),
        "label": SimpleNamespace(names=["bad", "good"]),
    }


class Formatted(Dataset):
    """What is used of such a table that gives arrays."""

    def __iter__(self):
        for row in super().__iter__():
            yield {"text": row["text"], "label": np.int64(row["label"])}

    def with_format(self, kind):
        assert kind is None
        return Dataset(super().__iter__())


class Arrow(list):
    """What is used of a pyarrow table, as `datasets` makes it."""

    column_names = Dataset.column_names
    schema = SimpleNamespace(
        metadata={
            b"huggingface": json.dumps(
                {
                    "info": {
                        "features": {
                            "text": {"dtype": "string", "_type": "Value"},
                            "label": {
                                "names": ["bad", "good"],
                                "_type": "ClassLabel",
                            },
                        }
                    }
                }
            ).encode()
        }
    )

    def to_pylist(self):
        return list(self)


TEXT_AND_LABEL = tables.Layout("text", label="label")


def test_rows_have_many_forms():
    texts, labels = zip(*SENTENCES)
    numbers = [int(label == "good") for label in labels]
    columns = {"text": texts, "label": labels}
    forms = [
        [dict(zip(columns, row)) for row in SENTENCES],
        SENTENCES,
        map(list, SENTENCES),
        columns,
        pandas.DataFrame(columns),
        {name: np.array(column, bytes) for name, column in columns.items()},
        tf.data.Dataset.from_tensor_slices((list(texts), list(labels))),
        tf.data.Dataset.from_tensor_slices(
            {name: list(column) for name, column in columns.items()}
        ),
    ]
    numbered = [
        {"text": t, "label": number} for t, number in zip(texts, numbers)
    ]
    # Without a label.
    numbered.append({"text": "the mat", "label": -1})
    forms += [make(numbered) for make in (Dataset, Formatted, Arrow)]
    frame = pandas.DataFrame(columns)
    # Names count, whatever their order; of other names the places do.
    other = frame.rename(columns={"text": "a text"})
    for named in (frame[["label", "text"]], other):
        forms.append(list(named.itertuples(index=False)))
        forms.append(named.to_records(index=False))
    for rows in forms:
        table = tables.read_rows(MemoryRows(rows, "rows"), TEXT_AND_LABEL)
        assert [*zip(table.text_a, table.label)] == list(SENTENCES)


@pytest.mark.parametrize(
    "rows, message",
    [
        ([], "rows holds no rows"),
        (["a text"], "rows:1: found 1 values, expected 2"),
        ([("a", "b"), 3], "rows:2: found a int, expected 2"),
        ({"text": ["a"], "label": []}, "several lengths"),
        (
            Tables(train=pandas.DataFrame({"text": ["a"]})),
            "'train' is a DataFrame, expected a list",
        ),
        ({"train": 3}, "'train' is a int, expected a list"),
        ("a text", "found a str, expected rows"),
        (np.array("a text"), "found a ndarray, expected rows"),
        ([("a", "b"), ("c", {"d"})], "rows:2: 'label' is .*{'d'}"),
        ([("a", b"\xff")], "rows:1: found bytes that are no UTF-8"),
    ],
)
def test_other_forms_are_refused(rows, message):
    with pytest.raises(ab.UserError, match=message):
        tables.read_rows(MemoryRows(rows, "rows"), TEXT_AND_LABEL)


def test_rows_to_answer_are_read_by_name_and_as_texts():
    row = collections.namedtuple("Row", ["text_b", "text"])
    columns = "text", "text_b"
    for of_task in (columns, columns[:1]):
        task = SimpleNamespace(columns=of_task)
        loaded = SimpleNamespace(task=task, columns=columns)
        [read] = api._rows_of([row("second", 3)], loaded)
        assert api._texts_at(read, loaded, "row 1") == ("3", "second")
    # As of an imported adapter, which reads one text or two.
    either = SimpleNamespace(task=task, numbers_of_texts=(1, 2))
    assert LoadedTask.columns.fget(either) == ("text", "text_b")
    read = {**read, "text": None}
    with pytest.raises(ab.UserError, match="row 1: 'text' is null, expected"):
        api._texts_at(read, loaded, "row 1")


class Mood(enum.Enum):
    GOOD = "good"


def test_values_are_pythons_own():
    pairs = [
        (np.int64(3), 3),
        (np.array([1, 2]), [1, 2]),
        (float("nan"), None),
        (None, None),
        (("a",), ("a",)),
        (True, True),
        (Mood.GOOD, "good"),
        (np.bytes_(b"good"), "good"),
        (np.array([b"a", b"b"], object), ["a", "b"]),
        (tf.constant(["a", "b"]), ["a", "b"]),
        (tf.constant(0.5), 0.5),
        (datetime.date(2020, 1, 31), "2020-01-31"),
        (np.datetime64("2020-01-31T12:30", "ns"), "2020-01-31 12:30:00"),
        (np.datetime64("NaT", "ns"), None),
    ]
    rows = [{"text": "a", "label": value} for value, _ in pairs]
    assert [row["label"] for row in MemoryRows(rows, "rows").objects([])] == [
        expected for _, expected in pairs
    ]


TEXTS, LABELS = zip(*SENTENCES * 2)
TASKS = {
    "regression": (
        [(text, len(text)) for text in TEXTS],
        {"regression": True, "dev_share": 0.5},
    ),
    "multi-label": (
        [(text, [label, "any"]) for text, label in zip(TEXTS, LABELS)],
        {"multi_label": True, "dev_share": 0.5},
    ),
    "choices": (
        [(text, "the cat", "a dog", 1) for text in TEXTS],
        {"choice_columns": ["a", "b"], "dev_share": 0.5},
    ),
    "tagging": (
        [(text.split(), ["B-ART"] + ["O"] * text.count(" ")) for text in TEXTS],
        {"task_name": "tagging"},
    ),
    "squad": (
        [
            {
                "question": "a cat ?",
                "context": text,
                "answers": {"text": [text[:3]], "answer_start": [0]},
            }
            for text in TEXTS
        ],
        {"task_name": "squad", "max_query_length": 8, "doc_stride": 4},
    ),
    "masked_lm": (list(TEXTS), {"task_name": "masked_lm"}),
}


# The columns of a file of such rows.
COLUMNS = {
    "choices": ("text", "a", "b", "label"),
    "tagging": ("tokens", "tags"),
}


def write_rows(folder, kind, rows):
    """Writes rows in a file of their kind, whose path is returned."""
    endings = {"masked_lm": "txt", "squad": "json"}
    path = folder / f"train.{endings.get(kind, 'jsonl')}"
    if kind == "masked_lm":
        write_lines(path, rows)
    elif kind == "squad":
        questions = [
            (str(number), row["context"], row["question"], row["context"][:3])
            for number, row in enumerate(rows)
        ]
        squad_file(path, questions)
    else:
        columns = COLUMNS.get(kind, ("text", "label"))
        write_json_lines(path, [dict(zip(columns, row)) for row in rows])
    return path


@pytest.mark.gate
@pytest.mark.newer_stack
@pytest.mark.parametrize("kind", TASKS)
def test_rows_of_every_kind_are_those_of_a_file(bert, tmp_path, kind):
    rows, settings = TASKS[kind]
    settings = {**SETTINGS, "num_train_epochs": 1, **settings}
    settings["do_eval"] = None
    if settings.get("task_name"):
        del settings["dev_share"]
        settings["eval_rows"] = rows
    settings["output_dir"] = tmp_path / "out"
    path = write_rows(tmp_path, kind, rows)
    run = ab.train(bert, rows, **settings)
    assert run.scores
    before = bits(run.output_dir)
    # Of the same rows it is the same run, which is over; others are refused.
    ab.train(bert, path, **settings)
    assert bits(run.output_dir) == before
    refusals.check(
        lambda: ab.train(bert, rows[:8], **settings),
        "holds a run with another configuration",
    )
    if share := settings.get("dev_share"):
        scores = ab.evaluate(bert, run, rows, dev_share=share)
        assert scores == pytest.approx(run.scores)
    if kind == "squad":
        scores = ab.evaluate(
            bert, run, predict_file=path, max_query_length=8, doc_stride=4
        )
        assert scores == run.scores
    if kind == "tagging":
        annotated = {"content": "the cat", "annotation": []}
        for row in (["the", "cat"], annotated):
            [answer] = ab.Predictor(bert, run).predict([row])
            assert set(answer.tags) <= {"O", "B-ART"}


@pytest.mark.gate
@pytest.mark.newer_stack
def test_several_glue_tasks_have_an_adapter_each(bert, tiny_glue, tmp_path):
    run = ab.train(
        bert,
        task_name="sts-b,MNLI",
        data_dir=tiny_glue,
        output_dir=tmp_path / "out",
        **{**SETTINGS, "dev_share": None, "num_train_epochs": 1},
    )
    assert set(run.adapters) == {"sts-b", "mnli"}
    with pytest.raises(ab.UserError, match="holds 2 adapters .*, expected one"):
        run.adapter  # noqa: B018
    assert ab.Predictor(bert, run).names == list(run.adapters)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("README.md", marks=pytest.mark.newer_stack),
        pytest.param("docs/python_api.md", marks=pytest.mark.older_stack),
    ],
)
def test_the_pages_example_runs(
    name, tiny_bert, place, tmp_path, monkeypatch, capsys
):
    """With a tiny BERT in the place of MiniLM."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packaged_models, "folder", lambda name: str(tiny_bert))
    for file in ("tickets", "new"):
        rows = SENTENCES * (4 if file == "tickets" else 1)
        lines = ["message,queue", *(f'"{t}",{label}' for t, label in rows)]
        write_lines(Path(f"{file}.csv"), lines)
    page = (ROOT / name).read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [code] = [block for block in blocks if "import adapter_bert" in block]
    # The tiny BERT has 32 positions.
    code = code.replace("max_seq_length=64", "max_seq_length=24")
    code = code.replace("answers.to_frame()", "answers")
    exec(compile(code, name, "exec"), {})
    folder = re.search('output_dir="(out/[a-z]+)"', code)[1]
    assert Path(folder, "adapter/adapter.safetensors").exists()


def test_the_signature_shows_the_settings():
    shown = inspect.signature(ab.train).parameters
    assert shown["num_train_epochs"].default == 3.0
    assert shown["label_columns"].annotation
    assert not {"settings", "init_checkpoint", "do_train"} & set(shown)
    # Defaults of the functions, flags of all kinds of tasks.
    assert shown["engine"].default == "strategy"
    assert {"token_column", "doc_stride"} <= set(shown)
    assert "output_dir" not in inspect.signature(ab.Predictor).parameters
    shown = inspect.signature(ab.export).parameters
    assert {"embeddings", "layers", "normalize"} <= set(shown)
    assert shown["layers"].default == ["-1"]
