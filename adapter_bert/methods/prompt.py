"""Prompt tuning: trained virtual tokens next to those of a text."""

import dataclasses

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import READ, Hooks
from adapter_bert.methods.base import Declared, TuningMethod

PROMPT = "bert/embeddings/prompt"
# Whose output heads read where they read the first token's.
CLS, VIRTUAL = "cls", "prompt"


def uniform(rng: np.random.Generator, shape: encoder.Shape) -> np.ndarray:
    """An initializer: uniform within 0.5 of 0 (Lester et al. 2021)."""
    return rng.uniform(-0.5, 0.5, shape).astype(np.float32)


class PromptHooks(Hooks):
    """Puts P tokens after those of a text, never masked."""

    alike = True
    takes_rows = True

    @property
    def by_token(self):
        return self.method.heads_read == CLS

    def lengthen(self, hidden, context):
        prompt = tf.cast(self.values[PROMPT], hidden.dtype)
        batch = tf.shape(hidden)[0]
        if len(prompt.shape) == 2:
            prompt = tf.tile(prompt[tf.newaxis], [batch, 1, 1])
        # Where there are no rows, values are those of one.
        prompt = prompt[:batch]
        mask = context.input_mask
        seen = tf.ones([batch, prompt.shape[1]], mask.dtype)
        if self.method.heads_read == VIRTUAL:
            # Of several prompts the last one's is read.
            mask = tf.minimum(mask, 1)
            seen = tf.concat([READ * seen[:, :1], seen[:, 1:]], axis=1)
        return (
            tf.concat([hidden, prompt], axis=1),
            tf.concat([mask, seen], axis=1),
        )


@dataclasses.dataclass(frozen=True)
class Prompt(TuningMethod):
    """Trained virtual tokens next to those of a text; BERT is frozen.

    They join what the first layer reads, after the embeddings' LayerNorm, so
    they have no position and no segment. Heads see the text's tokens alone.
    BERT-base: P 768, 7,680 at P = 10. The output at the start is not BERT's.

    Attributes:
        length: virtual tokens P.
        heads_read: `cls`, or `prompt`: the output of the first virtual token
            takes the place of that of [CLS].

    Source: Lester et al. 2021, section 2; AdapterHub's `PromptTuningConfig`,
    with `combine` of `prefix_after_bos` and `prefix`.
    """

    name = "prompt"
    # As of `ia3`, which trains as little; not measured.
    learning_rate = 3e-3
    hooks_class = PromptHooks
    positive = ("length",)
    choices = {"heads_read": (CLS, VIRTUAL)}
    length: int = 10
    heads_read: str = CLS

    def variables(self, config, pooler=True):
        shape = self.length, config.hidden_size
        return {PROMPT: Declared(shape, uniform)}
