"""Masked language modelling: BERT learns the texts of a domain or language."""

import dataclasses
import itertools
import math
import sys
from typing import Any, Dict, Iterator, List, Mapping, Tuple

import numpy as np
import tensorflow as tf
from absl import logging

import modeling
from bert import functional
from bert.hooks import Hooks
from errors import UserError
from input_pipeline import Features
from storage import files
from tasks.base import Head, Task
from tasks.masking import MaskedText, Masking, Pieces
from tokenization import TextTokenizer

NAME = "masked_lm"
WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
# Lines that are tokenized at once: enough for all cores, bounded in memory.
CHUNK = 4096
# Share of the words that have several tokens, below which it makes hardly any
# difference that words are masked whole.
SEVERAL = 0.01


class MaskedLMHead(Head):
    """The pretrained head: a logit of each word piece for masked tokens.

    Parameters: D^2 + 3 D + V, beside the word embeddings, which are BERT's
    own. Source: google-research/bert, `run_pretraining.py`,
    `get_masked_lm_output`.
    """

    needs_pooler = False
    reads = ("masked_positions", "masked_ids")

    def __init__(
        self, config: modeling.BertConfig, create: modeling.CreateVariable
    ):
        """Creates the variables under `cls/predictions/`."""
        size, scope = config.hidden_size, "cls/predictions"
        self.activation = functional.activation(config.hidden_act)
        # A method acts on BERT, not on the head's own layers.
        self.dense = modeling.Dense(
            f"{scope}/transform/dense", size, size, config, create, Hooks()
        )
        self.layer_norm = modeling.LayerNorm(
            f"{scope}/transform", size, create, Hooks(), config.layer_norm_eps
        )
        self.bias = create(
            f"{scope}/output_bias", (config.vocab_size,), modeling.zeros
        )

    def __call__(
        self, bert, sequence_output, context, masked_positions, masked_ids
    ):
        """float32 [B, T, D] -> {"logits": float32 [B, K, V], "masked_ids"}."""
        read = tf.gather(sequence_output, masked_positions, batch_dims=1)
        hidden = self.activation(self.dense(read, context))
        hidden = self.layer_norm(hidden, context)
        hidden = bert.hooks.vocabulary(hidden, context)
        # As BERT reads them: a method may have changed them.
        words = bert.hooks.parameter(
            WORD_EMBEDDINGS, bert.embeddings.word, context
        )
        logits = tf.einsum("bkd,vd->bkv", hidden, tf.cast(words, context.dtype))
        return {
            "logits": tf.cast(logits, tf.float32) + self.bias,
            "masked_ids": masked_ids,
        }

    def select(self, predictions):
        """What is scored, instead of a logit of every word piece.

        Returns:
            `log_probabilities`, float32 [B, K], of the right tokens, in nats;
            `is_right`, int32 [B, K], 1 where the likeliest one is right;
            `is_masked`, int32 [B, K], 1 where there is a masked token. All are
            0 where there is none.
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

        Their sum, weighted so that the mean over the rows of a batch is that
        over all of its masked tokens (`MaskedText.finish`).
        """
        losses = _losses(predictions["logits"], features["masked_ids"])
        return tf.reduce_sum(losses, axis=1) * features["masked_weights"]


def _losses(logits: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Cross entropies in nats, float32 [B, K]; 0 where no token is masked."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.maximum(ids, 0), logits=logits
    )
    return tf.where(ids >= 0, losses, 0.0)


@dataclasses.dataclass(frozen=True)
class Lines:
    """The lines of a text file that hold text, which stay in the file.

    Attributes:
        path: of the file.
        count: of such lines, the first ones of the file.
    """

    path: str
    count: int

    @classmethod
    def of(cls, path: str) -> "Lines":
        """Reads a file once, to count.

        Raises:
            UserError: it is missing, is not UTF-8 or holds no text.
        """
        count = sum(1 for _ in _lines(path))
        if not count:
            raise UserError(f"{path} holds no text: every line is empty")
        return cls(path, count)

    def __len__(self) -> int:
        """How many there are."""
        return self.count

    def chunks(self) -> Iterator[List[str]]:
        """The lines, some at a time."""
        lines = itertools.islice(_lines(self.path), self.count)
        while True:
            chunk = list(itertools.islice(lines, CHUNK))
            if not chunk:
                return
            yield chunk


def _lines(path: str) -> Iterator[str]:
    """The lines of a file that are more than white space."""
    lines = files.read_lines(path, "the text", newline="")
    return filter(None, map(str.strip, lines))


@dataclasses.dataclass(frozen=True)
class MaskedLM(Task[Lines]):
    """Masked language modelling on raw text, a row for each line.

    Empty lines are passed over. A line that is too long makes several rows of
    nearly equal length. A row never holds text of two lines, so that it makes
    no difference where a document ends.

    Attributes:
        train_file: the text to train on; "" for none.
        eval_file: the text to evaluate on; "" for none.
        masking: what is masked.
    """

    train_file: str = ""
    eval_file: str = ""
    masking: Masking = Masking()

    test_splits = ()
    answers_texts = False
    rows_are_fixed = False

    def describe(self):
        """What is masked, but for the seed."""
        return self.masking.describe()

    def restore(self, description, source):
        """This task, if the trained head is one of masked tokens."""
        if description["name"] != self.name:
            raise UserError(
                f"{source} was trained on the task {description['name']}, not "
                f"on {self.name}"
            )
        return self

    @property
    def reading(self):
        """All alike."""
        return "lines"

    @property
    def score_names(self):
        """Perplexity first."""
        return "perplexity", "accuracy", "loss"

    def first(self, rows, count):
        """The first lines."""
        return Lines(rows.path, min(count, rows.count))

    @property
    def named_train_file(self):
        """`train_file`."""
        return self.train_file

    def read(self, data_dir, splits):
        """Counts the lines of `train_file` and `eval_file`."""
        paths = {
            "train": ("--train_file", self.train_file),
            "dev": ("--eval_file", self.eval_file),
        }
        rows = {}
        for split in splits:
            flag, path = paths[split]
            if not path:
                raise UserError(
                    f"{flag} is missing: a text file with a sentence on each "
                    "line"
                )
            rows[split] = Lines.of(path)
        return self, rows

    def featurize(self, rows, tokenizer: TextTokenizer, max_seq_length):
        """`[CLS] text [SEP]`, one or several of each line.

        Raises:
            UserError: there is no `[MASK]`, or no text with a known token.
        """
        pieces = Pieces.of(tokenizer)
        features = Features.from_rows(
            _make_rows(rows, tokenizer, max_seq_length, pieces), {}
        )
        if not len(features):
            raise UserError(
                f"{rows.path} holds no token that the vocabulary knows; check "
                "--vocab_file"
            )
        logging.info(
            "%s: %d tokens in %d rows",
            rows.path,
            len(features.tokens) - 2 * len(features),
            len(features),
        )
        if self.masking.whole_words:
            words, several = pieces.count_words(features.tokens)
            if several < SEVERAL * words:
                logging.warning(
                    "%s: %d of %d words have more than one token; "
                    "--whole_word_masking has an effect on these alone",
                    rows.path,
                    several,
                    words,
                )
        return MaskedText(**vars(features), masking=self.masking, pieces=pieces)

    def build_head(self, config, create):
        """The head of BERT's pretraining."""
        return MaskedLMHead(config, create)

    def evaluate(
        self,
        rows: Lines,
        features: Features,
        predictions: Mapping[str, np.ndarray],
    ) -> Dict[str, float]:
        """Perplexity, share of right tokens, mean cross entropy in nats.

        Each over all masked tokens alike. Perplexity is `exp(loss)`, or the
        greatest float where that is beyond it.
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

    def make_rows(self, texts):
        """Fails: it answers no texts."""
        raise _no_answers()

    def answer(self, rows, predictions) -> List[Dict[str, Any]]:
        """Fails: it answers no texts."""
        raise _no_answers()

    def write_predictions(
        self, output_dir, rows, predictions, suffix=""
    ) -> Tuple[str, ...]:
        """Fails: it answers no texts."""
        raise _no_answers()


def _no_answers() -> TypeError:
    return TypeError("masked language modelling answers no texts")


def _make_rows(
    lines: Lines, tokenizer: TextTokenizer, max_seq_length: int, pieces: Pieces
) -> Iterator[Tuple[List[int], List[int]]]:
    """Tokens and segments of each row, tokenized chunk by chunk.

    What has no plain token, in which nothing could be masked, is left out.
    """
    start, end = [tokenizer.classify_id], [tokenizer.separate_id]
    plain = set(pieces.plain.tolist())
    for chunk in lines.chunks():
        for tokens in tokenizer.encode_ids(chunk):
            for part in cut(tokens, max_seq_length - 2):
                if not plain.isdisjoint(part):
                    yield start + part + end, [0] * (len(part) + 2)


def cut(tokens: List[int], room: int) -> Iterator[List[int]]:
    """As few parts of nearly equal length as have room for all tokens.

    Args:
        tokens: of a text.
        room: tokens of a part, at least 1.
    """
    parts = -(-len(tokens) // room)
    starts = [len(tokens) * number // parts for number in range(parts)]
    for first, last in zip(starts, [*starts[1:], len(tokens)]):
        yield tokens[first:last]


def masked_lm_task(
    train_file: str = "",
    eval_file: str = "",
    mlm_probability: float = 0.15,
    whole_word_masking: bool = False,
    seed: int = 1,
) -> MaskedLM:
    """Masked language modelling on text files.

    Args:
        train_file: the text to train on; "" for none.
        eval_file: the text to evaluate on; "" for none.
        mlm_probability: share of the tokens that is masked.
        whole_word_masking: whether a word's tokens are masked together.
        seed: of what is masked.

    Raises:
        UserError: the share is none.
    """
    if not 0 < mlm_probability <= 1:
        raise UserError(
            f"--mlm_probability is {mlm_probability}, expected more than 0 and "
            "at most 1"
        )
    masking = Masking(mlm_probability, whole_word_masking, seed)
    return MaskedLM(NAME, train_file, eval_file, masking)
