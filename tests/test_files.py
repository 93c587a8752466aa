"""Whole files: read back, replaced, synced, refused."""

import collections
import errno
import io
import json
import os
import shutil
import tempfile

import disk_order
import pytest
import refusals
import tensorflow as tf
from conftest import write_json
from task_files import refusal

from adapter_bert import files, folder_lock
from adapter_bert.errors import UserError


def test_what_is_written_is_read_back(tmp_path):
    """Texts are UTF-8, and no line break is translated."""
    path = tmp_path / "file"
    files.write_bytes(str(path), bytes(range(256)))
    assert files.read_bytes(str(path), "it") == bytes(range(256))
    files.write_text(str(path), "é\r\n東\n")
    assert path.read_bytes() == "é\r\n東\n".encode()
    assert files.read_text(str(path), "it") == "é\r\n東\n"
    value = {"é": [1, 2.5, None, True], "b": {"c": 1e-17}}
    files.write_json(str(path), value)
    assert files.read_json(str(path), "it") == value
    files.write_json(str(path), {"é": 1})
    assert path.read_text(encoding="utf-8") == '{\n  "é": 1\n}\n'


def test_a_byte_order_mark_is_dropped_at_the_beginning_only(tmp_path):
    path = tmp_path / "file"
    path.write_bytes("\ufeffa\n\ufeffb".encode())
    assert files.read_text(str(path), "the file") == "a\n\ufeffb"


@pytest.mark.parametrize(
    "newline, lines",
    [("\n", ["a\r\n", "é\u2028\rb\n", "\n", "東"]), ("", None)],
)
def test_lines_are_read_one_by_one(tmp_path, newline, lines):
    content = "a\r\né\u2028\rb\n\n東"
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf" + content.encode())
    read_lines = list(files.read_lines(str(path), "the file", newline))
    assert read_lines == (lines or list(io.StringIO(content, newline="")))


def read_lines(path, what):
    return list(files.read_lines(path, what, "\n"))


def read_number(path, what):
    return files.read_object(path, what, {"b?": float})


def write_text(path, _):
    files.write_text(path, "a")


def write_parts(path, _):
    files.write_parts(path, iter([b"new", b"er"]))


def prepare(path, _):
    files.prepare_folder(path)


def check_disk_space(path, _):
    files.check_disk_space(path, 1)


READ = files.read_bytes, files.read_text, read_lines
# A call, the name of a file, its content, and what the message names.
REFUSED = [
    *(
        (read, "none/x", None, "the file", "none/x does not exist")
        for read in READ
    ),
    (files.read_bytes, ".", None, "is a folder, expected a file"),
    (files.read_bytes, "file/below", None, "file/below"),
    # Messages are one printable line.
    (files.read_bytes, "a\nb\x1b[31m", None, "a b [31m does not exist"),
    (
        files.read_text,
        "x",
        b"one\nthr\xe9e\n",
        "x:2: not UTF-8 text (byte 0xe9",
    ),
    (files.read_text, "x", "東".encode()[:2], "x:1: not UTF-8 text (byte 0xe"),
    (read_lines, "x", b"one\n" * 5000 + b"thr\xe9e\n", "x:5001: not UTF-8"),
    *(
        (files.read_json, "x", content, "the file", "/x")
        for content in (b"", b"{", b'{"a": 1,}', b"[" * 100_000, b"\xff")
    ),
    *(
        (read_number, "x", content, "is not the file: ", why)
        for content, why in (
            (b'{"a": NaN}', "holds what JSON does not have"),
            (b'{"a": [1e400]}', "holds what JSON does not have"),
            (b'{"\\ud800": 1}', "holds what JSON does not have"),
            (b'{"a": "\\ud800"}', "holds what JSON does not have"),
        )
    ),
    *(
        (write_parts, name, None, "cannot write ", name)
        for name in ("none/x", "file/below", "folder")
    ),
    (prepare, "file", None, "cannot write the output folder ", "/file"),
    # Root may write everywhere else.
    (prepare, "/proc", None, "cannot write /proc/"),
    (check_disk_space, "none", None, "cannot read", "No such file or direc"),
    # Of a stream's link the superuser could make a file for all.
    (write_text, "/dev/null", None, "output /dev/null is a pipe or a device"),
    (write_text, "pipe", None, "pipe is a pipe or a device"),
    (write_text, "link", None, "link is a pipe or a device"),
]


@pytest.mark.parametrize(
    "call, name, content, parts",
    [(call, name, content, parts) for call, name, content, *parts in REFUSED],
)
def test_what_cannot_be_read_or_written_is_one_line(
    tmp_path, call, name, content, parts
):
    """Nothing half written is left, and nothing is replaced."""
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "content").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/proc/self/fd/1")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    refusals.check(lambda: call(str(tmp_path / name), "the file"), *parts)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_json_holds_no_numbers_that_json_does_not_have(tmp_path, value):
    path = tmp_path / "file"
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(str(path), {"a": [float(value)]})
    assert not path.exists()


def test_the_old_file_stays_until_the_last_part_is_written(tmp_path):
    path = tmp_path / "file"
    path.write_text("a long old text")
    seen = []

    def parts():
        for part in (b"a\n", b"", b"\x00\xff"):
            yield part
            seen.append(path.read_text())

    files.write_parts(str(path), parts())
    assert seen == ["a long old text"] * 3
    assert path.read_bytes() == b"a\n\x00\xff"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "error,why",
    [
        (OSError(errno.ENOSPC, "No space left", "/a/file"), "No space left"),
        (shutil.Error("several\nfiles"), "several"),
        (tf.errors.UnavailableError(None, None, "no\nnetwork"), "no"),
    ],
)
def test_what_cannot_be_written_is_one_line(error, why):
    chunks = []
    with pytest.raises(UserError, match=f"^cannot write it: {why}$"):
        with files.writing("it"):
            chunks.append("begun")
            raise error
    with pytest.raises(ValueError, match="a defect"):
        with files.writing("it"):
            raise ValueError("a defect")
    assert chunks == ["begun"]


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def interrupt():
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_parts(str(path), interrupt())
    monkeypatch.setattr(files.tf.io.gfile, "rename", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        files.write_text(str(path), "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


FIELDS = {"name": str, "numbers?": list}


def test_a_seal_tells_whether_an_object_was_changed(tmp_path):
    path = tmp_path / "file"
    value = {"name": "\u00e9", "numbers": [1, 0.1, None]}
    files.write_sealed(str(path), value)
    assert files.read_object(str(path), "mine", FIELDS) == value
    text = path.read_text()
    # Laid out otherwise it is the same.
    write_json(path, json.loads(text))
    assert files.read_object(str(path), "mine", FIELDS) == value
    path.write_text(text.replace("0.1", "0.3"))
    message = refusal(files.read_object, str(path), "mine", FIELDS)
    assert message.startswith(f"{path} is damaged, or was changed by hand")
    files.write_sealed(str(path), {**json.loads(text), "name": "b"})
    assert files.read_object(str(path), "mine", FIELDS)["name"] == "b"
    # Without a seal, and with as many levels as may be.
    levels = "[" * 99 + "1" + "]" * 99
    path.write_text('{"name": "a", "numbers": ' + levels + "}")
    assert files.read_object(str(path), "mine", FIELDS)["name"] == "a"


def test_a_new_folder_of_a_bucket_takes_a_file(tmp_path):
    files.check_output("ram://bucket/new/answers", "--output")
    refusals.check(
        lambda: files.check_output(f"{tmp_path}/new/answers", "--output"),
        "new of --output does not exist",
    )


def test_a_prepared_folder_keeps_its_files_and_gets_no_others(tmp_path):
    path = tmp_path / "a" / "b"
    files.prepare_folder(str(path))
    assert os.listdir(path) == []
    (path / "file").write_text("old")
    files.prepare_folder(str(path))
    assert os.listdir(path) == ["file"]
    assert (path / "file").read_text() == "old"


def test_a_disk_with_too_little_room_is_refused(tmp_path, monkeypatch):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(
        files.shutil, "disk_usage", lambda path: usage(10**9, 0, 5_000_000)
    )
    files.check_disk_space(str(tmp_path), 3_900_000)
    message = refusal(files.check_disk_space, str(tmp_path), 4_000_000)
    assert "5 MB free" in message


def test_a_new_folder_may_be_there_and_empty(tmp_path):
    with files.new_folder(str(tmp_path / "a")) as place:
        (tmp_path / "a").mkdir()
        files.write_text(f"{place}/file", "text")
    assert (tmp_path / "a" / "file").exists()
    # A link can't be renamed over.
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("a", "link"):
        with pytest.raises(UserError, match=f"{name} is there already"):
            with files.new_folder(str(tmp_path / name)):
                pass


def test_of_a_new_folder_that_fails_nothing_is_left(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        with files.new_folder(str(tmp_path / "a")) as place:
            files.write_text(f"{place}/file", "text")
            raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_what_has_come_meanwhile_is_not_written_over(tmp_path):
    with pytest.raises(UserError, match="cannot write .*a: "):
        with files.new_folder(str(tmp_path / "a")):
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "mine").write_text("mine")
    assert (tmp_path / "a" / "mine").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_nothing_is_written_where_a_held_folder_was(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with folder_lock.hold(str(folder)):
        folder.rename(tmp_path / "away")
        for write in (
            lambda: files.write_text(str(folder / "file"), "text"),
            lambda: files.prepare_folder(str(folder / "eval")),
        ):
            assert "is not there any more" in refusal(write)
    assert not folder.exists()


def test_nothing_gets_its_name_where_a_held_folder_was(tmp_path):
    """The folder goes while the file or folder is written."""
    folder = tmp_path / "run"

    def go():
        folder.rename(tmp_path / "away")
        folder.mkdir()

    def parts():
        go()
        yield b"part"

    def fill():
        with files.new_folder(str(folder / "new")) as place:
            go()
            # As TensorFlow does.
            os.makedirs(place)

    for write in (
        lambda: files.write_parts(str(folder / "file"), parts()),
        fill,
    ):
        folder.mkdir()
        with folder_lock.hold(str(folder)):
            assert "is not there any more" in refusal(write)
        assert list(folder.iterdir()) == []
        folder.rmdir()
        shutil.rmtree(tmp_path / "away")


def test_what_cannot_be_seen_is_not_what_is_not_there(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "file"
    assert not files.exists(str(path))
    for name in ("x" * 300, "a\0b"):
        assert not files.exists(str(tmp_path / name))

    def stat(_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(files.os, "stat", stat)
    assert refusal(files.exists, str(path)) == (
        f"cannot read {path}: Stale file handle"
    )


def test_the_names_in_a_folder_are_in_order(tmp_path, plain_user):
    for name in "bca":
        (tmp_path / name).mkdir()
    assert files.names(str(tmp_path)) == ["a", "b", "c"]
    tmp_path.chmod(0o300)
    names = plain_user(files.names, str(tmp_path))
    tmp_path.chmod(0o700)
    assert names == f"cannot read {tmp_path}: Permission denied"
    assert "No such file" in refusal(files.names, str(tmp_path / "d"))


def test_a_folder_that_may_not_be_looked_into_is_told(plain_user, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("text")
    folder.chmod(0o600)
    message = plain_user(files.exists, str(folder / "file"))
    assert message == f"cannot read {folder / 'file'}: Permission denied"
    folder.chmod(0o500)
    message = plain_user(files.write_text, str(folder / "file"), "new")
    assert message.startswith(f"cannot write {folder / 'file'}: ")
    assert "Permission denied" in message
    assert plain_user(files.read_text, str(folder / "file"), "it") == "text"


def test_a_temporary_file_that_cannot_be_deleted_hides_no_error(
    tmp_path, monkeypatch
):
    """A folder that may not be written any more is told of by its own line."""

    def refuse(*_, **__):
        raise tf.errors.PermissionDeniedError(None, None, "read-only by now")

    monkeypatch.setattr(files.tf.io.gfile, "rename", refuse)
    monkeypatch.setattr(files.tf.io.gfile, "remove", refuse)
    path = str(tmp_path / "file")
    assert refusal(files.write_text, path, "text") == (
        f"cannot write {path}: read-only by now"
    )
    message = refusal(files.prepare_folder, str(tmp_path))
    assert "read-only by now" in message


def test_no_room_for_a_temporary_folder_is_one_line(tmp_path, monkeypatch):
    with files.temporary_folder() as folder:
        assert os.listdir(folder) == []
    assert not os.path.exists(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(UserError, match="set TMPDIR to a folder"):
        with files.temporary_folder():
            pass


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    events = disk_order.watch(monkeypatch)
    path = str(tmp_path / "file")
    for content in (b"old", b"new"):
        files.write_bytes(path, content)
        (_, written, _), *_ = events
        assert written.startswith(str(tmp_path / ".file.tmp-"))
        assert events == [
            (disk_order.SYNC, written, ""),
            (disk_order.RENAME, written, path),
            (disk_order.SYNC, str(tmp_path), ""),
        ]
        events.clear()


def test_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path = tmp_path / "above" / "new"
    events = disk_order.watch(monkeypatch)
    with files.new_folder(str(path)) as place:
        os.mkdir(f"{place}/deep")
        for name in ("one", "deep/two"):
            with open(f"{place}/{name}", "w") as file:
                file.write("text")
    # The folder above was not there either.
    above = [str(tmp_path / "above"), str(tmp_path)]
    assert events[:2] == [(disk_order.SYNC, folder, "") for folder in above]
    assert {os.path.relpath(p, place) for _, p, _ in events[2:6]} == {
        ".",
        "deep",
        "one",
        "deep/two",
    }
    assert events[6:8] == [
        (disk_order.RENAME, place, str(path)),
        (disk_order.SYNC, str(tmp_path / "above"), ""),
    ]
    assert os.listdir(path.parent) == ["new"]
    assert (path / "deep" / "two").read_text() == "text"


@pytest.fixture
def synced(monkeypatch):
    """The state of each file and folder that is synced from now on."""
    nodes = []
    monkeypatch.setattr(os, "fsync", lambda n: nodes.append(os.fstat(n)))
    return nodes


def is_synced(synced, *paths):
    same = map(os.path.samestat, synced, map(os.stat, paths))
    return len(synced) == len(paths) and all(same)


def test_a_sync_reaches_the_files_themselves(tmp_path, synced):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    files.sync_all(str(tmp_path))
    files.sync("gs://bucket/file")
    assert is_synced(synced, tmp_path, tmp_path / "a" / "file", tmp_path / "a")


def test_a_file_without_a_folder_is_replaced(tmp_path, synced, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").write_text("old")
    (tmp_path / "new").write_text("new")
    files.replace("new", "old")
    assert is_synced(synced, "old", ".")
    assert (tmp_path / "old").read_text() == "new"


def test_folders_that_are_made_are_on_the_disk(tmp_path, monkeypatch):
    events = disk_order.watch(monkeypatch)
    for _ in range(2):
        files.make_folder(str(tmp_path / "a" / "b"))
        assert (tmp_path / "a" / "b").is_dir()
    # Once, when they are made.
    folders = [str(tmp_path / "a"), str(tmp_path)]
    assert events == [(disk_order.SYNC, folder, "") for folder in folders]


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path, monkeypatch):
    def fail(number):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    path = tmp_path / "file"
    code = errno.EINVAL
    files.write_bytes(str(path), b"new")
    code = errno.EIO
    refusals.check(
        lambda: files.write_bytes(str(path), b"lost"),
        f"cannot write {path}: ",
        os.strerror(code),
    )
    # What was there stays, and nothing else.
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]
