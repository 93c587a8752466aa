"""Reads rows of texts from a file or a pipe of any length."""

import csv
import io
import itertools
import json
import os
import queue
import stat
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Callable, TypeVar

from absl import logging

from adapter_bert import json_lines
from adapter_bert.answering.trained_task import TextRow
from adapter_bert.data import tables
from adapter_bert.data.memory_rows import FileOrRows, MemoryRows
from adapter_bert.data.tables import ODD, READERS, Layout, open_table
from adapter_bert.errors import UserError

# A row's texts, and its place for messages.
PlacedRow = tuple[TextRow, str]
Row = TypeVar("Row")
# Alternative names of a row's texts.
Alternatives = Sequence[Sequence[str]]
CONLL = (".conll", ".conllu")
# Rows that are answered together, sorted by length.
CHUNK = 1024


def file_rows(
    path: FileOrRows,
    columns: Alternatives,
    note_bytes: Callable[[int], None],
    takes_tokens: bool = False,
) -> Iterator[PlacedRow]:
    """Yields the rows of a file, or rows in memory.

    A `.jsonl` file holds an object on each line, whose keys are the columns, a
    `.json` file an array of them. A
    `.csv` or `.tsv` file either names all columns in its first line, or has
    these columns alone. Any other file holds a row on each line: a JSON object
    if the first line is one, else texts with tabs between them.

    Of `columns`, that alternative counts which has most names, all of them in
    the first line. `note_bytes` is called with each line's size. With
    `takes_tokens` JSON may hold a list of words, which becomes a tuple, for a
    text.
    """
    if isinstance(path, MemoryRows):
        from adapter_bert.data import formats

        rows = formats.accepted(path, path.objects(columns[0]), ())
        yield from _rows(path, rows, ".jsonl", columns, takes_tokens)
        return
    if takes_tokens and tables.ending_of(path) in CONLL:
        raise UserError(
            f"{path} has tags; run_tagger.py --do_predict=true --predict_file "
            "reads it"
        )
    ending, lines = open_table(path, {x for names in columns for x in names})

    def counted() -> Iterator[Any]:
        for line in lines:
            # Objects take about these bytes of the file.
            text = line
            if not isinstance(line, str):
                text = json.dumps(line, ensure_ascii=False)
            note_bytes(len(text.encode(errors="replace")))
            yield line

    yield from _rows(path, counted(), ending, columns, takes_tokens)


def pipe_rows(
    stream: io.BufferedIOBase, columns: Alternatives, takes_tokens: bool = False
) -> Iterator[PlacedRow]:
    """Yields a pipe's rows, as `file_rows` of a file without an ending."""
    lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
    plain = json_lines.plain_lines(lines, "stdin")
    try:
        yield from _rows("stdin", plain, "", columns, takes_tokens)
    except UnicodeDecodeError as error:
        raise UserError(
            f"stdin: not UTF-8 text (byte 0x{error.object[error.start]:02x}); "
            "convert it to UTF-8"
        ) from error


def _rows(
    name: FileOrRows,
    lines: Iterator[Any],
    ending: str,
    columns: Alternatives,
    takes_tokens: bool,
) -> Iterator[PlacedRow]:
    if takes_tokens:
        from adapter_bert.tasks import character_spans

        lines = character_spans.texts_alone(name, lines)
    first = next(lines, None)
    if first is None:
        return
    if not ending and isinstance(first, str) and ODD.search(first.encode()):
        from adapter_bert.data import formats

        formats.refuse(name, first.encode(), formats.NAMED_LINES)
    lines = itertools.chain([first], lines)
    count = len(columns[0])
    keys = _keys(first)
    names = _choose(columns, keys)
    if ending not in READERS and names:
        ending = ".jsonl"
    elif ending in (".jsonl", ".json"):
        # The reader refuses the line.
        names = names or columns[0]
    elif ending in READERS:
        cells, lines = _cells(name, lines, ending)
        names = _choose(columns, cells)
        if not names and len(cells) != count:
            raise UserError(
                f"{name}:1: found {len(cells)} columns "
                f"({json_lines.list_keys(cells)}), expected "
                f"{json_lines.list_keys(columns[0])} among their names, or "
                f"only {count} "
                "without names; pass --columns, or name the columns in the "
                "first line"
            )
        wanted = {tables.appearance(x) for some in columns for x in some}
        if not names and wanted & {*map(tables.appearance, cells)}:
            raise UserError(
                f"{name}:1: found {json_lines.list_keys(cells)}, expected the "
                f"names {json_lines.list_keys(columns[0])} (blanks and letter "
                "case count); if it is a row, put a line of the names above it"
            )
    if not names:
        if ending in READERS:
            logging.warning(
                "%s: the first line has no column %s, so it is a row; give the "
                "column this name if it is none",
                name,
                json_lines.list_keys(columns[0]),
            )
        yield from _unnamed(name, lines, ending, count)
        return
    longest = max(columns, key=len)
    if ending in (".jsonl", ".json") and [*names] == [*longest[: len(names)]]:
        # A row of JSON may lack its second text.
        names = longest
    layout = Layout.of_texts(
        names, takes_tokens=takes_tokens, lacks_texts=len(names) > count
    )
    for number, texts in READERS[ending][0](name, lines, layout):
        texts = *texts[:count], *filter(None, texts[count:])
        yield texts, f"{name}:{number + 1}"


def _choose(columns: Alternatives, keys: Collection[str]) -> Sequence[str]:
    fit = (names for names in columns if set(names) <= set(keys))
    return max(fit, key=len, default=())


def _keys(line: Any) -> list[str]:
    if not isinstance(line, str):
        return list(line)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return list(value) if isinstance(value, dict) else []


def _cells(
    name: str, lines: Iterator[str], ending: str
) -> tuple[list[str], Iterator[str]]:
    taken = []

    def noted() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line

    if ending != ".csv":
        cells = next(noted()).rstrip("\r\n").split("\t")
    else:
        try:
            # A cell in quotes may have several lines.
            cells = next(filter(None, csv.reader(noted())), [""])
        except csv.Error as error:
            raise UserError(f"{name}:1: not CSV: {error}") from error
    return cells, itertools.chain(taken, lines)


def _unnamed(
    name: str, lines: Iterator[str], ending: str, count: int
) -> Iterator[PlacedRow]:
    """Yields rows of nameless files, of the wanted columns alone."""
    # Empty lines at the end are skipped, except where they may be texts.
    if ending == ".csv":
        layout = Layout.of_texts(range(count), header=False)
        cells = READERS[ending][0](name, lines, layout)
    else:
        split = (line.rstrip("\n").rstrip("\r").split("\t") for line in lines)
        cells = enumerate(split)
    blank = None
    for number, texts in cells:
        where = f"{name}:{number + 1}"
        if texts == [""] and count > 1:
            blank = blank or where
            continue
        if blank or len(texts) != count:
            raise UserError(
                f"{blank or where}: found {0 if blank else len(texts)} texts "
                f"with tabs between them, expected {count}"
            )
        yield tuple(texts), where


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yields groups of `CHUNK` rows, so that equal files are grouped alike."""
    rows = iter(rows)
    return iter(lambda: list(itertools.islice(rows, CHUNK)), [])


def chunks_at_once(rows: Iterator[PlacedRow]) -> Iterator[list[PlacedRow]]:
    """Yields groups of the rows that have arrived, at least one row each."""
    waiting: Any = queue.Queue(CHUNK)

    def read() -> None:
        end = None
        try:
            for row in rows:
                waiting.put(row)
        except BaseException as error:
            end = error
        waiting.put(end)

    # A daemon, since a blocked read may not keep the program from ending.
    threading.Thread(target=read, daemon=True).start()
    while True:
        chunk, item = [], waiting.get()
        while isinstance(item, tuple):
            chunk.append(item)
            if len(chunk) == CHUNK or waiting.empty():
                break
            item = waiting.get()
        if chunk:
            yield chunk
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return


def is_piped() -> bool:
    """True if reading stdin may block: it is no file."""
    return not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
