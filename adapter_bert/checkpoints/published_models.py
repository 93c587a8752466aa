"""Models that are named by where they are published, and models in archives.

    https://tfhub.dev/google/bert_uncased_L-12_H-768_A-12/1
    tensorflow/bert/tensorFlow2/en-uncased-l-12-h-768-a-12/3
    minilm

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
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from typing import Optional

import tensorflow as tf
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.checkpoints import packaged_models
from adapter_bert.checkpoints.packaged_models import CACHE
from adapter_bert.errors import UserError, first_line

ENDS = (".zip", ".tar.gz", ".tgz")
# More than all of Google's BERTs together.
MAX_BYTES = 32 * 2**30
# Bytes at the end of an archive, with the checksums of its content.
END = 2**16

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


def unpack(path: str) -> str:
    """Gives the folder of an archive's files, unpacked the first time.

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
    files.check_plain(path, "the archive")
    size = files.size(path)
    with _readable(path), tf.io.gfile.GFile(path, "rb") as file:
        file.seek(max(0, size - END))
        content = file.read(END)
    return hashlib.sha256(b"%d %b" % (size, content)).hexdigest()[:12]


def _unpack_to(path: str, folder: str) -> None:
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
    except UserError:
        # Another process may have unpacked it meanwhile.
        if not os.path.isdir(folder):
            raise


def _write_members(path: str, folder: str) -> None:
    is_zip = path.lower().endswith(".zip")
    if not is_zip and not hasattr(tarfile, "data_filter"):
        raise UserError(
            f"{path} is an archive, but Python {sys.version.split()[0]} cannot "
            "unpack archives safely; update it, or unpack it yourself"
        )
    with _readable(path), tf.io.gfile.GFile(path, "rb") as file:
        if is_zip:
            with zipfile.ZipFile(file) as archive:
                _check_size(m.file_size for m in archive.infolist())
                archive.extractall(folder)
            return
        with gzip.open(file) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                archive.extractall(folder, _members(archive), filter="data")
            # The checksum comes last.
            while stream.read(files.BLOCK):
                pass


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    size = 0
    for member in archive:
        # Links have led out of a folder in spite of the filter.
        if not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name} is no plain file")
        # A file that is too large is not begun.
        size += member.size
        _check_size([size])
        yield member


def _check_size(sizes: Iterable[int]) -> None:
    if sum(sizes) > MAX_BYTES:
        raise ValueError("its files are far larger than any BERT")


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    # Damages and passwords raise errors of many classes.
    except Exception as error:
        raise UserError(
            f"the archive {path} cannot be unpacked: {first_line(error)}; "
            "fetch it again, or make room"
        ) from error


def resolve(path: str) -> str:
    """Finds or fetches the folder of a handle; gives any other path back."""
    if path in packaged_models.MODELS:
        return packaged_models.folder(path)
    kaggle = KAGGLE_HANDLE.fullmatch(path)
    if path.startswith(TF_HUB):
        return _tf_hub(path)
    if kaggle:
        return _kaggle(kaggle.group(1), kaggle.group(2))
    if PRESET.fullmatch(path.removeprefix(KAGGLE)):
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
