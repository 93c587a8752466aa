"""What is synced, and what a disk's answer comes to."""

import errno
import os

import disk_order
import pytest

from adapter_bert import files
from adapter_bert.errors import UserError


@pytest.fixture
def synced(monkeypatch):
    """The state of each file and folder that is synced from now on."""
    found = []
    monkeypatch.setattr(os, "fsync", lambda n: found.append(os.fstat(n)))
    return found


def is_synced(synced, *paths):
    same = map(os.path.samestat, synced, map(os.stat, paths))
    return len(synced) == len(paths) and all(same)


def test_a_sync_reaches_the_file_itself(tmp_path, synced):
    path = tmp_path / "file"
    path.touch()
    files.sync(str(path))
    files.sync(str(tmp_path))
    files.sync("gs://bucket/file")
    assert is_synced(synced, path, tmp_path)


def test_all_of_a_folder_is_synced(tmp_path, synced):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    files.sync_all(str(tmp_path))
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
    with pytest.raises(UserError) as raised:
        files.write_bytes(str(path), b"lost")
    assert str(raised.value).startswith(f"cannot write {path}: ")
    assert os.strerror(code) in str(raised.value)
    # What was there stays, and nothing else.
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]
