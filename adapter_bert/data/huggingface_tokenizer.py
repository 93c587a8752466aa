"""Tokenization as a `tokenizer.json` describes it: RoBERTa, XLM-R, ALBERT.

Byte-level BPE and unigram, on the `tokenizers` library. Not in here: special
tokens of a task's inputs and cutting to a length (`tasks/`).
"""

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any, Optional

from tokenizers import Tokenizer

from adapter_bert import files
from adapter_bert.data.added_tokens import (
    LONGEST_PIECE,
    NewToken,
    read_added,
    register,
)
from adapter_bert.data.tokenization import TextTokenizer, Tokens, with_marks
from adapter_bert.data.tokenizer_config import USUAL, Rules, side_of
from adapter_bert.errors import UserError

PADDING, UNKNOWN = "<pad>", "<unk>"
SPECIAL = {
    "unk_token": UNKNOWN,
    "sep_token": "</s>",
    "pad_token": PADDING,
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
# What stands for the space before a word, by the model's type.
SPACES = {"BPE": "\u0120", "Unigram": "\u2581"}
# The bytes that byte-level BPE writes as the characters from U+0100 on.
HIDDEN_BYTES = (*range(33), *range(127, 161), 173)
# Keys that decide how a text is tokenized; others cut and pad.
DECISIVE = ("model", "normalizer", "pre_tokenizer", "added_tokens")
# The one regular expression of XLM-R; RoBERTa has none in its file.
PATTERN = " {2,}"
# Keys that must be empty: tokenizers of other models use them.
UNUSED = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
# Fairseq fills its vocabularies with such entries.
MADE_UP = re.compile(r"madeupword\d+")
SURROGATE = re.compile("[\ud800-\udfff]")


class SubwordTokenizer(TextTokenizer):
    """Text to the tokens of a `tokenizer.json`, as transformers make them.

    Differs from transformers in special tokens alone: a typed "</s>" is plain
    text.
    """

    # Whose tokenizer, for messages.
    of = "a RoBERTa"
    special = SPECIAL
    between_count = 2
    second_segment = 0
    do_lower_case = False

    def __init__(
        self,
        path: str,
        new_tokens: Sequence[NewToken] = (),
        rules: Rules = USUAL,
    ):
        """Reads a `tokenizer.json`, and the tokens that files next to it add.

        `new_tokens` are a task's own.
        """
        described = files.read_json(path, "the tokenizer")
        self.path = path
        pieces = read_ids(described, path)
        as_written, others = described, {}
        before = described.get("pre_tokenizer")
        before = before if isinstance(before, dict) else {}
        begins = rules.add_prefix_space
        if before.get("type") == "ByteLevel" and begins is not None:
            if begins != before.get("add_prefix_space"):
                others["add_prefix_space"] = begins
            before = {**before, "add_prefix_space": begins}
            described = {**described, "pre_tokenizer": before}
        self.adds_space = bool(before.get("add_prefix_space"))
        self._follow(rules, side_of(described, path), **others)
        self.added = read_added(path, pieces, self.special, described)
        self._add_new(new_tokens, pieces)
        model = {key: as_written.get(key) for key in DECISIVE}
        counted = described.get("added_tokens") or []
        counted = {t["content"] for t in counted if not t.get("special")}
        self._set_ids(pieces, model, counted)
        for role, token in self.special.items():
            if role != "mask_token" and token not in self.vocabulary:
                raise UserError(
                    f"{path} is no tokenizer of {self.of}: it lacks {token}"
                )
        self.padding_id = self.vocabulary[self.special["pad_token"]]
        self._special = {
            *self.special.values(),
            *(a.token.content for a in self.added if a.token.special),
        }
        self._space = SPACES[described["model"]["type"]]
        self._gap = self.vocabulary.get(self._space)
        reserved = frozenset(self.special.values())
        self._tokenizer = self._words = _make(described, path, reserved)
        register(self._tokenizer, self.added, path)
        if self.added and before.get("add_prefix_space") is False:
            # A space may not be put before an added token.
            before = {**before, "add_prefix_space": True}
            described = {**described, "pre_tokenizer": before}
            self._words = _make(described, path, reserved)
            register(self._words, self.added, path)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Encodes like `TextTokenizer`; a space before a word is not of it.

        A letter's place has the accents after it, which XLM-R joins with it
        and transformers leave out. A token of a space alone has no characters;
        transformers give it the first one of the next word.
        """
        encodings = []
        for text, e in zip(texts, self._encode(texts, self._tokenizer)):
            text = self.clean(text)
            places = [
                _trim(text, start, start if n == self._gap else end)
                for n, (start, end) in zip(e.ids, e.offsets)
            ]
            encodings.append(
                Tokens(e.ids, with_marks(text, places), e.word_ids)
            )
        return encodings

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        if self._words is not self._tokenizer:
            return [e.ids for e in self._encode(words, self._words)]
        return self.encode_ids([f" {word}" for word in words])

    def clean(self, text: str) -> str:
        return text if text.isascii() else SURROGATE.sub("\ufffd", text)

    def is_text(self, piece: str) -> bool:
        return piece not in self._special and not MADE_UP.fullmatch(piece)

    def continues(self, piece: str) -> bool:
        return not piece.startswith(self._space)

    def letters(self, piece: str) -> str:
        """Finds letters as `TextTokenizer.letters`.

        Where a piece ends within a letter's bytes, the last letter that begins
        with them; U+FFFD where a piece begins within a letter.
        """
        text = piece.removeprefix(self._space)
        if self._space != SPACES["BPE"] or piece in self._by_content:
            return text
        codes = map(ord, text)
        data = bytes(c if c < 256 else HIDDEN_BYTES[c - 256] for c in codes)
        for missing in range(4):
            with contextlib.suppress(UnicodeDecodeError):
                return (data + b"\xbf" * missing).decode()
        return "\ufffd"


class UnigramTokenizer(SubwordTokenizer):
    """Tokenizes as an ALBERT's `tokenizer.json`; rows are like BERT's."""

    of = "an ALBERT"
    special = {
        "unk_token": UNKNOWN,
        "sep_token": "[SEP]",
        "pad_token": PADDING,
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    between_count = 1
    second_segment = 1


def kind_of_file(path: str) -> Optional[type[SubwordTokenizer]]:
    """Chooses the class of a vocabulary's tokenizer; None for word pieces."""
    described = files.read_json(path, "the tokenizer")
    kind = _kind(described)
    if kind not in SPACES:
        return None
    if kind == "BPE":
        return SubwordTokenizer
    first = UnigramTokenizer.special["cls_token"]
    is_albert = first in read_ids(described, path)
    return UnigramTokenizer if is_albert else SubwordTokenizer


def _kind(described: Any) -> str:
    model = described.get("model") if isinstance(described, dict) else None
    return str(model.get("type")) if isinstance(model, dict) else ""


def read_ids(described: Any, path: str) -> dict[str, int]:
    """Reads the ids of pieces from what a `tokenizer.json` holds."""
    kind = _kind(described)
    if kind not in SPACES:
        raise UserError(
            f"{path} is a tokenizer of type {kind!r}, expected "
            f"{' or '.join(map(repr, SPACES))}, as RoBERTa and XLM-R have"
        )
    try:
        entries = described["model"]["vocab"]
        if isinstance(entries, list):
            ids = {piece: number for number, (piece, _) in enumerate(entries)}
        else:
            ids = dict(entries)
        if not all(type(number) is int for number in ids.values()):
            raise ValueError("an id is no whole number")
        if not ids:
            raise ValueError("it has no pieces")
        if max(map(len, ids)) > LONGEST_PIECE:
            raise ValueError(f"a piece has more than {LONGEST_PIECE} letters")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} is no description of a tokenizer: {error!r}"
        ) from error
    return ids


def _make(
    described: dict[str, Any], path: str, special: frozenset[str]
) -> Tokenizer:
    model = described["model"]
    for key in UNUSED:
        # The library fails at some of them, and chooses at random at others.
        if model.get(key):
            raise UserError(
                f"{path}: model.{key} is {str(model[key])[:80]!r}, but a "
                "RoBERTa's tokenizer has none"
            )
    entries = model["vocab"]
    _check_patterns(described, path)
    if isinstance(entries, list):
        # Unigram finds any entry in a text. In none is there a space, which
        # has become another character before.
        entries = [
            [f" {piece} " if piece in special else piece, score]
            for piece, score in entries
        ]
        model = {**model, "vocab": entries}
    plain = {
        **described,
        "model": model,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    try:
        return Tokenizer.from_str(json.dumps(plain))
    except KeyboardInterrupt:
        raise
    # The library has no class of its own for what it cannot read, and some of
    # what it raises is no `Exception`.
    except BaseException as error:
        raise UserError(
            f"{path} is no tokenizer that can be read here: {error}"
        ) from error


def _check_patterns(described: dict[str, Any], path: str) -> None:
    """Refuses regular expressions that published models do not have.

    With others the library may panic at a text of few characters.
    """
    nodes = [described.get("normalizer"), described.get("pre_tokenizer")]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            if node.get("Regex", PATTERN) != PATTERN:
                raise UserError(
                    f"{path} has the pattern {str(node['Regex'])[:80]!r}, "
                    f"which a text could fail at; expected {PATTERN!r} alone"
                )
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
