"""Cells that hold any number of labels.

Within a run a set of labels is such a cell, whatever file it comes from.
"""

from typing import Any, Sequence, Tuple

from errors import UserError

# Seldom within a label, unlike a comma.
SEPARATOR = "|"
# A cell that holds no label; an empty one holds none either.
NO_LABELS = "[]"


def is_one_cell(label: str) -> bool:
    """Whether a table can hold a label: no tab, no line break, not empty."""
    return "\t" not in label and label.splitlines() == [label]


def check_threshold(threshold: Any, name: str) -> None:
    """Checks the probability from which on a row is given a label.

    Args:
        threshold: what was told.
        name: where, for messages.

    Raises:
        UserError: it is none.
    """
    if not isinstance(threshold, float) or not 0 < threshold < 1:
        raise UserError(
            f"{name} is {threshold!r}, expected a probability above 0 and "
            "below 1"
        )


def check_separator(separator: str) -> None:
    """Checks what stands between labels.

    Raises:
        UserError: it is not a single character that can be within a line.
    """
    if (
        len(separator) != 1
        or separator == "\t"
        or separator.splitlines() != [separator]
    ):
        raise UserError(
            f"--label_separator is {separator!r}, expected a single character, "
            "neither a tab nor a line break"
        )


def split_labels(cell: str, separator: str, where: str) -> Tuple[str, ...]:
    """The labels of a cell, in its order, without white space around them.

    Args:
        cell: of a table.
        separator: that stands between labels, a single character.
        where: the place, for messages.

    Raises:
        UserError: a label is none, or is there twice.
    """
    if cell.strip() in ("", NO_LABELS):
        return ()
    return _checked(cell.split(separator), separator, where)


def join_labels(labels: Sequence[str], separator: str, where: str) -> str:
    """The cell that holds labels, the inverse of `split_labels`.

    Args:
        labels: in any order.
        separator: to stand between them, a single character.
        where: the place, for messages.

    Raises:
        UserError: a label is none, or is there twice.
    """
    return separator.join(_checked(labels, separator, where))


def _checked(
    labels: Sequence[str], separator: str, where: str
) -> Tuple[str, ...]:
    """The labels without white space around them, if a cell can hold them."""
    found = tuple(label.strip() for label in labels)
    for label in found:
        shown = repr(label[:80])
        if not label:
            raise UserError(
                f"{where}: a label is empty; expected {separator!r} between "
                f"labels, or of no label an empty cell or {NO_LABELS}"
            )
        if label[0] == "[" or label[-1] == "]":
            raise UserError(
                f"{where}: the label {shown} begins or ends with a bracket, as "
                f"lists do; expected {separator!r} between labels, which have "
                "no such bracket"
            )
        if separator in label:
            raise UserError(
                f"{where}: the label {shown} holds {separator!r}, which stands "
                "between labels; pass another --label_separator"
            )
        if found.count(label) > 1:
            raise UserError(f"{where}: the label {shown} is given twice")
    return found
