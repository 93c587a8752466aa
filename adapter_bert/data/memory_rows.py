"""Rows that are in memory already, read where else a file is.

Rows are a list of dictionaries, tuples or texts, a dictionary of columns, a
pandas DataFrame, a table of Hugging Face's `datasets` or of `pyarrow`, or a
`tf.data.Dataset`. None of these libraries is imported here: a table is known by
what it can do.
"""

import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Union

from absl import logging

from adapter_bert import json_lines
from adapter_bert.errors import UserError

# A row by column, or texts and labels alone.
Record = Union[Mapping[str, Any], Sequence[Any], str]
AnyRows = Union[Iterable[Record], Mapping[str, Sequence[Any]], Any]
# Values that are told as text.
TOLD = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
)
NANOSECONDS = "datetime64[ns]", "timedelta64[ns]"


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryRows:
    """Rows that stand in the place of a file's path.

    Attributes:
        rows: of any form.
        name: of the rows, for messages, as `rows`.
    """

    rows: AnyRows
    name: str

    def __post_init__(self):
        """Keeps the rows of an iterator, which can be read once alone."""
        if isinstance(self.rows, Iterator):
            object.__setattr__(self, "rows", list(self.rows))

    def __str__(self) -> str:
        return self.name

    def records(self, columns: Sequence[str] = ()) -> Iterator[Any]:
        """Yields each row as `records` does; refuses rows without any."""
        rows = records(self.rows, self.name, columns)
        first = next(rows, None)
        if first is None:
            raise UserError(f"{self.name} holds no rows")
        return itertools.chain([first], rows)

    def objects(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Yields a dictionary for each row; `columns` name a tuple's values."""
        for number, row in enumerate(self.records(columns), 1):
            if not isinstance(row, Mapping):
                row = _by_name(row, columns, f"{self.name}:{number}")
            yield row


# Where rows are read from: a file, or memory.
FileOrRows = Union[str, MemoryRows]


def records(
    rows: AnyRows, where: str, columns: Sequence[str] = ()
) -> Iterator[Any]:
    """Yields each row: a dictionary by column, or what a list holds.

    Bytes, tensors, arrays and enums become Python's own values, and numbers of
    `datasets`' classes their names. Other objects stay as they are.

    Args:
        rows: of any form.
        where: name of the rows, for messages.
        columns: a row is left out where one of them holds -1, the number that
            `datasets` has for an unknown class. Of a named tuple or a record
            that has them all, the names count.
    """
    if isinstance(rows, Mapping):
        rows = _zipped(dict(rows), where)
    elif hasattr(rows, "column_names"):
        rows = _with_class_names(rows, where, columns)
    elif hasattr(rows, "columns") and hasattr(rows, "shape"):
        names = list(map(str, rows.columns))
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise UserError(
                f"{where}: {names.count(twice[0])} columns are named "
                f"{twice[0]!r}; rename all but one"
            )
        rows = _zipped({str(name): rows[name] for name in rows.columns}, where)
    elif (
        isinstance(rows, (str, bytes))
        or not hasattr(rows, "__iter__")
        or getattr(rows, "shape", None) == ()
    ):
        raise UserError(
            f"{where}: found a {type(rows).__name__}, expected rows (a list, a "
            "DataFrame or another table) or a file's path"
        )
    for number, row in enumerate(rows, 1):
        of_dtype = getattr(getattr(row, "dtype", None), "names", None)
        names = getattr(row, "_fields", of_dtype)
        is_one = getattr(row, "shape", ()) == ()
        if names and is_one and columns and {*columns} <= {*names}:
            row = dict(zip(names, row))
        yield _plain(row, f"{where}:{number}")


def _zipped(columns: Mapping[str, Any], where: str) -> Iterator[Any]:
    for name, column in columns.items():
        is_table = hasattr(column, "column_names") or hasattr(column, "columns")
        if (
            is_table
            or isinstance(column, (str, bytes, Mapping))
            or not hasattr(column, "__len__")
        ):
            raise UserError(
                f"{where}: {name!r} is a {type(column).__name__}, expected a "
                "list, a column's values; of a dictionary of tables pass one "
                "table"
            )
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{where}: columns have several lengths: {lengths}")
    return (dict(zip(columns, row)) for row in zip(*columns.values()))


def _with_class_names(
    table: Any, where: str, columns: Sequence[str]
) -> Iterator[dict[str, Any]]:
    features = getattr(table, "features", None) or {}
    if hasattr(table, "to_pylist"):
        # `datasets` keeps the names next to the numbers.
        kept = (table.schema.metadata or {}).get(b"huggingface", b"{}")
        features = json.loads(kept).get("info", {}).get("features") or {}
        table = table.to_pylist()
    elif hasattr(table, "with_format"):
        # Tensors and the like have lost the names; a user's own function stays.
        if getattr(table, "format", {}).get("type") != "custom":
            table = table.with_format(None)
    classes = [c for c in columns if _member(features.get(c), "names")]
    left_out = 0
    for row in table:
        if any(row.get(column) == -1 for column in classes):
            left_out += 1
            continue
        yield {
            column: _named(value, features.get(column))
            for column, value in row.items()
        }
    if left_out:
        logging.warning(
            "%s: %d rows without a label (-1) are left out, and not counted in "
            "numbers of rows",
            where,
            left_out,
        )


def _member(feature: Any, name: str) -> Any:
    if isinstance(feature, Mapping):
        return feature.get(name) if "_type" in feature else None
    return getattr(feature, name, None)


def _named(value: Any, feature: Any) -> Any:
    if isinstance(value, (list, tuple)):
        # Of lists the elements' feature, however deep.
        inner = _member(feature, "feature") or feature
        if isinstance(inner, list):
            inner = inner[0]
        return [_named(element, inner) for element in value]
    if isinstance(value, Mapping):
        inner = _member(feature, "feature") or feature
        if not isinstance(inner, Mapping):
            return value
        return {
            k: _named(element, inner.get(k)) for k, element in value.items()
        }
    names = _member(feature, "names")
    if not names or not isinstance(value, int):
        return value
    if value == -1:
        return None
    return names[value] if 0 <= value < len(names) else value


def _by_name(row: Any, columns: Sequence[str], where: str) -> Mapping[str, Any]:
    values = [row] if isinstance(row, str) else row
    if not isinstance(values, (list, tuple)) or len(values) != len(columns):
        kind = f"a {type(row).__name__}"
        if isinstance(values, (list, tuple)):
            kind = f"{len(values)} values"
        raise UserError(
            f"{where}: found {kind}, expected {len(columns)} "
            f"({json_lines.list_keys(columns)}), or a dictionary by column"
        )
    return dict(zip(columns, values))


def _plain(value: Any, where: str) -> Any:
    """A value of Python's own types, if it has one; a missing one is None.

    `where` is its row, and its column.
    """
    if isinstance(value, Mapping):
        return {
            str(name): _plain(element, f"{where}: {str(name)!r}")
            for name, element in value.items()
        }
    if isinstance(value, enum.Enum):
        value = value.value
    if str(getattr(value, "dtype", "")) in NANOSECONDS:
        # As of pandas; else numpy makes a number of it.
        value = value.astype(f"{value.dtype.kind}8[us]")
    # Of pyarrow, numpy and torch, and TensorFlow.
    for change in ("as_py", "tolist", "numpy", "tolist"):
        if hasattr(value, change):
            value = getattr(value, change)()
    if isinstance(value, (list, tuple)):
        elements = [_plain(element, where) for element in value]
        return tuple(elements) if isinstance(value, tuple) else elements
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where}: found bytes that are no UTF-8 ({error.reason}), "
                "expected text"
            ) from error
    if isinstance(value, float) and math.isnan(value):
        return None
    # pandas' own missing values.
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return str(value) if isinstance(value, TOLD) else value
