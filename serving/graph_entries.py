"""Where a graph finds entries of a vocabulary, and added tokens, in texts."""

from typing import Dict, Iterable, Sequence, Tuple

import numpy as np
import tensorflow as tf
from tokenizers import AddedToken, Tokenizer, models

CODES = 0x110000
SURROGATES = range(0xD800, 0xE000)
CHUNK = 2**14
# A node and a character are one key: this many bits are the character's.
CODE_BITS = 21


def keep(value: np.ndarray) -> tf.Variable:
    """A variable of numbers or, as UTF-8, of texts."""
    return tf.Variable(value, trainable=False)


def places_of(marks: tf.Tensor) -> tf.Tensor:
    """Where bool [C] holds, int32 [places]."""
    return tf.cast(tf.where(marks)[:, 0], tf.int32)


def mark(marks: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """The same marks, and these."""
    return tf.tensor_scatter_nd_update(
        marks, places[:, tf.newaxis], tf.ones_like(places, tf.bool)
    )


class Tree(tf.Module):
    """Entries as trees of characters."""

    def __init__(
        self, entries: Iterable[Tuple[int, Sequence[int], int]], roots: int
    ):
        """Makes the trees.

        Args:
            entries: root from 0, characters, id.
            roots: how many trees there are.
        """
        super().__init__()
        edges: Dict[int, int] = {}
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
        self._nodes = keep(np.array(nodes, np.int64))
        self._ids = keep(np.array(ids, np.int32))

    def longest(
        self, code: tf.Tensor, end: tf.Tensor, root: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """The longest entry from each character on.

        Args:
            code: int32 [C], characters.
            end: int32 [C], one past the last character that may be used.
            root: int32 [C], the tree whose entries are looked for.

        Returns:
            Its length int32 [C], 0 if there is none, and its id int32 [C].
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
            found = tf.boolean_mask(active, is_entry)[:, tf.newaxis]
            length = tf.fill([tf.shape(found)[0]], offset + 1)
            return (
                offset + 1,
                active,
                node,
                tf.tensor_scatter_nd_update(lengths, found, length),
                tf.tensor_scatter_nd_update(
                    ids, found, tf.boolean_mask(entry, is_entry)
                ),
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
    """Tokens that become one character, whose code is behind Unicode's."""

    def __init__(self, tokens: Sequence[Tuple[int, str, bool]], rest: int):
        """Keeps the tokens.

        Args:
            tokens: code, characters, and whether it is a word of its own only.
            rest: what takes the place of all but a token's first character.
        """
        super().__init__()
        self._rest = rest
        entries = [(0, list(map(ord, text)), code) for code, text, _ in tokens]
        self._tree = Tree(entries, 1)
        self._alone = None
        if any(alone for _, _, alone in tokens):
            self._alone = keep(
                np.array([c for c, _, alone in tokens if alone], np.int32)
            )
            self._letters = keep(_letters())

    def join(
        self, codes: tf.Tensor, text: tf.Tensor, stop: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Makes one character of those of a token, wherever there is one.

        Of tokens that overlap the first counts, of those that begin at one
        place the longest.

        Args:
            codes: int32 [C], characters.
            text: int32 [C], which text each is of.
            stop: int32 [C], where what each was made of ends.

        Returns:
            `codes` and `stop`, as long as before.
        """
        end = tf.searchsorted(text, text, side="right")
        lengths, added = self._tree.longest(codes, end, tf.zeros_like(codes))
        places = places_of(lengths > 0)
        past = places + tf.gather(lengths, places)  # [matches]
        taken = _apart(places, past, tf.gather(text, places))
        if self._alone is not None:
            found = tf.gather(added, places)[:, tf.newaxis]
            alone = tf.reduce_any(tf.equal(found, self._alone), axis=1)
            taken &= ~alone | self._is_alone(codes, text, places, past)
        places, past = (tf.boolean_mask(x, taken) for x in (places, past))
        # One more from a token's second character on, one less behind it.
        depth = tf.zeros([tf.size(codes) + 1], tf.int32)
        for where, change in ((places + 1, 1), (past, -1)):
            depth = tf.tensor_scatter_nd_add(
                depth,
                where[:, tf.newaxis],
                tf.fill(tf.shape(where), change),
            )
        codes = tf.where(tf.cumsum(depth)[:-1] > 0, self._rest, codes)

        def put(values: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
            return tf.tensor_scatter_nd_update(
                values, places[:, tf.newaxis], new
            )

        return (
            put(codes, tf.gather(added, places)),
            put(stop, tf.gather(stop, past - 1)),
        )

    def _is_alone(
        self,
        codes: tf.Tensor,
        text: tf.Tensor,
        places: tf.Tensor,
        past: tf.Tensor,
    ) -> tf.Tensor:
        """Whether no letter of the same text is right before or behind.

        Args:
            codes: int32 [C], characters.
            text: int32 [C], which text each is of.
            places: int32 [matches], first characters.
            past: int32 [matches], those behind the last ones.

        Returns:
            bool [matches].
        """
        letters = tf.pad(
            tf.gather(self._letters, tf.minimum(codes, CODES - 1)), [[1, 1]]
        )
        text = tf.pad(text, [[1, 1]], constant_values=-1)

        def is_letter(place: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
            near = tf.equal(tf.gather(text, place), tf.gather(text, own))
            return near & tf.gather(letters, place)

        own = places + 1
        return ~(is_letter(places, own) | is_letter(past + 1, own))


def _apart(places: tf.Tensor, past: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
    """Which matches count, from the first of each text on.

    Args:
        places: int32 [matches], where they begin, rising.
        past: int32 [matches], one past their last characters.
        text: int32 [matches], which text each is in.

    Returns:
        bool [matches].
    """
    count = tf.size(places)
    # From each the next one that it leaves free; the last ones lead to none.
    jump = tf.concat([tf.searchsorted(places, past), [count]], axis=0)
    taken = tf.not_equal(text, tf.concat([[-1], text], axis=0)[:count])
    taken = tf.pad(taken, [[0, 1]])
    # What is reached in 2^k steps, then in twice as many.
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


def _letters() -> np.ndarray:
    """Which characters are letters of a word to the library, bool [CODES]."""
    found = np.zeros(CODES, bool)
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("=", single_word=True, normalized=False)])
    for first in range(0, CODES, CHUNK):
        codes = range(first, first + CHUNK)
        # A token is found unless a letter is right behind.
        text = "".join(f"={' ' if c in SURROGATES else chr(c)} " for c in codes)
        encoded = tokenizer.encode(text, add_special_tokens=False)
        hits = np.zeros(len(text), bool)
        hits[[s for n, (s, _) in zip(encoded.ids, encoded.offsets) if n]] = True
        found[first : first + CHUNK] = ~hits[::3]
    return found
