"""PyTorch's `.bin` and `.pt` files: a table of tensors, and nothing else.

Such a file is a pickle, which may call any function. Here it may call those of
`FUNCTIONS` alone, which are written below. Sources: PyTorch,
`torch/serialization.py`: the zip file of version 1.6, and the form of before.
"""

import io
import math
import pickle
import re
import struct
import zipfile
from typing import Any, Callable, NamedTuple, NoReturn, Optional

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
FLOATS = {name for name in TYPES if TYPES[name][1] == "f"} | {BFLOAT16}
# The numbers that the older form begins with.
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
# Bytes of a file's pickles; those of 10,000 tensors are 2 MB.
LARGEST_PICKLE = 2**22
# Values may be read by several tensors. So this many bytes of float32 at most
# are made of each byte of a file.
GROWTH = 8
MOST_AXES = 16
PICKLE = re.compile(r"([^/]+/)?data\.pkl")
# The instructions of protocol 2 that `torch.save` needs.
INSTRUCTIONS = b"\x80()]}N\x88\x89KMJG\x8aXcqrhjt\x85\x86\x87aesuQRb."


class Storage(NamedTuple):
    """Values in a row, of which tensors are made.

    Attributes:
        key: names the file's part that holds the values.
        kind: one of `TYPES`.
        count: of the values.
    """

    key: str
    kind: str
    count: int

    @property
    def size(self) -> int:
        return self.count * np.dtype(TYPES[self.kind]).itemsize


class View(NamedTuple):
    """Describes a tensor; offset and strides count a storage's values."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self, content: bytes) -> np.ndarray:
        """Copies the tensor from its storage's bytes, as float32."""
        kind = np.dtype(TYPES[self.storage.kind])
        if not math.prod(self.shape):
            return np.zeros(self.shape, np.float32)
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides))
        # NumPy checks this too, but takes steps whose sum wraps around.
        if self.offset + last >= self.storage.count:
            _refuse("a tensor has more values than its storage")
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


def _refuse(problem: str) -> NoReturn:
    raise ValueError(problem)


def _whole_numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple) or any(
        type(v) is not int or not 0 <= v < 2**62 for v in values
    ):
        _refuse("a tensor's sizes are no whole numbers")
    return values


def _tensor(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    is_trained: Any = False,
    hooks: Any = None,
    changes: Any = None,
) -> View:
    """Source: `torch._utils._rebuild_tensor` and `_rebuild_tensor_v2`."""
    if not isinstance(storage, Storage):
        _refuse("a tensor has no storage")
    if changes:
        _refuse("a tensor is conjugate or negative")
    [offset] = _whole_numbers((offset,))
    view = View(storage, offset, _whole_numbers(shape), _whole_numbers(strides))
    if not len(view.shape) == len(view.strides) <= MOST_AXES:
        _refuse("a tensor's sizes and steps are not as many")
    return view


# Names that may be called -> what is called.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda view, is_trained, hooks: view,
    "collections.OrderedDict": lambda: {},
}


class _Unpickler(pickle._Unpickler):
    """Reads tables of views.

    It is the class in Python, whose instructions can be left out. That in C
    also makes room for as many values as an instruction says.
    """

    dispatch = {
        code: act
        for code, act in pickle._Unpickler.dispatch.items()
        if code in INSTRUCTIONS
    }

    def find_class(self, module: str, name: str) -> Any:
        """Gives a function, or a storage's name itself."""
        name = f"{module}.{name}"
        if name not in FUNCTIONS and name not in TYPES:
            _refuse(f"{name[:80]!r} is no part of a table of tensors")
        return FUNCTIONS.get(name, name)

    def persistent_load(self, pid: Any) -> Storage:
        """Describes values that are elsewhere in the file."""
        # The older form has also a part of a storage, which few files use.
        if not isinstance(pid, tuple) or pid[5:] not in ((), (None,)):
            _refuse("a storage is no tuple of five")
        mark, kind, key, _, count = pid[:5]
        are_texts = isinstance(kind, str) and isinstance(key, str)
        if mark != "storage" or not are_texts or kind not in TYPES:
            _refuse("a storage is of no known kind")
        return Storage(key, kind, *_whole_numbers((count,)))

    def _set_item(self) -> None:
        self._check_names(self.stack[-2:-1])
        self.load_setitem()

    def _set_items(self) -> None:
        self._check_names(self.stack[::2])
        self.load_setitems()

    def _check_names(self, names: list[Any]) -> None:
        # Others could take for ever to hash.
        if not all(isinstance(name, str) for name in names):
            _refuse("a value's name is no text")

    def _ignore_state(self) -> None:
        self.stack.pop()

    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.SETITEMS[0]] = _set_items
    dispatch[pickle.BUILD[0]] = _ignore_state


def _views(table: Any) -> dict[str, View]:
    if not isinstance(table, dict):
        _refuse("it has no names")
    if not all(isinstance(view, View) for view in table.values()):
        _refuse("it holds other values than tensors")
    return table


def _open_zip(content: bytes) -> tuple[dict[str, View], _ReadStorage]:
    archive = zipfile.ZipFile(io.BytesIO(content))
    names = archive.namelist()

    def read(name: str, size: Optional[int] = None) -> bytes:
        member = archive.getinfo(name)
        # Else a small file could become a large one.
        if member.compress_type != zipfile.ZIP_STORED:
            _refuse("it is compressed, which torch.save does not do")
        if size not in (None, member.file_size):
            _refuse(f"{name[:80]!r} has another size than its tensors")
        return archive.read(member)

    pickles = list(filter(PICKLE.fullmatch, names))
    if len(pickles) != 1:
        _refuse("it holds no data.pkl, or several")
    root = pickles[0].removesuffix("data.pkl")
    order = f"{root}byteorder"
    if order in names and read(order) != b"little":
        _refuse("its bytes are in the order of another processor")
    pickled = io.BytesIO(read(pickles[0])[:LARGEST_PICKLE])
    return (
        _views(_Unpickler(pickled).load()),
        lambda storage: read(f"{root}data/{storage.key}", storage.size),
    )


def _open_older(content: bytes) -> tuple[dict[str, View], _ReadStorage]:
    """Opens a file of PyTorch before 1.6, as `_open_zip`.

    It is five pickles, then the storages: each the number of its values, int64,
    and the values.
    """
    pickled = io.BytesIO(content[:LARGEST_PICKLE])
    if _Unpickler(pickled).load() != MAGIC:
        _refuse("it begins otherwise than torch.save's")
    version, system, table, keys = (
        _Unpickler(pickled).load() for _ in range(4)
    )
    if version != PROTOCOL or system["little_endian"] is not True:
        _refuse("it is of another version or processor")
    storages = {
        view.storage.key: view.storage for view in _views(table).values()
    }
    place, contents = pickled.tell(), {}
    for key in keys:
        # A key that is no text could take for ever to hash.
        if not isinstance(key, str) or key not in storages:
            _refuse("it holds a storage of no tensor")
        if content[place : place + 8] != struct.pack("<q", storages[key].count):
            _refuse(f"{key[:80]!r} has another size than its tensors")
        begin, place = place + 8, place + 8 + storages[key].size
        contents[key] = slice(begin, place)
    return table, lambda storage: content[contents[storage.key]]


def _check_sizes(views: dict[str, View], size: int) -> None:
    storages: dict[str, Storage] = {}
    for view in views.values():
        if storages.setdefault(view.storage.key, view.storage) != view.storage:
            _refuse("a storage is of two types or sizes")
    whole = sum(storage.size for storage in storages.values())
    made = sum(4 * math.prod(view.shape) for view in set(views.values()))
    if whole > size or made > GROWTH * size:
        _refuse("its tensors are larger than the file")


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
    is_zip = content[:2] == b"PK"
    try:
        table, read_storage = (_open_zip if is_zip else _open_older)(content)
        _check_sizes(table, len(content))
        if is_weight is not None:
            table = {k: view for k, view in table.items() if is_weight(k)}
            for name, view in table.items():
                if view.storage.kind not in FLOATS:
                    _refuse(
                        f"{name[:80]!r} has whole numbers, as of a quantized "
                        "model"
                    )
        storages = {view.storage for view in table.values()}
        contents = {storage: read_storage(storage) for storage in storages}
        arrays = {
            view: view.array(contents[view.storage])
            for view in set(table.values())
        }
    # Damaged pickles and zip files raise errors of many classes.
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as a table of tensors of torch.save "
            f"({str(error)[:200] or type(error).__name__}); save the "
            "state_dict alone, or safetensors"
        ) from error
    return {name: arrays[view] for name, view in table.items()}
