"""PyTorch's `.bin` and `.pt` files: a table of tensors, and nothing else.

Such a file is a pickle, which may call any function. Here it may call those of
`NAMES` alone, which are written below. Sources: PyTorch,
`torch/serialization.py`: the zip file of version 1.6, and the form of before.
"""

import io
import math
import pickle
import struct
import zipfile
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from adapter_bert import files
from adapter_bert.checkpoints.weights import widened
from adapter_bert.errors import UserError

# Names of storages -> numpy's types, in files of processors of today.
TYPES = {
    "torch.DoubleStorage": "<f8",
    "torch.FloatStorage": "<f4",
    "torch.HalfStorage": "<f2",
    # The upper half of a float32.
    "torch.BFloat16Storage": "<u2",
    "torch.LongStorage": "<i8",
    "torch.IntStorage": "<i4",
    "torch.ShortStorage": "<i2",
    "torch.CharStorage": "<i1",
    "torch.ByteStorage": "<u1",
    "torch.BoolStorage": "<u1",
}
BFLOAT16 = "torch.BFloat16Storage"
# The numbers that the older form begins with.
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
# Bytes of a file's pickles; those of 10,000 tensors are 2 MB.
LARGEST_PICKLE = 2**22
# Values may be read by several tensors. So this many bytes of float32 at most
# are made of each byte of a file.
GROWTH = 8
# Of damaged pickles and zip files.
UNREADABLE = (
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
    zipfile.BadZipFile,
)


class Storage(NamedTuple):
    """Describes values in a row, of which tensors are made.

    `key` names the file's part that holds them, `kind` is one of `TYPES`.
    """

    key: str
    kind: str
    count: int

    @property
    def type(self) -> np.dtype:
        return np.dtype(TYPES[self.kind])


class View(NamedTuple):
    """Describes a tensor; offset and strides count a storage's values."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self, content: bytes) -> np.ndarray:
        """Copies the tensor from its storage's bytes, as float32."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides))
        sizes = self.offset, *self.shape, *self.strides
        # NumPy would take steps backwards, or whose sum wraps around.
        if math.prod(self.shape) and self.offset + last >= self.storage.count:
            raise ValueError("a tensor has more values than its storage")
        if any(size < 0 for size in sizes):
            raise ValueError("a tensor's sizes are negative")
        kind = self.storage.type
        values = np.ndarray(
            self.shape,
            kind,
            np.frombuffer(content, kind, self.storage.count),
            self.offset * kind.itemsize,
            [step * kind.itemsize for step in self.strides],
        )
        if self.storage.kind == BFLOAT16:
            return widened(values)
        # Too large numbers become infinite; callers check for that.
        with np.errstate(over="ignore"):
            return np.array(values, np.float32, order="C")


# Gives the bytes of a storage.
_ReadStorage = Callable[[Storage], bytes]


def _check_types(kind: type, values: Iterable[Any]) -> None:
    if not all(type(value) is kind for value in values):
        raise ValueError(f"it has other values in the place of {kind.__name__}")


def _tensor(storage, offset, shape, strides, *_) -> View:
    """Source: `torch._utils._rebuild_tensor` and `_rebuild_tensor_v2`."""
    _check_types(Storage, [storage])
    _check_types(int, [offset, *shape, *strides])
    return View(storage, offset, tuple(shape), tuple(strides))


# What a file may name: functions, and storages by their names.
NAMES: dict[str, Any] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda view, *_: view,
    "collections.OrderedDict": lambda: {},
    **{name: name for name in TYPES},
}


class _Unpickler(pickle._Unpickler):
    """Reads tables of views.

    It is the class in Python. That in C makes room for as many values as an
    instruction says.
    """

    def find_class(self, module: str, name: str) -> Any:
        return NAMES[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> Storage:
        """Describes values that are elsewhere in the file."""
        _, kind, key, _, count, *_ = pid
        _check_types(str, [kind, key])
        _check_types(int, [count])
        return Storage(key, kind, count)

    def _ignore_state(self) -> None:
        self.stack.pop()

    def _set_item(self) -> None:
        _check_types(str, self.stack[-2:-1])
        self.load_setitem()

    def _set_items(self) -> None:
        _check_types(str, self.stack[::2])
        self.load_setitems()

    dispatch = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: _ignore_state,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
    }


def _open_zip(content: bytes) -> tuple[dict[str, View], _ReadStorage]:
    archive = zipfile.ZipFile(io.BytesIO(content))
    # A small file could become a large one.
    if any(member.compress_type for member in archive.infolist()):
        raise ValueError("it is compressed, which torch.save does not do")
    names = archive.namelist()
    [pickled] = [name for name in names if name.endswith("data.pkl")]
    root = pickled.removesuffix("data.pkl")
    order = f"{root}byteorder"
    if order in names and archive.read(order) != b"little":
        raise ValueError("its bytes are in the order of another processor")
    table = io.BytesIO(archive.read(pickled)[:LARGEST_PICKLE])
    return (
        _Unpickler(table).load(),
        lambda storage: archive.read(f"{root}data/{storage.key}"),
    )


def _open_older(content: bytes) -> tuple[dict[str, View], _ReadStorage]:
    """Opens a file of PyTorch before 1.6, as `_open_zip`.

    It is five pickles, then the storages: each the number of its values, int64,
    and the values.
    """
    pickled = io.BytesIO(content[:LARGEST_PICKLE])
    magic, version, system, table, keys = (
        _Unpickler(pickled).load() for _ in range(5)
    )
    if (magic, version) != (MAGIC, PROTOCOL) or not system["little_endian"]:
        raise ValueError("it is of another version or processor")
    storages = {view.storage.key: view.storage for view in table.values()}
    place, contents = pickled.tell(), {}
    _check_types(str, keys)
    for key in keys:
        begin = place + 8
        place = begin + storages[key].count * storages[key].type.itemsize
        contents[key] = content[begin:place]
    return table, lambda storage: contents[storage.key]


def read(
    path: str, is_weight: Optional[Callable[[str], bool]] = None
) -> dict[str, np.ndarray]:
    """Reads the tensors of a file that `torch.save` has written, as float32.

    Tensors that are the same values of one storage are the same array.

    Args:
        path: of the file.
        is_weight: tells by its name whether a tensor is one of a model's
            weights, which alone are given; None for all tensors.
    """
    content = files.read_bytes(path, "PyTorch's tensors")
    open_it = _open_zip if content[:2] == b"PK" else _open_older
    try:
        table, read_storage = open_it(content)
        if not all(isinstance(view, View) for view in table.values()):
            raise ValueError("it holds other values than tensors")
        if is_weight is not None:
            table = {k: view for k, view in table.items() if is_weight(k)}
            for name, view in table.items():
                kind = view.storage.kind
                if kind != BFLOAT16 and view.storage.type.kind != "f":
                    raise ValueError(
                        f"{name[:80]!r} has whole numbers, as of a quantized "
                        "model"
                    )
        views = set(table.values())
        if 4 * sum(math.prod(v.shape) for v in views) > GROWTH * len(content):
            raise ValueError("its tensors are larger than the file")
        storages = {view.storage for view in views}
        contents = {storage: read_storage(storage) for storage in storages}
        arrays = {view: view.array(contents[view.storage]) for view in views}
    except UNREADABLE as error:
        raise UserError(
            f"{path} cannot be read as a table of tensors of torch.save "
            f"({str(error)[:200] or type(error).__name__}); save the "
            "state_dict alone, or safetensors"
        ) from error
    return {name: arrays[view] for name, view in table.items()}
