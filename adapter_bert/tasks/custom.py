"""A task over the user's own tables, by column names."""

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from adapter_bert.data.tables import (
    NONE_NAMED,
    SEPARATOR,
    Column,
    HeldOut,
    Layout,
    SplitFiles,
    check_separator,
    check_threshold,
    join_labels,
)
from adapter_bert.errors import UserError
from adapter_bert.tasks.multi_label import MultiLabel
from adapter_bert.tasks.multiple_choice import MultipleChoice
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.tasks.text_regression import TextRegression
from adapter_bert.tasks.text_task import TextTask

MOST_CHOICES = 1000


def custom_task(
    text_a_column: str = "text",
    text_b_column: Optional[str] = None,
    label_column: str = "label",
    id_column: Optional[str] = None,
    header: bool = True,
    dev_share: float = 0.0,
    split_seed: int = 1,
    regression: bool = False,
    multi_label: bool = False,
    label_separator: Optional[str] = None,
    label_threshold: Optional[float] = None,
    label_columns: Sequence[str] = (),
    choice_columns: Sequence[str] = (),
    split_files: SplitFiles = NONE_NAMED,
) -> TextTask:
    """A task over `train`, `dev` and `test` as .tsv, .csv or .jsonl.

    Arguments are as the flags say that have their names (`run_classifier.py`).

    Args:
        split_files: files of splits that were named one by one.

    Returns:
        A task whose labels are still to be read from the training file, unless
        `label_columns` names them.

    Raises:
        UserError: a column of files without a header is no number, the share,
            the separator or the threshold is malformed, the seed is negative,
            or arguments contradict each other.
    """
    kinds = {
        "--regression": (regression, TextRegression),
        "--label_columns" if label_columns else "--multi_label": (
            multi_label or label_columns,
            MultiLabel,
        ),
        "--choice_columns": (choice_columns, MultipleChoice),
    }
    asked = {flag: kind for flag, (is_asked, kind) in kinds.items() if is_asked}
    if len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} exclude each other")
    [make] = asked.values() or [TextClassification]
    about_sets = {"separator": label_separator, "threshold": label_threshold}
    more: Dict[str, Any] = {
        name: value for name, value in about_sets.items() if value is not None
    }
    if more and make is not MultiLabel:
        raise UserError(
            f"--label_{next(iter(more))} is for --multi_label, where rows "
            "have any number of labels"
        )
    if label_separator is not None:
        check_separator(label_separator)
    if label_threshold is not None:
        check_threshold(label_threshold, "--label_threshold")
    separator = label_separator or SEPARATOR if make is MultiLabel else None
    if make is TextClassification:
        more["metrics"] = ("accuracy", "macro_f1")
    if not 0 <= dev_share < 1:
        raise UserError(
            f"--dev_share is {dev_share}, expected a share from 0 to below 1"
        )
    if split_seed < 0:
        raise UserError(f"--split_seed is {split_seed}, expected >= 0")
    if choice_columns:
        _check_choices(choice_columns, header)

    def column(name: Optional[str]) -> Optional[Column]:
        """A number where the files have no header."""
        if name is None or header:
            return name
        if not (name.isascii() and name.isdigit() and len(name) < 10):
            raise UserError(
                f"the column {name!r} is no number from 0, but --header=false "
                "says that the files do not name their columns"
            )
        return int(name)

    text_a, text_b = column(text_a_column), column(text_b_column)
    label = column(None if label_columns else label_column)
    row_id = column(id_column)
    choices = tuple(map(column, choice_columns))
    marks = tuple(map(column, label_columns))
    _check_own_columns(
        {
            "--text_a_column": text_a,
            "--text_b_column": text_b,
            "--label_column": label,
        },
        row_id,
        {
            "--label_columns": list(zip(label_columns, marks)),
            "--choice_columns": list(zip(choice_columns, choices)),
        },
    )
    task = make(
        "custom",
        labelled=Layout(
            text_a,
            text_b,
            label,
            header,
            choices=choices,
            label_separator=separator,
            label_columns=marks,
        ),
        unlabelled=Layout(
            text_a, text_b, None, header, row_id, choices=choices
        ),
        held_out=HeldOut(dev_share, split_seed) if dev_share else None,
        names_rows=True,
        split_files=split_files,
        **more,
    )
    if not marks:
        return task
    labels = list(map(str, marks))
    # Refuses labels that no cell can hold.
    join_labels(labels, separator, "--label_columns")
    return task.with_labels(labels, "--label_columns")


def _check_own_columns(
    flags: Mapping[str, Optional[Column]],
    row_id: Optional[Column],
    lists: Mapping[str, Sequence[Tuple[str, Column]]],
) -> None:
    """Refuses a column for two of texts, labels and choices.

    Args:
        flags: flags with a column each.
        row_id: the column of the rows' names, which may be a text's.
        lists: flags with several columns, each as typed and as read.
    """
    used: Dict[Column, str] = {}
    for flag, name in flags.items():
        if name is not None and used.setdefault(name, flag) != flag:
            raise UserError(
                f"{used[name]} and {flag} both name the column {name!r}; "
                "expected a column of its own for each (--label_column is "
                "'label' unless it is named)"
            )
    others = [*used, row_id]
    for flag, columns in lists.items():
        for typed, name in columns:
            if name in others:
                raise UserError(
                    f"{flag} names {typed!r}, a column that it or another flag "
                    "names too"
                )
            others.append(name)


def _check_choices(names: Sequence[str], header: bool) -> None:
    """Refuses too few or too many, and names that mean other choices."""
    if not 2 <= len(names) <= MOST_CHOICES:
        raise UserError(
            f"--choice_columns names {len(names)} columns, expected 2 to "
            f"{MOST_CHOICES}"
        )
    for name in names:
        if header and name.isdigit():
            raise UserError(
                f"--choice_columns names {name!r}, but a label that is a "
                "number means a choice's number from 0; rename the column"
            )
