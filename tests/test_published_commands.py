"""The commands of the papers' repositories, and the checkpoints they name."""

import json
import pathlib
import shutil

import pytest
from conftest import run_process
from test_sources import google_bert  # noqa: F401 (a fixture)


def results(folder):
    return json.loads((pathlib.Path(folder) / "eval_results.json").read_text())


@pytest.fixture(scope="module")
def mrpc(tmp_path_factory, golden_dir):
    """A GLUE folder with small MRPC files in the published layout."""
    folder = tmp_path_factory.mktemp("glue") / "MRPC"
    shutil.copytree(golden_dir / "classifier_features" / "MRPC", folder)
    return folder


def test_the_published_commands_work_unchanged(
    tmp_path,
    mrpc,
    engine,
    google_bert,  # noqa: F811
):
    """Train and evaluate; then evaluate the training's checkpoint alone."""
    common = [
        "--task_name=MRPC",
        "--use_tpu=false",
        f"--engine={engine}",
        f"--data_dir={mrpc}",
        f"--vocab_file={google_bert}/vocab.txt",
        f"--bert_config_file={google_bert}/bert_config.json",
        "--do_eval=true",
        "--max_seq_length=32",
    ]
    out = tmp_path / "mrpc"
    first = run_process(
        *common,
        "--do_train=true",
        f"--init_checkpoint={google_bert}/bert_model.ckpt",
        "--train_batch_size=32",
        "--learning_rate=3e-4",
        "--num_train_epochs=5.0",
        f"--output_dir={out}/",
    )
    assert "**** Total Parameters = " in first.stderr
    assert "**** Total Trainable Parameters = " in first.stderr
    # 40 rows, 5 epochs, 32 a batch: 6.25.
    assert (out / "model.ckpt-6.index").exists()
    expected = results(out)
    assert expected["global_step"] == 6
    # The folder of the training is as good as another.
    for folder in (out / "new", out):
        run_process(
            *common,
            f"--init_checkpoint={out}/model.ckpt-6",
            f"--output_dir={folder}/",
        )
        assert results(folder) == expected
    text = (out / "eval_results.txt").read_text()
    keys = [line.split(" = ")[0] for line in text.splitlines()]
    for key in ("eval_accuracy", "eval_loss", "global_step", "loss"):
        assert key in keys
    assert keys == sorted(keys)


@pytest.mark.gate
@pytest.mark.older_stack
@pytest.mark.real_data
def test_checkpoints_are_named_as_the_published_programs_name_them(
    classify, tiny_flags, shared_dir
):
    """MRPC, three epochs: the step that papers and courses name."""
    tiny_flags.update(
        task_name="MRPC",
        data_dir=shared_dir / "data" / "glue" / "MRPC",
        train_batch_size=32,
        num_train_epochs=3,
    )
    classify(**tiny_flags)
    out = tiny_flags["output_dir"]
    assert (out / "model.ckpt-343.index").exists()
    tiny_flags.update(
        do_train=False,
        do_eval=True,
        init_checkpoint=out / "model.ckpt-343",
        output_dir=out / "new",
        eval_batch_size=32,
    )
    del tiny_flags["adapter_size"]
    classify(**tiny_flags)
    assert results(out / "new")["global_step"] == 343
