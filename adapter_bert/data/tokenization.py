"""Tokenizers: the interface, rows of texts and pairs, BERT's own tokenizer."""

import abc
import functools
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from tokenizers import (
    Encoding,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from adapter_bert import files
from adapter_bert.data.added_tokens import (
    NEW,
    Added,
    NewToken,
    as_added,
    content_of,
    fingerprint,
    read_added,
    register,
)
from adapter_bert.data.tokenizer_config import USUAL, Rules, side_of
from adapter_bert.errors import UserError

UNKNOWN, CLASSIFY, SEPARATE = "[UNK]", "[CLS]", "[SEP]"
SPECIAL = {
    "unk_token": UNKNOWN,
    "sep_token": SEPARATE,
    "pad_token": "[PAD]",
    "cls_token": CLASSIFY,
    "mask_token": "[MASK]",
}
# Of an MPNet, whose vocabulary has BERT's, too.
OF_MPNET = {
    "unk_token": UNKNOWN,
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
# Free entries of Google's vocabularies.
UNUSED = re.compile(r"\[unused\d+\]")
# google-research/bert, `tokenization.py`: longer words become [UNK].
MAX_CHARACTERS_PER_WORD = 200
# Share of the entries that may have the other case.
STRAY = 0.01
# What is tokenized at once: enough for all cores, bounded in memory.
CHUNK, CHARACTERS = 4096, 2**21
# Letters without decomposition, case or script rules of their own.
STAND_INS = "\ua015\u1401\u16a0\ua66e"

Encoded = TypeVar("Encoded")


class _Replacements(dict):
    """For `str.translate`: characters that the library drops and BERT does not.

    A letter that no vocabulary entry has stands in for private characters and
    lone surrogates, so that offsets stay true.
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
        offsets: (first character, one past the last) of each token; a letter's
            place holds the accents after it.
        words: the number of each token's word. Words are what is divided into
            pieces: between white space, and of BERT's also between
            punctuation.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    words: list[int]


class TextTokenizer(abc.ABC):
    """A model's tokenizer, on one of the `tokenizers` library.

    Attributes:
        vocabulary: the id of each token.
        added: the tokens that were added to those of the model, by rising id.
        new_tokens: the last of these, which a task added.
        vocab_size: the greatest id and one.
        do_lower_case: whether texts are lower-cased.
        classify_id: of the token that begins a row.
        separate_id: of the token that ends a row.
        unknown_id: of what stands for words that cannot be tokenized.
        mask_id: of what stands for masked tokens, or None.
        between_count: how many of `separate_id` are between two texts.
        second_segment: the segment of a row's second text.
        fields: of a `tokenizer_config.json`, where they are not as usual.
        keeps_end: a long text's first tokens are cut off, not its last ones.
    """

    # The tokens of the model's own that have a role, by the role's name.
    special: Mapping[str, str]

    vocabulary: dict[str, int]
    added: list[Added]
    new_tokens: Sequence[NewToken]
    vocab_size: int
    do_lower_case: bool
    classify_id: int
    separate_id: int
    unknown_id: int
    mask_id: Optional[int]
    between_count: int
    second_segment: int
    fields: Mapping[str, Any] = {}
    keeps_end: bool = False
    _tokenizer: Tokenizer

    def _set_ids(
        self,
        pieces: Mapping[str, int],
        model: Any,
        counted: Container[str] = (),
    ) -> None:
        """Sets what follows from the ids of the model's pieces and `added`.

        `model` are JSON values that decide how texts are tokenized, `counted`
        the contents of added tokens in them.
        """
        self._by_content = {a.token.content: a for a in self.added}
        ids = {content: a.id for content, a in self._by_content.items()}
        self.vocabulary = {**pieces, **ids}
        self.vocab_size = max(self.vocabulary.values()) + 1
        self.classify_id, self.separate_id, self.unknown_id, self.mask_id = (
            self.vocabulary.get(self.special[f"{role}_token"])
            for role in ("cls", "sep", "unk", "mask")
        )
        text = json.dumps(model, sort_keys=True)
        counted = {*counted, *map(content_of, self.new_tokens)}
        self._description = {
            "vocabulary": hashlib.sha256(text.encode()).hexdigest(),
            "do_lower_case": self.do_lower_case,
            **fingerprint(
                [a for a in self.added if a.token.content not in counted]
            ),
            **self.fields,
            **({NEW: list(self.new_tokens)} if self.new_tokens else {}),
        }

    def _follow(self, rules: Rules, side: str, **others: Any) -> None:
        self.keeps_end = (rules.truncation_side or side) == "left"
        if self.keeps_end:
            others["truncation_side"] = "left"
        if self.second_segment and not rules.has_segments:
            self.second_segment = 0
            others["model_input_names"] = ["input_ids", "attention_mask"]
        self.fields = others

    def _add_new(
        self,
        tokens: Sequence[NewToken],
        pieces: Mapping[str, int],
        normalize: Callable[[str], str] = str,
    ) -> None:
        """Adds a task's own tokens to those of the model; as `as_added`."""
        self.new_tokens = tuple(tokens)
        ids = {a.token.content: a.id for a in self.added}
        self.added += as_added(self.new_tokens, {**pieces, **ids}, normalize)

    @property
    def between(self) -> list[int]:
        """Lists the tokens between two texts of a row."""
        return [self.separate_id] * self.between_count

    def describe(self) -> dict[str, Any]:
        """Describes what a trained model depends on, as JSON values."""
        return dict(self._description)

    @functools.cached_property
    def names(self) -> dict[int, str]:
        """Gets the token of each id."""
        return {number: name for name, number in self.vocabulary.items()}

    def to_json(self, max_seq_length: int, of_words: bool = False) -> str:
        """A `tokenizer.json` that makes rows of texts and of pairs.

        With it the library adds the special tokens, and cuts the longer text of
        a pair first, as `make_row`, but of two long ones perhaps another token.
        It does not `clean` texts. With `of_words` a text begins as each of its
        words, as `encode_words`.
        """
        start, end = (self.special[f"{role}_token"] for role in ("cls", "sep"))
        between = " ".join([f"{end}:0"] * self.between_count)
        second = self.second_segment
        described = json.loads(self._tokenizer.to_str())
        before = described["pre_tokenizer"] or {}
        if of_words and before.get("type") == "ByteLevel":
            before["add_prefix_space"] = True
        by_id = {a.id: a for a in self.added}
        for token in described["added_tokens"]:
            added = by_id[token["id"]]
            # As it was before `clean`.
            token["content"] = added.token.content
            # The file cannot say that the library is to pass over these.
            if not added.is_sought:
                token["content"] = f"\uffff{token['content']}\uffff"
                token["normalized"] = False
        made = Tokenizer.from_str(json.dumps(described))
        made.post_processor = processors.TemplateProcessing(
            single=f"{start} $A {end}",
            pair=f"{start} $A {between} $B:{second} {end}:{second}",
            special_tokens=[(start, self.classify_id), (end, self.separate_id)],
        )
        side = "left" if self.keeps_end else "right"
        made.enable_truncation(max_seq_length, direction=side)
        return made.to_str(pretty=True)

    @abc.abstractmethod
    def clean(self, text: str) -> str:
        """Returns a text of equal length that the library is given instead."""

    @abc.abstractmethod
    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenizes many texts, on all cores, without special tokens."""

    def encode_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes to ids alone, which takes a fifth less time than `encode`."""
        return [e.ids for e in self._encode(texts, self._tokenizer)]

    def _encode(
        self, texts: Sequence[str], tokenizer: Tokenizer
    ) -> list[Encoding]:
        cleaned = list(map(self.clean, texts))
        return tokenizer.encode_batch(cleaned, add_special_tokens=False)

    @abc.abstractmethod
    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Encodes words that follow a space in a text."""

    @abc.abstractmethod
    def is_text(self, piece: str) -> bool:
        """True if an entry is a piece of text: not special, and not free."""

    @abc.abstractmethod
    def continues(self, piece: str) -> bool:
        """True if an entry continues a word, by its own marks."""

    @abc.abstractmethod
    def letters(self, piece: str) -> str:
        """Returns the text of an entry, without its marks."""


def in_chunks(
    encode: Callable[[list[str]], list[Encoded]], texts: Iterable[str]
) -> Iterator[Encoded]:
    """Encodes each text, many of them at a time.

    A chunk ends with the text that makes `CHUNK` texts or `CHARACTERS` of it.
    """
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if len(chunk) == CHUNK or size >= CHARACTERS:
            yield from encode(chunk)
            chunk, size = [], 0
    if chunk:
        yield from encode(chunk)


def encode_texts(
    texts_a: Iterable[str],
    texts_b: Optional[Iterable[str]],
    tokenizer: TextTokenizer,
) -> Iterator[tuple[list[int], Optional[list[int]]]]:
    """Token ids of each text, and of its pair's second one."""
    ids_b = itertools.repeat(None)
    if texts_b is not None:
        ids_b = in_chunks(tokenizer.encode_ids, texts_b)
    return zip(in_chunks(tokenizer.encode_ids, texts_a), ids_b)


def join_texts(
    texts_a: Iterable[str],
    texts_b: Optional[Iterable[str]],
    tokenizer: TextTokenizer,
    max_seq_length: int,
) -> Iterator[tuple[list[int], list[int], bool]]:
    """Tokens and segments of each text or pair, and whether it was cut."""
    for a, b in encode_texts(texts_a, texts_b, tokenizer):
        added = 2 if b is None else 2 + len(tokenizer.between)
        is_cut = len(a) + len(b or ()) + added > max_seq_length
        yield *make_row(a, b, tokenizer, max_seq_length), is_cut


def fit(len_a: int, len_b: int, room: int) -> tuple[int, int]:
    """Counts the tokens of a pair that are read; the longer text is cut first.

    While both exceed half of the room they are cut in turn, b first.
    """
    if len_a + len_b > room:
        len_a = min(len_a, max(room - len_b, room - room // 2))
        len_b = room - len_a
    return len_a, len_b


def cut(tokens: list[int], count: int, keeps_end: bool) -> list[int]:
    """Cuts to the first tokens of a text, or the last ones, at most `count`."""
    first = max(0, len(tokens) - count) if keeps_end else 0
    return tokens[first : first + count]


def make_row(
    a: list[int],
    b: Optional[list[int]],
    tokenizer: TextTokenizer,
    max_seq_length: int,
) -> tuple[list[int], list[int]]:
    """Adds special tokens, cutting the longer text of a pair first.

    Returns:
        (tokens, segments) of at most `max_seq_length` entries.

    Source: google-research/bert, `run_classifier.py`,
    `convert_single_example` and `_truncate_seq_pair`.
    """
    start, end = [tokenizer.classify_id], [tokenizer.separate_id]
    keeps_end = tokenizer.keeps_end
    if b is None:
        tokens = start + cut(a, max_seq_length - 2, keeps_end) + end
        return tokens, [0] * len(tokens)
    between = tokenizer.between
    len_a, len_b = fit(len(a), len(b), max_seq_length - 2 - len(between))
    a, b = cut(a, len_a, keeps_end), cut(b, len_b, keeps_end)
    tokens = start + a + between + b + end
    return tokens, [0] * (len_a + 1 + len(between)) + [
        tokenizer.second_segment
    ] * (len_b + 1)


def read_vocabulary(path: str) -> dict[str, int]:
    """Reads `vocab.txt`: one entry a line, its line number the id.

    Or a BERT's `tokenizer.json`, which newer transformers write in its place.
    """
    if path.endswith(".json"):
        vocabulary = _read_word_pieces(path)
    else:
        lines = files.read_text(path, "the vocabulary").rstrip().split("\n")
        vocabulary = {line.strip(): number for number, line in enumerate(lines)}
    roles = special_tokens(vocabulary)
    for role in ("unk_token", "cls_token", "sep_token"):
        if roles[role] not in vocabulary:
            raise UserError(
                f"{path} is no BERT vocabulary: it lacks {roles[role]}"
            )
    return vocabulary


def special_tokens(vocabulary: Mapping[str, int]) -> Mapping[str, str]:
    """Returns the special tokens of a vocabulary of word pieces, by role.

    Vocabularies of fairseq, in which MPNet was made, begin with `<s>`.
    """
    is_fairseq = vocabulary.get(OF_MPNET["cls_token"]) == 0
    return OF_MPNET if is_fairseq else SPECIAL


def _read_word_pieces(path: str) -> dict[str, int]:
    described = files.read_object(
        path,
        "the tokenizer of a BERT",
        {
            "model": dict,
            "model.vocab": dict,
            "model.vocab.*": int,
            "model.type?": str,
        },
    )
    model = described["model"]
    vocabulary = model["vocab"]
    # A line of `vocab.txt` could not hold others.
    if (
        model.get("type") not in (None, "WordPiece")
        or sorted(vocabulary.values()) != list(range(len(vocabulary)))
        or any(word.split() != [word] for word in vocabulary)
    ):
        raise UserError(
            f"{path} is no tokenizer of a BERT: expected WordPiece, with an id "
            "for each entry from 0, and no blanks in an entry"
        )
    return dict(vocabulary)


def vocabulary_bytes(path: str) -> bytes:
    """Returns the content of `vocab.txt` for what `read_vocabulary` reads."""
    if not path.endswith(".json"):
        return files.read_bytes(path, "the vocabulary")
    ids = read_vocabulary(path)
    return "".join(f"{word}\n" for word in sorted(ids, key=ids.get)).encode()


def _share_changed(
    vocabulary: dict[str, int], change: Callable[[str], str]
) -> float:
    """Share of the entries that a change of case changes.

    Special tokens, as `[CLS]`, do not count: all models have their capitals.
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


def with_marks(
    text: str, places: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Places of tokens, with the accents that normalization has dropped.

    Each (first character, one past the last) grows up to the next token, white
    space or control character; empty places stay so.
    """
    if text.isascii():
        return places
    grown: list[tuple[int, int]] = []
    following, last = len(text), None
    for start, end in reversed(places):
        if (start, end) == last:
            # Both tokens are of one character.
            grown.append(grown[-1])
            continue
        last = start, end
        while start < end < following and not is_space_or_control(text[end]):
            end += 1
        grown.append((start, end))
        following = min(following, start)
    return grown[::-1]


def is_space_or_control(letter: str) -> bool:
    """True if a character ends what is written before it."""
    return letter.isspace() or unicodedata.category(letter)[0] == "C"


class FullTokenizer(TextTokenizer):
    """Text to WordPiece tokens, as google-research/bert's `FullTokenizer`.

    Differs from it in some hundred rare punctuation and combining marks, which
    newer Unicode tables class differently, and in the Chinese characters from
    U+2B820 to U+2B91F, which the library does not set apart. Added tokens are
    found in a text, as transformers does. `pieces` is without added tokens.
    """

    between_count = 1
    second_segment = 1

    def __init__(
        self,
        vocab_file: str,
        do_lower_case: bool = True,
        new_tokens: Sequence[NewToken] = (),
        rules: Rules = USUAL,
        described: Optional[Mapping[str, Any]] = None,
    ):
        """Reads `vocab.txt` or `tokenizer.json`, and tokens that files add.

        `do_lower_case` is as in the pretraining, whatever `rules` say of it.
        `new_tokens` are a task's own. `described` is the content of the
        `tokenizer.json` next to the vocabulary, which else is read.
        """
        self.pieces = read_vocabulary(vocab_file)
        self.special = special_tokens(self.pieces)
        if self.special is OF_MPNET:
            # As a RoBERTa's rows.
            self.between_count, self.second_segment = 2, 0
        self.added = read_added(
            vocab_file, self.pieces, self.special, described
        )
        self.do_lower_case = do_lower_case
        strip, chinese = rules.strip_accents, rules.tokenize_chinese_chars
        strip = do_lower_case if strip is None else strip
        normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=chinese,
            strip_accents=strip,
            lowercase=do_lower_case,
        )
        others = {} if strip == do_lower_case else {"strip_accents": strip}
        if not chinese:
            others["tokenize_chinese_chars"] = False
        self._follow(rules, side_of(described or {}, vocab_file), **others)
        self._add_new(new_tokens, self.pieces, normalizer.normalize_str)
        self._set_ids(self.pieces, self.pieces)
        # Stray entries do not count. A script without cases is neither.
        self.is_cased = _share_changed(self.pieces, str.lower) > STRAY
        self.is_uncased = (
            not self.is_cased and _share_changed(self.pieces, str.upper) > STRAY
        )
        characters = set().union(*self.vocabulary)
        self._replacements = _Replacements(
            next((c for c in STAND_INS if c not in characters), STAND_INS[0])
        )
        for content in self._by_content:
            self._replacements.update((ord(c), c) for c in content)
        # None of BERT's special tokens is: a typed "[SEP]" is plain text.
        self._tokenizer = Tokenizer(
            models.WordPiece(
                self.pieces,
                unk_token=UNKNOWN,
                max_input_chars_per_word=MAX_CHARACTERS_PER_WORD,
            )
        )
        self._tokenizer.normalizer = normalizer
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        # The blanks around a token make no tokens, and belong to no answer.
        blanks = {"lstrip": False, "rstrip": False}
        register(self._tokenizer, self.added, vocab_file, self.clean, **blanks)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        return [
            Tokens(e.ids, with_marks(text, e.offsets), e.word_ids)
            for text, e in zip(texts, self._encode(texts, self._tokenizer))
        ]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        return self.encode_ids(words)

    def is_text(self, piece: str) -> bool:
        if piece in self._by_content:
            return not self._by_content[piece].token.special
        return piece not in self.special.values() and not UNUSED.fullmatch(
            piece
        )

    def continues(self, piece: str) -> bool:
        return piece.startswith("##")

    def letters(self, piece: str) -> str:
        return piece.removeprefix("##")

    def tokenize(self, text: str) -> list[str]:
        """Splits `text` into tokens as strings, word pieces marked by `##`."""
        return [self.names[number] for number in self.encode_ids([text])[0]]

    def normalize(self, text: str) -> str:
        """Normalizes a text, before it is split into words."""
        return self._tokenizer.normalizer.normalize_str(self.clean(text))

    def split(self, normalized: str) -> list[tuple[str, tuple[int, int]]]:
        """Splits what `normalize` gave into words, with their places in it."""
        return self._tokenizer.pre_tokenizer.pre_tokenize_str(normalized)

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        """Vocabulary indices of tokens.

        Raises:
            KeyError: a token that is not in the vocabulary.
        """
        return [self.vocabulary[token] for token in tokens]

    def clean(self, text: str) -> str:
        if text.isascii():
            return text
        if self.do_lower_case and "\u03a3" in text:
            text = lower_sigmas(text)
        return text.translate(self._replacements)
