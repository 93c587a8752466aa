"""Rows of the user's tables: TSV, CSV and JSON Lines files."""

import array
import csv
import dataclasses
import itertools
import sys
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

import numpy as np
from absl import logging

from errors import UserError
from storage import files, json_lines
from tasks.label_sets import appearance, join_labels
from tasks.split_files import ending_of

# Else Python takes no cell of more than 128 kB, in all of a process.
csv.field_size_limit(sys.maxsize)

Column = Union[int, str]
Found = TypeVar("Found")
# What a cell of `Layout.label_columns` may hold, in any case of letters.
MARKS = {
    **dict.fromkeys(("0", "0.0", "false"), False),
    **dict.fromkeys(("1", "1.0", "true"), True),
}
# (line number from 0, its cells), without the header's line.
Lines = Iterator[Tuple[int, List[str]]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a table keeps what; columns by number from 0 or by name.

    Attributes:
        text_a: column of the text, or None if only labels are wanted.
        text_b: column of the second text, or None.
        label: column of the label, or None for a file without labels.
        header: whether the first line holds the columns' names.
        row_id: column of what names a row, or None.
        skips_broken_rows: whether rows with fewer or more columns than the
            header are passed over, as QQP's published files need it.
        takes_tokens: whether a JSON object may hold a list of words for a
            text, which becomes a tuple.
        choices: columns of further texts, as the choices of a question.
        label_separator: what stands between the labels of a cell, for which a
            JSON object must hold a list; None where a row has one label.
        label_columns: in place of `label`, a column of 0 and 1 for each label;
            rows are read as if a cell held the labels that have a 1.
    """

    text_a: Optional[Column]
    text_b: Optional[Column] = None
    label: Optional[Column] = None
    header: bool = True
    row_id: Optional[Column] = None
    skips_broken_rows: bool = False
    takes_tokens: bool = False
    choices: Tuple[Column, ...] = ()
    label_separator: Optional[str] = None
    label_columns: Tuple[Column, ...] = ()

    @property
    def columns(self) -> Dict[str, Column]:
        """The columns that it has, by the name of their field in `Rows`.

        Those of `choices` by their numbers, as `choice_0`, and at the end those
        of `label_columns`, as `label_0`.
        """
        columns = {
            "text_a": self.text_a,
            "text_b": self.text_b,
            **dict(zip(self.choice_names, self.choices)),
            "label": self.label,
            "row_id": self.row_id,
            **{f"label_{n}": c for n, c in enumerate(self.label_columns)},
        }
        return {
            n: column for n, column in columns.items() if column is not None
        }

    @property
    def choice_names(self) -> List[str]:
        """The names of `choices` in `columns`."""
        return [f"choice_{number}" for number in range(len(self.choices))]

    @classmethod
    def of_texts(cls, columns: Sequence[Column], **more: Any) -> "Layout":
        """A table of these texts, whose order it keeps; `more` as its own."""
        text_a, *others = columns
        return cls(text_a, *others[:1], choices=tuple(others[1:]), **more)

    def labels_only(self) -> "Layout":
        """The same table, of which only the labels are wanted."""
        return dataclasses.replace(
            self, text_a=None, text_b=None, row_id=None, choices=()
        )


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a table, column by column.

    A million objects of a row each would take more than their texts.

    Attributes:
        path: of the file.
        lines: int64 [rows], the line of each row, from 0.
        text_a: the texts, or None where they were not wanted or are dropped.
        text_b: the second texts, or None where there are none.
        label: the labels, as the file has them, or None.
        row_id: what names the rows, or None.
        choices: the texts of each column of `Layout.choices`; may be dropped.
    """

    path: str
    lines: np.ndarray
    text_a: Optional[List[str]] = None
    text_b: Optional[List[str]] = None
    label: Optional[List[str]] = None
    row_id: Optional[List[str]] = None
    choices: Tuple[List[str], ...] = ()

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.lines)

    def where(self, row: int) -> str:
        """The place of a row, for messages: `<path>:<line from 1>`."""
        return f"{self.path}:{self.lines[row] + 1}"

    def take(self, chosen: np.ndarray) -> "Rows":
        """The rows that are chosen, bool [rows]."""
        return dataclasses.replace(
            self,
            lines=self.lines[chosen],
            choices=tuple(
                list(itertools.compress(texts, chosen))
                for texts in self.choices
            ),
            **{
                name: list(itertools.compress(getattr(self, name), chosen))
                for name in ("text_a", "text_b", "label", "row_id")
                if getattr(self, name) is not None
            },
        )


def read_rows(path: str, layout: Layout) -> Rows:
    """Reads the layout's columns.

    Args:
        path: with one of the endings of `READERS`, in any case of letters.
        layout: of the table.

    Raises:
        UserError: the file is missing, not UTF-8 or empty, is no table of its
            kind, lacks a column or has two of its name, or has a row with too
            few columns.
    """
    read, newline = READERS[ending_of(path)]
    text = _check_not_empty(
        path, files.read_lines(path, "the data file", newline)
    )
    lines = array.array("q")
    names, marks = list(layout.columns), len(layout.label_columns)
    if marks:
        names[-marks:] = ["label"]
    columns: Dict[str, List[str]] = {name: [] for name in names}
    for number, cells in read(path, text, layout):
        lines.append(number)
        if marks:
            where = f"{path}:{number + 1}"
            cells[-marks:] = [_marked(cells[-marks:], layout, where)]
        for column, cell in zip(columns.values(), cells):
            column.append(cell)
    if not lines:
        raise UserError(f"{path} holds no rows")
    choices = tuple(columns.pop(name) for name in layout.choice_names)
    return Rows(path, np.array(lines, np.int64), **columns, choices=choices)


def _marked(cells: List[str], layout: Layout, where: str) -> str:
    """The cell of those labels whose columns have a 1."""
    found = []
    for cell, label in zip(cells, layout.label_columns):
        if cell.strip().lower() not in MARKS:
            raise UserError(
                f"{where}: the label column {label!r} holds {cell[:80]!r}, "
                "expected 0 or 1 (--label_columns)"
            )
        if MARKS[cell.strip().lower()]:
            found.append(str(label))
    return join_labels(found, layout.label_separator, where)


def _check_not_empty(path: str, lines: Iterator[str]) -> Iterator[str]:
    """The same lines, if one of them holds anything."""
    blank: List[str] = []
    for line in lines:
        blank.append(line)
        if line.strip("\r\n"):
            return itertools.chain(blank, lines)
    raise UserError(f"{path} is empty")


def _read_tsv(path: str, text: Iterator[str], layout: Layout) -> Lines:
    """Quotation marks are ordinary characters, as in the GLUE files.

    Empty lines at the end are passed over, except in a file of one column,
    where they are empty texts.
    """

    def split() -> Lines:
        first, blank = True, 0
        for number, line in enumerate(text):
            line = line.rstrip("\n").rstrip("\r")
            if first:
                passes_over, first = "\t" in line, False
            if passes_over and not line:
                blank += 1
                continue
            # They were not at the end.
            for before in range(number - blank, number):
                yield before, [""]
            blank = 0
            yield number, line.split("\t")

    return _choose_columns(path, split(), layout, "tab-separated")


def _read_csv(path: str, text: Iterator[str], layout: Layout) -> Lines:
    """Cells with a comma or a line break stand in quotation marks."""

    def split() -> Lines:
        reader = csv.reader(text, strict=True)
        line = 0
        try:
            width = 0
            for row in reader:
                width = width or len(row)
                # In a file of one column an empty line is an empty text.
                if row or width == 1:
                    yield line, row or [""]
                line = reader.line_num
        except csv.Error as error:
            raise UserError(f"{path}:{line + 1}: not CSV: {error}") from error

    return _choose_columns(path, split(), layout, "comma-separated")


def _choose_columns(
    path: str, lines: Lines, layout: Layout, kind: str
) -> Lines:
    """The layout's cells of each line but the header."""
    first = next(lines)
    columns = [
        _find_column(path, first[1], column)
        for column in layout.columns.values()
    ]
    if not layout.header:
        lines = itertools.chain([first], lines)
    needed, width, broken = max(columns) + 1, len(first[1]), 0
    for number, cells in lines:
        # One too many shifts those behind it, or cuts a text.
        is_long = len(cells) > width and any(cells[width:])
        if layout.skips_broken_rows and (is_long or len(cells) < width):
            broken += 1
            continue
        problem = None
        if is_long:
            place = "header names" if layout.header else "first line has"
            problem = (
                f"found {len(cells)} {kind} columns, but the {place} {width}; "
                "does a text hold the separator?"
            )
        elif len(cells) < needed:
            problem = (
                f"found {len(cells)} {kind} columns, expected at least {needed}"
            )
        elif layout.header and layout.label is not None and cells == first[1]:
            problem = (
                "the header stands here again; delete the line, which joined "
                "files have"
            )
        if problem:
            raise UserError(f"{path}:{number + 1}: {problem}")
        yield number, [cells[column] for column in columns]
    if broken:
        logging.warning(
            "%s: %d rows with fewer or more columns than the header are left "
            "out",
            path,
            broken,
        )


def _find_column(path: str, names: List[str], column: Column) -> int:
    """The place of a column in a header."""
    if isinstance(column, int):
        return column
    if column not in names:
        raise UserError(
            f"{path}:1: no column is named {column!r}; the header names "
            f"{json_lines.list_keys(names)}{_near(names, column)}"
        )
    if names.count(column) > 1:
        raise UserError(
            f"{path}:1: {names.count(column)} columns are named {column!r}; "
            "rename all but one"
        )
    return names.index(column)


def _near(names: List[str], column: str) -> str:
    """How a column that a header lacks may be meant."""
    for name in names:
        if name.strip() == column:
            return f"; blanks surround {name!r}, name it without them"
        if appearance(name) == appearance(column):
            return (
                f"; {name!r} differs in blanks, letter case or characters that "
                "cannot be seen"
            )
    return "; is its first line a row, not a header?"


def _read_json_lines(path: str, text: Iterator[str], layout: Layout) -> Lines:
    """An object on each line; its keys are the columns."""
    columns = layout.columns
    for name in columns.values():
        if isinstance(name, int):
            raise UserError(
                f"{path}:1: JSON Lines have named columns, not a column {name}"
            )

    def cell(
        value: Dict[str, Any], where: str, field: str, name: str
    ) -> Union[str, Tuple[str, ...]]:
        if field == "label" and layout.label_separator is not None:
            labels = json_lines.labels_at(value, name)
            return join_labels(labels, layout.label_separator, where)
        if layout.takes_tokens and isinstance(value.get(name), list):
            return tuple(json_lines.texts_at(value, name))
        return json_lines.text_at(value, name)

    yield from read_objects(
        path,
        text,
        lambda value, where: [
            cell(value, where, *column) for column in columns.items()
        ],
    )


def read_objects(
    path: str,
    text: Iterable[str],
    read: Callable[[Dict[str, Any], str], Found],
) -> Iterator[Tuple[int, Found]]:
    """What is read of the JSON objects of lines; empty lines are passed over.

    Args:
        path: of the file, for messages.
        text: its lines.
        read: of an object and its place; its ValueErrors get the place.

    Yields:
        The line's number from 0, and what was read.

    Raises:
        UserError: a line holds something else.
    """
    for number, line in enumerate(text):
        if not line.strip():
            continue
        where = f"{path}:{number + 1}"
        try:
            found = read(json_lines.parse_object(line.rstrip("\n")), where)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from error
        yield number, found


# Ending -> how its lines are read, and what ends a line.
READERS: Dict[
    str, Tuple[Callable[[str, Iterator[str], Layout], Lines], str]
] = {
    ".tsv": (_read_tsv, "\n"),
    ".csv": (_read_csv, ""),
    ".jsonl": (_read_json_lines, "\n"),
}
