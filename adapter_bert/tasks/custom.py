"""A task over the user's own tables, by column names."""

import dataclasses
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from adapter_bert.data.table_flags import SEPARATOR, Column, OwnTables
from adapter_bert.data.tables import (
    NONE_NAMED,
    Layout,
    SplitFiles,
    check_distinct,
    join_labels,
)
from adapter_bert.errors import UserError
from adapter_bert.flags import check
from adapter_bert.tasks.text_classification import TextClassification
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
    sets = "--label_columns" if table.label_columns else "--multi_label"
    kinds = {
        "--regression": (table.regression, "text_regression:TextRegression"),
        sets: (has_sets, "multi_label:MultiLabel"),
        "--choice_columns": (
            table.choice_columns,
            "multiple_choice:MultipleChoice",
        ),
    }
    options = {flag: place for flag, (is_it, place) in kinds.items() if is_it}
    if len(options) > 1:
        raise UserError(f"{' and '.join(options)} exclude each other")
    make: type = TextClassification
    for place in options.values():
        make = pkgutil.resolve_name(f"adapter_bert.tasks.{place}")
    about_sets = {
        "separator": table.label_separator,
        "threshold": table.label_threshold,
    }
    more: dict[str, Any] = {
        k: x for k, x in about_sets.items() if x is not None
    }
    if more and not has_sets:
        raise UserError(
            f"--label_{next(iter(more))} is for --multi_label, where rows "
            "have any number of labels"
        )
    separator = None
    if has_sets:
        separator = table.label_separator or SEPARATOR
    elif make is TextClassification:
        more["metrics"] = ("accuracy", "macro_f1")
    elif table.choice_columns:
        _check_choices(table)
    named = table.text_a_column, table.text_b_column, table.id_column
    text_a, text_b, row_id = map(table.place, named)
    label = None if table.label_columns else table.place(table.label_column)
    choices = tuple(map(table.place, table.choice_columns))
    marks = tuple(map(table.place, table.label_columns))
    _check_columns(
        {
            "--text_a_column": text_a,
            "--text_b_column": text_b,
            "--label_column": label,
        },
        row_id,
        {"--label_columns": marks, "--choice_columns": choices},
    )
    texts = Layout(text_a, text_b, header=table.header, choices=choices)
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
    labels = list(map(str, marks))
    # Refuses labels that no cell can hold.
    join_labels(labels, separator, "--label_columns")
    return task.with_labels(labels, "--label_columns")


def _check_columns(
    flags: Mapping[str, Optional[Column]],
    row_id: Optional[Column],
    lists: Mapping[str, Sequence[Column]],
) -> None:
    """Refuses a column for two of texts, labels and choices.

    `flags` have a column each, `lists` several. The column of the rows' names
    may be a text's.
    """
    used = {row_id, *check_distinct(flags, USUAL_LABEL)}
    for flag, columns in lists.items():
        for name in columns:
            if name in used:
                raise UserError(
                    f"{flag} names {str(name)!r}, a column that it or another "
                    "flag names too"
                )
            used.add(name)


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
