"""Tokenization: the recorded tokens, any text at all, broken vocabularies."""

import gzip
import json

import hypothesis.strategies as st
import pytest
from conftest import module_fixture, read_json, write_json
from hypothesis import given, settings
from tokenizers import Tokenizer, models

from adapter_bert.data import tokenization
from adapter_bert.data.tokenization import (
    FullTokenizer,
    in_chunks,
    lower_sigmas,
    make_row,
    read_vocabulary,
    vocabulary_bytes,
)
from adapter_bert.errors import UserError

pytestmark = pytest.mark.older_stack

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] [ ] SEP sep the The cat ##s ##ing a ##a "
    "e \u00e9 \u4eac . , ! ? - \u03c3 \u0130"
).split()

# Plain words, everything that text may hold, and what is rarely thought of.
TEXTS = st.lists(
    st.one_of(
        st.text(st.characters(), max_size=8),
        st.text(
            st.characters(categories=["Cs", "Co", "Cc", "Cf", "Cn", "Mn"]),
            max_size=4,
        ),
        st.sampled_from(WORDS),
        st.sampled_from([" ", "\t", "\u2028", "e\u0301", "\u0130", "\uac01"]),
        st.sampled_from(["[SEP]", "[CLS]"]),
    ),
    max_size=12,
).map("".join)

PROPERTY = settings(max_examples=200)
CASES = pytest.mark.parametrize("case", ["uncased", "cased"])


def write_vocabulary(folder, entries):
    path = folder / "vocab.txt"
    path.write_text("".join(e + "\n" for e in entries), encoding="utf-8")
    return str(path)


def test_texts_are_read_some_at_a_time(monkeypatch):
    monkeypatch.setattr(tokenization, "CHUNK", 3)
    chunks = []
    texts_read = in_chunks(
        lambda texts: chunks.append(texts) or texts, iter("abcd")
    )
    assert next(texts_read) == "a" and chunks == [["a", "b", "c"]]
    assert list(texts_read) == ["b", "c", "d"] and chunks[1:] == [["d"]]
    monkeypatch.setattr(tokenization, "CHARACTERS", 4)
    texts = ["ab", "cd", "e" * 9, "f", "g", "h"]
    assert list(in_chunks(lambda texts: [texts], texts)) == [
        ["ab", "cd"],
        ["e" * 9],
        ["f", "g", "h"],
    ]


def in_both_cases(path):
    return {
        "uncased": FullTokenizer(path, do_lower_case=True),
        "cased": FullTokenizer(path, do_lower_case=False),
    }


@module_fixture
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    return in_both_cases(write_vocabulary(folder, WORDS))


@module_fixture
def pretrained_tokenizers(pretrained_dir):
    return in_both_cases(str(pretrained_dir / "vocab.txt"))


@pytest.mark.pretrained
@CASES
@pytest.mark.parametrize(
    "place, folder",
    [
        ("golden_dir", "."),
        pytest.param(
            "shared_dir", "golden_real_text", marks=pytest.mark.real_data
        ),
    ],
)
def test_golden_tokens_and_ids(
    pretrained_tokenizers, request, case, place, folder
):
    path = request.getfixturevalue(place) / folder / "tokenization.json.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        recorded = json.load(file)
    assert recorded
    tokenizer = pretrained_tokenizers[case]
    encoded = tokenizer.encode([record["text"] for record in recorded])
    for record, tokens in zip(recorded, encoded):
        assert tokenizer.tokenize(record["text"]) == record[case], record
        assert tokens.ids == record[f"{case}_ids"], record


@CASES
@PROPERTY
@given(TEXTS)
def test_any_text_has_tokens_with_ordered_offsets(tokenizers, case, text):
    """None of them is special: a typed one is plain text."""
    tokenizer = tokenizers[case]
    [tokens] = tokenizer.encode([text])
    assert tokenizer.encode_ids([text, text]) == [tokens.ids] * 2
    assert len(tokens.ids) == len(tokens.offsets)
    assert set(tokens.ids) <= set(tokenizer.vocabulary.values())
    assert not {tokenizer.classify_id, tokenizer.separate_id} & {*tokens.ids}
    for first, end in tokens.offsets:
        assert 0 <= first < end <= len(text)
    for offsets, following in zip(tokens.offsets, tokens.offsets[1:]):
        assert offsets[0] <= following[0] and offsets[1] <= following[1]
    strings = tokenizer.tokenize(text)
    assert tokenizer.convert_tokens_to_ids(strings) == tokens.ids


@CASES
@PROPERTY
@given(TEXTS, st.none() | TEXTS, st.integers(5, 20))
def test_the_file_for_the_library_makes_the_same_rows(
    tokenizers, case, text, other, length
):
    """Of an even room, of which the library cuts no other token."""
    tokenizer = tokenizers[case]
    length += 1 - length % 2
    texts = [tokenizer.clean(x) for x in (text, other) if x is not None]
    ids = tokenizer.encode_ids(texts)
    expected = make_row(*[*ids, None][:2], tokenizer, length)
    file = Tokenizer.from_str(tokenizer.to_json(length))
    encoding = file.encode(*texts)
    assert (encoding.ids, encoding.type_ids) == expected


@CASES
@PROPERTY
@given(
    st.lists(
        st.sampled_from([*"the The cats aaa . ! \ue000".split(), " ", "\n"])
    ).map("".join)
)
def test_offsets_point_to_the_tokens_text(tokenizers, case, text):
    tokenizer = tokenizers[case]
    [tokens] = tokenizer.encode([text])
    strings = tokenizer.tokenize(text)
    for string, (first, end) in zip(strings, tokens.offsets):
        if string != "[UNK]":
            letters = text[first:end]
            expected = letters.lower() if case == "uncased" else letters
            assert string.replace("##", "") == expected
    covered = {i for offsets in tokens.offsets for i in range(*offsets)}
    assert covered == {i for i, c in enumerate(text) if not c.isspace()}


UNKNOWN = ["the", "[UNK]", "cat"]


@pytest.mark.parametrize(
    "text,uncased,cased",
    [
        ("[SEP]", ["[", "sep", "]"], ["[", "SEP", "]"]),
        ("\0t\x01h\u200be\ufffd \x7fcat\u00ad", ["the", "cat"], ["the", "cat"]),
        ("The \u00c9", ["the", "e"], ["The", "[UNK]"]),
        ("cat\u4eac!?", ["cat", "\u4eac", "!", "?"], None),
        ("a" * 200, ["a"] + ["##a"] * 199, None),
        ("a" * 201, ["[UNK]"], None),
        # Characters without a meaning are unknown words.
        *(
            (f"the {character} cat", UNKNOWN, UNKNOWN)
            for character in ("\ue000", "\ud800", "\U000e0fff", "\u0378")
        ),
        ("the\ue000 cat", ["[UNK]", "cat"], None),
    ],
)
def test_tokens_of_texts(tokenizers, text, uncased, cased):
    assert tokenizers["uncased"].tokenize(text) == uncased
    assert tokenizers["cased"].tokenize(text) == (cased or uncased)


def test_the_stand_in_is_a_letter_that_the_vocabulary_lacks(tmp_path):
    path = write_vocabulary(tmp_path, [*WORDS, "\ua015", "##\u1401"])
    assert FullTokenizer(path).tokenize("\ue000 \ua015") == ["[UNK]", "\ua015"]


def test_texts_of_a_batch_do_not_influence_each_other(tokenizers):
    texts = ["the cat", "", "a" * 300, "\ud800", "cats!"]
    tokenizer = tokenizers["uncased"]
    encoded = tokenizer.encode(texts)
    assert encoded == [tokenizer.encode([t])[0] for t in texts]
    assert encoded[1] == ([], [], []) and tokenizer.encode([]) == []
    assert tokenizer.classify_id == WORDS.index("[CLS]")
    assert tokenizer.separate_id == WORDS.index("[SEP]")
    assert tokenizer.vocab_size == len(WORDS)
    with pytest.raises(KeyError):
        tokenizer.convert_tokens_to_ids(["the", "nowhere"])


def test_descriptions_tell_vocabularies_and_case_apart(tmp_path, tokenizers):
    description = tokenizers["uncased"].describe()
    assert json.loads(json.dumps(description)) == description
    path = write_vocabulary(tmp_path, WORDS)
    assert FullTokenizer(path).describe() == description
    others = [tokenizers["cased"].describe()]
    for words in (WORDS[::-1], WORDS[:-1], [*WORDS, "new"]):
        path = write_vocabulary(tmp_path, words)
        others.append(FullTokenizer(path).describe())
    assert description not in others
    assert len(set(map(str, others))) == len(others)


def test_the_last_of_duplicate_vocabulary_lines_counts(tmp_path):
    entries = "[UNK] [CLS] cat [SEP] cat the".split()
    tokenizer = FullTokenizer(write_vocabulary(tmp_path, entries))
    assert tokenizer.encode(["the cat"])[0].ids == [5, 4]
    assert tokenizer.vocab_size == 6


def test_vocabulary_lines_end_at_newlines_only(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("[UNK]\r\n[CLS]\r\na\u2028b\rc\r\n[SEP]".encode())
    assert read_vocabulary(str(path)) == {
        "[UNK]": 0,
        "[CLS]": 1,
        "a\u2028b\rc": 2,
        "[SEP]": 3,
    }


@pytest.mark.parametrize(
    "content,message",
    [
        (None, "does not exist"),
        (b"[UNK]\n[CLS]\n[SEP]\ncaf\xe9\n", "not UTF-8"),
        (b"", r"lacks \[UNK\]"),
        (b"[UNK]\n[SEP]\n", r"lacks \[CLS\]"),
        (b"[UNK]\n[CLS]\n", r"lacks \[SEP\]"),
    ],
)
def test_what_is_no_vocabulary_is_refused(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path}.*{message}"):
        FullTokenizer(str(path))


@pytest.mark.parametrize(
    "word", ["ΟΔΟΣ", "ΣΟΦΟΣ", "ΟΔΟΣ.", "ΑΣ-Σ", "İΣ", "Σ", "ΑΣ́ ΣΑ"]
)
def test_capital_sigmas_are_lowered_as_python_lowers_them(word):
    assert lower_sigmas(word).lower() == word.lower()
    assert len(lower_sigmas(word)) == len(word)


@CASES
@pytest.mark.parametrize(
    "text,uncased,cased",
    [
        ("The cats,", ["The", "cat", "s", ","], None),
        ("\u00c9t\u00e9 a", ["\u00c9t\u00e9", "a"], None),
        # An accent stays with its letter, whether normalization drops it.
        ("e\u0301 ae\u0301", ["e\u0301", "ae\u0301"], None),
        ("aa\u0301a", ["a", "a\u0301", "a"], ["aa\u0301a"]),
        (
            "a\u200b\u0301 \u0301 a",
            ["a", "a"],
            ["a\u200b\u0301", "\u0301", "a"],
        ),
        ("\uac01\u0301", ["\uac01\u0301"], None),
        ("c\u200bat\u200b", ["c\u200bat"], None),
        ("a\ufffd \ufffd", ["a\ufffd"], None),
        ("the\u00a0cat\u2003a", ["the", "cat", "a"], None),
        ("\u4eac\u4eac", ["\u4eac", "\u4eac"], None),
        ("zz" * 200, ["zz" * 200], None),
        # Letters of two UTF-16 units.
        ("\U0001f600 \ud800 cat", ["\U0001f600", "\ud800", "cat"], None),
    ],
)
def test_places_are_those_of_the_tokens_letters(
    tokenizers, case, text, uncased, cased
):
    [tokens] = tokenizers[case].encode([text])
    expected = uncased if case == "uncased" else cased or uncased
    assert [text[slice(*place)] for place in tokens.offsets] == expected


def test_a_tokenizer_of_newer_transformers_has_the_vocabulary(tmp_path):
    """They write no `vocab.txt` next to it."""
    entries = "[PAD] [UNK] [CLS] [SEP] cat ##s the".split()
    vocabulary = {word: number for number, word in enumerate(entries)}
    path = tmp_path / "tokenizer.json"
    model = models.WordPiece(vocabulary, unk_token="[UNK]")
    Tokenizer(model).save(str(path))
    assert read_vocabulary(str(path)) == vocabulary
    text = write_vocabulary(tmp_path, entries)
    described = FullTokenizer(text).describe()
    assert FullTokenizer(str(path)).describe() == described
    assert vocabulary_bytes(str(path)).decode().split() == entries
    Tokenizer(models.WordLevel(vocabulary, "[UNK]")).save(str(path))
    whole = read_json(path)
    for changed, message in (
        (whole, "no tokenizer of a BERT: expected WordPiece"),
        ([], "not the tokenizer of a BERT"),
        ({"model": {"vocab": {"a": 1}}}, "expected WordPiece, with an id"),
        ({"model": {"vocab": {"a b": 0}}}, "no blanks in an entry"),
        ({"model": {"vocab": {"\ud800": 0}}}, "JSON does not have"),
    ):
        write_json(path, changed)
        with pytest.raises(UserError, match=message):
            read_vocabulary(str(path))
