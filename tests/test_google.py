"""TensorFlow's checkpoints are read whole, and damage is one line."""

from pathlib import Path

import numpy as np
import pytest
import refusals
import tensorflow as tf
from numpy.testing import assert_array_equal

from adapter_bert.checkpoints import google, sources, training_state
from adapter_bert.errors import UserError
from lab.trials.bundles import write_bundle

VALUES = {
    "numbers": np.arange(6, dtype=np.float32).reshape(2, 3),
    "one": np.int64(7),
    "texts": np.array([b"xy", b""], object),
    "none": np.zeros((0, 3), np.float32),
}


def save(prefix, names, slices, values):
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=slices,
        tensors=values,
    )
    return str(prefix)


def test_a_checkpoint_of_several_files_is_taken(tmp_path):
    parts = [
        save(tmp_path / name, [name], [""], [tf.ones([2])]) for name in "ab"
    ]
    prefix = str(tmp_path / "whole")
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts, destination_prefix=prefix
    )
    assert (tmp_path / "whole.data-00001-of-00002").exists()
    assert google.open_tensorflow(prefix).shapes == {"a": (2,), "b": (2,)}


def test_a_partitioned_variable_is_read_whole(tmp_path):
    slices = ["8 2 0,5:-", "8 2 5,3:-", ""]
    values = [tf.ones([5, 2]), 2 * tf.ones([3, 2]), tf.ones([2])]
    prefix = save(tmp_path / "a", ["part", "part", "whole"], slices, values)
    weights = google.open_tensorflow(prefix)
    assert weights.shapes == {"part": (8, 2), "whole": (2,)}
    assert weights.read("part")[:, 1].tolist() == [1] * 5 + [2] * 3


def test_checkpoints_of_the_laboratory_are_as_tensorflow_reads_them(tmp_path):
    for end, content in write_bundle(VALUES).items():
        Path(f"{tmp_path / 'a'}{end}").write_bytes(content)
    reader = google.Reader(str(tmp_path / "a"))
    assert set(reader.shapes) == set(VALUES)
    for name, value in VALUES.items():
        assert_array_equal(reader.tensor(name), value)


@pytest.mark.parametrize("end", [".index", ".data-00000-of-00001"])
def test_no_bit_changes_a_value(tmp_path, end):
    """A changed bit is refused, or is none of a value's."""
    prefix = str(tmp_path / "a")
    training_state.save_tensors(prefix, VALUES)
    path = Path(f"{prefix}{end}")
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            reader = google.Reader(prefix)
            values = {name: reader.tensor(name) for name in reader.shapes}
        except UserError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            assert set(values) == set(VALUES)
            for name, value in VALUES.items():
                assert_array_equal(values[name], value)
    assert refused > 0.7 * len(whole)


@pytest.mark.parametrize("name", ["bert_model.ckpt", "model.ckpt-3"])
def test_what_is_no_index_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / f"{name}.index").write_bytes(b"none" * 20)
    (tmp_path / f"{name}.data-00000-of-00001").write_bytes(b"")
    path = str(tmp_path / name)

    def open_it():
        return sources.open_init_checkpoint(path)

    refusals.check(open_it, path, "is damaged or incomplete")
    monkeypatch.setattr(google, "LARGEST_INDEX", 79)
    refusals.check(open_it, path, "an index of 80 bytes", "at most 79")
