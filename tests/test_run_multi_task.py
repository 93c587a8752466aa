"""Several tasks in one run, from flags to files."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from conftest import SENTENCES, run_process, write_table
from run_folders import bytes_by_task, check_nearly_equal, kill_and_go_on, read
from test_multi_worker import run_workers

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact, dev_scores
from adapter_bert.errors import UserError
from adapter_bert.serving.library import AdapterLibrary, check
from adapter_bert.serving.predictor import Predictor

PARTS = ("mnli", "reviews", "sts-b")
FILES = {
    "mnli": {"eval_labels_mismatched.tsv", "test_results_mismatched.tsv"},
    "reviews": {"eval_labels.tsv", "test_predictions.tsv"},
    "sts-b": {"test_predictions.tsv"},
}


def alone(flags, name, folder, out):
    """Flags that evaluate what was trained of a task by itself."""
    changed = {
        "task_name": "custom" if name == "reviews" else name,
        "data_dir": flags["data_dir"]
        / {"reviews": "Reviews"}.get(name, name.upper()),
        "adapter": folder / "tasks" / name / "adapter",
        "output_dir": out,
        "do_train": False,
    }
    left_out = {"tuning_method", "adapter_size"}
    if name != "reviews":
        left_out.add("text_a_column")
    kept = {k: v for k, v in flags.items() if k not in left_out}
    return {**kept, **changed}


@pytest.mark.gate
@pytest.mark.parametrize(
    "method",
    [
        "houlsby(size=4)",
        "full",
        "per_task(pals(size=6, heads=2))",
        pytest.param("per_task(houlsby(size=4))", marks=pytest.mark.gate),
        pytest.param("prefix(length=3, inner_size=8)", marks=pytest.mark.gate),
        pytest.param("lt_sft(sparsity=0.05)", marks=pytest.mark.gate),
    ],
)
def test_what_is_left_of_each_task_is_what_a_run_of_it_alone_leaves(
    classify, glue_flags, tmp_path, engine, method
):
    """Its artifact, elsewhere, gives the scores and answers of this run."""
    del glue_flags["adapter_size"]
    glue_flags.update(engine=engine, tuning_method=method, do_predict=True)
    classify(**glue_flags)
    out = glue_flags["output_dir"]
    results = read(out / "eval_results.json")
    for name in PARTS:
        part, again = out / "tasks" / name, tmp_path / f"again-{name}"
        classify(**alone(glue_flags, name, out, again))
        found, expected = (
            {
                path.name: path.read_text()
                for path in folder.iterdir()
                if path.name.startswith(("eval_", "test_")) and path.is_file()
            }
            for folder in (part, again)
        )
        assert FILES[name] <= set(found) == set(expected)
        if method.startswith(("prefix", "per_task")):
            # What is kept computes the same in another way.
            scores, others = (
                read(folder / "eval_results.json") for folder in (part, again)
            )
            for x in (scores, others):
                del x["dev_data"], x["content_sha256"]
            assert scores == pytest.approx(others, abs=1e-5)
        else:
            assert found == expected
        own = read(part / "eval_results.json")
        for key, value in own.items():
            metric, _, end = key.partition("_mismatched")
            key = f"{metric}_{name}" + ("_mismatched" if "_mism" in key else "")
            if key.startswith("eval_"):
                assert results.pop(key) == value
        # As the run's own files count.
        run = read(part / "run.json")
        config = read(part / "adapter" / "adapter_config.json")
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
    assert not (out / "adapter").exists()
    assert not list(out.rglob("*tmp*"))


@pytest.mark.gate
@pytest.mark.older_stack
def test_what_was_trained_together_goes_onto_a_shelf_and_answers(
    classify, glue_flags, tiny_bert, tmp_path
):
    classify(**glue_flags)
    out = glue_flags["output_dir"]
    shelf = AdapterLibrary(str(tmp_path / "shelf"), create=True)
    predictor = Predictor.load(str(tiny_bert), [])
    for name in PARTS:
        shelf.add(str(out / "tasks" / name), name)
        results = read(out / "tasks" / name / "eval_results.json")
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


@pytest.mark.gate
def test_the_tasks_are_learned(classify, glue_flags):
    del glue_flags["adapter_size"]
    glue_flags.update(
        num_train_epochs=40, tuning_method="full", learning_rate=1e-3
    )
    classify(**glue_flags)
    results = read(glue_flags["output_dir"] / "eval_results.json")
    assert results["eval_accuracy_mnli"] == 1
    assert results["eval_accuracy_reviews"] == 1
    assert results["eval_pearson_sts-b"] > 0.9
    assert results["eval_mean"] == pytest.approx(
        (2 + results["eval_pearson_sts-b"]) / 3
    )


@pytest.mark.older_stack
@pytest.mark.gate
def test_bits_depend_on_seed_and_sampling_and_not_on_the_order_of_names(
    classify, glue_flags, tmp_path
):
    changes = {
        "a": {},
        "b": {"task_name": "custom:reviews,sts-b,mnli"},
        "c": {"seed": 2},
        "d": {"task_sampling": "uniform"},
    }
    found = {}
    for name, change in changes.items():
        out = tmp_path / name
        classify(**{**glue_flags, **change, "output_dir": out})
        found[name] = bytes_by_task(out)
    assert found["a"] == found["b"]
    for part in PARTS:
        assert found["a"][part] not in (found["c"][part], found["d"][part])


@pytest.mark.gate
@pytest.mark.older_stack
def test_parts_of_a_batch_train_what_a_whole_one_does(
    classify, glue_flags, steady_config, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "adapter_bert.tasks.text_classification.dropout",
        lambda x, *arguments: x,
    )
    config = tmp_path / "steady.json"
    config.write_text(json.dumps(vars(steady_config)))
    glue_flags.update(bert_config_file=config)
    losses = []
    for parts in (1, 2):
        out = glue_flags["output_dir"] = tmp_path / str(parts)
        classify(**glue_flags, gradient_accumulation_steps=parts)
        results = read(out / "eval_results.json")
        losses.append([results[f"eval_loss_{name}"] for name in PARTS])
    np.testing.assert_allclose(*losses, atol=1e-5)


@pytest.mark.older_stack
@pytest.mark.gate
def test_killed_runs_end_in_the_same_bits(glue_flags, tmp_path):
    """SIGKILL at random moments, twice; then to the end."""
    glue_flags.update(
        num_train_epochs=30,
        save_checkpoints_steps=7,
        keep_best="mean",
        eval_steps=60,
    )
    whole, killed = kill_and_go_on(glue_flags, tmp_path, seed=5)
    assert bytes_by_task(killed) == bytes_by_task(whole)
    for name in ("eval_results.json", "dev_scores.json"):
        assert read(killed / name) == read(whole / name)


@pytest.mark.gate
@pytest.mark.older_stack
def test_the_step_of_the_best_mean_is_kept(classify, glue_flags):
    glue_flags.update(keep_best="mean", eval_steps=5, num_train_epochs=4)
    classify(**glue_flags)
    out = glue_flags["output_dir"]
    scores = dev_scores.read(str(out))
    assert scores.best_step == max(
        sorted(scores.by_step), key=lambda step: scores.by_step[step]["mean"]
    )
    results = read(out / "eval_results.json")
    assert results["global_step"] == scores.best_step
    assert results["eval_mean"] == scores.by_step[scores.best_step]["mean"]
    for name in PARTS:
        part = out / "tasks" / name
        config = read(part / "adapter" / "adapter_config.json")
        assert config["checkpoint"] == f"best.ckpt-{scores.best_step}"
        assert read(part / "eval_results.json")["global_step"] == (
            scores.best_step
        )


@pytest.mark.gate
@pytest.mark.older_stack
def test_one_tasks_loss_may_choose_the_step(classify, glue_flags):
    glue_flags.update(keep_best="loss_sts-b", num_train_epochs=3)
    classify(**glue_flags)
    scores = dev_scores.read(str(glue_flags["output_dir"]))
    losses = {s: of["loss_sts-b"] for s, of in scores.by_step.items()}
    assert len(losses) == 3
    assert scores.best_step == min(sorted(losses), key=losses.__getitem__)


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_training_ends_by_the_mean(classify, glue_flags):
    glue_flags.update(early_stopping=1, learning_rate=1e-12, num_train_epochs=9)
    classify(**glue_flags)
    scores = dev_scores.read(str(glue_flags["output_dir"]))
    assert scores.keep_best == "mean" and len(scores.by_step) == 2


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_run_is_evaluated_later_in_its_folder_and_from_its_checkpoint(
    classify, glue_flags, tmp_path
):
    classify(**glue_flags)
    out = glue_flags["output_dir"]
    expected = read(out / "eval_results.json")
    shutil.rmtree(out / "tasks" / "mnli" / "adapter")
    (out / "eval_results.json").unlink()
    evaluate = {**glue_flags, "do_train": False}
    # The folder knows it.
    del evaluate["init_checkpoint"]
    classify(**evaluate)
    assert read(out / "eval_results.json") == expected
    evaluate.update(
        init_checkpoint=out / "model.ckpt-20", output_dir=tmp_path / "new"
    )
    classify(**evaluate)
    assert read(tmp_path / "new" / "eval_results.json") == expected
    assert (tmp_path / "new" / "tasks" / "mnli" / "eval_results.json").exists()
    alone = {
        "task_name": "custom",
        "data_dir": pathlib.Path(evaluate["data_dir"]) / "Reviews",
    }
    with pytest.raises(UserError, match="is of several tasks, mnli,reviews,s"):
        classify(**{**evaluate, **alone, "adapter_size": 4})
    # Started again, the run writes what it has lost.
    classify(**glue_flags)
    assert set(bytes_by_task(out)) == set(PARTS)


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_run_may_start_from_another_ones_checkpoint(
    classify, glue_flags, tmp_path
):
    classify(**glue_flags)
    first = glue_flags["output_dir"]
    glue_flags.update(
        init_checkpoint=first / "model.ckpt-20",
        output_dir=tmp_path / "further",
        learning_rate=1e-9,
    )
    classify(**glue_flags)
    for name in PARTS:
        check_nearly_equal(
            first / "tasks" / name, tmp_path / "further" / "tasks" / name
        )


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_part_of_ones_own_tables_is_held_out(classify, glue_flags, tmp_path):
    data = glue_flags["data_dir"] = tmp_path / "data"
    for name in ("one", "two"):
        (data / name).mkdir(parents=True)
        write_table(data / name / "train.tsv", SENTENCES * 5)
        write_table(data / name / "test.tsv", SENTENCES[:2])
    del glue_flags["text_a_column"]
    glue_flags.update(task_name="custom:one,custom:two", dev_share=0.2)
    classify(**glue_flags)
    run = read(glue_flags["output_dir"] / "run.json")
    assert run["training"]["examples"] == 64
    # In the same folder, without the flag; and never with another share.
    glue_flags.update(
        do_train=False, do_eval=False, do_predict=True, dev_share=0
    )
    classify(**glue_flags)
    glue_flags.update(do_eval=True, dev_share=0.3)
    with pytest.raises(
        UserError, match=r"one.held_out\.share was 0\.2, now 0\.3"
    ):
        classify(**glue_flags)


@pytest.mark.gate
@pytest.mark.older_stack
def test_the_first_rows_of_each_task(classify, glue_flags, caplog):
    glue_flags.update(max_train_examples=10, max_eval_examples=3)
    classify(**glue_flags)
    assert "mnli 10, reviews 10, sts-b 10" in caplog.text
    run = read(glue_flags["output_dir"] / "run.json")
    assert run["training"]["examples"] == 30
    # int(30 / 8 * 2)
    assert run["training"]["steps"] == 7


@pytest.mark.gate
@pytest.mark.older_stack
def test_epochs_are_of_all_rows(classify, glue_flags, caplog):
    classify(**glue_flags)
    run = read(glue_flags["output_dir"] / "run.json")
    assert run["training"]["examples"] == 40 + 24 + 16
    assert run["training"]["steps"] == 20
    assert "batches of each task (annealed sampling): mnli " in caplog.text


def test_a_table_of_all_heads(classify, glue_flags, capsys):
    for name in ("do_train", "do_eval", "output_dir"):
        del glue_flags[name]
    classify(**glue_flags, describe=True)
    # 3 labels, 2 labels, a number.
    head = f"head {6 * 17:,} {6 * 17:,} -"
    shown = capsys.readouterr().out
    assert head in [" ".join(line.split()) for line in shown.splitlines()]


@pytest.mark.older_stack
def test_declared_tasks_are_described_without_data(capfd):
    done = run_process(
        "--describe",
        "--task_name=CoLA,MNLI",
        "--bert_config_file=configs/bert_base_uncased.json",
    )
    head = "head 3,845 3,845 -"
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert head in lines


@pytest.mark.gate
@pytest.mark.older_stack
def test_the_folder_of_a_part_holds_no_training(classify, glue_flags):
    """Its run.json says what it is; a run there needs its adapter."""
    classify(**glue_flags)
    part = glue_flags["output_dir"] / "tasks" / "mnli"
    flags = alone(glue_flags, "mnli", glue_flags["output_dir"], part)
    expected = read(part / "eval_results.json")
    classify(**flags)
    assert read(part / "eval_results.json") == expected
    del flags["adapter"]
    flags["adapter_size"] = 4
    with pytest.raises(UserError, match="holds no trained"):
        classify(**flags)
    with pytest.raises(UserError, match="training.trained_together was"):
        classify(**{**flags, "do_train": True})


@pytest.mark.gate
def test_two_workers_train_what_one_does(glue_flags, steady_config, tmp_path):
    config = tmp_path / "steady.json"
    config.write_text(json.dumps(vars(steady_config)))
    glue_flags.update(
        engine="strategy", bert_config_file=config, learning_rate=1e-4
    )

    def command(folder, **change):
        flags = {**glue_flags, **change, "output_dir": tmp_path / folder}
        return [f"--{name}={value}" for name, value in flags.items()]

    def run_two(folder, *changes):
        commands = [command(folder, **change) for change in changes]
        return run_workers(commands, tmp_path, program="run_classifier.py")

    codes, logs = run_two("two", {}, {})
    assert codes == [0, 0], logs
    run_process(*command("one"))
    one, two = (
        read(tmp_path / folder / "eval_results.json")
        for folder in ("one", "two")
    )
    assert one.pop("dev_data") == two.pop("dev_data")
    assert one.pop(files.SEAL) and two.pop(files.SEAL)
    # The heads' own dropout differs between one and two.
    assert two == pytest.approx(one, abs=1e-2)
    assert os.listdir(tmp_path / "two" / "tasks" / "mnli") == os.listdir(
        tmp_path / "one" / "tasks" / "mnli"
    )
    codes, logs = run_two("three", {}, {"task_sampling": "uniform"})
    assert codes == [1, 1], logs
    assert "Traceback" not in logs[0] + logs[1]
