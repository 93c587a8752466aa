"""Whole runs whose data, model and results lie in no local folder.

TensorFlow's file system in memory stands for a bucket: both are reached
through TensorFlow alone.
"""

import pytest
import tensorflow as tf
from test_sources import google_bert, to_memory  # noqa: F401

from adapter_bert.progress import TrainingProgress

pytestmark = pytest.mark.older_stack


class Preempted(BaseException):
    """The machine was taken away."""


@pytest.mark.gate
def test_a_run_in_a_bucket_goes_on_to_the_same_bits(
    classify,
    tiny_flags,
    tiny_data,
    google_bert,  # noqa: F811
    monkeypatch,
):
    flags = {
        **tiny_flags,
        "init_checkpoint": google_bert,
        "train_batch_size": 16,
        "num_train_epochs": 2,
        "save_checkpoints_steps": 2,
        "do_eval": True,
        "do_predict": True,
    }
    classify(**flags)
    remote = {
        **flags,
        "data_dir": to_memory(tiny_data, "bucket-data"),
        "init_checkpoint": to_memory(google_bert, "bucket-bert"),
        "output_dir": "ram://bucket-out",
    }
    update, seen = TrainingProgress.update, []

    def note(self, step, *arguments, **named):
        seen.append(step)
        if len(seen) == 4:
            raise Preempted
        return update(self, step, *arguments, **named)

    monkeypatch.setattr(TrainingProgress, "update", note)
    with pytest.raises(Preempted):
        classify(**remote)
    artifact = "ram://bucket-out/adapter/adapter.safetensors"
    assert not tf.io.gfile.exists(artifact)
    assert tf.io.gfile.exists("ram://bucket-out/model.ckpt-2.index")
    classify(**remote)
    assert seen == [1, 2, 3, 4, 3, 4, 5]
    for name in ("adapter/adapter.safetensors", "test_results.tsv"):
        local = (tiny_flags["output_dir"] / name).read_bytes()
        with tf.io.gfile.GFile(f"ram://bucket-out/{name}", "rb") as file:
            assert file.read() == local
