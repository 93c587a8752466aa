"""Warnings of what people's own rows may not mean."""

import collections
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Optional

from absl import logging

from adapter_bert.data.table_flags import SEPARATOR
from adapter_bert.data.tables import Rows, appearance

# What spreadsheets write in place of a value.
ERRORS = frozenset(
    "#NAME? #N/A #REF! #VALUE! #DIV/0! #NULL! #NUM! #SPILL! #FIELD!".split()
)
# Characters that UTF-8 gives when it is read as Windows-1252.
TWICE = re.compile("[\u00c2-\u00f4][^\\x00-\\x7f]{1,3}")
# Tools put one of them between the labels of a cell.
SEPARATORS = "#;,|/"
SHORT = {"y": "yes", "n": "no", "t": "true", "f": "false"}


def of_rows(rows: Rows) -> None:
    """Warns of damaged, empty and equal rows."""
    columns = [x for x in (rows.text_a, rows.text_b, *rows.choices) if x]
    _of_cells(rows, [*columns, rows.label or []])
    texts = list(rows.texts)
    empty = [[not text.strip() for text in of] for of in zip(*columns)]
    some, whole = sum(map(any, empty)), sum(map(all, empty))
    if some:
        first = rows.where(next(n for n, x in enumerate(empty) if any(x)))
        logging.warning(
            "%s: of %d rows %d have an empty text, %d of them no other "
            "(the first: %s)",
            rows.path,
            len(rows),
            some,
            whole,
            first,
        )
    if rows.label is not None:
        counts = collections.Counter(zip(texts, rows.label))
        if again := len(rows) - len(counts):
            [(most, _)] = counts.most_common(1)
            logging.warning(
                "%s: %d of %d rows are there before, with the same texts and "
                "labels (as %s)",
                rows.path,
                again,
                len(rows),
                str(most)[:120],
            )


def _of_cells(rows: Rows, columns: Iterable[Sequence[str]]) -> None:
    errors: list[tuple[int, str]] = []
    twice: list[tuple[int, str, str]] = []
    for cells in columns:
        for row, cell in enumerate(cells):
            if cell[:1] == "#" and cell.strip() in ERRORS:
                errors.append((row, cell))
            elif isinstance(cell, str) and not cell.isascii():
                twice += [(row, *pair) for pair in _encoded_twice(cell)]
    if errors:
        row, cell = min(errors)
        logging.warning(
            "%s: %d cells hold an error of a spreadsheet (the first: %s %s)",
            rows.path,
            len(errors),
            rows.where(row),
            cell,
        )
    if twice:
        row, is_there, meant = min(twice)
        logging.warning(
            "%s: %d rows look as if they were encoded twice (the first: %s "
            "%s, which may mean %s); export the file as UTF-8 once",
            rows.path,
            len({row for row, *_ in twice}),
            rows.where(row),
            is_there,
            meant,
        )


def _encoded_twice(text: str) -> Iterator[tuple[str, str]]:
    """Yields words that are UTF-8 read as Windows-1252, and what they mean."""
    for word in text.split(" "):
        if TWICE.search(word):
            try:
                yield word, word.encode("cp1252").decode()
            except UnicodeError:
                continue


def of_labels(labels: Collection[str], path: str) -> None:
    """Warns of labels that may be several, or short for others."""
    by_look = {appearance(label): label for label in sorted(labels)}
    short = [
        f"{by_look[x]} and {by_look[long]}"
        for x, long in SHORT.items()
        if {x, long} <= by_look.keys()
    ]
    if short:
        logging.warning(
            "%s: labels may be short for others, but each is a label of its "
            "own: %s",
            path,
            ", ".join(short),
        )
    distinct = {*labels}
    for mark in SEPARATORS:
        joined = [
            x
            for x in sorted(distinct)
            if mark in x and _parts(x, mark) & distinct
        ]
        if joined:
            logging.warning(
                "%s: labels hold %r between others: %s; if these are several "
                "labels, pass --multi_label --label_separator='%s'",
                path,
                mark,
                ", ".join(joined)[:200],
                mark,
            )


def _parts(label: str, mark: str) -> set[str]:
    return {part.strip() for part in label.split(mark)}


def of_sets(
    sets: Iterable[Sequence[str]], path: str, separator: Optional[str]
) -> None:
    """Warns of labels that are texts, and of a label that was cut in two."""
    sets = list(map(tuple, sets))
    counts = collections.Counter(itertools.chain(*sets))
    if len(counts) > 1 and set(counts.values()) == {1}:
        logging.warning(
            "%s: each of %d labels occurs once; are they answers in words, "
            "not labels?",
            path,
            len(counts),
        )
    if separator == SEPARATOR:
        return
    pairs = collections.Counter(pair for of in sets for pair in zip(of, of[1:]))
    always = [
        f"{first!r} and {second!r}"
        for (first, second), count in sorted(pairs.items())
        if count > 1 and counts[first] == counts[second] == count
    ]
    if always:
        logging.warning(
            "%s: these labels always stand together, so one label may hold "
            "the separator %r: %s",
            path,
            separator,
            ", ".join(always)[:200],
        )
