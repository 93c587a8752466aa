"""A library's adapters, trained anew on another BERT."""

import collections
import functools
import json
import sys

import numpy as np
import pytest
import refusals
from conftest import (
    SENTENCES,
    TINY_WORDS,
    cells,
    flag_words,
    module_fixture,
    open_bert,
    read_adapter,
    read_json,
    trained_task,
    write_bert,
    write_lines,
    write_table,
)
from numpy.random import default_rng
from run_folders import interrupt
from task_files import make_rows
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.answering.trained_task import load_task
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.commands import library
from adapter_bert.library import moved_library
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.tasks.novelty import LEAST_ROWS, NOVELTY, fit

pytestmark = pytest.mark.older_stack

# Texts that are alike, so that those held out follow from the others.
PAIRS = [
    (f"{text} {word}", word) for text, _ in SENTENCES for word in TINY_WORDS[5:]
]
UNIT = {"mean": 3.0, "deviation": 2.0, "low": 0.0, "high": 6.0}
# The method and the task of each adapter.
SHELF = {
    "one": ("houlsby(size=4)", CLASSIFICATION),
    "value": (
        "houlsby(size=4)",
        {
            "name": "custom",
            "regression": True,
            "pairs": True,
            "label_unit": UNIT,
        },
    ),
    # Another method is trained in a run of its own.
    "sets": (
        "pfeiffer(size=4)",
        {**CLASSIFICATION, "labels": ["p", "q"], "multi_label": True},
    ),
    "questions": ("houlsby(size=4)", {"name": "squad"}),
}
EPOCHS = 40
TRAINING = {"num_train_epochs": EPOCHS, "learning_rate": 5e-3, "held_out": 0.2}


def texts_of(name):
    """Different texts that an adapter reads."""
    pairs = SHELF[name][1].get("pairs")
    return PAIRS if pairs else [(text,) for text, _ in PAIRS]


def outputs_of(loaded, texts):
    rows = loaded.task.make_rows(texts)
    return moved_library._compute(loaded, rows)[1].values()


def spread(bert, folder, name):
    """Changes a random adapter's head, so that answers differ."""
    [outputs] = outputs_of(trained_task(bert, folder), texts_of(name))
    outputs = outputs.reshape(len(outputs), -1)
    artifact = read_adapter(folder, bert.weights)
    weights = artifact.weights
    values = {n: weights.read(n) for n in weights.shapes}
    mean, deviation = outputs.mean(axis=0), outputs.std(axis=0)
    values["output_weights"] *= 2 / deviation[:, np.newaxis]
    values["output_bias"] = 2 * (values["output_bias"] - mean) / deviation
    config = {**artifact.config, "task_settings": of_old_bert(bert)}
    adapter_artifact.write(str(folder), config, values)


def of_old_bert(bert):
    """A sketch of novelty, which no other BERT can tell."""
    size = bert.config.hidden_size
    rows = default_rng(0).normal(size=(LEAST_ROWS, size))
    return {NOVELTY: fit(rows.astype(np.float32)).settings}


@module_fixture
def other_bert(tmp_path_factory, tiny_config):
    """A BERT with other sizes, another vocabulary and other values."""
    words = [*TINY_WORDS, "bird"]
    config = encoder.BertConfig(
        **{
            **vars(tiny_config),
            "vocab_size": len(words),
            "hidden_size": 24,
            "num_hidden_layers": 1,
        }
    )
    rng, values = default_rng(5), {}

    def create(name, shape, initializer):
        mean = 1.0 if name.endswith("gamma") else 0.0
        values[name] = rng.normal(mean, 0.1, shape).astype(np.float32)

    encoder.make_variables(encoder.declare(config), create)
    folder = tmp_path_factory.mktemp("other_bert")
    return write_bert(folder, words, config, values)


@module_fixture
def place(tmp_path_factory, tiny_bert):
    """A folder with the shelf, texts, and dev rows that `one` is right on."""
    folder = tmp_path_factory.mktemp("moved")
    bert = open_bert(tiny_bert)
    shelf = AdapterLibrary(str(folder / "shelf"), create=True)
    for seed, (name, (method, task)) in enumerate(SHELF.items()):
        made = folder / "made" / name
        make_artifact(made, tiny_bert, method, description=task, seed=seed)
        if name != "questions":
            spread(bert, made, name)
        shelf.add(str(made), name)
    lines = [json.dumps({"text": a, "text_b": b}) for a, b in PAIRS * 2]
    write_lines(folder / "texts.jsonl", lines)
    texts = [row[:1] for row in PAIRS[::2]]
    loaded = load_task(bert, shelf.folder("one"), None)
    [logits] = outputs_of(loaded, texts)
    labels = np.array(CLASSIFICATION["labels"])[logits.argmax(axis=1)]
    rows = [(text, label) for (text, _), label in zip(PAIRS[::2], labels)]
    # An adapter that gives all texts one label does not agree.
    assert max(collections.Counter(labels).values()) <= 0.75 * len(labels)
    write_table(folder / "dev.tsv", rows)
    return folder


@module_fixture
def move(place, tiny_bert, other_bert):
    """Moves a shelf by the command; gives the new library's folder."""

    def move(name, *more, shelf="shelf", **changed):
        flags = {
            "init_checkpoint": tiny_bert,
            "to": other_bert,
            "output_dir": place / name,
            "texts": place / "texts.jsonl",
            **TRAINING,
            **changed,
        }
        words = flag_words(flags)
        with pytest.MonkeyPatch.context() as patch:
            command = ["library", "move", str(place / shelf), *words, *more]
            patch.setattr(sys, "argv", command)
            library.main()
        return place / name

    return move


@module_fixture
def moved(move, place):
    return move("whole", f"--dev=one={place / 'dev.tsv'}")


def read(folder):
    """What came of each adapter, by name."""
    record = read_json(folder / moved_library.RECORD_FILE)
    return {one["name"]: one for one in record["adapters"]}


@pytest.mark.gate
def test_new_adapters_agree_with_the_old_ones_and_dev_rows_score_both(moved):
    adapters = read(moved)
    assert set(adapters) == set(SHELF) - {"questions"}
    for one in adapters.values():
        assert (one["texts"], one["held_out"]) == (320, 80)
    assert adapters["one"]["agreement"] >= 0.8
    assert adapters["value"]["agreement"] >= 0.6
    assert adapters["value"]["measure"] == "pearson"
    one = adapters["one"]
    assert one["old"]["accuracy"] == 1
    assert one["new"]["accuracy"] >= 0.75
    entry = AdapterLibrary(str(moved)).entry("one")
    assert entry.scores == one["new"]
    names, *rows = cells(moved / moved_library.TABLE_FILE)
    assert names[-3:] == ["score", "old", "new"]
    assert {row[0]: row[-3:] for row in rows}["sets"] == ["-"] * 3


@pytest.mark.parametrize("share, held_out", [(0.5, 6), (0.01, 4), (0.99, 8)])
def test_equal_texts_are_on_one_side(share, held_out):
    """And both sides have two texts."""
    rows = make_rows(*"abcdef" * 2)
    settings = moved_library.Move(held_out=share)
    chosen = moved_library._hold_out(rows, settings)
    assert chosen.sum() == held_out
    assert (chosen[:6] == chosen[6:]).all()


@pytest.mark.gate
def test_new_adapters_keep_task_and_method(moved, place, other_bert):
    bert = open_bert(other_bert)
    old, new = AdapterLibrary(str(place / "shelf")), AdapterLibrary(str(moved))
    assert new.names() == sorted(set(SHELF) - {"questions"})
    for name in new.names():
        before, after = (
            adapter_artifact.read_config(one.folder(name)) for one in (old, new)
        )
        assert after["method"] == before["method"]
        assert NOVELTY in before["task_settings"]
        assert NOVELTY not in after["task_settings"]
        assert after["task"] == {
            **before["task"],
            "pairs": bool(before["task"].get("pairs")),
            **({"label_threshold": 0.5} if name == "sets" else {}),
        }
        loaded = load_task(bert, new.folder(name), None)
        assert loaded.max_seq_length == before["training"]["max_seq_length"]


@pytest.mark.gate
def test_a_killed_move_goes_on_with_the_same_bits(moved, move, place):
    """At a checkpoint of the second adapter, when the first is added."""

    def go_on():
        dev = f"--dev=one={place / 'dev.tsv'}"
        return move("killed", dev, save_checkpoints_steps=300)

    interrupt(go_on, "sets")
    assert AdapterLibrary(str(place / "killed")).names() == ["one"]
    (place / "killed" / "lost+found").mkdir()
    killed = go_on()
    assert read(killed) == read(moved)
    for name in AdapterLibrary(str(moved)).names():
        first, second = (
            (folder / name / adapter_artifact.WEIGHTS_FILE).read_bytes()
            for folder in (moved, killed)
        )
        assert first == second


@pytest.mark.parametrize(
    "more, changed, part",
    [
        ("", {"output_dir": "shelf"}, "{0}/shelf"),
        ("", {"to": "old"}, "--to"),
        ("", {"texts": "one={0}/texts.jsonl"}, "--texts=FILE"),
        ("", {"texts": "{0}/few.txt"}, "{0}/few.txt"),
        ("", {"texts": "{0}/a=b.txt"}, "{0}/a=b.txt"),
        ("--texts=value={0}/few.txt", {}, "text and text_b"),
        ("--dev=other={0}/dev.tsv", {}, "--dev names the adapter 'other'"),
        ("--dev={0}/dev.tsv", {}, "--dev=NAME=FILE"),
        ("--texts={0}/few.txt", {}, "{0}/texts.jsonl and {0}/few.txt"),
        ("", {"held_out": 1}, "--held_out is 1.0"),
        ("", {"temperature": 0}, "--temperature is 0.0"),
        ("--early_stopping=2", {}, "--early_stopping needs a dev set"),
        ("--keep_best=accuracy", {}, "--keep_best needs a dev set"),
    ],
)
def test_what_does_not_fit_is_refused_first(
    move, place, tiny_bert, more, changed, part
):
    for name in ("few.txt", "a=b.txt"):
        (place / name).write_text("a cat\na dog\n")
    named = {"shelf": place / "shelf", "old": tiny_bert}
    changed = {
        flag: named.get(value, str(value).format(place))
        for flag, value in changed.items()
    }
    words = more.format(place).split()
    call = functools.partial(move, "refused", *words, **changed)
    refusals.check(call, part.format(place))
    assert not (place / "refused").exists()


@pytest.mark.gate
def test_a_library_is_not_moved_into_itself(moved, move):
    """Not even one that a move has made."""
    refusals.check(lambda: move(moved.name, shelf=moved.name), moved)


def test_a_library_without_a_fitting_adapter_is_refused(
    place, tiny_bert, other_bert, tmp_path, caplog, shelf
):
    shelf.add(str(place / "made" / "questions"), "questions")
    either = {**CLASSIFICATION, "pairs": None}
    made = tmp_path / "either"
    make_artifact(made, tiny_bert, "houlsby(size=4)", description=either)
    shelf.add(str(made), "either")
    settings = moved_library.Move(
        init_checkpoint=str(tiny_bert),
        to=str(other_bert),
        output_dir=str(tmp_path / "moved"),
        texts=[str(place / "texts.jsonl")],
    )
    refusals.check(lambda: moved_library.move(shelf, settings), shelf.path)
    assert "questions is not moved: its kind is questions" in caplog.text
    assert "either is not moved: its files do not tell" in caplog.text
