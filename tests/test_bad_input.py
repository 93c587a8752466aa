"""Whatever a user can cause is one line, before any training."""

import json
import shutil

import pytest
import refusals
from conftest import TINY_WORDS, own_lines, run_process, spoil

from adapter_bert import files

BAD_DATA = {
    "encoding": (b"text\tlabel\nthe\xff\tgood\n", "train.tsv:2: not UTF-8"),
    "one label": (b"text\tlabel\nthe\tgood\n", "at least two labels"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data_is_one_line_with_its_place(
    classify, tiny_flags, tmp_path, case
):
    content, words = BAD_DATA[case]
    spoil(tmp_path, "train.tsv", content)
    refusals.check(
        lambda: classify(**{**tiny_flags, "data_dir": tmp_path}), words
    )


def test_an_unknown_label_of_the_dev_set_stops_before_training(
    classify, tiny_flags, tiny_data, tmp_path
):
    shutil.copytree(tiny_data, tmp_path / "data")
    spoil(tmp_path / "data", "dev.tsv", b"text\tlabel\nthe cat\tugly\n")
    tiny_flags.update(data_dir=tmp_path / "data")
    refusals.check(
        lambda: classify(**tiny_flags, do_eval=True),
        "dev.tsv:2: unknown label 'ugly'",
    )
    assert not tiny_flags["output_dir"].exists()


def test_a_vocabulary_of_another_size_is_refused(
    classify, tiny_flags, tmp_path
):
    path = spoil(tmp_path, "vocab.txt", "\n".join([*TINY_WORDS, "x"]).encode())
    refusals.check(
        lambda: classify(**{**tiny_flags, "vocab_file": path}),
        "vocabulary has 31 entries",
        " 30;",
    )


def test_a_config_that_does_not_fit_the_checkpoint_is_refused(
    classify, tiny_flags, tiny_config, tmp_path
):
    config = {**vars(tiny_config), "num_hidden_layers": 3}
    path = spoil(tmp_path, "c.json", json.dumps(config).encode())
    refusals.check(
        lambda: classify(**{**tiny_flags, "bert_config_file": path}),
        "lacks the variable ",
        "layer_2",
    )


@pytest.mark.gate
@pytest.mark.newer_stack
def test_an_adapter_of_another_base_is_refused(
    classify, tiny_flags, tiny_bert, tmp_path
):
    classify(**tiny_flags)
    other = tmp_path / "other"
    shutil.copytree(tiny_bert, other)
    content = bytearray((other / "model.safetensors").read_bytes())
    content[-1] ^= 1
    spoil(other, "model.safetensors", bytes(content))
    tiny_flags.update(
        init_checkpoint=other,
        adapter=tiny_flags["output_dir"] / "adapter",
        output_dir=tmp_path / "new",
        do_train=False,
    )
    refusals.check(
        lambda: classify(**tiny_flags, do_eval=True), "trained on another BERT"
    )


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_full_disk_is_refused(classify, tiny_flags, monkeypatch):
    # 5,810 parameters: a checkpoint has 70 kB, an artifact 23.
    tiny_flags.update(tuning_method="full", num_train_epochs=2)
    del tiny_flags["adapter_size"]
    disk, room = shutil.disk_usage("/"), 2**20

    def usage(path):
        return disk._replace(free=room)

    monkeypatch.setattr(files.shutil, "disk_usage", usage)
    refusals.check(lambda: classify(**tiny_flags), "make room")
    assert not list(tiny_flags["output_dir"].glob("model.ckpt*"))
    room += 100_000
    # Of ten steps, five checkpoints and one more while it is written.
    refusals.check(
        lambda: classify(**tiny_flags, save_checkpoints_steps=1), "make room"
    )
    classify(**tiny_flags)
    # A training that is over needs room for the artifact only.
    room = 2**20 + 23_000
    refusals.check(lambda: classify(**tiny_flags), "make room")
    room += 1000
    classify(**tiny_flags, do_eval=True)


@pytest.mark.gate
@pytest.mark.newer_stack
def test_errors_end_the_program_with_one_line_and_code_one():
    """Of the program's own, and of absl's flags."""
    for arguments, words in (
        # Characters between words of Persian, and of Japanese.
        (["--task_name=a\u200cb\u3000c", "--output_dir=x"], "unknown task 'a"),
        (["--no_such_flag=1"], "no_such_flag"),
    ):
        done = run_process(*arguments, check=False)
        lines = own_lines(done.stderr)
        assert done.returncode == 1, done
        assert len(lines) == 1 and words in lines[0], lines
        assert lines[0].startswith("error: ")
