"""Models that are named by where they are published, and models in archives.

    https://tfhub.dev/google/bert_uncased_L-12_H-768_A-12/1
    tensorflow/bert/tensorFlow2/en-uncased-l-12-h-768-a-12/3

A model in the caches of TF-Hub's and Kaggle's libraries is found without them.
Else the libraries fetch the model, where they are installed.

An archive (Google's `.zip`, Kaggle's and TF-Hub's `.tar.gz`) is unpacked once,
next to it or into the folder that the environment variable `ADAPTER_BERT_CACHE`
names. A digest of the archive in the new folder's name tells archives of one
name apart.
"""

import contextlib
import gzip
import hashlib
import importlib
import os
import pathlib
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Optional

import tensorflow as tf
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.errors import UserError, first_line

CACHE = "ADAPTER_BERT_CACHE"
ENDS = (".zip", ".tar.gz", ".tgz")
# More than all of Google's BERTs together.
MAX_BYTES = 32 * 2**30
MAX_FILES = 1000
# Times an archive's own size, and room for small archives. Weights hardly
# compress; zeros compress to a thousandth.
MAX_GROWTH, ROOM = 100, 2**24
# Compressions of a zip archive's files.
WAYS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Bytes before, between and after a tar archive's files, which `tarfile` reads
# into memory.
MAX_HEADERS = 2**20
# Sum of the squared sizes of tar's extended headers, as of a thousand of 360
# bytes: before 3.11.10, Python takes quadratic time and memory for each.
MAX_SQUARES = 2**27
EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
# Bytes at the end of an archive, with the checksums of its content.
END = 2**16
DAMAGES = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    OSError,
    # For passwords, and for deeply nested folders.
    RuntimeError,
    NotImplementedError,
    ValueError,
    tf.errors.OpError,
)

# Name, size, and a reader of at most that size, for each file of an archive.
Members = Iterator[tuple[str, int, IO[bytes]]]

# Kaggle's handles of Keras models.
PRESET = re.compile(r"[\w-]+/[\w-]+/keras/[\w.-]+(?:/\d+)?/?", re.IGNORECASE)
TF_HUB = "https://tfhub.dev/"
KAGGLE = "https://www.kaggle.com/models/"
# owner/model/framework/variation, and a version
KAGGLE_HANDLE = re.compile(
    rf"(?:{re.escape(KAGGLE)})?"
    r"([\w-]+/[\w-]+/(?:tensorflow1|tensorflow2|transformers)/[\w.-]+)"
    r"(?:/(\d+))?/?",
    re.IGNORECASE,
)


def is_archive(path: str) -> bool:
    """Whether a path names an archive that is there."""
    return (
        path.lower().endswith(ENDS)
        and files.exists(path)
        and not files.is_folder(path)
    )


def unpack(path: str) -> str:
    """The folder of an archive's files, unpacked the first time.

    It is the inner folder if that holds all files. The archive may be `gs://`.
    """
    beside = "" if "://" in path else os.path.dirname(files.absolute(path))
    cache = os.environ.get(CACHE) or beside
    if not cache or "://" in cache:
        raise UserError(
            f"{path} is an archive, which is unpacked to a local disk; set "
            f"{CACHE} to a folder for it, or unpack it yourself"
        )
    name = os.path.basename(path)
    end = next(end for end in ENDS if name.lower().endswith(end))
    stem = name[: len(name) - len(end)]
    folder = os.path.join(cache, f"{stem}-{_digest(path)}")
    if not os.path.isdir(folder):
        logging.info("unpacking %s to %s", path, folder)
        _unpack_to(path, folder)
    # What macOS adds to an archive.
    inner = [name for name in files.names(folder) if name != "__MACOSX"]
    if len(inner) == 1 and os.path.isdir(os.path.join(folder, inner[0])):
        return os.path.join(folder, inner[0])
    return folder


def _digest(path: str) -> str:
    """A short hash of an archive's size and end."""
    files.check_plain(path, "the archive")
    size = files.size(path)
    with _readable(path), tf.io.gfile.GFile(path, "rb") as file:
        file.seek(max(0, size - END))
        content = file.read(END)
    return hashlib.sha256(b"%d %b" % (size, content)).hexdigest()[:12]


def _unpack_to(path: str, folder: str) -> None:
    """Unpacks into a new folder, which appears whole."""
    cache, name = os.path.split(folder)
    with contextlib.suppress(OSError):
        os.makedirs(cache, exist_ok=True)
    if not os.access(cache, os.W_OK):
        raise UserError(
            f"cannot unpack {path} into {cache}; set {CACHE} to a folder that "
            "can be written"
        )
    try:
        unfinished = files.NEW_FOLDER.format(re.escape(name))
        with folder_lock.share(cache, unfinished):
            with files.new_folder(folder) as hidden:
                _write_members(path, hidden)
                if not name.endswith(_digest(path)):
                    raise UserError(
                        f"{path} was replaced while it was unpacked; start the "
                        "same command again"
                    )
    except UserError:
        # Another process may have unpacked it meanwhile.
        if not os.path.isdir(folder):
            raise


def _write_members(path: str, folder: str) -> None:
    """Writes an archive's files into a folder."""
    own = files.size(path)
    most = min(MAX_BYTES, MAX_GROWTH * own + ROOM)
    is_zip = path.lower().endswith(".zip")
    with _readable(path):
        with tf.io.gfile.GFile(path, "rb") as file:
            members = _zip(file) if is_zip else _tar(file)
            size = 0
            # A file that is too large is not begun.
            for number, (name, more, member) in enumerate(members, 1):
                if number > MAX_FILES:
                    raise UserError(
                        f"{path} holds more than {MAX_FILES} files, which is "
                        "no BERT"
                    )
                size += more
                if size > most:
                    raise UserError(
                        f"{path} has {own:,} bytes and holds more than "
                        f"{most:,}, which is no BERT"
                    )
                target = os.path.join(folder, _safe(name, path))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "xb") as out:
                    shutil.copyfileobj(member, out, files.BLOCK)


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Raises UserError instead of the errors for a damaged archive."""
    try:
        yield
    except DAMAGES as error:
        raise UserError(
            f"the archive {path} cannot be unpacked: {first_line(error)}; "
            "fetch it again, or make room"
        ) from error


def _zip(file: IO[bytes]) -> Members:
    """The files of a zip archive; reading one to its end checks its CRC."""
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            mode = info.external_attr >> 16
            if not info.filename:
                raise zipfile.BadZipFile("it has a file without a name")
            if info.is_dir():
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise zipfile.BadZipFile(f"{info.filename} is no plain file")
            if info.compress_type not in WAYS:
                # Headers of other compressions may claim gigabytes of memory.
                raise zipfile.BadZipFile(
                    f"{info.filename} is compressed otherwise than by deflate"
                )
            with archive.open(info) as member:
                yield info.filename, info.file_size, member


class _Limited:
    """A file whose first `left` bytes alone can be read."""

    def __init__(self, file: IO[bytes], left: int):
        self._file, self.left = file, left

    def read(self, size: int) -> bytes:
        """As a file's; raises tarfile.TarError when too much was read."""
        content = self._file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise tarfile.TarError(
                f"it has more than {MAX_HEADERS} bytes besides its files"
            )
        return content


class _Header(tarfile.TarInfo):
    """A header, whose extended headers count to the archive's limit."""

    def _proc_member(self, archive: "_Archive") -> tarfile.TarInfo:
        """Reads on, by the header's type; Python has this to be overridden."""
        if self.type in EXTENDED:
            archive.squares += self.size**2
            if archive.squares > MAX_SQUARES:
                raise tarfile.TarError("its extended headers are too long")
        return super()._proc_member(archive)


class _Archive(tarfile.TarFile):
    tarinfo = _Header
    squares = 0


def _tar(file: IO[bytes]) -> Members:
    """The files of a compressed tar archive; its CRC is checked at the end."""
    with gzip.open(file) as unpacked:
        content = _Limited(unpacked, MAX_HEADERS)
        with _Archive.open(fileobj=content, mode="r|") as archive:
            for info in archive:
                if info.isdir():
                    continue
                # A sparse file has less content than its size.
                if not info.isfile() or info.issparse() or info.size < 0:
                    raise tarfile.TarError(f"{info.name} is no plain file")
                content.left = info.size + MAX_HEADERS
                yield info.name, info.size, archive.extractfile(info)
                content.left = MAX_HEADERS
        # The sum comes last.
        while content.read(files.BLOCK):
            pass


def _safe(name: str, path: str) -> str:
    """The name of an archive's file, checked to lie within the folder."""
    parts = pathlib.PureWindowsPath(name).parts
    if not parts or ".." in parts or pathlib.PureWindowsPath(name).anchor:
        raise UserError(
            f"{path} holds {name}, which would be written outside of its "
            "folder; do not use this archive"
        )
    return os.path.join(*parts)


def resolve(path: str) -> str:
    """The local folder that a handle names; any other path as it is.

    A path of a file or a checkpoint that is there is no handle. Raises
    UserError if the model is in no cache and cannot be fetched, or the address
    is none of TF-Hub's or Kaggle's.
    """
    kaggle = KAGGLE_HANDLE.fullmatch(path)
    if path.startswith(TF_HUB):
        return _tf_hub(path)
    is_there = "://" not in path and (
        files.exists(path) or files.exists(path + ".index")
    )
    if kaggle and not is_there:
        return _kaggle(kaggle.group(1), kaggle.group(2))
    if PRESET.fullmatch(path.removeprefix(KAGGLE)) and not is_there:
        raise UserError(
            f"--init_checkpoint {path} is a preset of Keras, which is not read "
            "here; take the model's variation of TensorFlow 2"
        )
    if path.startswith(("http://", "https://")):
        raise UserError(
            f"--init_checkpoint {path} is no handle of TF-Hub ({TF_HUB}...) or "
            "Kaggle; download it, and pass the file or folder "
            "(scripts/download_bert.sh fetches Google's BERTs)"
        )
    return path


def _tf_hub(handle: str) -> str:
    """The folder of one of TF-Hub's, as tensorflow_hub would cache it."""
    cache = os.environ.get("TFHUB_CACHE_DIR") or os.path.join(
        tempfile.gettempdir(), "tfhub_modules"
    )
    digest = hashlib.sha1(handle.encode(), usedforsecurity=False).hexdigest()
    folder = os.path.join(cache, digest)
    if files.is_folder(folder):
        return folder
    return _fetch(
        "tensorflow-hub",
        "resolve",
        handle,
        f"download it from {handle}?tf-hub-format=compressed and pass the "
        f".tar.gz file as --init_checkpoint, or unpack it into {folder}",
    )


def _kaggle(model: str, version: Optional[str]) -> str:
    """The folder of one of Kaggle's, as kagglehub would cache it."""
    root = os.environ.get("KAGGLEHUB_CACHE") or os.path.join(
        os.path.expanduser("~"), ".cache", "kagglehub"
    )
    handle = f"{model}/{version}" if version else model
    folder = os.path.join(root, "models", *handle.split("/"))
    # Without a version kagglehub asks which is the newest.
    if version and files.exists(f"{folder}.complete"):
        return folder
    return _fetch(
        "kagglehub",
        "model_download",
        handle,
        f"download it from {KAGGLE}{handle} and pass the .tar.gz file or its "
        "folder as --init_checkpoint",
    )


def _fetch(package: str, function: str, handle: str, advice: str) -> str:
    """The folder that a library's function fetches; raises as `resolve`."""
    try:
        library = importlib.import_module(package.replace("-", "_"))
    # tensorflow_hub fails with a TensorFlow after 2.15.
    except ImportError:
        reason = f"{package}, which would fetch it, cannot be imported here"
    else:
        try:
            return getattr(library, function)(handle)
        # Any error of networks, rights and archives.
        except Exception as error:
            reason = f"{package} cannot fetch it: {first_line(error)}"
    raise UserError(
        f"--init_checkpoint {handle} is not on this machine, and {reason}; "
        f"{advice}"
    )
