"""Reading and writing whole files, on local disks and `gs://` alike.

A file is written under a temporary name, synced (fsync) and renamed: a reader
never sees half a file, and neither a killed program nor a loss of power loses
the old one. Remote files (`gs://`) appear when they are whole.
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
import re
import shutil
import stat
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import tensorflow as tf

from adapter_bert import folder_lock, json_lines
from adapter_bert.errors import UserError, first_line

# Errors of an fsync that some network file systems, and folders that may be
# written but not read, do not support.
NO_SYNC = (
    errno.EACCES,
    errno.EBADF,
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
)
# In a name, what stands for a byte that is no UTF-8.
SURROGATE = re.compile("[\ud800-\udfff]")
# Bytes of one read.
BLOCK = 2**20
# Errors of a path where nothing is.
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
# A name that this program's users give to folders. A disk's own names, as
# `lost+found` and `@eaDir`, are none.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Expression for the temporary names of folders; `{}` is one for their names.
NEW_FOLDER = r"\.(?:{})\.tmp-[0-9a-f]{{32}}"
# Key of a JSON object's seal: the SHA-256 of everything else in it.
SEAL = "content_sha256"


def sync(path: str) -> None:
    """Syncs a file's content, or a folder's names; may raise `OSError`."""
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
    """Syncs a local folder and everything in it; raises as `sync`."""
    for path, _, names in os.walk(folder):
        for name in (*names, ""):
            sync(os.path.join(path, name))


def replace(written: str, path: str) -> None:
    """Syncs a file, renames it to `path` on the same disk, and syncs that.

    Raises:
        tf.errors.OpError, OSError: it cannot be renamed or synced.
    """
    folder_lock.check(path)
    sync(written)
    tf.io.gfile.rename(written, path, overwrite=True)
    sync(os.path.dirname(path) or ".")


def make_folder(path: str) -> None:
    """Makes a folder and its missing parents, and syncs their names.

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
    """Returns the absolute path; a remote path is one already."""
    return path if "://" in path else os.path.abspath(path)


def is_same(path: str, other: str) -> bool:
    """Tells whether two paths lead to one file; local ones must exist."""
    if "://" in path + other:
        return path == other
    return os.path.samefile(path, other)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        raise UserError(f"cannot read {path}: {error.message}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def exists(path: str) -> bool:
    """Tells whether a file or folder exists."""
    with _reading(path):
        try:
            is_there = tf.io.gfile.exists(path)
            if not is_there and "://" not in path:
                # What cannot be seen, for want of rights or of a network, may
                # exist.
                os.stat(path)
            return is_there
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
        except ValueError:
            # No path, as with a null byte.
            pass
        return False


def is_folder(path: str) -> bool:
    """Tells whether a folder exists; raises as `exists`."""
    return exists(path) and tf.io.gfile.isdir(path)


def names(path: str) -> list[str]:
    """Returns the sorted names in a local folder; raises as `listed`."""
    with _reading(path):
        return sorted(os.listdir(path))


def plain_names(path: str) -> list[str]:
    """Lists names as `names` does, but only those that match `NAME`."""
    return list(filter(NAME.fullmatch, names(path)))


def listed(path: str) -> list[str]:
    """Returns the names in a folder, local or `gs://`, that are UTF-8."""
    with _reading(path):
        if "://" in path:
            return tf.io.gfile.listdir(path)
    return [name for name in names(path) if not SURROGATE.search(name)]


def matching(patterns: str, flag: str) -> list[str]:
    """Finds the files of patterns, with commas between, each pattern's sorted.

    `flag` gives the patterns.
    """
    if not patterns:
        raise UserError(f"{flag} is missing")
    files: list[str] = []
    for pattern in patterns.split(","):
        with _reading(pattern):
            paths = sorted(tf.io.gfile.glob(pattern))
        if not os.path.basename(pattern).startswith("."):
            # As in a shell.
            names = map(os.path.basename, paths)
            paths = [p for p, n in zip(paths, names) if n[:1] != "."]
        if not paths:
            raise UserError(f"{flag}: no file is called {pattern!r}")
        files += paths
    return files


def folders(path: str) -> list[str]:
    """Gets the sorted names of the folders in a folder; raises as `listed`."""
    if not is_folder(path):
        raise UserError(f"there is no folder {path}")
    # In a bucket, names of folders end with a slash.
    names = [name.rstrip("/") for name in listed(path)]
    return sorted(n for n in names if is_folder(os.path.join(path, n)))


def size(path: str) -> int:
    """Counts the bytes of a file."""
    with _reading(path):
        return tf.io.gfile.stat(path).length


def check_plain(path: str, what: str, is_replaced: bool = False) -> None:
    """Refuses a local pipe, which would block, or device, which may not end.

    Args:
        path: where nothing need be.
        what: the kind of file, for the message.
        is_replaced: whether a file is to take its place; then /dev/stdout is
            refused too.
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


def check_input(path: str, flag: str) -> None:
    """Checks a file that a flag names, without reading it."""
    if not exists(path):
        raise UserError(f"{flag} is {path}, which does not exist")
    if is_folder(path):
        raise UserError(f"{flag} is {path}, a folder; expected a file")


def check_output(
    path: str, flag: str, source: str = "", source_flag: str = ""
) -> None:
    """Checks that a file can be written where a flag says.

    `source` is a file that is read, by the flag `source_flag`, and may not be
    replaced.
    """
    if is_folder(path):
        raise UserError(f"{flag} is {path}, a folder; expected a file")
    check_plain(path, flag, is_replaced=True)
    folder = os.path.dirname(absolute(path))
    # A bucket has no folder before its first file.
    if "://" not in path and not is_folder(folder):
        raise UserError(f"the folder {folder} of {flag} does not exist")
    if source and exists(path) and is_same(source, path):
        raise UserError(
            f"{source_flag} and {flag} are both {source}, which would be "
            f"replaced; name another {flag}"
        )


def read_bytes(path: str, what: str) -> bytes:
    """Returns the content of a file.

    Args:
        path: local or `gs://`.
        what: the kind of file, for messages.
    """
    return b"".join(blocks(path, what))


def blocks(path: str, what: str) -> Iterator[bytes]:
    """Returns the content of a file in blocks; else as `read_bytes`."""
    with _opened(path, what) as file:
        yield from iter(functools.partial(file.read, BLOCK), b"")


@contextlib.contextmanager
def _opened(path: str, what: str) -> Iterator[BinaryIO]:
    """Opens a file, a remote one as a local copy; raises as `read_bytes`."""
    if is_folder(path):
        raise UserError(f"{what} {path} is a folder, expected a file")
    check_plain(path, what)
    missing = f"{what} {path} does not exist"
    if not exists(path):
        raise UserError(missing)
    try:
        with contextlib.ExitStack() as until_end:
            local = path
            if "://" in path:
                folder = until_end.enter_context(temporary_folder())
                local = os.path.join(folder, "copy")
                tf.io.gfile.copy(path, local)
            yield until_end.enter_context(open(local, "rb"))
    except (tf.errors.NotFoundError, FileNotFoundError) as error:
        raise UserError(missing) from error
    except (tf.errors.OpError, OSError) as error:
        why = getattr(error, "message", "") or error.strerror
        raise UserError(f"cannot read {what} {path}: {why}") from error


def read_text(path: str, what: str) -> str:
    """Returns the content of a UTF-8 file without a byte-order mark."""
    content = read_bytes(path, what).removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        is_wide = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        raise UserError(
            f"{path}:{line}: not UTF-8 text (byte "
            f"0x{content[error.start]:02x}), but "
            f"{'UTF-16' if is_wide else 'Windows-1252 or the like'}; "
            'convert the file to UTF-8 (Excel: save it as "CSV UTF-8")'
        ) from error


def read_optional(
    path: str, what: str, keys: Mapping[str, Any]
) -> dict[str, Any]:
    """Reads a JSON object as `read_object`; {} if there is no file."""
    return read_object(path, what, keys) if exists(path) else {}


def head(path: str, what: str) -> bytes:
    """Returns the first bytes of a file; raises as `read_bytes`."""
    return next(blocks(path, what), b"")[: 2**16]


def read_lines(
    path: str, what: str, newline: str, encoding: str = "utf-8-sig"
) -> Iterator[str]:
    """Streams the lines of a text file, each with its line break.

    Args:
        path: local or `gs://`.
        what: the kind of file, for messages.
        newline: the line break, as for `open`: "" for any.
        encoding: UTF-8, with or without a byte-order mark, or UTF-16.
    """
    with _opened(path, what) as file:
        text = io.TextIOWrapper(file, encoding=encoding, newline=newline)
        try:
            yield from json_lines.plain_lines(text, path)
        except UnicodeDecodeError:
            # Raises with the number of the line.
            read_text(path, what)
            raise


def read_json(path: str, what: str) -> Any:
    """Reads a JSON file; raises as `read_text`, or if it is no JSON."""
    try:
        return json.loads(read_text(path, what))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} {path} is not JSON: {error}") from error


def read_object(
    path: str, what: str, keys: Mapping[str, type]
) -> dict[str, Any]:
    """Returns the object of a JSON file, with its types checked.

    A seal is checked too, and left out.

    Args:
        path: of the file.
        what: the kind of file, for messages.
        keys: dotted key -> type. A part that ends with `?` may be missing or
            null, with everything below it; one with `*` means all keys that
            match, `[]` all elements of a list. An int is a float, too.
    """
    value = read_json(path, what)
    json_lines.check_writable(value, path, what)

    def check(part: Any, names: Sequence[str], key: str, kind: type) -> None:
        if names:
            name, *below = names
            plain = name.rstrip("?")
            if name == "[]":
                for element in part:
                    check(element, below, key, kind)
            elif "*" in name:
                for member in fnmatch.filter(part, name):
                    check(part[member], below, member, kind)
            elif part.get(plain) is not None or not (below or plain != name):
                check(part.get(plain), below, key, kind)
            return
        right = (int, float) if kind is float else kind
        # For Python, true and false are whole numbers as well.
        if not isinstance(part, right) or (
            isinstance(part, bool) and kind is not bool
        ):
            raise UserError(
                f"{path} is not {what}: it has no {key} of type {kind.__name__}"
            )
        if kind is float and abs(part) > sys.float_info.max:
            raise UserError(
                f"{path} is not {what}: its {key} is too large a number"
            )

    check(value, (), "content", dict)
    for key, kind in keys.items():
        check(value, key.split("."), key.replace("?", ""), kind)
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
    """Turns errors of a write, as on a full disk, into a `UserError`.

    `what` is written, for the message.
    """
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"cannot write {what}: {why}") from error


def write_bytes(path: str, content: bytes) -> None:
    """Writes a whole file, as `write_parts`."""
    write_parts(path, (content,))


def temporary_name(path: str) -> str:
    """Makes a hidden name next to a path; no pattern of the path matches it."""
    parent, name = os.path.split(path)
    # Processes of several machines may have the same number.
    return os.path.join(parent, f".{name}.tmp-{uuid.uuid4().hex}")


def write_parts(path: str, parts: Iterable[bytes]) -> None:
    """Writes a file in parts, and replaces an old one when it is whole."""
    folder_lock.check(path)
    check_plain(path, "the output", is_replaced=True)
    temporary = temporary_name(path)
    try:
        with writing(path):
            with tf.io.gfile.GFile(temporary, "wb") as file:
                # Makes the file even if there are no parts.
                file.write(b"")
                for part in parts:
                    file.write(part)
            replace(temporary, path)
    finally:
        # The folder may be gone, or read-only by now.
        with contextlib.suppress(tf.errors.OpError):
            if tf.io.gfile.exists(temporary):
                tf.io.gfile.remove(temporary)


def remove(path: str) -> None:
    """Deletes a file, which may be gone already."""
    with writing(path), contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(path)


def write_text(path: str, text: str) -> None:
    """Writes a whole UTF-8 file, as `write_parts`."""
    write_parts(path, (text.encode("utf-8"),))


def write_json(path: str, value: Any) -> None:
    """Writes a value as indented JSON; raises as `write_parts`, `json_text`."""
    write_text(path, json_text(value))


def write_sealed(path: str, value: Mapping[str, Any]) -> None:
    """Writes a JSON object with a seal, which `read_object` checks.

    Raises as `write_json`.
    """
    rest = {key: part for key, part in value.items() if key != SEAL}
    # As JSON gives it back: keys are strings, tuples are lists.
    rest = json.loads(json_text(rest))
    # First, so that whoever deletes its line leaves no comma before a brace.
    write_json(path, {SEAL: _seal(rest), **rest})


def _seal(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def json_text(value: Any) -> str:
    """Gives a value as indented JSON; raises `ValueError` for NaN, infinity."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return text + "\n"


def prepare_folder(path: str) -> None:
    """Makes a folder, local or `gs://`, and tries to write into it."""
    folder_lock.check(path)
    probe = os.path.join(path, f"write-test-{uuid.uuid4().hex}")
    with writing(f"the output folder {path}"):
        make_folder(path)
        write_bytes(probe, b"")
        tf.io.gfile.remove(probe)


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Makes an empty local folder, which is deleted at the end."""
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


def check_local(folder: str) -> None:
    """Refuses a folder of another machine."""
    if "://" in folder:
        raise UserError(
            f"{folder} is no local folder; write to one, and copy that"
        )


def check_new(path: str) -> None:
    """Refuses a remote folder, and what is there already but an empty one."""
    check_local(path)
    # Neither a link nor a mounted folder can be renamed over.
    is_other = os.path.islink(path) or os.path.ismount(path)
    is_empty = os.path.isdir(path) and not os.listdir(path)
    if is_other or os.path.lexists(path) and not is_empty:
        raise UserError(f"{path} is there already; choose another folder")


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
    """Makes a hidden folder, which is renamed to `path` when the block ends.

    A killed process leaves it behind under a name like `NEW_FOLDER`.

    Args:
        path: a local folder that does not exist, or is empty.
    """
    check_new(path)
    hidden = temporary_name(os.path.abspath(path))
    try:
        with writing(path):
            make_folder(hidden)
            yield hidden
            sync_all(hidden)
            # TensorFlow may have made a deleted folder again.
            folder_lock.check(path)
            # Fails if files have come into the folder meanwhile.
            os.rename(hidden, path)
            sync(os.path.dirname(hidden))
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def check_disk_space(
    path: str, needed: int, flag: str = "--output_dir"
) -> None:
    """Checks that a local folder's disk has room.

    Args:
        path: the folder; a remote one has.
        needed: most bytes that are to be written.
        flag: that names the folder, for the message.
    """
    if "://" in path:
        return
    # For results and logs.
    needed += 2**20
    with _reading(path):
        free = shutil.disk_usage(path).free
    if free < needed:
        raise UserError(
            f"the disk of {path} has {free / 1e6:,.0f} MB free, but the run "
            f"writes up to {needed / 1e6:,.0f} MB; make room or choose another "
            f"{flag}"
        )
