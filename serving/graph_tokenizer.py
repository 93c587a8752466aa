"""BERT's WordPiece within a graph, by TensorFlow's core operations alone.

Whoever loads a saved model gives it texts, and has neither this project nor the
`tokenizers` library. What that library makes of each single character is
written down in tables, so that both give the same ids. tensorflow-text is
another tokenizer: it folds cases in another way.
"""

from typing import List, NamedTuple, Tuple

import numpy as np
import tensorflow as tf

from serving.graph_entries import (
    CHUNK,
    CODES,
    SURROGATES,
    AddedTokens,
    Tree,
    keep,
    mark,
    places_of,
)
from tokenization import (
    MAX_CHARACTERS_PER_WORD,
    FullTokenizer,
    is_space_or_control,
)

SIGMA, SMALL_SIGMA, FINAL_SIGMA = 0x3A3, 0x3C3, 0x3C2
SPACE = ord(" ")
# What stands for bytes that are no UTF-8; it is dropped.
REPLACEMENT = 0xFFFD
# A letter that nothing else becomes, and that stays as it is.
BETWEEN = ord("\u16b1")
# Trees of the vocabulary: of a word's first piece, of later ones.
FIRST, LATER = 0, 1
# What is left of the characters of an added token but for the first one.
DROPPED = 0


class GraphTokens(NamedTuple):
    """The tokens of all texts, one after the other.

    Attributes:
        text: int32 [tokens], which text each is of.
        ids: int32 [tokens], vocabulary indices.
        first: int32 [tokens], its first character in the text.
        end: int32 [tokens], one past its last character and its accents.
    """

    text: tf.Tensor
    ids: tf.Tensor
    first: tf.Tensor
    end: tf.Tensor


class _Characters(NamedTuple):
    """Normalized characters, one after the other.

    Attributes:
        code: int32 [C].
        text: int32 [C], which text each is of.
        source: int32 [C], the place in its text of what it was made of.
        end: int32 [C], one past that place and the accents after it.
        begins: bool [C], whether it is the first of a word.
    """

    code: tf.Tensor
    text: tf.Tensor
    source: tf.Tensor
    end: tf.Tensor
    begins: tf.Tensor


class GraphTokenizer(tf.Module):
    """Texts to tokens, as a `FullTokenizer` makes them.

    They differ only where marks that are no accents follow each other in an
    order that Unicode normalizes. A token that was added to the vocabulary is a
    character of its own here, whose code is behind Unicode's.

    Attributes:
        unknown_id: of what no entry is found for.
    """

    def __init__(self, tokenizer: FullTokenizer):
        """Writes down what a tokenizer does; takes some seconds."""
        self._lower = tokenizer.do_lower_case
        self.unknown_id = tokenizer.unknown_id

        values, starts = _normalized(tokenizer)
        self._joins = keep(_joins(starts))
        isolated = _isolated(tokenizer, values)
        entries = [_entry(*item) for item in tokenizer.pieces.items()]
        # Those that are looked for before a text is normalized, and after.
        raw, normalized = [], []
        for number, token, is_found in tokenizer.added:
            if not is_found:
                continue
            code = CODES + len(raw) + len(normalized)
            entries.append((FIRST, [code], number))
            text, tokens = token.content, raw
            if token.normalized:
                text, tokens = tokenizer.normalize(text), normalized
            tokens.append((code, text, token.single_word))
        self._raw = AddedTokens(raw, DROPPED) if raw else None
        self._normal = AddedTokens(normalized, SPACE) if normalized else None
        self._entries = Tree(entries, 2)
        codes = CODES + np.arange(len(raw) + len(normalized), dtype=np.int32)
        values = np.concatenate([values, codes])
        starts = np.concatenate([starts, starts[-1] + 1 + codes - CODES])
        isolated = np.concatenate([isolated, np.ones(len(codes), bool)])
        self._values, self._starts = keep(values), keep(starts)
        self._isolated = keep(isolated)
        if self._lower:
            self._cased, self._ignorable = map(keep, _sigma_tables())

    def __call__(self, texts: tf.Tensor) -> GraphTokens:
        """Tokenizes strings [N], UTF-8.

        What is no UTF-8 is left out.
        """
        characters = self._characters(texts)
        word = tf.cumsum(tf.cast(characters.begins, tf.int32)) - 1  # [C]
        firsts = places_of(characters.begins)  # [words]
        count = tf.size(word)
        ends = tf.concat([firsts[1:], [count]], axis=0)[: tf.size(firsts)]
        end = tf.gather(ends, word)  # [C]
        root = tf.where(characters.begins, FIRST, LATER)
        lengths, ids = self._entries.longest(characters.code, end, root)
        is_piece, is_unknown = _chain(firsts, ends, word, end, lengths)
        unknown = tf.gather(is_unknown, word)
        chosen = places_of(
            tf.where(unknown, characters.begins, is_piece)
        )  # [tokens]
        unknown = tf.gather(unknown, chosen)
        past = tf.where(
            unknown,
            tf.gather(end, chosen),
            chosen + tf.gather(lengths, chosen),
        )
        return GraphTokens(
            text=tf.gather(characters.text, chosen),
            ids=tf.where(unknown, self.unknown_id, tf.gather(ids, chosen)),
            first=tf.gather(characters.source, chosen),
            end=tf.gather(characters.end, past - 1),
        )

    def _characters(self, texts: tf.Tensor) -> _Characters:
        """Normalized characters of words, without spaces between them."""
        decoded = tf.strings.unicode_decode(
            texts, "UTF-8", errors="replace", replacement_char=REPLACEMENT
        )
        codes = decoded.values
        text = tf.cast(decoded.value_rowids(), tf.int32)
        row_starts = tf.cast(decoded.row_starts(), tf.int32)
        row_start = tf.gather(row_starts, text)
        source = tf.range(tf.size(codes)) - row_start
        # A character's place ends where the next one begins that is no accent.
        stops = places_of(~tf.gather(self._joins, codes) | tf.equal(source, 0))
        stops = tf.concat([stops, [tf.size(codes)]], axis=0)
        following = tf.searchsorted(
            stops, tf.range(tf.size(codes)), side="right"
        )
        end = tf.gather(stops, following) - row_start
        if self._lower:
            sigmas, small = self._sigmas(codes, text)
            codes = tf.tensor_scatter_nd_update(
                codes, sigmas[:, tf.newaxis], small
            )
        if self._raw is not None:
            codes, end = self._raw.join(codes, text, end)
        # Each character becomes none, one, or several.
        first = tf.gather(self._starts, codes)
        counts = tf.gather(self._starts, codes + 1) - first
        before = tf.cumsum(counts, exclusive=True)
        origin = tf.repeat(tf.range(tf.size(codes)), counts)
        places = tf.range(tf.size(origin)) + tf.gather(first - before, origin)
        code = tf.gather(self._values, places)
        isolated = tf.gather(self._isolated, places)
        text, source, end = (tf.gather(x, origin) for x in (text, source, end))
        if self._normal is not None:
            code, end = self._normal.join(code, text, end)
            isolated |= code >= CODES

        def shift(values: tf.Tensor, start) -> tf.Tensor:
            return tf.concat([[start], values[:-1]], axis=0)[: tf.size(values)]

        is_space = tf.equal(code, SPACE)
        begins = (
            tf.not_equal(text, shift(text, -1))
            | shift(is_space, True)
            | isolated
            | shift(isolated, False)
        )
        found = _Characters(code, text, source, end, begins)
        return _Characters(*(tf.boolean_mask(x, ~is_space) for x in found))

    def _sigmas(
        self, codes: tf.Tensor, text: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Where capital sigmas are, and the small one of each place.

        One is final where a cased character is before it and none behind,
        whatever ignorable ones are between. Source: Unicode 15, table 3-17.
        """
        sigmas = places_of(tf.equal(codes, SIGMA))
        seen = places_of(~tf.gather(self._ignorable, codes))
        before = tf.searchsorted(seen, sigmas, side="left") - 1
        behind = tf.searchsorted(seen, sigmas, side="right")

        def is_cased(number: tf.Tensor) -> tf.Tensor:
            is_there = (number >= 0) & (number < tf.size(seen))
            number = tf.where(is_there, number, 0)
            place = tf.gather(seen, number)
            is_near = tf.equal(tf.gather(text, place), tf.gather(text, sigmas))
            cased = tf.gather(self._cased, tf.gather(codes, place))
            return is_there & is_near & cased

        is_final = is_cased(before) & ~is_cased(behind)
        return sigmas, tf.where(is_final, FINAL_SIGMA, SMALL_SIGMA)


def _chain(
    firsts: tf.Tensor,
    ends: tf.Tensor,
    word: tf.Tensor,
    end: tf.Tensor,
    lengths: tf.Tensor,
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Goes through all words, from piece to piece.

    Args:
        firsts: int32 [words], first characters.
        ends: int32 [words], one past the last ones.
        word: int32 [C], of each character.
        end: int32 [C], the end of its word.
        lengths: int32 [C], of the longest entry from there on.

    Returns:
        Whether a piece begins at a character, bool [C]; whether a word is
        unknown, bool [words].
    """

    def step(current, is_piece, is_unknown):
        is_piece = mark(is_piece, current)
        length = tf.gather(lengths, current)
        stuck = tf.equal(length, 0)
        lost = tf.boolean_mask(tf.gather(word, current), stuck)
        further = current + length
        goes_on = ~stuck & (further < tf.gather(end, current))
        return (
            tf.boolean_mask(further, goes_on),
            is_piece,
            mark(is_unknown, lost),
        )

    is_too_long = ends - firsts > MAX_CHARACTERS_PER_WORD
    some = tf.TensorShape([None])
    _, is_piece, is_unknown = tf.while_loop(
        lambda current, *_: tf.size(current) > 0,
        step,
        [
            # One that is too long would take as many steps as it has pieces.
            tf.boolean_mask(firsts, ~is_too_long),
            tf.zeros_like(word, tf.bool),
            is_too_long,
        ],
        shape_invariants=[some] * 3,
    )
    return is_piece, is_unknown


def _normalized(tokenizer: FullTokenizer) -> Tuple[np.ndarray, np.ndarray]:
    """What each character becomes.

    Returns:
        int32, the characters that all become, one after the other; int32
        [CODES + 1], where those of each begin. What is set apart has spaces
        around it.
    """
    values: List[int] = []
    starts = np.zeros(CODES + 1, np.int32)
    # Many at once, with a letter between them that nothing else becomes.
    for first in range(0, CODES, CHUNK):
        codes = range(first, first + CHUNK)
        letters = ["" if c in SURROGATES else chr(c) for c in codes]
        if chr(BETWEEN) in letters:
            letters[BETWEEN - first] = ""
        found = tokenizer.normalize(chr(BETWEEN).join(letters))
        texts = found.split(chr(BETWEEN))
        if len(texts) != CHUNK:
            raise ValueError(f"{len(texts)} texts of {CHUNK} characters")
        for code, text in zip(codes, texts):
            starts[code] = len(values)
            values += map(ord, chr(code) if code == BETWEEN else text)
    starts[CODES] = len(values)
    return np.array(values, np.int32), starts


def _joins(starts: np.ndarray) -> np.ndarray:
    """Which characters vanish, but stay in the place of the one before.

    Args:
        starts: as of `_normalized`.

    Returns:
        bool [CODES].
    """
    joins = np.diff(starts) == 0
    for code in np.flatnonzero(joins):
        joins[code] = not is_space_or_control(chr(code))
    return joins


def _isolated(tokenizer: FullTokenizer, values: np.ndarray) -> np.ndarray:
    """Which of the characters are words of their own, bool like `values`."""
    codes = np.unique(values)
    flags = np.zeros(CODES, bool)
    text = "a".join(map(chr, codes))
    for word, (first, end) in tokenizer.split(text):
        # Every other character is one of those in question.
        if end - first == 1 and first % 2 == 0:
            flags[ord(word)] = True
    return flags[values]


def _sigma_tables() -> Tuple[np.ndarray, np.ndarray]:
    """Characters that are cased, and that do not count: bool [CODES] each."""
    cased, ignorable = np.zeros(CODES, bool), np.zeros(CODES, bool)
    for code in range(CODES):
        letter, small = chr(code), chr(SMALL_SIGMA)
        if f"a\u03a3{letter}".lower()[1] == small:
            cased[code] = True
        elif f"a\u03a3{letter}a".lower()[1] == small:
            ignorable[code] = True
    return cased, ignorable


def _entry(piece: str, number: int) -> Tuple[int, List[int], int]:
    """The tree, the characters and the id of an entry of a vocabulary."""
    is_later = piece.startswith("##")
    text = piece[2:] if is_later else piece
    return (LATER if is_later else FIRST), list(map(ord, text)), number
