"""A search in a whole corpus: its files, its questions, their features.

`retrieval.py` has the scores.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence

import numpy as np
from absl import logging

from adapter_bert.data.divisions import number_texts
from adapter_bert.data.input_pipeline import Features, Texts
from adapter_bert.data.tables import Layout, Rows, read_rows
from adapter_bert.errors import UserError

# What becomes of ids that no document has.
REFUSE, SKIP, COUNT = MISSING = "error", "skip", "count"
# As in the files of BEIR.
DOCUMENTS = Layout("text", row_id="_id")
JUDGEMENTS = Layout("query-id", "corpus-id", "score")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents of a file.

    `texts` have the title, if any, before the text, `bodies` have none;
    `places` are each document's place in them, by its id; `missing` is one of
    `MISSING`.
    """

    path: str
    texts: list[str]
    places: dict[str, int]
    bodies: list[str]
    missing: str = REFUSE

    @classmethod
    def read(cls, path: str, layout: Layout, missing: str = REFUSE) -> "Corpus":
        """Reads text and id of each row, and the title as `text_b`.

        A blank joins title and text, as in BEIR's programs (Thakur et al.
        2021).
        """
        rows = read_rows(path, layout)
        texts = rows.text_a
        if rows.text_b is not None:
            both = zip(rows.text_b, texts)
            texts = [" ".join(pair).strip() for pair in both]
        for row, (name, text) in enumerate(zip(rows.row_id, texts)):
            for what, cell in (("id", name), ("text", text)):
                may_be_empty = what == "text" and layout.lacks_texts
                if not (cell.strip() or may_be_empty):
                    raise UserError(
                        f"{rows.where(row)}: the document's {what} is empty; "
                        f"expected a document with {what}, or no such row"
                    )
        places = rows.places_by_id()
        return cls(path, texts, places, rows.text_a, missing)

    def choose(self, rows: Rows, is_trained: bool) -> Rows:
        """Leaves out rows whose ids no document has, as `missing` says.

        Where they are counted, they are left out of a training alone.
        """
        columns = rows.text_b, *rows.choices
        is_there = np.array(
            [all(x in self.places for x in ids) for ids in zip(*columns)]
        )
        if self.missing == REFUSE or is_there.all():
            return rows
        counts = self.missing == COUNT and not is_trained
        logging.warning(
            "%s: %d of %d pairs name a document that %s lacks; they are %s",
            rows.path,
            np.count_nonzero(~is_there),
            len(rows),
            self.path,
            "counted as not found" if counts else "left out",
        )
        if not is_there.any():
            raise UserError(
                f"{rows.path}: no pair names a document of {self.path}; "
                "expected ids of its documents"
            )
        return rows if counts else rows.take(is_there)

    def find(self, rows: Rows, ids: Sequence[str]) -> list[int]:
        """Finds places of documents by their ids; below 0 of no document."""
        absent: dict[str, int] = {}
        for row, name in enumerate(ids):
            if name in self.places:
                continue
            if self.missing != COUNT:
                raise UserError(
                    f"{rows.where(row)}: no document of {self.path} has the id "
                    f"{name[:80]!r}; with --corpus_file, --text_b_column and "
                    "--negative_column name ids of documents "
                    f"(--missing_documents={SKIP} leaves such rows out)"
                )
            absent.setdefault(name, -1 - len(absent))
        return [absent.get(x, self.places.get(x, 0)) for x in ids]

    def texts_of(self, rows: Rows, ids: Sequence[str]) -> list[str]:
        return [self.texts[place] for place in self.find(rows, ids)]

    def copies_of(self, texts: Sequence[str]) -> list[list[int]]:
        """Finds the documents that have each text, with a title or not."""
        count, size = len(texts), len(self.texts)
        numbers = number_texts([*texts, *self.texts, *self.bodies])
        places: dict[int, list[int]] = {x: [] for x in numbers[:count].tolist()}
        for place, (whole, body) in enumerate(
            numbers[count:].reshape(2, size).T.tolist()
        ):
            for number in {whole, body} & places.keys():
                places[number].append(place)
        return [places[number] for number in numbers[:count].tolist()]


@dataclasses.dataclass(frozen=True)
class Search:
    """Questions, each once, and the corpus in which they are searched.

    Attributes:
        rows: questions and ids of their documents.
        questions: texts in the order of their first row.
        relevant: gains above 0 of each question's documents, by their places;
            a place is below 0 if no search finds the document.
        copies: of each question, places of the document with its id, or
            without ids of documents that are its own text.
        ids: of the questions, or "".
    """

    rows: Rows
    corpus: Corpus
    questions: Sequence[str]
    relevant: Sequence[dict[int, float]]
    copies: Sequence[Sequence[int]]
    ids: Sequence[str]

    @classmethod
    def of(cls, rows: Rows, corpus: Corpus) -> "Search":
        """Searches for pairs' second texts, ids; labels are gains, else 1.

        A question with an id never finds the document that has this id too, as
        in BEIR's programs, even if it is a right one.
        """
        gains = itertools.repeat(1.0)
        if rows.label is not None:
            gains = map(float, rows.label)
        names = rows.row_id or itertools.repeat("")
        relevant: dict[tuple[str, str], dict[int, float]] = {}
        places = corpus.find(rows, rows.text_b)
        for text, name, place, gain in zip(rows.text_a, names, places, gains):
            if rows.row_id and place == corpus.places.get(name):
                place = -1 - len(rows)
            of_text = relevant.setdefault((text, name), {})
            of_text[place] = max(gain, of_text.get(place, gain))
        questions = [text for text, _ in relevant]
        ids = [name for _, name in relevant]
        if rows.row_id:
            at = map(corpus.places.get, ids)
            copies = [[] if place is None else [place] for place in at]
        else:
            copies = corpus.copies_of(questions)
        gains_of = list(relevant.values())
        return cls(rows, corpus, questions, gains_of, copies, ids)

    @property
    def documents(self) -> Sequence[str]:
        return self.corpus.texts

    def __len__(self) -> int:
        return len(self.questions) + len(self.documents)

    def first(self, count: int) -> "Search":
        return Search.of(self.rows.first_queries(count), self.corpus)


@dataclasses.dataclass(frozen=True)
class SearchTexts(Texts):
    """Features of a `Search`: questions, and after them documents.

    `has_sides` if questions and documents have adapters of their own.
    """

    relevant: Sequence[dict[int, float]] = ()
    copies: Sequence[Sequence[int]] = ()
    has_sides: bool = False

    def unlabelled(self) -> Features:
        alone = super().unlabelled()
        if not self.has_sides:
            return alone
        sides = np.arange(len(self)) >= len(self.relevant)
        columns = {"task_ids": sides.astype(np.int32)}
        return dataclasses.replace(alone, columns=columns)

    def fingerprint(self):
        content = f"{super().fingerprint()} {self.relevant}"
        return hashlib.sha256(content.encode()).hexdigest()


def add_questions(judgements: Rows, path: str) -> Rows:
    """Puts each question's text in place of its id, which becomes `row_id`.

    Judgements without a question, and questions without judgements, are left
    out and counted.
    """
    rows = read_rows(path, DOCUMENTS)
    places = rows.places_by_id()
    ids = judgements.text_a
    is_there = np.array([name in places for name in ids])
    for what, count in (
        (f"judgements of questions that {path} lacks", np.sum(~is_there)),
        (f"questions of {path} without judgements", len(places.keys() - ids)),
    ):
        if count:
            logging.warning("%s: %d %s, left out", judgements.path, count, what)
    if not is_there.any():
        raise UserError(
            f"{judgements.path}: no judgement is of a question of {path}; "
            "expected ids of its questions"
        )
    judged = judgements.take(is_there)
    texts = [rows.text_a[places[name]] for name in judged.text_a]
    return dataclasses.replace(judged, text_a=texts, row_id=judged.text_a)
