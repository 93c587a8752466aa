"""What a reader sees of files that another process writes or deletes."""

import pytest
import tensorflow as tf

from errors import UserError
from storage import files


def once_after(monkeypatch, owner, name, act):
    """Has another process act once, right after a function's first call."""
    inner, left = getattr(owner, name), [act]

    def acted_upon(*arguments, **more):
        try:
            return inner(*arguments, **more)
        finally:
            if left:
                left.pop()()

    monkeypatch.setattr(owner, name, acted_upon)


def test_a_file_that_is_replaced_is_read_as_it_was(tmp_path, monkeypatch):
    path = str(tmp_path / "file.json")
    old, new = b"[" + b"0, " * 10**6 + b"0]", b"[1]"
    files.write_bytes(path, old)
    # TensorFlow has opened it, and reads nothing yet.
    once_after(
        monkeypatch,
        tf.io.gfile.GFile,
        "_preread_check",
        lambda: files.write_bytes(path, new),
    )
    assert files.read_bytes(path, "the file") == old
    assert files.read_bytes(path, "the file") == new


def test_lines_that_are_mended_meanwhile_are_refused_in_one_line(
    tmp_path, monkeypatch
):
    path = str(tmp_path / "rows.txt")
    whole = "one\nzwölf\n".encode()
    # The other process has written only half a letter so far.
    files.write_bytes(path, whole[: whole.index("ö".encode()) + 1])
    once_after(
        monkeypatch,
        files._Reader,
        "readinto",
        lambda: files.write_bytes(path, whole),
    )
    with pytest.raises(UserError, match="rows.txt has changed while it was"):
        list(files.read_lines(path, "the rows", ""))
    assert list(files.read_lines(path, "the rows", "")) == ["one\n", "zwölf\n"]
