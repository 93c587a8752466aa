"""Records the system calls that change a folder's files, with strace.

All threads are recorded, TensorFlow's own too. strace writes one file for each
thread; the times of the calls put the lines in order.
"""

import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple, Optional

from adapter_bert.errors import UserError

MAKE_FOLDER, OPEN, EMPTY, WRITE, RESIZE, RENAME, DELETE, SYNC = (
    "make folder",
    "open",
    "empty",
    "write",
    "resize",
    "rename",
    "delete",
    "sync",
)
# Calls by which files change in ways that are not followed.
UNKNOWN = (
    "copy_file_range fallocate mmap pwritev pwritev2 sendfile splice"
).split()
LINKS = "link linkat symlink symlinkat".split()
KNOWN = (
    "creat fdatasync fsync ftruncate lseek mkdir mkdirat open openat pwrite64 "
    "rename renameat renameat2 rmdir truncate unlink unlinkat write writev"
).split()
# Texts as hexadecimal numbers, and the time of each call.
STRACE = (
    *"strace --seccomp-bpf -f -qq -xx".split(),
    "--absolute-timestamps=unix,ns",
)
# Longer than what is written at once.
LONGEST = 2**26
LINE = re.compile(r"(\d+\.\d+) (\w+)\((.*)\)\s+= (\d+)(<\S*>)?")
FILE = re.compile(r"(AT_FDCWD|\d+)<([^>]*)>(\(deleted\))?")


class Operation(NamedTuple):
    """A change of a file or folder, whose path is within the folder.

    `what` is MAKE_FOLDER; OPEN: a file is made if it is not there; EMPTY; WRITE
    `content` at `number`, or at the end if that is None; RESIZE to `number`
    bytes; RENAME to `new`; DELETE; SYNC. The path "" is the folder itself.
    """

    what: str
    path: str
    new: str = ""
    number: Optional[int] = None
    content: bytes = b""


def check() -> None:
    """Checks that strace works here."""
    if not shutil.which("strace"):
        raise UserError(
            "power cuts need strace, which is not installed; install it (as "
            "`apt-get install strace`)"
        )
    words = [*STRACE, "--trace=fsync", f"--output={os.devnull}", "true"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["without a word"])[0]
        raise UserError(
            f"power cuts need strace, which fails here ({message}); expected "
            "5.6 or later, and a machine that lets it follow programs"
        )


def tracer(folder: pathlib.Path) -> list[str]:
    """Returns the words before a command line that record its calls.

    The folder is made, and gets a file for each thread.
    """
    folder.mkdir()
    # Where a machine has no such call (`open` of ARM's), it is left out.
    calls = ",".join(f"?{name}" for name in (*KNOWN, *UNKNOWN, *LINKS))
    return [
        *STRACE,
        "-ff",
        "-y",
        f"--string-limit={LONGEST}",
        f"--trace={calls}",
        f"--output={folder / 'calls'}",
    ]


def read(calls: pathlib.Path, folder: pathlib.Path) -> list[Operation]:
    """Gets the changes of a folder, in order, by the folder of strace's files.

    Raises:
        RuntimeError: a file of the folder was written in a way that is not
            followed.
    """
    lines: list[tuple[int, str, str, int, str]] = []
    for path in calls.iterdir():
        with open(path, encoding="ascii") as file:
            # One that failed, or did not come to its end, has no such result.
            for match in filter(None, map(LINE.match, file)):
                time, name, words, result, of = match.groups()
                nanoseconds = int(time.replace(".", ""))
                lines.append((nanoseconds, name, words, int(result), of or ""))
    # Calls of a thread at the same time stay in their order.
    lines.sort(key=lambda line: line[0])
    reader = _Reader(str(folder))
    return [
        operation
        for _, name, words, result, of in lines
        for operation in reader.operations(name, words.split(", "), result, of)
    ]


def _text(quoted: str) -> str:
    return os.fsdecode(_bytes(quoted))


def _bytes(quoted: str) -> bytes:
    if quoted.endswith("..."):
        raise RuntimeError(f"a program has written more than {LONGEST} bytes")
    return bytes.fromhex(quoted.strip('"').replace("\\x", ""))


class _Reader:
    """Knows which files of the folder are open, and where."""

    def __init__(self, folder: str):
        """Takes the folder's path from the root."""
        self._folder = folder
        # By number: the offset of the next write, or None for the end.
        self._offsets: dict[int, Optional[int]] = {}

    def operations(
        self, name: str, words: list[str], result: int, of: str
    ) -> Iterator[Operation]:
        """Gets changes that a call makes in the folder, by words and result.

        `of` is the path between brackets, if the result is an open file.
        """
        if name in ("open", "openat", "creat"):
            path = self._inside(_text(of[1:-1])) if of else None
            flags = "O_CREAT|O_TRUNC" if name == "creat" else ""
            flags = flags or words[2 if name == "openat" else 1]
            is_written = name == "creat" or re.search("O_WRONLY|O_RDWR", flags)
            if path is not None and is_written:
                self._offsets[result] = None if "O_APPEND" in flags else 0
                yield Operation(OPEN, path)
                if "O_TRUNC" in flags:
                    yield Operation(EMPTY, path)
        elif name in ("rename", "renameat", "renameat2"):
            paths = self._named(words)
            if any(path is not None for path in paths):
                if None in paths:
                    raise RuntimeError(f"{paths} is renamed across the folder")
                yield Operation(RENAME, *paths)
        elif name in ("unlink", "unlinkat", "rmdir", "mkdir", "mkdirat"):
            for path in self._named(words):
                if path is not None:
                    is_made = name.startswith("mkdir")
                    yield Operation(MAKE_FOLDER if is_made else DELETE, path)
        elif name == "truncate":
            (path,) = self._named(words)
            if path is not None:
                yield Operation(RESIZE, path, number=int(words[1]))
        elif name in LINKS:
            if any(path is not None for path in self._named(words)):
                raise RuntimeError(f"{self._named(words)}: {name}")
        else:
            yield from self._of_open_file(name, words, result)

    def _of_open_file(
        self, name: str, words: list[str], result: int
    ) -> Iterator[Operation]:
        for match in filter(None, map(FILE.match, words)):
            path = self._inside(_text(match[2]))
            if path is not None and not match[3]:
                break
        else:
            return
        if name in ("fsync", "fdatasync"):
            yield Operation(SYNC, path)
        elif name == "ftruncate":
            yield Operation(RESIZE, path, number=int(words[1]))
        elif name == "lseek":
            # One that is only read may be there as well.
            if self._offsets.get(int(match[1]), None) is not None:
                self._offsets[int(match[1])] = result
        elif name == "pwrite64":
            content = _bytes(words[1])[:result]
            yield Operation(WRITE, path, number=int(words[3]), content=content)
        elif name in ("write", "writev"):
            parts = re.findall(r'"[^"]*"\.{0,3}', ", ".join(words[1:]))
            content = b"".join(map(_bytes, parts))[:result]
            offset = self._offsets[int(match[1])]
            yield Operation(WRITE, path, number=offset, content=content)
            if offset is not None:
                self._offsets[int(match[1])] = offset + len(content)
        elif name != "mmap" or (
            "MAP_SHARED" in words[3] and "PROT_WRITE" in words[2]
        ):
            raise RuntimeError(f"{path} is written by {name}")

    def _named(self, words: list[str]) -> list[Optional[str]]:
        paths = []
        above = ""
        for word in words:
            match = FILE.match(word)
            if match:
                above = _text(match[2])
            elif word.startswith('"'):
                paths.append(self._inside(os.path.join(above, _text(word))))
        return paths

    def _inside(self, path: str) -> Optional[str]:
        """A path within the folder, or None of one that is elsewhere."""
        path = os.path.normpath(path)
        if path == self._folder:
            return ""
        inside = path.startswith(self._folder + "/")
        return path[len(self._folder) + 1 :] if inside else None
