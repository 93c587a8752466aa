"""`tokenization.py` by BERT's names."""

import gzip
import json

import pytest
import tensorflow as tf
from conftest import write_lines

from adapter_bert.upstream import tokenization

pytestmark = pytest.mark.older_stack

PIECES = "[UNK] [CLS] [SEP] want ##want ##ed wa un runn ##ing".split()


@pytest.fixture
def path(tmp_path):
    """The path of a vocabulary."""
    path = tmp_path / "vocab.txt"
    write_lines(path, [*PIECES, ","])
    return str(path)


def test_full_tokenizer(path):
    tokenizer = tokenization.FullTokenizer(path)
    tokens = tokenizer.tokenize("UNwant\u00e9d,running")
    assert tokens == "un ##want ##ed , runn ##ing".split()
    assert tokenizer.tokenize("UNwant\u00e9d,running".encode()) == tokens
    ids = tokenizer.convert_tokens_to_ids(tokens)
    assert ids == [7, 4, 5, 10, 8, 9]
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenization.load_vocab(path) == tokenizer.vocab
    with pytest.raises(KeyError):
        tokenizer.convert_ids_to_tokens([99])


def test_parts_that_a_program_changes(path):
    class Splits(tokenization.BasicTokenizer):
        def tokenize(self, text):
            return super().tokenize(text.replace("_", " "))

    def make():
        return tokenization.FullTokenizer(path)

    text = "unwanted_Runn new"
    pieces = "un ##want ##ed [UNK] runn [UNK]".split()
    assert make().tokenize(text) == pieces
    tokenizer = make()
    tokenizer.basic_tokenizer = Splits()
    assert tokenizer.tokenize(text) == [*pieces[:3], *pieces[4:]]
    tokenizer = make()
    tokenizer.basic_tokenizer.do_lower_case = False
    assert tokenizer.tokenize("Runn runn") == ["[UNK]", "runn"]
    tokenizer = make()
    tokenizer.wordpiece_tokenizer.max_input_chars_per_word = 5
    assert tokenizer.tokenize("running runn") == ["[UNK]", "runn"]
    tokenizer = make()
    tokenizer.vocab["new"] = len(tokenizer.vocab)
    assert tokenizer.tokenize("new runn") == ["new", "runn"]
    assert tokenizer.convert_tokens_to_ids(["new", "runn"]) == [11, 8]

    class Own(tokenization.FullTokenizer):
        def __init__(self):
            self.vocab = {"[UNK]": 0, "un": 1}
            self.basic_tokenizer = tokenization.BasicTokenizer()
            self.wordpiece_tokenizer = tokenization.WordpieceTokenizer(
                self.vocab
            )

    assert Own().convert_tokens_to_ids(Own().tokenize("un x")) == [1, 0]

    class Whole(tokenization.BasicTokenizer):
        def _run_strip_accents(self, text):
            return text

        def _tokenize_chinese_chars(self, text):
            return text

        def _run_split_on_punc(self, text):
            return [text]

    text = "\u00fcber \u6771\u4eac a,b"
    assert Whole().tokenize(text) == text.split()


def test_a_vocabulary_that_is_not_there(tmp_path):
    path = str(tmp_path / "nothing.txt")
    for read in (tokenization.FullTokenizer, tokenization.load_vocab):
        with pytest.raises(tf.errors.NotFoundError, match="nothing.txt"):
            read(path)


@pytest.mark.pretrained
@pytest.mark.parametrize("case", ["uncased", "cased"])
def test_golden_tokens(golden_dir, pretrained_dir, case):
    recorded = json.loads(
        gzip.decompress((golden_dir / "tokenization.json.gz").read_bytes())
    )
    tokenizer = tokenization.FullTokenizer(
        str(pretrained_dir / "vocab.txt"), do_lower_case=case == "uncased"
    )
    for row in recorded:
        pieces = tokenizer.tokenize(row["text"])
        assert pieces == row[case], row["text"]
        ids = tokenizer.convert_tokens_to_ids(pieces)
        assert ids == row[f"{case}_ids"]


@pytest.mark.parametrize(
    "text, lower, plain",
    [
        (
            " \tHeLLo!how  \n Are yoU?  ",
            "hello ! how are you ?".split(),
            "HeLLo ! how Are yoU ?".split(),
        ),
        ("H\u00e9llo", ["hello"], ["H\u00e9llo"]),
        ("ah\u535a\u63a8zz", ["ah", "\u535a", "\u63a8", "zz"], None),
    ],
)
def test_basic_tokenizer(text, lower, plain):
    assert tokenization.BasicTokenizer().tokenize(text) == lower
    tokens = tokenization.BasicTokenizer(do_lower_case=False).tokenize(text)
    assert tokens == (plain or lower)


def test_wordpiece_tokenizer():
    vocab = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = tokenization.WordpieceTokenizer(vocab=vocab)
    assert tokenizer.tokenize("") == []
    pieces = ["un", "##want", "##ed", "runn", "##ing"]
    assert tokenizer.tokenize("unwanted running") == pieces
    assert tokenizer.tokenize("unwantedX running") == ["[UNK]", *pieces[3:]]
    short = tokenization.WordpieceTokenizer(vocab, "[CLS]", 7)
    assert short.tokenize("unwanted running") == ["[CLS]", "runn", "##ing"]
    ids = tokenization.convert_tokens_to_ids(vocab, pieces)
    assert ids == [7, 4, 5, 8, 9]


@pytest.mark.parametrize(
    "test, holds, fails",
    [
        ("_is_whitespace", " \t\r\n\u00a0", "A-"),
        ("_is_control", "\u0005", "A \t\r\U0001f4a9"),
        ("_is_punctuation", "-$`.", "A "),
    ],
)
def test_kinds_of_characters(test, holds, fails):
    test = getattr(tokenization, test)
    assert all(map(test, holds)) and not any(map(test, fails))


def test_convert_to_unicode():
    assert tokenization.convert_to_unicode(b"caf\xc3\xa9\xff") == "caf\u00e9"
    assert tokenization.printable_text("caf\u00e9") == "caf\u00e9"
    with pytest.raises(ValueError, match="expected str or bytes"):
        tokenization.convert_to_unicode(7)


def test_case_of_a_known_checkpoint():
    check = tokenization.validate_case_matches_checkpoint
    check(True, None)
    check(True, "models/my_bert/bert_model.ckpt")
    check(True, "models/uncased_L-12_H-768_A-12/bert_model.ckpt")
    with pytest.raises(ValueError, match="--do_lower_case=True"):
        check(False, "models/uncased_L-12_H-768_A-12/bert_model.ckpt")
    with pytest.raises(ValueError, match="--do_lower_case=False"):
        check(True, "models/cased_L-12_H-768_A-12/bert_model.ckpt")
