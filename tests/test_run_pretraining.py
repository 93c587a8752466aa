"""Pretraining's entry point: files, resumption, refusals."""

import pytest
import refusals
from conftest import (
    flag_words,
    open_checkpoint,
    program_fixture,
    read_adapter,
    read_json,
    run_process,
    write_json,
)
from test_methods_runs import without_size
from test_pretraining import EXAMPLES, LENGTH, MOST, write

from adapter_bert.commands import library, merge, run_pretraining
from adapter_bert.library.adapter_library import AdapterLibrary

pytestmark = pytest.mark.older_stack


pretrain = program_fixture(run_pretraining)


@pytest.fixture
def pretraining_flags(tiny_flags, tmp_path):
    """Flags of a small training of all of BERT."""
    for name in ("task_name", "data_dir", "num_train_epochs"):
        del tiny_flags[name]
    return {
        **without_size(tiny_flags),
        "input_file": write(tmp_path / "rows.tfrecord", EXAMPLES * 8),
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": MOST,
        "num_train_steps": 6,
        "num_warmup_steps": 2,
    }


@pytest.fixture
def from_nothing(pretraining_flags, tiny_bert, tiny_config, tmp_path):
    """Flags of a training that begins with random values."""
    config = tmp_path / "bert_config.json"
    described = {**vars(tiny_config), "hidden_act": "gelu"}
    write_json(config, {**described, "model_type": "bert"})
    del pretraining_flags["init_checkpoint"]
    return {
        **pretraining_flags,
        "bert_config_file": config,
        "vocab_file": tiny_bert / "vocab.txt",
    }


def test_a_published_command_from_nothing(
    pretrain, from_nothing, tmp_path, run_main
):
    """As a user starts it; the result is a BERT for other programs."""
    from_nothing.update(num_train_steps=120, learning_rate=3e-3, do_eval=True)
    words = flag_words(from_nothing)
    done = run_process(*words, program="run_pretraining.py")
    out = from_nothing["output_dir"]
    assert "trained: 100.00% of all parameters" in done.stderr
    begun = read_json(out / "initial", "bert_config.json")
    assert begun["hidden_act"] == "gelu_erf"
    scores = read_json(out, "eval_results.json")
    # Three rows are repeated.
    assert scores["eval_masked_lm_accuracy"] > 0.9
    assert scores["eval_next_sentence_accuracy"] == 1.0
    run = read_json(out, "run.json")
    assert run["task"] == {"name": "pretraining"}
    assert run["training"]["steps"] == run["training"]["num_train_steps"] == 120
    assert run["training"]["num_warmup_steps"] == 2
    run_main(
        merge,
        f"--init_checkpoint={out / 'initial'}",
        f"--adapter={out / 'adapter'}",
        f"--output_dir={tmp_path / 'bert'}",
    )
    merged = open_checkpoint(tmp_path / "bert").weights
    trained = read_adapter(out / "adapter").weights
    for name in (
        "bert/pooler/dense/bias",
        "cls/seq_relationship/output_bias",
        "cls/predictions/output_bias",
    ):
        assert (merged.read(name) == trained.read(name)).all()
    # Initial values follow from the seed; equal ones: tests/test_programs.py.
    other = from_nothing["output_dir"] = tmp_path / "other"
    from_nothing.update(num_train_steps=2, do_eval=False, seed=2)
    pretrain(**from_nothing)
    first, second = (
        open_checkpoint(folder / "initial").weights.read(
            "bert/pooler/dense/kernel"
        )
        for folder in (out, other)
    )
    assert (first != second).any()


def test_a_bucket_begins_with_no_random_values(
    from_nothing, pretrain, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    from_nothing["output_dir"] = "ram://bucket/out"
    refusals.check(lambda: pretrain(**from_nothing), "is no local folder")
    assert not (tmp_path / "ram:").exists()


def test_a_folder_of_another_kind_is_kept(from_nothing, pretrain):
    kept = from_nothing["output_dir"] / "initial" / "thesis.txt"
    kept.parent.mkdir(parents=True)
    kept.touch()
    refusals.check(
        lambda: pretrain(**from_nothing),
        f"{kept.parent} holds other files than a BERT",
    )
    assert kept.exists()


def test_an_adapter_alone(
    pretrain, pretraining_flags, tmp_path, run_main, tiny_data
):
    pretrain(**pretraining_flags, tuning_method="houlsby(size=4)")
    out = pretraining_flags["output_dir"]
    names = read_adapter(out / "adapter").weights.shapes
    assert not any(name.endswith("query/kernel") for name in names)
    # A library keeps the adapter, and knows that texts are not for it.
    shelf = tmp_path / "shelf"
    run_main(library, "add", shelf, out, "--name=domain")
    kept = AdapterLibrary(str(shelf))
    assert kept.names() == ["domain"] and kept.answering() == []
    flags = {"init_checkpoint": out, "output_dir": tmp_path / "tuned"}
    flags.update(task_name="custom", data_dir=tiny_data, do_train=True)
    done = run_process(*flag_words(flags), check=False)
    assert "has learned pretraining alone; pass its BERT as" in done.stderr
