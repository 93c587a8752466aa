"""Classification by few rows: vectors are trained on pairs, then a head.

Pairs of rows with equal labels become more alike than others (CoSENT). A
linear head is fitted to the rows' vectors afterwards. Source: Tunstall et al.
2022, "Efficient Few-Shot Learning Without Prompts" (SetFit), section 3.
"""

import numpy as np

from adapter_bert.data.input_pipeline import Choices, Features
from adapter_bert.data.tables import Layout, list_labels
from adapter_bert.errors import UserError
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.text_classification import (
    TextClassification,
    check_one_label,
)
from adapter_bert.tasks.text_task import HeadShape
from adapter_bert.tasks.vectors import Vectors

MEAN = HeadShape(pooler=False, mean=True)
# Of each row in a pass over the rows, half with equal labels.
PAIRS = 16
# Pairs with scores, which tell equal labels.
OF_PAIRS = Vectors(layout=Layout("text", "text_b", "score"))


class FewRows:
    """What a classification task learns by pairs; comes before its class."""

    compares_rows = True

    @property
    def training_settings(self):
        return {**super().training_settings, "few_shot": True}

    def learn(self, rows):
        if missing := [x for x in self.labels if x not in rows.label]:
            raise UserError(
                "--few_shot needs training rows of every label; "
                f"{list_labels(missing)} has none"
            )
        return super().learn(rows)

    def count_train_steps(self, features, batch_size, epochs):
        return super().count_train_steps(features, batch_size, PAIRS * epochs)


def few_shot(task: Task) -> TextClassification:
    """Makes a task train its vectors on pairs, and fit its head to them."""
    check_one_label(task, "few_shot")
    kind = type("FewRows", (FewRows, type(task)), {})
    return kind(**{**vars(task), "head": MEAN})


def pair(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Pairs rows at random: int64 [count, 2], equal labels and others in turn.

    Each row, of `labels` int [rows], is as often first as others.
    """
    rng, rows = np.random.default_rng([seed, 2]), len(labels)
    passes = -(-count // (2 * rows))
    firsts = np.concatenate([rng.permutation(rows) for _ in range(passes)])
    firsts, random = firsts.repeat(2)[:count], rng.random(count)
    # Rows of a label stand together.
    order = labels.argsort(kind="stable")
    start = labels[order].searchsorted(labels)[firsts]
    size = np.bincount(labels)[labels][firsts]
    place = order.argsort()[firsts] - start
    # A label's only row is paired with itself.
    step = 1 + (random * (size - 1)).astype(np.int64)
    equal = start + (place + step) % size
    other = (random * (rows - size)).astype(np.int64)
    other += (other >= start) * size
    seconds = order[np.where(np.arange(count) % 2, other, equal)]
    return np.stack([firsts, seconds], axis=1)


def pairs_of(features: Features, count: int, seed: int) -> Choices:
    """Makes `count` pairs of labelled rows, with the score 1 or 0."""
    chosen = pair(features.labels["label_ids"], count, seed)
    texts = features.take(chosen.ravel())
    scores = 1 - np.arange(count, dtype=np.float32) % 2
    return Choices(
        texts.tokens, texts.segments, texts.starts, {"label_scores": scores}
    )
