"""A task over the user's own tables, by column names."""

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Type

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
from adapter_bert.tasks import metrics
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

    Args:
        text_a_column: name of the text's column; its number from 0 if the
            files have no header line. So are the other columns.
        text_b_column: the second text's column, or None.
        label_column: the label's column; the test file may lack it.
        id_column: the test file's column of what names a row in the
            predictions, or None for its number from 0.
        header: whether the first line of a .tsv or .csv names the columns.
        dev_share: of the training file, held out as dev set; 0 if that is a
            file of its own.
        split_seed: of the held-out rows' choice.
        regression: whether labels are numbers to be predicted.
        multi_label: whether rows have any number of labels.
        label_separator: what stands between these, a single character;
            default: `SEPARATOR`.
        label_threshold: the probability from which on a row is given one, in
            between 0 and 1; default: `THRESHOLD`.
        label_columns: a column of 0 and 1 for each label, with the label's
            name, in place of `label_column`; rows have any number of labels.
            () where there are none.
        choice_columns: columns of the choices, of which labels name the right
            one; () where there are none.
        split_files: files of splits that were named one by one.

    Returns:
        A task whose labels are those found in the training file, or those of
        `label_columns`.

    Raises:
        UserError: a column of files without a header is no number, the share,
            the separator or the threshold is none, the seed is negative, or
            arguments contradict each other.
    """
    _check_kind(regression, multi_label, label_columns, choice_columns)
    multi_label = multi_label or bool(label_columns)
    about_sets = _about_sets(multi_label, label_separator, label_threshold)
    if not 0 <= dev_share < 1:
        raise UserError(
            f"--dev_share is {dev_share}, expected a share from 0 to below 1"
        )
    if split_seed < 0:
        raise UserError(f"--split_seed is {split_seed}, expected >= 0")
    if choice_columns:
        _check_choices(choice_columns, header)
    own_label = None if label_columns else label_column
    named = (text_a_column, text_b_column, own_label, id_column)
    text_a, text_b, label, row_id = (_column(name, header) for name in named)
    choices = tuple(_column(name, header) for name in choice_columns)
    marks = tuple(_column(name, header) for name in label_columns)
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
    make: Type[TextTask] = TextClassification
    scores = ("accuracy", "macro_f1")
    if regression:
        make, scores = TextRegression, ("pearson", "spearman")
    if multi_label:
        make, scores = MultiLabel, tuple(metrics.LABEL_SET_METRICS)
    if choices:
        make, scores = MultipleChoice, ("accuracy",)
    separator = about_sets.get("separator", SEPARATOR) if multi_label else None
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
        metrics=scores,
        held_out=HeldOut(dev_share, split_seed) if dev_share else None,
        names_rows=True,
        split_files=split_files,
        **about_sets,
    )
    if not marks:
        return task
    labels = list(map(str, marks))
    # Checked to be labels that a cell can hold.
    join_labels(labels, separator, "--label_columns")
    return task.with_labels(labels, "--label_columns")


def _check_kind(
    regression: bool,
    multi_label: bool,
    label_columns: Sequence[str],
    choice_columns: Sequence[str],
) -> None:
    """Refuses labels of several kinds."""
    kinds = {
        "--regression": regression,
        "--label_columns" if label_columns else "--multi_label": (
            multi_label or label_columns
        ),
        "--choice_columns": choice_columns,
    }
    named = [flag for flag, is_named in kinds.items() if is_named]
    if len(named) > 1:
        raise UserError(f"{' and '.join(named)} exclude each other")


def _about_sets(
    multi_label: bool, separator: Optional[str], threshold: Optional[float]
) -> Dict[str, Any]:
    """What is told of sets of labels, checked, as `MultiLabel` takes it."""
    told = {"separator": separator, "threshold": threshold}
    found = {name: v for name, v in told.items() if v is not None}
    if found and not multi_label:
        raise UserError(
            f"--label_{next(iter(found))} is for --multi_label, where rows "
            "have any number of labels"
        )
    if separator is not None:
        check_separator(separator)
    if threshold is not None:
        check_threshold(threshold, "--label_threshold")
    return found


def _column(name: Optional[str], header: bool) -> Optional[Column]:
    """A column as a `Layout` has it: a number where files name no columns."""
    if name is None or header:
        return name
    if not (name.isascii() and name.isdigit() and len(name) < 10):
        raise UserError(
            f"the column {name!r} is no number from 0, but --header=false "
            "says that the files do not name their columns"
        )
    return int(name)


def _check_own_columns(
    flags: Mapping[str, Optional[Column]],
    row_id: Optional[Column],
    lists: Mapping[str, Sequence[Tuple[str, Optional[Column]]]],
) -> None:
    """Refuses a column for two of texts, labels and choices.

    Args:
        flags: what they name.
        row_id: the column of what names a row, which may be a text's.
        lists: of flags that name several, each as it is named, and its column.
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
        for named, name in columns:
            if name in others:
                raise UserError(
                    f"{flag} names {named!r}, a column that it or another flag "
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
