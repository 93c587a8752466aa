"""Masked language modelling: BERT learns the texts of a domain or language.

Masks are a hash of the seed, the step, the row and the token's place. So a
training that starts again reads the masks of an uninterrupted one.
"""

import dataclasses
import hashlib
import itertools
import math
import re
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder, functional
from adapter_bert.bert.architectures import (
    OUTPUT_BIAS,
    OUTPUT_WEIGHTS,
    TRANSFORM,
)
from adapter_bert.bert.encoder import WORD_EMBEDDINGS
from adapter_bert.bert.hooks import NoHooks
from adapter_bert.data.input_pipeline import Features, token_weights
from adapter_bert.data.memory_rows import FileOrRows
from adapter_bert.data.tables import READERS, Layout, ending_of, read_rows
from adapter_bert.data.tokenization import TextTokenizer, in_chunks
from adapter_bert.errors import UserError
from adapter_bert.flags import Range, Topic
from adapter_bert.tasks.kinds import KINDS, MASKED_LM
from adapter_bert.tasks.task import Head, Task

# Shares of the chosen tokens that become `[MASK]` or any token; others stay.
# Source: Devlin et al. 2019, section 3.1.
MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1
# Fills `masked_ids` where a row has fewer masked tokens.
NO_TOKEN = -1
# Purposes of random numbers.
CHOICE, REPLACEMENT, RANDOM_TOKEN = range(3)
# Letters and punctuation of scripts without spaces between words: Thai, Lao,
# Tibetan, Myanmar, Khmer, kana, Chinese characters, Yi, full and half width.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fda\u1000-\u109f\u1780-\u17ff\u2e80-\u312f"
    "\u3190-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff9f"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
# The values of `Pieces.continues`.
BEGINS, CONTINUES, ALWAYS_CONTINUES = range(3)


class Pieces(NamedTuple):
    """Properties of a vocabulary's entries that masking depends on.

    Attributes:
        mask_id: of `[MASK]`.
        is_plain: bool [V], whether an entry is text, not special, not free.
        continues: int8 [V], `CONTINUES` if it continues a word of a script with
            spaces, as `##s`; `ALWAYS_CONTINUES` if it begins within a letter;
            else `BEGINS`.
        is_unspaced: bool [V], whether it ends in a script without spaces.
        plain: int32 [R], the entries that are text.
    """

    mask_id: int
    is_plain: np.ndarray
    continues: np.ndarray
    is_unspaced: np.ndarray
    plain: np.ndarray

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> "Pieces":
        if tokenizer.mask_id is None:
            raise UserError(
                "the vocabulary lacks [MASK] (of RoBERTa <mask>), which stands "
                "for masked tokens; check --vocab_file"
            )
        is_plain = np.zeros(tokenizer.vocab_size, bool)
        is_unspaced = np.zeros(tokenizer.vocab_size, bool)
        continues = np.zeros(tokenizer.vocab_size, np.int8)
        for piece, number in tokenizer.vocabulary.items():
            is_plain[number] = tokenizer.is_text(piece)
            letters = tokenizer.letters(piece)
            continues[number] = _continues(letters, tokenizer.continues(piece))
            is_unspaced[number] = bool(UNSPACED.fullmatch(letters[-1:]))
        plain = np.flatnonzero(is_plain).astype(np.int32)
        return cls(tokenizer.mask_id, is_plain, continues, is_unspaced, plain)

    def begin_words(self, ids: np.ndarray, is_plain: np.ndarray) -> np.ndarray:
        """Finds the tokens that begin a word: int32 [..., T] -> bool."""
        follows, unspaced = np.zeros_like(is_plain), np.zeros_like(is_plain)
        follows[..., 1:] = is_plain[..., :-1]
        unspaced[..., 1:] = self.is_unspaced[ids[..., :-1]]
        return is_plain & ~(follows & (self.continues[ids] > unspaced))

    def count_words(self, ids: np.ndarray) -> tuple[int, int]:
        is_plain = self.is_plain[ids]
        begins = self.begin_words(ids, is_plain)
        several = begins[:-1] & is_plain[1:] & ~begins[1:]
        return np.count_nonzero(begins), np.count_nonzero(several)


def _continues(letters: str, is_marked: bool) -> int:
    if not is_marked or not letters:
        return BEGINS
    if letters[0] == "\ufffd" or unicodedata.category(letters[0])[0] == "M":
        return ALWAYS_CONTINUES
    return BEGINS if UNSPACED.match(letters) else CONTINUES


@dataclasses.dataclass(frozen=True)
class Masking:
    """Settings of masking; at least one plain token of a row is masked."""

    probability: float = Topic.DATA.setting(
        0.15,
        "Share of the tokens that are masked, 0 to 1.",
        Range(lambda x: 0 < x <= 1, "expected more than 0 and at most 1"),
        flag="mlm_probability",
    )
    whole_words: bool = Topic.DATA.setting(
        False,
        "Mask all tokens of a word or none of them.",
        flag="whole_word_masking",
    )
    seed: int = 1

    def describe(self) -> dict[str, Any]:
        return {
            "mlm_probability": self.probability,
            "whole_word_masking": self.whole_words,
        }

    def most(self, length: int) -> int:
        return math.ceil(self.probability * length)


# A function from a purpose to random numbers, uint64 [B, T].
Draw = Callable[[int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class MaskedText(Features):
    """Rows whose tokens are masked anew for each training step.

    In prediction each row always has the same masks.
    """

    masking: Masking
    pieces: Pieces

    def fingerprint(self):
        how = f"{super().fingerprint()} {self.masking.describe()}"
        return hashlib.sha256(how.encode()).hexdigest()

    def unlabelled(self):
        """Keeps all: masked tokens are scored, and no labels from outside."""
        return self

    def added(self, length):
        width = None if length is None else self.masking.most(length)
        return {
            "masked_positions": ((width,), np.int32),
            "masked_ids": ((width,), np.int32),
            "masked_weights": ((), np.float32),
        }

    def finish(self, batch, rows, step):
        """Masks tokens of `input_ids`.

        Adds `masked_positions`, rising, and `masked_ids`, the tokens that were
        there, int32 [B, K]; 0 and `NO_TOKEN` where fewer than K, `Masking.most`
        of the padded length, are masked; `masked_weights`, float32 [B], their
        `token_weights`.
        """
        ids = batch["input_ids"]

        def drawn(purpose: int) -> np.ndarray:
            return draw(self.masking.seed, purpose, step, rows, ids.shape[1])

        is_token = batch["input_mask"] > 0
        chosen = choose(ids, is_token, self.masking, self.pieces, drawn)
        width = self.masking.most(ids.shape[1])
        places = np.argsort(~chosen, axis=1, kind="stable")[:, :width]
        is_used = np.take_along_axis(chosen, places, axis=1)
        places = np.where(is_used, places, 0).astype(np.int32)
        right = np.take_along_axis(ids, places, axis=1)
        batch["masked_positions"] = places
        batch["masked_ids"] = np.where(is_used, right, NO_TOKEN).astype(
            np.int32
        )
        batch["masked_weights"] = token_weights(chosen)
        batch["input_ids"] = replace(ids, chosen, self.pieces, drawn)


def choose(
    ids: np.ndarray,
    is_token: np.ndarray,
    masking: Masking,
    pieces: Pieces,
    drawn: Draw,
) -> np.ndarray:
    """Chooses the tokens to predict: int32 ids -> bool [B, T].

    Takes the share of the plain tokens, rounded, at least one. Whole words are
    taken in random order, if they still fit into that number. The tokens of a
    word that is longer are taken one by one. `is_token` is false for padding.

    Source: google-research/bert, `create_pretraining_data.py`,
    `create_masked_lm_predictions`, which never predicts a word that is too
    long.
    """
    is_plain = is_token & pieces.is_plain[ids]
    counts = is_plain.sum(axis=1)
    wanted = np.rint(masking.probability * counts).astype(np.int64)
    wanted = np.clip(wanted, 1, counts)
    places = np.arange(ids.shape[1])
    begins = is_plain
    if masking.whole_words:
        begins = pieces.begin_words(ids, is_plain)
        first, sizes = _measure(begins, is_plain)
        sizes = np.take_along_axis(sizes, first, axis=1)
        begins = begins | is_plain & (sizes > wanted[:, np.newaxis])
    first, sizes = _measure(begins, is_plain)
    # Words in the order of their first tokens' numbers; other places last.
    numbers = np.where(begins, drawn(CHOICE), np.iinfo(np.uint64).max)
    order = np.argsort(numbers, axis=1, kind="stable")
    taken = _take_words(order, begins.sum(axis=1), sizes, wanted)
    taken = np.take_along_axis(taken, first, axis=1)
    return is_plain & (places - first < taken)


def _measure(
    begins: np.ndarray, is_plain: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Measures words by which tokens begin one and are part of one.

    Returns int64 [B, T], the first place of each token's word, and the number
    of tokens of the word that begins at a place.
    """
    places = np.where(begins, np.arange(begins.shape[1]), 0)
    first = np.maximum.accumulate(places, axis=1)
    sizes = np.zeros(begins.shape, np.int64)
    batch_rows, places = np.nonzero(is_plain)
    np.add.at(sizes, (batch_rows, first[batch_rows, places]), 1)
    return first, sizes


def _take_words(
    order: np.ndarray,
    counts: np.ndarray,
    sizes: np.ndarray,
    wanted: np.ndarray,
) -> np.ndarray:
    """Takes each word that still fits.

    Int64 [B, T] are `order`, words' first places as they are tried, and
    `sizes`, tokens of the word that begins at a place; int64 [B] are `counts`
    of words and `wanted` tokens. Returns tokens that are taken, as `sizes`.
    """
    numbers = np.arange(len(order))
    left = wanted.copy()
    taken = np.zeros(order.shape, np.int64)
    for rank in range(counts.max(initial=0)):
        words = numbers, order[:, rank]
        size = sizes[words]
        size = size * ((rank < counts) & (size <= left))
        taken[words] = size
        left -= size
        if not left.any():
            break
    return taken


def replace(
    ids: np.ndarray, chosen: np.ndarray, pieces: Pieces, drawn: Draw
) -> np.ndarray:
    """Replaces chosen tokens: 80% by `[MASK]`, 10% by any plain token.

    int32 [B, T] and bool [B, T] of `choose` -> int32 [B, T].
    """
    share = drawn(REPLACEMENT) / 2.0**64
    others = pieces.plain[drawn(RANDOM_TOKEN) % np.uint64(len(pieces.plain))]
    other = np.where(share < MASKED_SHARE, pieces.mask_id, others)
    is_replaced = chosen & (share < MASKED_SHARE + RANDOM_SHARE)
    return np.where(is_replaced, other, ids).astype(np.int32)


def draw(
    seed: int, purpose: int, step: Optional[int], rows: np.ndarray, length: int
) -> np.ndarray:
    """Draws random numbers of a batch's tokens, uint64 [B, length].

    Each is a hash of seed, purpose, as `CHOICE`, step (None in prediction), row
    and place. `rows` are int64 [B]. Source: the finalizer of SplitMix64 (Steele
    et al. 2014, figure 17), applied to each part in turn.
    """
    mixed, number = np.zeros((1, 1), np.uint64), np.uint64
    step = 0 if step is None else step + 1
    for value in (seed, purpose, step, rows[:, np.newaxis], np.arange(length)):
        mixed = mixed ^ np.asarray(value).astype(number)
        mixed = mixed + number(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> number(30))) * number(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> number(27))) * number(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> number(31))
    return mixed


NAME = MASKED_LM
# Least share of words of several tokens for `--whole_word_masking` to matter.
SEVERAL = 0.01


class MaskedLMHead(Head):
    """Pretrained head: a logit of each word piece for masked tokens.

    Parameters: D E + 3 E + V; the word embeddings are BERT's own, unless the
    config says that the head has a matrix, V E more. Source:
    google-research/bert, `run_pretraining.py`, `get_masked_lm_output`.
    """

    needs_pooler = False
    reads = ("masked_positions", "masked_ids")

    def __init__(
        self, config: encoder.BertConfig, create: encoder.CreateVariable
    ):
        """Creates the variables under `cls/predictions/`."""
        size, width = config.hidden_size, config.embedding_width
        self.activation = config.hidden_act
        # A method acts on BERT, not on the head's own layers.
        declared = {
            **encoder.declare_dense(f"{TRANSFORM}/dense", size, width, config),
            **encoder.declare_layer_norm(TRANSFORM, width),
        }
        values = encoder.make_variables(declared, create)
        self.transform = encoder.Modules(config, values, NoHooks())
        self.bias = create(OUTPUT_BIAS, (config.vocab_size,), encoder.zeros)
        self.words = None
        if not config.tie_word_embeddings:
            self.words = create(
                OUTPUT_WEIGHTS,
                (config.vocab_size, width),
                encoder.truncated_normal(config.initializer_range),
            )

    def __call__(
        self, bert, sequence_output, context, masked_positions, masked_ids
    ):
        """float32 [B, T, D] -> {"logits": float32 [B, K, V], "masked_ids"}."""
        read = tf.gather(sequence_output, masked_positions, batch_dims=1)
        hidden = self.transform.dense(
            f"{TRANSFORM}/dense", read, context, self.activation
        )
        hidden = self.transform.layer_norm(TRANSFORM, hidden, context)
        hidden = bert.hooks.vocabulary(hidden, context)
        words = self.words
        if words is None:
            # A method may have changed the embeddings.
            words = bert.read(WORD_EMBEDDINGS, context)
        logits = tf.einsum("bkd,vd->bkv", hidden, tf.cast(words, context.dtype))
        return {
            "logits": tf.cast(logits, tf.float32) + self.bias,
            "masked_ids": masked_ids,
        }

    def select(self, predictions):
        """Reduces the logits to the scores of masked tokens, [B, K].

        `log_probabilities`, float32, of the right tokens, in nats; `is_right`,
        int32, 1 where the likeliest token is right; `is_masked`, int32, 1
        where a token is masked. All are 0 where no token is.
        """
        logits, ids = predictions["logits"], predictions["masked_ids"]
        likeliest = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return {
            "log_probabilities": -_losses(logits, ids),
            "is_right": tf.cast(tf.equal(likeliest, ids), tf.int32),
            "is_masked": tf.cast(ids >= 0, tf.int32),
        }

    def loss(self, predictions, features):
        """Cross entropy in nats of each row's masked tokens, float32 [B].

        A weighted sum, whose mean over rows is that over masked tokens.
        """
        losses = _losses(predictions["logits"], features["masked_ids"])
        return tf.reduce_sum(losses, axis=1) * features["masked_weights"]


def _losses(logits: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Cross entropies in nats, float32 [B, K]; 0 where no token is masked."""
    losses = functional.cross_entropy(logits, tf.maximum(ids, 0))
    return tf.where(ids >= 0, losses, 0.0)


@dataclasses.dataclass(frozen=True)
class Counted:
    """First `count` items that `read` gives of a source, read when needed."""

    read: Callable[[Any], Iterator]
    source: Any
    count: int

    @classmethod
    def of(cls, read: Any, source: Any, refusal: str) -> "Counted":
        """Reads a source once, to count; refuses one without items."""
        count = sum(1 for _ in read(source))
        if not count:
            raise UserError(refusal)
        return cls(read, source, count)

    def first(self, count: int) -> "Counted":
        """Gives the first `count` of these items."""
        return dataclasses.replace(self, count=min(count, self.count))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator:
        return itertools.islice(self.read(self.source), self.count)


def _lines(path: FileOrRows) -> Iterator[str]:
    if ending_of(path) in READERS:
        lines = read_rows(path, Layout("text")).text_a
    else:
        lines = files.read_lines(path, "the text", newline="")
    # At a form feed too, which tokenizers delete.
    return filter(None, (" ".join(x.splitlines()).strip() for x in lines))


@dataclasses.dataclass(frozen=True)
class MaskedLM(Task[Counted]):
    """Masked language modelling on raw text, with the flags of `run_mlm.py`.

    A line of text, or a table's row, makes a row, a long one several rows of
    nearly equal length. Empty lines are left out, and ends of documents need no
    mark.
    """

    name: str = NAME
    train_file: str = Topic.DATA.setting(
        "",
        "Text to train on, one sentence per line; a .csv, .tsv, .json or "
        ".jsonl table has it in the column text.",
    )
    eval_file: str = Topic.DATA.setting(
        "", "Text to evaluate on, as --train_file."
    )
    masking: Masking = Masking()

    kind = KINDS[MASKED_LM]
    test_splits = ()
    answers_texts = False
    rows_are_fixed = False

    def describe(self):
        return self.masking.describe()

    @property
    def score_names(self):
        return "perplexity", "accuracy", "loss"

    def read(self, data_dir, splits):
        rows = {}
        for split in splits:
            flag = {"train": "train_file", "dev": "eval_file"}[split]
            path = getattr(self, flag)
            if not path:
                raise UserError(
                    f"--{flag} is missing: a text file with a sentence on each "
                    "line"
                )
            rows[split] = Counted.of(
                _lines, path, f"{path} holds no text: every line is empty"
            )
        return self, rows

    def featurize(self, rows, tokenizer: TextTokenizer, max_seq_length):
        pieces = Pieces.of(tokenizer)
        features = MaskedText.from_rows(
            _make_rows(rows, tokenizer, max_seq_length, pieces),
            {},
            masking=self.masking,
            pieces=pieces,
        )
        if not len(features):
            raise UserError(
                f"{rows.source} holds no token that the vocabulary knows; "
                "check --vocab_file"
            )
        count = len(features)
        tokens = len(features.tokens) - 2 * count
        logging.info("%s: %d tokens in %d rows", rows.source, tokens, count)
        if self.masking.whole_words:
            words, several = pieces.count_words(features.tokens)
            if several < SEVERAL * words:
                logging.warning(
                    "%s: %d of %d words have more than one token; "
                    "--whole_word_masking has an effect on these alone",
                    rows.source,
                    several,
                    words,
                )
        return features

    def build_head(self, config, create):
        return MaskedLMHead(config, create)

    def evaluate(self, rows, features, predictions):
        """Perplexity, accuracy, mean cross entropy in nats, of masked tokens.

        Perplexity is `exp(loss)`, at most the greatest float.
        """
        is_masked = predictions["is_masked"] > 0
        losses = -predictions["log_probabilities"][is_masked]
        loss = float(np.mean(losses, dtype=np.float64))
        greatest = math.log(sys.float_info.max)
        return {
            "perplexity": math.exp(min(loss, greatest)),
            "accuracy": float(np.mean(predictions["is_right"][is_masked])),
            "loss": loss,
        }


def _make_rows(
    lines: Counted,
    tokenizer: TextTokenizer,
    max_seq_length: int,
    pieces: Pieces,
) -> Iterator[tuple[list[int], list[int]]]:
    start, end = [tokenizer.classify_id], [tokenizer.separate_id]
    plain = set(pieces.plain.tolist())
    for tokens in in_chunks(tokenizer.encode_ids, lines):
        for piece in cut(tokens, max_seq_length - 2):
            if not plain.isdisjoint(piece):
                yield start + piece + end, [0] * (len(piece) + 2)


def cut(tokens: list[int], room: int) -> Iterator[list[int]]:
    """Cuts tokens into the fewest parts of at most `room`, of like length."""
    parts = -(-len(tokens) // room)
    for number in range(parts):
        first, last = (len(tokens) * n // parts for n in (number, number + 1))
        yield tokens[first:last]
