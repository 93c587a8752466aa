"""Flags of the user's own tables, and what flags say of data."""

import dataclasses
from typing import Any, Optional, Union

from adapter_bert.errors import UserError
from adapter_bert.flags import NOT_NEGATIVE, PROBABILITY, Range, Topic

# Between labels: seldom within one, unlike a comma.
SEPARATOR = "|"
# Rows are grouped by length within this many batches: enough that little of a
# batch is padding (9 to 17% on MRPC, CoLA and RTE; 50 to 105% without), few
# enough that batches hold other rows in every epoch.
POOL_BATCHES = 8
# Ways to make a text's outputs of its windows'.
FIRST, MEAN, MAX = "first", "mean", "max"
POOLS = FIRST, MEAN, MAX
# A column's name, or its number from 0.
Column = Union[str, int]


def is_one_cell(label: str) -> bool:
    """True if a table can hold a label: no tab, no line break, not empty."""
    return "\t" not in label and label.splitlines() == [label]


@dataclasses.dataclass(frozen=True)
class TextColumns:
    """Columns of texts and labels in the user's own tables."""

    text_a_column: str = Topic.TABLES.setting("text", "Column of the text.")
    text_b_column: Optional[str] = Topic.TABLES.setting(
        None, "Column of the second text, for pairs."
    )
    label_column: str = Topic.TABLES.setting("label", "Column of the label.")
    id_column: Optional[str] = Topic.TABLES.setting(
        None,
        "Column that names a row in the predictions; default: the "
        "row's number from 0.",
    )


@dataclasses.dataclass(frozen=True)
class OwnFiles:
    """Names and divides the user's own files."""

    header: bool = Topic.TABLES.setting(
        True,
        ".tsv and .csv files begin with the names of the columns. "
        "Columns are numbers from 0 otherwise.",
    )
    dev_share: float = Topic.TABLES.setting(
        0.0,
        "Share of the training file, 0 to 1, that is held out as dev "
        "set, of each label alike; 0 if there is a dev file.",
        Range(lambda x: 0 <= x < 1, "expected a share from 0 to below 1"),
    )
    split_seed: int = Topic.TABLES.setting(
        1, "Seed that chooses the rows of --dev_share.", NOT_NEGATIVE
    )

    @property
    def held_out(self) -> Optional[Any]:
        if not self.dev_share:
            return None
        from adapter_bert.data.divisions import HeldOut

        return HeldOut(self.dev_share, self.split_seed)

    def place(self, name: Optional[str]) -> Optional[Column]:
        if name is None or self.header:
            return name
        if not (name.isascii() and name.isdigit() and len(name) < 10):
            raise UserError(
                f"the column {name!r} is no number from 0, but --header=false "
                "says that the files do not name their columns"
            )
        return int(name)


# Fields of `TextColumns` come first.
@dataclasses.dataclass(frozen=True)
class OwnTables(OwnFiles, TextColumns):
    """Declares the user's own tables: columns, files, kind of labels."""

    regression: bool = Topic.TABLES.setting(
        False, "custom: labels are numbers."
    )
    multi_label: bool = Topic.TABLES.setting(
        False,
        "custom: rows have any number of labels, with --label_separator "
        "between them in a cell (.tsv, .csv), or as a list (.jsonl).",
    )
    label_separator: Optional[str] = Topic.TABLES.setting(
        None,
        "custom, --multi_label: one character that separates labels; "
        f"default: {SEPARATOR}.",
        Range(
            lambda text: len(text) == 1 and is_one_cell(text),
            "expected a single character, neither a tab nor a line break",
        ),
        recorded=True,
    )
    label_threshold: Optional[float] = Topic.TABLES.setting(
        None,
        "custom, --multi_label: least probability of the labels that a row "
        "is given; default: 0.5.",
        PROBABILITY,
        recorded=True,
    )
    label_columns: list[str] = Topic.TABLES.setting(
        [],
        "custom: a column of 0 and 1 for each label, as a,b,c, in place of "
        "--label_column; rows have any number of labels.",
    )
    choice_columns: list[str] = Topic.TABLES.setting(
        [],
        "custom: columns of the choices, as a,b,c. The label is the right "
        "choice's number from 0, or its column.",
    )


@dataclasses.dataclass(frozen=True)
class LongTexts:
    """Fields of a `TextTask`, as flags and in an adapter's settings."""

    window_stride: int = Topic.DATA.setting(
        0,
        "Tokens from the start of a window to the next one's. A text longer "
        "than --max_seq_length is read in windows, of a pair the second text, "
        "and answered once; 0 cuts it off. --adapter or a run has its own.",
        NOT_NEGATIVE,
        recorded=True,
    )
    pool_windows: str = Topic.DATA.setting(
        MEAN,
        "--window_stride: how a text's logits are made of its windows': their "
        "mean, the greatest of each label (max), or the first window's.",
        Range(POOLS.__contains__, f"expected {', '.join(POOLS)}"),
        choices=POOLS,
        needs=("window_stride",),
        recorded=True,
    )
