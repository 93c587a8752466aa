"""Reading and writing whole files, on local disks and `gs://` alike.

Every write goes to a temporary name first and is then renamed, so that a
reader never sees half a file and a killed program loses nothing old.

A file that is renamed is on the disk before, and not only handed to the system:
else a loss of power would leave an empty file, and of two files the older one
alone. Remote files (`gs://`) appear when they are whole.
"""

import codecs
import contextlib
import errno
import fnmatch
import functools
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import uuid
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    TypeVar,
)

import tensorflow as tf

from adapter_bert import folder_lock, json_lines
from adapter_bert.errors import UserError, first_line

# What is answered of a folder that cannot be synced: by file systems of some
# networks, and where it may be written but not read.
NO_SYNC = (
    errno.EACCES,
    errno.EBADF,
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
)
# Bytes that are read at once.
BLOCK = 2**20
# What a system answers of a path where nothing is.
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
# Expression for the names that folders have until they are whole, made of one
# for the names that they get then.
NEW_FOLDER = r"\.(?:{})\.tmp-[0-9a-f]{{32}}"
# Of a JSON object that was written with it: the SHA-256 of all else in it.
SEAL = "content_sha256"

Found = TypeVar("Found")
Read = TypeVar("Read")


def sync(path: str) -> None:
    """Waits until a file's content, or a folder's names, are on the disk.

    Raises:
        OSError: the disk has not taken it.
    """
    if "://" in path:
        return
    try:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def sync_all(folder: str) -> None:
    """Syncs a local folder with all that is in it; raises as `sync`."""
    for path, _, names in os.walk(folder):
        for name in (*names, ""):
            sync(os.path.join(path, name))


def replace(written: str, path: str) -> None:
    """Gives a file that is written its name.

    It is on the disk before it has the name, and has the name there when this
    returns.

    Args:
        written: the file.
        path: its name, on the same disk; a file that has it is replaced.

    Raises:
        tf.errors.OpError, OSError: it cannot be renamed or synced.
        UserError: its folder is gone that this process holds.
    """
    folder_lock.check(path)
    sync(written)
    tf.io.gfile.rename(written, path, overwrite=True)
    sync(os.path.dirname(path) or ".")


def make_folder(path: str) -> None:
    """Makes a folder, and those above it that are missing.

    Raises:
        tf.errors.OpError, OSError: it cannot be made.
    """
    if "://" in path:
        tf.io.gfile.makedirs(path)
        return
    changed = []
    above = os.path.abspath(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
        changed.append(above)
    os.makedirs(path, exist_ok=True)
    for folder in changed:
        sync(folder)


def absolute(path: str) -> str:
    """The path from the root, so that it holds from another folder."""
    return path if "://" in path else os.path.abspath(path)


def is_same(path: str, other: str) -> bool:
    """Whether two paths of files that are there lead to the same one."""
    if "://" in path + other:
        return path == other
    return os.path.samefile(path, other)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Makes one line of what the system or TensorFlow says of a path."""
    try:
        yield
    except tf.errors.OpError as error:
        raise UserError(f"cannot read {path}: {error.message}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def exists(path: str) -> bool:
    """Whether a file or folder is there.

    Raises:
        UserError: the path's kind (as `s3://`) cannot be read at all, or a
            folder above it may not be looked into.
    """
    with _reading(path):
        try:
            found = tf.io.gfile.exists(path)
            if not found and "://" not in path:
                # What cannot be seen, by its rights or by a network that is
                # down, may be there all the same.
                os.stat(path)
            return found
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
        except ValueError:
            # It cannot be a path at all.
            pass
        return False


def is_folder(path: str) -> bool:
    """Whether a folder is there; raises as `exists`."""
    return exists(path) and tf.io.gfile.isdir(path)


def names(path: str) -> List[str]:
    """The names of all that is in a local folder, in order.

    Raises:
        UserError: it is not there, or cannot be read.
    """
    with _reading(path):
        return sorted(os.listdir(path))


def listed(path: str) -> List[str]:
    """The names of all that is in a folder, local or `gs://`.

    Raises:
        UserError: it is not there, or cannot be read.
    """
    with _reading(path):
        return tf.io.gfile.listdir(path)


def folders(path: str) -> List[str]:
    """The names of the folders in a folder, in order.

    Raises:
        UserError: it is not there, or cannot be read.
    """
    if not is_folder(path):
        raise UserError(f"there is no folder {path}")
    # Of a bucket, names of folders end with a slash.
    names = [name.rstrip("/") for name in listed(path)]
    return sorted(n for n in names if is_folder(os.path.join(path, n)))


def size(path: str) -> int:
    """Bytes of a file.

    Raises:
        UserError: it is missing, or cannot be read.
    """
    with _reading(path):
        return tf.io.gfile.stat(path).length


def check_plain(path: str, what: str, is_replaced: bool = False) -> None:
    """Checks that a path leads to no pipe or device, if it is local.

    To open a pipe is to wait for whoever writes into it, and TensorFlow cannot
    read it then. A device may have no end.

    Args:
        path: where nothing may be.
        what: what the file is, for the error's text.
        is_replaced: by another file, which /dev/stdout may not be either.

    Raises:
        UserError: it leads to one.
    """
    if "://" in path:
        return
    with contextlib.suppress(OSError, ValueError):
        mode = os.stat(path).st_mode
        link = os.readlink(path) if os.path.islink(path) else ""
        is_plain = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        if not is_plain or (is_replaced and link.startswith("/proc/")):
            raise UserError(
                f"{what} {path} is a pipe or a device, expected a file"
            )


def read_bytes(path: str, what: str) -> bytes:
    """The content of a file.

    Args:
        path: local or `gs://`.
        what: what the file is, for the error's text.

    Raises:
        UserError: the file is missing, is a folder, a pipe or a device, or
            cannot be read.
    """
    # TensorFlow alone would ask what size the file of this name has by now.
    return b"".join(blocks(path, what))


def blocks(path: str, what: str) -> Iterator[bytes]:
    """The content of a file part by part, as `read_bytes`."""
    with _opened(path, what) as file:
        yield from iter(functools.partial(file.read, BLOCK), b"")


@contextlib.contextmanager
def _opened(path: str, what: str) -> Iterator[Any]:
    """A file to read bytes from, whose errors are those of `read_bytes`."""
    if is_folder(path):
        raise UserError(f"{what} {path} is a folder, expected a file")
    check_plain(path, what)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            yield file
    except tf.errors.NotFoundError as error:
        raise UserError(f"{what} {path} does not exist") from error
    except tf.errors.OpError as error:
        why = error.message
        raise UserError(f"cannot read {what} {path}: {why}") from error


def read_text(path: str, what: str) -> str:
    """The content of a UTF-8 file, a leading byte-order mark dropped.

    Raises:
        UserError: as `read_bytes`, or the bytes are not UTF-8.
    """
    content = read_bytes(path, what).removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: not UTF-8 text (byte "
            f"0x{content[error.start]:02x}); convert the file to UTF-8"
        ) from error


class _Reader(io.RawIOBase):
    """What a file of TensorFlow's lacks for `io` to read from it."""

    def __init__(self, file: tf.io.gfile.GFile):
        self._file = file

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills a part of the buffer, and tells how much."""
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def read_lines(path: str, what: str, newline: str) -> Iterator[str]:
    """The lines of a UTF-8 file one by one, each with its line break.

    The file is never in memory as a whole.

    Args:
        path: local or `gs://`.
        what: what the file is, for the error's text.
        newline: what ends a line, as for `open`: "" for any line break.

    Raises:
        UserError: as `read_text` or `json_lines.plain_lines`, or the file is
            another one by now; earlier lines may have been yielded.
    """
    with _opened(path, what) as file:
        text = io.TextIOWrapper(
            io.BufferedReader(_Reader(file), BLOCK),
            encoding="utf-8-sig",
            newline=newline,
        )
        try:
            yield from json_lines.plain_lines(text, path)
        except UnicodeDecodeError as error:
            # It knows the line.
            read_text(path, what)
            raise UserError(
                f"{what} {path} has changed while it was read; start the same "
                "command again"
            ) from error


def read_json(path: str, what: str) -> Any:
    """The value that a JSON file holds.

    Raises:
        UserError: as `read_text`, or the text is not JSON.
    """
    try:
        return json.loads(read_text(path, what))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} {path} is not JSON: {error}") from error


def read_object(
    path: str, what: str, keys: Mapping[str, type]
) -> Dict[str, Any]:
    """The object that a JSON file holds, its parts checked to be of a type.

    If it was written with a seal, that is checked too, and left out.

    Args:
        path: of the file.
        what: what the file is, for the error's text.
        keys: dotted key -> type of what is there. The last part of a key may
            end with `?`: it may be missing, or null, and all below it. It may
            hold `*`: all keys of this form. A whole number is a float, too.

    Raises:
        UserError: as `read_json`, or a part is missing or of another type, or
            the seal is of another content, or it could not be written again.
    """
    value = read_json(path, what)
    json_lines.check_writable(value, path, what)

    def check(part: Any, key: str, kind: type) -> None:
        right = (int, float) if kind is float else kind
        # For Python, true and false are whole numbers as well.
        if isinstance(part, right) and (
            kind is bool or not isinstance(part, bool)
        ):
            if kind is float and abs(part) > sys.float_info.max:
                raise UserError(
                    f"{path} is not {what}: its {key} is too large a number"
                )
            return
        raise UserError(
            f"{path} is not {what}: it has no {key} of type {kind.__name__}"
        )

    check(value, "content", dict)
    for key, kind in keys.items():
        *parents, last = key.split(".")
        part = value
        for name in parents:
            part = (part or {}).get(name.rstrip("?"))
        if part is None:
            continue
        if "*" in last:
            for name in fnmatch.filter(part, last):
                check(part[name], name, kind)
        elif part.get(last.rstrip("?")) is not None or not last.endswith("?"):
            check(part.get(last.rstrip("?")), key.replace("?", ""), kind)
    seal = value.pop(SEAL, None)
    if seal not in (None, _seal(value)):
        raise UserError(
            f"{path} is damaged, or was changed by hand: its {SEAL} is of "
            "other content; copy the file again, or delete that line to take "
            "it as it is"
        )
    return value


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Makes one line of what comes of a full disk, and others like it.

    Args:
        what: what is written, for the error's text.

    Raises:
        UserError: the system or TensorFlow has raised an error.
    """
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"cannot write {what}: {why}") from error


def write_bytes(path: str, content: bytes) -> None:
    """Writes a whole file, as `write_parts`."""
    write_parts(path, (content,))


def write_parts(path: str, parts: Iterable[bytes]) -> None:
    """Writes a whole file part by part, replacing an old one at once.

    Raises:
        UserError: the disk is full, the place cannot be written, or is not
            the folder any more that this process holds.
    """
    folder_lock.check(path)
    check_plain(path, "the output", is_replaced=True)
    # Several machines may write here, with equal process numbers.
    temporary = f"{path}.tmp-{uuid.uuid4().hex}"
    try:
        with writing(path):
            with tf.io.gfile.GFile(temporary, "wb") as file:
                # Without any part, too, there is a file.
                file.write(b"")
                for part in parts:
                    file.write(part)
            replace(temporary, path)
    finally:
        # The folder may be gone, or may not be written any more.
        with contextlib.suppress(tf.errors.OpError):
            if tf.io.gfile.exists(temporary):
                tf.io.gfile.remove(temporary)


def write_text(path: str, text: str) -> None:
    """Writes a whole UTF-8 file, as `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str, value: Any) -> None:
    """Writes a value as indented JSON, as `write_bytes`.

    Raises:
        UserError: as `write_bytes`.
        ValueError: as `json_text`.
    """
    write_text(path, json_text(value))


def write_sealed(path: str, value: Mapping[str, Any]) -> None:
    """Writes a JSON object with a seal, by which `read_object` knows it.

    Raises:
        UserError: as `write_bytes`.
        ValueError: as `json_text`.
    """
    rest = {key: part for key, part in value.items() if key != SEAL}
    # As it will be read: with texts as keys, and lists for tuples.
    rest = json.loads(json_text(rest))
    write_json(path, {**rest, SEAL: _seal(rest)})


def _seal(value: Mapping[str, Any]) -> str:
    """The SHA-256 of an object, however its file is laid out."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def json_text(value: Any) -> str:
    """A value as indented JSON.

    Raises:
        ValueError: a number is infinite or none, which JSON does not have.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return text + "\n"


def prepare_folder(path: str) -> None:
    """Makes a folder, local or `gs://`, and checks that it can be written.

    Raises:
        UserError: it cannot be made or written.
    """
    folder_lock.check(path)
    try:
        make_folder(path)
    except (tf.errors.OpError, OSError) as error:
        raise UserError(
            f"cannot make the output folder {path}: {first_line(error)}"
        ) from error
    probe = os.path.join(path, f"write-test-{uuid.uuid4().hex}")
    write_bytes(probe, b"")
    try:
        tf.io.gfile.remove(probe)
    except tf.errors.OpError as error:
        raise UserError(
            f"cannot delete {probe}: {error.message}; expected a folder in "
            "which files may be replaced"
        ) from error


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """An empty local folder, deleted at the end.

    Raises:
        UserError: no place for it can be written.
    """
    try:
        folder = tempfile.mkdtemp()
    except OSError as error:
        raise UserError(
            f"cannot make a temporary folder: {error.strerror}; make room, or "
            "set TMPDIR to a folder that can be written"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
    """A hidden folder beside `path`, which becomes that when all is written.

    A killed process leaves it there: see `NEW_FOLDER`.

    Args:
        path: of a local folder that is not there yet, or is empty.

    Raises:
        UserError: it is there with content, or cannot be written; or the folder
            around it is gone that this process holds.
    """
    parent, name = os.path.split(os.path.abspath(path))
    hidden = os.path.join(parent, f".{name}.tmp-{uuid.uuid4().hex}")
    if os.path.lexists(path) and not (
        os.path.isdir(path) and not os.listdir(path)
    ):
        raise UserError(f"{path} is there already; choose another folder")
    try:
        with writing(path):
            make_folder(hidden)
            yield hidden
            sync_all(hidden)
            # TensorFlow makes a folder anew that is gone.
            folder_lock.check(path)
            # What has come into the folder meanwhile is not written over.
            os.rename(hidden, path)
            sync(parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def check_disk_space(
    path: str, needed: int, flag: str = "--output_dir"
) -> None:
    """Checks that a folder's disk has room.

    Args:
        path: the folder; of one that is not local nothing is known.
        needed: bytes to be written at most.
        flag: that names the folder.

    Raises:
        UserError: there is less, or the folder is gone.
    """
    if "://" in path:
        return
    # Results and logs beside.
    needed += 2**20
    with _reading(path):
        free = shutil.disk_usage(path).free
    if free < needed:
        raise UserError(
            f"the disk of {path} has {free / 1e6:,.0f} MB free, but the run "
            f"writes up to {needed / 1e6:,.0f} MB; make room or choose another "
            f"{flag}"
        )


def read_newest(
    find: Callable[[], Found], read: Callable[[Found], Read]
) -> Read:
    """Reads what is found, and looks again if that has gone meanwhile.

    Args:
        find: tells which is the newest, as a value that can be compared.
        read: reads it.

    Raises:
        UserError: as `find`, or as `read` of what is still the newest.
    """
    found = find()
    while True:
        try:
            return read(found)
        except UserError:
            newer = find()
            if newer == found:
                raise
            found = newer
