"""Repositories of Hugging Face's hub, named `hf:ORG/NAME[/FOLDER][@REVISION]`.

The library `huggingface_hub` fetches and pushes, with its cache and the
environment variables `HF_TOKEN`, `HF_HUB_OFFLINE`, `HF_ENDPOINT` and `HF_HOME`.
It is imported when a repository is named, and fetches nothing before.

The library compares the sizes of files, but no hashes. Its cache names a file's
content by the hash that the hub tells: Git's SHA-1 of a blob, or the SHA-256 of
a large file. Each file is hashed here before it is read.
"""

import contextlib
import dataclasses
import fnmatch
import hashlib
import itertools
import logging as standard_logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from adapter_bert import files
from adapter_bert.checkpoints import sentence_transformers
from adapter_bert.checkpoints.weights import HUB
from adapter_bert.errors import UserError, first_line

FORM = "hf:ORG/NAME[/FOLDER][@REVISION]"
NAME = re.compile(
    r"hf:([\w-][\w.-]*/[\w-][\w.-]*)((?:/[\w-][\w. -]*)*)(?:@([\w-][\w./-]*))?",
    re.ASCII,
)
COMMIT = re.compile(r"[0-9a-f]{40}")
# Descriptions, vocabularies and cards. Patterns also match within folders.
TEXTS = ("*.json", "*.txt", "*.md")
# Those are read into memory as a whole. The largest tokenizers have 35 MB.
LARGEST_TEXT = 200 * 10**6
# Safetensors before PyTorch's files.
MODELS = ("model.safetensors",), ("pytorch_model.bin",)
ADAPTERS = (
    ("*adapter*.safetensors", "*head*.safetensors"),
    ("*adapter*.bin", "*head*.bin"),
)


@dataclasses.dataclass(frozen=True)
class Reference:
    """Names a repository `ORG/NAME`, or a folder in it as `/FOLDER`.

    `revision` is a branch, a tag or a commit; "" for the main branch.
    """

    repository: str
    folder: str
    revision: str

    def at(self, revision: str) -> str:
        return f"{HUB}{self.repository}{self.folder}@{revision}"


def parse(text: str) -> Reference:
    """Reads `hf:ORG/NAME[/FOLDER][@REVISION]`."""
    match = NAME.fullmatch(text)
    if not match:
        raise UserError(
            f"{text[:200]!r} names no repository of the hub; expected {FORM}, "
            "as hf:google-bert/bert-base-uncased"
        )
    return Reference(*(part or "" for part in match.groups()))


def fetch_model(text: str) -> tuple[str, str]:
    """Fetches a BERT; gives its weights' path, and its name with the commit.

    Of sentence-transformers, the folder of the modules. Next to the weights lie
    the descriptions of their folder.
    """
    folder, name = _fetch(text, MODELS)
    first, *_ = modules = [*sentence_transformers.places(folder), ""]
    for (file,) in MODELS:
        path = os.path.join(folder, first, file)
        if files.exists(path):
            return (path if len(modules) == 1 else folder), name
    raise UserError(
        f"{name} holds no {' and no '.join(file for (file,) in MODELS)}; "
        "expected a model of PyTorch in one file"
    )


def fetch_adapter(text: str) -> tuple[str, str]:
    """Fetches adapters; gives their folder, and their name with the commit."""
    return _fetch(text, ADAPTERS)


def _fetch(text: str, weights: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Gives the folder in the cache, and its name with the commit.

    Files that match `TEXTS` are fetched. `weights` are groups of patterns; the
    first group that matches any file is fetched too.
    """
    named = parse(text)
    with _library(named, text) as hub:
        from huggingface_hub import constants

        newest = None
        if not (COMMIT.fullmatch(named.revision) or constants.HF_HUB_OFFLINE):
            # The library takes an earlier commit if the hub does not answer.
            newest = hub.HfApi().model_info(
                named.repository,
                revision=named.revision or None,
                timeout=constants.HF_HUB_ETAG_TIMEOUT,
            )
        revision = named.revision or None
        for group in weights:
            patterns = _within(named.folder, (*TEXTS, *group))
            place = hub.snapshot_download(
                named.repository, revision=revision, allow_patterns=patterns
            )
            revision = os.path.basename(place)
            modules = []
            if weights is MODELS:
                modules = sentence_transformers.places(place + named.folder)
            if modules:
                first, *others = modules
                group = _within(first, group)
                # Dense layers have either file.
                small = [_within(x, y) for x in others if x for y in MODELS]
                patterns = _within(
                    named.folder, (*TEXTS, *group, *itertools.chain(*small))
                )
                hub.snapshot_download(
                    named.repository, revision=revision, allow_patterns=patterns
                )
            if newest is not None and newest.sha != revision:
                raise UserError(
                    f"{text} moved on from commit {newest.sha} while it was "
                    "fetched; start the same command again"
                )
            _check(place, patterns, named.at(revision))
            if _matching(place, _within(named.folder, group)):
                break
    folder = place + named.folder
    if not os.path.isdir(folder):
        raise UserError(
            f"{named.at(revision)} holds no file that is read here; expected "
            f"{', '.join(TEXTS)} and weights"
        )
    logging.info("%s: commit %s", text, revision)
    return folder, named.at(revision)


def _within(folder: str, patterns: Sequence[str]) -> list[str]:
    return [f"{folder}/{pattern}".lstrip("/") for pattern in patterns]


def _matching(place: str, patterns: Sequence[str]) -> list[str]:
    matching = []
    for path, _, names in os.walk(place):
        for name in names:
            file = os.path.relpath(os.path.join(path, name), place)
            if any(fnmatch.fnmatch(file, pattern) for pattern in patterns):
                matching.append(file)
    return sorted(matching)


def _check(place: str, patterns: Sequence[str], name: str) -> None:
    """Compares files with the hashes by which the cache names their content."""
    # A damaged file is deleted.
    for file in _matching(place, patterns):
        path = os.path.join(place, file)
        size = files.size(path)
        is_text = any(fnmatch.fnmatch(file, pattern) for pattern in TEXTS)
        if is_text and size > LARGEST_TEXT:
            raise UserError(
                f"{name}: {file} has {size} bytes, expected at most "
                f"{LARGEST_TEXT}; name a repository or a revision with a "
                "smaller file"
            )
        # The first link alone has this hash: the content of Xet lies behind a
        # second one, under a hash of Xet's own, for all repositories.
        link = os.readlink(path) if os.path.islink(path) else ""
        expected = os.path.basename(link)
        if re.fullmatch(r"[0-9a-f]{64}", expected):
            digest = hashlib.sha256()
        elif COMMIT.fullmatch(expected):
            digest = hashlib.sha1(usedforsecurity=False)
            digest.update(b"blob %d\0" % size)
        else:
            raise UserError(
                f"{path} does not lead to content that is named by its hash; "
                "expected a hub that tells hashes, and a disk with links for "
                "the cache (HF_HOME names another)"
            )
        for block in files.blocks(path, "a file of the hub"):
            digest.update(block)
        if digest.hexdigest() == expected:
            continue
        content = os.path.join(os.path.dirname(path), link)
        for damaged in (os.path.realpath(path), content, path):
            with contextlib.suppress(OSError):
                os.remove(damaged)
        raise UserError(
            f"{name}: {file} is damaged, its hash is "
            f"{digest.hexdigest()[:12]}, expected {expected[:12]}; start the "
            f"same command again, which fetches it again unless {path} could "
            "not be deleted"
        )


def push(folder: str, text: str, public: bool, message: str) -> str:
    """Writes a folder's files into a repository; returns its commit's name.

    A repository that is not there is made, private unless `public`. Other files
    of a repository stay.
    """
    named = parse(text)
    if named.folder or named.revision:
        raise UserError(
            f"{text} names more than a repository; expected hf:ORG/NAME, whose "
            "main branch is written"
        )
    with _library(named, text) as hub:
        if hub.get_token() is None:
            raise UserError(
                f"{text} cannot be written without a token; set HF_TOKEN to "
                "one that may write"
            )
        api = hub.HfApi()
        api.create_repo(named.repository, private=not public, exist_ok=True)
        before = api.model_info(named.repository)
        is_public = not before.private
        if is_public != public:
            kinds = "private", "public"
            raise UserError(
                f"{text} is {kinds[is_public]}, but {kinds[public]} was asked; "
                f"{'leave out' if public else 'pass'} --public, or name "
                "another repository"
            )
        there = {file.rfilename for file in before.siblings or ()}
        for file in sorted(there & set(files.names(folder))):
            # The card may have been written by a person.
            if file.endswith(".md"):
                logging.warning(
                    "%s: replaces %s of commit %s, where the old one stays",
                    text,
                    file,
                    before.sha,
                )
        done = api.upload_folder(
            repo_id=named.repository,
            folder_path=folder,
            commit_message=message,
        )
    return named.at(done.oid)


@contextlib.contextmanager
def _library(named: Reference, text: str) -> Iterator[Any]:
    try:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise UserError(
            f"{text} needs huggingface_hub, which cannot be imported here: "
            f"{first_line(error)}; run `make setup`, or install it"
        ) from error
    if not sys.stderr.isatty():
        disable_progress_bars()
    # They log every request.
    for client in ("httpx", "httpx2"):
        standard_logging.getLogger(client).setLevel(standard_logging.WARNING)
    try:
        yield huggingface_hub
    except UserError:
        raise
    # Any error of networks, rights and disks.
    except Exception as error:
        raise UserError(f"{text}: {_reason(error, named)}") from error


def _reason(error: Exception, named: Reference) -> str:
    from huggingface_hub import constants, errors

    # What the cache lacks because the hub did not answer.
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(
        error.__cause__, Exception
    ):
        error = error.__cause__
    hub, repository = f"the hub {constants.ENDPOINT}", named.repository
    for kind, reason in (
        (
            errors.GatedRepoError,
            f"its owner lets those in who ask; ask at {constants.ENDPOINT}/"
            f"{repository}, and set HF_TOKEN to your token",
        ),
        (
            errors.RepositoryNotFoundError,
            f"{hub} has no repository {repository}, or a private one; check "
            "the name, or set HF_TOKEN to a token that may read it",
        ),
        (
            errors.RevisionNotFoundError,
            f"{repository} has no revision {named.revision or 'main'}; "
            "expected a branch, a tag or a commit",
        ),
        # An answer's first line may lack the reason.
        (
            errors.HfHubHTTPError,
            f"{hub} answered: {str(error)[:300]}; try again later, or check "
            "HF_TOKEN and what its token may do",
        ),
    ):
        if isinstance(error, kind):
            return reason
    if constants.HF_HUB_OFFLINE and isinstance(
        error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)
    ):
        return (
            f"not all of it lies in the cache {constants.HF_HUB_CACHE}, and "
            "HF_HUB_OFFLINE forbids to ask the hub; unset that once"
        )
    if isinstance(error.__cause__, errors.BadRequestError):
        # The library has a card checked before it writes.
        return (
            f"{hub} refuses the card: {str(error)[:300]}; pass another name of "
            "the BERT as --base_model"
        )
    return (
        f"{hub} failed: {first_line(error)}; try again, or read what was "
        "fetched before with HF_HUB_OFFLINE=1"
    )
