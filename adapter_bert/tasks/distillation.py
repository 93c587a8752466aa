"""Tasks that learn the outputs of other models in place of labels.

A batch mixes rows of all tasks. BERT reads the rows of each task with trained
values of the task's own, and shares what is frozen.

Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network".
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from adapter_bert.bert.encoder import BertConfig, CreateVariable
from adapter_bert.data.tables import Rows
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.tasks.multi_task import (
    JoinedFeatures,
    MultiTask,
    MultiTaskHead,
    RowsByTask,
)
from adapter_bert.tasks.task import Task


class DistillationHead(MultiTaskHead):
    """Heads of tasks, each on a BERT with trained values of the task's own.

    A task alone needs no values next to others', so any method trains it.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        temperature: float,
        config: BertConfig,
        create: CreateVariable,
    ):
        super().__init__(tasks, config, create)
        self.temperature = temperature
        self.sides = tuple(tasks) if len(tasks) > 1 else ()

    def loss_of(self, head, predictions, features):
        return head.distillation_loss(predictions, features, self.temperature)


@dataclasses.dataclass(frozen=True)
class Distillation(MultiTask):
    """Tasks over texts, whose rows are in memory and have no labels.

    `texts` are each task's rows, `outputs` the other models' heads', [rows,
    ...] by task and name; `temperature` divides both models' logits.
    """

    sampling: str = "proportional"
    temperature: float = 1.0
    texts: Mapping[str, Rows] = dataclasses.field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(
        default_factory=dict
    )

    def check_files(self, data_dir, splits):
        return

    def read(self, data_dir, splits):
        return self, {split: RowsByTask(self.texts) for split in splits}

    def learn(self, rows: RowsByTask):
        return self

    @property
    def training_settings(self):
        return {
            "trained_together": list(self.trained_together),
            "temperature": self.temperature,
        }

    def featurize(
        self, rows: RowsByTask, tokenizer: TextTokenizer, max_seq_length
    ):
        return JoinedFeatures.join(
            {
                name: dataclasses.replace(
                    self.tasks[name].featurize(
                        task_rows, tokenizer, max_seq_length
                    ),
                    labels=self.outputs[name],
                )
                for name, task_rows in rows.by_task.items()
            }
        )

    def build_head(self, config, create):
        return DistillationHead(self.tasks, self.temperature, config, create)

    def plan(self, features, batch_size, num_steps, seed, pool_batches):
        sizes = batch_size, num_steps, seed, pool_batches
        return Task.plan(self, features, *sizes)
