"""Models of folds: they are those of runs on the other rows alone."""

import numpy as np
import pytest
import refusals
from conftest import SENTENCES, cells, entry_point, read_json, write_table

from adapter_bert.commands import audit, run_classifier
from adapter_bert.data.divisions import Texts
from adapter_bert.training import fastest_dtype
from adapter_bert.training.settings import BFLOAT16, FLOAT32

ADAPTERS = {
    "max_seq_length": 32,
    "tuning_method": "houlsby(layers='1', size=8)",
    "learning_rate": 1e-2,
    "num_train_epochs": 2,
    "train_batch_size": 4,
    "class_weights": '{"good": 2.5}',
}


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_fold_is_guessed_by_a_run_on_the_others(still_bert, tmp_path):
    """With layers computed once, and by `run_classifier.py` without."""
    rows = [(f"{x} {n}", y) for n, (x, y) in enumerate(SENTENCES * 3)]
    write_table(tmp_path / "rows.tsv", rows)
    labels = np.array([label == "good" for _, label in rows]).astype(int)
    texts = Texts([x for x, _ in rows], labels[:, np.newaxis].tolist())
    fold = texts.folds(2, seed=1)
    parts = {"train": fold == 1, "test": fold == 0}
    for name, chosen in parts.items():
        part = [rows[row] for row in np.flatnonzero(chosen)]
        write_table(tmp_path / f"{name}.tsv", part)
    shared = {**ADAPTERS, "init_checkpoint": still_bert}
    with entry_point(audit) as run:
        run(
            **shared,
            train_file=tmp_path / "rows.tsv",
            output_dir=tmp_path / "audit",
            folds=2,
        )
    with entry_point(run_classifier) as run:
        run(
            **shared,
            task_name="custom",
            engine="strategy",
            train_file=tmp_path / "train.tsv",
            predict_file=tmp_path / "test.tsv",
            output_dir=tmp_path / "run",
            do_train=True,
            do_predict=True,
        )
    # Of two labels the margin is the label's probability.
    scores = np.loadtxt(tmp_path / "run" / "test_results.tsv")
    places = np.flatnonzero(fold == 0)
    margins = scores[range(len(places)), labels[places]]
    _, *suspects = cells(tmp_path / "audit" / "suspects.tsv")
    guessed = {int(row[0]) - 1: float(row[-1]) for row in suspects}
    expected = {
        row: margin for row, margin in zip(places, margins) if margin < 0.5
    }
    assert expected
    assert {row: guessed[row] for row in expected} == pytest.approx(
        expected, abs=2e-5
    )
    assert not set(places.tolist()) & set(guessed) - set(expected)
    about = read_json(tmp_path / "audit" / "audit.json")
    assert about["model"].startswith("houlsby(")


@pytest.mark.newer_stack
def test_the_faster_dtype_is_chosen(flags, monkeypatch, caplog):
    rates = {FLOAT32: 1.0, BFLOAT16: 9.0}
    monkeypatch.setattr(fastest_dtype, "rates", lambda: rates)
    flags.update(folds=2, tuning_method="head", num_train_epochs=1)
    with entry_point(audit) as run:
        run(**flags, compute_dtype="auto")
    assert (flags["output_dir"] / "suspects.tsv").exists()
    assert "--compute_dtype=auto: bfloat16" in caplog.text


@pytest.fixture
def flags(tiny_bert, tmp_path):
    write_table(tmp_path / "rows.tsv", SENTENCES)
    return {
        "train_file": tmp_path / "rows.tsv",
        "init_checkpoint": tiny_bert,
        "output_dir": tmp_path / "out",
        "max_seq_length": 32,
    }


@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "method, part",
    [("diff_pruning", "trained in two phases"), ("lora(rank=0)", "rank")],
)
def test_methods_that_do_not_fit_are_refused(flags, method, part):
    with entry_point(audit) as run:
        refusals.check(lambda: run(**flags, tuning_method=method), part)
