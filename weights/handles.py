"""Models that are named by where they are published: TF-Hub's and Kaggle's.

    https://tfhub.dev/google/bert_uncased_L-12_H-768_A-12/1
    tensorflow/bert/tensorFlow2/en-uncased-l-12-h-768-a-12/3

What the libraries of both have in their caches is found there without them.
Else they fetch it, where they are installed.
"""

import hashlib
import importlib
import os
import re
import tempfile
from types import ModuleType
from typing import Callable, Optional

from errors import UserError, first_line
from storage import files

# What Kaggle has of Keras.
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


def resolve(path: str) -> str:
    """The local folder of what a handle names; any other path as it is.

    A path that is there, as a file or as a checkpoint's prefix, is no handle.

    Raises:
        UserError: the model is in no cache and cannot be fetched, or the
            address is none of TF-Hub's or Kaggle's.
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
    hub = _library("tensorflow_hub")
    return _fetch(
        hub and hub.resolve,
        handle,
        "tensorflow-hub",
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
    hub = _library("kagglehub")
    return _fetch(
        hub and hub.model_download,
        handle,
        "kagglehub",
        f"download it from {KAGGLE}{handle} and pass the .tar.gz file or its "
        "folder as --init_checkpoint",
    )


def _library(name: str) -> Optional[ModuleType]:
    """A library, or None if it cannot be imported here."""
    try:
        return importlib.import_module(name)
    # As tensorflow_hub beside a TensorFlow after 2.15.
    except ImportError:
        return None


def _fetch(
    fetch: Optional[Callable[[str], str]],
    handle: str,
    package: str,
    advice: str,
) -> str:
    """What a library's function makes of a handle: a folder.

    Raises:
        UserError: there is no library, or it fails.
    """
    if fetch is None:
        reason = f"{package}, which would fetch it, cannot be imported here"
    else:
        try:
            return fetch(handle)
        # Whatever there may be of networks, rights and archives.
        except Exception as error:
            reason = f"{package} cannot fetch it: {first_line(error)}"
    raise UserError(
        f"--init_checkpoint {handle} is not on this machine, and {reason}; "
        f"{advice}"
    )
