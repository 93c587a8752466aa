"""Writes TensorFlow checkpoints without TensorFlow's own writer.

Source of the layout: TensorFlow, `tensor_bundle.proto` and `lib/io/table`
(LevelDB's tables).
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

MAGIC = 0xDB4775248B80FB57
# A table's footer, and what follows each of its blocks.
FOOTER, TRAILER = 48, 5


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


def write_bundle(values: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """Gives a checkpoint's files by the ends of their names.

    Args:
        values: tensors by name; tensors of bytes are texts.
    """
    data, entries = b"", []
    for name, value in sorted(values.items()):
        kind = tf.dtypes.as_dtype(value.dtype)
        content = summed = value.tobytes()
        if kind == tf.string:
            content, summed = _texts(list(value.ravel()))
        entry = tensor_bundle_pb2.BundleEntryProto(
            dtype=kind.as_datatype_enum,
            offset=len(data),
            size=len(content),
            crc32c=crc32c(summed),
        )
        for size in value.shape:
            entry.shape.dim.add(size=size)
        data += content
        entries.append((name.encode(), entry.SerializeToString()))
    header = tensor_bundle_pb2.BundleHeaderProto(num_shards=1)
    header.version.producer = 1
    whole = [(b"", header.SerializeToString()), *entries]
    return {".index": table(whole), ".data-00000-of-00001": data}


def _texts(texts: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Gives texts as they are stored, and what of them is summed."""
    lengths = [len(text) for text in texts]
    summed = np.array(lengths, np.uint32).tobytes()
    rest = crc32c(summed).to_bytes(4, "little") + b"".join(texts)
    return b"".join(map(varint, lengths)) + rest, summed + rest
