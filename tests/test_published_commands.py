"""The commands of the papers' repositories, and the checkpoints they name."""

from conftest import read_json, run_process
from test_sources import google_bert  # noqa: F401 (a fixture)


def results(folder):
    return read_json(folder, "eval_results.json")


def test_the_published_commands_work_unchanged(
    classify,
    tmp_path,
    golden_dir,
    engine,
    google_bert,  # noqa: F811
):
    """Train and evaluate; then evaluate the training's checkpoint alone."""
    common = {
        "task_name": "MRPC",
        "use_tpu": "false",
        "engine": engine,
        "data_dir": golden_dir / "classifier_features" / "MRPC",
        "vocab_file": google_bert / "vocab.txt",
        "bert_config_file": google_bert / "bert_config.json",
        "do_eval": "true",
        "max_seq_length": 32,
    }
    out = tmp_path / "mrpc"
    training = {
        "do_train": "true",
        "init_checkpoint": google_bert / "bert_model.ckpt",
        "train_batch_size": 32,
        "learning_rate": "3e-4",
        "num_train_epochs": "5.0",
        "output_dir": f"{out}/",
    }
    words = {**common, **training}.items()
    first = run_process(*(f"--{name}={value}" for name, value in words))
    assert "**** Total Parameters = " in first.stderr
    assert "**** Total Trainable Parameters = " in first.stderr
    # 40 rows, 5 epochs, 32 a batch: 6.25; papers and courses name such steps.
    assert (out / "model.ckpt-6.index").exists()
    expected = results(out)
    assert expected["global_step"] == 6
    # The folder of the training is as good as another.
    for folder in (out / "new", out):
        checkpoint = out / "model.ckpt-6"
        classify(**common, init_checkpoint=checkpoint, output_dir=f"{folder}/")
        assert results(folder) == expected
    text = (out / "eval_results.txt").read_text()
    keys = [line.split(" = ")[0] for line in text.splitlines()]
    for key in ("eval_accuracy", "eval_loss", "global_step", "loss"):
        assert key in keys
    assert keys == sorted(keys)
