"""A classification task over the user's own TSV files, by column names."""

from typing import Optional

from tasks.text_classification import Layout, TextClassification


def custom_task(
    text_a_column: str, text_b_column: Optional[str], label_column: str
) -> TextClassification:
    """A task over `train.tsv`, `dev.tsv` and `test.tsv` with header lines.

    Args:
        text_a_column: name of the text's column.
        text_b_column: name of the second text's column, or None.
        label_column: name of the label's column; `test.tsv` may lack it.

    Returns:
        A task whose labels are those found in `train.tsv`.
    """
    return TextClassification(
        "custom",
        labels=None,
        labelled=Layout(text_a_column, text_b_column, label_column),
        unlabelled=Layout(text_a_column, text_b_column),
        metrics=("accuracy", "macro_f1"),
    )
