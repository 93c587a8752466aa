"""A task over the user's own tables, by column names."""

import dataclasses
import pkgutil
from typing import Any

from adapter_bert.data.table_flags import SEPARATOR, OwnTables
from adapter_bert.data.tables import (
    NONE_NAMED,
    Layout,
    SplitFiles,
    check_distinct,
    join_labels,
)
from adapter_bert.errors import UserError
from adapter_bert.flags import check
from adapter_bert.tasks.text_task import TextTask

MOST_CHOICES = 1000
USUAL_LABEL = " (--label_column is 'label' unless it is named)"


def custom_task(
    *columns: Any, split_files: SplitFiles = NONE_NAMED, **settings: Any
) -> TextTask:
    """Makes a task over `train`, `dev` and `test` as .tsv, .csv or .jsonl.

    `columns` are the first fields of `OwnTables`, `settings` the others. Labels
    are still to be read from the training file, unless `label_columns` names
    them.
    """
    table = check(OwnTables(*columns, **settings))
    has_sets = bool(table.label_columns) or table.multi_label
    kinds = {}
    if table.regression:
        kinds["--regression"] = "text_regression:TextRegression"
    if has_sets:
        flag = "--label_columns" if table.label_columns else "--multi_label"
        kinds[flag] = "multi_label:MultiLabel"
    if table.choice_columns:
        kinds["--choice_columns"] = "multiple_choice:MultipleChoice"
    if len(kinds) > 1:
        raise UserError(f"{' and '.join(kinds)} exclude each other")
    [place] = kinds.values() or ["text_classification:TextClassification"]
    more: dict[str, Any] = {
        name: value
        for name in ("separator", "threshold")
        if (value := getattr(table, f"label_{name}")) is not None
    }
    if more and not has_sets:
        raise UserError(
            f"--label_{next(iter(more))} is for --multi_label, where rows "
            "have any number of labels"
        )
    separator = None
    if has_sets:
        separator = table.label_separator or SEPARATOR
    elif not kinds:
        more["metrics"] = ("accuracy", "macro_f1")
    elif table.choice_columns:
        _check_choices(table)
    named = table.text_a_column, table.text_b_column, table.id_column
    text_a, text_b, row_id = map(table.place, named)
    label = None if table.label_columns else table.place(table.label_column)
    choices = tuple(map(table.place, table.choice_columns))
    marks = tuple(map(table.place, table.label_columns))
    lists = {
        f"{flag} ({number})": column
        for flag, columns in (
            ("--label_columns", marks),
            ("--choice_columns", choices),
        )
        for number, column in enumerate(columns, 1)
    }
    flags = "--text_a_column", "--text_b_column", "--label_column"
    texts_and_label = dict(zip(flags, (text_a, text_b, label)))
    check_distinct(texts_and_label, USUAL_LABEL)
    check_distinct({**texts_and_label, **lists})
    # The column of the rows' names may be a text's.
    check_distinct({"--id_column": row_id, **lists})
    texts = Layout(text_a, text_b, header=table.header, choices=choices)
    make = pkgutil.resolve_name(f"adapter_bert.tasks.{place}")
    task = make(
        "custom",
        labelled=dataclasses.replace(
            texts, label=label, label_separator=separator, label_columns=marks
        ),
        unlabelled=dataclasses.replace(texts, row_id=row_id),
        held_out=table.held_out,
        names_rows=True,
        split_files=split_files,
        **more,
    )
    if not marks:
        return task
    labels = [str(mark).strip() for mark in marks]
    # Refuses labels that no cell can hold.
    join_labels(labels, separator, "--label_columns")
    return task.with_labels(labels, "--label_columns")


def _check_choices(table: OwnTables) -> None:
    names = table.choice_columns
    if not 2 <= len(names) <= MOST_CHOICES:
        raise UserError(
            f"--choice_columns names {len(names)} columns, expected 2 to "
            f"{MOST_CHOICES}"
        )
    for name in names:
        if table.header and name.isdigit():
            raise UserError(
                f"--choice_columns names {name!r}, but a label that is a "
                "number means a choice's number from 0; rename the column"
            )
