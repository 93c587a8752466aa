"""Tables of the user: files of splits, labels in them, and their rows.

`SplitFiles` says where the rows of a split are. Labels are printed as `shown`
says. `read_rows` reads TSV, CSV and JSON Lines. Within a run, a set
of labels is a cell, whatever file it is from.
"""

import array
import csv
import dataclasses
import decimal
import itertools
import json
import operator
import os
import re
import sys
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import (
    Any,
    Callable,
    Optional,
    TypeVar,
    Union,
)

import numpy as np
from absl import logging

from adapter_bert import files, json_lines
from adapter_bert.data.table_flags import Column
from adapter_bert.errors import UserError

# A file's path, or `MemoryRows`, whose module is loaded by who has such.
FileOrRows = Any
# Split -> its flag, and what its file is for.
FLAGS_OF_SPLITS = {
    "train": ("--train_file", "the rows to train on"),
    "dev": (
        "--eval_file",
        "the rows to evaluate on, or, of a table, --dev_share",
    ),
    "test": ("--predict_file", "the rows to predict"),
}


def ending_of(path: FileOrRows) -> str:
    """Returns the ending of a file's name, in lower case, as `.csv`.

    Rows in memory are read like JSON Lines.
    """
    if not isinstance(path, str):
        return ".jsonl"
    return os.path.splitext(path)[1].lower()


@dataclasses.dataclass(frozen=True)
class SplitFiles:
    """Names the files or rows of splits; if all are "", a folder has them."""

    train: FileOrRows = ""
    dev: FileOrRows = ""
    test: FileOrRows = ""

    @property
    def named(self) -> dict[str, FileOrRows]:
        """Returns the source of each split whose rows were named."""
        return {
            split: path
            for split in FLAGS_OF_SPLITS
            if (path := getattr(self, split))
        }

    def check(self, endings: Collection[str], can_hold_out: bool) -> None:
        """Checks the files that were named, without reading them.

        `can_hold_out` says whether the program has `--dev_share`.
        """
        for split, path in self.named.items():
            check_file(FLAGS_OF_SPLITS[split][0], path, endings)
        both = self.train, self.dev
        is_text = all(path and isinstance(path, str) for path in both)
        if is_text and files.is_same(*both):
            way_out = "; name another file"
            if can_hold_out:
                way_out += (
                    ", or pass --dev_share in place of --eval_file to hold out "
                    "a part of this one"
                )
            raise UserError(
                f"--train_file and --eval_file are both {self.train}, which "
                f"would score training rows{way_out}"
            )

    def present(
        self, folder: str, split: str, endings: Collection[str]
    ) -> list[FileOrRows]:
        """Lists the files of a split that are there; see `find`."""
        if self.named:
            return [path for name, path in self.named.items() if name == split]
        paths = (os.path.join(folder, split + ending) for ending in endings)
        present = list(filter(files.exists, paths))
        # Beside a table, `.json` may be anything.
        return [x for x in present if ending_of(x) != ".json"] or present

    def find(
        self,
        folder: str,
        split: str,
        endings: Collection[str],
        held_out: Optional[Any] = None,
    ) -> FileOrRows:
        """Finds the file of a split that was named, or is in `folder`.

        `endings` are lower-case, as `.csv`. With `held_out` a part of the
        training file is the dev set.
        """
        if held_out and split in ("train", "dev"):
            present = self.present(folder, "dev", endings)
            if present:
                raise UserError(
                    f"{present[0]} is there, so no training rows are "
                    "needed as dev set; leave out --dev_share"
                )
            split = "train"
        present = self.present(folder, split, endings)
        if len(present) > 1:
            raise UserError(f"{' and '.join(present)} are both there; keep one")
        if present:
            return present[0]
        if self.named:
            flag, what = FLAGS_OF_SPLITS[split]
            raise UserError(f"{flag} is missing: {what}")
        paths = (os.path.join(folder, split + ending) for ending in endings)
        raise UserError(
            f"there is no {' and no '.join(paths)}; --data_dir is the folder "
            "of the task's files (scripts/download_glue.sh fetches GLUE's)"
        )


NONE_NAMED = SplitFiles()


def check_file(flag: str, path: FileOrRows, endings: Collection[str]) -> None:
    """Checks a file that a flag names, without reading it."""
    if not isinstance(path, str):
        return
    files.check_input(path, flag)
    if ending_of(path) not in endings:
        from adapter_bert.data import formats

        head = files.head(path, "the file")
        formats.refuse(path, head, (*formats.NAMED, *formats.NAMED_TAGGED))
        raise UserError(
            f"{flag} is {path}, expected the ending {' or '.join(endings)}"
        )


# What plain tables do not hold in their first bytes; `formats` reads it.
ODD = re.compile(
    rb"""(?i)\A(?:\xef\xbb\xbf)?\s*
    (?:PK\x03|\xd0\xcf|\xff\xfe|\xfe\xff|<|\[|\{\s*\n|__label__|sep=
    |"?Respondent\ ID)
    |"ImportId""|\A[^\n]*AssignmentStatus""",
    re.VERBOSE,
)
# A line of JSON that people judged holds one of these.
JUDGED = ('_hash"', 'responses"', "AssignmentStatus")

# A cell without labels; an empty one has none either.
NO_LABELS = "[]"
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
# A label that may be a whole list, or a row of 0 and 1 for each label.
LIST = re.compile(
    r"""\(.*\)|\{.*\}|'.*'|".*"|[01](\.0)?([ ;][01](\.0)?)*""", re.DOTALL
)
HINT = " (--label_columns names a column of 0 and 1 for each label)"
# They choose between a character's drawings, as of an emoji with colours.
VARIATIONS = range(0xFE00, 0xFE10)


def appearance(label: str) -> Any:
    """Gives equal keys for labels that look the same, or mean one number.

    Blanks, letter case, characters that cannot be seen, and the ways to write
    a character make no difference.
    """
    text = "".join(
        c
        for c in _composed(label).casefold()
        if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf")
    )
    text = " ".join(text.split())
    return decimal.Decimal(text) if NUMBER.fullmatch(text) else text


def _composed(text: str) -> str:
    composed = unicodedata.normalize("NFKC", text)
    return "".join(c for c in composed if ord(c) not in VARIATIONS)


def shown(labels: Iterable[str]) -> dict[str, str]:
    """Returns the printed form of each label, in their order.

    Quoted, with escapes, if two look the same, or one has blanks or something
    that cannot be seen at an end.
    """
    labels = list(dict.fromkeys(labels))
    quote = str
    if len(set(map(appearance, labels))) < len(labels) or not all(
        label == label.strip() and (label[:1] + label[-1:]).isprintable()
        for label in labels
    ):
        differ = len({_composed(repr(x)) for x in labels}) == len(labels)
        quote = repr if differ else ascii
    return {label: quote(label) for label in labels}


def list_labels(labels: Iterable[str]) -> str:
    """Joins labels with commas, cut to 200 characters."""
    return ", ".join(shown(labels).values())[:200]


def warn_of_lookalikes(labels: Iterable[str], path: str) -> None:
    """Warns of labels that look the same but are classes of their own."""
    groups: dict[Any, list[str]] = {}
    # The plain one first, to which others are compared.
    for label in sorted(labels, key=lambda x: (len(repr(x)), x.swapcase())):
        groups.setdefault(appearance(label), []).append(label)
    pairs = [
        " and ".join(shown((first, other)).values())
        for first, *others in groups.values()
        for other in others
    ]
    if pairs:
        logging.warning(
            "%s: labels look the same, but each spelling is a label of its "
            "own: %s; write them alike if they mean the same (blanks, letter "
            "case and characters that cannot be seen count)",
            path,
            "; ".join(pairs)[:1000],
        )


def warn_of_lists(labels: Iterable[str], separator: str, path: str) -> None:
    """Warns of labels that may be several, as the file does not mean them."""
    listed = [x for x in sorted(labels) if "," in x or LIST.fullmatch(x)]
    if listed:
        logging.warning(
            "%s: labels hold a comma or look like lists: %s; if these are "
            "several labels, put %r between them (--label_separator), or name "
            "a column of 0 and 1 for each (--label_columns)",
            path,
            ", ".join(map(repr, listed))[:200],
            separator,
        )


def spelled(label: str, labels: Sequence[str]) -> Optional[str]:
    """Finds the one of `labels` that a label means; None if there is none.

    JSON's `true` and a table's `True` are one label.
    """
    if label in labels:
        return label
    if label.lower() not in ("true", "false"):
        return None
    alike = [x for x in labels if x.lower() == label.lower()]
    return alike[0] if len(alike) == 1 else None


def split_labels(cell: str, separator: str, where: str) -> tuple[str, ...]:
    """Splits the cell at `where`, without white space around labels."""
    if cell.strip() in ("", NO_LABELS):
        return ()
    return _checked(cell.split(separator), separator, where)


def join_labels(labels: Sequence[str], separator: str, where: str) -> str:
    """Joins labels to a cell, the inverse of `split_labels`."""
    return separator.join(_checked(labels, separator, where))


def _checked(
    labels: Sequence[str], separator: str, where: str
) -> tuple[str, ...]:
    stripped = tuple(label.strip() for label in labels)
    for label in stripped:
        this = repr(label[:80])
        if not label:
            raise UserError(
                f"{where}: a label is empty; expected {separator!r} between "
                f"labels, or of no label an empty cell or {NO_LABELS}"
            )
        if label[0] == "[" or (label[-1] == "]" and "[" not in label):
            raise UserError(
                f"{where}: the label {this} begins or ends with a bracket, as "
                f"lists do; expected {separator!r} between labels, which have "
                f"no such bracket{HINT}"
            )
        if separator in label:
            raise UserError(
                f"{where}: the label {this} holds {separator!r}, which stands "
                "between labels; pass another --label_separator"
            )
        if stripped.count(label) > 1:
            hint = HINT * (label in ("0", "1"))
            raise UserError(f"{where}: the label {this} is given twice{hint}")
    return stripped


# Python's own limit is 128 kB; this one holds in the whole process.
csv.field_size_limit(sys.maxsize)

Found = TypeVar("Found")
# Cells of `Layout.label_columns`, in any case of letters.
MARKS = {
    **dict.fromkeys(("0", "0.0", "false", "no"), False),
    **dict.fromkeys(("1", "1.0", "true", "yes"), True),
}
# (line number from 0, its cells), without the header's line.
Lines = Iterator[tuple[int, list[str]]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Columns of a table, by number from 0 or by name.

    Attributes:
        text_a: the text, or None if only labels are wanted.
        text_b: the second text, or None.
        label: the label, or None for a file without labels.
        header: whether the first line holds the columns' names.
        row_id: the name of a row, or None.
        skips_broken_rows: whether rows with fewer or more columns than the
            header are left out, as QQP's published files need.
        takes_tokens: whether a text may be a list of words in JSON.
        choices: further texts, as the choices of a question.
        label_separator: between the labels of a cell; JSON holds a
            list; None where a row has one label.
        label_columns: in place of `label`, a column of 0 and 1 for each label;
            rows are read as if a cell held the labels that have a 1.
        lists_choices: whether one of `choices` may be a list in JSON, of as
            many texts in each row.
        has_lists: whether JSON may have lists of second texts and of labels,
            in these columns or in those with an s at the end; each member
            makes a row.
        lacks_texts: whether a document may be empty, and in JSON `text_b`
            absent or null, which reads as empty.
    """

    text_a: Optional[Column]
    text_b: Optional[Column] = None
    label: Optional[Column] = None
    header: bool = True
    row_id: Optional[Column] = None
    skips_broken_rows: bool = False
    takes_tokens: bool = False
    choices: tuple[Column, ...] = ()
    label_separator: Optional[str] = None
    label_columns: tuple[Column, ...] = ()
    lists_choices: bool = False
    has_lists: bool = False
    lacks_texts: bool = False

    @property
    def columns(self) -> dict[str, Column]:
        """Lists columns by their field in `Rows`, `choice_0` and `label_0`."""
        columns = {
            "text_a": self.text_a,
            "text_b": self.text_b,
            **{f"choice_{n}": c for n, c in enumerate(self.choices)},
            "label": self.label,
            "row_id": self.row_id,
            **{f"label_{n}": c for n, c in enumerate(self.label_columns)},
        }
        return {n: c for n, c in columns.items() if c is not None}

    @classmethod
    def of_texts(cls, columns: Sequence[Column], **more: Any) -> "Layout":
        """Makes a layout of these texts, in their order, and `more` fields."""
        text_a, *others = columns
        return cls(text_a, *others[:1], choices=tuple(others[1:]), **more)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a table, by the columns of `Layout`, as far as they are needed.

    Objects for rows would take more memory.

    Attributes:
        path: of the file, or the rows in memory.
        lines: int64 [rows], the line of each row, from 0.
    """

    path: FileOrRows
    lines: np.ndarray
    text_a: Optional[list[str]] = None
    text_b: Optional[list[str]] = None
    label: Optional[list[str]] = None
    row_id: Optional[list[str]] = None
    choices: tuple[list[str], ...] = ()

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def texts(self) -> Iterator[tuple[str, ...]]:
        """All texts of each row, by which rows are divided."""
        columns = self.text_a, self.text_b, *self.choices
        return zip(*(x for x in columns if x is not None))

    def where(self, row: int) -> str:
        """A row's place for messages: `<path>:<line from 1>`."""
        return f"{self.path}:{self.lines[row] + 1}"

    def places_by_id(self) -> dict[str, int]:
        """Returns the place of each row, by its id; empty without ids."""
        places: dict[str, int] = {}
        for row, name in enumerate(self.row_id or ()):
            first = places.setdefault(name, row)
            if first != row:
                raise UserError(
                    f"{self.where(row)}: the id {name[:80]!r} is also the id "
                    f"of line {self.lines[first] + 1}; ids must be unique"
                )
        return places

    def take(self, chosen: np.ndarray) -> "Rows":
        """Takes the rows that are chosen, bool [rows]."""
        return self._changed(
            self.lines[chosen],
            lambda column: list(itertools.compress(column, chosen)),
        )

    def first(self, count: int) -> "Rows":
        return self.take(np.arange(len(self)) < count)

    def first_queries(self, count: int) -> "Rows":
        """Takes all rows whose first text is one of the first `count` rows."""
        queries = set(self.text_a[:count])
        chosen = [text in queries for text in self.text_a]
        return self.take(np.array(chosen, bool))

    def followed_by(self, more: "Rows") -> "Rows":
        """Appends rows of another file with the same columns.

        Each row keeps its line in its own file.
        """
        lines = np.concatenate([self.lines, more.lines])
        return self._changed(lines, operator.add, more)

    def _changed(
        self, lines: np.ndarray, change: Callable, *others: "Rows"
    ) -> "Rows":
        """Applies `change` to each column, and to the same one of others."""
        rows = self, *others

        def columns(name: str) -> Optional[list[str]]:
            first, *more = (getattr(one, name) for one in rows)
            return None if first is None else change(first, *more)

        return dataclasses.replace(
            self,
            lines=lines,
            choices=tuple(map(change, *(one.choices for one in rows))),
            **{n: columns(n) for n in ("text_a", "text_b", "label", "row_id")},
        )


def check_distinct(
    columns: Mapping[str, Optional[Column]], hint: str = ""
) -> dict[Column, str]:
    """Checks that no two flags name one column; None is no column.

    Returns:
        The flag of each column.
    """
    flags: dict[Column, str] = {}
    for flag, name in columns.items():
        if name is not None and flags.setdefault(name, flag) != flag:
            raise UserError(
                f"{flags[name]} and {flag} both name the column {name!r}; "
                f"expected a column of its own for each{hint}"
            )
    return flags


def read_rows(path: FileOrRows, layout: Layout) -> Rows:
    """Reads the layout's columns, as `READERS` reads the path's ending.

    A tuple in memory has the values of the columns in their order.
    """
    columns = layout.columns
    labels = [x for n, x in columns.items() if n.startswith("label")]
    if layout.lists_choices and layout.text_b is not None:
        # That both belong together is what people judged.
        labels.append(layout.text_b)
    if not isinstance(path, str):
        from adapter_bert.data import formats

        ending = ending_of(path)
        columns.pop("row_id", None)
        rows = path.objects(list(columns.values()))
        text = formats.accepted(path, rows, labels)
    else:
        ending, text = open_table(path, columns.values(), labels)
        text = _check_not_empty(path, text)
    read, _ = READERS[ending]
    lines = array.array("q")
    names, marks = list(layout.columns), len(layout.label_columns)
    if marks:
        names[-marks:] = ["label"]
    columns: dict[str, list[str]] = {name: [] for name in names}
    for number, cells in read(path, text, layout):
        lines.append(number)
        if marks:
            where = f"{path}:{number + 1}"
            cells[-marks:] = [_marked(cells[-marks:], layout, where)]
        for column, cell in zip(columns.values(), cells):
            column.append(cell)
    if not lines:
        raise UserError(f"{path} holds no rows")
    is_table = ending in (".csv", ".tsv")
    labels = columns.get("label", ()) if is_table else ()
    if any(cell[:1] in ("[", "{") for cell in labels):
        columns["label"] = [
            _unlisted(cell, layout.label_separator, f"{path}:{number + 1}")
            for cell, number in zip(labels, lines)
        ]
    choices = [columns.pop(n) for n in names if n.startswith("choice_")]
    rows = Rows(path, np.array(lines, np.int64), **columns)
    if layout.lists_choices:
        choices = [x for column in choices for x in _spread(rows, column)]
    return dataclasses.replace(rows, choices=tuple(choices))


def _spread(rows: Rows, column: list[Any]) -> list[list[str]]:
    is_json = ending_of(rows.path) in (".jsonl", ".json")
    for row, cell in enumerate(() if is_json else column):
        if cell[:2] in ('["', "['") and cell[-2:] in ('"]', "']"):
            raise UserError(
                f"{rows.where(row)}: a cell holds a list of texts, which only "
                ".jsonl and .json may have; write such a file"
            )
    cells = [(x,) if isinstance(x, str) else x for x in column]
    for row, texts in enumerate(cells):
        if len(texts) != (len(cells[0]) or 1):
            raise UserError(
                f"{rows.where(row)}: a list has {len(texts)} texts, expected "
                f"{len(cells[0]) or 'some'}, as in the first row"
            )
    return list(map(list, zip(*cells)))


def open_table(
    path: str, columns: Collection[Column], labels: Collection[Column] = ()
) -> tuple[str, Iterator[Any]]:
    """Opens a file of rows, plain text where `READERS` lacks its ending.

    Rows that people rejected are left out where columns of labels are read.

    Returns:
        The ending whose reader takes the lines, and the lines.
    """
    ending = ending_of(path)
    head = files.head(path, "the data file")
    first = head.partition(b"\n")[0]
    # A name may hold a comma where semicolons or tabs are between the cells.
    has_marks = b"," not in first or b";" in first or b"\t" in first
    if ODD.search(head) or ending == ".csv" and has_marks:
        from adapter_bert.data import formats

        form = formats.opened(path, ending, head, columns, labels)
        if form:
            return form
    newline = READERS[ending][1] if ending in READERS else "\n"
    lines = files.read_lines(path, "the data file", newline)
    if ending in (".jsonl", ".json"):
        lines = _accepted(path, lines, labels)
    return ending, lines


def _accepted(
    path: str, lines: Iterator[str], labels: Collection[Column]
) -> Iterator[Any]:
    for line in lines:
        if any(mark in line for mark in JUDGED):
            from adapter_bert.data import formats

            lines = itertools.chain([line], lines)
            yield from formats.accepted(path, lines, labels)
            return
        yield line


def _marked(cells: list[str], layout: Layout, where: str) -> str:
    marked = []
    for cell, label in zip(cells, layout.label_columns):
        mark = MARKS.get(cell.strip().lower())
        if mark is None:
            raise UserError(
                f"{where}: the label column {label!r} holds {cell[:80]!r}, "
                "expected 0 or 1 (--label_columns)"
            )
        if mark:
            marked.append(str(label))
    return join_labels(marked, layout.label_separator, where)


def _unlisted(cell: str, separator: Optional[str], where: str) -> str:
    """Reads a cell of labels that holds a list; see `_one_label`."""
    for text in (cell, cell.replace("'", '"')):
        try:
            labels = labels_of(json.loads(text))
            break
        except (ValueError, RecursionError):
            labels = None
    if labels is None:
        return cell
    try:
        value = {"label": labels}
        if separator is None:
            if {*map(type, labels)} - {str}:
                # A label, as `[1]`.
                return cell
            return json_lines.text_at({"label": _one_label(labels)}, "label")
        labels = json_lines.labels_at(value, "label")
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error
    return join_labels(labels, separator, where)


def labels_of(value: Any) -> Optional[list[Any]]:
    """Lists the labels of a list, or of Label Studio's `{"choices": [...]}`.

    None for another value.
    """
    if isinstance(value, Mapping) and value.keys() == {"choices"}:
        value = value["choices"]
    return list(value) if isinstance(value, (list, tuple)) else None


def _one_label(labels: Sequence[Any]) -> Any:
    """Returns the only label of a list."""
    if len(labels) != 1:
        raise ValueError(
            f"found {len(labels)} labels, {str(list(labels))[:80]}, expected "
            "one; pass --multi_label if rows have any number"
        )
    return labels[0]


def _check_not_empty(path: str, lines: Iterator[str]) -> Iterator[str]:
    blank: list[str] = []
    for line in lines:
        blank.append(line)
        # Or an object of JSON.
        if not isinstance(line, str) or line.strip("\r\n"):
            return itertools.chain(blank, lines)
    raise UserError(f"{path} is empty")


def _read_tsv(path: str, text: Iterator[str], layout: Layout) -> Lines:
    """Quotation marks are ordinary characters, as in the GLUE files.

    Empty lines at the end are left out; in a file of one column they are texts.
    """

    def split() -> Lines:
        blank = 0
        for number, line in enumerate(text):
            line = line.rstrip("\n").rstrip("\r")
            if not number:
                passes_over = "\t" in line
            if passes_over and not line:
                blank += 1
                continue
            # The empty lines were not at the end.
            for before in range(number - blank, number):
                yield before, [""]
            blank = 0
            yield number, line.split("\t")

    return _choose_columns(path, split(), layout, "tab-separated")


def _read_csv(path: str, text: Iterator[str], layout: Layout) -> Lines:
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
    at, first = next(lines)
    is_set = layout.label_separator is not None
    parts = [n for n, x in enumerate(first) if is_set and x == layout.label]
    columns = [
        max(parts)
        if field == "label" and parts
        else _find_column(path, first, column, field)
        for field, column in layout.columns.items()
    ]
    if not layout.header:
        lines = itertools.chain([(at, first)], lines)
    needed, width, broken = max(columns) + 1, len(first), 0
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
        elif layout.header and layout.label is not None and cells == first:
            problem = (
                "the header stands here again; delete the line, which joined "
                "files have"
            )
        if problem:
            raise UserError(f"{path}:{number + 1}: {problem}")
        chosen = [cells[column] for column in columns]
        if len(parts) > 1:
            labels = [x for n in parts if (x := cells[n]).strip()]
            where = f"{path}:{number + 1}"
            place = columns.index(parts[-1])
            chosen[place] = join_labels(labels, layout.label_separator, where)
        yield number, chosen
    if broken:
        logging.warning(
            "%s: %d rows with fewer or more columns than the header are left "
            "out",
            path,
            broken,
        )


def _find_column(
    path: str, names: list[str], column: Column, field: str
) -> int:
    if isinstance(column, int):
        return column
    if column not in names:
        raise UserError(
            f"{path}:1: no column is named {column!r}; the header names "
            f"{json_lines.list_keys(names)}{_near(names, column)}"
        )
    if names.count(column) > 1:
        way_out = ", or pass --multi_label" * (field == "label")
        raise UserError(
            f"{path}:1: {names.count(column)} columns are named {column!r}; "
            f"rename all but one{way_out}"
        )
    return names.index(column)


def _near(names: list[str], column: str) -> str:
    for name in names:
        if appearance(name) == appearance(column):
            return (
                f"; {name!r} differs in blanks, letter case or characters that "
                "cannot be seen"
            )
    return "; is its first line a row, not a header?"


def _read_json_lines(path: str, text: Iterator[str], layout: Layout) -> Lines:
    columns = layout.columns

    def read_list(value: dict[str, Any], where: str) -> list[list[str]]:
        names = dict(columns)
        for field in ("text_b", "label"):
            several = f"{names.get(field)}s"
            if names.get(field) not in value and several in value:
                names[field] = several
        if not isinstance(value.get(names["text_b"]), (list, tuple)):
            return [read(value, where)]
        lists = {"text_b": json_lines.texts_at(value, names["text_b"])}
        if "label" in names:
            lists["label"] = json_lines.labels_at(value, names["label"])
        counts = {names[field]: len(x) for field, x in lists.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            raise ValueError(
                f"lists have the lengths {counts}, expected as many members, "
                "at least one"
            )
        cells = [
            lists.get(field) or [json_lines.text_at(value, name)]
            for field, name in names.items()
        ]
        count = max(map(len, cells))
        return [
            [cell[place % len(cell)] for cell in cells]
            for place in range(count)
        ]

    def read(value: dict[str, Any], where: str) -> list[Any]:
        return [
            _json_cell(value, field, name, layout, where)
            for field, name in columns.items()
        ]

    if layout.has_lists:
        for number, rows in read_objects(path, text, read_list):
            yield from ((number, cells) for cells in rows)
        return
    yield from read_objects(path, text, read)


def _json_cell(
    value: dict[str, Any], field: str, name: str, layout: Layout, where: str
) -> Union[str, tuple[str, ...]]:
    is_set = layout.label_separator is not None
    if field == "label":
        labels = labels_of(value.get(name))
        if labels is not None:
            value = {**value, name: labels if is_set else _one_label(labels)}
        # Label Studio's JSON-MIN has a choice that is alone as a text.
        if (
            is_set
            and "annotation_id" in value
            and isinstance(value.get(name), str)
        ):
            value = {**value, name: [value[name]]}
        if is_set:
            labels = json_lines.labels_at(value, name)
            return join_labels(labels, layout.label_separator, where)
    content = value.get(name)
    if isinstance(content, (list, tuple)):
        if layout.takes_tokens:
            return tuple(json_lines.texts_at(value, name))
        if layout.lists_choices and field.startswith("choice_"):
            return tuple(json_lines.labels_at(value, name))
    if layout.lacks_texts and field == "text_b" and content is None:
        return ""
    return json_lines.text_at(value, name)


def read_objects(
    path: FileOrRows,
    text: Iterable[Union[str, Mapping[str, Any]]],
    read: Callable[[Mapping[str, Any], str], Found],
) -> Iterator[tuple[int, Found]]:
    """Reads objects, or lines of their JSON; empty lines are left out.

    Yields:
        The line's number from 0, and what `read` made of (object, place).
    """
    for number, line in enumerate(text):
        if isinstance(line, str) and not line.strip():
            continue
        where = f"{path}:{number + 1}"
        try:
            if isinstance(line, str):
                line = json_lines.parse_object(line.rstrip("\n"))
            parsed = read(line, where)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from error
        yield number, parsed


# Ending -> how its lines are read, and what ends a line.
READERS: dict[
    str, tuple[Callable[[str, Iterator[str], Layout], Lines], str]
] = {
    ".tsv": (_read_tsv, "\n"),
    ".csv": (_read_csv, ""),
    ".jsonl": (_read_json_lines, "\n"),
    ".json": (_read_json_lines, "\n"),
}
