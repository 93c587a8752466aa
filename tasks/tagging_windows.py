"""Cuts sentences into windows that fit the model, `[CLS] words [SEP]`.

The first token of each word stands for it. A sentence that is too long makes
windows that overlap by half; each word is tagged in the one of them where it
has most context.
"""

import array
import dataclasses
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from absl import logging

from input_pipeline import NO_LABEL, Features
from tasks.tagging_files import Sentences
from tokenization import TextTokenizer

# Words that are tokenized at once: enough for all cores, bounded in memory.
CHUNK = 65536


@dataclasses.dataclass(frozen=True)
class SentenceWindows(Features):
    """Features whose rows are windows, in the order of their sentences.

    Attributes:
        places: int64 [words], where in `tokens` the first token of each word
            is, in the window that tags it; -1 of a word that is in no window.
        token_labels: int32 [sum of lengths], at these places the numbers of
            the words' tags, elsewhere `NO_LABEL`; None without tags.
        cut_rows: how many sentences hold a word that no window holds.
    """

    places: np.ndarray
    token_labels: Optional[np.ndarray] = None
    cut_rows: int = 0

    def at_words(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs of the words' tokens.

        Args:
            outputs: [rows, T, ...], of every token.

        Returns:
            [words, ...]; zeros of words that are in no window.
        """
        found = np.zeros((len(self.places), *outputs.shape[2:]), outputs.dtype)
        known = self.places >= 0
        places = self.places[known]
        rows = np.searchsorted(self.starts, places, side="right") - 1
        found[known] = outputs[rows, places - self.starts[rows]]
        return found


class Window(NamedTuple):
    """A window of a sentence: its words from `first` up to `last`.

    Of these, those from `first_own` up to `last_own` are tagged in it.
    """

    first: int
    last: int
    first_own: int
    last_own: int


def cut_sentences(
    rows: Sentences,
    labels: Optional[np.ndarray],
    tokenizer: TextTokenizer,
    max_seq_length: int,
) -> SentenceWindows:
    """Makes the windows of all sentences.

    A word without a token, as one of control characters, and a word of more
    tokens than a window holds, are in no window. A warning counts them.

    Args:
        rows: the sentences.
        labels: int32 [words], numbers of their tags, or None.
        tokenizer: of the BERT.
        max_seq_length: of a window, in tokens.
    """
    room = max_seq_length - 2
    pieces = _tokenize(rows.words, tokenizer)
    tokens, starts = array.array("i"), array.array("q", [0])
    places = np.full(len(rows.words), -1, np.int64)
    too_long = cut_rows = 0
    for first, last in zip(rows.starts.tolist(), rows.starts[1:].tolist()):
        words, of_words, longer = [], [], 0
        for word in range(first, last):
            found = pieces[rows.words[word]]
            longer += len(found) > room
            if 0 < len(found) <= room:
                words.append(word)
                of_words.append(found)
        too_long += longer
        cut_rows += longer > 0
        for window in cut(list(map(len, of_words)), room):
            tokens.append(tokenizer.classify_id)
            for number in range(window.first, window.last):
                if window.first_own <= number < window.last_own:
                    places[words[number]] = len(tokens)
                tokens.extend(of_words[number])
            tokens.append(tokenizer.separate_id)
            starts.append(len(tokens))
    lost = places < 0
    if lost.any():
        logging.warning(
            "%s%d of %d words are tagged O unseen: %d have no token, %d have "
            "more than the %d that a window holds (--max_seq_length)",
            rows.path and f"{rows.path}: ",
            lost.sum(),
            len(places),
            lost.sum() - too_long,
            too_long,
            room,
        )
    token_labels = None
    if labels is not None:
        token_labels = np.full(len(tokens), NO_LABEL, np.int32)
        token_labels[places[~lost]] = labels[~lost]
    return SentenceWindows(
        tokens=np.array(tokens, np.int32),
        segments=np.zeros(len(tokens), np.uint8),
        starts=np.array(starts, np.int64),
        labels={},
        places=places,
        token_labels=token_labels,
        cut_rows=cut_rows,
    )


def _tokenize(
    words: Sequence[str], tokenizer: TextTokenizer
) -> Dict[str, List[int]]:
    """The tokens of each word, which is alone between spaces."""
    different = list(dict.fromkeys(words))
    found: Dict[str, List[int]] = {}
    for first in range(0, len(different), CHUNK):
        chunk = different[first : first + CHUNK]
        found.update(zip(chunk, tokenizer.encode_words(chunk)))
    return found


def cut(lengths: Sequence[int], room: int) -> Iterator[Window]:
    """The windows of a sentence of words of so many tokens.

    A window takes as many whole words as fit. The next one begins half a room
    later. The last one is as full as the others. A word is tagged in the
    window in which the lesser of the tokens before it and behind it is
    greatest, in the first of equal ones.

    Args:
        lengths: tokens of each word, from 1 to `room`.
        room: tokens of words that a window holds.

    Source of the choice: google-research/bert, `run_squad.py`,
    `_check_is_max_context`.
    """
    if sum(lengths) <= room:
        if lengths:
            yield Window(0, len(lengths), 0, len(lengths))
        return
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    windows = list(_spans(ends, room))
    first_own = 0
    for number, (first, last) in enumerate(windows):
        last_own = last
        if number + 1 < len(windows):
            # Context behind a word falls within a window, and that before it
            # within the next one grows: from some word on, the next is better.
            start, _ = windows[number + 1]
            behind = ends[last] - ends[start + 1 : last + 1]
            before = ends[start:last] - ends[start]
            last_own = start + int(np.sum(behind >= before))
        if first_own < last_own:
            yield Window(first, last, first_own, last_own)
            first_own = last_own


def _spans(ends: np.ndarray, room: int) -> Iterator[Tuple[int, int]]:
    """First word and one past the last of each window."""
    count, first = len(ends) - 1, 0
    while first < count:
        last = int(np.searchsorted(ends, ends[first] + room, "right")) - 1
        yield first, last
        if last == count:
            return
        # The next window has more at its end than this one, and begins half a
        # room later. The last one begins where all that is left fits.
        longer, later, rest = np.searchsorted(
            ends,
            [ends[last + 1] - room, ends[first] + room // 2, ends[-1] - room],
        ).tolist()
        first = min(max(longer, later), last, rest)
