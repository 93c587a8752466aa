"""Divides texts into training and dev rows, halves and folds.

A text may have several rows, as those of several workers. They are never
parted: a model that is trained on one of them has seen the others.
"""

import collections
import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from absl import logging


def number_texts(texts: Iterable[Hashable]) -> np.ndarray:
    """Numbers texts in the order of their first row, int64 [rows].

    A text may be a tuple of several. White space makes no difference.
    """
    numbers: dict[Hashable, int] = {}
    return np.array(
        [numbers.setdefault(_words(x), len(numbers)) for x in texts], np.int64
    )


def _words(text: Any) -> Hashable:
    if isinstance(text, str):
        return " ".join(text.split())
    return tuple(map(_words, text)) if isinstance(text, tuple) else text


class Texts:
    """Distinct texts of rows.

    Attributes:
        numbers: int64 [rows], the text of each row.
        sets: labels of all rows of each text.
        rarest: the rarest label of each text, or "".
    """

    def __init__(
        self, texts: Iterable[Hashable], sets: Sequence[Sequence[Any]]
    ):
        """Takes the text and the labels of each row."""
        self.numbers = number_texts(texts)
        rows = np.bincount(self.numbers)
        if several := int(np.sum(rows > 1)):
            logging.info(
                "%d of %d texts have several rows (%d), which stay together",
                several,
                len(rows),
                rows[rows > 1].sum(),
            )
        # Dictionaries keep the order of labels.
        joined = [{} for _ in rows]
        for number, labels in zip(self.numbers.tolist(), sets):
            joined[number].update(dict.fromkeys(labels))
        counts = collections.Counter(x for labels in joined for x in labels)
        self.sets = list(map(tuple, joined))
        self.rarest = [
            min(labels, key=lambda x: (counts[x], x), default="")
            for labels in self.sets
        ]

    def __len__(self) -> int:
        return len(self.sets)

    def folds(self, count: int, seed: int) -> np.ndarray:
        """Draws a fold for each row, int64 [rows]; labels are spread evenly."""
        order = np.random.default_rng(seed).permutation(len(self))
        _, labels = np.unique(self.rarest, return_inverse=True)
        order = order[np.argsort(labels[order], kind="stable")]
        fold = np.empty(len(self), np.int64)
        fold[order] = np.arange(len(self)) % count
        return fold[self.numbers]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A share of the training file's texts, 0 to 1, that is the dev set."""

    share: float
    seed: int

    def choose(
        self, texts: Iterable[Hashable], sets: Sequence[Sequence[Any]]
    ) -> np.ndarray:
        """Chooses the rows that are held out, bool [rows].

        Texts are held out by the rarest label of each, so that rare ones are
        divided too (Sechidis et al. 2011, section 3, its first step). Each such
        label gives its share of texts, but never its only one. Then a text
        changes sides for each label that either side lacks, if the label has
        several texts and no other label is lost by that. Where the share takes
        no text at all, none is held out. `sets` are the labels of each row.
        """
        distinct = Texts(texts, sets)
        chosen = np.zeros(len(distinct), bool)
        rng = np.random.default_rng(self.seed)
        of_groups = _places([label] for label in distinct.rarest)
        for group in sorted(of_groups):
            members = rng.permutation(of_groups[group])
            count = round(self.share * len(members))
            chosen[members[: min(count, len(members) - 1)]] = True
        if chosen.any():
            self._give_each_side(chosen, distinct.sets, rng)
        return chosen[distinct.numbers]

    def _give_each_side(
        self,
        chosen: np.ndarray,
        sets: Sequence[Sequence[Any]],
        rng: np.random.Generator,
    ) -> None:
        places = _places(sets)
        # Texts of each label in training, and held out.
        counts = {
            x: np.bincount(chosen[members].astype(int), minlength=2)
            for x, members in places.items()
        }
        for label in sorted(places, key=lambda x: (len(places[x]), x)):
            if counts[label].all() or len(places[label]) < 2:
                continue
            source = int(counts[label].argmax())
            for place in rng.permutation(places[label]):
                if all(counts[x][source] > 1 for x in sets[place]):
                    chosen[place] = not source
                    for moved in sets[place]:
                        counts[moved][source] -= 1
                        counts[moved][1 - source] += 1
                    break


def _places(sets: Iterable[Iterable[Any]]) -> dict[Any, list[int]]:
    places = collections.defaultdict(list)
    for place, elements in enumerate(sets):
        for element in elements:
            places[element].append(place)
    return places
