"""The script that sets all tuning methods side by side."""

import importlib
import json
import sys

import pytest
from conftest import SENTENCES, write_table

from adapter_modeling import parse
from errors import UserError
from methods import METHODS


@pytest.fixture
def compare(monkeypatch, tmp_path):
    """The script as a module, with two methods, one task and its own files."""
    module = importlib.import_module("scripts.compare_methods")
    page = tmp_path / "methods.md"
    page.write_text(f"before\n{module.BEGIN}old\n{module.END}after\n")
    monkeypatch.setattr(module, "PAGE", page)
    monkeypatch.setattr(module, "FIGURE", tmp_path / "methods.png")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results/methods.json")
    return module


def test_every_method_is_compared(compare):
    parsed = [parse(text) for text in compare.METHODS]
    assert {method.name for method in parsed} == set(METHODS)


def test_runs_that_are_finished_are_reported_and_kept(
    compare, monkeypatch, tmp_path, tiny_bert, capfd
):
    monkeypatch.setattr(
        compare, "METHODS", {"houlsby(size=4)": 1e-3, "lt_sft(0.01)": 1e-3}
    )
    monkeypatch.setattr(compare, "TASKS", {"SST-2": (1, 16, "accuracy")})
    data = tmp_path / "glue" / "SST-2"
    data.mkdir(parents=True)
    rows = [(text, str(int(label == "good"))) for text, label in SENTENCES]
    write_table(data / "train.tsv", rows * 5, ("sentence", "label"))
    write_table(data / "dev.tsv", rows, ("sentence", "label"))
    arguments = [
        "compare_methods.py",
        f"--glue_dir={tmp_path / 'glue'}",
        f"--init_checkpoint={tiny_bert}",
        f"--output_dir={tmp_path / 'out'}",
    ]
    # The tiny BERT has 32 positions only.
    whole = compare.command
    monkeypatch.setattr(
        compare, "command", lambda *a: [*whole(*a), "--max_seq_length=32"]
    )
    monkeypatch.setattr(sys, "argv", arguments)
    compare.main()
    text = compare.PAGE.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "`houlsby(size=4)`" in text and "`lt_sft(0.01)`" in text
    assert "old" not in text
    assert compare.FIGURE.stat().st_size > 10_000
    results = json.loads(compare.RESULTS.read_text())
    entry = results["lt_sft(0.01)"]["tasks"]["SST-2"]
    assert 0 <= entry["score"] <= 1 and entry["attempts"] == 1
    assert entry["processor_seconds"] > 0 and entry["peak_bytes"] > 2**27
    kept = tmp_path / "out" / "SST-2-16" / "train.tsv"
    assert len(kept.read_text().splitlines()) == 17
    capfd.readouterr()
    compare.main()
    assert "run_classifier.py" not in capfd.readouterr().out


def test_runs_of_another_rate_are_not_taken_for_this_ones(
    compare, monkeypatch, tmp_path
):
    folder = tmp_path / "MRPC" / "ia3"
    folder.mkdir(parents=True)
    training = {"learning_rate": 0.5, "epochs": 2, "compute_dtype": "bfloat16"}
    record = {"method": "ia3", "training": training}
    (folder / "run.json").write_text(json.dumps(record))
    for name in ("eval_results.json", "cost.json"):
        (folder / name).write_text("{}")
    with pytest.raises(UserError, match="holds another run: .*0.5"):
        compare.collect(str(tmp_path))


def test_a_failed_run_is_one_line(compare, monkeypatch, tmp_path):
    (tmp_path / "glue").mkdir()
    arguments = [
        "compare_methods.py",
        f"--glue_dir={tmp_path / 'glue'}",
        f"--init_checkpoint={tmp_path / 'missing'}",
        f"--output_dir={tmp_path / 'out'}",
        "--only=ia3",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match="error: MRPC with ia3 failed: error"):
        compare.main()
