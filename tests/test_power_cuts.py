"""What a disk holds when the power goes, and what a soak makes of it."""

import dataclasses
import random
import re

import benches
import pytest

from adapter_bert.errors import UserError
from lab.trials import __main__ as soak
from lab.trials import power_cuts, strace
from lab.trials.power_cuts import Disk, order_faults
from lab.trials.strace import (
    DELETE,
    EMPTY,
    MAKE_FOLDER,
    OPEN,
    RENAME,
    RESIZE,
    SYNC,
    WRITE,
    Operation,
)
from lab.trials.trial import DIFFERENT, LOST, SAME, Plan

pytestmark = pytest.mark.newer_stack


def why_not():
    """Why calls cannot be seen here, or None."""
    try:
        strace.check()
    except UserError as error:
        return str(error)
    return None


STRACE = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def write(path, content):
    return [Operation(OPEN, path), Operation(WRITE, path, content=content)]


def rename(path, new):
    return Operation(RENAME, path, new)


def sync(path):
    return Operation(SYNC, path)


def left(folder, operations, tmp_path, seeds=60):
    """All that may be left after operations: sets of (name, content)."""
    states = set()
    for seed in range(seeds):
        disk = Disk(folder)
        for operation in operations:
            disk.do(operation)
        disk.cut(random.Random(seed), tmp_path / "cut")
        states.add(frozenset(Disk(tmp_path / "cut").contents().items()))
    return states


@pytest.fixture
def folder(tmp_path):
    """A folder with a file on the disk."""
    path = tmp_path / "folder"
    path.mkdir()
    (path / "file").write_bytes(b"old")
    return path


REPLACED = [*write("tmp", b"new"), sync("tmp"), rename("tmp", "file"), sync("")]


def test_a_file_that_is_synced_and_renamed_is_the_old_or_the_new_one(
    folder, tmp_path
):
    whole = {(("file", b"old"),), (("file", b"new"),)}
    for count in range(len(REPLACED) + 1):
        for state in left(folder, REPLACED[:count], tmp_path):
            assert tuple(p for p in state if p[0] == "file") in whole
    assert left(folder, REPLACED, tmp_path) == {frozenset([("file", b"new")])}
    # Without the folder's sync it may be either.
    files = set().union(*left(folder, REPLACED[:-1], tmp_path))
    assert {("file", b"old"), ("file", b"new"), ("tmp", b"new")} <= files


def test_a_file_that_is_renamed_unsynced_may_be_spoiled(folder, tmp_path):
    operations = [step for step in REPLACED if step != sync("tmp")]
    contents = {dict(f)["file"] for f in left(folder, operations, tmp_path)}
    assert {b"", b"new", b"n", b"ne", b"\0\0\0", b"ne\0"} <= contents
    assert not order_faults(Disk(folder), REPLACED, bool)
    assert order_faults(Disk(folder), operations, bool) == [
        "file: renamed, but tmp: not synced",
        "file: not synced",
    ]


def test_a_file_that_is_written_in_place_may_be_spoiled(folder, tmp_path):
    operations = [
        Operation(EMPTY, "file"),
        Operation(WRITE, "file", number=2, content=b"xy"),
        Operation(RESIZE, "file", number=5),
    ]
    disk = Disk(folder)
    for operation in operations:
        disk.do(operation)
    assert disk.contents() == {"file": b"\0\0xy\0"}
    contents = {dict(f)["file"] for f in left(folder, operations, tmp_path)}
    assert {b"old", b"", b"\0\0xy\0", b"\0\0x\0\0"} <= contents
    contents = left(folder, [*operations, sync("file")], tmp_path)
    assert contents == {frozenset([("file", b"\0\0xy\0")])}
    assert order_faults(disk, [], bool) == ["file: not synced"]


def test_names_reach_the_disk_in_order(folder, tmp_path):
    operations = [
        Operation(OPEN, "a"),
        Operation(OPEN, "b"),
        Operation(DELETE, "a"),
        Operation(DELETE, "file"),
    ]
    names = ["file", "a file", "a b file", "b file", "b"]

    def spoiled(operations):
        return {
            " ".join(sorted(name for name, _ in files))
            for files in left(folder, operations, tmp_path)
        }

    assert spoiled(operations) == set(names)
    synced = [*operations[:2], sync(""), *operations[2:]]
    assert spoiled(synced) == set(names[2:])


def test_a_folder_takes_along_what_is_in_it(folder, tmp_path):
    operations = [
        Operation(MAKE_FOLDER, "tmp"),
        Operation(MAKE_FOLDER, "tmp/deep"),
        *write("tmp/deep/x", b"x"),
        sync("tmp/deep/x"),
        sync("tmp/deep"),
        sync("tmp"),
        rename("tmp", "new"),
        sync(""),
    ]
    [state] = left(folder, operations, tmp_path)
    assert dict(state) == {"file": b"old", "new/deep/x": b"x"}
    assert not order_faults(Disk(folder), operations, bool)
    for number, fault in (
        (4, "new: renamed, but tmp/deep/x: not synced"),
        (5, "new: renamed, but tmp/deep/x: its folder not synced"),
        (6, "new: renamed, but tmp/deep: its folder not synced"),
        (8, "new: its folder not synced"),
    ):
        fewer = operations[:number] + operations[number + 1 :]
        assert fault in order_faults(Disk(folder), fewer, bool)


def test_nothing_is_deleted_before_what_came_for_it_is_there(folder):
    new = [*write("tmp", b"new"), sync("tmp"), rename("tmp", "file-2")]
    gone = [Operation(DELETE, "file")]
    assert not order_faults(Disk(folder), [*new, sync(""), *gone], bool)
    assert order_faults(Disk(folder), [*new, *gone, sync("")], bool) == [
        "file: deleted, but file-2: its folder not synced"
    ]
    # Of files that do not count nothing is asked.
    lasts = "file-2".__eq__
    assert not order_faults(Disk(folder), [*new, *gone, sync("")], lasts)


def read(tmp_path, *threads):
    """Reads recorded lines, whose paths and contents stand in brackets."""
    folder = tmp_path / "calls"
    folder.mkdir()
    for number, lines in enumerate(threads):
        text = re.sub(
            r"\[([^]{]+)\]",
            lambda match: "".join(f"\\x{b:02x}" for b in match[1].encode()),
            "\n".join(lines) + "\n",
        )
        (folder / f"calls.{number}").write_text(text)
    return strace.read(folder, "/place")


def test_calls_of_several_threads_are_put_in_order(tmp_path):
    operations = read(
        tmp_path,
        [
            '1.000000001 openat(AT_FDCWD<[/]>, "[/place/x]", O_RDONLY) = -1 '
            "ENOENT (No such file or directory)",
            '1.000000002 openat(AT_FDCWD<[/]>, "[/place/x]", '
            "O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3<[/place/x]>",
            '1.000000003 write(3<[/place/x]>, "[a, b)]", 5) = 3',
            "1.000000004 lseek(3<[/place/x]>, 8, SEEK_SET) = 8",
            '1.000000005 writev(3<[/place/x]>, [{iov_base="[c]", iov_len=1}, '
            '{iov_base="[d]", iov_len=1}], 2) = 2',
            "1.000000010 fsync(3<[/place/x]>) = 0",
            "1.000000011 --- SIGCHLD {si_signo=SIGCHLD} ---",
            '1.000000012 rename("[/place/x]", "[/place/y]") = 0',
            '1.000000013 write(3<[/place/y]>(deleted), "[e]", 1) = 1',
            "1.000000014 exit_group(0) = ?",
        ],
        [
            '1.000000006 openat(5<[/place]>, "[a]", O_RDWR|O_CREAT|O_APPEND, '
            "0666) = 4<[/place/a]>",
            '1.000000007 write(4<[/place/a]>, "[f]", 1) = 1',
            '1.000000008 pwrite64(4<[/place/a]>, "[g]", 1, 7) = 1',
            "1.000000009 ftruncate(4<[/place/a]>, 2) = 0",
            '1.000000015 unlinkat(5<[/place]>, "[a]", 0) = 0',
            '1.000000016 mkdir("[/place/b]", 0777) = 0',
            "1.000000017 fsync(5<[/place]>) = 0",
            '1.000000018 mkdir("[/elsewhere]", 0777) = 0',
            '1.000000019 write(1<[pipe:1]>, "[h]", 1) = 1',
        ],
    )
    assert operations == [
        Operation(OPEN, "x"),
        Operation(EMPTY, "x"),
        Operation(WRITE, "x", number=0, content=b"a, "),
        Operation(WRITE, "x", number=8, content=b"cd"),
        Operation(OPEN, "a"),
        Operation(WRITE, "a", content=b"f"),
        Operation(WRITE, "a", number=7, content=b"g"),
        Operation(RESIZE, "a", number=2),
        sync("x"),
        rename("x", "y"),
        Operation(DELETE, "a"),
        Operation(MAKE_FOLDER, "b"),
        sync(""),
    ]


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "mmap(NULL, 9, PROT_READ|PROT_WRITE, MAP_SHARED, 3<[/place/x]>, 0)"
            " = 0x7f",
            "x is written by mmap",
        ),
        ("sendfile(3<[/place/x]>, 4<[/y]>, NULL, 9) = 9", "x is written by"),
        ('link("[/y]", "[/place/x]") = 0', "link"),
        ('rename("[/y]", "[/place/x]") = 0', "renamed across the folder"),
        ('pwrite64(3<[/place/x]>, "[abc]"..., 9, 0) = 9', "more than"),
    ],
)
def test_what_is_not_followed_is_said(tmp_path, line, message):
    with pytest.raises(RuntimeError, match=message):
        read(tmp_path, [f"1.000000001 {line}"])


def test_without_strace_all_else_is_tried_and_that_is_said(monkeypatch, capsys):
    assert set(soak.TURNS) == set(soak.TRIALS) == set(soak.COLUMNS)
    monkeypatch.setenv("PATH", "")
    others = [turn for turn in soak.TURNS if turn != power_cuts.POWER]
    assert soak.turns_of(None) == others
    assert "power cuts need strace" in capsys.readouterr().err
    assert soak.turns_of("kill") == ["kill"]


# Counts to 8 in a file, and tells the total in another one.
PROGRAM = """
import os, pathlib, sys
out = pathlib.Path(sys.argv[1])

def put(name, text):
    with open(out / f"{name}.tmp-1", "w") as file:
        file.write(text)
        file.flush()
        {sync}
    os.replace(out / f"{name}.tmp-1", out / name)
    number = os.open(out, os.O_RDONLY)
    os.fsync(number)

number = total = 0
if (out / "state").exists():
    number, total = map(int, (out / "state").read_text().split())
while number < 8:
    number += 1
    total += number
    put("state", f"{number} {total}")
put("result", str(total))
"""
SYNCS = "os.fsync(file.fileno())"


@pytest.fixture
def make_bench(tmp_path):
    """A stand-in of the program, the reference of its run, a recording."""

    def make(sync=SYNCS):
        source = PROGRAM.replace("{sync}", sync)
        bench = benches.make_bench(tmp_path, source)
        power_cuts.record(tmp_path, bench.run)
        return bench

    return make


def try_seed(seed, bench, **plan):
    plan = dataclasses.replace(Plan.draw(power_cuts.POWER, seed), **plan)
    return power_cuts.cut_power(plan, bench)


@STRACE
def test_a_program_that_syncs_loses_nothing(make_bench):
    bench = make_bench()
    for seed in range(8):
        # In every second one, the power goes once more.
        outcome = try_seed(seed, bench, rare=seed % 2)
        assert outcome.what == SAME, outcome
        assert outcome.note.count("power cut") == 2 - seed % 2


@STRACE
def test_a_program_that_does_not_sync_is_found(make_bench, monkeypatch):
    bench = make_bench("pass")
    outcome = try_seed(0, bench)
    assert outcome.what == LOST
    assert "out/state: renamed, but out/state.tmp-1: not synced" in outcome.note
    # By what it comes to as well.
    (bench.reference.folder / power_cuts.FAULTS).write_text("[]")
    monkeypatch.setattr(
        power_cuts, "order_faults", lambda *calls: order_faults(*calls)[:0]
    )
    outcomes = {try_seed(seed, bench).what for seed in range(12)}
    assert outcomes & {LOST, DIFFERENT}


@STRACE
def test_a_recording_that_lacks_a_write_is_found(make_bench, monkeypatch):
    read = strace.read

    def without_writes(*arguments):
        return [o for o in read(*arguments) if o.what != WRITE]

    monkeypatch.setattr(strace, "read", without_writes)
    with pytest.raises(RuntimeError, match="not recorded as is: out/result"):
        make_bench()
