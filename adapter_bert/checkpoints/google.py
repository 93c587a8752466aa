"""TensorFlow checkpoints: Google's BERTs, adapter-bert's and our own.

TensorFlow's reader believes an index whose checksums are right. A crafted one,
as with a negative shape or a text of 2^40 bytes, ends the whole process. So the
index is compared with the files first, by functions that raise ValueError.

Source of the layout: TensorFlow, `tensor_bundle.proto`, `tensor_bundle.cc` and
`lib/io/table`, which is the layout of LevelDB's tables.
"""

import contextlib
import math
import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import tensor_bundle_pb2

from adapter_bert import files
from adapter_bert.bert.architectures import PROJECTION
from adapter_bert.bert.encoder import Shape
from adapter_bert.checkpoints.hugging_face import as_floats
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.errors import UserError, first_line

# Ends of the names of a checkpoint's files, after its prefix.
FILE_ENDS = re.compile(r"\.(?:index|meta|data-\d{5}-of-\d{5})$")
# Before names of google-research/electra's discriminator.
ELECTRA = "electra/"
_GROUP = "bert/encoder/transformer/group_0/inner_group_0"
# Beginnings of names in google-research/electra and google-research/albert ->
# ours; the first that fits counts.
OTHER_NAMES = (
    ("electra/embeddings_project", PROJECTION),
    ("electra", "bert"),
    ("bert/encoder/embedding_hidden_mapping_in", PROJECTION),
    *(
        (f"{_GROUP}/{theirs}", f"bert/encoder/group_0/{ours}")
        for theirs, ours in (
            ("attention_1", "attention"),
            ("LayerNorm", "attention/output/LayerNorm"),
            ("ffn_1/intermediate/output", "output"),
            ("ffn_1/intermediate", "intermediate"),
            ("LayerNorm_1", "output/LayerNorm"),
        )
    ),
)
# A variable of a training's checkpoints.
STEP = "global_step"
# A table's footer, with the number at its end; what follows each block.
FOOTER, MAGIC, TRAILER = 48, 0xDB4775248B80FB57, 5
# The block of a table's metadata with its trailer. TensorFlow writes it empty,
# and never checks it.
ABOUT = bytes.fromhex("00000000 01000000 00 c0f2a1b0")
# TensorFlow writes one whole name in so many entries; other names have only
# what differs from the name before.
PER_WHOLE_NAME = 16
# Axes of an array of numpy's.
MOST_AXES = 32
# Files of one checkpoint.
MOST_SHARDS = 100_000
# By the number in a file. Other types are parts of a running program.
KINDS = {
    kind.as_datatype_enum: kind
    for kind in (
        tf.bfloat16, tf.float16, tf.float32, tf.float64,
        tf.int8, tf.int16, tf.int32, tf.int64,
        tf.uint8, tf.uint16, tf.uint32, tf.uint64,
        tf.bool, tf.complex64, tf.complex128, tf.string,
    )
}  # fmt: skip


def check_index(prefix: str) -> set[str]:
    """Compares a checkpoint's index with its files, all but the checksums.

    Returns names of partitioned variables, which TensorFlow may not read, since
    their slices are not checked.

    Raises:
        ValueError: the index is damaged, or cannot be true.
    """
    index = files.read_bytes(f"{prefix}.index", "the checkpoint's index")
    entries = _entries(index)
    name, content = next(entries, (b"", None))
    if name or content is None:
        raise ValueError("its index has no header")
    header = _parse(tensor_bundle_pb2.BundleHeaderProto(), content)
    shards = header.num_shards
    if not 1 <= shards <= MOST_SHARDS:
        raise ValueError(f"its index says that it has {shards} files")
    sizes: dict[str, int] = {}
    told: dict[str, int] = {}
    partitioned: set[str] = set()
    before, letters = b"", 0
    for name, content in entries:
        if name <= before:
            raise ValueError("its index is not in order")
        before = name
        # Else a small index could hold names of gigabytes.
        letters += len(name)
        if letters > PER_WHOLE_NAME * len(index):
            raise ValueError("its index has names that are far too long")
        try:
            entry = _parse(tensor_bundle_pb2.BundleEntryProto(), content)
            if not 0 <= entry.shard_id < shards:
                raise ValueError(f"is in file {entry.shard_id} of {shards}")
            path = f"{prefix}.data-{entry.shard_id:05d}-of-{shards:05d}"
            if path not in sizes:
                sizes[path] = files.size(path)
            _check_entry(entry, path, sizes[path])
            # Else each of many entries could have all bytes of a small file.
            told[path] = told.get(path, 0) + entry.size
            if told[path] > sizes[path]:
                raise ValueError(f"and others share bytes of {path}")
            if entry.slices:
                partitioned.add(name.decode("utf-8", "replace"))
        except ValueError as error:
            shown = name[:100].decode("utf-8", "replace")
            raise ValueError(f"its tensor {shown} {error}") from error
    return partitioned


def _check_entry(
    entry: tensor_bundle_pb2.BundleEntryProto, path: str, available: int
) -> None:
    """Compares an entry with the file of its values."""
    if not 0 <= entry.offset <= entry.offset + entry.size <= available:
        raise ValueError(
            f"has {entry.size} bytes from {entry.offset} on, but {path} has "
            f"{available}"
        )
    shape = [axis.size for axis in entry.shape.dim]
    if (
        entry.shape.unknown_rank
        or len(shape) > MOST_AXES
        or min(shape or [0]) < 0
    ):
        raise ValueError(f"has the shape {str(shape)[:100]}")
    count = math.prod(shape)
    kind = KINDS.get(entry.dtype)
    if kind is None:
        raise ValueError(f"is of the type {entry.dtype}, no one of numbers")
    if entry.slices:
        # TensorFlow would end the process if one were there twice.
        slices = {
            tuple(
                (part.start, part.length if part.HasField("length") else -1)
                for part in each.extent
            )
            for each in entry.slices
        }
        if len(slices) < len(entry.slices):
            raise ValueError("has a slice twice")
    elif kind == tf.string:
        # Each has at least a byte, of its length.
        if count > entry.size or entry.size != _size_of_texts(
            path, entry.offset, entry.size, count
        ):
            raise ValueError("has texts of other lengths than it says")
    elif count * kind.size != entry.size:
        raise ValueError(
            f"has {entry.size} bytes, but {kind.name} of the shape {shape} "
            f"takes {count * kind.size}"
        )


def _size_of_texts(path: str, offset: int, size: int, count: int) -> int:
    """Bytes of texts, by the lengths that stand before them."""
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(offset)
        content = file.read(size)
    place = total = 0
    for _ in range(count):
        length, place = _varint(content, place)
        total += length
    # A checksum of the lengths stands before the texts.
    return place + 4 + total


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table."""
    footer = table[-FOOTER:]
    if len(footer) < FOOTER or footer[-8:] != struct.pack("<Q", MAGIC):
        raise ValueError("its index is no table of TensorFlow's")
    about, place = _handle(footer, 0)
    index, place = _handle(footer, place)
    if any(footer[place:-8]):
        raise ValueError("its index is damaged")
    if _block(table, about) + table[sum(about) :][:TRAILER] != ABOUT:
        raise ValueError("its index is damaged")
    for _, value in _in_block(_block(table, index)):
        handle, _ = _handle(value, 0)
        yield from _in_block(_block(table, handle))


def _handle(content: bytes, place: int) -> tuple[tuple[int, int], int]:
    """The offset and size of a block, and the place after them."""
    offset, place = _varint(content, place)
    size, place = _varint(content, place)
    return (offset, size), place


def _block(table: bytes, handle: tuple[int, int]) -> bytes:
    """The content of a block, which may not be compressed."""
    offset, size = handle
    block = table[offset : offset + size + TRAILER]
    if len(block) != size + TRAILER:
        raise ValueError("its index is cut off")
    if block[size]:
        raise ValueError("its index is compressed, as TensorFlow writes none")
    return block[:size]


def _in_block(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block."""
    if len(block) < 4:
        raise ValueError("its index is damaged")
    (restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise ValueError("its index is damaged")
    key, place = b"", 0
    while place < end:
        shared, place = _varint(block, place)
        added, place = _varint(block, place)
        size, place = _varint(block, place)
        if shared > len(key) or place + added + size > end:
            raise ValueError("its index is damaged")
        key = key[:shared] + block[place : place + added]
        place += added
        yield key, block[place : place + size]
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """A whole number of up to 64 bits, and the place after it."""
    value = 0
    for number, byte in enumerate(content[place : place + 10]):
        value |= (byte & 127) << 7 * number
        if byte < 128:
            return value, place + number + 1
    raise ValueError("a number is cut off")


def _parse(message, content: bytes):
    """Fills a message and returns it."""
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise ValueError("has a damaged entry") from error
    return message


@contextlib.contextmanager
def guard(prefix: str) -> Iterator[None]:
    """Raises UserError instead of the errors for a damaged checkpoint."""
    try:
        yield
    # TensorFlow's reader raises Python's errors for some damages.
    except (
        tf.errors.OpError,
        DecodeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(
            f"the checkpoint {prefix} is damaged or incomplete: "
            f"{first_line(error)}"
        ) from error


class Reader:
    """TensorFlow's reader of a checkpoint, after `check_index`.

    Attributes:
        shapes: of all variables by name.
    """

    def __init__(self, prefix: str):
        """Opens a checkpoint."""
        self._prefix = prefix
        with guard(prefix):
            try:
                self._partitioned = check_index(prefix)
            except UserError as error:
                raise ValueError(str(error)) from error
            self._reader = tf.compat.v1.train.NewCheckpointReader(prefix)
            found = self._reader.get_variable_to_shape_map()
        self.shapes: dict[str, Shape] = {
            name: tuple(shape) for name, shape in found.items()
        }

    def tensor(self, name: str) -> Any:
        """The value of a variable: an array, or bytes of a single text."""
        if name in self._partitioned:
            raise UserError(
                f"the checkpoint {self._prefix}: {name} is partitioned, which "
                "is not read here; save it again without a partitioner"
            )
        with guard(self._prefix):
            return self._reader.get_tensor(name)


def open_tensorflow(prefix: str) -> Weights:
    """Opens a TensorFlow checkpoint, as `bert_model.ckpt`."""
    reader = Reader(prefix)
    if STEP in reader.shapes:
        # A training may delete the checkpoint. TensorFlow opens the values with
        # the first that is read, and holds them.
        reader.tensor(STEP)
    sources = {own_name(name): name for name in reader.shapes}

    def read(name: str) -> np.ndarray:
        value = reader.tensor(sources[name])
        with guard(prefix):
            return as_floats(np.asarray(value))

    shapes = {name: reader.shapes[source] for name, source in sources.items()}
    is_electra = any(name.startswith(ELECTRA) for name in reader.shapes)
    # google-research/electra, `modeling.py`, has the error function.
    return Weights(prefix, shapes, read, "gelu_erf" if is_electra else "gelu")


def own_name(name: str) -> str:
    """Our name of an ELECTRA's or ALBERT's variable; others as they are."""
    for theirs, ours in OTHER_NAMES:
        match = re.fullmatch(rf"{theirs}/(.+)", name)
        if match:
            return f"{ours}/{match[1]}"
    return name


def read_whole(prefix: str) -> None:
    """Reads every tensor of a checkpoint; raises UserError for damage."""
    reader = Reader(prefix)
    for name in reader.shapes:
        reader.tensor(name)


def refusal(path: str) -> str:
    """The reason why a path opens no TensorFlow checkpoint."""
    prefix = FILE_ENDS.sub("", path)
    if prefix != path and files.exists(f"{prefix}.index"):
        return (
            f"--init_checkpoint {path} is one file of a checkpoint; pass what "
            f"all of them begin with, --init_checkpoint={prefix}"
        )
    if tf.io.gfile.glob(f"{prefix}.data-*") or files.exists(f"{prefix}.meta"):
        return (
            f"the checkpoint {prefix} lacks {prefix}.index; copy that file, "
            "too, from where its others come from"
        )
    found = "is no checkpoint" if files.exists(path) else "does not exist"
    return (
        f"--init_checkpoint {path} {found}; expected a TensorFlow checkpoint's "
        "prefix (as bert_model.ckpt), a .safetensors file, a module of TF-Hub "
        "or a folder with one"
    )


def check_name(path: str, flag: str) -> None:
    """Raises UserError for a name that TensorFlow would take for a pattern."""
    odd = "".join(sorted(set(path) & set("*?[\\")))
    if odd:
        raise UserError(
            f"{flag} is {path}; TensorFlow finds no checkpoint under a name "
            f"with {odd}, choose another"
        )
