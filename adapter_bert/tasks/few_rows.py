"""Classification by few rows: vectors are trained by labels, then a head.

Vectors of rows with equal labels become more alike than others. A linear head
is fitted to them afterwards, as in SetFit (Tunstall et al. 2022, "Efficient
Few-Shot Learning Without Prompts", section 3).
"""

from adapter_bert.bert.encoder import BertConfig, CreateVariable
from adapter_bert.data.tables import list_labels
from adapter_bert.errors import UserError
from adapter_bert.tasks import vector_losses
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.text_classification import (
    TextClassification,
    check_one_label,
)
from adapter_bert.tasks.text_task import HeadShape
from adapter_bert.tasks.vectors import VectorHead, Vectors

MEAN = HeadShape(pooler=False, mean=True)
# Passes over the rows in an epoch.
PASSES = 16
# Khosla et al. 2020, "Supervised Contrastive Learning", has 0.1. At 0.05 the
# vectors of 18 labels may become alike.
TEMPERATURE = 0.1


class LabelledVectors(VectorHead):
    """Vectors whose loss compares all rows of a batch by their labels."""

    def __init__(self, config: BertConfig, create: CreateVariable):
        pairs = Vectors(temperature=TEMPERATURE)
        super().__init__(pairs, config.hidden_size, create)
        self.compares = ("label_ids",)

    def batch_loss(self, vectors, features):
        return vector_losses.by_labels(
            vectors[:, 0], features["label_ids"], self.temperature
        )


class FewRows:
    """Changes a classification task to learn from few rows (a mixin)."""

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
        return super().count_train_steps(features, batch_size, PASSES * epochs)

    def plan(self, features, batch_size, num_steps, seed, pool_batches):
        # Grouped by length, a batch would hold copies of few rows.
        return super().plan(features, batch_size, num_steps, seed, 1)


def few_shot(task: Task) -> TextClassification:
    """Makes a task train its vectors by labels, and fit its head to them."""
    check_one_label(task, "few_shot")
    kind = type("FewRows", (FewRows, type(task)), {})
    return kind(**{**vars(task), "head": MEAN})
