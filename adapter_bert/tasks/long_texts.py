"""Long texts as several rows, windows, and one answer of all windows.

A text of one window has the tokens and the answer that it has without.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import numpy as np

from adapter_bert.data.input_pipeline import Texts
from adapter_bert.data.table_flags import FIRST, MAX, LongTexts
from adapter_bert.data.tables import Rows
from adapter_bert.data.tokenization import (
    TextTokenizer,
    cut,
    encode_texts,
    fit,
    make_row,
)
from adapter_bert.errors import UserError


def with_windows(task: Any, values: LongTexts, source: str) -> Any:
    """Makes a task read windows, if `source` says so."""
    if not values.window_stride:
        return task
    if not task.can_have_windows:
        raise UserError(
            f"{source}: window_stride is for a task with labels or numbers of "
            f"texts or pairs, alone, which {task.name} with these flags is "
            "not; leave it out"
        )
    if task.novelty:
        raise UserError(
            f"{source}: a novelty is of whole rows, and this adapter reads "
            "windows; leave out score_novelty or window_stride"
        )
    return dataclasses.replace(task, **vars(values))


@dataclasses.dataclass(frozen=True)
class TextWindows(Texts):
    """Features whose rows are windows, in the order of their texts.

    `first`, int64 [texts], are numbers of texts' first windows.
    """

    first: Optional[np.ndarray] = None

    @functools.cached_property
    def answer_labels(self):
        return {name: x[self.first] for name, x in self.labels.items()}

    def pool(self, values: np.ndarray, how: str) -> np.ndarray:
        """Makes outputs of texts from those of windows, float32 [N, ...]."""
        if how == FIRST:
            return values[self.first]
        if how == MAX:
            return np.maximum.reduceat(values, self.first)
        sums = np.add.reduceat(values.astype(np.float64), self.first)
        ends = np.append(self.first[1:], len(values))
        counts = (ends - self.first).reshape(-1, *[1] * (values.ndim - 1))
        return (sums / counts).astype(values.dtype)


def cut_windows(
    rows: Rows,
    labels: Mapping[str, np.ndarray],
    tokenizer: TextTokenizer,
    max_seq_length: int,
    stride: int,
) -> TextWindows:
    """Makes the windows of texts or pairs, each with its text's labels.

    Of a pair the second text has windows. The first one is cut, as in a row
    that is cut, to what such a row would have of it.
    """
    counts: list[int] = []

    def windows() -> Iterator[tuple[list[int], list[int], bool]]:
        for a, b in encode_texts(rows.text_a, rows.text_b, tokenizer):
            room, moving = max_seq_length - 2, a
            is_cut = False
            if b is not None:
                room, moving = room - len(tokenizer.between), b
                count, _ = fit(len(a), len(b), room)
                room, is_cut = room - count, count < len(a)
                a = cut(a, count, tokenizer.keeps_end)
            step = max(1, min(room, stride))
            further = max(0, len(moving) - room)
            # Until a window reaches the end.
            firsts = range(0, further + step, step)
            counts.append(len(firsts))
            for first in firsts:
                part = moving[first : first + room]
                pair = (part, None) if b is None else (a, part)
                yield (
                    *make_row(*pair, tokenizer, max_seq_length),
                    is_cut and not first,
                )

    features = TextWindows.from_rows(windows(), {})
    return dataclasses.replace(
        features,
        labels={n: np.repeat(x, counts, axis=0) for n, x in labels.items()},
        first=np.cumsum([0, *counts], dtype=np.int64)[:-1],
    )
