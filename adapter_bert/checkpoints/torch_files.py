"""PyTorch's `.bin` and `.pt` files: a table of tensors, and nothing else.

Such a file is a pickle: instructions that build objects, and may call any
function. Here these instructions are followed by an interpreter of its own. It
has those alone that `torch.save` needs for tensors by name, and calls nothing
but the four functions of `FUNCTIONS`, which are written below. Any other
instruction or name is refused.

Sources: CPython, `pickletools.py`; PyTorch, `torch/serialization.py`: the zip
file of version 1.6, and the form of before.
"""

import io
import math
import re
import struct
import zipfile
from collections.abc import Mapping
from typing import (
    Any,
    Callable,
    NamedTuple,
    NoReturn,
    Optional,
)

import numpy as np

from adapter_bert import files
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
WHOLE = {
    name
    for name, kind in TYPES.items()
    if np.dtype(kind).kind != "f" and name != BFLOAT16
}
# The numbers that the older form begins with.
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
# Bytes of a file's instructions; those of 10,000 tensors are 2 MB.
MOST_INSTRUCTIONS = 2**22
# Values may be read by several tensors. So this many bytes of float32 at most
# are made of each byte of a file.
GROWTH = 8
MOST_AXES = 16
# `torch.save` gives its functions seven.
MOST_ARGUMENTS = 10
PICKLE = re.compile(r"([^/]+/)?data\.pkl")
# Errors of Python's reader of zip files for damaged ones, and of instructions
# that end too early or take what is not there.
UNREADABLE = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    OverflowError,
    TypeError,
    ValueError,
    struct.error,
)


class Storage(NamedTuple):
    """Values in a row, of which tensors are made.

    Attributes:
        key: of the file's part that holds the values.
        kind: one of `TYPES`.
        count: of the values.
    """

    key: str
    kind: str
    count: int


class View(NamedTuple):
    """A tensor: values of a storage, in PyTorch's order.

    Attributes:
        storage: that holds the values.
        offset: place of the first value.
        shape: sizes of the axes.
        strides: steps in the storage, of each axis.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Name(str):
    """A name of a function or a type of storage, which nobody looks up."""


# Where a list of values begins.
_MARK = object()


def _refuse(problem: str) -> NoReturn:
    raise ValueError(problem)


def _whole_numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple) or any(
        type(v) is not int or not 0 <= v < 2**62 for v in values
    ):
        _refuse("a tensor's sizes are no whole numbers")
    return values


def _tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, *more: Any
) -> View:
    """Source: `torch._utils._rebuild_tensor` and `_rebuild_tensor_v2`.

    `more` is whether the tensor is trained, hooks, and, if it is there, what
    else is to be done to the values.
    """
    if not isinstance(storage, Storage):
        _refuse("a tensor has no storage")
    if len(more) > 2 and more[2]:
        _refuse("a tensor is conjugate or negative")
    view = View(
        storage,
        *_whole_numbers((offset,)),
        _whole_numbers(shape),
        _whole_numbers(strides),
    )
    if not len(view.shape) == len(view.strides) <= MOST_AXES:
        _refuse("a tensor's sizes and steps are not as many")
    return view


def _parameter(view: Any, *_: Any) -> View:
    """Source: `torch._utils._rebuild_parameter`."""
    return view if isinstance(view, View) else _refuse("a parameter is none")


# Names that may be called -> what is called.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "collections.OrderedDict": lambda: {},
}


class _Interpreter:
    """Follows the instructions of one pickle."""

    def __init__(self, content: bytes, place: int):
        """Begins at a place of a file."""
        self.content, self.place = content, place
        self.stack: list[Any] = []
        self.kept: dict[int, Any] = {}

    def run(self) -> Any:
        """What the instructions build; raises one of `UNREADABLE`."""
        while True:
            [code] = self._take(1)
            if code == ord("."):
                return self.stack.pop()
            if code not in INSTRUCTIONS:
                _refuse(f"the instruction {code:#x} makes no table of tensors")
            # Instructions are what a file begins with, in either form.
            if self.place > MOST_INSTRUCTIONS:
                _refuse("it has too many instructions")
            INSTRUCTIONS[code](self)

    def _take(self, count: int) -> bytes:
        found = self.content[self.place : self.place + count]
        self.place += count
        return found if len(found) == count else _refuse("it ends too early")

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _push(self, value: Any) -> None:
        self.stack.append(value)

    def _number_of(self, form: str) -> None:
        self._push(self._number(form))

    def _long(self) -> None:
        count = self._number("<B")
        self._push(int.from_bytes(self._take(count), "little", signed=True))

    def _text(self) -> None:
        self._push(self._take(self._number("<I")).decode())

    def _name(self) -> None:
        """A module's and a value's name, each in a line."""
        parts = []
        for _ in range(2):
            end = self.content.index(b"\n", self.place, self.place + 100)
            parts.append(self._take(end - self.place).decode("ascii"))
            self._take(1)
        name = ".".join(parts)
        if name not in FUNCTIONS and name not in TYPES:
            _refuse(f"{name!r} is no part of a table of tensors")
        self._push(Name(name))

    def _keep(self, form: str) -> None:
        self.kept[self._number(form)] = self.stack[-1]

    def _take_kept(self, form: str) -> None:
        self._push(self.kept[self._number(form)])

    def _since_mark(self) -> list[Any]:
        """The values behind the last mark."""
        found = []
        while self.stack[-1] is not _MARK:
            found.append(self.stack.pop())
        self.stack.pop()
        return found[::-1]

    def _last(self, count: int) -> None:
        """Makes a tuple of the last values."""
        values = [self.stack.pop() for _ in range(count)]
        self._push(tuple(values[::-1]))

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            _refuse("values are added to what is no list")
        target.extend(values)

    def _set(self, values: list[Any]) -> None:
        table = self.stack[-1]
        if not isinstance(table, dict) or len(values) % 2:
            _refuse("values are added to what is no table")
        for name, value in zip(values[::2], values[1::2]):
            # A name that is no text could take for ever to compare.
            if not isinstance(name, str):
                _refuse("a value's name is no text")
            table[name] = value

    def _storage(self) -> None:
        """Values that are elsewhere in the file."""
        told = self.stack.pop()
        if not isinstance(told, tuple):
            _refuse("a storage is no tuple")
        # The older form has also a part of a storage, which few files use.
        if len(told) == 6 and told[5] is None:
            told = told[:5]
        mark, kind, key, _, count = told
        known = isinstance(kind, Name) and kind in TYPES
        if mark != "storage" or not known or not isinstance(key, str):
            _refuse("a storage is of no known kind")
        self._push(Storage(key, str(kind), *_whole_numbers((count,))))

    def _call(self) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        if not isinstance(name, Name) or name not in FUNCTIONS:
            _refuse("it calls what is no function")
        # Each call copies its arguments, and a tuple may be given many times.
        if not isinstance(arguments, tuple) or len(arguments) > MOST_ARGUMENTS:
            _refuse("it calls a function with other arguments")
        self._push(FUNCTIONS[name](*arguments))

    def _ignore_state(self) -> None:
        """A table of tensors has versions of modules, too."""
        self.stack.pop()
        if not isinstance(self.stack[-1], dict):
            _refuse("it changes what is no table")


_Act = Callable[[_Interpreter], None]
# Source: CPython, `pickle.py`, the instructions of protocol 2.
INSTRUCTIONS: dict[int, _Act] = {
    ord(code): act
    for code, act in {
        "\x80": lambda own: own._take(1),
        "(": lambda own: own._push(_MARK),
        ")": lambda own: own._push(()),
        "]": lambda own: own._push([]),
        "}": lambda own: own._push({}),
        "N": lambda own: own._push(None),
        "\x88": lambda own: own._push(True),
        "\x89": lambda own: own._push(False),
        "K": lambda own: own._number_of("<B"),
        "M": lambda own: own._number_of("<H"),
        "J": lambda own: own._number_of("<i"),
        "G": lambda own: own._number_of(">d"),
        "\x8a": _Interpreter._long,
        "X": _Interpreter._text,
        "c": _Interpreter._name,
        "q": lambda own: own._keep("<B"),
        "r": lambda own: own._keep("<I"),
        "h": lambda own: own._take_kept("<B"),
        "j": lambda own: own._take_kept("<I"),
        "t": lambda own: own._push(tuple(own._since_mark())),
        "\x85": lambda own: own._last(1),
        "\x86": lambda own: own._last(2),
        "\x87": lambda own: own._last(3),
        "a": lambda own: own._extend([own.stack.pop()]),
        "e": lambda own: own._extend(own._since_mark()),
        "s": lambda own: own._set([own.stack.pop(), own.stack.pop()][::-1]),
        "u": lambda own: own._set(own._since_mark()),
        "Q": _Interpreter._storage,
        "R": _Interpreter._call,
        "b": _Interpreter._ignore_state,
    }.items()
}
# Gives the bytes of a storage, of this many bytes.
_Read = Callable[[str, int], bytes]


def _table(value: Any) -> dict[str, Any]:
    """Values by name, if they are such."""
    return value if isinstance(value, dict) else _refuse("it has no names")


def _views(value: Any) -> dict[str, View]:
    """Tensors by name, if they are such."""
    table = _table(value)
    if not all(isinstance(view, View) for view in table.values()):
        _refuse("it holds other values than tensors")
    return table


def _open_zip(content: bytes) -> tuple[dict[str, View], _Read]:
    """The table of views of a zip file, and what reads a storage."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    members = {member.filename: member for member in archive.infolist()}

    def read(name: str, size: Optional[int] = None) -> bytes:
        member = members.get(name) or _refuse(f"{name[:80]!r} is missing")
        # Else a small file could become a large one.
        if member.compress_type != zipfile.ZIP_STORED:
            _refuse("it is compressed, which torch.save does not do")
        if size not in (None, member.file_size):
            _refuse(f"{name[:80]!r} has another size than its tensors")
        found = archive.read(member)
        # The directory may say more than the file has.
        if len(found) != member.file_size:
            _refuse(f"{name[:80]!r} ends too early")
        return found

    pickles = list(filter(PICKLE.fullmatch, members))
    if len(pickles) != 1:
        _refuse("it holds no data.pkl, or several")
    [pickle] = pickles
    root = pickle[: -len("data.pkl")]
    order = f"{root}byteorder"
    if order in members and read(order) != b"little":
        _refuse("its bytes are in the order of another processor")
    table = _views(_Interpreter(read(pickle), 0).run())
    return table, lambda key, size: read(f"{root}data/{key}", size)


def _open_older(content: bytes) -> tuple[dict[str, View], _Read]:
    """As `_open_zip`, of a file of PyTorch before 1.6.

    Five pickles, then the storages: each the number of its values, int64, and
    the values.
    """
    place, found = 0, []
    for _ in range(5):
        interpreter = _Interpreter(content, place)
        found.append(interpreter.run())
        place = interpreter.place
        if found[0] != MAGIC:
            _refuse("it begins otherwise than torch.save's")
    _, version, system, table, keys = found
    if version != PROTOCOL or _table(system).get("little_endian") is not True:
        _refuse("it is of another version or processor")
    storages = {
        view.storage.key: view.storage for view in _views(table).values()
    }
    places = {}
    if not isinstance(keys, list):
        _refuse("its storages are no list")
    for key in keys:
        # A key that is no text could take for ever to hash.
        if not isinstance(key, str) or key not in storages:
            _refuse("it holds a storage of no tensor")
        count = storages[key].count
        if content[place : place + 8] != struct.pack("<q", count):
            _refuse(f"{key[:80]!r} has another size than its tensors")
        places[key] = place + 8
        place += 8 + count * _item_size(storages[key])

    def read(key: str, size: int) -> bytes:
        first = places[key]
        found = content[first : first + size]
        if len(found) < size:
            _refuse("it ends too early")
        return found

    return table, read


def _item_size(storage: Storage) -> int:
    """Bytes of one of a storage's values."""
    return np.dtype(TYPES[storage.kind]).itemsize


def _check_sizes(views: Mapping[str, View], size: int) -> None:
    """Refuses tensors that need more than their file has."""
    storages: dict[str, Storage] = {}
    for view in views.values():
        storage = view.storage
        if storages.setdefault(storage.key, storage) != storage:
            _refuse("a storage is of two types or sizes")
        last = sum((n - 1) * s for n, s in zip(view.shape, view.strides))
        count = math.prod(view.shape)
        if count and view.offset + last >= storage.count:
            _refuse("a tensor has more values than its storage")
    whole = sum(s.count * _item_size(s) for s in storages.values())
    made = sum(4 * math.prod(view.shape) for view in set(views.values()))
    if whole > size or made > GROWTH * size:
        _refuse("its tensors are larger than the file")


def widened(halves: np.ndarray) -> np.ndarray:
    """Reads uint16 values of bfloat16 as float32."""
    return (halves.astype(np.uint32, order="C") << 16).view(np.float32)


def _values(view: View, content: bytes) -> np.ndarray:
    """A tensor as float32."""
    kind = np.dtype(TYPES[view.storage.kind])
    if not math.prod(view.shape):
        return np.zeros(view.shape, np.float32)
    # Unlike `as_strided`, raises ValueError for steps that leave the storage.
    found = np.ndarray(
        view.shape,
        kind,
        np.frombuffer(content, kind, view.storage.count),
        view.offset * kind.itemsize,
        [step * kind.itemsize for step in view.strides],
    )
    if view.storage.kind == BFLOAT16:
        return widened(found)
    # Too large numbers become infinite; callers check for that.
    with np.errstate(over="ignore"):
        return np.array(found, np.float32, order="C")


def read(
    path: str, is_weight: Optional[Callable[[str], bool]] = None
) -> dict[str, np.ndarray]:
    """The tensors of a file that `torch.save` has written, float32.

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
                if view.storage.kind in WHOLE:
                    _refuse(
                        f"{name[:80]!r} has whole numbers, as of a quantized "
                        "model"
                    )
        contents: dict[str, bytes] = {}
        arrays: dict[View, np.ndarray] = {}
        for view in table.values():
            storage = view.storage
            if storage.key not in contents:
                contents[storage.key] = read_storage(
                    storage.key, storage.count * _item_size(storage)
                )
            if view not in arrays:
                arrays[view] = _values(view, contents[storage.key])
    except UNREADABLE as error:
        raise UserError(
            f"{path} cannot be read as a table of tensors of torch.save "
            f"({str(error)[:200] or type(error).__name__}); save the "
            "state_dict alone, or safetensors"
        ) from error
    return {name: arrays[view] for name, view in table.items()}
