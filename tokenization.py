"""BERT's WordPiece tokenization on the `tokenizers` library.

Not in here: special tokens of a task's inputs and cutting to a length
(`tasks/`).
"""

import functools
import hashlib
import json
import re
import unicodedata
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from tokenizers import Encoding, Tokenizer, models, normalizers, pre_tokenizers

import files
from errors import UserError

UNKNOWN, CLASSIFY, SEPARATE = "[UNK]", "[CLS]", "[SEP]"
# google-research/bert, `tokenization.py`: longer words become [UNK].
MAX_CHARACTERS_PER_WORD = 200
# Share of the entries that may be of the other case.
STRAY = 0.01
# Letters without decomposition, case or script rules of their own.
STAND_INS = "\ua015\u1401\u16a0\ua66e"


class _Replacements(dict):
    """For `str.translate`: characters that the library would drop.

    BERT drops control and format characters only. The library drops private
    ones too, and cannot take lone surrogates; another letter
    that no vocabulary entry has stands in for them, one for one, so that
    offsets stay true.
    """

    def __init__(self, stand_in: str):
        super().__init__()
        self.stand_in = stand_in

    def __missing__(self, code: int) -> str:
        dropped = unicodedata.category(chr(code)) in ("Co", "Cs")
        self[code] = self.stand_in if dropped else chr(code)
        return self[code]


class Tokens(NamedTuple):
    """A tokenized text.

    Attributes:
        ids: vocabulary indices.
        offsets: (first character, one past the last) of each token in the
            text.
    """

    ids: List[int]
    offsets: List[Tuple[int, int]]


def read_vocabulary(path: str) -> Dict[str, int]:
    """Reads `vocab.txt`: one entry a line, its line number the id.

    Raises:
        UserError: the file is missing, is not UTF-8, or lacks a special token.
    """
    lines = files.read_text(path, "the vocabulary").rstrip().split("\n")
    vocabulary = {line.strip(): number for number, line in enumerate(lines)}
    for token in (UNKNOWN, CLASSIFY, SEPARATE):
        if token not in vocabulary:
            raise UserError(f"{path} is no BERT vocabulary: it lacks {token}")
    return vocabulary


def _share_changed(
    vocabulary: Dict[str, int], change: Callable[[str], str]
) -> float:
    """Share of the entries that a change of case changes.

    Special tokens do not count: as `[CLS]`, they have capitals in any model.
    """
    words = [word for word in vocabulary if not word.startswith("[")]
    return sum(word != change(word) for word in words) / max(1, len(words))


def lower_sigmas(text: str) -> str:
    """Writes each capital sigma as the small one of its place in the word.

    Python's `str.lower`, which BERT's code uses, knows the final form; the
    library lower-cases letter by letter.
    """

    def lower(match: "re.Match[str]") -> str:
        word = match.group()
        if "\u03a3" not in word:
            return word
        lowered, place, characters = word.lower(), 0, []
        for c in word:
            characters.append(lowered[place] if c == "\u03a3" else c)
            place += len(c.lower())
        return "".join(characters)

    return re.sub(r"\S+", lower, text)


class FullTokenizer:
    """Text to WordPiece tokens, as google-research/bert's `FullTokenizer`.

    Differs from it in characters that Unicode tables of different ages class
    differently: some hundred rare punctuation and combining marks, and the
    Chinese characters from U+2B820 to U+2B91F, which the library does not set
    apart.
    """

    def __init__(self, vocab_file: str, do_lower_case: bool = True):
        """Reads the vocabulary.

        Args:
            vocab_file: path of `vocab.txt`.
            do_lower_case: whether to lower-case and strip accents; must be
                what the model was pretrained with.

        Raises:
            UserError: as `read_vocabulary`.
        """
        self.vocabulary = read_vocabulary(vocab_file)
        self.do_lower_case = do_lower_case
        self.vocab_size = max(self.vocabulary.values()) + 1
        # Stray entries do not count. A script without cases is neither.
        self.is_cased = _share_changed(self.vocabulary, str.lower) > STRAY
        self.is_uncased = (
            not self.is_cased
            and _share_changed(self.vocabulary, str.upper) > STRAY
        )
        self.classify_id = self.vocabulary[CLASSIFY]
        self.separate_id = self.vocabulary[SEPARATE]
        characters = set().union(*self.vocabulary)
        self._replacements = _Replacements(
            next((c for c in STAND_INS if c not in characters), STAND_INS[0])
        )
        # No special token is registered: a typed "[SEP]" is plain text.
        self._tokenizer = Tokenizer(
            models.WordPiece(
                self.vocabulary,
                unk_token=UNKNOWN,
                max_input_chars_per_word=MAX_CHARACTERS_PER_WORD,
            )
        )
        self._tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=do_lower_case,
            lowercase=do_lower_case,
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def describe(self) -> Dict[str, Any]:
        """What a trained model depends on, as JSON values."""
        return {
            "vocabulary": self._fingerprint,
            "do_lower_case": self.do_lower_case,
        }

    @functools.cached_property
    def _fingerprint(self) -> str:
        words = json.dumps(self.vocabulary, sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> List[Tokens]:
        """Tokenizes many texts, on all cores.

        Args:
            texts: any strings.

        Returns:
            One `Tokens` for each, without special tokens.
        """
        return [Tokens(e.ids, e.offsets) for e in self._encode(texts)]

    def encode_ids(self, texts: Sequence[str]) -> List[List[int]]:
        """As `encode`, but the ids alone, which take a fifth less time."""
        return [e.ids for e in self._encode(texts)]

    def _encode(self, texts: Sequence[str]) -> List[Encoding]:
        return self._tokenizer.encode_batch(
            [self._clean(text) for text in texts], add_special_tokens=False
        )

    def tokenize(self, text: str) -> List[str]:
        """The tokens of `text` as strings, word pieces marked by `##`."""
        return self._tokenizer.encode(
            self._clean(text), add_special_tokens=False
        ).tokens

    def keeps_length(self, word: str) -> bool:
        """Whether normalizing a word leaves it as many characters."""
        return len("".join(self.normalize(word).split())) == len(word)

    def normalize(self, text: str) -> str:
        """What a text becomes before it is split into words."""
        return self._tokenizer.normalizer.normalize_str(self._clean(text))

    def split(self, normalized: str) -> List[Tuple[str, Tuple[int, int]]]:
        """The words of what `normalize` gave, and their places in it."""
        return self._tokenizer.pre_tokenizer.pre_tokenize_str(normalized)

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> List[int]:
        """Vocabulary indices of tokens.

        Raises:
            KeyError: a token that is not in the vocabulary.
        """
        return [self.vocabulary[token] for token in tokens]

    def _clean(self, text: str) -> str:
        if text.isascii():
            return text
        if self.do_lower_case and "\u03a3" in text:
            text = lower_sigmas(text)
        return text.translate(self._replacements)
