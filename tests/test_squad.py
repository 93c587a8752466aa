"""Question answering as a task: its files, steps, answers and scores."""

import dataclasses
import json
import logging
import types

import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging

from adapter_bert.data.input_pipeline import make_batch
from adapter_bert.errors import UserError
from adapter_bert.tasks import squad
from adapter_bert.tasks.squad import (
    NEVER,
    Candidates,
    Prediction,
    Squad,
    best_logits,
)
from adapter_bert.tasks.squad_data import Answer, Question

TASK = Squad(
    "squad",
    train_file="train.json",
    predict_file="dev.json",
    doc_stride=3,
    max_query_length=3,
    n_best_size=4,
    max_answer_length=5,
)
TASK_2 = dataclasses.replace(TASK, version_2_with_negative=True)


@pytest.fixture
def warnings(caplog, monkeypatch):
    """What was logged as a warning."""
    monkeypatch.setattr(absl_logging.get_absl_logger(), "propagate", True)
    with caplog.at_level(logging.WARNING, "absl"):
        yield caplog


def ask(name, context, *answers):
    """A question whose answers are at their places in the context."""
    return Question(
        name,
        "is a cat in ?",
        context,
        tuple(Answer(text, context.index(text)) for text in answers),
    )


def write_file(path, questions):
    paragraphs = [
        {"context": q.context, "qas": [{"id": q.id, "question": q.text}]}
        for q in questions
    ]
    for paragraph, question in zip(paragraphs, questions):
        if question.answers is not None:
            paragraph["qas"][0]["answers"] = [
                {"text": a.text, "answer_start": a.start}
                for a in question.answers
            ]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


# Reading


def read(task, folder, split):
    """The questions of one split."""
    same, rows = task.read(folder, [split])
    assert same is task
    return rows[split]


TWO = [ask("q1", "the cat sat", "cat"), ask("q2", "a dog ran", "dog")]


def test_splits_are_read_from_the_files_that_are_named(tmp_path):
    write_file(tmp_path / "train.json", TWO)
    write_file(tmp_path / "dev.json", TWO[1:])
    assert read(TASK, str(tmp_path), "train") == TWO
    assert read(TASK, str(tmp_path), "dev") == TWO[1:]
    assert read(TASK, str(tmp_path), "test") == TWO[1:]
    path = str(tmp_path / "dev.json")
    elsewhere = dataclasses.replace(TASK, train_file=path)
    assert read(elsewhere, "", "train") == TWO[1:]


@pytest.mark.parametrize(
    "split,flag", [("train", "--train_file"), ("test", "--predict_file")]
)
def test_a_file_that_was_not_named_is_asked_for(split, flag):
    task = dataclasses.replace(TASK, train_file="", predict_file="")
    with pytest.raises(UserError, match=f"^{flag} is missing"):
        read(task, "data", split)


def test_questions_to_answer_need_no_answers_and_others_do(tmp_path):
    unlabelled = [dataclasses.replace(q, answers=None) for q in TWO]
    for name in ("train.json", "dev.json"):
        write_file(tmp_path / name, unlabelled)
    assert read(TASK, str(tmp_path), "test") == unlabelled
    for split, name in (("train", "train.json"), ("dev", "dev.json")):
        for task in (TASK, TASK_2):
            with pytest.raises(
                UserError, match=f"{name}: question 'q1' has no"
            ):
                read(task, str(tmp_path), split)


def test_impossible_questions_are_of_version_2(tmp_path):
    questions = [*TWO, ask("q3", "the cat sat")]
    write_file(tmp_path / "train.json", questions)
    assert read(TASK_2, str(tmp_path), "train") == questions
    with pytest.raises(UserError, match="question 'q3' has no answer"):
        read(TASK, str(tmp_path), "train")


def lost(number):
    return Question(f"lost{number}", "?", "the cat", (Answer("dog", 4),))


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
    verbose = dataclasses.replace(TASK, verbose_logging=True)
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
    off = Question("off", "?", context, (Answer(answer, start),))
    write_file(tmp_path / "train.json", [*TWO, off])
    assert read(TASK, str(tmp_path), "train") == [*TWO, off]
    counted = "1 of 3 answers are not exactly at their place"
    assert (counted in warnings.text) == is_counted
    assert "left out" not in warnings.text


def test_nothing_is_said_where_nothing_is_left_out(tmp_path, warnings):
    write_file(tmp_path / "train.json", [*TWO, ask("q3", "the cat sat")])
    assert len(read(TASK_2, str(tmp_path), "train")) == 3
    assert not warnings.text


def test_a_file_of_which_nothing_is_left_is_refused(tmp_path):
    write_file(tmp_path / "train.json", [lost(1), lost(2)])
    with pytest.raises(UserError, match="holds nothing to learn from"):
        read(TASK, str(tmp_path), "train")


# Trained heads


def test_a_head_of_question_answering_is_restored():
    description = {"name": "squad", **json.loads(json.dumps(TASK.describe()))}
    for task in (TASK, TASK_2):
        assert task.restore(description, "head.npz") == task


def test_a_head_of_another_task_is_refused():
    description = {"name": "mrpc", "labels": ["0", "1"], "pairs": True}
    with pytest.raises(UserError) as raised:
        TASK.restore(description, "head.npz")
    assert "head.npz was trained on the task mrpc," in str(raised.value)


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
        (dataclasses.replace(TASK, count_steps_in="questions"), questions),
        (dataclasses.replace(TASK, count_steps_in="windows"), windows),
    ):
        assert task.count_train_steps(features, batch_size, epochs) == expected


def test_too_many_steps_are_refused_however_counted(tokenizer):
    features = TASK.featurize(TWO, tokenizer, 9)
    for unit in ("questions", "windows"):
        task = dataclasses.replace(TASK, count_steps_in=unit)
        with pytest.raises(UserError, match="too many steps"):
            task.count_train_steps(features, 1, 1e12)


def test_contexts_without_tokens_are_nothing_to_learn_from(tokenizer):
    examples = [ask("q1", "", ""), ask("q2", " ")]
    features = TASK_2.featurize(examples, tokenizer, 9)
    with pytest.raises(UserError, match="train.json holds nothing"):
        TASK_2.count_train_steps(features, 4, 1.0)


# Answers, scores and files

ANSWERED = [
    ask("q1", "the cat sat on the mat .", "mat", "the mat"),
    ask("q2", "a slow dog ran out !", "slow dog"),
    ask("q3", "the zebra's cat was not (bad)", "bad"),
    ask("q4", "sat", "sat"),
]
UNANSWERED = ask("q5", "the film was not good , not good")


def perfect_outputs(windows, n):
    """The head's outputs that are sure of every label."""
    count = len(windows)
    length = int(windows.lengths.max())
    logits = np.zeros((2, count, length), np.float32)
    for number, side in enumerate(("start", "end")):
        places = windows.labels[f"{side}_positions"]
        # A window without the answer is less sure than one with it.
        logits[number, np.arange(count), places] = np.where(places, 20, 10)
    mask = make_batch(windows, np.arange(count), length)["input_mask"]
    logits = np.where(mask > 0, logits, np.float32(NEVER))
    return {
        name: value.numpy()
        for name, value in best_logits(tf.constant(logits), n).items()
    }


@pytest.mark.parametrize(
    "task,questions,names",
    [
        (TASK, ANSWERED, ["exact_match", "f1"]),
        (TASK_2, [*ANSWERED, UNANSWERED], ["exact", "f1", "HasAns_f1"]),
        (TASK_2, [UNANSWERED], ["exact", "f1", "NoAns_exact"]),
    ],
)
def test_perfect_outputs_score_100(tokenizer, task, questions, names):
    windows = task.featurize(questions, tokenizer, 11)
    assert len(questions) == 1 or len(windows) > len(questions)
    outputs = perfect_outputs(windows, task.n_best_size)
    predictions = task.decode(questions, windows, outputs)
    texts = ["mat", "slow dog", "bad", "sat", ""]
    assert [p.text for p in predictions] == (
        texts[: len(questions)] if len(questions) > 1 else [""]
    )
    scores = task.evaluate(questions, windows, predictions)
    assert [scores[name] for name in names] == [100.0] * len(names)
    assert next(iter(scores)) == names[0]


def test_scores_are_those_of_the_version(tokenizer):
    predictions = [
        Prediction(
            "cat", odds, Candidates(("cat",), np.zeros((1, 2)), ((0, 3),))
        )
        for odds in (0.5, -0.5)
    ]
    questions = [TWO[0], ask("q3", "the cat sat")]
    answers = [["cat"], []]
    assert TASK_2.evaluate(questions, None, predictions) == (
        squad.squad_2_scores(answers, ["cat", "cat"], np.array([0.5, -0.5]))
    )
    assert TASK.evaluate(TWO, None, predictions) == {
        "exact_match": 50.0,
        "f1": 50.0,
    }


PREDICTIONS = [
    Prediction(
        'a "cat"\n',
        -1.5,
        Candidates(
            ('a "cat"\n', ""),
            np.array([[2.0, 1.0], [0.5, 1.0]]),
            ((0, 7), (0, 0)),
        ),
    ),
    Prediction(
        "", 1000000.0, Candidates(("",), np.array([[0.25, -1e30]]), ((0, 0),))
    ),
    Prediction(
        "\u6771\ud800",
        0.1,
        Candidates(("\u6771\ud800",), np.zeros((1, 2)), ((0, 2),)),
    ),
]
IDS = ['b"\n', "\udfff\u00e9", "a"]


@pytest.mark.parametrize("task", [TASK, TASK_2])
def test_predictions_are_written_as_bert_does(tmp_path, task):
    questions = [Question(name, "?", "", None) for name in IDS]
    paths = task.write_predictions(str(tmp_path), questions, PREDICTIONS)
    names = ["predictions.json", "nbest_predictions.json"]
    names += ["null_odds.json"] * task.version_2_with_negative
    assert list(paths) == [str(tmp_path / name) for name in names]
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    texts, candidates, *odds = (
        json.loads((tmp_path / name).read_text(), object_pairs_hook=list)
        for name in names
    )
    assert texts == list(zip(IDS, ['a "cat"\n', "", "\u6771\ud800"]))
    assert [name for name, _ in candidates] == IDS
    listed = [list(map(dict, rows)) for _, rows in candidates]
    assert [[row["text"] for row in rows] for rows in listed] == [
        ['a "cat"\n', ""],
        [""],
        ["\u6771\ud800"],
    ]
    assert list(listed[0][0]) == [
        "text", "probability", "start_logit", "end_logit",
    ]  # fmt: skip
    assert listed[0][1]["start_logit"] == 0.5
    assert listed[0][1]["end_logit"] == 1.0
    assert listed[1][0]["end_logit"] == -1e30
    e = np.exp(1.5)
    assert [row["probability"] for row in listed[0]] == pytest.approx(
        [e / (1 + e), 1 / (1 + e)]
    )
    if task.version_2_with_negative:
        assert odds == [list(zip(IDS, [-1.5, 1000000.0, 0.1]))]


@pytest.mark.parametrize("task", [TASK, TASK_2])
def test_scores_are_those_that_are_named(task):
    predictions = [
        types.SimpleNamespace(text=text, null_odds=0.0) for text in ("cat", "")
    ]
    questions = [ask("1", "a cat in", "cat"), ask("2", "a cat in")]
    count = 1 + task.version_2_with_negative
    scores = task.evaluate(questions[:count], None, predictions[:count])
    assert set(task.score_names) <= set(scores)
