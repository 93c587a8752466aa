"""XNLI (Conneau et al. 2018): inference in one of its languages."""

import dataclasses

import numpy as np

from adapter_bert.data.tables import Layout, Rows, read_rows
from adapter_bert.errors import UserError
from adapter_bert.tasks.glue import NLI_LABELS
from adapter_bert.tasks.text_classification import TextClassification


@dataclasses.dataclass(frozen=True)
class Xnli(TextClassification):
    """Translated training pairs, and the published pairs of a language.

    The files are `multinli/multinli.train.<language>.tsv`, `xnli.dev.tsv` and
    `xnli.test.tsv`, which hold all languages. `language` is as there.
    """

    language: str = "zh"

    def check_label(self, label, where):
        spelling = "contradiction" if label == "contradictory" else label
        return super().check_label(spelling, where)

    def find(self, data_dir, split):
        if split == "train":
            split = f"multinli/multinli.train.{self.language}"
        return super().find(data_dir, split)

    def _read(self, data_dir: str, split: str) -> Rows:
        if split == "train":
            return super()._read(data_dir, split)
        label = (
            None if split in dict(self.test_splits).values() else "gold_label"
        )
        layout = Layout("sentence1", "sentence2", label, row_id="language")
        path = self.find(data_dir, split)
        rows = read_rows(path, layout)
        rows = rows.take(np.array([x == self.language for x in rows.row_id]))
        if not len(rows):
            raise UserError(f"{path} holds no rows of language {self.language}")
        return dataclasses.replace(rows, row_id=None)


XNLI = Xnli(
    "xnli",
    labels=NLI_LABELS,
    labelled=Layout("premise", "hypo", "label"),
    dev_splits=(("", "xnli.dev"),),
    test_splits=(("", "xnli.test"),),
)
