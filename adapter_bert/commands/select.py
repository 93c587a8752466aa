r"""Chooses the rows of a pool that are to be labelled next.

    .venv/bin/adapter-bert select --pool=new.csv --count=100 \
        --init_checkpoint=$BERT --adapter=out/tickets/adapter \
        --output=next.tsv

With an adapter these are the rows whose answers are least sure (`margin`).
Without one they are rows that differ most from one another
(`k_centre`), by the vectors of frozen BERT.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, Optional

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.answering import row_stream
from adapter_bert.answering.embeddings import VectorForm
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import TextRow
from adapter_bert.checkpoints.bert_flags import LetterCase
from adapter_bert.commands import predict
from adapter_bert.data.divisions import number_texts
from adapter_bert.data.tables import ending_of
from adapter_bert.errors import UserError
from adapter_bert.flags import POSITIVE, Topic, read
from adapter_bert.library import flags as adapter_flags
from adapter_bert.progress import Progress
from adapter_bert.tasks.task import cell, write_table
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.tasks.text_task import TEXT_COLUMNS

MARGIN, K_CENTRE = "margin", "k_centre"
# Rows computed between two notes of the progress.
CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class Selection(LetterCase):
    """Pool, and choice."""

    pool: str = Topic.DATA.setting(
        "", "Rows without labels: .tsv, .csv, .jsonl, .json, or plain text."
    )
    output: str = Topic.DATA.setting("", "File for the chosen rows (.tsv).")
    columns: list[str] = Topic.DATA.setting(
        [],
        "Columns or JSON keys of a row's texts, as text,text_b; default: "
        "those that the adapter was trained on.",
    )
    count: int = Topic.DATA.setting(100, "Rows to choose.", POSITIVE)
    by: Optional[str] = Topic.TO_DO.setting(
        None,
        "margin: rows whose two most probable labels are nearest to each "
        "other; k_centre: rows that differ most from those chosen before. "
        "Default: margin with --adapter, else k_centre.",
        choices=(MARGIN, K_CENTRE),
    )


SETTINGS = (Selection, adapter_flags.Answering)


def k_centre(vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Chooses by greedy k-centre: the row farthest from those before it.

    The first is the row nearest to the mean of all. Equal rows are chosen
    last. Source: Sener and Savarese 2018, algorithm 1. Takes float32 [N, D].

    Returns:
        int64 [count], and each one's distance from the rows before it, of the
        first from the mean, float64 [count].
    """
    vectors = vectors.astype(np.float64)
    from_mean = np.linalg.norm(vectors - vectors.mean(axis=0), axis=1)
    chosen = [int(from_mean.argmin())]
    distances = [float(from_mean.min())]
    nearest = np.full(len(vectors), np.inf)
    while len(chosen) < count:
        last = np.linalg.norm(vectors - vectors[chosen[-1]], axis=1)
        nearest = np.minimum(nearest, last)
        nearest[chosen[-1]] = -1
        chosen.append(int(nearest.argmax()))
        distances.append(float(nearest.max()))
    return np.array(chosen), np.array(distances)


def least_sure(
    probabilities: np.ndarray, texts: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses the rows with the smallest margins, and gives these.

    A margin is the greatest probability less the second. Rows whose text, int64
    [N], has been chosen come last. Returns int64 [count], float64 [count].
    """
    highest = np.sort(probabilities, axis=1)
    margins = highest[:, -1] - highest[:, -2]
    order = np.argsort(margins, kind="stable")
    is_copy = np.ones(len(order), bool)
    is_copy[np.unique(texts[order], return_index=True)[1]] = False
    chosen = order[np.argsort(is_copy, kind="stable")][:count]
    return chosen, margins[chosen]


def choose_by_margin(
    selection: Selection, bert: Optional[FrozenBert]
) -> tuple[list[TextRow], np.ndarray, np.ndarray]:
    """Gives the pool's rows, the chosen ones, and their margins."""
    if selection.do_lower_case is not None:
        raise UserError(predict.LETTER_CASE)
    predictor = predict.open_predictor(bert)
    names = predictor.names
    if len(names) > 1:
        raise UserError(
            f"{len(names)} adapters are named, expected one (--adapter)"
        )
    loaded = predictor.task(names[0])
    task = loaded.task
    if not isinstance(task, TextClassification) or task.has_sets:
        raise UserError(
            f"{names[0]} does not give each row one label, so that there is no "
            f"margin; pass --by={K_CENTRE}"
        )

    def compute(rows: Sequence[TextRow], places: Sequence[str]) -> np.ndarray:
        [answers] = predictor.answer_all([loaded], rows, places)
        return np.array([list(x["scores"].values()) for x in answers])

    columns = predict.columns_of({names[0]: loaded})
    rows, probabilities = _compute(selection, columns, compute)
    texts = number_texts(map(tuple, rows))
    return rows, *least_sure(probabilities, texts, selection.count)


def choose_by_distance(
    selection: Selection, bert: Optional[FrozenBert]
) -> tuple[list[TextRow], np.ndarray, np.ndarray]:
    """Gives the pool's rows, the chosen ones, and their distances."""
    embedder, columns = predict.open_embedder(VectorForm(normalize=True), bert)
    rows, vectors = _compute(selection, columns, embedder)
    return rows, *k_centre(vectors, min(selection.count, len(rows)))


def _compute(
    selection: Selection,
    columns: row_stream.Alternatives,
    compute: Callable[[Sequence[TextRow], Sequence[str]], np.ndarray],
) -> tuple[list[TextRow], np.ndarray]:
    """Reads the pool's rows, and computes values [rows, ...] of them."""
    placed = list(
        row_stream.file_rows(selection.pool, columns, lambda size: None)
    )
    if not placed:
        raise UserError(f"--pool {selection.pool} holds no rows to choose from")
    progress, values = Progress("rows of the pool", len(placed), "rows"), []
    for first in range(0, len(placed), CHUNK):
        rows, places = zip(*placed[first : first + CHUNK])
        values.append(compute(rows, places))
        progress.update(len(rows))
    progress.close()
    return [row for row, _ in placed], np.concatenate(values)


def choose(
    selection: Selection, bert: Optional[FrozenBert] = None
) -> list[dict[str, Any]]:
    """Chooses the rows to label next, with a BERT that may be open already.

    Returns:
        The chosen rows, the first to be labelled first: `row` (number among
        the rows that are read, from 1), `text` and of pairs `text_b`,
        and `margin` or `k_centre`.
    """
    answering = adapter_flags.read_flags()
    has_adapter = answering.adapter or answering.task
    by = selection.by or (MARGIN if has_adapter else K_CENTRE)
    ways = {MARGIN: choose_by_margin, K_CENTRE: choose_by_distance}
    rows, chosen, scores = ways[by](selection, bert)
    return [
        {
            "row": int(row) + 1,
            **dict(zip(TEXT_COLUMNS, rows[row])),
            by: float(score),
        }
        for row, score in zip(chosen, scores)
    ]


def main() -> None:
    """Chooses from the pool that the flags name."""
    selection = read(Selection)
    for name in ("pool", "output"):
        path = getattr(selection, name)
        if not path:
            raise UserError(f"--{name} is missing")
    if ending_of(selection.output) != ".tsv":
        raise UserError(
            f"--output is {selection.output}, expected a name with the ending "
            ".tsv"
        )
    files.check_input(selection.pool, "--pool")
    files.check_output(selection.output, "--output", selection.pool, "--pool")
    chosen = choose(selection)
    header = tuple(max(chosen, key=len))
    *texts, by = header[1:]
    table = [header] + [
        (
            str(row["row"]),
            *(cell(row.get(name, "")) for name in texts),
            f"{row[by]:.6f}",
        )
        for row in chosen
    ]
    path = write_table(selection.output, table)
    logging.info("%s: %d rows, by %s", path, len(chosen), by)
