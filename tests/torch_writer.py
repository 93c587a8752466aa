"""Writes files as `torch.save` does, without PyTorch."""

import io
import pickle
import struct
import zipfile

import numpy as np

from adapter_bert.checkpoints import torch_files


def number(value):
    """The instruction that makes a whole number."""
    return b"\x8a\x08" + struct.pack("<q", value)


def text(value):
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def numbers(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def name_of(function):
    module, _, last = function.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def tensor(key, kind, count, shape, strides, offset=0, is_old=False):
    """What makes a tensor of a storage, both in PyTorch's terms."""
    rest = b"Nt" if is_old else b"t"
    described = text("storage") + name_of(kind) + text(key) + text("cpu")
    return (
        name_of("torch._utils._rebuild_tensor_v2")
        + b"(("
        + described
        + number(count)
        + rest
        + b"Q"
        + number(offset)
        + numbers(shape)
        + numbers(strides)
        + b"\x89"
        + name_of("collections.OrderedDict")
        + b")RtR"
    )


def table(tensors):
    """A pickle of tensors by name."""
    pairs = b"".join(text(name) + made for name, made in tensors.items())
    return b"\x80\x02}(" + pairs + b"u."


def as_zip(pickled, storages, kind=zipfile.ZIP_STORED, **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr("a/data.pkl", pickled)
        for key, content in storages.items():
            archive.writestr(f"a/data/{key}", content)
        for name, content in members.items():
            archive.writestr(f"a/{name}", content)
    return file.getvalue()


def as_older(pickled, storages, magic=torch_files.MAGIC, little=True):
    """`storages` have the number of their values before them."""
    parts = [
        pickle.dumps(value, protocol=2)
        for value in (magic, 1001, {"little_endian": little})
    ]
    keys = pickle.dumps(list(storages), protocol=2)
    return b"".join([*parts, pickled, keys, *storages.values()])


def written(arrays):
    """A file of these float32 arrays by name."""
    tensors, storages = {}, {}
    for number, (name, value) in enumerate(arrays.items()):
        key, kind = str(number), "torch.FloatStorage"
        strides = [step // 4 for step in np.ascontiguousarray(value).strides]
        tensors[name] = tensor(key, kind, value.size, value.shape, strides)
        storages[key] = value.tobytes()
    return as_zip(table(tensors), storages)
