"""Schemes of tags: which one a file has, and BIO from any of them.

A tag is `O`, or a prefix, a hyphen and the entity's type. With `B` an entity
begins, `I` is within it. Sources: Ramshaw and Marcus 1995 (IOB1, where `B`
stands only between two entities of one type that touch), Tjong Kim Sang and
Veenstra 1999 (IOB2, called BIO here), Ratinov and Roth 2009 (BILOU: `L` ends
an entity, `U` is one of a single word; BIOES calls these `E` and `S`).
"""

import re
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from errors import UserError

OUTSIDE = "O"
BIO, IOB1, BIOES, BILOU = "BIO", "IOB1", "BIOES", "BILOU"
TAG = re.compile(r"([BIESLU])-(\S+)")
# What ends an entity, and what is one.
ENDS = {BIOES: ("E", "S"), BILOU: ("L", "U")}
# Prefixes of other schemes by those of BIO.
TO_BIO = {"S": "B", "U": "B", "E": "I", "L": "I"}

# The place of a word, by its number, for messages.
Where = Callable[[int], str]


class Tag(NamedTuple):
    """A tag in parts.

    Attributes:
        prefix: one of `BIESLU`, or `O`.
        type: of the entity; "" outside.
    """

    prefix: str
    type: str

    def __str__(self) -> str:
        return f"{self.prefix}-{self.type}" if self.type else self.prefix


class Entity(NamedTuple):
    """An entity of a sentence.

    Attributes:
        type: its type.
        start: its first word.
        end: one past the last.
    """

    type: str
    start: int
    end: int


def split_tag(text: str) -> Optional[Tag]:
    """A tag's parts; None if the text is no tag."""
    if text == OUTSIDE:
        return Tag(OUTSIDE, "")
    match = TAG.fullmatch(text)
    return Tag(*match.groups()) if match else None


def find_scheme(
    tags: Sequence[Tag], starts: np.ndarray, where: Where
) -> Optional[str]:
    """The one scheme that all tags of a file follow.

    Args:
        tags: of all words.
        starts: int64 [sentences + 1], each sentence's first word.
        where: for messages.

    Returns:
        `BIO`, `IOB1`, `BIOES` or `BILOU`; None if there is no entity.

    Raises:
        UserError: there is none; the message names the first tag that does
            not follow the others' scheme.
    """
    for scheme, (end, single) in ENDS.items():
        other = {BIOES: "LU", BILOU: "ES"}[scheme]
        if any(tag.prefix in (end, single) for tag in tags):
            _check_ends(tags, starts, where, scheme, other)
            return scheme
    # Every entity begins with one or the other.
    openings = {"B": [], "I": []}
    for before, number in _pairs(tags, starts):
        tag = tags[number]
        if tag.prefix != OUTSIDE and before.type != tag.type:
            openings[tag.prefix].append(number)
    begun, continued = openings["B"], openings["I"]
    if not continued:
        return BIO if begun else None
    if not begun:
        return IOB1
    if len(begun) >= len(continued):
        wrong = tags[continued[0]]
        raise UserError(
            f"{where(continued[0])}: {wrong} continues no entity; expected "
            f"B-{wrong.type}, since entities begin with B- elsewhere in the "
            f"file (scheme {BIO})"
        )
    wrong = tags[begun[0]]
    raise UserError(
        f"{where(begun[0])}: {wrong} follows no entity of its type; expected "
        f"I-{wrong.type}, since entities begin with I- elsewhere in the file "
        f"(scheme {IOB1})"
    )


def _check_ends(tags, starts, where, scheme, other) -> None:
    """Checks tags of a scheme that marks the ends of entities."""
    end, single = ENDS[scheme]
    for before, number in _pairs(tags, starts):
        tag = tags[number]
        inside = tag.prefix in ("I", end)
        is_open = before.prefix in ("B", "I")
        if tag.prefix in other:
            problem = f"is of another scheme than {end}- and {single}-"
        elif inside and not (is_open and before.type == tag.type):
            problem = "continues no entity"
        elif is_open and not inside:
            problem = f"follows an entity that no {end}-{before.type} ends"
        else:
            continue
        raise UserError(
            f"{where(number)}: {tag} {problem}; elsewhere the file has the "
            f"scheme {scheme}"
        )
    for last in starts[1:][np.diff(starts) > 0] - 1:
        if tags[last].prefix in ("B", "I"):
            raise UserError(
                f"{where(last)}: the sentence ends with {tags[last]}, expected "
                f"{end}- or {single}-{tags[last].type}; elsewhere the file "
                f"has the scheme {scheme}"
            )


def _pairs(tags: Sequence[Tag], starts: np.ndarray) -> Iterator:
    """The tag before each word, `O` before a sentence, and the word."""
    first = set(starts.tolist())
    for number in range(len(tags)):
        before = Tag(OUTSIDE, "")
        if number not in first:
            before = tags[number - 1]
        yield before, number


def to_bio(tags: Sequence[Tag], starts: np.ndarray) -> List[Tag]:
    """The same entities in BIO.

    Of what no scheme allows, an `I` that continues nothing begins an entity,
    as conlleval reads it.

    Args:
        tags: of all words, of any scheme.
        starts: int64 [sentences + 1], each sentence's first word.
    """
    found: List[Tag] = []
    for before, number in _pairs(tags, starts):
        tag = tags[number]
        prefix = TO_BIO.get(tag.prefix, tag.prefix)
        # What has ended is not continued.
        ended = before.prefix in ("E", "L", "S", "U")
        if prefix == "I" and (ended or before.type != tag.type):
            prefix = "B"
        found.append(Tag(prefix, tag.type))
    return found


def find_entities(tags: Sequence[Tag]) -> List[Entity]:
    """The entities of a sentence in BIO."""
    found: List[Entity] = []
    for number, tag in enumerate(tags):
        if tag.prefix == "B":
            found.append(Entity(tag.type, number, number + 1))
        elif tag.prefix == "I":
            found[-1] = found[-1]._replace(end=number + 1)
    return found
