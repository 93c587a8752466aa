"""Files of `torch.save` are read as PyTorch reads them, and run nothing.

The golden files were written by PyTorch 2.13
(`lab/speed/peers/record_torch_files.py`).
"""

import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import refusals
from conftest import RECORDED
from hypothesis import given, settings
from hypothesis import strategies as st
from limits import limited
from numpy.testing import assert_array_equal
from torch_writer import as_older, as_zip, name_of, number, table, tensor, text

from adapter_bert.checkpoints import torch_files

pytestmark = pytest.mark.newer_stack

GOLDEN = RECORDED / "torch_files"
UNREADABLE = "a.bin cannot be read as a table of tensors"
FILES = sorted(path.name for path in GOLDEN.glob("*.bin"))
STORAGES = {np.dtype(v): k for k, v in torch_files.TYPES.items() if v != "<u1"}


@pytest.mark.parametrize("file", FILES)
def test_golden_files_hold_what_pytorch_says(file):
    tensors = torch_files.read(str(GOLDEN / file))
    with np.load(GOLDEN / f"{file.split('.')[0]}.npz") as expected:
        assert list(tensors) == list(expected)
        for name, value in tensors.items():
            assert value.dtype == np.float32 and value.flags.c_contiguous
            assert_array_equal(value, expected[name])


def test_golden_tensors_that_are_one_share_memory():
    tensors = torch_files.read(str(GOLDEN / "views.zip.bin"))
    assert tensors["whole"] is tensors["again"]
    assert tensors["whole"] is not tensors["part"]


def read(folder, content):
    path = folder / "a.bin"
    path.write_bytes(content)
    return torch_files.read(str(path))


@st.composite
def views(draw):
    """(Values in a row, offset, shape, strides) of a tensor."""
    kind = draw(st.sampled_from(sorted(STORAGES, key=str)))
    if kind == np.dtype("<u2"):
        kind = np.dtype("<f4")
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    strides = draw(
        st.lists(st.integers(0, 5), min_size=len(shape), max_size=len(shape))
    )
    offset = draw(st.integers(0, 3))
    last = sum(max(n - 1, 0) * s for n, s in zip(shape, strides))
    count = offset + last + 1 + draw(st.integers(0, 3))
    values = np.random.default_rng(count).normal(0, 9, count).astype(kind)
    return values, offset, shape, strides


@given(views(), st.booleans())
@settings(max_examples=150)
def test_views_of_any_strides_are_those_of_numpy(tmp_path_factory, view, old):
    values, offset, shape, strides = view
    size = values.itemsize
    expected = np.lib.stride_tricks.as_strided(
        values[offset:], shape, [step * size for step in strides]
    )
    made = tensor(
        "0",
        STORAGES[values.dtype],
        len(values),
        shape,
        strides,
        offset,
        is_old=old,
    )
    content = values.tobytes()
    if old:
        content = struct.pack("<q", len(values)) + content
    content = (as_older if old else as_zip)(table({"x": made}), {"0": content})
    folder = tmp_path_factory.getbasetemp()
    if 4 * expected.size > torch_files.GROWTH * len(content):
        refusals.check(lambda: read(folder, content), "larger than the file")
    else:
        value = read(folder, content)["x"]
        assert_array_equal(value, expected.astype(np.float32))


FLOAT = "torch.FloatStorage"
ONE = np.ones(6, np.float32).tobytes()


def whole(pickled=None, storages=None, **more):
    if pickled is None:
        pickled = table({"x": tensor("0", FLOAT, 6, [2, 3], [3, 1])})
    return as_zip(pickled, {"0": ONE} if storages is None else storages, **more)


def of(*arguments, **more):
    return whole(table({"x": tensor(*arguments, **more)}))


def with_size(content, name, size):
    """The zip file, whose directory tells another size of a part."""
    place = content.rindex(name) - 46 + 24
    return content[:place] + struct.pack("<I", size) + content[place + 4 :]


def with_keys(instructions):
    """A file of the older form, whose fifth pickle has these."""
    none = pickle.dumps([], protocol=2)
    return as_older(table({}), {}).removesuffix(none) + instructions


class Program:
    """A pickle that makes a folder when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


FUNCTION = name_of("torch._utils._rebuild_tensor_v2")
FLOATS = tensor("0", FLOAT, 6, [6], [1])
OLD = table({"x": tensor("0", FLOAT, 6, [6], [1], is_old=True)})
INTS = tensor("0", "torch.IntStorage", 6, [6], [1])
MANY = table({"x": tensor("0", FLOAT, 900, [900], [1])})
OLDER = as_older(OLD, {"0": struct.pack("<q", 6) + ONE})


@refusals.table(
    {
        "other values": (whole(table({"x": number(7)})), "other values than"),
        "a list": (whole(b"\x80\x02].", {}), "it has no names"),
        "another name": (
            whole(b"\x80\x02cos\nsystem\nX\x01\0\0\0a\x85R."),
            "'os.system'",
        ),
        "a type that is called": (
            whole(b"\x80\x02" + name_of(FLOAT) + b")R."),
            "not callable",
        ),
        "a text that is called": (
            whole(b"\x80\x02" + text("torch._utils._rebuild_tensor") + b")R."),
            "not callable",
        ),
        "a class's instance": (
            whole(b"\x80\x02" + name_of("collections.OrderedDict") + b")\x81."),
        ),
        "no storage": (
            whole(table({"x": FUNCTION + b"(" + number(0) * 4 + b"tR"})),
            "no storage",
        ),
        "a storage that is a list": (
            whole(table({"x": b"](" + text("storage") * 5 + b"eQ"})),
            "no tuple",
        ),
        "eleven arguments": (
            whole(table({"x": FUNCTION + b"(" + number(0) * 11 + b"tR"})),
            "arguments",
        ),
        "another kind": (
            of("0", "torch.FloatTensor", 6, [6], [1]),
            "'torch.FloatTensor'",
        ),
        "numbers of no kind": (
            of("0", "collections.OrderedDict", 6, [6], [1]),
            "of no known kind",
        ),
        "more values": (of("0", FLOAT, 6, [7], [1]),),
        "a greater offset": (of("0", FLOAT, 6, [6], [1], 1),),
        "a greater step": (of("0", FLOAT, 6, [2, 2], [5, 1]),),
        "steps whose sum wraps around": (
            of("0", FLOAT, 6, [5], [2**60]),
            "more values than its storage",
        ),
        "backwards": (of("0", FLOAT, 6, [6], [-1], 5), "no whole numbers"),
        "terabytes of one value": (
            of("0", FLOAT, 6, [2**40], [0]),
            "larger than the file",
        ),
        "a hundred axes": (
            of("0", FLOAT, 6, [1] * 100, [0] * 100),
            "not as many",
        ),
        "more axes than steps": (of("0", FLOAT, 6, [2, 3], [1]), "not as many"),
        "a storage of terabytes": (
            of("0", FLOAT, 2**40, [6], [1]),
            "larger than the file",
        ),
        "another size": (of("0", FLOAT, 5, [5], [1]), "a/data/0", "size"),
        "a part that is shorter than its directory says": (
            with_size(whole(MANY, more=bytes(4000)), b"a/data/0", 3600),
        ),
        "no such storage": (of("1", FLOAT, 6, [6], [1]), "a/data/1"),
        "a storage of two types": (
            whole(table({"x": FLOATS, "y": INTS})),
            "of two types or sizes",
        ),
        "compressed": (whole(kind=zipfile.ZIP_DEFLATED), "it is compressed"),
        "another processor": (whole(byteorder="big"), "of another processor"),
        "no zip file": (b"PK\3\4", "not a zip file"),
        "no data.pkl": (whole().replace(b"data.pkl", b"data.pkx"), "data.pkl"),
        "names of numbers": (
            whole(b"\x80\x02}" + number(1) + number(2) + b"s."),
            "no text",
        ),
        # Tuples of 2**200 values, which nobody may hash.
        "a wide name": (
            whole(b"\x80\x02}(])q\0" + b"h\0\x86q\0" * 200 + b"NNu."),
            "no text",
        ),
        "an end too early": (whole(b"\x80\x02}"),),
        "millions of tables": (whole(b"\x80\x02" + b"}" * 2**22 + b"."),),
        "a place for billions of values": (
            whole(b"\x80\x02}r\xff\xff\xff\x7f)u."),
        ),
        "nothing": (b"",),
        "another beginning": (
            as_older(table({}), {}, magic=7),
            "begins otherwise",
        ),
        "an older one of another processor": (
            as_older(table({}), {}, little=False),
            "another version or processor",
        ),
        "an older one without its storage": (OLDER[:-1],),
        "an older one with another number of values": (
            as_older(OLD, {"0": struct.pack("<q", 7) + ONE}),
            "'0' has another size",
        ),
        "storages that are no list": (with_keys(b"K\0."),),
        "a deep storage": (
            with_keys(b"])" + b"\x85" * 2**20 + b"a."),
            "a storage of no tensor",
        ),
        "a wide storage": (
            with_keys(b"])q\0" + b"h\0\x86q\0" * 200 + b"a."),
            "a storage of no tensor",
        ),
        "safetensors": (struct.pack("<Q", 2) + b"{}",),
    }
)
def test_what_is_no_table_of_tensors_is_one_line(tmp_path, call, parts):
    with limited(more=2**27):
        refusals.check(lambda: read(tmp_path, call), UNREADABLE, *parts)


@pytest.mark.parametrize("form", ["alone", "zip", "older"])
def test_no_program_is_run(tmp_path, form):
    content = pickle.dumps(Program(str(tmp_path / "was run")), protocol=2)
    if form == "zip":
        content = as_zip(content, {})
    elif form == "older":
        content = as_older(content, {})
    refusals.check(lambda: read(tmp_path, content), "'posix.mkdir'")
    assert not (tmp_path / "was run").exists()


def test_pickles_take_no_more_than_a_limit(tmp_path, monkeypatch):
    pickled = table({"x": FLOATS})
    older = len(OLDER) - 8 - len(ONE)
    for content, size in ((whole(pickled), len(pickled)), (OLDER, older)):
        monkeypatch.setattr(torch_files, "LARGEST_PICKLE", size)
        assert read(tmp_path, content)["x"].size == 6
        monkeypatch.setattr(torch_files, "LARGEST_PICKLE", size - 1)
        refusals.check(lambda c=content: read(tmp_path, c), UNREADABLE)
