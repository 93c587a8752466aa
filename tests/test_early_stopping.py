"""Dev sets are scored while a task is trained, and the best step is kept."""

import shutil
from functools import partial

import pytest
import refusals
from conftest import cells, latest_step, read_json
from numpy.testing import assert_array_equal
from run_folders import artifact_bytes
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

from adapter_bert.checkpoints import dev_scores, google, training_state
from adapter_bert.tasks import task_model
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.training import early_stopping, prediction
from adapter_bert.training.settings import Training

pytestmark = pytest.mark.older_stack

# Of the tiny data, 40 rows in batches of 8, four epochs.
STEPS, EPOCH_STEPS = 20, [5, 10, 15, 20]


@pytest.fixture
def tiny_flags(tiny_flags, one_layer):
    """Flags of a model that is soon built."""
    return {**tiny_flags, "bert_config_file": one_layer, "do_eval": True}


@pytest.fixture
def out(tiny_flags):
    return tiny_flags["output_dir"]


@pytest.fixture
def flags(tiny_flags, engine):
    return {**tiny_flags, "engine": engine}


@pytest.fixture
def scripted(monkeypatch):
    """Evaluations come to these accuracies, in turn; the last one stays."""

    def script(*accuracies):
        left = list(accuracies)
        evaluate = TextClassification.evaluate

        def scripted_evaluate(task, rows, features, predictions):
            scores = evaluate(task, rows, features, predictions)
            accuracy = left.pop(0) if len(left) > 1 else left[0]
            return {**scores, "accuracy": accuracy}

        monkeypatch.setattr(TextClassification, "evaluate", scripted_evaluate)

    return script


@pytest.mark.gate
def test_it_changes_no_bit_and_builds_nothing_more_often(
    classify, flags, out, monkeypatch, tmp_path
):
    made = []

    def count(owner, name):
        function = getattr(owner, name)

        def counted(*arguments, **named):
            made.append(name)
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    count(task_model.TaskModel, "__init__")
    count(prediction, "predict")
    plain = tmp_path / "plain"
    classify(**{**flags, "output_dir": plain})
    expected, made[:] = list(made), []
    classify(**flags, eval_steps=3)
    assert made == expected and "predict" in made
    assert artifact_bytes(out) == artifact_bytes(plain)
    results = read_json(out / "eval_results.json")
    assert results == read_json(plain / "eval_results.json")
    scores = read_json(out / "dev_scores.json")
    scored = [3, 6, 9, 12, 15, 18, 20]
    assert list(map(int, scores["scores"])) == scored
    for name, value in scores["scores"]["20"].items():
        assert results[f"eval_{name}"] == value
    assert scores["best_step"] is None and not list(out.glob("best*"))
    for folder, steps in ((out, scored), (plain, [20])):
        events = EventAccumulator(str(folder / "eval"))
        events.Reload()
        assert [event.step for event in events.Tensors("accuracy")] == steps
    # It may be asked of a run that is to go on.
    classify(**flags)


@pytest.mark.gate
def test_the_best_step_is_what_the_run_comes_to(
    classify, tiny_flags, out, scripted, tmp_path
):
    def results_of(folder):
        results = read_json(folder / "eval_results.json")
        return results["eval_loss"], results["global_step"]

    scripted(0.5, 0.75, 0.75, 0.25, 0.0)
    classify(**tiny_flags, keep_best="accuracy", do_predict=True)
    scores = read_json(out / "dev_scores.json")
    assert list(map(int, scores["scores"])) == EPOCH_STEPS
    assert scores["best_step"] == 10
    best, saved = (
        google.open_tensorflow(str(out / f"{name}.ckpt-10"))
        for name in ("best", "model")
    )
    assert "output_weights" in best.shapes
    for name in best.shapes:
        assert_array_equal(best.read(name), saved.read(name), name)
    assert not list(out.glob("best.ckpt-5.*"))
    kept = read_json(out / "adapter" / "adapter_config.json")["checkpoint"]
    assert kept == "best.ckpt-10"
    predictions = (out / "test_results.tsv").read_bytes()
    last_loss, best_loss = (scores["scores"][s]["loss"] for s in ("20", "10"))
    assert results_of(out) == (best_loss, 10)

    # Its folder, its artifact, and its own folder again mean that step.
    again = {**tiny_flags, "do_train": False, "do_predict": True}
    for number, change in enumerate(
        (
            {"init_checkpoint": out},
            {"adapter": out / "adapter"},
            {"output_dir": out},
            {"init_checkpoint": out, "output_dir": out},
        )
    ):
        change = {"output_dir": tmp_path / str(number), **change}
        classify(**{**again, **change})
        folder = change["output_dir"]
        assert (folder / "test_results.tsv").read_bytes() == predictions
        assert results_of(folder) == (best_loss, 10)
    again["init_checkpoint"] = out / "model.ckpt-20"
    classify(**{**again, "output_dir": tmp_path / "last"})
    assert results_of(tmp_path / "last")[0] == last_loss
    refusals.check(
        lambda: classify(**again), "holds a training's", "best.ckpt-10"
    )


@pytest.mark.gate
def test_a_training_that_gets_no_better_is_ended(
    classify, tiny_flags, out, scripted
):
    scripted(0.5, 0.25, 0.5, 0.75)
    contents = []
    for _ in range(2):
        classify(**tiny_flags, early_stopping=2)
        assert latest_step(out)[1] == 15
        contents.append(
            (artifact_bytes(out), (out / "dev_scores.json").read_bytes())
        )
    assert contents[0] == contents[1]
    scores = read_json(out / "dev_scores.json")
    assert list(map(int, scores["scores"])) == [5, 10, 15]
    assert (scores["keep_best"], scores["best_step"]) == ("accuracy", 5)


@pytest.mark.gate
def test_a_run_that_was_ended_goes_on(
    classify, tiny_flags, out, scripted, tmp_path, monkeypatch
):
    """Ended and started again at each place where a better step is kept."""
    flags = {**tiny_flags, "early_stopping": 2}
    accuracies = [0.25, 0.5, 0.125, 0.25, 0.75]
    scripted(*accuracies)
    whole = tmp_path / "whole"
    classify(**{**flags, "output_dir": whole})

    class Killed(BaseException):
        pass

    def kill_at(count, function, is_meant, later):
        left = [None] * count

        def wrapped(*arguments):
            if is_meant(*arguments):
                left.pop()
                if not left:
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
    for case, owner, name, count, is_meant, later in (
        (1, dev_scores, "write", 2, is_scored, False),
        (1, training_state, "save_tensors", 1, is_best, False),
        (1, own_files, "write_json", 1, is_scores, False),
        (2, gfile, "remove", 4, is_best, False),
        (3, dev_scores, "write", 1, is_scored, True),
    ):
        begun = dev_scores.read(str(out))
        monkeypatch.undo()
        scripted(*accuracies[len(begun.by_step) if begun else 0 :])
        with monkeypatch.context() as patch, pytest.raises(Killed):
            wrapped = kill_at(count, getattr(owner, name), is_meant, later)
            patch.setattr(owner, name, wrapped)
            classify(**flags)
        assert len(dev_scores.read(str(out)).by_step) == case
    monkeypatch.undo()
    scripted(*accuracies[3:])
    classify(**flags)
    check_same_end(out, whole)
    names, expected = (
        sorted(path.name for path in folder.glob("best*"))
        for folder in (out, whole)
    )
    assert names == expected


def check_same_end(folder, whole):
    assert artifact_bytes(folder) == artifact_bytes(whole)
    for name in ("dev_scores.json", "eval_results.json"):
        assert read_json(folder / name) == read_json(whole / name), name


@pytest.mark.gate
def test_what_is_lost_or_changed_is_not_guessed(
    classify, tiny_flags, out, scripted, tmp_path
):
    tiny_flags["keep_best"] = "accuracy"
    scripted(0.5, 0.25)
    classify(**tiny_flags)
    # As a killed process leaves it, after a newer step was saved.
    listed = 'model_checkpoint_path: "model.ckpt-5"\n'
    for number, (damage, *parts) in enumerate(
        (
            (["dev_scores.json"], "best.ckpt-5", "no dev_scores.json"),
            (["dev_scores.json", "best*"], "lacks the scores of step 5"),
            (["best*.index"], "best.ckpt-5", "not there any more"),
            (["best*.data*"], "best.ckpt-5"),
            ([], "dev_scores.json is damaged"),
        )
    ):
        folder = shutil.copytree(out, tmp_path / str(number))
        before = artifact_bytes(folder)
        (folder / "checkpoint").write_text(listed)
        for pattern in damage:
            for path in folder.glob(pattern):
                path.unlink()
        if not damage:
            # A greater score would keep its step, whatever came later.
            path = folder / "dev_scores.json"
            text = path.read_text()
            assert text.count('"accuracy": 0.5,') == 1
            path.write_text(text.replace('"accuracy": 0.5', '"accuracy": 0.7'))
        again = {**tiny_flags, "output_dir": folder}
        refusals.check(partial(classify, **again), *parts)
        assert artifact_bytes(folder) == before
        assert (folder / "checkpoint").read_text() == listed


@pytest.mark.parametrize(
    "change, parts",
    [
        ({"eval_steps": "0"}, ["--eval_steps is '0'", "a number of"]),
        ({"eval_steps": "2 epochs"}, ["--eval_steps", "steps or epoch"]),
        ({"keep_best": "f2"}, ["custom", "accuracy, macro_f1, loss"]),
        ({"eval_steps": "5", "do_eval": False}, ["need the dev set"]),
    ],
)
def test_flags_that_cannot_be(classify, tiny_flags, change, parts):
    refusals.check(lambda: classify(**{**tiny_flags, **change}), *parts)


@pytest.mark.gate
def test_another_choice_of_the_best_is_another_run(classify, tiny_flags, out):
    """Of the first examples alone."""
    tiny_flags.update(max_train_examples=16, max_eval_examples=3)
    tiny_flags["keep_best"] = "accuracy"
    classify(**tiny_flags)
    assert read_json(out / "run.json")["training"]["examples"] == 16
    table = cells(out / "eval_labels.tsv")[1:]
    assert sum(int(row[1]) for row in table) == 3
    for part, change in (
        ("training.keep_best was", {"keep_best": "loss"}),
        ("training.eval_steps was", {"eval_steps": 5}),
        ("training.", {"keep_best": ""}),
        ("training.dev_data", {"max_eval_examples": 1000}),
        ("another configuration", {"max_train_examples": 17}),
    ):
        call = partial(classify, **{**tiny_flags, **change})
        refusals.check(call, part)


def steps(eval_steps, num_train_steps, epochs=3.0):
    training = Training(epochs=epochs, eval_steps=eval_steps)
    return sorted(early_stopping.steps_to_score(training, num_train_steps))


def test_when_steps_are_scored():
    assert steps("4", 10) == [4, 8, 10]
    assert steps("5", 10) == [5, 10]
    assert steps("50", 10) == [10]
    assert steps("epoch", 30) == [10, 20, 30]
    assert steps("epoch", 25, 2.5) == [10, 20, 25]
    assert steps("epoch", 61, 7.0) == [8, 17, 26, 34, 43, 52, 61]
    assert steps("epoch", 4, 0.5) == [4]
    assert steps("epoch", 33, 1.1) == [30, 33]
    assert steps("epoch", 1, 3.0) == [1]


def test_the_best_answers_to_questions(answer, squad_flags):
    squad_flags.update(do_eval=True, num_train_epochs=4, eval_steps=2)
    answer(**squad_flags, keep_best="f1", early_stopping=2)
    out = squad_flags["output_dir"]
    scores = read_json(out / "dev_scores.json")
    f1 = scores["scores"][str(scores["best_step"])]["f1"]
    assert f1 == max(of["f1"] for of in scores["scores"].values())
    assert read_json(out / "eval_results.json")["eval_f1"] == f1
    squad_flags.update(do_predict=True, max_eval_examples=3)
    refusals.check(lambda: answer(**squad_flags), "would leave out predictions")


@pytest.mark.gate
def test_the_second_of_two_phases_is_looked_at(classify, tiny_flags, out):
    del tiny_flags["adapter_size"]
    tiny_flags.update(num_train_epochs=1, eval_steps=2, keep_best="loss")
    classify(**tiny_flags, tuning_method="lt_sft(sparsity=0.1)")
    scores = read_json(out / "dev_scores.json")
    assert list(scores["scores"]) == ["2", "4", "5"]
    assert not (out / "phase_1" / "dev_scores.json").exists()
    best = scores["scores"][str(scores["best_step"])]["loss"]
    assert read_json(out / "eval_results.json")["eval_loss"] == best


def test_a_tpus_estimator_cannot_be_looked_at(classify, flags, engine):
    flags.update(use_tpu=True, tpu_name="local", eval_steps=2)
    parts = ["TPU"]
    if engine == "estimator":
        parts = ["cannot be used with TPUEstimator", "--engine=strategy"]
    refusals.check(lambda: classify(**flags), *parts)


@pytest.mark.gate
def test_a_score_that_the_dev_set_lacks(classify, tiny_flags, monkeypatch):
    monkeypatch.setattr(TextClassification, "evaluate", lambda *_: {})
    refusals.check(
        lambda: classify(**tiny_flags, keep_best="loss"),
        "has no loss",
        "--keep_best",
    )
