"""Which file holds a split: one that was named, or one of a folder.

In here too: `HeldOut`, a part of the training file in place of a dev file.
"""

import dataclasses
import os
from typing import Any, Collection, Dict, List, Sequence

import numpy as np

from errors import UserError
from storage import files

# Split -> its flag, and what its file is for.
FLAGS_OF_SPLITS = {
    "train": ("--train_file", "the rows to train on"),
    "dev": ("--eval_file", "the rows to evaluate on"),
    "test": ("--predict_file", "the rows to predict"),
}


def ending_of(path: str) -> str:
    """The ending of a file's name, in lower case, as `.csv`."""
    return os.path.splitext(path)[1].lower()


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A part of the training file that serves as the dev set.

    Attributes:
        share: of the rows, between 0 and 1.
        seed: of their choice.
    """

    share: float
    seed: int

    def choose(
        self, groups: Sequence[Any], sets: Sequence[Sequence[Any]]
    ) -> np.ndarray:
        """Which rows are held out, bool [N]: the share of each group's rows.

        A group with a single row stays in the training set. A row changes
        sides for each label that either side lacks, if the label has several
        rows and no other label is lost by that. Where the share takes no row
        at all, none is held out.

        Args:
            groups: N, what rows are taken of equally.
            sets: N, the labels of each row.
        """
        chosen = np.zeros(len(groups), bool)
        rng = np.random.default_rng(self.seed)
        places: Dict[Any, List[int]] = {}
        for place, group in enumerate(groups):
            places.setdefault(group, []).append(place)
        for group in sorted(places):
            own = rng.permutation(places[group])
            count = round(self.share * len(own))
            chosen[own[: min(count, len(own) - 1)]] = True
        if chosen.any():
            self._give_each_side(chosen, sets, rng)
        return chosen

    def _give_each_side(
        self,
        chosen: np.ndarray,
        sets: Sequence[Sequence[Any]],
        rng: np.random.Generator,
    ) -> None:
        """Changes the choice so that both sides have each label, if possible.

        Args:
            chosen: as `choose` returns it; is changed.
            sets: of `choose`.
            rng: chooses among the rows of a label.
        """
        places: Dict[Any, List[int]] = {}
        for place, labels in enumerate(sets):
            for label in labels:
                places.setdefault(label, []).append(place)
        # How many of a label's rows are in training, and held out.
        counts = {
            x: np.bincount(chosen[own].astype(int), minlength=2)
            for x, own in places.items()
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


@dataclasses.dataclass(frozen=True)
class SplitFiles:
    """The files that were named; where none was, splits lie in a folder.

    Attributes:
        train: path of the training file, or "".
        dev: the same of the dev file.
        test: the same of the test file.
    """

    train: str = ""
    dev: str = ""
    test: str = ""

    @property
    def named(self) -> Dict[str, str]:
        """The path of each split whose file was named."""
        return {
            split: path
            for split in FLAGS_OF_SPLITS
            if (path := getattr(self, split))
        }

    def check(self, endings: Collection[str]) -> None:
        """Checks the files that were named, without reading them.

        Args:
            endings: that a file may have, lower-case, as `.csv`.

        Raises:
            UserError: a file is missing, is a folder or has another ending, or
                the training file is also the dev file.
        """
        for split, path in self.named.items():
            flag, _ = FLAGS_OF_SPLITS[split]
            if not files.exists(path):
                raise UserError(f"{flag} is {path}, which does not exist")
            if files.is_folder(path):
                raise UserError(
                    f"{flag} is {path}, a folder; expected a file (--data_dir "
                    "takes a folder)"
                )
            if ending_of(path) not in endings:
                raise UserError(
                    f"{flag} is {path}, expected the ending "
                    f"{' or '.join(endings)}"
                )
        if self.train and self.dev and files.is_same(self.train, self.dev):
            raise UserError(
                f"--train_file and --eval_file are both {self.train}, which "
                "would score training rows; name another file, or pass "
                "--dev_share to hold out a part of this one"
            )

    def found(
        self, folder: str, split: str, endings: Collection[str]
    ) -> List[str]:
        """The files of a split that are there; one, if all is well.

        Args:
            folder: of splits, if no file was named.
            split: `train`, or a dev or test split.
            endings: as of `check`.
        """
        if self.named:
            return [path for path in [self.named.get(split)] if path]
        return list(filter(files.exists, _paths(folder, split, endings)))

    def find(self, folder: str, split: str, endings: Collection[str]) -> str:
        """The file of a split; arguments are those of `found`.

        Raises:
            UserError: there is none, or more than one.
        """
        found = self.found(folder, split, endings)
        if len(found) > 1:
            raise UserError(f"{' and '.join(found)} are both there; keep one")
        if found:
            return found[0]
        if self.named:
            flag, what = FLAGS_OF_SPLITS[split]
            raise UserError(f"{flag} is missing: {what}")
        paths = _paths(folder, split, endings)
        raise UserError(f"there is no {' and no '.join(paths)}")


NONE_NAMED = SplitFiles()


def _paths(folder: str, split: str, endings: Collection[str]) -> List[str]:
    """Where a split may lie in a folder."""
    return [os.path.join(folder, split + ending) for ending in endings]
