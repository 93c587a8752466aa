"""Lines of the large inputs of `adapter-bert beam`, and lines of answers.

Each line stands alone, since other lines may be on other machines. A wrong
line becomes a refusal and stops no other line.
"""

import bz2
import gzip
import json
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import (
    IO,
    Any,
    BinaryIO,
    Callable,
    NamedTuple,
    Union,
)

from adapter_bert import json_lines
from adapter_bert.answering.answers import from_outputs
from adapter_bert.graph.exported import (
    CHOICES,
    TEXTS,
    Row,
    Tasks,
    choice_count,
    join_words,
    problem,
    unknown,
)
from adapter_bert.tasks.kinds import TAGGING

# Readers by the ending of a compressed file, which raise one of UNREADABLE if
# the file's end is missing.
COMPRESSED: dict[str, Callable[[BinaryIO], IO[bytes]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".lzma": lzma.open,
}
# Compressions whose missing end Beam does not notice.
UNCHECKED = (".deflate", ".zst", ".zstd")
# Errors of missing, damaged or shortened files.
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)
# Tables, whose first line names the columns.
TABLES = (".tsv", ".csv")


class RowSource(NamedTuple):
    """A row's file, and the row itself as JSON."""

    file: str
    row: str


class BulkRow(NamedTuple):
    """A row for one task, and its source."""

    source: RowSource
    row: Row


class RefusedRow(NamedTuple):
    """Why a line has no answer, from one task or, if that is "", from any."""

    source: RowSource
    task: str
    reason: str


def refusal(source: RowSource, task: str, reason: str) -> RefusedRow:
    """Refuses a row, with escapes for halves of characters in the reason."""
    return RefusedRow(
        source, task, reason.encode("utf-8", "backslashreplace").decode()
    )


def compression(file: str) -> str:
    """Finds the compression's ending of a file's name, or ""."""
    suffix = os.path.splitext(file.lower())[1]
    return suffix if suffix in (*COMPRESSED, *UNCHECKED) else ""


def ending(file: str) -> str:
    """Finds the ending of a file's name, without the compression's."""
    whole = file.lower()
    return os.path.splitext(whole[: len(whole) - len(compression(file))])[1]


def is_json_lines(file: str) -> bool:
    """True if a file's name means JSON Lines."""
    return ending(file) == ".jsonl"


def questions(
    file: str, line: bytes, tasks: Tasks, names: Sequence[str]
) -> Iterator[Union[BulkRow, RefusedRow]]:
    """Yields a row or a refusal of a line for each task.

    An unreadable line has one refusal, an empty one that is no text nothing.
    Lines of `.jsonl` files are objects, others texts with tabs between them.
    `names` are tasks that answer every row, else the key `task` names one.
    """
    shown = line.decode("utf-8", "backslashreplace")
    as_text = RowSource(file, _json(shown))
    try:
        text = line.decode().lstrip(json_lines.BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 text (byte 0x{line[error.start]:02x})"
        yield refusal(as_text, "", reason)
        return
    if not is_json_lines(file):
        texts = text.split("\t")
        source = RowSource(file, _json(text))
        for name in names:
            if texts == [""] and 1 not in tasks[name]["texts"]:
                continue
            yield _question(source, name, tasks, _of_cells, texts)
        return
    text = text.strip()
    if not text:
        return
    try:
        values = json_lines.parse_object(text)
    except ValueError as error:
        yield refusal(as_text, "", str(error))
        return
    source = RowSource(file, text)
    if not names:
        try:
            names = [json_lines.text_at(values, "task")]
        except ValueError as error:
            yield refusal(source, "", str(error))
            return
    for name in names:
        yield _question(source, name, tasks, _of_object, values)


# A row's first and second text, and its choices.
_TextsOfRow = tuple[str, str, Sequence[str]]


def _question(
    source: RowSource,
    name: str,
    tasks: Tasks,
    read: Callable[[Mapping[str, Any], Any], _TextsOfRow],
    values: Any,
) -> Union[BulkRow, RefusedRow]:
    reason = unknown(tasks, name)
    if reason is None:
        try:
            text, text_b, choices = read(tasks[name], values)
        except ValueError as error:
            return refusal(source, name, str(error))
        row = Row(
            text.encode(),
            text_b.encode(),
            name.encode(),
            tuple(choice.encode() for choice in choices),
        )
        reason = problem(tasks, row)
    return refusal(source, name, reason) if reason else BulkRow(source, row)


def _of_cells(task: Mapping[str, Any], cells: Sequence[str]) -> _TextsOfRow:
    if len(cells) not in task["texts"]:
        expected = " or ".join(map(str, task["texts"]))
        raise ValueError(
            f"found {len(cells)} texts with tabs between them, expected "
            f"{expected}"
        )
    texts = len(cells) - choice_count(task)
    text, text_b = (*cells[:texts], "")[:2]
    return text, text_b, cells[texts:]


def _of_object(
    task: Mapping[str, Any], values: Mapping[str, Any]
) -> _TextsOfRow:
    count = choice_count(task)
    columns = task["columns"]
    texts, choices = columns[: len(columns) - count], columns[-count:]
    task_names = (*texts, *TEXTS[1:2])[:2]
    alternatives = (task_names, tuple(TEXTS[:2]))
    # Names that are all there come before names whose first is there.
    for names in sorted(alternatives, key=lambda x: not set(x) <= set(values)):
        if names[0] in values:
            break
    else:
        firsts = " or ".join(dict.fromkeys(repr(x[0]) for x in alternatives))
        raise ValueError(
            f"no key {firsts}, found {json_lines.list_keys(values)}"
        )
    first, second = names
    choice_texts: Sequence[str] = ()
    if count and CHOICES in values:
        choice_texts = json_lines.texts_at(values, CHOICES)
    elif count:
        choice_texts = [json_lines.text_at(values, name) for name in choices]
    if task.get("kind") == TAGGING and isinstance(values[first], list):
        text = join_words(json_lines.texts_at(values, first))
    else:
        text = json_lines.text_at(values, first)
    if values.get(second) is not None:
        return text, json_lines.text_at(values, second), choice_texts
    if min(task["texts"]) - count > 1:
        raise ValueError(f"no key {second!r}, but the task reads two texts")
    return text, "", choice_texts


def answer_line(
    source: RowSource, task: Mapping[str, Any], outputs: Mapping[str, Any]
) -> str:
    """Makes the line of one of `ExportedModel.answers`."""
    return _line({"task": task["name"]}, source, from_outputs(task, outputs))


def refusal_line(refused: RefusedRow) -> str:
    """Makes the line of a refusal; without `task` for an unreadable line."""
    first = {"reason": refused.reason, "file": refused.source.file}
    if refused.task:
        first["task"] = refused.task
    return _line(first, refused.source, {})


def _line(
    first: Mapping[str, Any], source: RowSource, last: Mapping[str, Any]
) -> str:
    # The row stays to the letter.
    members = [f"{_json(name)}: {_json(x)}" for name, x in first.items()]
    members.append(f'"row": {source.row}')
    members += [f"{_json(name)}: {_json(x)}" for name, x in last.items()]
    return "{" + ", ".join(members) + "}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
