r"""Mines hard negatives: texts that are like a right one and are none.

    .venv/bin/adapter-bert mine --train_file=pairs.csv \
        --text_a_column=question --text_b_column=answer \
        --init_checkpoint=$BERT --range=10-100 --margin=5% \
        --output=mined.jsonl

The pairs are named by the flags of `run_vectors.py`. The output is a file that
it trains on, or a file of rows with labels.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.answering.embeddings import (
    TRAINED,
    Embedder,
    VectorForm,
    trained_form,
)
from adapter_bert.checkpoints.bert_flags import LetterCase
from adapter_bert.commands import predict, run_vectors
from adapter_bert.data.divisions import number_texts
from adapter_bert.data.tables import Layout, check_distinct, ending_of
from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, NOT_NEGATIVE, POSITIVE, Range, Topic, read
from adapter_bert.library import flags as adapter_flags
from adapter_bert.progress import Progress
from adapter_bert.tasks.corpus import Search
from adapter_bert.tasks.retrieval import cosines, nearest
from adapter_bert.tasks.vectors import Vectors

TOP, RANDOM = "top", "random"
RANKS = re.compile(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})")
MARGIN = re.compile(r"([0-9]+\.?[0-9]*)(%?)")


@dataclasses.dataclass(frozen=True)
class Mining(LetterCase):
    """Says which negatives are mined, and what is written."""

    output: str = Topic.DATA.setting("", "File for the rows (.jsonl).")
    ranks: str = Topic.TO_DO.setting(
        "1-100",
        "Ranks of the negatives, as 10-100, among the documents that are not "
        "right; 1 is the nearest.",
        Range(
            lambda x: (m := RANKS.fullmatch(x)) and int(m[1]) <= int(m[2]),
            "expected two ranks from 1, as 10-100",
        ),
        flag="range",
    )
    margin: Optional[str] = Topic.TO_DO.setting(
        None,
        "How much lower a negative's cosine must be than each right "
        "document's: by 0.1, or by 5% of it.",
        Range(MARGIN.fullmatch, "expected a number, as 0.1 or 5%"),
    )
    negatives_per_row: int = Topic.TO_DO.setting(
        1, "Negatives of a row; rows that have fewer are left out.", POSITIVE
    )
    sampling: str = Topic.TO_DO.setting(
        TOP,
        "Which of the possible negatives are taken: the nearest, or any.",
        choices=(TOP, RANDOM),
    )
    seed: int = Topic.TO_DO.setting(1, "Seed of --sampling.", NOT_NEGATIVE)
    labels: bool = Topic.TO_DO.setting(
        False,
        "Write rows of query, document and label, 1 or 0, in place of a "
        "column of negatives (--negative_column, else negative).",
    )
    query_prompt: Optional[str] = Topic.METHOD.setting(
        None, "Text before first texts, or its name; default: as trained."
    )
    document_prompt: Optional[str] = Topic.METHOD.setting(
        None, "As --query_prompt, before documents."
    )


SETTINGS = (Mining, run_vectors.Texts, adapter_flags.Answering)
REFUSED = ("eval_file",)


@dataclasses.dataclass(frozen=True)
class Judged:
    """Holds a question's right documents, and those never mined, by places."""

    right: list[int]
    never: set[int]


def judge(search: Search) -> list[Judged]:
    """Finds what belongs to each question, with all rows of an equal text.

    Right documents, copies of them and of the question, and the document with
    the question's id are never mined for any question of the same text.
    """
    corpus = search.corpus
    numbers = number_texts(search.questions).tolist()
    right: dict[int, dict[int, None]] = {}
    same_id: dict[int, set[int]] = {}
    for number, gains, of_id in zip(numbers, search.relevant, search.copies):
        of_text = right.setdefault(number, {})
        of_text.update(dict.fromkeys(x for x in gains if x >= 0))
        same_id.setdefault(number, set()).update(of_id)
    places = sorted({place for of_one in right.values() for place in of_one})
    copies = dict(
        zip(places, corpus.copies_of([corpus.texts[n] for n in places]))
    )
    judged = []
    for number, equal in zip(numbers, corpus.copies_of(search.questions)):
        never = {*right[number], *equal, *same_id[number]}
        never.update(*(copies[place] for place in right[number]))
        judged.append(Judged(list(right[number]), never))
    return judged


def choose(
    settings: Mining,
    judged: Sequence[Judged],
    right_scores: Sequence[np.ndarray],
    scores: np.ndarray,
    places: np.ndarray,
) -> Iterator[list[int]]:
    """Yields places of each question's negatives, the nearest first.

    `right_scores` are cosines of right documents, `scores` and `places` those
    of `nearest`. Source: sentence-transformers, `mine_hard_negatives`, whose
    margin too is to the least of the right cosines.
    """
    lowest, highest = map(int, RANKS.fullmatch(settings.ranks).groups())
    for number, one in enumerate(judged):
        # -1 where there are fewer documents.
        is_wrong = ~np.isin(places[number], [*one.never, -1])
        wrong = np.flatnonzero(is_wrong)[lowest - 1 : highest]
        if settings.margin and one.right:
            size, percent = MARGIN.fullmatch(settings.margin).groups()
            least = right_scores[number].min()
            margin = float(size) * (abs(least) / 100 if percent else 1)
            wrong = wrong[scores[number, wrong] <= least - margin]
        if settings.sampling == RANDOM:
            rng = np.random.default_rng([settings.seed, number])
            wrong = np.sort(
                rng.permutation(wrong)[: settings.negatives_per_row]
            )
        chosen = places[number, wrong[: settings.negatives_per_row]].tolist()
        is_whole = one.right and len(chosen) == settings.negatives_per_row
        yield chosen if is_whole else []


def search_all(
    settings: Mining, search: Search, judged: Sequence[Judged]
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Gives cosines of right documents, and what `nearest` gives."""
    bert, task = predict.open_task()
    flags = adapter_flags.read_flags()
    trained = trained_form(bert, task)
    form = VectorForm(TRAINED, normalize=None) if trained else VectorForm()
    document_prompt = settings.document_prompt
    if document_prompt is None and trained:
        document_prompt = trained.document_prompt
    of_questions, of_documents = (
        Embedder(
            bert,
            task,
            dataclasses.replace(form, prompt=prompt),
            flags.predict_batch_size,
            flags.max_seq_length,
        )
        for prompt in (settings.query_prompt, document_prompt)
    )
    texts = search.corpus.texts
    progress = Progress("mine", len(search), "texts")
    right_places = {place for one in judged for place in one.right}
    kept: dict[int, np.ndarray] = {}

    def blocks() -> Iterator[np.ndarray]:
        first = 0
        for block in of_documents.stream(texts):
            for place in right_places & set(range(first, first + len(block))):
                kept[place] = block[place - first]
            first += len(block)
            progress.update(len(block))
            yield block

    queries = np.concatenate(list(of_questions.stream(search.questions)))
    progress.update(len(queries))
    _, highest = map(int, RANKS.fullmatch(settings.ranks).groups())
    most = highest + max(len(one.never) for one in judged)
    scores, places = nearest(queries, blocks(), min(most, len(texts)))
    progress.close()
    right_scores = [
        cosines(query, np.stack([kept[place] for place in one.right]))
        if one.right
        else np.zeros(0)
        for query, one in zip(queries, judged)
    ]
    return right_scores, scores, places


def _columns(settings: Mining, layout: Layout) -> list[str]:
    """Names the columns of texts, documents, ids, gains and negatives."""
    texts = read(run_vectors.Texts)
    first, second, name, gain = "text", "document", "query_id", "score"
    if texts.task_name.lower() == run_vectors.CUSTOM and texts.files.header:
        first, second = texts.text_a_column, texts.text_b_column
        name = texts.query_id_column or name
        gain = texts.score_column or gain
    negative, *more = texts.negative_column or ["negative"]
    if more:
        raise UserError(
            "--negative_column names several columns, expected one, which "
            "holds a list of several negatives"
        )
    columns = {
        "--text_a_column": first,
        "--text_b_column": second,
        "--query_id_column": name if layout.row_id is not None else None,
        "--score_column": gain if layout.label is not None else None,
        "--negative_column": negative,
    }
    if not settings.labels:
        check_distinct(columns, " in the output")
    return [first, second, name, gain, negative]


def rows_of(
    settings: Mining,
    search: Search,
    mined: Sequence[list[int]],
    columns: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """Yields the rows that are written, without questions of no negatives."""
    first, second, name, gain, negative = columns
    names, documents = list(search.corpus.places), search.corpus.texts
    # Questions of several ids may have one text, which a reranker reads once.
    labels_of: dict[str, dict[int, int]] = {}
    for question, query_id, gains, places in zip(
        search.questions, search.ids, search.relevant, mined
    ):
        right = [place for place in gains if place >= 0]
        if not places:
            continue
        if settings.labels:
            labels = labels_of.setdefault(question, {})
            labels.update(dict.fromkeys(right, 1))
            labels.update(dict.fromkeys(places, 0))
            continue
        wrong: Any = [names[place] for place in places]
        if len(wrong) == 1:
            [wrong] = wrong
        about = {name: query_id} if search.rows.row_id else {}
        for place in right:
            row = {**about, first: question, second: names[place]}
            if search.rows.label is not None:
                row[gain] = gains[place]
            yield {**row, negative: wrong}
    for question, labels in labels_of.items():
        for place, label in labels.items():
            document = documents[place]
            yield dict(query=question, document=document, label=label)


def main() -> None:
    """Mines for the pairs that the flags name."""
    settings = read(Mining)
    if ending_of(settings.output) != ".jsonl":
        raise UserError(
            f"--output is {settings.output or 'missing'}, expected a name that "
            "ends in .jsonl"
        )
    files.check_output(settings.output, "--output")
    if FLAGS.eval_file:
        raise UserError("mine reads no --eval_file; leave it out")
    fields = run_vectors.rows_from_flags()
    layout = dataclasses.replace(fields["layout"], choices=())
    task = Vectors(**{**fields, "layout": layout})
    if layout.text_b is None or task.has_scores:
        raise UserError(
            "negatives are mined for pairs of a text and its match; pass "
            "--text_b_column, and --score_column with --corpus_file alone"
        )
    columns = _columns(settings, layout)
    search = task.search(FLAGS.data_dir)
    judged = judge(search)
    nearby = search_all(settings, search, judged)
    mined = list(choose(settings, judged, *nearby))
    lacking = sum(not places for places in mined)
    if lacking == len(mined):
        raise UserError(
            f"no text has {settings.negatives_per_row} negatives in the ranks "
            f"{settings.ranks}; pass a wider --range, or a smaller --margin or "
            "--negatives_per_row"
        )
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for row in rows_of(settings, search, mined, columns):
            count += 1
            yield (json.dumps(row, ensure_ascii=False) + "\n").encode()

    files.write_parts(settings.output, lines())
    logging.info(
        "%s: %d rows; %d of %d texts have fewer than %d negatives, left out",
        settings.output,
        count,
        lacking,
        len(mined),
        settings.negatives_per_row,
    )
