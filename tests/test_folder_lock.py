"""Two runs do not write into one folder."""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from shutil import rmtree

import pytest
import refusals
from conftest import ROOT, latest_step
from run_folders import artifact_bytes

from adapter_bert import folder_lock
from adapter_bert.checkpoints import training_state
from adapter_bert.errors import UserError

GONE = "moved, deleted or unmounted"


def enter(folder, error=None, **options):
    """Holds a folder, in which an error may happen."""
    with folder_lock.hold(str(folder), **options):
        if error:
            raise error


HOLDER = """
import sys, time
from adapter_bert import folder_lock
with folder_lock.hold(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder's lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_run_is_told_who_writes_there(holder, tmp_path):
    place = f"process {holder.pid} on {socket.gethostname()}"
    refusals.check(lambda: enter(tmp_path), "in use by ", place)


def test_the_lock_of_a_dead_process_stops_nobody(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    for _ in range(2):
        with folder_lock.hold(str(tmp_path)):
            text = (tmp_path / "run.lock").read_text()
            assert text.startswith(f"process {os.getpid()} on ")


def test_a_run_does_not_begin_where_another_writes(
    holder, classify, tiny_flags, tmp_path
):
    tiny_flags["output_dir"] = tmp_path
    refusals.check(lambda: classify(**tiny_flags), "in use by another process")
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_run_whose_folder_is_gone_ends_and_goes_on(
    classify, tiny_flags, tmp_path, monkeypatch
):
    """As when a network's folder is unmounted: an empty one is there."""
    tiny_flags.update(save_checkpoints_steps=5, do_eval=True)
    classify(**{**tiny_flags, "output_dir": tmp_path / "whole"})
    out, away = tiny_flags["output_dir"], tmp_path / "away"
    save = training_state.save_training

    def save_and_take(*arguments):
        save(*arguments)
        out.rename(away)
        out.mkdir()

    with monkeypatch.context() as patched:
        patched.setattr(training_state, "save_training", save_and_take)
        refusals.check(lambda: classify(**tiny_flags), "is not there any more")
    assert list(out.iterdir()) == []
    out.rmdir()
    away.rename(out)
    classify(**tiny_flags)
    assert artifact_bytes(out) == artifact_bytes(tmp_path / "whole")


@pytest.fixture
def no_locks(monkeypatch):
    """A file system that has none."""

    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_file_system_without_locks_is_warned_of(no_locks, tmp_path, caplog):
    with folder_lock.hold(str(tmp_path)):
        assert "cannot be locked (No locks available)" in caplog.text


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "run.lock").mkdir()
    refusals.check(lambda: enter(tmp_path), "cannot write ", "run.lock")


def test_a_lock_that_is_a_link_is_not_written(tmp_path):
    """Whoever made the folder may have put it there."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run.lock").symlink_to(tmp_path / "mine")
    parts = "run.lock: it is a link; delete it"
    refusals.check(lambda: enter(tmp_path), parts)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_full_disk_is_left_to_what_follows(tmp_path, monkeypatch):
    """The message of what happens under the lock is the one that is seen."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_lock.os, "write", full)
    error = UserError("make room")
    refusals.check(lambda: enter(tmp_path, error), "make room")
    enter(tmp_path)


def replace(folder):
    """Another folder comes into a folder's place."""
    folder.rename(folder.with_name(f"{folder.name}-away"))
    folder.mkdir()


@pytest.mark.parametrize(
    "take",
    [lambda f: f.rename(f.with_name("away")), rmtree, replace],
    ids=["moved", "deleted", "replaced"],
)
def test_a_folder_that_is_gone_is_noticed(tmp_path, take):
    folder = tmp_path / "run"
    folder.mkdir()
    with folder_lock.hold(str(folder)):
        for path in (folder, folder / "eval" / "file", tmp_path, "gs://run"):
            folder_lock.check(str(path))
        take(folder)
        for path in (folder, folder / "eval" / "file"):
            refusals.check(lambda p=path: folder_lock.check(str(p)), GONE)
        folder_lock.check(f"{folder}-2")
    folder_lock.check(str(folder))


def test_where_a_folder_was_no_training_begins_anew(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with folder_lock.hold(str(folder)):
        assert latest_step(folder) == (None, 0)
        replace(folder)
        refusals.check(lambda: latest_step(folder), GONE)


def test_a_folder_that_comes_back_is_the_same(tmp_path):
    folder, away = tmp_path / "run", tmp_path / "away"
    folder.mkdir()
    with folder_lock.hold(str(folder)):
        folder.rename(away)
        away.rename(folder)
        folder_lock.check(str(folder))


def test_a_folder_may_have_two_locks(tmp_path):
    with folder_lock.hold(str(tmp_path)):
        with folder_lock.hold(str(tmp_path), "other.lock") as is_locked:
            assert is_locked
        replace(tmp_path)
        refusals.check(lambda: folder_lock.check(str(tmp_path)), GONE)


def test_who_has_waited_looks_again(holder, tmp_path, monkeypatch):
    """The lock that it gets then may be of a folder that is gone."""
    waits = []

    def wait(text, *values):
        waits.append(text % values)
        replace(tmp_path)
        holder.kill()

    monkeypatch.setattr(folder_lock.logging, "info", wait)
    parts = "taken away while this process wait"
    refusals.check(lambda: enter(tmp_path, wait=True), parts)
    assert f"process {holder.pid} on" in waits[0]


def test_an_error_that_comes_of_it_is_told_as_that(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(UserError, match=GONE):
        with folder_lock.hold(str(folder)):
            rmtree(folder)
            raise ValueError("NOT_FOUND")
    folder.mkdir()
    with pytest.raises(ValueError, match="a defect"):
        enter(folder, ValueError("a defect"))


HOLD, SHARE = folder_lock.hold, folder_lock.share
WAYS = pytest.mark.parametrize("lock", [HOLD, SHARE], ids=["hold", "share"])


@pytest.fixture
def left(tmp_path):
    """A folder with a folder, a file and a link under temporary names."""
    folder, elsewhere = tmp_path / "left", tmp_path / "elsewhere"
    for path in (folder / "1.new" / "inner", folder / "new", elsewhere):
        path.mkdir(parents=True)
    (elsewhere / "file").write_text("mine")
    (folder / "1.new" / "inner" / "file").touch()
    (folder / "2.new").touch()
    (folder / "3.new").symlink_to(elsewhere)
    (folder / "3.new-not").touch()
    yield folder
    assert (elsewhere / "file").read_text() == "mine"
    assert {"new", "3.new-not"} <= set(os.listdir(folder))


def unfinished(folder):
    """The temporary names in a folder, in order."""
    return sorted(path.name for path in folder.glob("*.new"))


@WAYS
def test_what_killed_processes_left_is_deleted(left, lock):
    with lock(str(left), unfinished=r"\d\.new"):
        assert unfinished(left) == []
        (left / "4.new").touch()
    assert unfinished(left) == ["4.new"]


@WAYS
def test_what_is_written_now_is_not_deleted(left, lock):
    with lock(str(left), unfinished="none"):
        # Who holds it alone waits, or is refused.
        refused = pytest.raises(UserError, match="in use by another process")
        with refused if lock is HOLD else contextlib.nullcontext():
            with lock(str(left), unfinished=r"\d\.new"):
                pass
        assert unfinished(left) == ["1.new", "2.new", "3.new"]


@WAYS
def test_without_locks_nothing_is_deleted(left, lock, no_locks):
    with lock(str(left), unfinished=r"\d\.new"):
        assert unfinished(left) == ["1.new", "2.new", "3.new"]


@WAYS
def test_what_cannot_be_deleted_stops_nobody(left, lock, plain_user):
    """As what another user has left; the rest is deleted."""
    (left / "1.new").chmod(0o500)

    def enter():
        with lock(str(left), unfinished=r"\d\.new"):
            return unfinished(left)

    assert plain_user(enter) == ["1.new"]
    (left / "1.new").chmod(0o700)


def test_what_is_left_in_a_remote_folder_is_passed_over():
    with folder_lock.hold("gs://bucket/run", unfinished=".*") as is_locked:
        assert not is_locked
