"""Tasks that learn the outputs of other models in place of labels.

Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network".
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from adapter_bert.data.tables import Rows


class _Distilled:
    """Changes a task over texts to learn outputs (a mixin)."""

    def check_files(self, data_dir, splits):
        return

    def read(self, data_dir, splits):
        return self, {split: self.texts for split in splits}

    def learn(self, rows):
        return self

    @property
    def training_settings(self):
        return {"temperature": self.temperature}

    def featurize(self, rows, tokenizer, max_seq_length):
        features = super().featurize(rows, tokenizer, max_seq_length)
        return dataclasses.replace(features, labels=self.outputs)

    def build_head(self, config, create):
        head = super().build_head(config, create)
        head.loss = lambda predictions, features: head.distillation_loss(
            predictions, features, self.temperature
        )
        return head


def distilled(
    task: Any,
    texts: Rows,
    outputs: Mapping[str, np.ndarray],
    temperature: float,
) -> Any:
    """Makes a task learn another model's head's outputs, [rows, ...] by name.

    `texts` are the rows, in memory; `temperature` divides both models' logits.
    """
    about = dict(texts=texts, outputs=outputs, temperature=temperature)
    kind = type("Distilled", (_Distilled, type(task)), about)
    return kind(**vars(task))
