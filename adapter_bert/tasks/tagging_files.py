"""Sentences of words with tags: CoNLL files, JSON Lines, schemes of tags.

A tag is `O`, or a prefix, a hyphen and the entity's type, or a type alone
(IO). `B` begins an entity, `I` is within one. Sources: Ramshaw and Marcus 1995
(IOB1, where `B` stands only between two entities of one type that touch), Tjong
Kim Sang and Veenstra 1999 (IOB2, called BIO here), Ratinov and Roth 2009
(BILOU: `L` ends an entity, `U` is one of a single word; BIOES calls these `E`
and `S`), Xue 2003 (BMES: BIOES with `M` for `I`).
"""

import array
import collections
import dataclasses
import functools
import importlib
import itertools
import json
import re
import string
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from adapter_bert import files, json_lines
from adapter_bert.data.memory_rows import FileOrRows, MemoryRows
from adapter_bert.data.tables import ending_of, open_table, read_objects
from adapter_bert.errors import UserError
from adapter_bert.flags import Topic

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
# Prefixes of words that begin an entity, are within one, end one, are one.
SCHEMES = {
    BIOES: "BIES",
    BILOU: "BILU",
    BMES: "BMES",
}
# The first of these prefixes that occurs tells the scheme. Without `M` and `I`,
# BMES is BIOES.
TELLING = {"M": BMES, "E": BIOES, "S": BIOES, "L": BILOU, "U": BILOU}
# What ends an entity, alone or not, and BIO's prefixes for those of others.
CLOSED = {prefix for scheme in SCHEMES.values() for prefix in scheme[2:]}
TO_BIO = {"": "I", **{prefix: "I" for prefix in TELLING}}
TO_BIO.update({single: "B" for *_, single in SCHEMES.values()})


class Tag(NamedTuple):
    """A tag: `prefix` is of `BIESLUMO` or "", `type` is "" outside."""

    prefix: str
    type: str

    def __str__(self) -> str:
        return "-".join(filter(None, self))


NO_ENTITY = Tag(OUTSIDE, "")


class Entity(NamedTuple):
    """An entity of a sentence, from the word `start` up to `end`."""

    type: str
    start: int
    end: int


@functools.lru_cache(maxsize=1024)
def split_tag(text: str) -> Optional[Tag]:
    """Splits a tag into its parts; None if the text is no tag."""
    if text == OUTSIDE:
        return NO_ENTITY
    match = TAG.fullmatch(text)
    if match:
        return Tag(*match.groups())
    return Tag("", text) if PLAIN.fullmatch(text) else None


def find_scheme(rows: "Sentences") -> Optional[str]:
    """Finds the one scheme of all tags of a file, None without entities."""
    tags = rows.tags
    used = {tag.prefix for tag in tags}
    if "" in used:
        _check_plain(rows)
        return IO
    for prefix, scheme in TELLING.items():
        if prefix in used:
            _check_ends(rows, scheme)
            return scheme
    # Every entity begins with one or the other.
    openings: dict[str, list[int]] = {"B": [], "I": []}
    for number, (before, tag) in enumerate(_pairs(tags, rows.starts)):
        if tag.prefix != OUTSIDE and before.type != tag.type:
            openings[tag.prefix].append(number)
    usual = max(openings, key=lambda prefix: len(openings[prefix]))
    scheme = BIO if usual == "B" else IOB1
    if wrong := openings["BI"[usual == "B"]]:
        tag = tags[wrong[0]]
        raise UserError(
            f"{rows.where(wrong[0])}: {tag} begins an entity; expected "
            f"{usual}-{tag.type}, since entities begin with {usual}- elsewhere "
            f"in the file (scheme {scheme})"
        )
    return scheme if openings[usual] else None


def _check_plain(rows: "Sentences") -> None:
    tags, where = rows.tags, rows.where
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


def _check_ends(rows: "Sentences", scheme: str) -> None:
    begin, within, end, single = SCHEMES[scheme]
    last = {*(rows.starts[1:] - 1).tolist()}
    for number, (before, tag) in enumerate(_pairs(rows.tags, rows.starts)):
        goes_on = tag.prefix in (within, end)
        is_open = before.prefix in (begin, within)
        if tag.prefix not in (OUTSIDE, *SCHEMES[scheme]):
            problem = (
                f"is of another scheme than {within}-, {end}- and {single}-"
            )
        elif goes_on and not (is_open and before.type == tag.type):
            problem = "continues no entity"
        elif is_open and not goes_on:
            problem = f"follows an entity that no {end}-{before.type} ends"
        elif number in last and tag.prefix in (begin, within):
            problem = f"ends the sentence, expected {end}- or {single}-"
        else:
            continue
        raise UserError(
            f"{rows.where(number)}: {tag} {problem}; elsewhere the file has "
            f"the scheme {scheme}"
        )


def _pairs(
    tags: Sequence[Tag], starts: np.ndarray
) -> Iterator[tuple[Tag, Tag]]:
    """Yields the tag before each word, `O` before a sentence, and its own."""
    first = set(starts.tolist())
    before = NO_ENTITY
    for number, tag in enumerate(tags):
        yield NO_ENTITY if number in first else before, tag
        before = tag


def to_bio(tags: Sequence[Tag], starts: np.ndarray) -> list[Tag]:
    """Turns the tags of sentences with these starts into BIO.

    An `I` that continues nothing begins an entity, as for conlleval.
    """
    bio: list[Tag] = []
    for before, tag in _pairs(tags, starts):
        prefix = TO_BIO.get(tag.prefix, tag.prefix)
        # What has ended is not continued.
        ended = before.prefix in CLOSED
        if prefix == "I" and (ended or before.type != tag.type):
            prefix = "B"
        bio.append(Tag(prefix, tag.type))
    return bio


def find_entities(tags: Sequence[Tag]) -> list[Entity]:
    """Finds the entities of a sentence in BIO."""
    entities: list[Entity] = []
    for number, tag in enumerate(tags):
        if tag.prefix == "B":
            entities.append(Entity(tag.type, number, number + 1))
        elif tag.prefix == "I":
            entities[-1] = entities[-1]._replace(end=number + 1)
    return entities


def answer_of(
    words: Sequence[str],
    tags: Sequence[Tag],
    spans: Sequence[tuple[int, int, str, float]],
) -> dict[str, Any]:
    """Answers with `tokens`, their `tags` in BIO, and `entities`.

    `spans` are the entities' first character, one past the last, text, score.
    """
    return {
        "tokens": list(words),
        "tags": list(map(str, tags)),
        "entities": [
            {
                "start": start,
                "end": end,
                "text": text,
                "label": entity.type,
                "score": score,
                "first_word": entity.start,
                "last_word": entity.end - 1,
            }
            for entity, (start, end, text, score) in zip(
                find_entities(tags), spans
            )
        ],
    }


# Says in descriptions that punctuation is apart (`cut_words`).
APART = "punctuation_apart"
# Chinese characters: each first one, and one past the last. Source:
# google-research/bert, `tokenization.py`, `_is_chinese_char`.
CHINESE = (
    (0x3400, 0x4DC0),
    (0x4E00, 0xA000),
    (0xF900, 0xFB00),
    (0x20000, 0x2A6E0),
    (0x2A700, 0x2CEB0),
    (0x2F800, 0x2FA20),
)


@functools.cache
def lone_ranges() -> np.ndarray:
    """Characters that BERT's tokenizer makes words, int32 [ranges, 2].

    Punctuation and Chinese; each first one, and one past the last.
    """
    is_alone = np.zeros(sys.maxunicode + 2, np.int8)
    for code in range(sys.maxunicode):
        letter = chr(code)
        is_alone[code] = (
            letter in string.punctuation
            or unicodedata.category(letter)[0] == "P"
        )
    for first, past in CHINESE:
        is_alone[first:past] = 1
    bounds = np.flatnonzero(np.diff(is_alone, prepend=np.int8(0)))
    return bounds.reshape(-1, 2).astype(np.int32)


@functools.cache
def _word(apart: bool) -> "re.Pattern[str]":
    if not apart:
        return re.compile(r"\S+")
    alone = "".join(
        f"\\U{first:08x}-\\U{past - 1:08x}"
        for first, past in lone_ranges().tolist()
    )
    return re.compile(rf"[{alone}]|[^\s{alone}]+")


def cut_words(text: str, apart: bool) -> list[tuple[int, int]]:
    """Finds words between blanks: first characters, and one past the last.

    With `apart` punctuation and Chinese characters are words of their own, as
    for BERT's tokenizer.
    """
    return [match.span() for match in _word(apart).finditer(text)]


def are_apart(words: Iterable[str]) -> bool:
    """True if punctuation is more often a word than within one."""
    alone = within = 0
    for word, count in collections.Counter(words).items():
        parts = cut_words(word, True)
        is_lone = parts == [(0, 1)] and len(cut_words(f"{word}a", True)) > 1
        alone += count * is_lone
        within += count * (len(parts) > 1)
    return alone > within


# Between the columns of a CoNLL file with tabs, and of others. The lookbehind
# has a run of spaces looked at once.
BETWEEN = {
    "tabs": re.compile("((?:(?<! ) +)?\t *)"),
    "spaces": re.compile("( +)"),
}
# Columns of CoNLL-U, and lines that hold no word of the sentence: comments,
# ranges of words, words that are left unsaid.
UNIVERSAL = "id form lemma upos xpos feats head deprel deps misc".split()
PASSED_OVER = re.compile(r"#|[0-9]+[-.][0-9]+\t")
# Opens a line that stands between two documents.
DOCUMENT = "-DOCSTART-"


@dataclasses.dataclass(frozen=True)
class WordColumns:
    """Says where a file keeps words and tags, by flags."""

    token: Optional[str] = Topic.DATA.setting(
        None,
        "The words' column in .conll files, a number from 0, or from -1 at "
        "the end; their key in .jsonl files. Default: 0, or tokens.",
        flag="token_column",
        recorded=True,
    )
    tag: Optional[str] = Topic.DATA.setting(
        None,
        "The tags' column or key. Default: -1, or tags. A name of CoNLL-U, as "
        "upos, reads its parts of speech.",
        flag="tag_column",
        recorded=True,
    )

    def is_universal(self, path: FileOrRows) -> bool:
        """True of a CoNLL-U file, by its ending or a column's name."""
        ending = ending_of(path)
        names = {self.token, self.tag} & {*UNIVERSAL}
        return ending == ".conllu" or ending == ".conll" and bool(names)

    def tags_words(self, path: FileOrRows) -> bool:
        """True where each word has a tag of its own, as its part of speech."""
        of_column = self.tag is None or self.tag in UNIVERSAL
        return self.is_universal(path) and of_column

    def numbers(self, path: str) -> tuple[int, int]:
        numbers = []
        defaults = ("form", "upos") if self.is_universal(path) else ("0", "-1")
        for name, default in zip(("token", "tag"), defaults):
            text = getattr(self, name) or default
            if text in UNIVERSAL:
                text = str(UNIVERSAL.index(text))
            if not re.fullmatch("-?[0-9]{1,4}", text):
                raise UserError(
                    f"--{name}_column is {text!r}, but the columns of {path} "
                    "have numbers, from 0, or from -1 at the end"
                )
            numbers.append(int(text))
        token, tag = numbers
        if token == tag:
            raise UserError(f"--token_column and --tag_column are both {tag}")
        return token, tag

    @property
    def keys(self) -> tuple[str, str]:
        return self.token or "tokens", self.tag or "tags"


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences of a file, word by word.

    Attributes:
        words: of all sentences; may be empty where they are not needed.
        starts: int64 [sentences + 1], each sentence's first word.
        lines: int64 [words], the line of each word, from 0.
        tags: of all words, or None.
        text: the file's lines, where predictions will be written into them;
            of texts the rows' other members.
        texts: the text of each sentence, if words are cut out of texts.
        places: int64 [words, 2], each word's first character in its text, and
            one past the last.
    """

    path: FileOrRows
    words: Sequence[str]
    starts: np.ndarray
    lines: np.ndarray
    tags: Optional[list[Tag]] = None
    text: Sequence[Any] = ()
    columns: WordColumns = WordColumns()
    texts: Sequence[str] = ()
    places: Optional[np.ndarray] = None

    @classmethod
    def of_words(
        cls, sentences: Sequence[Union[str, Sequence[str]]], apart: bool = False
    ) -> "Sentences":
        """Makes sentences of lists of words, or of texts (`cut_words`).

        The text of a list has a space between words.
        """
        texts, places = [], []
        for words in sentences:
            if isinstance(words, str):
                text, spans = words, cut_words(words, apart)
            else:
                text = " ".join(words)
                ends = [0, *itertools.accumulate(len(w) + 1 for w in words)]
                spans = [(a, b - 1) for a, b in zip(ends, ends[1:])]
            texts.append(text)
            places.append(spans)
        return cls.of_texts("", texts, places, range(len(texts)))

    @classmethod
    def of_texts(
        cls,
        path: FileOrRows,
        texts: Sequence[str],
        places: Sequence[Sequence[tuple[int, int]]],
        lines: Sequence[int],
        **others: Any,
    ) -> "Sentences":
        """Makes sentences of texts, and of the places of words in each."""
        counts = list(map(len, places))
        return cls(
            path,
            [text[a:b] for text, spans in zip(texts, places) for a, b in spans],
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            np.repeat(np.array(lines, np.int64), counts),
            texts=texts,
            places=np.array(
                [place for spans in places for place in spans], np.int64
            ).reshape(-1, 2),
            **others,
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def where(self, word: int) -> str:
        """Places a word for messages: `<path>:<line from 1>`."""
        return f"{self.path}:{self.lines[word] + 1}"

    def first(self, count: int) -> "Sentences":
        starts = self.starts[: count + 1]
        words = starts[-1]
        # The text ends with the last word's line.
        lines = self.lines[words - 1] + 1 if words < len(self.lines) else None
        return dataclasses.replace(
            self,
            words=self.words[:words],
            starts=starts,
            lines=self.lines[:words],
            tags=self.tags and self.tags[:words],
            text=self.text[: count if self.texts else lines],
            texts=self.texts[:count],
            places=None if self.places is None else self.places[:words],
        )

    def divide(self, values: Sequence[Any]) -> Iterator[Sequence[Any]]:
        starts = self.starts.tolist()
        for first, last in zip(starts, starts[1:]):
            yield values[first:last]


# Line from 0, word, and tag, None where the file has none.
_Word = tuple[int, str, Optional[str]]


def read_sentences(
    path: FileOrRows,
    columns: WordColumns = WordColumns(),
    needs_tags: bool = True,
    keeps_text: bool = False,
    apart: bool = True,
) -> Sentences:
    """Reads a file in the format of its ending, or texts with spans.

    Unless `needs_tags`, tags are not looked at. With `keeps_text`, predictions
    can be written into the file's lines. `apart` is of `cut_words`.
    """
    read, _ = FORMATS[ending_of(path)]
    is_json = read is _read_json_lines
    if is_json:
        # Numbers are of columns in .conll files.
        is_number = re.compile("-?[0-9]+").fullmatch
        columns = WordColumns(
            *(None if x and is_number(x) else x for x in vars(columns).values())
        )
    if isinstance(path, MemoryRows):
        from adapter_bert.data import formats

        lines = path.objects(columns.keys[: 1 + needs_tags])
        lines = formats.accepted(path, lines, columns.keys[1:] * needs_tags)
    elif is_json:
        _, lines = open_table(path, columns.keys, columns.keys[1:] * needs_tags)
    else:
        lines = files.read_lines(path, "the data file", "\n")
    first, lines = peek(lines)
    if is_json and _texts().has_texts(first, columns):
        return _texts().read_texts(path, lines, columns, needs_tags, apart)
    if not is_json and first[:1] == "#" and not columns.is_universal(path):
        from adapter_bert.data import formats

        formats.refuse(path, first.encode(), formats.NAMED_TAGGED)
    text = list(lines) if keeps_text else ()
    is_each = columns.tags_words(path)
    words: list[str] = []
    starts, numbers = array.array("q", [0]), array.array("q")
    tags: list[Tag] = []
    for sentence in read(path, text or lines, columns, needs_tags):
        for number, word, tag in sentence:
            # Most words occur often.
            words.append(sys.intern(word))
            numbers.append(number)
            if needs_tags:
                parts = split_tag(tag)
                if is_each:
                    parts = NO_ENTITY if tag == "_" else split_tag(f"B-{tag}")
                if parts is None:
                    raise UserError(
                        f"{path}:{number + 1}: {tag[:80]!r} is no tag, "
                        "expected O, or B-, I-, E-, S-, L-, U- or M- and a "
                        "type, as B-PER, or a type alone, as PER; is it the "
                        "right --tag_column?"
                    )
                tags.append(parts)
        starts.append(len(words))
    if not words:
        raise UserError(f"{path} is empty: it holds no word")
    return Sentences(
        path,
        words,
        np.array(starts, np.int64),
        np.array(numbers, np.int64),
        tags if needs_tags else None,
        text,
        columns,
    )


def peek(lines: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
    """Gives the first line or object that is not empty, "", and all lines."""
    before = []
    for line in lines:
        before.append(line)
        if not isinstance(line, str) or line.strip():
            return line, itertools.chain(before, lines)
    return "", iter(before)


def _texts() -> Any:
    """Imports what only files of texts need, and what needs this module."""
    return importlib.import_module("adapter_bert.tasks.character_spans")


def _read_conll(
    path: str, text: Iterable[str], columns: WordColumns, needs_tags: bool
) -> Iterator[list[_Word]]:
    """Reads a word from each line, blank lines between sentences.

    The first word's line decides for all how many columns there are, and
    whether tabs or spaces are between them.
    """
    token, tag = columns.numbers(path)
    is_universal = columns.is_universal(path)
    sentence: list[_Word] = []
    layout: Optional[tuple[str, int]] = None
    first = 0
    for number, line in enumerate(text):
        where = f"{path}:{number + 1}"
        if is_universal and PASSED_OVER.match(line):
            continue
        if _is_between(line):
            if sentence:
                yield sentence
                sentence = []
            continue
        parts, between = _divide(line)
        cells = parts[1::2]
        place, tag_place = _places(len(cells), token, tag)
        if layout is None:
            layout, first = (between, len(cells)), number
            expected = None
            if place is None:
                expected = f"a word in column {token} (--token_column)"
            elif needs_tags and tag_place is None:
                expected = (
                    f"a tag in column {tag} next to the word in column {token} "
                    "(--tag_column, --token_column)"
                )
            if expected:
                raise UserError(
                    f"{where}: found {len(cells)} columns, expected {expected}"
                )
        if (between, len(cells)) != layout:
            raise UserError(
                f"{where}: found {len(cells)} columns with {between} between, "
                f"expected {layout[1]} with {layout[0]}, as in line "
                f"{first + 1}; if words hold spaces, put tabs between columns"
            )
        if not cells[place]:
            raise UserError(
                f"{where}: column {token} is empty, expected a word "
                "(--token_column)"
            )
        label = None if tag_place is None else cells[tag_place]
        sentence.append((number, cells[place], label))
    if sentence:
        yield sentence


def _is_between(line: str) -> bool:
    text = line.strip(" \t\r\n")
    return not text or text.startswith(DOCUMENT)


def _divide(line: str) -> tuple[list[str], str]:
    """Splits a word's line into blanks and cells in turn, and names the blanks.

    `tabs` if the line has any, then cells may be empty or hold spaces; else
    `spaces`.
    """
    inner = line.strip(" \r\n")
    between = "tabs" if "\t" in inner else "spaces"
    before, _, after = line.partition(inner)
    return [before, *BETWEEN[between].split(inner), after], between


def _places(
    count: int, token: int, tag: int
) -> tuple[Optional[int], Optional[int]]:
    """Places word and tag in a line of so many cells; None for nowhere."""
    place, tag_place = (
        column % count if -count <= column < count else None
        for column in (token, tag)
    )
    return place, None if tag_place == place else tag_place


def _read_json_lines(
    path: str, text: Iterable[str], columns: WordColumns, needs_tags: bool
) -> Iterator[list[_Word]]:
    token, tag = columns.keys

    def read(value: dict[str, Any], where: str) -> Iterator[tuple]:
        del where  # `read_objects` puts it before what is wrong.
        words = json_lines.texts_at(value, token)
        if not needs_tags:
            # It will be written again, with tags.
            json_line(value).encode()
            return zip(words, itertools.repeat(None))
        tags = json_lines.texts_at(value, tag)
        if len(tags) != len(words):
            raise ValueError(
                f"found {len(tags)} tags ({tag!r}) of {len(words)} words "
                f"({token!r})"
            )
        return zip(words, tags)

    for number, pairs in read_objects(path, text, read):
        yield [(number, *pair) for pair in pairs]


def _write_conll(rows: Sentences, tags: Sequence[str]) -> Iterator[str]:
    token, tag = rows.columns.numbers(rows.path)
    is_universal = rows.columns.is_universal(rows.path)
    if rows.columns.tags_words(rows.path):
        tags = ["_" if t == OUTSIDE else split_tag(t).type for t in tags]
    ours = iter(tags)
    for line in rows.text:
        if _is_between(line) or is_universal and PASSED_OVER.match(line):
            yield line
            continue
        parts, between = _divide(line)
        _, place = _places(len(parts) // 2, token, tag)
        if place is not None:
            parts[2 * place + 1] = next(ours)
        else:
            blank = "\t" if between == "tabs" else " "
            parts[-1:-1] = blank, next(ours)
        yield "".join(parts)


def _write_json_lines(rows: Sentences, tags: Sequence[str]) -> Iterator[str]:
    ours = rows.divide(tags)
    for _, value in read_objects(
        rows.path, rows.text, lambda value, where: value
    ):
        changed = {**value, rows.columns.keys[1]: list(next(ours))}
        yield f"{json_line(changed)}\n"


def json_line(row: Mapping[str, Any]) -> str:
    """Writes an object; raises ValueError for what JSON lacks."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False, default=str)


def write_tags(path: str, rows: Sentences, tags: Sequence[str]) -> None:
    """Writes a file, whose text was kept, again with other tags."""
    _, write = FORMATS[ending_of(path)]
    if rows.texts:
        write = _texts().write_texts
    files.write_parts(path, (line.encode() for line in write(rows, tags)))


# Ending -> functions that read sentences, and that write tags.
FORMATS: dict[str, tuple[Callable, Callable]] = {
    ".conll": (_read_conll, _write_conll),
    ".jsonl": (_read_json_lines, _write_json_lines),
    ".conllu": (_read_conll, _write_conll),
    ".json": (_read_json_lines, _write_json_lines),
}


def read_map(path: str) -> dict[str, str]:
    """Reads a table of types: an old type, a tab, a new one or `O`."""
    table: dict[str, str] = {}
    text = files.read_text(path, "the table of --map_tags")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        cells = line.rstrip("\r").split("\t")
        where = f"{path}:{number}"
        if len(cells) != 2 or not all(
            TAG.fullmatch(f"B-{cell}") for cell in cells
        ):
            raise UserError(
                f"{where}: {line[:80]!r}, expected an old type, a tab, and a "
                "new type or O"
            )
        if cells[0] in table:
            raise UserError(f"{where}: the type {cells[0]} occurs twice")
        table[cells[0]] = cells[1]
    if not table:
        raise UserError(f"{path} is empty")
    return table


def map_types(rows: Sentences, table: dict[str, str], source: str) -> Sentences:
    """Renames types of sentences in BIO, by a table from `source`."""
    unknown = sorted({t.type for t in rows.tags} - {"", *table})
    if unknown:
        first = next(n for n, t in enumerate(rows.tags) if t.type in unknown)
        raise UserError(
            f"{rows.where(first)}: {source} does not have the types "
            f"{', '.join(unknown)[:200]}; give each a line, with O where it "
            "is no entity"
        )

    def change(tag: Tag) -> Tag:
        new = table.get(tag.type, OUTSIDE)
        return NO_ENTITY if new == OUTSIDE else Tag(tag.prefix, new)

    return dataclasses.replace(rows, tags=list(map(change, rows.tags)))
