"""Whatever a user can cause is one line, before any training."""

import shutil

import pytest
import refusals
from conftest import own_lines, run_process, spoil

from adapter_bert import files


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
