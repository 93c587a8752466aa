"""Makes the task that a `DataProcessor` of a BERT program means."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from adapter_bert.data.tables import Layout, Rows
from adapter_bert.errors import UserError
from adapter_bert.tasks.text_classification import TextClassification


@dataclasses.dataclass(frozen=True)
class _ProcessorTask(TextClassification):
    splits: tuple[tuple[str, Rows], ...] = ()

    def check_files(self, data_dir, splits):
        return

    def _read(self, data_dir, split):
        return dict(self.splits)[split]


def processor_task(
    processor: Any, data_dir: str, splits: Sequence[str]
) -> TextClassification:
    """Makes a task of the user's own, with the rows of some splits.

    A trained adapter answers tables with the columns `text`, of pairs also
    `text_b`. `processor` has `get_train_examples(data_dir)`,
    `get_dev_examples`, `get_test_examples` and `get_labels()`, as in
    google-research/bert's `run_classifier.py`.
    """
    rows = {split: _examples(processor, data_dir, split) for split in splits}
    pairs = {
        split: of_split.text_b is not None for split, of_split in rows.items()
    }
    if len(set(pairs.values())) > 1:
        raise UserError(f"{type(processor).__name__} gives pairs: {pairs}")
    text_b = "text_b" if any(pairs.values()) else None
    return _ProcessorTask(
        "custom",
        labelled=Layout("text", text_b, "label"),
        metrics=("accuracy", "macro_f1"),
        names_rows=True,
        labels=tuple(dict.fromkeys(map(_text, processor.get_labels()))),
        splits=tuple(rows.items()),
    )


def _examples(processor: Any, data_dir: str, split: str) -> Rows:
    name = f"{type(processor).__name__}.get_{split}_examples"
    try:
        examples = getattr(processor, f"get_{split}_examples")(data_dir)
    except (OSError, tf.errors.OpError) as error:
        raise UserError(f"{name} cannot read {data_dir}: {error}") from error
    examples = list(examples or ())
    if not examples:
        raise UserError(f"{name} gives no examples of {data_dir}")
    for example in examples:
        for column in ("text_a", "text_b")[: 1 + (example.text_b is not None)]:
            text = getattr(example, column)
            if not isinstance(text, (str, bytes)):
                raise UserError(
                    f"{name}: {column} of the example {example.guid!r} is "
                    f"{text!r}, a {type(text).__name__}; expected a text"
                )
    # A label is one of these by Python's equality, as in BERT: 1.0 is 1.
    names = {label: _text(label) for label in processor.get_labels()}
    text_a = [_text(x.text_a) for x in examples]
    text_b = [None if x.text_b is None else _text(x.text_b) for x in examples]
    label = [names.get(x.label, _text(x.label)) for x in examples]
    row_id = [
        # In a table of predictions it is one cell.
        " ".join(_text(number if x.guid is None else x.guid).split())
        for number, x in enumerate(examples)
    ]
    if not any(text_b):
        text_b = None
    elif None in text_b:
        single = examples[text_b.index(None)].guid
        raise UserError(
            f"{name} gives pairs and single texts, as {single!r}; expected "
            "either"
        )
    if split == "test":
        label = None
    # NaN is not equal to itself.
    elif bare := [
        x.guid for x in examples if x.label is None or x.label != x.label
    ]:
        raise UserError(
            f"{name} gives {len(bare)} examples without a label, as "
            f"{bare[0]!r}; expected one of get_labels()"
        )
    lines = np.arange(len(examples))
    return Rows(name, lines, text_a, text_b, label, row_id)


def _text(value: Any) -> str:
    """As `str`; bytes are UTF-8, read as google-research/bert reads them."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "ignore")
    return str(value)
