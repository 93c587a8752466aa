"""Rows that are in memory already, and files of them.

Rows are a list of dictionaries, tuples or texts, a dictionary of columns, a
pandas DataFrame, or a table of Hugging Face's `datasets`. Neither library is
imported here: a table is known by what it can do.
"""

import itertools
import json
import math
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Union

from adapter_bert import files, json_lines
from adapter_bert.errors import UserError

# A row by column, or texts and labels alone.
Record = Union[Mapping[str, Any], Sequence[Any], str]
Rows = Union[Iterable[Record], Mapping[str, Sequence[Any]], Any]


def records(rows: Rows, where: str) -> Iterator[Any]:
    """Yields each row: a dictionary by column, or what a list holds.

    Numbers of `datasets`' classes become their names.

    Args:
        rows: of any form.
        where: name of the rows, for messages.

    Raises:
        UserError: the rows have none of the forms, or columns of one name or
            of several lengths.
    """
    columns: Dict[str, Sequence[Any]] = {}
    if isinstance(rows, Mapping):
        for name, column in rows.items():
            if not isinstance(column, (list, tuple)):
                raise UserError(
                    f"{where}: {name!r} is a {type(column).__name__}, expected "
                    "a list, a column's values; of a dictionary of tables pass "
                    "one table"
                )
        columns = dict(rows)
    elif hasattr(rows, "column_names"):
        yield from _with_class_names(rows)
    elif hasattr(rows, "columns") and hasattr(rows, "shape"):
        names = list(map(str, rows.columns))
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise UserError(
                f"{where}: {names.count(twice[0])} columns are named "
                f"{twice[0]!r}; rename all but one"
            )
        columns = {str(name): list(rows[name]) for name in rows.columns}
    elif isinstance(rows, (str, bytes)) or not hasattr(rows, "__iter__"):
        raise UserError(
            f"{where}: found a {type(rows).__name__}, expected rows (a list, a "
            "DataFrame or another table) or a file's path"
        )
    else:
        yield from rows
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{where}: columns have several lengths: {lengths}")
    for values in zip(*columns.values()):
        yield dict(zip(columns, values))


def _with_class_names(table: Any) -> Iterator[Dict[str, Any]]:
    """The rows of a `datasets` table."""
    names: Dict[str, List[str]] = {}
    for column, feature in (getattr(table, "features", None) or {}).items():
        # Of a list of classes the elements' feature.
        feature = getattr(feature, "feature", feature)
        if getattr(feature, "names", None):
            names[column] = list(feature.names)

    def named(value: Any, known: List[str]) -> Any:
        if isinstance(value, (list, tuple)):
            return [named(part, known) for part in value]
        is_class = isinstance(value, int) and 0 <= value < len(known)
        return known[value] if is_class else value

    for row in table:
        yield {
            column: named(value, names[column]) if column in names else value
            for column, value in row.items()
        }


def write_json_lines(
    path: str, rows: Rows, columns: Sequence[str], where: str
) -> None:
    """Writes rows as JSON Lines, which every task's reader takes.

    Args:
        path: of the file.
        rows: of any form.
        columns: names of what a row holds that is a tuple or a text.
        where: name of the rows, for messages, as `rows`.

    Raises:
        UserError: there is no row, or one has another form.
    """

    def lines() -> Iterator[bytes]:
        for number, row in enumerate(records(rows, where), 1):
            if not isinstance(row, Mapping):
                row = _by_name(row, columns, f"{where}:{number}")
            line = json.dumps({str(k): _plain(v) for k, v in row.items()})
            yield f"{line}\n".encode()

    found = lines()
    first = next(found, None)
    if first is None:
        raise UserError(f"{where} holds no rows")
    files.write_parts(path, itertools.chain([first], found))


def _by_name(row: Any, columns: Sequence[str], where: str) -> Mapping[str, Any]:
    values = [row] if isinstance(row, str) else row
    if not isinstance(values, (list, tuple)) or len(values) != len(columns):
        found = f"a {type(row).__name__}"
        if isinstance(values, (list, tuple)):
            found = f"{len(values)} values"
        raise UserError(
            f"{where}: found {found}, expected {len(columns)} "
            f"({json_lines.list_keys(columns)}), or a dictionary by column"
        )
    return dict(zip(columns, values))


def _plain(value: Any) -> Any:
    """A value that JSON has; a missing one becomes null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if hasattr(value, "tolist"):
        # Of numpy: arrays, and numbers.
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    # pandas' own missing values; else dates and the like.
    text = str(value)
    return None if text in ("<NA>", "NaT") else text


def write_questions(path: str, rows: Rows, where: str) -> None:
    """Writes questions in the form of SQuAD's files.

    Rows are dictionaries, as of the `squad` table of `datasets`: `question`,
    `context`, and where known `id` and `answers`, a dictionary of the lists
    `text` and `answer_start` (in characters of the context).

    Raises:
        UserError: there is no row, or one lacks a text.
    """
    paragraphs = []
    for number, row in enumerate(records(rows, where), 1):
        if not isinstance(row, Mapping) or not {"question", "context"} <= set(
            row
        ):
            raise UserError(
                f"{where}:{number}: expected a dictionary with 'question', "
                "'context' and in training 'answers'"
            )
        row = _plain(row)
        asked = {
            "id": str(row.get("id", number - 1)),
            "question": row["question"],
        }
        answers = row.get("answers")
        if answers is not None:
            if isinstance(answers, Mapping):
                names = ("text", "answer_start")
                pairs = zip(*(answers.get(name) or () for name in names))
                answers = [dict(zip(names, pair)) for pair in pairs]
            asked["answers"] = answers
            asked["is_impossible"] = not answers
        paragraphs.append({"context": row["context"], "qas": [asked]})
    if not paragraphs:
        raise UserError(f"{where} holds no rows")
    document = {"title": "", "paragraphs": paragraphs}
    files.write_json(path, {"version": "", "data": [document]})


def write_lines(path: str, rows: Rows, where: str) -> None:
    """Writes texts, or the column `text`, a line each.

    Raises:
        UserError: a row is no text.
    """

    def lines() -> Iterator[bytes]:
        for number, row in enumerate(records(rows, where), 1):
            text = row.get("text") if isinstance(row, Mapping) else row
            if not isinstance(text, str):
                raise UserError(
                    f"{where}:{number}: found a {type(text).__name__}, "
                    "expected a text, or a dictionary with 'text'"
                )
            line = " ".join(text.splitlines())
            yield f"{line}\n".encode("utf-8", "surrogatepass")

    files.write_parts(path, lines())
