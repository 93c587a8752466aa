"""Schemes of tags: which one a file has, and BIO from any of them.

A tag is `O`, or a prefix, a hyphen and the entity's type, or a type alone
(IO). With `B` an entity begins, `I` is within it. Sources: Ramshaw and Marcus
1995 (IOB1, where `B` stands only between two entities of one type that
touch), Tjong Kim Sang and Veenstra 1999 (IOB2, called BIO here), Ratinov and
Roth 2009 (BILOU: `L` ends an entity, `U` is one of a single word; BIOES calls
these `E` and `S`), Xue 2003 (BMES: BIOES with `M` for `I`).
"""

import re
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from errors import UserError

OUTSIDE = "O"
BIO, IOB1, BIOES, BILOU = "BIO", "IOB1", "BIOES", "BILOU"
BMES, IO = "BMES", "IO"
TAG = re.compile(r"([BIESLUM])-(\S+)")
# A type alone. A single letter at an end would be a prefix, as in `b-PER`,
# `B_PER`, `PER-B` and `B`, and a column's name would be a header's.
PLAIN = re.compile(
    r"(?!(?i:(ner_?)?(tag|label)s?|ner|entity)$)"
    r"(?![A-Za-z]([\W_]|$))(?!.*[\W_][A-Za-z]?$)[^\W\d_]\S*"
)
# What is within an entity, what ends one, and what is one.
ENDS = {BMES: "MES", BIOES: "IES", BILOU: "ILU"}
# Prefixes that tell these schemes, the first one that occurs. Without `M` and
# `I`, BMES is BIOES.
TELLING = {"M": BMES, "E": BIOES, "S": BIOES, "L": BILOU, "U": BILOU}
# Prefixes of other schemes by those of BIO.
TO_BIO = {"S": "B", "U": "B", "E": "I", "L": "I", "M": "I", "": "I"}

# The place of a word, by its number, for messages.
Where = Callable[[int], str]


class Tag(NamedTuple):
    """A tag in parts.

    Attributes:
        prefix: one of `BIESLUM`, or `O`; "" of a type alone.
        type: of the entity; "" outside.
    """

    prefix: str
    type: str

    def __str__(self) -> str:
        return "-".join(filter(None, self))


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
    if match:
        return Tag(*match.groups())
    return Tag("", text) if PLAIN.fullmatch(text) else None


def find_scheme(
    tags: Sequence[Tag], starts: np.ndarray, where: Where
) -> Optional[str]:
    """The one scheme that all tags of a file follow.

    Args:
        tags: of all words.
        starts: int64 [sentences + 1], each sentence's first word.
        where: for messages.

    Returns:
        `BIO`, `IOB1`, `BIOES`, `BILOU`, `BMES` or `IO`; None if there is no
        entity.

    Raises:
        UserError: there is none; the message names the first tag that does
            not follow the others' scheme.
    """
    used = {tag.prefix for tag in tags}
    if "" in used:
        _check_plain(tags, where)
        return IO
    for prefix, scheme in TELLING.items():
        if prefix in used:
            _check_ends(tags, starts, where, scheme)
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


def _check_plain(tags: Sequence[Tag], where: Where) -> None:
    """Checks that no type has a prefix, and that some word is outside."""
    plain = next(n for n, tag in enumerate(tags) if not tag.prefix)
    for number, tag in enumerate(tags):
        if tag.prefix and tag.type:
            raise UserError(
                f"{where(plain)}: {str(tags[plain])!r} has no prefix, but "
                f"{str(tag)!r} has one ({where(number)}); expected one for "
                "every type, or for none; is it the right --tag_column?"
            )
    if all(tag.type for tag in tags):
        # As of a column of parts of speech.
        raise UserError(
            f"{where(plain)}: {str(tags[plain])!r} is a type without a prefix, "
            f"and no word of the file has the tag {OUTSIDE}, as words outside "
            "of entities have; is it the right --tag_column?"
        )


def _check_ends(tags, starts, where, scheme) -> None:
    """Checks tags of a scheme that marks the ends of entities."""
    within, end, single = ENDS[scheme]
    for before, number in _pairs(tags, starts):
        tag = tags[number]
        inside = tag.prefix in (within, end)
        is_open = before.prefix in ("B", within)
        if tag.prefix not in (OUTSIDE, "B", within, end, single):
            problem = (
                f"is of another scheme than {within}-, {end}- and {single}-"
            )
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
        if tags[last].prefix in ("B", within):
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
