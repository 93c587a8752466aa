"""Kinds of tasks from files to results, within this process."""

import pytest
from conftest import (
    SENTENCES,
    STS_B_HEADER,
    read_json,
    read_lines,
    write_mnli,
    write_table,
)

pytestmark = pytest.mark.older_stack


@pytest.fixture
def small(tiny_flags, tmp_path):
    """Flags of a short training over a folder that the test fills."""
    tiny_flags.update(data_dir=tmp_path, num_train_epochs=1)
    return tiny_flags


def read_results(folder):
    return read_json(folder / "eval_results.json")


@pytest.mark.gate
def test_mnli_has_two_dev_and_test_sets_and_answers_the_diagnostic_one(
    classify, small, tmp_path
):
    write_mnli(tmp_path)
    small.update(task_name="MNLI", do_eval=True, do_predict=True)
    classify(**small)
    out = small["output_dir"]
    results = read_results(out)
    for name in ("eval_accuracy", "eval_loss"):
        assert results[name] != results[f"{name}_mismatched"]
    for name, rows in (("", 3), ("_mismatched", 4)):
        lines = read_lines(out / f"test_results{name}.tsv")
        assert len(lines) == rows
        lines = read_lines(out / f"test_predictions{name}.tsv")
        assert len(lines) == rows + 1
        lines = read_lines(out / f"eval_labels{name}.tsv")
        assert len(lines) == 4
    small.update(
        task_name="AX",
        do_train=False,
        init_checkpoint=out / f"model.ckpt-{results['global_step']}",
        output_dir=tmp_path / "ax",
    )
    classify(**small)
    answers = (tmp_path / "ax" / "test_predictions.tsv").read_text()
    assert len(answers.splitlines()) == 9
    assert "eval_matthews_correlation" in read_results(tmp_path / "ax")


@pytest.mark.gate
def test_scores_are_learned_and_go_on_from_the_adapter(
    classify, small, tmp_path
):
    score = {"good": "2", "bad": "0.5"}
    rows = [("x",) * 7 + ("a", text, score[x]) for text, x in SENTENCES]
    write_table(tmp_path / "train.tsv", rows * 5, STS_B_HEADER)
    write_table(tmp_path / "dev.tsv", rows, STS_B_HEADER)
    small.update(
        task_name="STS-B",
        do_eval=True,
        num_train_epochs=40,
        tuning_method="full",
        learning_rate=1e-3,
    )
    del small["adapter_size"]
    classify(**small)
    results = read_results(small["output_dir"])
    assert results["eval_pearson"] > 0.9
    assert results["eval_loss"] < 0.2
    assert not (small["output_dir"] / "eval_labels.tsv").exists()
    small.update(
        do_train=False,
        adapter=small["output_dir"] / "adapter",
        output_dir=tmp_path / "again",
    )
    classify(**small)
    assert read_results(tmp_path / "again") == results
