"""Rows of the user's tables: TSV, CSV and JSON Lines files."""

import csv
import dataclasses
import io
import json
import os
import sys
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Union

from absl import logging

import files
from errors import UserError

Column = Union[int, str]
# (line number from 0, its cells), the header's line included.
Lines = List[Tuple[int, List[str]]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a table keeps what; columns by number from 0 or by name.

    Attributes:
        text_a: column of the text.
        text_b: column of the second text, or None.
        label: column of the label, or None for a file without labels.
        header: whether the first line holds the columns' names.
        row_id: column of what names a row, or None.
        skips_short_rows: whether rows with too few columns are passed over,
            as QQP's published files need it.
    """

    text_a: Column
    text_b: Optional[Column] = None
    label: Optional[Column] = None
    header: bool = True
    row_id: Optional[Column] = None
    skips_short_rows: bool = False

    @property
    def columns(self) -> Tuple[Column, ...]:
        """The columns that it has: text_a, text_b, label, row_id."""
        columns = (self.text_a, self.text_b, self.label, self.row_id)
        return tuple(column for column in columns if column is not None)


def find_table(folder: str, split: str) -> str:
    """The path of `<folder>/<split>` with one of the endings of `READERS`.

    Raises:
        UserError: there is none, or more than one.
    """
    paths = [os.path.join(folder, split + ending) for ending in READERS]
    found = [path for path in paths if files.exists(path)]
    if len(found) > 1:
        raise UserError(f"{' and '.join(found)} are both there; keep one")
    # Reading it will say that it is missing.
    return found[0] if found else paths[0]


def read_rows(path: str, layout: Layout) -> List[Tuple[int, List[str]]]:
    """Reads the layout's columns, in the order of `Layout.columns`.

    Args:
        path: with one of the endings of `READERS`.
        layout: of the table.

    Returns:
        (line number from 0, the columns' texts) for each row.

    Raises:
        UserError: the file is missing, not UTF-8 or empty, is no table of its
            kind, lacks a column, or has a row with too few columns.
    """
    text = files.read_text(path, "the data file")
    if not text.strip("\r\n"):
        raise UserError(f"{path} is empty")
    rows = READERS[os.path.splitext(path)[1]](path, text, layout)
    if not rows:
        raise UserError(f"{path} holds no rows")
    return rows


def _read_tsv(path: str, text: str, layout: Layout) -> Lines:
    """Quotation marks are ordinary characters, as in the GLUE files.

    Empty lines at the end are passed over, except in a file of one column,
    where they are empty texts.
    """
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    while "\t" in lines[0] and not lines[-1].strip("\r"):
        lines.pop()
    cells = [
        (number, line.rstrip("\r").split("\t"))
        for number, line in enumerate(lines)
    ]
    return _choose_columns(path, cells, layout, "tab-separated")


def _read_csv(path: str, text: str, layout: Layout) -> Lines:
    """Cells with a comma or a line break stand in quotation marks."""
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    cells: Lines = []
    line = 0
    try:
        for row in reader:
            if row:
                cells.append((line, row))
            line = reader.line_num
    except csv.Error as error:
        raise UserError(f"{path}:{line + 1}: not CSV: {error}") from error
    return _choose_columns(path, cells, layout, "comma-separated")


def _choose_columns(
    path: str, lines: Lines, layout: Layout, kind: str
) -> Lines:
    """The layout's cells of each line but the header."""
    columns: Sequence[Column] = layout.columns
    if any(isinstance(column, str) for column in columns):
        names = lines[0][1]
        for column in columns:
            if isinstance(column, str) and column not in names:
                raise UserError(
                    f"{path}:1: no column is named {column!r}; the header "
                    f"names {', '.join(names)[:200]}"
                )
        columns = [
            names.index(column) if isinstance(column, str) else column
            for column in columns
        ]
    rows, short = [], 0
    for number, cells in lines[1:] if layout.header else lines:
        if len(cells) > max(columns):
            rows.append((number, [cells[column] for column in columns]))
        elif layout.skips_short_rows:
            short += 1
        else:
            raise UserError(
                f"{path}:{number + 1}: found {len(cells)} {kind} "
                f"columns, expected at least {max(columns) + 1}"
            )
    if short:
        logging.warning(
            "%s: %d rows with too few columns are left out", path, short
        )
    return rows


def _read_json_lines(path: str, text: str, layout: Layout) -> Lines:
    """An object on each line; its keys are the columns."""
    rows: Lines = []
    for number, line in enumerate(text.split("\n")):
        if not line.strip():
            continue
        where = f"{path}:{number + 1}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected a JSON object, as {{...}}")
        rows.append(
            (number, [_cell(where, value, name) for name in layout.columns])
        )
    return rows


def _cell(where: str, values: Dict[str, object], name: Column) -> str:
    """What a JSON object has for a column, as text."""
    if isinstance(name, int):
        raise UserError(
            f"{where}: JSON Lines have named columns, not a column {name}"
        )
    if name not in values:
        raise UserError(
            f"{where}: no key {name!r}, found {', '.join(values)[:200]}"
        )
    value = values[name]
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float)):
        raise UserError(
            f"{where}: {name!r} is {json.dumps(value)[:80]}, expected a text "
            "or a number"
        )
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: {name!r} holds half a character ({error.reason})"
        ) from error
    return text


READERS: Dict[str, Callable[[str, str, Layout], Lines]] = {
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_json_lines,
}
