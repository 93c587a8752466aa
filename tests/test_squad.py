"""Question answering: head, scores, and the task without a model's training."""

import json
import logging
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
import tensorflow as tf
from absl import logging as absl_logging
from conftest import write_json
from hypothesis import given, settings
from numpy.random import default_rng
from numpy.testing import assert_allclose

from adapter_bert.bert.hooks import Context
from adapter_bert.tasks import squad
from adapter_bert.tasks.squad import (
    NEVER,
    NBest,
    Prediction,
    SpanHead,
    Squad,
    best_logits,
)
from adapter_bert.tasks.squad_data import SquadAnswer, SquadQuestion

pytestmark = pytest.mark.older_stack

TASK = Squad(
    "squad",
    train_file="train.json",
    predict_file="dev.json",
    doc_stride=3,
    max_query_length=3,
    n_best_size=4,
    max_answer_length=5,
)
TASK_2 = replace(TASK, version_2_with_negative=True)


@pytest.fixture
def warnings(caplog, monkeypatch):
    """What was logged as a warning."""
    monkeypatch.setattr(absl_logging.get_absl_logger(), "propagate", True)
    with caplog.at_level(logging.WARNING, "absl"):
        yield caplog


def ask(name, context, *answers):
    """A question whose answers are at their places in the context."""
    return SquadQuestion(
        name,
        "is a cat in ?",
        context,
        tuple(SquadAnswer(text, context.index(text)) for text in answers),
    )


def write_file(path, questions):
    paragraphs = []
    for question in questions:
        qa = {"id": question.id, "question": question.text}
        if question.answers is not None:
            qa["answers"] = [
                {"text": a.text, "answer_start": a.start}
                for a in question.answers
            ]
        paragraphs.append({"context": question.context, "qas": [qa]})
    write_json(path, {"data": [{"paragraphs": paragraphs}]})


# Reading


def read(task, folder, split):
    """The questions of one split."""
    same, rows = task.read(folder, [split])
    assert same is task
    return rows[split]


TWO = [ask("q1", "the cat sat", "cat"), ask("q2", "a dog ran", "dog")]
UNLABELLED = [replace(question, answers=None) for question in TWO]


def test_splits_are_read_from_the_files_that_are_named(tmp_path):
    write_file(tmp_path / "train.json", TWO)
    write_file(tmp_path / "dev.json", TWO[1:])
    assert read(TASK, str(tmp_path), "train") == TWO
    assert read(TASK, str(tmp_path), "dev") == TWO[1:]
    assert read(TASK, str(tmp_path), "test") == TWO[1:]
    path = str(tmp_path / "dev.json")
    elsewhere = replace(TASK, train_file=path)
    assert read(elsewhere, "", "train") == TWO[1:]
    # Questions to answer need no answers.
    write_file(tmp_path / "dev.json", UNLABELLED)
    assert read(TASK, str(tmp_path), "test") == UNLABELLED


def lost(number):
    return SquadQuestion(
        f"lost{number}", "?", "the cat", (SquadAnswer("dog", 4),)
    )


def test_training_leaves_out_lost_answers_and_names_some(tmp_path, warnings):
    many = [lost(number) for number in range(7)]
    write_file(tmp_path / "train.json", [*many[:4], *TWO, *many[4:]])
    write_file(tmp_path / "dev.json", [*many, *TWO])
    assert read(TASK, str(tmp_path), "train") == TWO
    assert "7 of 9 questions left out" in warnings.text
    assert str(tmp_path / "train.json") in warnings.text
    assert ": lost0, lost1, lost2, lost3, lost4, ..." in warnings.text
    assert "lost5" not in warnings.text
    warnings.clear()
    verbose = replace(TASK, verbose_logging=True)
    assert read(verbose, str(tmp_path), "train") == TWO
    assert "lost4, lost5, lost6" in warnings.text
    assert "..." not in warnings.text
    warnings.clear()
    # Scores are of all questions.
    assert read(TASK, str(tmp_path), "dev") == [*many, *TWO]
    assert not warnings.text


@pytest.mark.parametrize(
    "context,answer,start,is_counted",
    [
        ("the (cat) sat", "cat", 5, False),
        ("the\u00a0cat\u3000sat", "cat\u3000sat", 4, False),
        ("the cat sat", " cat ", 3, False),
        ("the (cat) sat", "cat", 4, True),
        ("the cat\u3000sat", "cat sat", 4, True),
    ],
)
def test_answers_that_are_off_their_place_are_counted(
    tmp_path, warnings, context, answer, start, is_counted
):
    off = SquadQuestion("off", "?", context, (SquadAnswer(answer, start),))
    write_file(tmp_path / "train.json", [*TWO, off])
    assert read(TASK, str(tmp_path), "train") == [*TWO, off]
    counted = "1 of 3 answers are not exactly at their place"
    assert (counted in warnings.text) == is_counted
    assert "left out" not in warnings.text


@refusals.table(
    {
        "unlabelled train": (
            (TASK_2, "train", UNLABELLED),
            "train.json: question 'q1' has no answer",
            '"answers" or "is_impossible"',
        ),
        "unlabelled dev": (
            (TASK, "dev", UNLABELLED),
            "dev.json: question 'q1' has no answer",
            "pass --version_2_with_negative=true",
        ),
        "impossible": (
            (TASK, "train", [*TWO, ask("q3", "the cat sat")]),
            "question 'q3' has no answer",
            "pass --version_2_with_negative=true",
        ),
        "lost": (
            (TASK, "train", [lost(1), lost(2)]),
            "holds nothing to learn from",
        ),
    }
)
def test_files_that_do_not_serve_are_refused(tmp_path, call, parts):
    task, split, questions = call
    write_file(tmp_path / f"{split}.json", questions)
    refusals.check(lambda: read(task, str(tmp_path), split), *parts)


# Steps


@pytest.mark.parametrize(
    "batch_size,epochs,questions,windows",
    [
        # 5 questions make 15 windows.
        (2, 1.0, 2, 7),
        (2, 2.0, 5, 15),
        (4, 3.0, 3, 11),
        (4, 0.5, 1, 1),
        (5, 1.0, 1, 3),
        (8, 1.0, 1, 1),
        (100, 1.0, 1, 1),
    ],
)
def test_steps_are_counted_in_questions_or_in_windows(
    tokenizer, batch_size, epochs, questions, windows
):
    examples = [ask(f"q{i}", "the cat sat on the mat .") for i in range(5)]
    features = TASK.featurize(examples, tokenizer, 9)
    assert len(features) == 15
    for task, expected in (
        (TASK, questions),
        (replace(TASK, count_steps_in="windows"), windows),
    ):
        assert task.count_train_steps(features, batch_size, epochs) == expected


def test_contexts_without_tokens_are_nothing_to_learn_from(tokenizer):
    examples = [ask("q1", "", ""), ask("q2", " ")]
    features = TASK_2.featurize(examples, tokenizer, 9)
    refusals.check(
        lambda: TASK_2.count_train_steps(features, 4, 1.0),
        "train.json holds nothing",
    )


# Answers, scores and files


@pytest.mark.parametrize("task", [TASK, TASK_2])
def test_ids_and_answers_of_any_characters_are_written(tmp_path, task):
    """In the order of the questions; numbers are those of recorded files."""
    texts = {'b"\n': 'a "cat"\n', "\udfff\u00e9": "", "a": "\u6771\ud800"}
    questions = [SquadQuestion(name, "?", "", None) for name in texts]
    predictions = [
        Prediction(text, 0.5, NBest((text,), np.zeros((1, 2)), ((0, 2),)))
        for text in texts.values()
    ]
    paths = task.write_predictions(str(tmp_path), questions, predictions)
    names = ["predictions.json", "nbest_predictions.json"]
    names += ["null_odds.json"] * task.version_2_with_negative
    assert list(paths) == [str(tmp_path / name) for name in names]
    written = [json.loads((tmp_path / name).read_text()) for name in names]
    assert list(map(list, written)) == [list(texts)] * len(names)
    assert written[0] == texts
    assert [rows[0]["text"] for rows in written[1].values()] == [
        *texts.values()
    ]


def make_head(config):
    rng = default_rng(0)
    return SpanHead(
        4,
        replace(config, hidden_size=6),
        lambda name, shape, _: tf.constant(rng.normal(size=shape), tf.float32),
    )


SEQUENCE = default_rng(1).normal(size=(2, 7, 6)).astype(np.float32)


def test_the_loss_is_the_mean_of_two_softmax_losses(tiny_config):
    head = make_head(tiny_config)
    logits = {
        # Softmax: 0.1, 0.2, 0.7 and 0.25, 0.5, 0.25.
        "start_logits": tf.constant(np.log([[1.0, 2.0, 7.0]]), tf.float32),
        "end_logits": tf.constant(np.log([[1.0, 2.0, 1.0]]), tf.float32),
    }
    for start, end, probability in ((2, 1, 0.35), (0, 0, 0.025)):
        labels = {"start_positions": [start], "end_positions": [end]}
        assert_allclose(
            head.loss(logits, labels), [-np.log(probability) / 2], rtol=1e-6
        )


@pytest.mark.parametrize("padded", [8, 20])
def test_padding_neither_wins_nor_changes_the_loss(tiny_config, padded):
    head = make_head(tiny_config)
    lengths = [7, 4]
    labels = {"start_positions": [6, 0], "end_positions": [2, 3]}
    # What stands at the padding would win.
    filling = 20 * head.weights.numpy().sum(axis=0)
    sequence = np.tile(filling, (2, padded, 1))
    for row, length in enumerate(lengths):
        sequence[row, :length] = SEQUENCE[row, :length]

    def outputs(tokens):
        mask = np.arange(tokens) < np.array(lengths)[:, np.newaxis]
        context = Context(tf.constant(mask, tf.int32))
        trained = head(None, sequence[:, :tokens], context)
        return {**head.select(trained), "loss": head.loss(trained, labels)}

    short, long = outputs(7), outputs(padded)
    for name, value in short.items():
        assert_allclose(long[name], value, rtol=1e-5, err_msg=name)
    for side in ("start", "end"):
        assert sorted(long[f"{side}_indexes"][1].numpy()) == [0, 1, 2, 3]


def test_a_window_shorter_than_the_list_is_filled_up():
    logits = tf.constant([[[1.0, 3.0, 2.0]], [[6.0, 5.0, 7.0]]])
    best = {name: x.numpy() for name, x in best_logits(logits, 5).items()}
    for side, places in (("start", [1, 2, 0]), ("end", [2, 0, 1])):
        assert best[f"{side}_indexes"][0, :3].tolist() == places
        # The rest is beyond the window.
        assert best[f"{side}_indexes"][0, 3:].min() >= 3
        assert (best[f"{side}_logits"][0, 3:] == np.float32(NEVER)).all()
    assert best["null_logits"].tolist() == [[1.0, 6.0]]
    # Of equal logits the first ones are kept.
    best = best_logits(tf.constant([[[1.0, 2.0, 2.0, 1.0]], [[0.0] * 4]]), 3)
    assert best["start_indexes"].numpy().tolist() == [[1, 2, 0]]


PROPERTY = settings(max_examples=50)


@pytest.mark.parametrize(
    "answer,prediction,exact,f1",
    [
        ("the Cat", "cat!", 1, 1),
        # 2 of 3 predicted words, 2 of 2 right ones: 2 * 2/3 / (5/3).
        ("slow dog", "slow dog ran", 0, 0.8),
        ("slow dog ran", "slow dog", 0, 0.8),
        # Any white space separates words, but what is not seen joins them.
        ("slow\u00a0dog", "slow dog", 1, 1),
        ("slow dog ran", "\u3000slow\u2009\u2028dog\x0b", 0, 0.8),
        ("a\u00a0cat", "cat", 1, 1),
        ("slow\u200bdog", "slow dog", 0, 0),
        # A word counts as often as both have it: 1 of 1, 1 of 3.
        ("cat cat cat", "cat", 0, 0.5),
        ("cat cat dog", "dog cat cat", 0, 1),
        ("cat", "dog", 0, 0),
        ("cat", "", 0, 0),
        ("cat", "the", 0, 0),
        ("the", "cat", 0, 0),
        # As the official scorer of 1.1 has it.
        ("the", "a", 1, 0),
    ],
)
def test_answers_score_as_counted_by_hand(answer, prediction, exact, f1):
    scores = squad.squad_1_scores([[answer]], [prediction])
    assert list(scores) == ["exact_match", "f1"]
    assert list(scores.values()) == pytest.approx([100 * exact, 100 * f1])


@pytest.mark.parametrize(
    "answers,kind,other",
    [([["cat"], ["dog"]], "HasAns", "NoAns"), ([[], []], "NoAns", "HasAns")],
)
def test_questions_of_one_kind_have_no_scores_of_the_other(
    answers, kind, other
):
    scores = squad.squad_2_scores(answers, ["cat", ""], np.zeros(2))
    assert f"{kind}_total" in scores
    assert scores[f"{kind}_exact"] == scores["exact"] == 50.0
    assert not [name for name in scores if name.startswith(other)]


def test_an_answer_of_articles_only_is_matched_by_no_answer():
    answers = [["The"], ["the", "cat"], ["a", "!"]]
    odds = np.zeros(3)
    scores = squad.squad_2_scores(answers, ["", "cat", ""], odds)
    # It is an answer, though one of no words.
    assert (scores["exact"], scores["f1"]) == (100.0, 100.0)
    assert scores["HasAns_total"] == 3
    scores = squad.squad_2_scores(answers, ["an", "the", "cat"], odds)
    assert scores["exact"] == scores["f1"] == pytest.approx(100 / 3)
    # Beside another answer it does not count.
    scores = squad.squad_2_scores([["the", "cat"]], [""], odds[:1])
    assert (scores["exact"], scores["f1"]) == (0.0, 0.0)


SQUAD_TEXTS = st.sampled_from(["", "the", "cat", "a cat", "slow cat", "dog"])


@settings(PROPERTY, max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.lists(SQUAD_TEXTS, max_size=2),
            SQUAD_TEXTS,
            # One of a kind: equal odds are taken one by one.
            st.integers(-3, 3),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda row: row[2],
    )
)
def test_best_scores_are_those_of_a_slow_search(rows):
    answers, predictions, odds = zip(*rows)
    scores = squad.squad_2_scores(answers, predictions, np.array(odds, float))
    for name in ("exact", "f1"):
        # All thresholds; the first refuses every question.
        totals = []
        for threshold in (-9, *sorted(odds)):
            total = 0.0
            for texts, prediction, odd in rows:
                if odd > threshold:
                    total += 100.0 * (not texts)
                else:
                    one = squad.squad_2_scores(
                        [texts], [prediction], np.zeros(1)
                    )
                    # Only an empty text leaves a question unanswered.
                    wrong = not texts and prediction != ""
                    total += 0.0 if wrong else one[name]
            totals.append(round(total / len(rows), 6))
        assert scores[f"best_{name}"] == pytest.approx(max(totals), abs=1e-6)
        best = totals.index(max(totals))
        assert scores[f"best_{name}_thresh"] == [0.0, *sorted(odds)][best]
