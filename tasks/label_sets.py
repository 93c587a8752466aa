"""Labels as they are printed, and cells that hold any number of them.

Within a run a set of labels is such a cell, whatever file it comes from.
"""

import decimal
import re
import unicodedata
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from absl import logging

from errors import UserError

# Seldom within a label, unlike a comma.
SEPARATOR = "|"
# A cell that holds no label; an empty one holds none either.
NO_LABELS = "[]"


NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
# A label that may be a whole list, or a row of 0 and 1 for each label.
LIST = re.compile(
    r"""\(.*\)|\{.*\}|'.*'|".*"|[01](\.0)?([ ;][01](\.0)?)*""", re.DOTALL
)
HINT = " (--label_columns names a column of 0 and 1 for each label)"
# By them an emoji is drawn in colours, or not.
VARIATIONS = range(0xFE00, 0xFE10)


def appearance(label: str) -> Any:
    """What labels have in common that look the same, or mean one number.

    Blanks, letter case, characters that cannot be seen, and the ways to write
    a character make no difference.
    """
    text = "".join(
        " " if character.isspace() else character
        for character in _composed(label).casefold()
        if character.isspace()
        or unicodedata.category(character) not in ("Cc", "Cf")
    )
    text = " ".join(text.split())
    return decimal.Decimal(text) if NUMBER.fullmatch(text) else text


def _composed(text: str) -> str:
    """A text with one way to write each character."""
    return "".join(
        character
        for character in unicodedata.normalize("NFKC", text)
        if ord(character) not in VARIATIONS
    )


def shown(labels: Iterable[str]) -> Dict[str, str]:
    """How labels are printed: as they are, or quoted where that misleads.

    They are quoted, with escapes, if two look the same, or if one has blanks or
    something that cannot be seen at an end.

    Returns:
        What is printed of each label, in their order.
    """
    labels = list(dict.fromkeys(labels))
    quote: Any = str
    if len(set(map(appearance, labels))) < len(labels) or not all(
        label == label.strip() and (label[:1] + label[-1:]).isprintable()
        for label in labels
    ):
        is_told_apart = len({_composed(repr(x)) for x in labels}) == len(labels)
        quote = repr if is_told_apart else ascii
    return {label: quote(label) for label in labels}


def list_labels(labels: Iterable[str]) -> str:
    """Labels with commas between them, at most 200 characters of all."""
    return ", ".join(shown(labels).values())[:200]


def warn_of_lookalikes(labels: Iterable[str], path: str) -> None:
    """Warns of labels that look the same but are classes of their own."""
    groups: Dict[Any, List[str]] = {}
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
    found = [x for x in sorted(labels) if "," in x or LIST.fullmatch(x)]
    if found:
        logging.warning(
            "%s: labels hold a comma or look like lists: %s; if these are "
            "several labels, put %r between them (--label_separator), or name "
            "a column of 0 and 1 for each (--label_columns)",
            path,
            ", ".join(map(repr, found))[:200],
            separator,
        )


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
        this = repr(label[:80])
        if not label:
            raise UserError(
                f"{where}: a label is empty; expected {separator!r} between "
                f"labels, or of no label an empty cell or {NO_LABELS}"
            )
        if label[0] == "[" or label[-1] == "]":
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
        if found.count(label) > 1:
            raise UserError(
                f"{where}: the label {this} is given twice"
                + HINT * (LIST.fullmatch(label) is not None)
            )
    return found
