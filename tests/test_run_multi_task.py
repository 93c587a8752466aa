"""Several tasks in one run, from flags to files."""

import pathlib
from shutil import copytree, rmtree

import numpy as np
import pytest
import refusals
from conftest import (
    SENTENCES,
    entry_point,
    load_predictor,
    make_flags,
    module_fixture,
    read_json,
    read_lines,
    write_table,
)
from run_folders import bytes_by_task

from adapter_bert.checkpoints import adapter_artifact, dev_scores
from adapter_bert.commands import run_classifier
from adapter_bert.library.adapter_library import check

pytestmark = [pytest.mark.older_stack, pytest.mark.gate]

PARTS = ("mnli", "reviews", "sts-b")
FILES = {
    "mnli": {"eval_labels_mismatched.tsv", "test_results_mismatched.tsv"},
    "reviews": {"eval_labels.tsv", "test_predictions.tsv"},
    "sts-b": {"test_predictions.tsv"},
}


@module_fixture
def trained(tiny_bert, tiny_glue, tmp_path_factory):
    """The folder of a run of 20 steps, which no test changes."""
    out = tmp_path_factory.mktemp("together") / "out"
    with entry_point(run_classifier) as run:
        run(
            **{
                **make_flags(tiny_bert, tiny_glue, out),
                "task_name": "sts-b,MNLI,custom:reviews",
                "text_a_column": "review",
                "do_eval": True,
                "do_predict": True,
                "num_train_epochs": 2,
            }
        )
    return out


@pytest.fixture
def again(trained, glue_flags):
    """A copy of that run, in the folder of the flags, which are its own."""
    copytree(trained, glue_flags["output_dir"])
    return {**glue_flags, "do_predict": True}


def alone(flags, name, folder, out):
    """Flags that evaluate what was trained of a task by itself."""
    changed = {
        "task_name": "custom" if name == "reviews" else name,
        "data_dir": flags["data_dir"]
        / {"reviews": "Reviews"}.get(name, name.upper()),
        "adapter": folder / "tasks" / name / "adapter",
        "output_dir": out,
        "do_train": False,
        "do_predict": True,
    }
    left_out = {"tuning_method", "adapter_size"}
    if name != "reviews":
        left_out.add("text_a_column")
    kept = {k: v for k, v in flags.items() if k not in left_out}
    return {**kept, **changed}


@pytest.mark.parametrize(
    "method",
    [
        "houlsby(size=4)",
        "per_task(pals(size=6, heads=2))",
        "lt_sft(sparsity=0.05)",
    ],
)
def test_what_is_left_of_each_task_is_what_a_run_of_it_alone_leaves(
    classify, glue_flags, trained, tmp_path, method
):
    """Its artifact, elsewhere, gives the scores and answers of this run."""
    out, is_usual = trained, method.startswith("houlsby")
    if not is_usual:
        del glue_flags["adapter_size"]
        glue_flags.update(engine="strategy", tuning_method=method)
        classify(**glue_flags, do_predict=True)
        out = glue_flags["output_dir"]
    results = read_json(out / "eval_results.json")
    for name in PARTS:
        part, other = out / "tasks" / name, tmp_path / f"again-{name}"
        if is_usual or name == "mnli":
            classify(**alone(glue_flags, name, out, other))
            contents, expected = (
                {
                    path.name: path.read_text()
                    for path in folder.iterdir()
                    if path.name.startswith(("eval_", "test_"))
                }
                for folder in (part, other)
            )
            assert FILES[name] <= set(contents) == set(expected)
            if method.startswith("per_task"):
                # What is kept computes the same in another way.
                scores, others = (
                    read_json(folder / "eval_results.json")
                    for folder in (part, other)
                )
                for x in (scores, others):
                    del x["dev_data"], x["content_sha256"]
                assert scores == pytest.approx(others, abs=1e-5)
            else:
                assert contents == expected
        scores_of_part = read_json(part / "eval_results.json")
        for key, value in scores_of_part.items():
            metric, _, end = key.partition("_mismatched")
            key = f"{metric}_{name}" + ("_mismatched" if "_mism" in key else "")
            if key.startswith("eval_"):
                assert results.pop(key) == value
        # As the run's own files count.
        run = read_json(part / "run.json")
        config = read_json(part / "adapter" / "adapter_config.json")
        artifact = check(str(part / "adapter"))
        assert run["parameters"]["kept"] == adapter_artifact.count(
            {n: artifact.weights.read(n) for n in artifact.weights.shapes}
        )
        assert run["parameters"] == config["parameters"]
        assert config["training"]["trained_together"] == [*PARTS]
        assert config["task"]["name"] == (
            "custom" if name == "reviews" else name
        )
    del results["content_sha256"]
    assert set(results) == {"eval_mean", "global_step", "dev_data"}
    # Epochs are of all rows.
    run = read_json(out / "run.json")
    assert run["training"]["examples"] == 40 + 24 + 16
    assert run["training"]["steps"] == 20
    assert not (out / "adapter").exists()
    assert not list(out.rglob("*tmp*"))


def test_mnlis_adapter_answers_the_diagnostic_set(
    classify, glue_flags, trained, tmp_path
):
    out = tmp_path / "ax"
    flags = alone(glue_flags, "mnli", trained, out)
    classify(**{**flags, "task_name": "AX"})
    assert len(read_lines(out / "test_predictions.tsv")) == 1 + len(SENTENCES)
    results = read_json(out / "eval_results.json")
    assert "eval_matthews_correlation" in results


def test_what_was_trained_together_goes_onto_a_shelf_and_answers(
    trained, tiny_bert, shelf
):
    predictor = load_predictor(tiny_bert, [])
    for name in PARTS:
        shelf.add(str(trained / "tasks" / name), name)
        results = read_json(trained / "tasks" / name / "eval_results.json")
        entry = shelf.entry(name)
        assert entry.data == results["dev_data"]
        assert entry.scores == {
            key[len("eval_") :]: value
            for key, value in results.items()
            if key.startswith("eval_")
        }
        predictor.add(shelf.folder(name), name)
    one, two = (
        adapter_artifact.read(shelf.folder(name)).weights
        for name in ("mnli", "reviews")
    )
    assert set(one.shapes) == set(two.shapes)
    differ = {
        n for n in one.shapes if not np.array_equal(one.read(n), two.read(n))
    }
    assert differ == {"output_weights", "output_bias"}
    answers = predictor.ask(
        [
            ("mnli", ("the cat", "a dog")),
            ("reviews", "the film was bad"),
            ("sts-b", ("the cat", "a cat")),
        ]
    )
    assert [sorted(answer)[-1] for answer in answers] == [
        "scores",
        "scores",
        "value",
    ]


def test_a_training_of_the_first_rows_ends_by_the_mean(
    classify, glue_flags, caplog
):
    glue_flags.update(early_stopping=1, learning_rate=1e-12, num_train_epochs=9)
    glue_flags.update(max_train_examples=10, max_eval_examples=3)
    classify(**glue_flags)
    scores = dev_scores.read(str(glue_flags["output_dir"]))
    assert scores.keep_best == "mean" and len(scores.by_step) == 2
    best = scores.best_step
    assert best == max(
        sorted(scores.by_step), key=lambda step: scores.by_step[step]["mean"]
    )
    results = read_json(glue_flags["output_dir"] / "eval_results.json")
    assert results["global_step"] == best
    assert results["eval_mean"] == scores.by_step[best]["mean"]
    for name in PARTS:
        part = glue_flags["output_dir"] / "tasks" / name
        config = read_json(part / "adapter" / "adapter_config.json")
        assert config["checkpoint"] == f"best.ckpt-{best}"
        assert read_json(part / "eval_results.json")["global_step"] == best
    assert "mnli 10, reviews 10, sts-b 10" in caplog.text
    assert "batches of each task (annealed sampling): mnli " in caplog.text
    run = read_json(glue_flags["output_dir"] / "run.json")
    assert run["training"]["examples"] == 30
    # int(30 / 8 * 9)
    assert run["training"]["steps"] == 33


def test_a_run_is_evaluated_later_in_its_folder_and_from_its_checkpoint(
    classify, again, tmp_path
):
    out = again["output_dir"]
    expected = read_json(out / "eval_results.json")
    rmtree(out / "tasks" / "mnli" / "adapter")
    (out / "eval_results.json").unlink()
    evaluate = {**again, "do_train": False}
    # The folder knows it.
    del evaluate["init_checkpoint"]
    classify(**evaluate)
    assert read_json(out / "eval_results.json") == expected
    evaluate.update(
        init_checkpoint=out / "model.ckpt-20", output_dir=tmp_path / "new"
    )
    classify(**evaluate)
    assert read_json(tmp_path / "new" / "eval_results.json") == expected
    assert (tmp_path / "new" / "tasks" / "mnli" / "eval_results.json").exists()
    alone = {
        "task_name": "custom",
        "data_dir": pathlib.Path(evaluate["data_dir"]) / "Reviews",
    }
    refusals.check(
        lambda: classify(**{**evaluate, **alone, "adapter_size": 4}),
        "is of several tasks, mnli,reviews,s",
    )
    # Started again, the run writes what it has lost.
    classify(**again)
    assert set(bytes_by_task(out)) == set(PARTS)


def test_a_part_of_ones_own_tables_is_held_out(classify, glue_flags, tmp_path):
    """The loss of one of the tasks chooses the step."""
    data = glue_flags["data_dir"] = tmp_path / "data"
    for name in ("one", "two"):
        (data / name).mkdir(parents=True)
        write_table(data / name / "train.tsv", SENTENCES * 5)
        write_table(data / name / "test.tsv", SENTENCES[:2])
    del glue_flags["text_a_column"]
    glue_flags.update(task_name="custom:one,custom:two", dev_share=0.2)
    glue_flags.update(keep_best="loss_one")
    classify(**glue_flags)
    scores = dev_scores.read(str(glue_flags["output_dir"]))
    losses = {s: of["loss_one"] for s, of in scores.by_step.items()}
    assert len(losses) == 2
    assert scores.best_step == min(sorted(losses), key=losses.__getitem__)
    run = read_json(glue_flags["output_dir"] / "run.json")
    # Of each task two texts are held out, with their copies.
    assert run["training"]["examples"] == 60
    # In the same folder, without the flag; and never with another share.
    glue_flags.update(
        do_train=False, do_eval=False, do_predict=True, dev_share=0
    )
    del glue_flags["keep_best"]
    classify(**glue_flags)
    glue_flags.update(do_eval=True, dev_share=0.3)
    refusals.check(
        lambda: classify(**glue_flags), "one.held_out.share was 0.2, now 0.3"
    )


def test_the_folder_of_a_part_holds_no_training(classify, again):
    """Its run.json says what it is; a run there needs its adapter."""
    part = again["output_dir"] / "tasks" / "mnli"
    flags = alone(again, "mnli", again["output_dir"], part)
    expected = read_json(part / "eval_results.json")
    classify(**flags)
    assert read_json(part / "eval_results.json") == expected
    del flags["adapter"]
    flags["adapter_size"] = 4
    refusals.check(lambda: classify(**flags), "holds no trained")
    refusals.check(
        lambda: classify(**{**flags, "do_train": True}),
        "training.trained_together was",
    )


# Refusals


def test_a_missing_file_is_told_before_bert_is_read(
    classify, glue_flags, tiny_glue, tmp_path
):
    data = copytree(tiny_glue, tmp_path / "data")
    path = data / "Reviews" / "dev.tsv"
    path.unlink()
    glue_flags.update(data_dir=data, init_checkpoint="nowhere")
    refusals.check(lambda: classify(**glue_flags), f"there is no {path}")


def test_one_tasks_adapter_is_no_start_of_several(
    classify, glue_flags, trained
):
    glue_flags["adapter"] = trained / "tasks" / "mnli" / "adapter"
    refusals.check(
        lambda: classify(**glue_flags), "was trained on mnli, not on mnli,revi"
    )
