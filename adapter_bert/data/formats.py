"""Files of people's tools, known by their first bytes.

A table in an odd form becomes plain lines of CSV, or objects, with the numbers
of its own lines, so that every reader takes it. A form that is not read is
named, with the tool's option that gives one that is.
"""

import codecs
import collections
import contextlib
import csv
import io
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional, Union

from absl import logging

from adapter_bert import files, json_lines
from adapter_bert.errors import UserError

UTF_16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
# A line of a table, or an object of JSON.
Line = Union[str, Mapping[str, Any]]


class Named(NamedTuple):
    """A form that is not read.

    Attributes:
        name: what the file is.
        begins: matches the first bytes, without a byte-order mark.
        way_out: which option of the tool gives a form that is read.
    """

    name: str
    begins: bytes
    way_out: str


AS_CSV = 'save it as "CSV UTF-8" in Excel, as "Text CSV" in LibreOffice'
NAMED = (
    Named("a spreadsheet (PK)", rb"PK\x03\x04", AS_CSV),
    Named("an old spreadsheet (.xls)", rb"\xd0\xcf\x11\xe0", AS_CSV),
    # A text may begin with one tag.
    Named(
        "HTML",
        rb"\s*<(!doctype html[^<>]*|"
        rb"(html|head|body|table)(\s+[\w:-]+=[^<>]*)?)>"
        rb"\s*(\Z|<(?s:.*)(</|<tr\b|<meta\b))",
        AS_CSV,
    ),
    Named(
        "XML",
        rb"\s*<(\?xml\s[^<>]*\?|!doctype\s[^<>]*|[\w:]+ xmlns[\w:]*=[^<>]*)>"
        rb"\s*(\Z|<)",
        AS_CSV,
    ),
    Named(
        "text of fastText (__label__)",
        rb"__label__\S[^\n]*\n__label__\S",
        'write objects a line (.jsonl), as {"text": "...", "label": "..."}',
    ),
    Named(
        "one JSON object of several lines",
        rb"\s*\{\s*\n\s*(\Z|\"[^\"\n]*\"\s*:)",
        "write an array of objects, or an object a line (.jsonl)",
    ),
)
# Forms of words and spans for taggers.
NAMED_TAGGED = (
    Named("WebAnno TSV", rb"#FORMAT=WebAnno TSV", "export as CoNLL 2002"),
    Named(
        "CoNLL-U",
        rb"# ?(new(doc|par)\s*(\n|\Z)|"
        rb"(sent_id|new(doc|par) id|text|global\S*) = )",
        "name it .conllu, or a column by --tag_column=upos",
    ),
    Named(
        "of CoNLL 2012 (OntoNotes)",
        rb"#begin document",
        "its lines differ in their columns, and its entities are brackets; "
        "write a word and a tag, as B-ORG, on each line",
    ),
    Named(
        "standoff of brat",
        rb"[TREAMN]\d+\t\S+ \S",
        "brat's tools/anntoconll.py makes CoNLL of it, for --token_column=3 "
        "--tag_column=0, once spans of several parts (4 9;25 31) are left out",
    ),
    Named(
        "a table of a word on each row",
        rb"\"?sentence[ _]?(#|id)",
        "write CoNLL: a word, a blank and its tag on each line, an empty line "
        "behind each sentence",
    ),
)
ARRAY = re.compile(rb"\s*\[\s*(\Z|\]\s*\Z|\{\s*(\Z|\"|\}))")
# Where rows come line by line.
NAMED_LINES = (
    *NAMED,
    Named(
        "a JSON array",
        ARRAY.pattern,
        "write an object a line, or name a file (.json)",
    ),
)
EXCEL_SEPARATOR = re.compile(r"(?i)sep=(.)\s*\Z")
QUALTRICS = '{"ImportId"'
# The first column of SurveyMonkey's tables.
SURVEY_MONKEY = "Respondent ID"
# A column of Amazon Mechanical Turk, and what it holds in rejected rows.
TURK, REJECTED = "AssignmentStatus", "rejected"
# Prodigy's keys beside `answer`.
PRODIGY = {"_task_hash", "_input_hash"}
RESPONSES = ".responses"


def plain(head: bytes) -> bytes:
    """Returns the first bytes of a file in UTF-8, without byte-order mark."""
    if head.startswith(UTF_16):
        return head.decode("utf-16", "ignore").encode()
    return head.removeprefix(codecs.BOM_UTF8)


def refuse(path: str, head: bytes, forms: Iterable[Named] = NAMED) -> None:
    """Raises UserError if a file with these first bytes is of a named form."""
    for form in forms:
        if re.match(form.begins, plain(head), re.IGNORECASE):
            raise UserError(f"{path} is {form.name}; {form.way_out}")


def opened(
    path: str, ending: str, head: bytes, columns: Collection[Any], labels: Any
) -> Optional[tuple[str, Iterator[Line]]]:
    """Opens a table that does not look plain; refuses what is not read.

    Args:
        path: of the file.
        ending: of its name, as `.csv`.
        head: its first bytes.
        columns: that are read, names or numbers.
        labels: those of them that hold labels. Without any, rows that people
            rejected are kept.

    Returns:
        The ending of files with such lines, and the lines; None if the table
        is plain.
    """
    refuse(path, head)
    is_json = ending in (".json", ".jsonl")
    if ARRAY.match(plain(head)) and (is_json or _is_all_array(plain(head))):
        return ".jsonl", accepted(path, array(path), labels)
    if ending not in (".csv", ".tsv"):
        return None
    encoding = "utf-16" if head.startswith(UTF_16) else "utf-8-sig"
    start = plain(head).decode(errors="ignore")
    first, second = (*start.splitlines(), "", "")[:2]
    named = EXCEL_SEPARATOR.match(first)
    # Or it is a text.
    if named and (named[1] in second or second in columns):
        delimiter = named[1]
    else:
        named = None
        delimiter = "\t" if ending == ".tsv" else _delimiter(start, columns)
    usual = {".csv": ",", ".tsv": "\t"}[ending]
    if not named and delimiter != usual:
        logging.info("%s: %r stands between its cells", path, delimiter)
    is_tool = any(mark in start for mark in (TURK, "ImportId", SURVEY_MONKEY))
    if not (is_tool or named or encoding == "utf-16" or delimiter != usual):
        return None
    newline = "\n" if ending == ".tsv" else ""
    lines = files.read_lines(path, "the data file", newline, encoding)
    if named:
        next(lines)
    is_tsv = ending == ".tsv" and not named
    records = _records(path, lines, delimiter, is_tsv, bool(named))
    for change in (_qualtrics, _survey_monkey, _turk):
        records = change(path, records, labels)
    lines = itertools.chain.from_iterable(map(_as_csv, records))
    if named and int in map(type, columns):
        # Rows keep the numbers of their lines.
        lines = itertools.chain(["\n"], lines)
    elif named:
        # So they do if the quoted header begins on the line before.
        header = next(lines)
        lines = itertools.chain(header[:1], [header[1:]], lines)
    return ".csv", lines


def _is_all_array(head: bytes) -> bool:
    """False if more stands behind the array: then the lines are texts."""
    text = head.decode(errors="ignore").strip()
    try:
        return json.JSONDecoder().raw_decode(text)[1] == len(text)
    except (ValueError, RecursionError):
        # It goes on, or is broken.
        return True


def _delimiter(start: str, columns: Collection[Any]) -> str:
    """Finds what stands between the cells; a comma unless that is certain."""
    first = start.splitlines()[0] if start else ""
    numbers = [x for x in columns if isinstance(x, int)]
    # What is no CSV is left to its reader.
    with contextlib.suppress(csv.Error):
        by_comma = _cells(first, ",")
        has_commas = len(by_comma) > 1
        if first in columns or has_commas and {*columns} & {*by_comma}:
            return ","
        for mark in ";\t":
            text = io.StringIO(start, newline="")
            rows = list(filter(None, csv.reader(text, delimiter=mark)))
            names = rows[0] if rows else []
            if len(rows) > 2 and not start.endswith("\n"):
                # The last record may be cut.
                rows.pop()
            is_table = len(rows) > 1 and {*map(len, rows)} == {len(names)}
            if not any(numbers):
                # Texts, not cells, have blanks there.
                seen = rows if numbers else rows[:1]
                parts = itertools.chain.from_iterable(x[1:] for x in seen)
                is_table = is_table and not any(x[:1] == " " for x in parts)
            # Of names that hold commas one has to be a column's.
            is_table = is_table and not has_commas
            if len(names) > 1 and (is_table or {*columns} & {*names}):
                return mark
    return ","


def _cells(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [])


# How many lines a record has, and its cells; none where it is left out.
Records = Iterator[tuple[int, list[str]]]


def _records(
    path: str, lines: Iterator[str], delimiter: str, is_tsv: bool, before: int
) -> Records:
    if is_tsv:
        for line in lines:
            text = line.rstrip("\r\n")
            yield 1, text.split("\t") if text else []
        return
    reader, line = csv.reader(lines, delimiter=delimiter, strict=True), 0
    try:
        for cells in reader:
            yield reader.line_num - line, cells
            line = reader.line_num
    except csv.Error as error:
        place = f"{path}:{line + before + 1}"
        raise UserError(f"{place}: not CSV: {error}") from error


def _as_csv(record: tuple[int, list[str]]) -> Iterable[str]:
    count, cells = record
    if not cells:
        return ["\n"] * count
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerow(cells)
    text.seek(0)
    return text


def _qualtrics(path: str, records: Records, labels: Any) -> Records:
    """Passes over the lines of questions and of import ids."""
    first = list(itertools.islice(records, 3))
    is_end = ["".join(cells[:1]).startswith(QUALTRICS) for _, cells in first]
    if True in is_end:
        end = 1 + is_end.index(True)
        _log_header(path, end - 1)
        first[1:end] = [(count, []) for count, _ in first[1:end]]
    yield from first
    yield from records


def _survey_monkey(path: str, records: Records, labels: Any) -> Records:
    """Names a question's columns as the second line does, and reads choices.

    A cell of a label holds its choice or nothing, here 1 or 0.
    """
    first = list(itertools.islice(records, 2))
    is_form = [cells[:1] for _, cells in first] == [[SURVEY_MONKEY], [""]]
    if not is_form:
        yield from first
        yield from records
        return
    _log_header(path, 1)
    (count, names), (more, second) = first
    choices = [
        not name or names[place + 1 : place + 2] == [""]
        for place, name in enumerate(names)
    ]
    named = [s if c else n for n, s, c in zip(names, second, choices)]
    marks = [n for n, x in enumerate(named) if choices[n] and x in labels]
    yield count, named
    yield more, []
    for count, cells in records:
        for place in marks:
            if cells[place : place + 1] in ([""], [named[place]]):
                cells[place] = str(int(bool(cells[place])))
        yield count, cells


def _log_header(path: str, count: int) -> None:
    logging.info("%s: %d more header lines are skipped", path, count)


def _turk(path: str, records: Records, labels: Any) -> Records:
    """Leaves out labels of workers that were rejected."""
    left_out = collections.Counter()
    place = None
    for count, cells in records:
        if not labels or not cells:
            pass
        elif place is None:
            place = cells.index(TURK) if TURK in cells else len(cells)
        elif "".join(cells[place : place + 1]).strip().lower() == REJECTED:
            left_out[f"{TURK} {cells[place]}"] += 1
            cells = []
        yield count, cells
    _log_left_out(path, left_out)


def _log_left_out(path: str, left_out: Mapping[str, int]) -> None:
    if left_out:
        reasons = (f"{n} with {why}" for why, n in sorted(left_out.items()))
        logging.warning(
            "%s: %d rows are left out: %s",
            path,
            sum(left_out.values()),
            ", ".join(reasons)[:500],
        )


def array(path: str) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file that holds an array of them."""
    text = files.read_text(path, "the data file")
    try:
        yield from json_lines.parse_array(text)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def accepted(
    path: str, lines: Iterable[Line], labels: Collection[Any]
) -> Iterator[Line]:
    """Leaves out rows that people rejected; an empty line stands for each.

    Without names of `labels` all are kept. Lines that are no JSON are left to
    their reader.
    """
    left_out = collections.Counter()
    for line in lines:
        row = line
        if isinstance(line, str):
            try:
                row = json_lines.parse_object(line)
            except ValueError:
                yield line
                continue
        row, why = _judged(dict(row), labels)
        if labels and why:
            left_out[why] += 1
        yield "" if labels and why else row
    _log_left_out(path, left_out)


def _judged(
    row: dict[str, Any], labels: Collection[Any]
) -> tuple[dict[str, Any], str]:
    """Returns an object, Argilla's with its answers, and why to leave it out.

    Argilla's columns are named as its own export of tables has them.
    """
    answer = row.get("answer")
    # As a label, a rejection is kept.
    refused = {"ignore"} if "answer" in labels else {"ignore", "reject"}
    if PRODIGY & row.keys() and answer in refused:
        return row, f"answer {answer!r}"
    if str(row.get(TURK, "")).strip().lower() == REJECTED:
        return row, f"{TURK} {row[TURK]}"
    if isinstance(row.get("fields"), Mapping) and isinstance(
        row.get("responses"), Mapping
    ):
        fields, responses = row.pop("fields"), row.pop("responses")
        row.update(fields)
        # A question that nobody answered may be missing.
        answers = [n for n in labels if str(n).endswith(RESPONSES)]
        row.update(dict.fromkeys(answers))
        for name, of in responses.items():
            row[name + RESPONSES] = of
            if not isinstance(of, list):
                continue
            of = [x for x in of if isinstance(x, Mapping)]
            row[name + RESPONSES] = [x.get("value") for x in of]
            row[f"{name}{RESPONSES}.status"] = [
                x.get("status", "submitted") for x in of
            ]
    # Label Studio's tasks.
    if isinstance(row.get("data"), Mapping) and "annotations" in row:
        row.update(row["data"])
    for name in [n for n in row if str(n).endswith(RESPONSES)]:
        statuses = row.get(f"{name}.status")
        values = [] if row[name] in (None, "") else row[name]
        if not isinstance(values, list):
            continue
        if isinstance(statuses, list):
            values = [x for x, s in zip(values, statuses) if s == "submitted"]
        # People who agree give one answer.
        values = [x for n, x in enumerate(values) if x not in values[:n]]
        if not values and name in labels:
            return row, "no submitted response"
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        row[name] = values
    return row, ""
