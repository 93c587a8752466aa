"""Dev sets are scored while a task is trained, and the best step is kept."""

import random
import shutil
import types

import numpy as np
import pytest
from run_folders import artifact_bytes, kill, read
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

from adapter_bert.checkpoints import dev_scores, google, training_state
from adapter_bert.errors import UserError
from adapter_bert.optimization import Schedule
from adapter_bert.tasks import task_model
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.training import early_stopping, strategy
from adapter_bert.training.settings import Training

pytestmark = pytest.mark.older_stack

# Of the tiny data, 40 rows in batches of 8, four epochs.
STEPS, EPOCH_STEPS = 20, [5, 10, 15, 20]


def values(path, names=None):
    """What a checkpoint holds, without its optimizer's."""
    weights = google.open_tensorflow(str(path))
    names = names or [n for n in weights.shapes if "/adam_" not in n]
    return {name: weights.read(name) for name in names if name != "global_step"}


def assert_same(found, expected):
    assert found.keys() == expected.keys() and found
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


@pytest.fixture
def tiny_flags(tiny_flags, one_layer):
    """Flags of a model that is soon built."""
    return {**tiny_flags, "bert_config_file": one_layer}


@pytest.fixture
def flags(tiny_flags, engine):
    return {**tiny_flags, "do_eval": True, "engine": engine}


@pytest.fixture
def scripted(monkeypatch):
    """Evaluations come to these accuracies, in turn; the last one stays."""

    def script(*accuracies):
        left = list(accuracies)
        evaluate = TextClassification.evaluate

        def scripted_evaluate(task, rows, features, predictions):
            found = evaluate(task, rows, features, predictions)
            accuracy = left.pop(0) if len(left) > 1 else left[0]
            return {**found, "accuracy": accuracy}

        monkeypatch.setattr(TextClassification, "evaluate", scripted_evaluate)

    return script


@pytest.mark.gate
def test_it_changes_no_bit_and_builds_nothing_more_often(
    classify, flags, engine, monkeypatch, tmp_path
):
    made = []

    def count(owner, name):
        function = getattr(owner, name)

        def counted(*arguments, **named):
            made.append(name)
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    count(task_model.TaskModel, "__init__")
    count(strategy, "predict")
    classify(**{**flags, "output_dir": tmp_path / "plain"})
    expected, made[:] = list(made), []
    classify(**flags, eval_steps=3)
    assert made == expected and "predict" in made
    plain, watched = tmp_path / "plain", tmp_path / "out"
    assert artifact_bytes(watched) == artifact_bytes(plain)
    assert read(watched / "eval_results.json") == read(
        plain / "eval_results.json"
    )
    scores = read(watched / "dev_scores.json")
    assert list(scores["scores"]) == ["3", "6", "9", "12", "15", "18", "20"]
    found = read(watched / "eval_results.json")
    for name, value in scores["scores"]["20"].items():
        assert found[f"eval_{name}"] == value
    assert scores["best_step"] is None
    assert not list(watched.glob("best*"))
    for folder, steps in ((watched, [3, 6, 9, 12, 15, 18, 20]), (plain, [20])):
        events = EventAccumulator(str(folder / "eval"))
        events.Reload()
        assert [event.step for event in events.Tensors("accuracy")] == steps
    # It may be asked of a run that is to go on.
    classify(**flags)


@pytest.mark.gate
def test_the_best_step_is_what_the_run_comes_to(
    classify, tiny_flags, scripted, tmp_path
):
    flags = {**tiny_flags, "do_eval": True}
    out = tmp_path / "out"
    scripted(0.5, 0.75, 0.75, 0.25, 0.0)
    classify(**flags, keep_best="accuracy", do_predict=True)
    scores = read(out / "dev_scores.json")
    assert list(map(int, scores["scores"])) == EPOCH_STEPS
    assert scores["best_step"] == 10
    best = values(out / "best.ckpt-10")
    assert_same(best, values(out / "model.ckpt-10", best))
    assert not list(out.glob("best.ckpt-5.*"))
    assert read(out / "eval_results.json")["global_step"] == 10
    assert read(out / "adapter" / "adapter_config.json")["checkpoint"] == (
        "best.ckpt-10"
    )
    predictions = (out / "test_results.tsv").read_bytes()
    last_loss = scores["scores"]["20"]["loss"]
    best_loss = scores["scores"]["10"]["loss"]
    assert read(out / "eval_results.json")["eval_loss"] == best_loss

    # Its folder, its artifact, and its own folder again mean that step.
    again = {**flags, "do_train": False, "do_predict": True}
    for number, change in enumerate(
        (
            {"init_checkpoint": out},
            {"adapter": out / "adapter"},
            {"output_dir": out},
            {"init_checkpoint": out, "output_dir": out},
        )
    ):
        folder = tmp_path / str(number)
        classify(**{**again, "output_dir": folder, **change})
        folder = change.get("output_dir", folder)
        assert (folder / "test_results.tsv").read_bytes() == predictions
        found = read(folder / "eval_results.json")
        assert (found["eval_loss"], found["global_step"]) == (best_loss, 10)
    last = out / "model.ckpt-20"
    folder = tmp_path / "last"
    classify(**{**again, "init_checkpoint": last, "output_dir": folder})
    assert read(folder / "eval_results.json")["eval_loss"] == last_loss
    with pytest.raises(UserError, match="holds a training's .*best.ckpt-10"):
        classify(**{**again, "init_checkpoint": last, "output_dir": out})


def test_less_loss_is_better():
    by_step = {1: {"loss": 2.0}, 2: {"loss": 0.5}, 3: {"loss": 1.0}}
    for suffix in ("", "_mismatched", "_sts-b"):
        scores = {
            step: {f"loss{suffix}": of["loss"]} for step, of in by_step.items()
        }
        assert dev_scores.DevScores(f"loss{suffix}", scores).best_step == 2


@pytest.mark.gate
def test_a_training_that_gets_no_better_is_ended(
    classify, tiny_flags, scripted, tmp_path
):
    flags = {**tiny_flags, "do_eval": True}
    scripted(0.5, 0.25, 0.5, 0.75)
    classify(**flags, early_stopping=2)
    out = tmp_path / "out"
    scores = read(out / "dev_scores.json")
    assert list(map(int, scores["scores"])) == [5, 10, 15]
    assert (scores["keep_best"], scores["best_step"]) == ("accuracy", 5)
    assert training_state.latest_step(str(out))[1] == 15
    before = artifact_bytes(out), (out / "dev_scores.json").read_bytes()
    classify(**flags, early_stopping=2)
    assert training_state.latest_step(str(out))[1] == 15
    assert (
        artifact_bytes(out),
        (out / "dev_scores.json").read_bytes(),
    ) == before


@pytest.mark.gate
def test_a_run_that_was_ended_goes_on(
    classify, tiny_flags, scripted, tmp_path, monkeypatch
):
    """Ended and started again at each place where a better step is kept."""
    flags = {**tiny_flags, "do_eval": True, "early_stopping": 2}
    accuracies = [0.25, 0.5, 0.125, 0.25, 0.75]
    scripted(*accuracies)
    out, whole = tmp_path / "out", tmp_path / "whole"
    classify(**{**flags, "output_dir": whole})

    class Killed(BaseException):
        pass

    def kill_at(count, function, is_meant, later=False):
        calls = []

        def wrapped(*arguments):
            if is_meant(*arguments):
                calls.append(arguments)
                if len(calls) == count:
                    if later:
                        function(*arguments)
                    raise Killed
            return function(*arguments)

        return wrapped

    def is_scored(folder, scores, values):
        return scores.by_step

    def is_best(path, *_):
        return "best" in path

    def is_scores(path, value):
        return "dev_" in path and value["scores"]

    gfile, own_files = training_state.tf.io.gfile, dev_scores.files
    # The first step is known to be the best one, until the second is. Files of
    # the second that nobody knows are removed, then one of the first's two.
    for known, owner, name, count, is_meant, later in (
        (1, dev_scores, "write", 2, is_scored, False),
        (1, training_state, "save_tensors", 1, is_best, False),
        (1, own_files, "write_json", 1, is_scores, False),
        (2, gfile, "remove", 4, is_best, False),
        (3, dev_scores, "write", 1, is_scored, True),
    ):
        begun = dev_scores.read(str(out))
        monkeypatch.undo()
        scripted(*accuracies[len(begun.by_step) if begun else 0 :])
        with monkeypatch.context() as patch:
            function = getattr(owner, name)
            wrapped = kill_at(count, function, is_meant, later)
            patch.setattr(owner, name, wrapped)
            with pytest.raises(Killed):
                classify(**flags)
        assert len(dev_scores.read(str(out)).by_step) == known
    monkeypatch.undo()
    scripted(*accuracies[3:])
    classify(**flags)
    assert artifact_bytes(out) == artifact_bytes(whole)
    for name in ("dev_scores.json", "eval_results.json"):
        found, expected = read(out / name), read(whole / name)
        assert found == expected, name
    names = [path.name for path in sorted(out.glob("best*"))]
    assert names == [path.name for path in sorted(whole.glob("best*"))]


@pytest.mark.gate
def test_sigkill_while_steps_are_scored(classify, tiny_flags, tmp_path):
    tiny_flags.update(num_train_epochs=16, eval_steps=4, keep_best="loss")
    tiny_flags.update(do_eval=True, output_dir=tmp_path / "whole")
    classify(**tiny_flags)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    tiny_flags["output_dir"] = killed

    def is_scored():
        scores = dev_scores.read(str(killed))
        return scores and len(scores.by_step) >= 6

    words = [f"--{name}={value}" for name, value in tiny_flags.items()]
    kill(words, is_scored, random.Random(3).uniform(0, 0.1))
    classify(**tiny_flags)
    assert artifact_bytes(killed) == artifact_bytes(whole)
    for name in ("dev_scores.json", "eval_results.json"):
        assert read(killed / name) == read(whole / name)


@pytest.mark.gate
def test_what_is_lost_or_changed_is_not_guessed(
    classify, tiny_flags, scripted, tmp_path
):
    flags = {**tiny_flags, "do_eval": True, "keep_best": "accuracy"}
    scripted(0.5, 0.25)
    classify(**flags)
    # As a killed process leaves it, after a newer step was saved.
    known = 'model_checkpoint_path: "model.ckpt-5"\n'
    for number, (damage, message) in enumerate(
        (
            (["dev_scores.json"], "holds best.ckpt-5.* but no dev_scores.json"),
            (["dev_scores.json", "best*"], "lacks the scores of step 5, by"),
            (["best*.index"], "best.ckpt-5 is not there any more"),
            (["best*.data*"], "best.ckpt-5"),
            ([], "dev_scores.json is damaged, or was"),
        )
    ):
        out = shutil.copytree(flags["output_dir"], tmp_path / str(number))
        before = artifact_bytes(out)
        (out / "checkpoint").write_text(known)
        for pattern in damage:
            for path in out.glob(pattern):
                path.unlink()
        if not damage:
            # A greater score would keep its step, whatever came later.
            path = out / "dev_scores.json"
            text = path.read_text()
            assert text.count('"accuracy": 0.5,') == 1
            path.write_text(
                text.replace('"accuracy": 0.5,', '"accuracy": 0.7,')
            )
        with pytest.raises(UserError, match=message):
            classify(**{**flags, "output_dir": out})
        assert artifact_bytes(out) == before
        assert (out / "checkpoint").read_text() == known


@pytest.mark.parametrize(
    "change, message",
    [
        ({"eval_steps": "0"}, "--eval_steps is '0', expected a number of"),
        ({"eval_steps": "2 epochs"}, "expected a number of steps or epoch"),
        ({"early_stopping": -1}, "--early_stopping is -1, expected >= 0"),
        ({"keep_best": "f2"}, "of the task custom: accuracy, macro_f1, loss"),
        ({"eval_steps": "5", "do_eval": False}, "need the dev set"),
        ({"max_train_examples": 0}, "--max_train_examples is 0"),
        ({"max_eval_examples": -1}, "--max_eval_examples is -1"),
    ],
)
def test_flags_that_cannot_be(classify, tiny_flags, change, message):
    with pytest.raises(UserError, match=message):
        classify(**{**tiny_flags, "do_eval": True, **change})


@pytest.mark.gate
def test_another_choice_of_the_best_is_another_run(
    classify, tiny_flags, tmp_path
):
    """Of the first examples alone."""
    flags = {**tiny_flags, "do_eval": True, "max_train_examples": 16}
    classify(**flags, keep_best="accuracy", max_eval_examples=3)
    out = tmp_path / "out"
    assert read(out / "run.json")["training"]["examples"] == 16
    table = (out / "eval_labels.tsv").read_text().splitlines()[1:]
    assert sum(int(line.split("\t")[1]) for line in table) == 3
    for other in (
        {"keep_best": "loss"},
        {"keep_best": "accuracy", "eval_steps": 5},
        {},
    ):
        with pytest.raises(UserError, match="training.*was"):
            classify(**flags, **other, max_eval_examples=3)
    with pytest.raises(UserError, match="training.dev_data"):
        classify(**flags, keep_best="accuracy")
    flags["max_train_examples"] = 17
    with pytest.raises(UserError, match="another configuration"):
        classify(**flags, keep_best="accuracy", max_eval_examples=3)


def steps(eval_steps, num_train_steps, epochs=3.0):
    training = Training(epochs=epochs, eval_steps=eval_steps)
    experiment = types.SimpleNamespace(training=training)
    setup = types.SimpleNamespace(experiment=experiment)
    found = early_stopping.steps_to_score(
        setup, Schedule(1.0, num_train_steps, 0)
    )
    return sorted(found)


def test_when_steps_are_scored():
    assert steps("", 10) == []
    assert steps("4", 10) == [4, 8, 10]
    assert steps("5", 10) == [5, 10]
    assert steps("50", 10) == [10]
    assert steps("epoch", 30) == [10, 20, 30]
    assert steps("epoch", 25, 2.5) == [10, 20, 25]
    assert steps("epoch", 61, 7.0) == [8, 17, 26, 34, 43, 52, 61]
    assert steps("epoch", 4, 0.5) == [4]
    assert steps("epoch", 33, 1.1) == [30, 33]
    assert steps("epoch", 1, 3.0) == [1]


def test_the_best_answers_to_questions(answer, squad_flags, tmp_path):
    flags = {**squad_flags, "do_eval": True, "num_train_epochs": 4}
    flags.update(eval_steps=2, keep_best="f1", early_stopping=2)
    answer(**flags)
    out = tmp_path / "out"
    scores = read(out / "dev_scores.json")
    f1 = scores["scores"][str(scores["best_step"])]["f1"]
    assert f1 == max(of["f1"] for of in scores["scores"].values())
    assert read(out / "eval_results.json")["eval_f1"] == f1
    with pytest.raises(UserError, match="would leave out predictions"):
        answer(**flags, do_predict=True, max_eval_examples=3)


@pytest.mark.gate
def test_the_second_of_two_phases_is_looked_at(classify, tiny_flags, tmp_path):
    flags = {**tiny_flags, "do_eval": True, "num_train_epochs": 1}
    del flags["adapter_size"]
    flags["tuning_method"] = "lt_sft(sparsity=0.1)"
    classify(**flags, keep_best="loss", eval_steps=2)
    out = tmp_path / "out"
    scores = read(out / "dev_scores.json")
    assert list(scores["scores"]) == ["2", "4", "5"]
    assert not (out / "phase_1" / "dev_scores.json").exists()
    best = str(scores["best_step"])
    assert (
        read(out / "eval_results.json")["eval_loss"]
        == (scores["scores"][best]["loss"])
    )


def test_a_tpus_estimator_cannot_be_looked_at(classify, flags, engine):
    flags.update(use_tpu=True, tpu_name="local", eval_steps=2)
    refused = (
        "cannot be used with TPUEstimator" if engine == "estimator" else ""
    )
    with pytest.raises(UserError, match=refused or "TPU") as caught:
        classify(**flags)
    assert bool(refused) == ("--engine=strategy" in str(caught.value))


@pytest.mark.gate
def test_a_score_that_the_dev_set_lacks(classify, tiny_flags, monkeypatch):
    evaluate = TextClassification.evaluate

    def without_loss(*arguments):
        found = evaluate(*arguments)
        del found["loss"]
        return found

    monkeypatch.setattr(TextClassification, "evaluate", without_loss)
    with pytest.raises(UserError, match="has no loss, by which --keep_best"):
        classify(**tiny_flags, do_eval=True, keep_best="loss")
