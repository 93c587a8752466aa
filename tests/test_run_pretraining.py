"""Pretraining's entry point: files, resumption, refusals."""

import json

import pytest
from conftest import entry_point, run_process
from run_folders import artifact_bytes, kill_and_go_on, read
from task_files import refusal
from test_methods_runs import without_size
from test_pretraining import EXAMPLES, LENGTH, MOST, TOKENS, example, write

from adapter_bert.checkpoints import adapter_artifact, sources
from adapter_bert.commands import library, merge, run_pretraining
from adapter_bert.serving.library import AdapterLibrary

pytestmark = pytest.mark.older_stack


@pytest.fixture
def pretrain():
    """Runs `run_pretraining.py` with flags, within this process."""
    with entry_point(run_pretraining) as run:
        yield run


@pytest.fixture
def flags(tiny_flags, tmp_path):
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
def from_nothing(flags, tiny_bert, tiny_config, tmp_path):
    """Flags of a training that begins with random values."""
    config = tmp_path / "bert_config.json"
    config.write_text(json.dumps({**vars(tiny_config), "hidden_act": "gelu"}))
    del flags["init_checkpoint"]
    return {
        **flags,
        "bert_config_file": config,
        "vocab_file": tiny_bert / "vocab.txt",
    }


def test_a_published_command_from_nothing(from_nothing, tmp_path, run_main):
    """As a user starts it; the result is a BERT for other programs."""
    from_nothing.update(num_train_steps=120, learning_rate=3e-3, do_eval=True)
    given = [f"--{name}={value}" for name, value in from_nothing.items()]
    done = run_process(*given, program="run_pretraining.py")
    out = from_nothing["output_dir"]
    assert "trained: 100.00% of all parameters" in done.stderr
    scores = read(out, "eval_results.json")
    # Three rows are repeated.
    assert scores["eval_masked_lm_accuracy"] > 0.9
    assert scores["eval_next_sentence_accuracy"] == 1.0
    run = read(out, "run.json")
    assert run["task"] == {"name": "pretraining"}
    assert run["training"]["steps"] == run["training"]["num_train_steps"] == 120
    assert run["training"]["num_warmup_steps"] == 2
    run_main(
        merge,
        f"--init_checkpoint={out / 'initial'}",
        f"--adapter={out / 'adapter'}",
        f"--output_dir={tmp_path / 'bert'}",
    )
    merged = sources.open_init_checkpoint(str(tmp_path / "bert")).weights
    trained = adapter_artifact.read(str(out / "adapter")).weights
    for name in ("bert/pooler/dense/bias", "cls/seq_relationship/output_bias"):
        assert (merged.read(name) == trained.read(name)).all()


def test_initial_values_follow_from_the_seed(pretrain, from_nothing, tmp_path):
    read_value = {}
    for name, seed in ("a", 1), ("b", 1), ("c", 2):
        out = tmp_path / name
        pretrain(
            **{**from_nothing, "seed": seed, "output_dir": out},
            max_train_examples=8,
        )
        weights = sources.open_init_checkpoint(str(out / "initial")).weights
        read_value[name] = weights.read("bert/pooler/dense/kernel")
    assert (read_value["a"] == read_value["b"]).all()
    assert (read_value["a"] != read_value["c"]).any()
    assert artifact_bytes(tmp_path / "a") == artifact_bytes(tmp_path / "b")


@pytest.mark.gate
def test_a_killed_run_ends_in_the_same_bits(pretrain, from_nothing, tmp_path):
    whole, killed = kill_and_go_on(
        pretrain,
        {
            **from_nothing,
            "num_train_steps": 400,
            "save_checkpoints_steps": 7,
            "do_eval": True,
        },
        tmp_path,
        program="run_pretraining.py",
    )
    assert artifact_bytes(killed) == artifact_bytes(whole)
    name = "eval_results.json"
    assert read(killed, name) == read(whole, name)


def test_an_adapter_alone(pretrain, flags, tmp_path, run_main):
    flags.update(tuning_method="houlsby(size=4)", do_eval=True)
    pretrain(**flags)
    out = flags["output_dir"]
    names = adapter_artifact.read(str(out / "adapter")).weights.shapes
    assert not any(name.endswith("query/kernel") for name in names)
    again = {**flags, "do_train": False, "output_dir": tmp_path / "again"}
    del again["tuning_method"], again["num_train_steps"]
    pretrain(**again, adapter=out / "adapter")
    scores = [read(x, "eval_results.json") for x in (out, tmp_path / "again")]
    assert scores[0]["eval_loss"] == scores[1]["eval_loss"]
    # A library keeps the adapter, and knows that texts are not for it.
    shelf = tmp_path / "shelf"
    run_main(library, "add", shelf, out, "--name=domain")
    kept = AdapterLibrary(str(shelf))
    assert kept.names() == ["domain"] and kept.answering() == []


def test_rows_without_a_masked_token(pretrain, flags, tmp_path, caplog):
    """They teach which text follows, and score as in BERT's program."""
    rows = [example(TOKENS, places=(), label=n % 2) for n in range(16)]
    flags["input_file"] = write(tmp_path / "plain.tfrecord", rows)
    pretrain(**flags, do_eval=True)
    assert "no row has a masked token" in caplog.text
    scores = read(flags["output_dir"], "eval_results.json")
    assert scores["eval_masked_lm_loss"] == 0 < scores["eval_loss"]
    error = refusal(lambda: pretrain(**flags | {"num_train_steps": 9}))
    assert "num_train_steps was 6, now 9" in error
    assert "--init_adapter" in error and "adapter-bert merge" in error


def test_the_schedule_counts_steps(pretrain, flags):
    error = refusal(lambda: pretrain(**flags | {"num_warmup_steps": 7}))
    assert "--num_warmup_steps is 7, but the training has 6 steps" in error
    error = refusal(lambda: pretrain(**flags, do_eval=True, eval_steps="epoch"))
    assert "pass --eval_steps with the number of steps" in error


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input_file": ""}, "--input_file is missing"),
        ({"input_file": "none"}, "no file is called 'none'"),
        ({"do_predict": True}, "answers nothing"),
        ({"max_seq_length": 10}, "with this --max_seq_length"),
        ({"num_train_steps": 0}, "expected 1 to"),
        ({"max_eval_steps": 0}, "expected >= 1"),
    ],
)
def test_bad_input(pretrain, flags, changed, message):
    assert message in refusal(lambda: pretrain(**flags | changed))


def test_nothing_begins_without_sizes_and_vocabulary(pretrain, from_nothing):
    for name in ("bert_config_file", "vocab_file"):
        lacking = {k: v for k, v in from_nothing.items() if k != name}
        error = refusal(lambda flags=lacking: pretrain(**flags))
        assert f"--{name} is missing" in error
    assert not from_nothing["output_dir"].exists()


def test_it_does_not_start_from_another_task(pretrain, flags, tiny_adapters):
    adapter = next(iter(tiny_adapters.values()))
    error = refusal(lambda: pretrain(**flags, adapter=adapter))
    assert "not on pretraining" in error
