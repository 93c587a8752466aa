"""Unpacks an archive of Google's that is a whole BERT.

    adapter-bert unpack_bert ARCHIVE FOLDER SHA256

SHA256 is of the weights' file, or `-` if it is not known. FOLDER appears when
all files are written. An archive that is damaged or no BERT is deleted, so that
it is fetched again; it stays if there is no room. The caller holds a lock of
FOLDER. So a hidden folder that a killed process may have left next to it is
deleted first.
"""

import hashlib
import lzma
import os
import shutil
import sys
import uuid
import zipfile
import zlib

DATA = "bert_model.ckpt.data-00000-of-00001"
FILES = ("vocab.txt", "bert_config.json", "bert_model.ckpt.index", DATA)
BLOCK = 2**20
# Errors of zipfile for damages, passwords, and unknown compressions.
DAMAGES = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    ValueError,
)


class NoBertError(Exception):
    """Refuses an archive of something else."""


def unpack(path: str, folder: str, sha256: str) -> None:
    """Writes the four files of a BERT into a folder.

    Raises:
        NoBertError: it is no whole archive of a BERT.
        OSError: a file cannot be written.
    """
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive:
            # Some archives have a folder of the BERT's name.
            members = {os.path.basename(n): n for n in archive.namelist()}
            lacking = [name for name in FILES if name not in members]
            if lacking:
                raise NoBertError(f"it holds no {', '.join(lacking)}")
            for name in FILES:
                with archive.open(members[name]) as member:
                    with open(os.path.join(folder, name), "wb") as out:
                        while block := member.read(BLOCK):
                            out.write(block)
                            if name == DATA:
                                digest.update(block)
    except DAMAGES as error:
        raise NoBertError(str(error) or type(error).__name__) from error
    if sha256 not in ("-", digest.hexdigest()):
        raise NoBertError(f"{DATA} has the SHA-256 {digest.hexdigest()}")


def main() -> None:
    """Unpacks what the command line names."""
    if len(sys.argv) != 4:
        sys.exit("usage: adapter-bert unpack_bert ARCHIVE FOLDER SHA256")
    path, folder, sha256 = sys.argv[1:]
    parent, name = os.path.split(os.path.abspath(folder))
    hidden = os.path.join(parent, f".{name}.unfinished")
    # Another machine may not see the lock.
    part = os.path.join(hidden, uuid.uuid4().hex)
    try:
        shutil.rmtree(hidden, ignore_errors=True)
        os.makedirs(part)
        unpack(path, part, sha256)
        os.sync()
        os.rename(part, folder)
    except NoBertError as error:
        os.remove(path)
        raise SystemExit(
            f"error: what was fetched is no whole archive of a BERT ({error}) "
            "and was deleted; run this again"
        ) from error
    except OSError as error:
        raise SystemExit(f"error: cannot write {folder}: {error}") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
