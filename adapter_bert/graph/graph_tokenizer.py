"""BERT's WordPiece within a graph, by TensorFlow's core operations alone.

So a saved model needs neither this project nor the library `tokenizers`.
Tables hold that library's result for each character, hence ids are equal.
tensorflow-text folds cases in another way.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from tokenizers import AddedToken, Tokenizer, models

from adapter_bert.data.tokenization import (
    MAX_CHARACTERS_PER_WORD,
    FullTokenizer,
    is_space_or_control,
)

CODES = 0x110000
SURROGATES = range(0xD800, 0xE000)
CHUNK = 2**14
# A node and, in the lower bits, a character are one key.
CODE_BITS = 21


def keep(values: Any, dtype: Any = None) -> tf.Variable:
    """Makes a variable of numbers or UTF-8 strings, an array or lists."""
    return tf.Variable(np.array(values, dtype), trainable=False)


def places_of(marks: tf.Tensor) -> tf.Tensor:
    """Finds the true values of bool [C], int32 [places]."""
    return tf.cast(tf.where(marks)[:, 0], tf.int32)


def put(values: tf.Tensor, places: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    """Replaces values [C, ...] at int32 [places] by `new` [places, ...]."""
    return tf.tensor_scatter_nd_update(values, places[:, tf.newaxis], new)


def mark(marks: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Marks int32 [places] in bool [C]."""
    return put(marks, places, tf.ones_like(places, tf.bool))


def before(values: tf.Tensor, first: Any) -> tf.Tensor:
    """Gives the value before each of [C], `first` before the first."""
    return tf.concat([[first], values], axis=0)[: tf.size(values)]


class Tree(tf.Module):
    """Tries of characters."""

    def __init__(
        self, entries: Iterable[tuple[int, Sequence[int], int]], roots: int
    ):
        """Takes entries (root from 0, characters, id), and how many roots."""
        super().__init__()
        edges: dict[int, int] = {}
        ids = [-1] * roots
        for node, codes, number in entries:
            for code in codes:
                key = (node << CODE_BITS) + code
                if key not in edges:
                    edges[key] = len(ids)
                    ids.append(-1)
                node = edges[key]
            if codes:
                ids[node] = number
        keys = np.array(sorted(edges), np.int64)
        nodes = [edges[key] for key in keys.tolist()]
        self._keys = keep(keys)
        self._nodes = keep(nodes, np.int64)
        self._ids = keep(ids, np.int32)

    def longest(
        self, code: tf.Tensor, end: tf.Tensor, root: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the longest entry that begins at each character.

        Takes codes, one past the last usable character, and roots; gives
        lengths, 0 without an entry, and ids: all int32 [C].
        """
        count = tf.size(code)
        codes = tf.cast(code, tf.int64)

        def step(offset, active, node, lengths, ids):
            inside = active + offset < tf.gather(end, active)
            active, node = (tf.boolean_mask(x, inside) for x in (active, node))
            code = tf.gather(codes, active + offset)
            key = tf.bitwise.left_shift(node, tf.constant(CODE_BITS, tf.int64))
            key += code
            place = tf.searchsorted(self._keys, key)
            place = tf.minimum(place, tf.size(self._keys) - 1)
            is_known = tf.equal(tf.gather(self._keys, place), key)
            active, place = (
                tf.boolean_mask(x, is_known) for x in (active, place)
            )
            node = tf.gather(self._nodes, place)
            entry = tf.gather(self._ids, node)
            is_entry = entry >= 0
            begins = tf.boolean_mask(active, is_entry)
            length = tf.fill(tf.shape(begins), offset + 1)
            return (
                offset + 1,
                active,
                node,
                put(lengths, begins, length),
                put(ids, begins, tf.boolean_mask(entry, is_entry)),
            )

        some = tf.TensorShape([None])
        *_, lengths, ids = tf.while_loop(
            lambda offset, active, *_: tf.size(active) > 0,
            step,
            [
                tf.constant(0),
                tf.range(count),
                tf.cast(root, tf.int64),
                tf.zeros([count], tf.int32),
                tf.zeros([count], tf.int32),
            ],
            shape_invariants=[tf.TensorShape([]), *[some] * 4],
        )
        return lengths, ids


class AddedTokens(tf.Module):
    """Added tokens, which become one character with a code past Unicode's."""

    def __init__(
        self,
        tokens: Sequence[tuple[int, int, str, bool]],
        rest: int,
        roots: int,
    ):
        """Takes (vocabulary, code, characters, is a whole word).

        `rest` replaces all but a token's first character. A text has the tokens
        of one of `roots` vocabularies.
        """
        super().__init__()
        self._rest = rest
        entries = [
            (n, list(map(ord, text)), code) for n, code, text, _ in tokens
        ]
        self._tree = Tree(entries, roots) if tokens else None
        self._alone = None
        if any(alone for *_, alone in tokens):
            self._alone = keep([c for _, c, _, x in tokens if x], np.int32)
            self._letters = keep(_letters())

    def join(
        self,
        codes: tf.Tensor,
        text: tf.Tensor,
        stop: tf.Tensor,
        vocabulary: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Makes one character of each token's characters.

        Of overlapping tokens the first counts, and the longest of those that
        begin together. `stop`, int32 [C], are the ends of the characters'
        sources. Returns new `codes` and `stop`.
        """
        if self._tree is None:
            return codes, stop
        end = tf.searchsorted(text, text, side="right")
        lengths, added = self._tree.longest(
            codes, end, tf.gather(vocabulary, text)
        )
        places = places_of(lengths > 0)
        past = places + tf.gather(lengths, places)  # [matches]
        taken = _apart(places, past, tf.gather(text, places))
        if self._alone is not None:
            tokens = tf.gather(added, places)[:, tf.newaxis]
            alone = tf.reduce_any(tf.equal(tokens, self._alone), axis=1)
            taken &= ~alone | self._is_alone(codes, text, places, past)
        places, past = (tf.boolean_mask(x, taken) for x in (places, past))
        number = tf.range(tf.size(codes))
        # The end of the token that begins here or before.
        last = tf.searchsorted(places, number, side="right")
        is_inside = number < tf.gather(tf.pad(past, [[1, 0]]), last)
        codes = tf.where(is_inside, self._rest, codes)
        return (
            put(codes, places, tf.gather(added, places)),
            put(stop, places, tf.gather(stop, past - 1)),
        )

    def _is_alone(
        self,
        codes: tf.Tensor,
        text: tf.Tensor,
        places: tf.Tensor,
        past: tf.Tensor,
    ) -> tf.Tensor:
        """Marks matches that adjoin no letter of their text, bool [matches].

        `places` and `past` are first characters and one past the last ones.
        """
        letters = tf.pad(
            tf.gather(self._letters, tf.minimum(codes, CODES - 1)), [[1, 1]]
        )
        text = tf.pad(text, [[1, 1]], constant_values=-1)

        def is_letter(place: tf.Tensor, match: tf.Tensor) -> tf.Tensor:
            near = tf.equal(tf.gather(text, place), tf.gather(text, match))
            return near & tf.gather(letters, place)

        inside = places + 1
        return ~(is_letter(places, inside) | is_letter(past + 1, inside))


def _apart(places: tf.Tensor, past: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
    """Marks matches that do not overlap an earlier one that counts.

    All are int32 [matches]: rising beginnings, one past the ends, the texts.
    """
    count = tf.size(places)
    # Each match leads to the next one behind its end, or to none.
    jump = tf.concat([tf.searchsorted(places, past), [count]], axis=0)
    taken = tf.not_equal(text, before(text, -1))
    taken = tf.pad(taken, [[0, 1]])
    # What 2^k steps reach, then twice as many.
    _, taken = tf.while_loop(
        lambda jump, _: tf.reduce_any(jump < count),
        lambda jump, taken: (
            tf.gather(jump, jump),
            mark(taken, tf.boolean_mask(jump, taken)),
        ),
        [jump, taken],
        shape_invariants=[tf.TensorShape([None])] * 2,
    )
    return taken[:count]


@functools.cache
def _letters() -> np.ndarray:
    """Marks what the library takes for letters, bool [CODES]."""
    is_letter = np.zeros(CODES, bool)
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("=", single_word=True, normalized=False)])
    for first in range(0, CODES, CHUNK):
        codes = range(first, first + CHUNK)
        # A token is found unless a letter follows.
        text = "".join(f"={' ' if c in SURROGATES else chr(c)} " for c in codes)
        encoded = tokenizer.encode(text, add_special_tokens=False)
        hits = np.zeros(len(text), bool)
        hits[[s for n, (s, _) in zip(encoded.ids, encoded.offsets) if n]] = True
        is_letter[first : first + CHUNK] = ~hits[::3]
    return is_letter


SIGMA, SMALL_SIGMA, FINAL_SIGMA = 0x3A3, 0x3C3, 0x3C2
SPACE = ord(" ")
# Stands for bytes that are no UTF-8, and is dropped.
REPLACEMENT = 0xFFFD
# A letter that normalization neither changes nor makes.
BETWEEN = ord("\u16b1")
# Tries of words' first pieces and later ones.
FIRST, LATER = 0, 1
# Stands for an added token's characters except the first.
DROPPED = 0


class GraphTokens(NamedTuple):
    """Tokens of all texts, one text after the other, int32 [tokens].

    Attributes:
        text: each token's text.
        ids: vocabulary indices.
        first: the first character in the text.
        end: one past the last character and its accents.
    """

    text: tf.Tensor
    ids: tf.Tensor
    first: tf.Tensor
    end: tf.Tensor


class _Characters(NamedTuple):
    """Normalized characters of all texts, int32 [C].

    Attributes:
        source: place of the original character in its text.
        end: one past that place and the accents after it.
        begins: bool [C], a word begins here.
    """

    code: tf.Tensor
    text: tf.Tensor
    source: tf.Tensor
    end: tf.Tensor
    begins: tf.Tensor


class GraphTokenizer(tf.Module):
    """Cuts texts into tokens as `FullTokenizer`s of one BERT do.

    Each has new tokens of its own. Tokens differ only where marks that are no
    accents follow each other in an order that Unicode normalizes.
    """

    def __init__(self, *tokenizers: FullTokenizer):
        tokenizer = tokenizers[0]
        self._lower = tokenizer.do_lower_case
        self.unknown_id = tokenizer.unknown_id

        values, starts = _normalized(tokenizer)
        self._joins = keep(_joins(starts))
        isolated = _isolated(tokenizer, values)
        entries = [
            (LATER, list(map(ord, piece[2:])), number)
            if piece.startswith("##")
            else (FIRST, list(map(ord, piece)), number)
            for piece, number in tokenizer.pieces.items()
        ]
        # Tokens found before a text is normalized, and after.
        raw, normalized = [], []
        added = [
            (which, a.id, a.token)
            for which, one in enumerate(tokenizers)
            for a in one.added
            if a.is_sought
        ]
        for code, (which, number, token) in enumerate(added, CODES):
            entries.append((FIRST, [code], number))
            text, tokens = tokenizers[which].clean(token.content), raw
            if token.normalized:
                text, tokens = tokenizers[which].normalize(text), normalized
            tokens.append((which, code, text, token.single_word))
        count = len(tokenizers)
        self._raw = AddedTokens(raw, DROPPED, count)
        self._normal = AddedTokens(normalized, SPACE, count)
        self._entries = Tree(entries, 2)
        codes = CODES + np.arange(len(added), dtype=np.int32)
        values = np.concatenate([values, codes])
        starts = np.concatenate([starts, starts[-1] + 1 + codes - CODES])
        isolated = np.concatenate([isolated, np.ones(len(codes), bool)])
        self._values, self._starts = keep(values), keep(starts)
        self._isolated = keep(isolated)
        if self._lower:
            self._cased, self._ignorable = map(keep, _sigma_tables())

    def __call__(
        self, texts: tf.Tensor, which: Optional[tf.Tensor] = None
    ) -> GraphTokens:
        """Tokenizes strings [N] without bytes that are no UTF-8.

        `which`, int32 [N], are the texts' tokenizers; default: the first.
        """
        if which is None:
            which = tf.zeros(tf.shape(texts), tf.int32)
        characters = self._characters(texts, which)
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
            unknown, tf.gather(end, chosen), chosen + tf.gather(lengths, chosen)
        )
        return GraphTokens(
            text=tf.gather(characters.text, chosen),
            ids=tf.where(unknown, self.unknown_id, tf.gather(ids, chosen)),
            first=tf.gather(characters.source, chosen),
            end=tf.gather(characters.end, past - 1),
        )

    def _characters(self, texts: tf.Tensor, which: tf.Tensor) -> _Characters:
        decoded = tf.strings.unicode_decode(
            texts, "UTF-8", errors="replace", replacement_char=REPLACEMENT
        )
        codes = decoded.values
        text = tf.cast(decoded.value_rowids(), tf.int32)
        row_starts = tf.cast(decoded.row_starts(), tf.int32)
        row_start = tf.gather(row_starts, text)
        source = tf.range(tf.size(codes)) - row_start
        # A character ends where the next one begins that is no accent.
        stops = places_of(~tf.gather(self._joins, codes) | tf.equal(source, 0))
        stops = tf.concat([stops, [tf.size(codes)]], axis=0)
        following = tf.searchsorted(
            stops, tf.range(tf.size(codes)), side="right"
        )
        end = tf.gather(stops, following) - row_start
        if self._lower:
            codes = put(codes, *self._sigmas(codes, text))
        codes, end = self._raw.join(codes, text, end, which)
        # Each character becomes none, one, or several.
        first = tf.gather(self._starts, codes)
        counts = tf.gather(self._starts, codes + 1) - first
        first -= tf.cumsum(counts, exclusive=True)
        origin = tf.repeat(tf.range(tf.size(codes)), counts)
        places = tf.range(tf.size(origin)) + tf.gather(first, origin)
        code = tf.gather(self._values, places)
        isolated = tf.gather(self._isolated, places)
        text, source, end = (tf.gather(x, origin) for x in (text, source, end))
        code, end = self._normal.join(code, text, end, which)
        isolated |= code >= CODES
        is_space = tf.equal(code, SPACE)
        begins = (
            tf.not_equal(text, before(text, -1))
            | before(is_space, True)
            | isolated
            | before(isolated, False)
        )
        characters = _Characters(code, text, source, end, begins)
        return _Characters(*(tf.boolean_mask(x, ~is_space) for x in characters))

    def _sigmas(
        self, codes: tf.Tensor, text: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        sigmas = places_of(tf.equal(codes, SIGMA))
        seen = places_of(~tf.gather(self._ignorable, codes))
        last = tf.searchsorted(seen, sigmas, side="left") - 1
        following = tf.searchsorted(seen, sigmas, side="right")

        def is_cased(number: tf.Tensor) -> tf.Tensor:
            is_there = (number >= 0) & (number < tf.size(seen))
            number = tf.where(is_there, number, 0)
            place = tf.gather(seen, number)
            is_near = tf.equal(tf.gather(text, place), tf.gather(text, sigmas))
            cased = tf.gather(self._cased, tf.gather(codes, place))
            return is_there & is_near & cased

        is_final = is_cased(last) & ~is_cased(following)
        return sigmas, tf.where(is_final, FINAL_SIGMA, SMALL_SIGMA)


def _chain(
    firsts: tf.Tensor,
    ends: tf.Tensor,
    word: tf.Tensor,
    end: tf.Tensor,
    lengths: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Marks where pieces begin, bool [C], and unknown words, bool [words].

    `firsts` and `ends`, int32 [words], are words' first characters and one past
    the last ones; `lengths`, int32 [C], the longest entries at each character.
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
            # A long word would take as many steps as it has pieces.
            tf.boolean_mask(firsts, ~is_too_long),
            tf.zeros_like(word, tf.bool),
            is_too_long,
        ],
        shape_invariants=[some] * 3,
    )
    return is_piece, is_unknown


def _normalized(tokenizer: FullTokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Normalized characters, int32, and where each one's begin [CODES + 1]."""
    values: list[int] = []
    starts = np.zeros(CODES + 1, np.int32)
    # Many at once, with a letter between them.
    for first in range(0, CODES, CHUNK):
        codes = range(first, first + CHUNK)
        letters = ["" if c in SURROGATES else chr(c) for c in codes]
        if chr(BETWEEN) in letters:
            letters[BETWEEN - first] = ""
        normalized = tokenizer.normalize(chr(BETWEEN).join(letters))
        texts = normalized.split(chr(BETWEEN))
        if len(texts) != CHUNK:
            raise ValueError(f"{len(texts)} texts of {CHUNK} characters")
        for code, text in zip(codes, texts):
            starts[code] = len(values)
            values += map(ord, chr(code) if code == BETWEEN else text)
    starts[CODES] = len(values)
    return np.array(values, np.int32), starts


def _joins(starts: np.ndarray) -> np.ndarray:
    """Marks characters that vanish but extend the one before, bool [CODES]."""
    joins = np.diff(starts) == 0
    for code in np.flatnonzero(joins):
        joins[code] = not is_space_or_control(chr(code))
    return joins


def _isolated(tokenizer: FullTokenizer, values: np.ndarray) -> np.ndarray:
    """Marks characters that are words of their own, bool like `values`."""
    codes = np.unique(values)
    flags = np.zeros(CODES, bool)
    text = "a".join(map(chr, codes))
    for word, (first, end) in tokenizer.split(text):
        # Every second character is an `a`.
        if end - first == 1 and first % 2 == 0:
            flags[ord(word)] = True
    return flags[values]


@functools.cache
def _sigma_tables() -> tuple[np.ndarray, np.ndarray]:
    """Marks cased characters, and ignorable ones, bool [CODES] each."""
    cased, ignorable = np.zeros(CODES, bool), np.zeros(CODES, bool)
    for code in range(CODES):
        letter, small = chr(code), chr(SMALL_SIGMA)
        if f"a\u03a3{letter}".lower()[1] == small:
            cased[code] = True
        elif f"a\u03a3{letter}a".lower()[1] == small:
            ignorable[code] = True
    return cased, ignorable
