"""Tokens of a `tokenizer.json` against those of transformers."""

import pathlib
import types
from shutil import copy

import pytest
import refusals
from conftest import write_lines
from roberta_folders import BOTH, change, drop, open_tokenizer, put
from tokenizers import Tokenizer

from adapter_bert.data import huggingface_tokenizer
from adapter_bert.data.huggingface_tokenizer import SubwordTokenizer
from adapter_bert.data.tokenization import make_row
from adapter_bert.tasks.masked_lm import Pieces
from adapter_bert.tasks.squad_data import (
    SquadAnswer,
    SquadQuestion,
    cut_windows,
)

ACCENTS = "\u0300\u0301\u0308"
SPECIAL = ("<s>", "</s>", "<pad>", "<mask>", "<unk>")


@BOTH
def test_golden_ids_of_texts(recorded_roberta, name):
    recorded = recorded_roberta(name)
    texts = [row["text"] for row in recorded.tokens["texts"]]
    encoded = recorded.tokenizer.encode(texts)
    ids = recorded.tokenizer.encode_ids(texts)
    assert len(texts) == 8
    for row, tokens, alone in zip(recorded.tokens["texts"], encoded, ids):
        made = make_row(tokens.ids, None, recorded.tokenizer, 99)
        assert made == (row["ids"], [0] * len(row["ids"])), row["text"]
        assert alone == tokens.ids
        cut = [row["text"][s:e].strip() for s, e in row["offsets"][1:-1]]
        # Transformers leaves out an accent that was joined with its letter.
        ours = [row["text"][s:e] for s, e in tokens.offsets]
        spaces = {recorded.tokenizer.vocabulary.get(s) for s in "\u0120\u2581"}
        for number, piece, other in zip(tokens.ids, ours, cut):
            # It gives a space alone the first letter of the next word.
            if number in spaces:
                other = ""
            assert piece == other or piece.rstrip(ACCENTS) == other
        assert len(ours) == len(cut)


@BOTH
def test_golden_ids_of_pairs(recorded_roberta, name):
    recorded = recorded_roberta(name)
    # As a program without this project makes them.
    file = Tokenizer.from_str(recorded.tokenizer.to_json(99))
    for row in recorded.tokens["pairs"]:
        one, other = recorded.tokenizer.encode_ids(row["texts"])
        made = make_row(one, other, recorded.tokenizer, 99)
        assert made == (row["ids"], [0] * len(row["ids"])), row["texts"]
        alone = file.encode(*row["texts"])
        assert made == (alone.ids, alone.type_ids)


@BOTH
def test_golden_ids_of_words(recorded_roberta, name):
    recorded = recorded_roberta(name)
    file = Tokenizer.from_str(recorded.tokenizer.to_json(99, of_words=True))
    for row in recorded.tokens["words"]:
        assert file.encode(row["words"], is_pretokenized=True).ids == row["ids"]
        pieces = recorded.tokenizer.encode_words(row["words"])
        numbers = [n for n, ids in enumerate(pieces) for _ in ids]
        assert sum(pieces, []) == row["ids"][1:-1]
        assert numbers == row["word_ids"][1:-1]


@BOTH
@pytest.mark.parametrize("special", SPECIAL)
def test_a_typed_special_token_is_plain_text(recorded_roberta, name, special):
    recorded = recorded_roberta(name)
    [ids] = recorded.tokenizer.encode_ids([f"the {special} cat{special}"])
    special_ids = {recorded.tokenizer.vocabulary[token] for token in SPECIAL}
    unknown = {recorded.tokenizer.unknown_id}
    assert special_ids.isdisjoint(set(ids) - unknown)


@BOTH
def test_any_text_has_tokens(recorded_roberta, name):
    tokenizer = recorded_roberta(name).tokenizer
    text = "a\ud800b \udfff\x00 \u2028c"
    [tokens] = tokenizer.encode([text])
    assert all(0 <= s <= e <= len(text) for s, e in tokens.offsets)
    assert max(tokens.ids) < tokenizer.vocab_size


@BOTH
def test_what_is_masked(recorded_roberta, name):
    recorded = recorded_roberta(name)
    pieces = Pieces.of(recorded.tokenizer)
    assert pieces.mask_id == recorded.tokens["mask_id"]
    vocabulary = recorded.tokenizer.vocabulary
    assert not pieces.is_plain[[vocabulary[t] for t in SPECIAL]].any()
    assert len(pieces.plain) == len(vocabulary) - 5
    [word] = recorded.tokenizer.encode_words(["Zürich"])
    assert not pieces.continues[word[0]] and pieces.continues[word[1:]].all()


@BOTH
@pytest.mark.parametrize(
    "answer", ["Zürich", "cat", "Anna", "a dog ran", "Zu\u0308"]
)
def test_answers_are_found_in_windows(recorded_roberta, name, answer):
    tokenizer = recorded_roberta(name).tokenizer
    context = "Anna sat (in Zürich), the cat ran. Then a dog ran off Zu\u0308."
    where = context.index(answer)
    question = SquadQuestion(
        "q", "Who?", context, (SquadAnswer(answer, where),)
    )
    windows = cut_windows([question], tokenizer, 30, 8, 8)
    assert not windows.segments.any() and len(windows) > 1
    [query] = tokenizer.encode_ids(["Who?"])
    end = tokenizer.separate_id
    head = [tokenizer.classify_id, *query, end, end]
    shown = 0
    for row in range(len(windows)):
        tokens = windows.tokens[windows.starts[row] : windows.starts[row + 1]]
        assert tokens[: len(head)].tolist() == head and tokens[-1] == end
        assert windows.first[row] == len(head)
        first, last = (
            windows.labels[f"{side}_positions"][row]
            for side in ("start", "end")
        )
        if last:
            shift = windows.context_first[row] - len(head)
            start = windows.offsets[first + shift, 0]
            stop = windows.offsets[last + shift, 1]
            assert context[start:stop] == answer
            shown += 1
    assert shown


@pytest.mark.parametrize(
    "function, message",
    [
        (put("WordPiece", "model", "type"), "lacks [UNK]"),
        (put(["BPE"], "model", "type"), "no model.type of type str"),
        (drop("model"), "no model of type dict"),
        (drop("model", "merges"), "no tokenizer that can be read here"),
        (put([3], "added_tokens"), "no description of a tokenizer"),
        (put("x", "model", "vocab", "<s>"), "an id is no whole number"),
        (put(9, "model", "vocab", "x" * 1001), "more than 1000 letters"),
        (put(0.1, "model", "dropout"), "model.dropout is '0.1', but a RoBERTa"),
        # Of this the library panics.
        (
            put("a" * 9, "model", "continuing_subword_prefix"),
            "continuing_subword_prefix is 'aaaaaaaaa', but",
        ),
    ],
)
def test_a_spoiled_tokenizer_is_one_line(roberta_folder, function, message):
    change(roberta_folder / "tokenizer.json", function)
    refusals.check(lambda: open_tokenizer(roberta_folder), message)


PATTERN = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}}


@pytest.mark.parametrize(
    "value, keys, message",
    [
        ([], ("model", "vocab"), "it has no pieces"),
        # The library would fail at a text of thirty characters.
        (
            {"type": "Sequence", "normalizers": [PATTERN]},
            ("normalizer",),
            "the pattern '(a+)+$', which",
        ),
        (
            {"type": "Sequence", "pretokenizers": [PATTERN]},
            ("pre_tokenizer",),
            "the pattern '(a+)+$', which",
        ),
    ],
)
def test_a_spoiled_unigram_model_is_refused(
    golden_dir, tmp_path, value, keys, message
):
    path = golden_dir / "roberta" / "xlm-roberta" / "tokenizer.json"
    SubwordTokenizer(str(path)).encode(["\u4e2d"])
    spoiled = pathlib.Path(copy(path, tmp_path))
    change(spoiled, put(value, *keys))
    change(spoiled, put([], "added_tokens"))
    refusals.check(lambda: SubwordTokenizer(str(spoiled)), message)


def test_a_panic_of_the_library_is_one_line(roberta_folder, monkeypatch):
    class Panic(BaseException):
        """As a library in Rust raises, which is no `Exception`."""

    def fail(text):
        raise Panic("index out of range")

    tokenizer = types.SimpleNamespace(from_str=fail)
    monkeypatch.setattr(huggingface_tokenizer, "Tokenizer", tokenizer)
    refusals.check(
        lambda: open_tokenizer(roberta_folder), "read here: index out of range"
    )


def test_a_missing_tokenizer_says_what_writes_it(roberta_folder):
    (roberta_folder / "tokenizer.json").unlink()
    refusals.check(
        lambda: open_tokenizer(roberta_folder),
        "or tokenizer.json lies ",
        "save",
    )


def test_texts_cannot_be_lower_cased(roberta_folder):
    assert not open_tokenizer(roberta_folder, do_lower_case=False).do_lower_case
    refusals.check(
        lambda: open_tokenizer(roberta_folder, do_lower_case=True),
        "--do_lower_case=true, but ",
        " itself",
    )


def test_another_padding_token_is_refused(roberta_folder):
    change(roberta_folder / "config.json", put(3, "pad_token_id"))
    refusals.check(
        lambda: open_tokenizer(roberta_folder),
        "<pad> as 1, ",
        " says pad_token_id 3",
    )


@BOTH
def test_places_in_a_word_are_those_of_its_characters(recorded_roberta, name):
    """Though the library makes two letters of one."""
    tokenizer = recorded_roberta(name).tokenizer
    joined = ("cafe\u0301", "\u1100\u1161n", "re\u0301sume\u0301s")
    for word in ("Z\u00fcrich", "\ufb01sh", *joined):
        [tokens] = tokenizer.encode([word])
        covered = {n for s, e in tokens.offsets for n in range(s, e)}
        assert covered == set(range(len(word)))


@pytest.mark.parametrize(
    "model_type, tokenizer, expected",
    [
        # A BERT that speaks many languages, as MiniLM-L12-v2.
        ("bert", "roberta/xlm-roberta/tokenizer.json", "<s> </s> </s> </s>"),
        (
            "camembert",
            "roberta/xlm-roberta/tokenizer.json",
            "<s> </s> </s> </s>",
        ),
        ("bert", "architectures/albert/tokenizer.json", "[CLS] [SEP] [SEP]"),
        ("roberta", "vocab.txt", "[CLS] [SEP] [SEP]"),
    ],
)
def test_tokenizer_and_encoder_are_chosen_apart(
    roberta_folder, golden_dir, model_type, tokenizer, expected
):
    (roberta_folder / "tokenizer.json").unlink()
    place = roberta_folder / tokenizer.rpartition("/")[2]
    if tokenizer == "vocab.txt":
        words = "[CLS] [PAD] [SEP] [UNK] the cat sat ##s".split()
        write_lines(place, words)
    else:
        copy(golden_dir / tokenizer, place)
    change(roberta_folder / "config.json", put(model_type, "model_type"))
    # As many entries as any of them has.
    change(roberta_folder / "config.json", put(1000, "vocab_size"))
    change(roberta_folder / "config.json", put(2, "type_vocab_size"))
    opened = open_tokenizer(roberta_folder)
    one, other = opened.encode_ids(["the cats", "sat"])
    ids, segments = make_row(one, other, opened, 99)
    names = {number: piece for piece, number in opened.vocabulary.items()}
    special = [names[n] for n in ids if names[n] in opened.special.values()]
    assert " ".join(special) == expected
    assert segments[-1] == opened.second_segment == ("[CLS]" in special)
    assert len(ids) == len(one) + len(other) + len(special)
