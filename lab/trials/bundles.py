"""Writes TensorFlow checkpoints with false entries but right checksums.

Source of the layout: TensorFlow, `tensor_bundle.proto` and `lib/io/table`
(LevelDB's tables).
"""

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

MAGIC = 0xDB4775248B80FB57
# A table's footer, and what follows each of its blocks.
FOOTER, TRAILER = 48, 5
MOST_SLICES = 100


def crc32c(content: bytes) -> int:
    """Castagnoli's sum, masked as TensorFlow stores it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _SUMS[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _sum_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_SUMS = tuple(map(_sum_of, range(256)))


def varint(value: int) -> bytes:
    """A whole number, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def table(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A table of one block, of keys in order and their values."""
    content, handles = b"", []
    for block in (_block(entries), _block(())):
        handles.append(varint(len(content)) + varint(len(block) - TRAILER))
        content += block
    index = _block([(b"\xff", handles[0])])
    footer = handles[1] + varint(len(content)) + varint(len(index) - TRAILER)
    footer = footer.ljust(FOOTER - 8, b"\0") + MAGIC.to_bytes(8, "little")
    return content + index + footer


def _block(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    content = b""
    for key, value in entries:
        content += b"\0" + varint(len(key)) + varint(len(value)) + key + value
    # One place to begin reading at, the first; not compressed.
    content += (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\0"
    return content + crc32c(content).to_bytes(4, "little")


def write_bundle(
    values: Mapping[str, np.ndarray],
    changed: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({}),
    lengths: Mapping[str, int] = types.MappingProxyType({}),
    shards: int = 1,
) -> dict[str, bytes]:
    """A checkpoint's files by the ends of their names.

    Args:
        values: tensors by name; tensors of bytes are texts.
        changed: the lies of entries, by the tensor's name: `dtype` (a number),
            `shape` (a list), `shard_id`, `offset`, `size` or `slices`.
        lengths: the lie of the length of each text.
        shards: files of data that the header claims.

    Raises:
        ValueError: a number is greater than a file can have.
    """
    data, entries = b"", []
    for name, value in sorted(values.items()):
        kind = tf.dtypes.as_dtype(value.dtype)
        content = summed = value.tobytes()
        if kind == tf.string:
            content, summed = _texts(list(value.ravel()), lengths.get(name))
        fields = {
            "dtype": kind.as_datatype_enum,
            "shape": value.shape,
            "shard_id": 0,
            "offset": len(data),
            "size": len(content),
            "slices": 0,
            **changed.get(name, {}),
        }
        data += content
        entries.append((name.encode(), _entry(fields, crc32c(summed))))
    header = tensor_bundle_pb2.BundleHeaderProto(num_shards=shards)
    header.version.producer = 1
    whole = [(b"", header.SerializeToString()), *entries]
    return {".index": table(whole), f".data-00000-of-{shards:05d}": data}


def _texts(
    texts: Sequence[bytes], length: Optional[int]
) -> tuple[bytes, bytes]:
    lengths = [len(text) if length is None else length for text in texts]
    # The lengths' own sum is of four bytes each, or of eight.
    kind = np.uint64 if max(lengths, default=0) >= 2**32 else np.uint32
    summed = np.array(lengths, kind).tobytes()
    rest = crc32c(summed).to_bytes(4, "little") + b"".join(texts)
    return b"".join(map(varint, lengths)) + rest, summed + rest


def _entry(fields: Mapping[str, Any], checksum: int) -> bytes:
    numbers = (fields[key] for key in ("dtype", "shard_id", "offset", "size"))
    if not all(type(number) is int for number in (*numbers, *fields["shape"])):
        # The library of the messages dies of half a character.
        raise ValueError("an entry is of whole numbers")
    entry = tensor_bundle_pb2.BundleEntryProto(
        dtype=fields["dtype"],
        shard_id=fields["shard_id"],
        offset=fields["offset"],
        size=fields["size"],
        crc32c=checksum,
    )
    for size in fields["shape"]:
        entry.shape.dim.add(size=size)
    if not 0 <= fields["slices"] <= MOST_SLICES:
        raise ValueError("so many slices take for ever to write")
    for _ in range(fields["slices"]):
        entry.slices.add().extent.add(start=0, length=1)
    return entry.SerializeToString()
