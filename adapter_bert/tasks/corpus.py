"""A search in a whole corpus: its file, its questions, their features.

`retrieval.py` has the scores.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence

import numpy as np

from adapter_bert.data.divisions import number_texts
from adapter_bert.data.input_pipeline import Features, Texts
from adapter_bert.data.tables import Layout, Rows, read_rows
from adapter_bert.errors import UserError


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents of a file.

    `texts` have the title, if any, before the text, `bodies` have none;
    `places` are each document's place in them, by its id.
    """

    path: str
    texts: list[str]
    places: dict[str, int]
    bodies: list[str]

    @classmethod
    def read(cls, path: str, layout: Layout) -> "Corpus":
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
                if not cell.strip():
                    raise UserError(
                        f"{rows.where(row)}: the document's {what} is empty; "
                        f"expected a document with {what}, or no such row"
                    )
        return cls(path, texts, rows.places_by_id(), rows.text_a)

    def find(self, rows: Rows, ids: Sequence[str]) -> list[int]:
        """Finds the places of documents, by the id in each of the rows."""
        for row, name in enumerate(ids):
            if name not in self.places:
                raise UserError(
                    f"{rows.where(row)}: no document of {self.path} has the id "
                    f"{name[:80]!r}; with --corpus_file, --text_b_column and "
                    "--negative_column name ids of documents"
                )
        return [self.places[name] for name in ids]

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
        relevant: gains above 0 of each question's documents, by their places.
        copies: of each question, places of documents that are its own text.
    """

    rows: Rows
    corpus: Corpus
    questions: Sequence[str]
    relevant: Sequence[dict[int, float]]
    copies: Sequence[Sequence[int]]

    @classmethod
    def of(cls, rows: Rows, corpus: Corpus) -> "Search":
        """Searches for pairs' second texts, ids; labels are gains, else 1."""
        gains = itertools.repeat(1.0)
        if rows.label is not None:
            gains = map(float, rows.label)
        relevant: dict[str, dict[int, float]] = {}
        places = corpus.find(rows, rows.text_b)
        for text, place, gain in zip(rows.text_a, places, gains):
            of_text = relevant.setdefault(text, {})
            of_text[place] = max(gain, of_text.get(place, gain))
        questions = list(relevant)
        copies = corpus.copies_of(questions)
        return cls(rows, corpus, questions, list(relevant.values()), copies)

    @property
    def documents(self) -> Sequence[str]:
        return self.corpus.texts

    def __len__(self) -> int:
        return len(self.questions) + len(self.documents)

    def first(self, count: int) -> "Search":
        rows = self.rows.take(np.arange(len(self.rows)) < count)
        return Search.of(rows, self.corpus)


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
