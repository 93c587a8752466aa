"""Ranks adapters to begin a training with, by LogME.

from adapter_bert.library.suggestion import rank

bert = FrozenBert.open("bert_base")
rank(bert, AdapterLibrary("shelf"), task, rows)[0].name
"""

import dataclasses
from typing import Optional

import numpy as np
from absl import logging

from adapter_bert.answering.embeddings import Embedder
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import LoadedTask, load_task
from adapter_bert.data.tables import Rows
from adapter_bert.errors import UserError
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.progress import Progress
from adapter_bert.tasks.logme import logme
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.tasks.text_task import TextTask


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible beginning of a training.

    Attributes:
        name: the adapter's in its library; None for BERT alone.
        logme: nats for each row; the higher, the better.
        task: the adapter's.
        method: the adapter's.
    """

    name: Optional[str]
    logme: float
    task: Optional[str] = None
    method: Optional[str] = None


def draw(rows: Rows, count: int, seed: int) -> Rows:
    """Draws at most so many rows at random, in their order."""
    chosen = np.zeros(len(rows), bool)
    chosen[np.random.default_rng(seed).permutation(len(rows))[:count]] = True
    return rows.take(chosen)


def targets(task: TextTask, rows: Rows) -> np.ndarray:
    """Labels as LogME takes them, float64 [N, K], or scores, [N, 1]."""
    features = task.label_features(rows.label)
    [values] = features.values()
    if len(np.unique(values)) < 2:
        raise UserError(
            f"the {len(rows)} rows of {rows.path} that were drawn hold only "
            f"the label {rows.label[0]!r}, expected at least two labels; pass "
            "more --rows or another file"
        )
    if isinstance(task, TextClassification):
        # Of a label that no row has there is nothing to explain.
        return (values[:, np.newaxis] == np.unique(values)).astype(np.float64)
    return values[:, np.newaxis].astype(np.float64)


def load_candidates(
    bert: FrozenBert, library: AdapterLibrary
) -> dict[str, LoadedTask]:
    """Opens a library's adapters that a training can begin with, by name.

    Others are passed over, and the log says why.
    """
    candidates: dict[str, LoadedTask] = {}
    reasons: dict[str, str] = {}
    for name in library.names():
        try:
            folder = library.folder(name)
            loaded = load_task(bert, folder, None, library.path)
            if loaded.kind.method.new_words:
                raise UserError(f"{folder} reads words of its own task")
            if all(p.group == "head" for p in loaded.kind.table.trained):
                raise UserError(f"{folder} holds a head alone")
            candidates[name] = loaded
        except UserError as error:
            reasons[name] = str(error)
    if not candidates:
        reason = next(iter(reasons.values()), "it is empty")
        raise UserError(
            f"the library {library.path} has no adapter that fits "
            f"{bert.base.path}: {reason}"
        )
    for name, reason in reasons.items():
        logging.warning("%s is passed over: %s", name, reason)
    return candidates


def rank(
    bert: FrozenBert,
    library: AdapterLibrary,
    task: TextTask,
    rows: Rows,
    max_seq_length: int = 128,
) -> list[Candidate]:
    """Ranks BERT alone and each adapter of a library on it, the best first.

    Features are means of the last layer over the tokens of a row.

    Args:
        bert: that the adapters were trained on.
        library: of adapters, whatever their tasks.
        task: that is to be trained, of one label or one number for each row.
        rows: with labels.
        max_seq_length: longest input in tokens.
    """
    explained = targets(task, rows)
    candidates: dict[Optional[str], Optional[LoadedTask]] = {None: None}
    candidates.update(load_candidates(bert, library))
    texts = list(zip(*(x for x in (rows.text_a, rows.text_b) if x is not None)))
    progress = Progress("features", len(rows) * len(candidates), "rows")
    ranked = []
    for name, loaded in candidates.items():
        embedder = Embedder(bert, loaded, max_seq_length=max_seq_length)
        chunks = []
        for vectors in embedder.stream(texts):
            chunks.append(vectors)
            progress.update(len(vectors), name or "BERT alone")
        score = logme(np.concatenate(chunks), explained)
        about = (loaded.task.name, str(loaded.kind.method)) if loaded else ()
        ranked.append(Candidate(name, score, *about))
    progress.close()
    # Of equals the first by name; BERT alone before all.
    return sorted(ranked, key=lambda candidate: -candidate.logme)
