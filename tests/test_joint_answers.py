"""Several tasks asked at once: equal to each asked alone."""

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import SENTENCES, module_fixture
from task_files import TINY_CONTEXTS
from tiny_artifacts import CLASSIFICATION, make_adapters, make_artifact

from adapter_bert.answering import predictor as predictor_module
from adapter_bert.answering.predictor import Predictor
from adapter_bert.answering.task_tables import MixedBert
from adapter_bert.tasks.text_task import TextTask

pytestmark = pytest.mark.newer_stack

TEXTS = [text for text, _ in SENTENCES]
PAIRS = list(zip(TEXTS, TEXTS[1:]))
QUESTIONS = [(question, context) for context, _, question in TINY_CONTEXTS]
LABELS = {"name": "custom", "labels": ["x", "y", "z"], "pairs": False}
PAIR = {"name": "custom", "labels": ["no", "yes"], "pairs": True}
SCORE = {"name": "custom", "regression": True, "pairs": False}
SETS = {
    "name": "custom",
    "labels": ["a", "b", "c", "d"],
    "pairs": False,
    "multi_label": True,
}
SQUAD = {"name": "squad"}
# Of four kinds of methods and heads, in several sizes.
LIBRARY = {
    "small": ("houlsby(size=3)", CLASSIFICATION, TEXTS),
    "large": ("houlsby(size=4)", LABELS, TEXTS),
    "pair": ("lora(rank=3, alpha=6.0)", PAIR, PAIRS),
    "score": ("houlsby(size=4)", SCORE, TEXTS),
    "sets": ("houlsby(size=3)", SETS, TEXTS),
    "whole": ("full", CLASSIFICATION, TEXTS),
    "squad": ("lora(rank=4)", SQUAD, QUESTIONS),
}
TAGS = {"name": "tagging", "tags": ["O", "B-X", "I-X", "B-Y-Z", "I-Y-Z"]}
# And one that is not exported.
MIXED = {
    **LIBRARY,
    "tags": (
        "lora(rank=4)",
        TAGS,
        [*TEXTS, TEXTS[0].split(), ["not", " ", "good"], ""],
    ),
}


@module_fixture
def folders(tiny_bert, tmp_path_factory):
    tasks = {name: about[:2] for name, about in MIXED.items()}
    place = tmp_path_factory.mktemp("adapters")
    return make_adapters(place, tiny_bert, tasks)


@pytest.fixture
def load(bert, folders):
    """A predictor of some of the library's tasks."""

    def open_predictor(*names, **options):
        predictor = Predictor(bert, **options)
        for name in names or MIXED:
            predictor.add(folders[name], name)
        return predictor

    return open_predictor


def assert_equal(answer, expected, apart=1e-5):
    """Words exactly, numbers nearly."""
    assert answer.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_equal(answer[key], value, apart)
        elif key == "entities":
            assert len(answer[key]) == len(value)
            for entity, one in zip(answer[key], value):
                assert_equal(entity, one, apart)
        elif isinstance(value, float) or key == "vector":
            # Of numbers far from 1, the last bits of a float32.
            assert answer[key] == pytest.approx(value, rel=1e-6, abs=apart)
        else:
            assert answer[key] == value


def test_tasks_of_one_kind_share_tables(load):
    """Sizes 3 and 4, and ranks of one scale; tables are no longer than that."""
    predictor = load()
    rows = {name: list(rows[:1]) for name, (_, _, rows) in MIXED.items()}
    expected = predictor("small", rows["small"])
    predictor.ask([(name, row) for name in MIXED for row in rows[name]])
    counts = {
        (name.partition("/")[0], int(tf.shape(table)[0]))
        for name, table in predictor._tables.model().tables.items()
        if name.startswith("kind_")
    }
    assert sorted(count for _, count in counts) == [3, 4]
    # Values are in memory once, and what asks one task finds them.
    assert_equal(predictor("small", rows["small"])[0], expected[0])
    assert predictor.ask([]) == []


def test_more_tasks_than_a_batch_has_rows_read_a_text(load):
    names = ["small", "whole", "score", "large"]
    predictor = load(*names, batch_size=2)
    one = predictor(names, TEXTS[0])
    assert list(one) == names
    assert_equal(one, {name: predictor(name, TEXTS[0]) for name in names})
    assert predictor(names, []) == []
    assert len(list(predictor(names, iter(TEXTS)))) == len(TEXTS)


@refusals.table(
    {
        "of two sizes": (lambda ask: ask(["pair", "large"], PAIRS), "row 1: f"),
        "two texts": (lambda ask: ask("large", ["a", ("a", "b")]), "row 2: f"),
        "a number": (lambda ask: ask("large", ["a", 3]), "row 2: found a int"),
        "numbers": (lambda ask: ask("large", [(3,)]), "row 1: found a int"),
        "half": (lambda ask: ask("large", ["\ud800"]), "half a character"),
        "words": (lambda ask: ask("large", [["a", "b"]]), "a list of words"),
        "a word": (lambda ask: ask("tags", [["a", 3]]), "row 1: found a int"),
        "texts": (lambda ask: ask("tags", [("a", "b")]), "2 texts", "reads 1"),
        "of one": (
            lambda ask: ask.ask([("pair", PAIRS[0]), ("large", PAIRS[0])]),
            "row 2: found 2 texts",
        ),
        "of no adapter": (
            lambda ask: ask.ask([("lost", "a cat")]),
            "'lost'",
            "pair, large, tags",
        ),
        "of no task": (lambda ask: ask([], "a cat"), "no task is named"),
    }
)
def test_rows_that_are_refused(load, call, parts):
    predictor = load("pair", "large", "tags")
    refusals.check(lambda: call(predictor), *parts)


def test_texts_are_tokenized_once_for_tasks_that_read_alike(load, monkeypatch):
    predictor = load("small", "large", "score")
    made, compute = [], predictor_module.compute
    monkeypatch.setattr(
        predictor_module,
        "compute",
        lambda tables, groups, size: (
            made.extend(groups) or compute(tables, groups, size)
        ),
    )
    predictor(["small", "large", "score"], TEXTS)
    assert [len(group.tasks) for group in made] == [3]
    made.clear()
    monkeypatch.setattr(TextTask, "reading", None)
    predictor(["small", "large", "score"], TEXTS)
    assert [len(group.tasks) for group in made] == [1, 1, 1]


@pytest.mark.gate
def test_a_task_of_a_known_kind_builds_nothing(
    load, tiny_bert, tmp_path, monkeypatch
):
    predictor = load("small", "score")
    built = []
    build = MixedBert._make_function
    monkeypatch.setattr(
        MixedBert,
        "_make_function",
        lambda tables: built.append(1) or build(tables),
    )
    questions = [("small", TEXTS[0]), ("score", TEXTS[1])]
    predictor.ask(questions)
    for number in range(12):
        folder = tmp_path / str(number)
        make_artifact(folder, tiny_bert, "houlsby(3)", seed=number)
        predictor.add(str(folder), "new")
        expected = predictor("new", TEXTS[2])
        answer = predictor.ask([*questions, ("new", TEXTS[2])])[-1]
        assert_equal(answer, expected)
    assert len(built) == 1
    # The rows of those that were replaced are used again.
    assert predictor._tables._tasks.count <= 4
    make_artifact(tmp_path / "other", tiny_bert, "bitfit")
    predictor.add(str(tmp_path / "other"), "other")
    answer = predictor.ask([*questions, ("other", TEXTS[2])])
    assert_equal(answer[-1], predictor("other", TEXTS[2]))
    assert_equal(answer[0], predictor("small", TEXTS[0]))
    assert len(built) == 2


@pytest.mark.gate
def test_adapters_are_kept_in_bfloat16(load):
    exact = load("small", "large")
    predictor = load("small", "large", adapter_dtype="bfloat16")
    questions = [("small", TEXTS[0]), ("large", TEXTS[1])]
    alone = predictor("small", TEXTS[0])
    for rounded, one in zip(predictor.ask(questions), exact.ask(questions)):
        assert rounded != one
        assert rounded["probability"] == pytest.approx(
            one["probability"], abs=1e-2
        )
    tables = predictor._tables.model().tables.items()
    adapters = {table.dtype for name, table in tables if "adapters" in name}
    others = {table.dtype for name, table in tables if "adapters" not in name}
    assert (adapters, others) == ({tf.bfloat16}, {tf.float32})
    # The values given back are float32, and rounded.
    assert predictor("small", TEXTS[0]) == alone
    values = predictor.task("small").values.get().values()
    assert {value.dtype for value in values} == {tf.float32}


@pytest.mark.gate
def test_vectors_of_adapters_are_kept_in_float32(bert, tiny_bert, tmp_path):
    """So scales near 1 keep what a training has changed."""
    make_artifact(tmp_path / "scales", tiny_bert, "ia3")
    predictor = Predictor(bert, adapter_dtype="bfloat16")
    predictor.add(str(tmp_path / "scales"), "scales")
    values = predictor.task("scales").values
    exact = dict(values.get())
    predictor.ask([("scales", TEXTS[0])])
    assert values.is_placed
    kept = values.get()
    assert all(np.array_equal(kept[name], x) for name, x in exact.items())
