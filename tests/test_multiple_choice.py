"""Which of some texts goes with a text: files, batches, runs, answers."""

import functools
import json
import os
import sys
from types import SimpleNamespace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
import roberta_folders
import tensorflow as tf
from conftest import (
    SENTENCES,
    TINY_WORDS,
    cells,
    entry_point,
    read_json,
    write_json_lines,
    write_lines,
)
from numpy.testing import assert_allclose, assert_array_equal
from task_files import read
from tiny_artifacts import make_artifact
from tiny_model import TinyModel

from adapter_bert.commands import predict
from adapter_bert.data.input_pipeline import Choices, Features, make_batch
from adapter_bert.tasks import metrics
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.kinds import TASKS
from adapter_bert.tasks.multiple_choice import ChoiceHead

COPA, SWAG = TASKS["copa"], TASKS["swag"]
OLDER = pytest.mark.older_stack
OWN = custom_task(text_a_column="q", choice_columns=("a", "b", "c"))


def copa_row(number=0, **changes):
    text, _ = SENTENCES[number % len(SENTENCES)]
    # The right one is the other in every second row.
    choices = ["good film", "bad dog"][:: 1 if number % 2 else -1]
    return {
        "premise": text,
        "choice1": choices[0],
        "choice2": choices[1],
        "question": ("cause", "effect")[number // 2 % 2],
        "label": (number + 1) % 2,
        "idx": number,
        **changes,
    }


# Reading


def words(ids):
    return " ".join(TINY_WORDS[number] for number in ids)


def texts_of(features):
    """The words of each choice's sequence."""
    bounds = zip(features.starts, features.starts[1:])
    return [words(features.tokens[first:last]) for first, last in bounds]


def test_swag_is_read_as_published(tmp_path, tokenizer):
    lines = [
        ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
        "ending0,ending1,ending2,ending3,label",
        "0,v,1,the cat . the dog,the cat .,the dog,gold,sat,ran,is,was,2",
        '1,v,1,x,"a cat, a dog",the,gen,"ran, in",in,on,out,0',
    ]
    write_lines(tmp_path / "val.csv", lines)
    rows = read(SWAG, tmp_path, "val")
    features = SWAG.featurize(rows, tokenizer, 32)
    assert len(features) == len(rows) == 2 and features.choices == 4
    assert features.labels["label_ids"].tolist() == [2, 0]
    first, second = "the cat . [SEP] the dog", "a cat , a dog [SEP] the"
    assert texts_of(features) == [
        f"[CLS] {text} {ending} [SEP]"
        for text, endings in (
            (first, "sat|ran|is|was"),
            (second, "ran , in|in|on|out"),
        )
        for ending in endings.split("|")
    ]
    assert features.segments[:9].tolist() == [0] * 5 + [1] * 4


def test_copa_asks_for_causes_and_effects(tmp_path, tokenizer):
    rows = [copa_row(), copa_row(2)]
    for split in ("val", "test"):
        write_json_lines(tmp_path / f"{split}.jsonl", rows)
        for row in rows:
            row.pop("label", None)
    made = read(COPA, tmp_path, "val")
    features = COPA.featurize(made, tokenizer, 32)
    assert read(COPA, tmp_path, "test").choices == made.choices
    questions = "What was the cause of this?", "What happened as a result?"
    pairs = [
        (row["premise"], f"{question} {row[name]}")
        for row, question in zip(rows, questions)
        for name in ("choice1", "choice2")
    ]
    assert texts_of(features) == [
        f"[CLS] {words(premise)} [SEP] {words(choice)} [SEP]"
        for premise, choice in map(tokenizer.encode_ids, pairs)
    ]
    assert features.labels["label_ids"].tolist() == [1, 1]


def write_own(folder, rows, split="train", header="q\ta\tb\tc\tlabel"):
    lines = [header, *("\t".join(row) for row in rows)]
    write_lines(folder / f"{split}.tsv", lines)


def test_a_label_is_a_number_or_a_column(tmp_path):
    write_own(tmp_path, [("q", "x", "y", "z", label) for label in ("1", "c")])
    rows = read(OWN, tmp_path, "train")
    assert rows.choices == (["x", "x"], ["y", "y"], ["z", "z"])
    assert OWN.label_features(rows.label)["label_ids"].tolist() == [1, 2]


def test_columns_by_number(tmp_path):
    task = custom_task("1", None, "0", header=False, choice_columns=("3", "2"))
    assert task.columns == ("text", "choice0", "choice1")
    (tmp_path / "train.tsv").write_text("0\tq\tx\ty\nchoice1\tq\tx\ty\n")
    rows = read(task, tmp_path, "train")
    assert rows.choices == (["y", "y"], ["x", "x"])
    assert task.label_features(rows.label)["label_ids"].tolist() == [0, 1]


def own_row(*cells):
    return OWN, dict(zip(("q", "a", "b", "c", "label"), cells))


@refusals.table(
    {
        "empty": (own_row("q", "x", " ", "z", "0"), "the choice 'b' is empty"),
        "cells": (own_row("q", "x", "y"), "no key 'c'"),
        "high": (own_row(*"qxyz3"), "the label is '3', expected the right"),
        "none": (own_row(*"qxyz", ""), "the label is ''"),
        "case": (own_row(*"qxyzA"), "its column, 'a' or 'b' or 'c'"),
        "question": (
            (COPA, copa_row(question="why")),
            "'why', expected cause or effect",
        ),
        "label": ((COPA, copa_row(label=2)), "the label is '2'"),
    }
)
def test_a_malformed_row_is_refused_with_its_place(tmp_path, call, parts):
    task, row = call
    good = copa_row() if task is COPA else own_row(*"qxyz0")[1]
    path = tmp_path / "train.jsonl"
    write_json_lines(path, [good, row])
    refusals.check(lambda: read(task, tmp_path, "train"), f"{path}:2: ", *parts)


def test_a_part_of_the_training_file_is_held_out(tmp_path):
    write_own(tmp_path, [(f"q{i}", "x", f"y{i}", "z", "0") for i in range(20)])
    task = custom_task("q", choice_columns=("a", "b", "c"), dev_share=0.25)
    _, rows = task.read(str(tmp_path), ["train", "dev"])
    assert [len(rows[split]) for split in ("train", "dev")] == [15, 5]
    for part in rows.values():
        numbers = [text[1:] for text in part.text_a]
        assert [text[1:] for text in part.choices[1]] == numbers


# Results

LOGITS = np.array([[1], [2], [0], [3], [0], [1]], np.float32)


def test_scores_and_files_are_of_the_chosen(tmp_path):
    write_own(tmp_path, [(*"qxyz", "1"), (*"qxyz", "c")])
    rows = OWN.keep(read(OWN, tmp_path, "train"))
    labels = OWN.label_features(["1", "c"])
    features = SimpleNamespace(labels=labels, answer_labels=labels)
    outputs = OWN.decode(rows, features, {"logits": LOGITS})
    scores = OWN.evaluate(rows, features, outputs)
    assert list(scores) == ["accuracy", "loss"] and scores["accuracy"] == 0.5
    results, path = OWN.write_predictions(str(tmp_path), rows, outputs)
    assert np.loadtxt(results).shape == (2, 3)
    described = read_json(tmp_path / "test_results.json")
    assert described == {"columns": ["a", "b", "c"]}
    lines = [row[:2] for row in cells(path)]
    assert lines == [["id", "label"], ["0", "1"], ["1", "0"]]
    (first, _) = OWN.answer(rows, outputs)
    assert list(first) == ["choice", "probability", "scores"]
    assert first["choice"] == 1
    assert first["probability"] == first["scores"]["b"]


@pytest.mark.parametrize("number", [-1, True, 10**9, "2"])
def test_a_number_of_choices_that_is_none(number):
    about = {"name": "custom", "pairs": False, "choices": number}
    call = functools.partial(restore_task, about, {}, "head")
    refusals.check(call, "task.choices is")


# Long texts

NUMBERS = SimpleNamespace(
    classify_id=-1,
    separate_id=-2,
    between=[-2],
    second_segment=1,
    keeps_end=False,
    encode_ids=lambda texts: [list(map(int, text.split())) for text in texts],
)
QUESTIONS = custom_task(
    text_a_column="q", text_b_column="b", choice_columns=("c", "d", "e")
)


def sequences_of(task, row, length):
    """Each choice's tokens between the special ones, and how many are cut."""
    features = task.featurize(task.make_rows([row]), NUMBERS, length)
    bounds = zip(features.starts, features.starts[1:])
    sequences = [features.tokens[a:b].tolist() for a, b in bounds]
    assert all(
        len(x) <= length and x[0] == -1 and x[-1] == -2 for x in sequences
    )
    return [(x[1 : x.index(-2)], x[x.index(-2) + 1 : -1]) for x in sequences], (
        features.cut_rows
    )


LENGTHS = st.integers(0, 12)


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    LENGTHS,
    st.none() | LENGTHS,
    st.tuples(*[st.integers(1, 12)] * 3),
    st.integers(5, 40),
)
@hypothesis.example(4, 21, (1, 2, 1), 16)
@hypothesis.example(20, None, (3, 3, 9), 12)
@hypothesis.example(12, 12, (12, 1, 1), 15)
def test_texts_are_cut_alike_and_choices_last(len_a, len_b, lengths, limit):
    task = QUESTIONS if len_b is not None else OWN
    texts = [range(100, 100 + len_a)]
    texts += [] if len_b is None else [range(200, 200 + len_b)]
    choices = [
        list(range(n * 100, n * 100 + x)) for n, x in enumerate(lengths, 3)
    ]
    row = tuple(" ".join(map(str, text)) for text in (*texts, *choices))
    pairs, cut_rows = sequences_of(task, row, limit)
    a, b = (list(text) for text in (*texts, [])[:2])
    room, longest = limit - 3, max(lengths)
    assert cut_rows == (len(a) + len(b) + longest > room)
    [(first_a, first_b), *_] = pairs
    kept_b = [x for x in first_b if x < 300]
    for choice, (own_a, own_b) in zip(choices, pairs):
        assert own_a == first_a == a[: len(first_a)]
        assert own_b == kept_b + choice[:room] and kept_b == b[: len(kept_b)]
    if not cut_rows:
        assert (first_a, kept_b) == (a, b)
    else:
        # Nothing is cut for no reason; the longer text is cut first.
        assert len(first_a) + len(kept_b) == max(0, room - longest)
        if kept_b != b and first_a != a:
            assert abs(len(first_a) - len(kept_b)) <= 1


@roberta_folders.BOTH
def test_a_byte_level_question_is_told_from_its_choices(golden_dir, name):
    """Choices follow after a space, with which their tokens begin."""
    read = roberta_folders.read_recorded(golden_dir, name).tokenizer
    for question in ("Who sat down?", "", "it's ", "\u00e9a\u4e00"):
        row = "some text", question * 9, "a word", "Others!", "the third"
        features = QUESTIONS.featurize(QUESTIONS.make_rows([row]), read, 40)
        for number, tokens in enumerate(read.encode_words(row[2:])):
            end = features.starts[number + 1]
            assert features.tokens[end - 1 - len(tokens) : end].tolist() == [
                *tokens,
                read.separate_id,
            ]


# Serving


def test_an_empty_choice_from_an_open_pipe_ends_predict(
    tiny_bert, tmp_path, monkeypatch
):
    adapter, about = tmp_path / "a", {"name": "copa", **COPA.describe()}
    make_artifact(adapter, tiny_bert, "houlsby(size=3)", COPA, about)
    receive, send = os.pipe()
    os.write(send, json.dumps(copa_row(choice1="")).encode() + b"\n")
    flags = {"init_checkpoint": tiny_bert, "adapter": adapter}
    with open(receive) as stdin, entry_point(predict) as run:
        monkeypatch.setattr(sys, "stdin", stdin)
        words = "stdin:1: the choice 'choice1' is empty"
        refusals.check(lambda: run(**flags), words)
        os.close(send)


@OLDER
@hypothesis.given(st.integers(1, 5), st.integers(2, 4), st.data())
def test_a_rows_choices_stay_together_in_its_batch(count, choices, data):
    """As the choices would be alone, where each is a row."""

    def draw(values, size):
        return data.draw(st.lists(values, min_size=size, max_size=size))

    lengths = draw(st.integers(1, 6), count * choices)
    rows = [
        (range(10 * i, 10 * i + n), [i % 2] * n) for i, n in enumerate(lengths)
    ]
    features = choices_of(rows, choices)
    assert features.lengths.tolist() == (
        np.reshape(lengths, [count, choices]).max(axis=1).tolist()
    )
    chosen = np.array(draw(st.integers(0, count - 1), 3))
    batch = make_batch(features, chosen, None)
    assert batch["label_ids"].tolist() == chosen.tolist()
    alone = features.unlabelled()
    assert alone.lengths.tolist() == lengths
    places = (choices * chosen[:, np.newaxis] + np.arange(choices)).ravel()
    expected = make_batch(alone, places, None)
    for name in ("input_ids", "input_mask", "segment_ids"):
        rows_alone = batch[name].reshape(3 * choices, -1)
        assert_array_equal(rows_alone, expected[name])


def choices_of(sequences, choices):
    labels = np.arange(len(sequences) // choices, dtype=np.int32)
    rows = Features.from_rows(sequences, {"label_ids": labels})
    return Choices(**vars(rows), choices=choices)


@OLDER
def test_the_loss_is_the_cross_entropy_over_a_rows_choices(tiny_config):
    head = ChoiceHead(
        tiny_config, lambda name, shape, _: tf.zeros(shape), COPA.head
    )
    logits = np.array([[1.0, 3.0, 0.0], [2.0, 2.0, 2.0]], np.float32)
    labels = np.array([1, 0], np.int32)
    losses = head.loss(
        {"logits": tf.constant(logits.reshape(6, 1))}, {"label_ids": labels}
    )
    expected = metrics.cross_entropy(logits, labels)
    assert_allclose(losses, expected, rtol=1e-6)


@OLDER
@pytest.mark.parametrize(
    "text",
    ["pals(6, 2)", "prompt(length=2, heads_read='prompt')", "lt_sft", "full"],
)
def test_methods_compute_choices_as_rows(tiny_config, text):
    tiny = TinyModel(tiny_config, text)
    expected = tiny.logits()
    rows = dict(tiny.features)
    for name in ("input_ids", "input_mask", "segment_ids"):
        tiny.features[name] = tf.reshape(rows[name], [2, 2, 9])
    assert_allclose(tiny.logits(), expected, atol=1e-6)
