"""The tables that an evaluation writes, as parts of a page."""

import pathlib
from typing import List, Sequence
from xml.etree.ElementTree import Element

from errors import UserError
from scripts.internal.html_page import element, paragraph, section, table
from storage import files

# A matrix of more labels is shown by its greatest confusions.
MOST_LABELS = 25
MOST_CONFUSIONS = 25
MOST_ROWS = 25
MOST_CHARACTERS = 300
TEXTS = ("text", "text_b")
NUMBERS = ("probability_of_label", "loss")


def read_table(path: pathlib.Path) -> List[List[str]]:
    """A table of tabs and line feeds, with its header.

    Raises:
        UserError: it cannot be read, or its rows differ in their cells.
    """
    text = files.read_text(str(path), "the table")
    # Not of `splitlines`, which takes other characters for a line's end.
    rows = [line.split("\t") for line in text.rstrip("\n").split("\n")]
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise UserError(
                f"{path}:{number}: {len(row)} cells, expected {len(rows[0])} "
                "as in the header; evaluate the run again"
            )
    return rows


def _of_set(path: pathlib.Path, name: str) -> str:
    """Which dev set a table is of, where a task has several."""
    suffix = path.stem[len(name) :].lstrip("_")
    return f", {suffix}" if suffix else ""


def _labels(path: pathlib.Path, name: str, what: str) -> Element:
    header, *rows = read_table(path)
    return table(f"{what}{_of_set(path, name)}", header, rows)


def _confusion(path: pathlib.Path) -> Element:
    """How many rows of each label were given each label."""
    header, *rows = read_table(path)
    of_set = _of_set(path, "eval_confusion")
    labels = header[1:]
    if [row[0] for row in rows] != labels:
        raise UserError(
            f"{path} is no confusion matrix, expected rows and columns of the "
            "same labels; evaluate the run again"
        )
    try:
        counts = [list(map(int, row[1:])) for row in rows]
    except ValueError as error:
        raise UserError(
            f"{path} is no confusion matrix: {error}; evaluate the run again"
        ) from error
    if len(labels) > MOST_LABELS:
        return _greatest_confusions(labels, counts, of_set)
    shown = []
    for number, row in enumerate(counts):
        total = max(1, sum(row))
        cells = []
        for column, count in enumerate(row):
            # Also to be seen in print without backgrounds: right is bold.
            text = str(count)
            shade = f"rgba(128, 128, 128, {0.4 * count / total:.2f})"
            cells.append(
                element(
                    "td",
                    element("strong", text) if number == column else text,
                    class_="number",
                    style=f"background: {shade}",
                )
            )
        shown.append((labels[number], *cells))
    return table(
        f"Confusion matrix{of_set}: a row for each right label, a column for "
        "each given one. Right answers are bold; the stronger the shade, the "
        "greater the share of the row",
        ("right \\ given", *labels),
        shown,
    )


def _greatest_confusions(
    labels: Sequence[str], counts: Sequence[Sequence[int]], of_set: str
) -> Element:
    wrong = [
        (count, labels[row], labels[column])
        for row, line in enumerate(counts)
        for column, count in enumerate(line)
        if row != column and count
    ]
    wrong.sort(key=lambda one: -one[0])
    return table(
        f"The most frequent confusions of {len(labels)} labels{of_set}",
        ("right label", "given label", "rows"),
        [
            (right, given, str(count))
            for count, right, given in wrong[:MOST_CONFUSIONS]
        ],
    )


def _shortened(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return text[:MOST_CHARACTERS] + " …"


def _hardest(path: pathlib.Path) -> Element:
    """The rows with the greatest losses."""
    header, *rows = read_table(path)
    caption = (
        f"The {min(len(rows), MOST_ROWS)} dev rows with the greatest losses"
        f"{_of_set(path, 'eval_hardest')}, of {len(rows)} in {path.name}"
    )
    # Which row it is and what it says come first, the numbers last.
    names = sorted(header, key=lambda name: name in NUMBERS)
    order = [header.index(name) for name in names]
    return table(
        caption,
        [name.replace("_", " ") for name in names],
        [[_shortened(row[i]) for i in order] for row in rows[:MOST_ROWS]],
        [name.replace("_", " ") for name in TEXTS],
    )


def evaluation_sections(folder: pathlib.Path, level: int) -> List[Element]:
    """What an evaluation says beside its scores.

    Args:
        folder: of the run, or of one of its tasks.
        level: of the headings.

    Raises:
        UserError: a table cannot be read.
    """
    tables = {
        "Labels": [
            *(
                _labels(path, name, what)
                for name, what in (
                    ("eval_labels", "Scores of each label"),
                    ("eval_types", "Scores of each type of entities"),
                )
                for path in sorted(folder.glob(f"{name}*.tsv"))
            )
        ],
        "Confusions": list(
            map(_confusion, sorted(folder.glob("eval_confusion*.tsv")))
        ),
        "Hardest examples": list(
            map(_hardest, sorted(folder.glob("eval_hardest*.tsv")))
        ),
    }
    lacking = {
        "Labels": "The run has no scores of single labels.",
        "Confusions": "The run has no confusion matrix.",
        "Hardest examples": "The run has no list of its hardest examples.",
    }
    return [
        section(level, title, *(found or [paragraph(lacking[title])]))
        for title, found in tables.items()
    ]
