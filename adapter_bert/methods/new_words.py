"""Words that a task adds to BERT's vocabulary, and their embeddings."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import TokenHooks
from adapter_bert.errors import UserError
from adapter_bert.methods.base import Declared, Part, TuningMethod
from adapter_bert.methods.composition import Stack

NEW_WORDS = "bert/embeddings/new_words"


class NewWordsHooks(TokenHooks):
    """Embeds the ids from V on by rows of their own.

    Reads `bert/embeddings/new_words`, [n, D].
    """

    def words(self, input_ids, embed, context):
        new = tf.convert_to_tensor(self.values[NEW_WORDS])
        is_new = input_ids >= self.config.vocab_size
        rows = tf.where(is_new, input_ids - self.config.vocab_size, 0)
        if new.shape.rank == 3:
            # Of a mixed batch, where each text has words of its own.
            texts = tf.range(tf.shape(input_ids)[0])
            rows += texts[:, tf.newaxis] * new.shape[1]
            new = tf.reshape(new, [-1, new.shape[2]])
        added = tf.gather(new, rows)
        pretrained = embed(tf.where(is_new, 0, input_ids))
        return tf.where(tf.expand_dims(is_new, -1), added, pretrained)


@dataclasses.dataclass(frozen=True)
class NewWords(TuningMethod):
    """Embeddings of new words are trained, next to what another method trains.

    `--new_tokens` names the words and stacks this method on the run's own.
    BERT-base: 768 n.

    Attributes:
        count: number n of words, whose ids follow BERT's V.

    Source: Hugging Face's peft, `trainable_token_indices`.
    """

    name = "new_words"
    # Of a training of these alone.
    learning_rate = 1e-3
    width = "count"
    hooks_class = NewWordsHooks
    positive = ("count",)
    count: int = 1

    @property
    def new_words(self):
        return self.count

    def variables(self, config, pooler=True):
        normal = encoder.truncated_normal(config.initializer_range)
        shape = self.count, config.embedding_width
        return {NEW_WORDS: Declared(shape, normal)}


def with_new_words(method: TuningMethod, count: int) -> TuningMethod:
    """Makes a method also train the embeddings of so many new words."""
    if method.parts and not isinstance(method, Stack):
        raise UserError(
            f"--new_tokens cannot be trained with {method.name}; expected a "
            "method that is no composition, or stack"
        )
    if method.new_words:
        return method
    parts = method.parts or (Part("", method),)
    return Stack((*parts, Part("", NewWords(count))))


def without_new_words(method: TuningMethod) -> TuningMethod:
    """Gives the method that new words are stacked on, or the method itself."""
    parts = [p for p in method.parts if not isinstance(p.method, NewWords)]
    if method.new_words and len(parts) == 1 and not parts[0].name:
        return parts[0].method
    return method


def first_rows(
    words: np.ndarray, pieces: Sequence[Sequence[int]]
) -> np.ndarray:
    """Gives the first embeddings of new words: the means of their pieces'.

    Takes BERT's word embeddings, float32 [V, D], and the ids of each new
    word's pieces. Gives float32 [n, D].
    """
    return np.stack([words[list(ids)].mean(0) for ids in pieces])
