"""A checkpoint's index says nothing that could end the process.

TensorFlow's reader ends it for most of these: SIGABRT, SIGSEGV.
"""

import os
import pathlib
import select
import signal

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

from adapter_bert.checkpoints import google, sources, training_state
from adapter_bert.errors import UserError
from lab.trials.bundles import TRAILER, crc32c, varint, write_bundle

VALUES = {
    "numbers": np.arange(6, dtype=np.float32).reshape(2, 3),
    "one": np.int64(7),
    "texts": np.array([b"xy", b""], object),
    "none": np.zeros((0, 3), np.float32),
}


def write(prefix, files):
    for end, content in files.items():
        pathlib.Path(f"{prefix}{end}").write_bytes(content)
    return str(prefix)


def read(prefix):
    """Reads all of it in a process of its own, which may not die.

    Returns:
        The error's text, "" if there was none.
    """
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        found = "another error"
        try:
            google.read_whole(prefix)
            google.open_tensorflow(prefix)
            found = ""
        except UserError as error:
            found = str(error)
        finally:
            os.write(send, found.encode())
            os._exit(0)
    os.close(send)
    if not select.select([receive], [], [], 60)[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the process hangs")
    with open(receive, encoding="utf-8") as file:
        found = file.read()
    assert os.waitpid(child, 0)[1] == 0, "the process died"
    return found


def test_what_tensorflow_writes_is_taken(tmp_path):
    values = {
        f"{kind}/{name}": np.zeros(shape, kind)
        for kind in ("float16", "float32", "float64", "int8", "int64", "bool")
        for name, shape in (("a", ()), ("b", (3, 2)), ("c", (0,)))
    }
    values["texts"] = np.array([[b"a" * 300, b"", b"\xff"]], object)
    # More than one block of the index.
    values.update({f"layer_{n}/kernel": np.ones(2) for n in range(500)})
    training_state.save_tensors(str(tmp_path / "a"), values)
    google.check_index(str(tmp_path / "a"))
    assert set(google.Reader(str(tmp_path / "a")).shapes) == set(values)


def test_a_checkpoint_of_several_files_is_taken(tmp_path):
    parts = []
    for part in range(2):
        parts.append(str(tmp_path / f"part{part}"))
        tf.raw_ops.SaveV2(
            prefix=parts[-1],
            tensor_names=[f"a{part}"],
            shape_and_slices=[""],
            tensors=[tf.ones([2])],
        )
    prefix = str(tmp_path / "whole")
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts, destination_prefix=prefix
    )
    assert (tmp_path / "whole.data-00001-of-00002").exists()
    assert google.open_tensorflow(prefix).shapes == {"a0": (2,), "a1": (2,)}


def test_what_is_written_here_is_as_tensorflow_reads_it(tmp_path):
    prefix = write(tmp_path / "a", write_bundle(VALUES))
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    for name, value in VALUES.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value)
    assert read(prefix) == ""


def test_a_partitioned_variable_is_refused_where_it_is_read(tmp_path):
    """What nobody reads, as an optimizer's, keeps nobody from the rest."""
    prefix = str(tmp_path / "a")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["part", "part", "whole"],
        shape_and_slices=["8 2 0,5:-", "8 2 5,3:-", ""],
        tensors=[tf.ones([5, 2]), tf.ones([3, 2]), tf.ones([2])],
    )
    weights = google.open_tensorflow(prefix)
    assert weights.shapes == {"part": (8, 2), "whole": (2,)}
    assert weights.read("whole").tolist() == [1, 1]
    with pytest.raises(UserError, match="part is partitioned, which is not"):
        weights.read("part")
    assert "part is partitioned" in read(prefix)


LIES = {
    "a negative shape": ("numbers", {"shape": [-1, 3]}, r"shape \[-1, 3\]"),
    "terabytes": ("numbers", {"shape": [2**40]}, "takes 4398046511104"),
    "more than any number": ("numbers", {"shape": [2**40] * 2}, "takes"),
    "bytes that are not there": (
        "numbers",
        {"shape": [2**36], "size": 2**38},
        "has 274877906944 bytes from",
    ),
    "many axes": ("numbers", {"shape": [1] * 300}, "has the shape"),
    "no type": ("numbers", {"dtype": 0}, "of the type 0, no one of numbers"),
    "an unknown type": ("numbers", {"dtype": 99}, "of the type 99"),
    "a resource": ("numbers", {"dtype": 20}, "of the type 20"),
    "a variant": ("numbers", {"dtype": 21}, "of the type 21"),
    "a reference": ("numbers", {"dtype": 101}, "of the type 101"),
    "slices": ("numbers", {"slices": 2}, "has a slice twice"),
    "a place before the file": ("numbers", {"offset": -5}, "from -5 on"),
    "a place behind the file": ("numbers", {"offset": 2**62}, "but .* has"),
    "a negative size": ("numbers", {"size": -1}, "has -1 bytes"),
    "another file": ("numbers", {"shard_id": 7}, "in file 7 of 1"),
    "a file before the first": ("numbers", {"shard_id": -1}, "in file -1"),
    "many texts": ("texts", {"shape": [2**40]}, "texts of other lengths"),
    "numbers as texts": ("numbers", {"dtype": 7}, "texts of other lengths"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_entry_that_lies_is_one_line(tmp_path, lie):
    name, told, message = LIES[lie]
    prefix = write(tmp_path / "a", write_bundle(VALUES, {name: told}))
    assert_refused(prefix, f"its tensor {name} .*{message}")


def test_entries_do_not_share_bytes(tmp_path):
    """Many that did would take long, however small the files."""
    told = {"one": {"shape": [2], "size": 16, "offset": 0}}
    files = write_bundle(VALUES, told)
    assert_refused(write(tmp_path / "a", files), "and others share bytes of")


def assert_refused(prefix, message):
    found = read(prefix)
    assert found.startswith(f"the checkpoint {prefix} is damaged") and (
        "\n" not in found
    )
    with pytest.raises(UserError, match=message):
        raise UserError(found)


@pytest.mark.parametrize("length", [2**31, 2**40, 2**62])
def test_the_length_of_a_text_is_that_of_its_bytes(tmp_path, length):
    files = write_bundle(VALUES, lengths={"texts": length})
    assert_refused(write(tmp_path / "a", files), "texts of other lengths")


@pytest.mark.parametrize("shards", [0, -1, 2**31 - 1])
def test_a_header_names_a_number_of_files(tmp_path, shards):
    files = write_bundle(VALUES, shards=shards)
    assert_refused(write(tmp_path / "a", files), "says that it has")


@pytest.mark.parametrize("size", [2**31, 2**40, 2**62, 2**64 - 5])
@pytest.mark.parametrize("which", [0, 1])
def test_a_footer_leads_into_the_index(tmp_path, size, which):
    """No checksum is of the footer."""
    files = write_bundle(VALUES)
    whole = files[".index"]
    handles = [varint(0) + varint(1), varint(0) + varint(1)]
    handles[which] = varint(0) + varint(size)
    footer = b"".join(handles).ljust(40, b"\0")
    files[".index"] = whole[:-48] + footer + whole[-8:]
    assert_refused(
        write(tmp_path / "a", files), "its index is (cut off|damaged)"
    )


def sealed(block):
    """A block of a table, with its restarts, its kind and its checksum."""
    block += (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\0"
    return block + crc32c(block).to_bytes(4, "little")


def test_names_of_gigabytes_are_refused(tmp_path):
    """An entry has what its name does not share with the one before."""
    entry = tensor_bundle_pb2.BundleEntryProto(
        dtype=tf.float32.as_datatype_enum
    )
    entry.shape.dim.add(size=0)
    content = entry.SerializeToString()
    block = b"\0\0" + varint(2) + b"\x08\x01"
    block += b"\0" + varint(3000) + varint(len(content)) + b"a" * 3000 + content
    for number in range(3000, 4000):
        block += varint(number) + b"\1" + varint(len(content)) + b"a" + content
    block, about = sealed(block), sealed(b"")
    handle = varint(0) + varint(len(block) - TRAILER)
    index = sealed(b"\0\1" + varint(len(handle)) + b"b" + handle)
    files = write_bundle({})
    footer = varint(len(block + index)) + varint(len(about) - TRAILER)
    footer += varint(len(block)) + varint(len(index) - TRAILER)
    footer = footer.ljust(40, b"\0") + files[".index"][-8:]
    files[".index"] = block + index + about + footer
    assert len(files[".index"]) < 20_000
    assert_refused(write(tmp_path / "a", files), "names that are far too long")


def test_a_model_with_such_a_checkpoint_is_refused(tmp_path):
    files = write_bundle(VALUES, {"numbers": {"shape": [-1]}})
    write(tmp_path / "bert_model.ckpt", files)
    with pytest.raises(UserError, match="its tensor numbers has the shape"):
        sources.open_init_checkpoint(str(tmp_path))


def test_no_bit_of_an_index_is_without_a_check(tmp_path):
    """Those that TensorFlow does not look at, too."""
    prefix = str(tmp_path / "a")
    training_state.save_tensors(prefix, VALUES)
    path = tmp_path / "a.index"
    whole = path.read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(UserError):
            google.read_whole(prefix)
