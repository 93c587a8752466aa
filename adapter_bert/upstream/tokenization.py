"""Names of google-research/bert's `tokenization.py`.

They are plain Python, since programs subclass tokenizers, change their parts
and hand in vocabularies of their own.
"""

import collections
import itertools
import re
import unicodedata

import tensorflow as tf

# Blocks of CJK ideographs. Source: google-research/bert, `tokenization.py`,
# `BasicTokenizer._is_chinese_char`.
CHINESE = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)
# Google's names of models whose vocabulary has one case.
UNCASED = (
    "uncased_L-24_H-1024_A-16",
    "uncased_L-12_H-768_A-12",
    "multilingual_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12",
)
CASED = (
    "cased_L-12_H-768_A-12",
    "cased_L-24_H-1024_A-16",
    "multi_cased_L-12_H-768_A-12",
)


def validate_case_matches_checkpoint(do_lower_case, init_checkpoint):
    """Compares the case with the name of one of Google's checkpoints.

    Raises:
        ValueError: the checkpoint was pretrained with the other case.
    """
    match = re.match(
        r".*?([A-Za-z0-9_-]+)/bert_model.ckpt", init_checkpoint or ""
    )
    wrong = CASED if do_lower_case else UNCASED
    if match and match[1] in wrong:
        raise ValueError(
            f"--do_lower_case={bool(do_lower_case)} does not fit "
            f"--init_checkpoint={init_checkpoint}, a model that was pretrained "
            f"with {'cased' if do_lower_case else 'lower-cased'} text; pass "
            f"--do_lower_case={not do_lower_case}"
        )


def convert_to_unicode(text):
    """Decodes bytes as UTF-8, without what cannot be decoded.

    Raises:
        ValueError: neither str nor bytes.
    """
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    if not isinstance(text, str):
        raise ValueError(f"expected str or bytes, found {type(text)}")
    return text


def printable_text(text):
    """Gives a text as `print` takes it."""
    return convert_to_unicode(text)


def load_vocab(vocab_file):
    """Reads `vocab.txt`: an entry a line, its line number the id.

    Raises:
        tf.errors.NotFoundError: there is no such file.
    """
    with tf.io.gfile.GFile(vocab_file, "rb") as file:
        lines = convert_to_unicode(file.read()).split("\n")
    if not lines[-1]:
        lines.pop()
    return collections.OrderedDict(
        (line.strip(), number) for number, line in enumerate(lines)
    )


def convert_by_vocab(vocab, items):
    """Looks each item up in the vocabulary; KeyError of one it lacks."""
    return [vocab[item] for item in items]


def convert_tokens_to_ids(vocab, tokens):
    """Looks up tokens."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab, ids):
    """Looks up ids."""
    return convert_by_vocab(inv_vocab, ids)


def whitespace_tokenize(text):
    """Splits a text at white space."""
    return text.split()


class FullTokenizer:
    """Splits text into word pieces; `vocab` has ids, `inv_vocab` tokens.

    A program may change `vocab`, and both tokenizers that do the work.
    """

    def __init__(self, vocab_file, do_lower_case=True):
        """Reads the vocabulary.

        Raises:
            tf.errors.NotFoundError: there is no such file.
        """
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {number: token for token, number in self.vocab.items()}
        self.basic_tokenizer = BasicTokenizer(do_lower_case)
        self.wordpiece_tokenizer = WordpieceTokenizer(self.vocab)

    def tokenize(self, text):
        return [
            piece
            for word in self.basic_tokenizer.tokenize(text)
            for piece in self.wordpiece_tokenizer.tokenize(word)
        ]

    def convert_tokens_to_ids(self, tokens):
        return convert_by_vocab(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids):
        return convert_by_vocab(self.inv_vocab, ids)


class _Characters(dict):
    """For `str.translate`: remembers what a function makes of a character."""

    def __init__(self, make):
        super().__init__()
        self._make = make

    def __missing__(self, code):
        self[code] = self._make(chr(code))
        return self[code]


class BasicTokenizer:
    """Text to words: cleaned, lower-cased, split at punctuation."""

    def __init__(self, do_lower_case=True):
        self.do_lower_case = do_lower_case

    def tokenize(self, text):
        text = self._clean_text(convert_to_unicode(text))
        words = whitespace_tokenize(self._tokenize_chinese_chars(text))
        if self.do_lower_case:
            words = [self._run_strip_accents(word.lower()) for word in words]
        parts = itertools.chain(*map(self._run_split_on_punc, words))
        return whitespace_tokenize(" ".join(parts))

    def _clean_text(self, text):
        return text.translate(CLEANED)

    def _tokenize_chinese_chars(self, text):
        if text.isascii():
            return text
        return "".join(
            f" {x} " if self._is_chinese_char(ord(x)) else x for x in text
        )

    def _is_chinese_char(self, cp):
        return bool(CHINESE.match(chr(cp)))

    def _run_strip_accents(self, text):
        return unicodedata.normalize("NFD", text).translate(WITHOUT_ACCENTS)

    def _run_split_on_punc(self, text):
        return text.translate(DIVIDED).split()


class WordpieceTokenizer:
    """Words to pieces: at each place the longest entry of the vocabulary."""

    def __init__(
        self,
        vocab,
        unk_token="[UNK]",
        max_input_chars_per_word=200,
    ):
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word

    def tokenize(self, text):
        return [
            piece
            for word in whitespace_tokenize(convert_to_unicode(text))
            for piece in self._pieces(word)
        ]

    def _pieces(self, word):
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        pieces = []
        start, mark = 0, ""
        while start < len(word):
            for end in range(len(word), start, -1):
                if mark + word[start:end] in self.vocab:
                    break
            else:
                return [self.unk_token]
            pieces.append(mark + word[start:end])
            start, mark = end, "##"
        return pieces


def _is_whitespace(char):
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char):
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char):
    # All ASCII that is no letter or digit, `$` and `^` among them.
    is_symbol = char.isascii() and char.isprintable() and not char.isalnum()
    return (is_symbol and char != " ") or unicodedata.category(char)[0] == "P"


def _cleaned(char):
    if char in "\0\ufffd" or _is_control(char):
        return ""
    return " " if _is_whitespace(char) else char


CLEANED = _Characters(_cleaned)
WITHOUT_ACCENTS = _Characters(
    lambda char: "" if unicodedata.category(char) == "Mn" else char
)
DIVIDED = _Characters(
    lambda char: f" {char} " if _is_punctuation(char) else char
)
