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
from typing import IO, Any, BinaryIO, Callable, NamedTuple, Optional

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
# Files whose lines are no texts: tables, and JSON of another form.
TABLES = (".tsv", ".csv", ".json", ".ndjson")


class BulkRow(NamedTuple):
    """A line's row for a task, or the reason why it has no answer.

    Attributes:
        file: where it stands.
        source: the row itself, as JSON.
        task: its name; "" if no task can read the line.
        row: for the model, or None.
        reason: "" if there is a row.
    """

    file: str
    source: str
    task: str = ""
    row: Optional[Row] = None
    reason: str = ""

    def refused(self, reason: str) -> "BulkRow":
        """Refuses it; halves of characters in the reason become escapes."""
        written = reason.encode("utf-8", "backslashreplace").decode()
        return self._replace(row=None, reason=written)


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
) -> Iterator[BulkRow]:
    """Yields a row or a refusal of a line for each task.

    An unreadable line has one refusal, an empty one that is no text nothing.
    Lines of `.jsonl` files are objects, others texts with tabs between them.
    `names` are tasks that answer every row, else the key `task` names one.
    """
    source = BulkRow(file, _json(line.decode("utf-8", "backslashreplace")))
    values: Any
    try:
        text = line.decode().lstrip(json_lines.BYTE_ORDER_MARK)
        if is_json_lines(file):
            text = text.strip()
            if not text:
                return
            values = json_lines.parse_object(text)
            source = source._replace(source=text)
            names = names or [json_lines.text_at(values, "task")]
        else:
            values = text.split("\t")
            source = source._replace(source=_json(text))
    except UnicodeDecodeError as error:
        yield source.refused(f"not UTF-8 text (byte 0x{line[error.start]:02x})")
        return
    except ValueError as error:
        yield source.refused(str(error))
        return
    for name in names:
        question = source._replace(task=name)
        if reason := unknown(tasks, name):
            yield question.refused(reason)
            continue
        task = tasks[name]
        try:
            if is_json_lines(file):
                texts, choices = _of_object(task, values)
            elif values == [""] and 1 not in task["texts"]:
                continue
            else:
                texts, choices = _of_cells(task, values)
        except ValueError as error:
            yield question.refused(str(error))
            continue
        text, text_b = (x.encode() for x in (*texts, "")[:2])
        encoded = tuple(choice.encode() for choice in choices)
        row = Row(text, text_b, name.encode(), encoded)
        if reason := problem(tasks, row):
            yield question.refused(reason)
        else:
            yield question._replace(row=row)


# A row's first text, perhaps a second one; and its choices.
_TextsOfRow = tuple[Sequence[str], Sequence[str]]


def _of_cells(task: Mapping[str, Any], cells: Sequence[str]) -> _TextsOfRow:
    if len(cells) not in task["texts"]:
        expected = " or ".join(map(str, task["texts"]))
        raise ValueError(
            f"found {len(cells)} texts with tabs between them, expected "
            f"{expected}"
        )
    count = len(cells) - choice_count(task)
    return cells[:count], cells[count:]


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
        text = join_words(task, json_lines.texts_at(values, first))
    else:
        text = json_lines.text_at(values, first)
    if values.get(second) is not None:
        return [text, json_lines.text_at(values, second)], choice_texts
    if min(task["texts"]) - count > 1:
        raise ValueError(f"no key {second!r}, but the task reads two texts")
    return [text], choice_texts


def answer_line(
    row: BulkRow, task: Mapping[str, Any], outputs: Mapping[str, Any]
) -> str:
    """Makes the line of one of `ExportedModel.answers`."""
    return _line({"task": task["name"]}, row, from_outputs(task, outputs))


def refusal_line(row: BulkRow) -> str:
    """Makes the line of a refusal; without `task` for an unreadable line."""
    first = {"reason": row.reason, "file": row.file}
    if row.task:
        first["task"] = row.task
    return _line(first, row, {})


def _line(
    first: Mapping[str, Any], row: BulkRow, last: Mapping[str, Any]
) -> str:
    # The row stays to the letter.
    members = [f"{_json(name)}: {_json(x)}" for name, x in first.items()]
    members.append(f'"row": {row.source}')
    members += [f"{_json(name)}: {_json(x)}" for name, x in last.items()]
    return "{" + ", ".join(members) + "}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
