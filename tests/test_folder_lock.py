"""Two runs do not write into one folder."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest
from conftest import ROOT

import folder_lock
from errors import UserError

HOLDER = """
import sys, time
import folder_lock
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
    with pytest.raises(UserError, match=f"in use by .*{place}"):
        with folder_lock.hold(str(tmp_path)):
            pass


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
    with pytest.raises(UserError, match="in use by another process"):
        classify(**tiny_flags)
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


def test_a_file_system_without_locks_is_warned_of(
    monkeypatch, tmp_path, caplog
):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with folder_lock.hold(str(tmp_path)):
        assert "cannot be locked (No locks available)" in caplog.text


def test_remote_folders_have_no_locks():
    with folder_lock.hold("gs://bucket/run"):
        pass


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "run.lock").mkdir()
    with pytest.raises(UserError, match="cannot write .*run.lock"):
        with folder_lock.hold(str(tmp_path)):
            pass


def test_a_lock_that_is_a_link_is_not_written(tmp_path):
    """Whoever made the folder may have put it there."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run.lock").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="run.lock: it is a link; delete it"):
        with folder_lock.hold(str(tmp_path)):
            pass
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_full_disk_is_left_to_what_follows(tmp_path, monkeypatch):
    """The message of what happens under the lock is the one that is seen."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_lock.os, "write", full)
    with pytest.raises(UserError, match="make room"):
        with folder_lock.hold(str(tmp_path)):
            raise UserError("make room")
    with folder_lock.hold(str(tmp_path)):
        pass
