"""The real entry point: published commands, files, resumption."""

import json
from shutil import copytree

import numpy as np
import pytest
import refusals
import tensorflow as tf
from absl import flags
from conftest import (
    ROOT,
    TINY_WORDS,
    entry_point,
    module_fixture,
    read_adapter,
    read_json,
    read_lines,
    spoil,
    write_table,
)
from numpy.testing import assert_allclose
from run_folders import artifact_bytes, check_nearly_equal, kill_and_go_on
from test_sources import google_bert  # noqa: F401 (a fixture)

from adapter_bert.commands import run_classifier, run_squad
from adapter_bert.errors import UserError

FLAGS = flags.FLAGS


def results(folder):
    return read_json(folder, "eval_results.json")


@module_fixture
def kept(tmp_path_factory):
    """Where `trained` keeps its training."""
    return tmp_path_factory.mktemp("kept") / "out"


@pytest.fixture
def trained(classify, tiny_flags, kept):
    """Flags of a training of 20 steps that is over in its folder."""
    tiny_flags["save_checkpoints_steps"] = 8
    if kept.exists():
        copytree(kept, tiny_flags["output_dir"])
    else:
        classify(**tiny_flags, do_eval=True)
        copytree(tiny_flags["output_dir"], kept)
    return tiny_flags


def test_a_run_writes_all_its_files(classify, tiny_flags):
    lanes = 1 if tf.config.list_physical_devices("GPU") else 3
    flags = {**tiny_flags, "cpu_lanes": lanes}
    classify(**flags, do_eval=True, do_predict=True)
    out = tiny_flags["output_dir"]
    for name in (
        "run.json",
        "eval_results.txt",
        "eval_results.json",
        "test_results.tsv",
        "test_predictions.tsv",
        "adapter/adapter_config.json",
        "adapter/adapter.safetensors",
        "model.ckpt-20.index",
    ):
        assert (out / name).exists(), name
    assert list(out.glob("events.out.tfevents.*"))
    assert not list(out.rglob("*tmp*"))
    rows = np.loadtxt(out / "test_results.tsv")
    assert rows.shape == (7, 2)
    assert_allclose(rows.sum(axis=1), 1, atol=1e-6)
    predicted = read_lines(out / "test_predictions.tsv")
    assert [line.split("\t")[1] for line in predicted[1:]] == [
        ("bad", "good")[row.argmax()] for row in rows
    ]
    # The table of parameters counts what the artifact holds.
    run = read_json(out / "run.json")
    artifact = read_adapter(out / "adapter")
    count = sum(np.prod(s) for s in artifact.weights.shapes.values())
    assert count == run["parameters"]["trained"]
    # What the bits depend on, and may change while a run goes on.
    versions = run["versions"]
    assert set(versions) == {
        "python",
        "tensorflow",
        "numpy",
        "engine",
        "devices",
        "cpu_lanes",
        "gradient_accumulation_steps",
        "use_xla",
    }
    assert versions["cpu_lanes"] == lanes


@pytest.mark.older_stack
def test_another_seed_gives_other_bits(classify, trained, tmp_path):
    """Equal seeds give equal ones, as runs that are killed show."""
    first, other = trained["output_dir"], tmp_path / "other"
    classify(**{**trained, "output_dir": other, "seed": 2})
    assert artifact_bytes(other) != artifact_bytes(first)


@pytest.mark.gate
@pytest.mark.older_stack
def test_an_adapter_can_be_trained_further(classify, trained, tmp_path):
    first, further = trained["output_dir"], tmp_path / "further"
    adapter = first / "adapter"
    trained["output_dir"] = further
    slow = {**trained, "learning_rate": 1e-9}
    classify(**slow, adapter=adapter)
    check_nearly_equal(first, further)
    refusals.check(lambda: classify(**slow), "training.start was")


@pytest.mark.older_stack
def test_an_adapter_bert_checkpoint_is_evaluated(
    classify, tmp_path, golden_dir
):
    """Its adapters and head are used, not fresh ones."""
    words = TINY_WORDS + [f"w{i}" for i in range(120 - len(TINY_WORDS))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    rows = [("the cat", "0"), ("a dog", "1"), ("the mat", "2")]
    for split in ("train", "dev"):
        write_table(tmp_path / f"{split}.tsv", rows)
    folder = golden_dir / "adapter_bert_tiny"
    for step in (0, 20):
        classify(
            task_name="custom",
            data_dir=tmp_path,
            vocab_file=tmp_path / "vocab.txt",
            init_checkpoint=folder / f"model.ckpt-{step}",
            adapter_size=8,
            max_seq_length=40,
            do_eval=True,
            output_dir=tmp_path / str(step),
        )
    losses = [results(tmp_path / str(s))["eval_loss"] for s in (0, 20)]
    assert losses[0] != losses[1]


@pytest.mark.gate
def test_a_killed_run_with_new_words_on_int8_goes_on(
    classify, tiny_flags, engine, tmp_path
):
    """SIGKILL at random moments, twice; then to the end.

    Words and DoRA begin at BERT's values, which each start reads again.
    """
    words = tmp_path / "words.txt"
    words.write_text("bad film\nslow dog\n")
    tiny_flags.update(num_train_epochs=40, save_checkpoints_steps=7)
    method = "dora(rank=2, rank_pattern='1.query:0', dropout=0.1)"
    tiny_flags.update(tuning_method=method, new_tokens=words)
    tiny_flags.update(engine=engine, base_dtype="int8", do_eval=True)
    del tiny_flags["adapter_size"]
    whole, killed = kill_and_go_on(
        classify, tiny_flags, tmp_path, seed=11, times=2
    )
    assert artifact_bytes(killed) == artifact_bytes(whole)
    assert results(killed) == results(whole)
    names = read_adapter(whole / "adapter").weights.shapes
    assert "bert/embeddings/new_words" in names


# Of both of BERT's programs.
PUBLISHED_FLAGS = {
    "bert_config_file": "",
    "vocab_file": "",
    "output_dir": "",
    "init_checkpoint": "",
    # As the model says.
    "do_lower_case": None,
    "do_train": False,
    "do_predict": False,
    "train_batch_size": 32,
    "predict_batch_size": 8,
    # The method's own: 5e-5 of full fine-tuning.
    "learning_rate": None,
    "num_train_epochs": 3.0,
    "warmup_proportion": 0.1,
    "save_checkpoints_steps": 1000,
    "iterations_per_loop": 1000,
    "use_tpu": False,
    "tpu_name": "",
    "tpu_zone": "",
    "gcp_project": "",
    "master": "",
    "num_tpu_cores": 8,
}


def test_flags_have_berts_names_and_defaults(classify):
    expected = {
        **PUBLISHED_FLAGS,
        "data_dir": "",
        "task_name": "",
        "max_seq_length": 128,
        "do_eval": False,
        "eval_batch_size": 8,
    }
    assert {name: FLAGS[name].default for name in expected} == expected
    assert FLAGS["epochs"].default == FLAGS["num_train_epochs"].default


@pytest.mark.newer_stack
def test_config_files_of_the_project_are_read(capsys):
    paths = sorted((ROOT / "configs").glob("*.flags"))
    assert paths
    for path in paths:
        squad = "--train_file" in path.read_text()
        with entry_point(run_squad if squad else run_classifier) as run:
            run(
                flagfile=path,
                describe=True,
                bert_config_file=ROOT / "configs/bert_base_uncased.json",
            )
        printed = capsys.readouterr().out
        assert "Total Trainable Parameters" in printed, path


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_named_checkpoint_is_evaluated_on_the_base_of_its_folder(
    classify, trained, tiny_bert, tiny_data, tmp_path
):
    """Not the newest one; copied elsewhere it asks for the base."""
    out = trained["output_dir"]
    for name in ("run.json", "adapter/adapter_config.json"):
        description = read_json(out / name)
        assert description["base"]["name"] == tiny_bert.name
        assert description["data_name"] == tiny_data.name
    evaluate = {**trained, "do_train": False, "do_eval": True}
    evaluate["init_checkpoint"] = out / "model.ckpt-8"
    refusals.check(lambda: classify(**evaluate), "pass another --output_dir")
    losses = {}
    for step in (8, 20):
        evaluate["init_checkpoint"] = out / f"model.ckpt-{step}"
        evaluate["output_dir"] = tmp_path / str(step)
        classify(**evaluate)
        scores = results(tmp_path / str(step))
        assert scores["global_step"] == step
        losses[step] = scores["loss"]
    assert losses[8] != losses[20]
    (out / "places.json").write_text('{"base": "/nowhere/bert"}')
    refusals.check(
        lambda: classify(**evaluate), "/nowhere/bert", " as --adapter"
    )
    evaluate.update(init_checkpoint=tiny_bert, adapter=out / "adapter")
    classify(**evaluate)


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_lost_checkpoint_does_not_begin_a_training_anew(
    classify, trained, caplog
):
    """It goes on from the one before, to the same bits."""
    out = trained["output_dir"]
    before = artifact_bytes(out)
    (out / "checkpoint").unlink()
    (out / "model.ckpt-20.index").unlink()
    classify(**{**trained, "do_train": False, "do_eval": True})
    assert results(out)["global_step"] == 16
    classify(**trained)
    assert "model.ckpt-16 is taken" in caplog.text
    assert "from step 16" in caplog.text
    assert artifact_bytes(out) == before


@pytest.mark.older_stack
def test_describe_says_what_was_trained(classify, trained, capsys):
    classify(
        describe=True,
        task_name="custom",
        init_checkpoint=trained["output_dir"] / "model.ckpt-20",
    )
    assert "houlsby(size=4" in capsys.readouterr().out


@pytest.mark.gate
@pytest.mark.older_stack
def test_an_adapter_that_does_not_fit_is_refused(
    classify, trained, tiny_config, tmp_path
):
    config = json.dumps({**vars(tiny_config), "num_attention_heads": 4})
    vocabulary = "\n".join([*TINY_WORDS[:-1], "up"])
    del trained["adapter_size"]
    trained.update(
        adapter=trained["output_dir"] / "adapter",
        output_dir=tmp_path / "new",
        do_train=False,
        do_eval=True,
    )
    for name, value, words in (
        ("task_name", "cola", "for the labels bad, good"),
        ("text_b_column", "second", "with pairs: False"),
        ("tuning_method", "full", "was trained with houlsby"),
        ("adapter_size", 8, "was trained with houlsby"),
        (
            "vocab_file",
            spoil(tmp_path, "v.txt", vocabulary.encode()),
            "with another vocabulary",
        ),
        (
            "bert_config_file",
            spoil(tmp_path, "c.json", config.encode()),
            "num_attention_heads 2",
        ),
    ):
        with pytest.raises(UserError, match=words):
            classify(**{**trained, name: value})


@pytest.mark.older_stack
@pytest.mark.parametrize("use", ["as start", "in its folder"])
def test_a_truncated_training_checkpoint_is_one_line(
    classify, trained, tmp_path, use
):
    out = trained["output_dir"]
    data = out / "model.ckpt-20.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:2000])
    for path in (*out.glob("model.ckpt-8.*"), *out.glob("model.ckpt-16.*")):
        path.unlink()
    if use == "as start":
        trained.update(
            init_checkpoint=out / "model.ckpt-20", output_dir=tmp_path / "new"
        )
    refusals.check(
        lambda: classify(**trained, do_eval=True), "damaged or incomplete"
    )


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_run_beside_the_pretrained_model_does_not_spoil_it(
    classify,
    tiny_flags,
    google_bert,  # noqa: F811
):
    tiny_flags.update(
        init_checkpoint=google_bert / "bert_model.ckpt", output_dir=google_bert
    )
    classify(**tiny_flags)
    classify(**tiny_flags, do_eval=True)
