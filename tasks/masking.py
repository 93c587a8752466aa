"""Which tokens are masked, and by what: a function of seed, step and row.

Nothing is kept of a batch: numbers are made of the seed, the step, the row
and the token's place by a hash, so that a training that starts again reads
the very masks that an uninterrupted one would have read.
"""

import dataclasses
import hashlib
import math
from typing import Any, Dict, NamedTuple, Optional

import numpy as np

from errors import UserError
from input_pipeline import Batch, Features
from tokenization import TextTokenizer

# What a token that was chosen becomes: `[MASK]`, another token, or itself.
# Source: Devlin et al. 2019, section 3.1.
MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1
# The id of a place that holds no masked token.
NO_TOKEN = -1
# What numbers are drawn for.
CHOICE, REPLACEMENT, RANDOM_TOKEN = range(3)


class Pieces(NamedTuple):
    """What masking has to know of a vocabulary.

    Attributes:
        mask_id: of `[MASK]`.
        is_plain: bool [V], whether an entry is a piece of text: no special
            token and no free entry.
        continues: bool [V], whether it continues a word, as `##s`.
        plain: int32 [R], the entries that are pieces of text.
    """

    mask_id: int
    is_plain: np.ndarray
    continues: np.ndarray
    plain: np.ndarray

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> "Pieces":
        """Those of a tokenizer's vocabulary.

        Raises:
            UserError: it has no `[MASK]`.
        """
        if tokenizer.mask_id is None:
            raise UserError(
                "the vocabulary lacks [MASK] (of RoBERTa <mask>), which stands "
                "for masked tokens; check --vocab_file"
            )
        is_plain = np.zeros(tokenizer.vocab_size, bool)
        continues = np.zeros(tokenizer.vocab_size, bool)
        for piece, number in tokenizer.vocabulary.items():
            is_plain[number] = tokenizer.is_text(piece)
            continues[number] = tokenizer.continues(piece)
        plain = np.flatnonzero(is_plain).astype(np.int32)
        return cls(tokenizer.mask_id, is_plain, continues, plain)


@dataclasses.dataclass(frozen=True)
class Masking:
    """How tokens are masked.

    Attributes:
        probability: share of a row's plain tokens that is masked, at least one
            of them, above 0 and at most 1.
        whole_words: whether all tokens of a word are masked, or none.
        seed: of all choices.
    """

    probability: float = 0.15
    whole_words: bool = False
    seed: int = 1

    def describe(self) -> Dict[str, Any]:
        """All but the seed, under the names of the flags."""
        return {
            "mlm_probability": self.probability,
            "whole_word_masking": self.whole_words,
        }

    def most(self, length: int) -> int:
        """The most tokens that are masked of a row of `length` tokens."""
        return math.ceil(self.probability * length)


@dataclasses.dataclass(frozen=True)
class MaskedText(Features):
    """Rows whose tokens are masked anew for each training step.

    In prediction each row always has the same masks.

    Attributes:
        masking: how.
        pieces: of the vocabulary.
    """

    masking: Masking
    pieces: Pieces

    def fingerprint(self):
        """That of the rows, and of what is masked but for the seed."""
        how = f"{super().fingerprint()} {self.masking.describe()}"
        return hashlib.sha256(how.encode()).hexdigest()

    def unlabelled(self):
        """All: what was masked is scored, and is no label from outside."""
        return self

    def added(self, length):
        """As many places as may be masked; see `finish`."""
        width = None if length is None else self.masking.most(length)
        return {
            "masked_positions": ((width,), np.int32),
            "masked_ids": ((width,), np.int32),
            "masked_weights": ((), np.float32),
        }

    def finish(self, batch: Batch, rows: np.ndarray, step: Optional[int]):
        """Masks tokens of `input_ids`, and says which.

        Adds `masked_positions` int32 [B, K], in rising order, and
        `masked_ids`, int32 [B, K], what was there; 0 and `NO_TOKEN` where
        fewer than K are masked. K is `Masking.most` of the padded length.
        `masked_weights`, float32 [B], is rows of the batch / its masked
        tokens: what each weighs in its row's loss, so that the mean over the
        rows is that over all masked tokens of the whole batch.
        """
        ids = batch["input_ids"]
        chosen = choose(
            ids, batch["input_mask"] > 0, rows, step, self.masking, self.pieces
        )
        width = self.masking.most(ids.shape[1])
        places = np.argsort(~chosen, axis=1, kind="stable")[:, :width]
        is_used = np.take_along_axis(chosen, places, axis=1)
        places = np.where(is_used, places, 0).astype(np.int32)
        right = np.take_along_axis(ids, places, axis=1)
        batch["masked_positions"] = places
        batch["masked_ids"] = np.where(is_used, right, NO_TOKEN).astype(
            np.int32
        )
        count = max(1, np.count_nonzero(chosen))
        batch["masked_weights"] = np.full(
            len(rows), len(rows) / count, np.float32
        )
        batch["input_ids"] = replace(
            ids, chosen, rows, step, self.masking, self.pieces
        )


def choose(
    ids: np.ndarray,
    is_token: np.ndarray,
    rows: np.ndarray,
    step: Optional[int],
    masking: Masking,
    pieces: Pieces,
) -> np.ndarray:
    """Chooses the tokens of a batch that are to be predicted.

    The share of the plain tokens, rounded, and at least one. Whole words are
    taken in an order that is drawn, each that still fits into that number. If
    none of a row fits, the first tokens of the first one are taken.

    Args:
        ids: int32 [B, T].
        is_token: bool [B, T], whether there is a token and no padding.
        rows: int64 [B], numbers of the rows.
        step: of the training, from 0; None in prediction.
        masking: how.
        pieces: of the vocabulary.

    Returns:
        bool [B, T].

    Source: google-research/bert, `create_pretraining_data.py`,
    `create_masked_lm_predictions`, where a row of which no word fits has
    nothing to predict.
    """
    is_plain = is_token & pieces.is_plain[ids]
    counts = is_plain.sum(axis=1)
    wanted = np.rint(masking.probability * counts).astype(np.int64)
    wanted = np.minimum(np.maximum(wanted, 1), counts)
    begins = is_plain
    if masking.whole_words:
        follows = np.zeros_like(is_plain)
        follows[:, 1:] = is_plain[:, :-1]
        begins = is_plain & ~(follows & pieces.continues[ids])
    # Of each plain token, the number of its word in the row.
    word = np.cumsum(begins, axis=1) - 1
    sizes = np.zeros(ids.shape, np.int64)
    batch_rows, places = np.nonzero(is_plain)
    np.add.at(sizes, (batch_rows, word[batch_rows, places]), 1)
    # Words in the order of what is drawn for their first tokens. Places where
    # none begins come last.
    drawn = draw(masking.seed, CHOICE, step, rows, ids.shape[1])
    drawn = np.where(begins, drawn, np.iinfo(np.uint64).max)
    places = np.argsort(drawn, axis=1, kind="stable")
    order = np.take_along_axis(word, places, axis=1)
    is_taken = _take_words(order, begins.sum(axis=1), sizes, wanted)
    chosen = is_plain & np.take_along_axis(is_taken, np.maximum(word, 0), 1)
    # Of a word that does not fit, only the first tokens.
    return chosen & (np.cumsum(chosen, axis=1) <= wanted[:, np.newaxis])


def _take_words(
    order: np.ndarray, counts: np.ndarray, sizes: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Takes each word that still fits; the first one if none does.

    Args:
        order: int64 [B, T], numbers of a row's words, as they are tried.
        counts: int64 [B], how many words a row has.
        sizes: int64 [B, T], tokens of each word, by its number.
        wanted: int64 [B], how many tokens of a row may be taken.

    Returns:
        bool [B, T], whether a word is taken, by its number.
    """
    numbers = np.arange(len(order))
    taken = np.zeros(len(order), np.int64)
    is_taken = np.zeros(order.shape, bool)
    for rank in range(counts.max(initial=0)):
        found = order[:, rank]
        size = sizes[numbers, found]
        fits = (rank < counts) & (taken + size <= wanted)
        is_taken[numbers[fits], found[fits]] = True
        taken += size * fits
        if (taken == wanted).all():
            break
    nothing = (taken == 0) & (counts > 0)
    is_taken[numbers[nothing], order[nothing, 0]] = True
    return is_taken


def replace(
    ids: np.ndarray,
    chosen: np.ndarray,
    rows: np.ndarray,
    step: Optional[int],
    masking: Masking,
    pieces: Pieces,
) -> np.ndarray:
    """Replaces chosen tokens: 80% by `[MASK]`, 10% by any plain token.

    Args:
        ids: int32 [B, T].
        chosen: bool [B, T].
        rows: int64 [B], numbers of the rows.
        step: of the training, from 0; None in prediction.
        masking: whose seed is taken.
        pieces: of the vocabulary.

    Returns:
        int32 [B, T].
    """
    length = ids.shape[1]
    drawn = draw(masking.seed, REPLACEMENT, step, rows, length)
    share = drawn / 2.0**64
    number = draw(masking.seed, RANDOM_TOKEN, step, rows, length)
    any_token = pieces.plain[number % np.uint64(len(pieces.plain))]
    other = np.where(share < MASKED_SHARE, pieces.mask_id, any_token)
    is_replaced = chosen & (share < MASKED_SHARE + RANDOM_SHARE)
    return np.where(is_replaced, other, ids).astype(np.int32)


def draw(
    seed: int, purpose: int, step: Optional[int], rows: np.ndarray, length: int
) -> np.ndarray:
    """Random numbers of a batch's tokens, uint64 [B, length].

    Each is a hash of all that it depends on, whichever others are drawn.

    Args:
        seed: not negative.
        purpose: what the number is for.
        step: of the training, from 0; None in prediction.
        rows: int64 [B].
        length: places of a row.

    Source: the finalizer of SplitMix64 (Steele et al. 2014, figure 17),
    applied to each of the parts in turn.
    """
    mixed = np.zeros((1, 1), np.uint64)
    for part in (
        seed,
        purpose,
        0 if step is None else step + 1,
        rows[:, np.newaxis],
        np.arange(length),
    ):
        mixed = mixed ^ np.asarray(part).astype(np.uint64)
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(
            0xBF58476D1CE4E5B9
        )
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(
            0x94D049BB133111EB
        )
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed
