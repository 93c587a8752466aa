"""The files next to a vocabulary, against what transformers make of them."""

import dataclasses
import shutil

import pytest
from conftest import open_checkpoint, read_json, write_json
from roberta_folders import open_tokenizer
from task_files import refusal
from test_tokenization import write_vocabulary
from tokenizers import Tokenizer

from adapter_bert.bert.config import BertConfig
from adapter_bert.checkpoints import same_model, sources, written_form
from adapter_bert.checkpoints.weights import Base
from adapter_bert.data.added_tokens import as_added, as_decoder
from adapter_bert.data.tokenization import make_row
from adapter_bert.exchange import peft_words

pytestmark = pytest.mark.older_stack

WORDS = "[PAD] [UNK] [CLS] [SEP] é e E É 京 都 ##都 a b c d".split()
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
ELECTRA = {"tokenizer_class": "ElectraTokenizer"}
LEFT = {"truncation_side": "left"}
PLAIN = {"model_input_names": ["input_ids", "attention_mask"]}
PAIR = ("a b c d", "c d a b")


def described(**normalizer):
    """A `tokenizer.json` as transformers write it."""
    return {
        "truncation": None,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
            **normalizer,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "vocab": {word: number for number, word in enumerate(WORDS)},
        },
    }


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Writes a folder's files, and reads the tokenizer."""
    # Of so few words many have capitals.
    monkeypatch.setattr("adapter_bert.data.tokenization.STRAY", 1)

    def write(fields=None, described=None, vocabulary="vocab.txt", **more):
        write_vocabulary(tmp_path, WORDS)
        for name, content in (
            ("tokenizer_config.json", fields),
            ("tokenizer.json", described),
        ):
            if content is not None:
                write_json(tmp_path / name, content)
        path = str(tmp_path / vocabulary)
        return sources.read_tokenizer(None, None, path, **more)

    return write


# What `AutoTokenizer` of transformers 4.57 and 5.24 gives for "É 京都".
@pytest.mark.parametrize("vocabulary", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize(
    "fields, normalizer, expected",
    [
        ({"strip_accents": False}, {}, "é 京 都"),
        (ELECTRA | {"strip_accents": False}, {}, "é 京 都"),
        (ELECTRA | {"tokenize_chinese_chars": False}, {}, "e 京 ##都"),
        ({"do_lower_case": False}, {}, "É 京 都"),
        ({"do_lower_case": False, "strip_accents": True}, {}, "E 京 都"),
        (ELECTRA, {"strip_accents": False}, "e 京 都"),
        (GENERIC, {"strip_accents": False}, "é 京 都"),
        (GENERIC | {"do_lower_case": True}, {"lowercase": False}, "É 京 都"),
        (GENERIC, {"handle_chinese_chars": False}, "e 京 ##都"),
        # Nothing else says anything; transformers take BERT's rules here.
        (None, {"strip_accents": False}, "é 京 都"),
    ],
)
def test_wordpieces_follow_the_files(
    make, tmp_path, vocabulary, fields, normalizer, expected
):
    tokenizer = make(fields, described(**normalizer), vocabulary)
    assert tokenizer.tokenize("\u00c9 \u4eac\u90fd") == expected.split()
    path, lower = str(tmp_path / vocabulary), tokenizer.do_lower_case
    # What `convert` writes says the same, in both forms.
    written = written_form.tokenizer_fields(BertConfig(len(WORDS)), tokenizer)
    for form, fields in ("hugging_face", written), ("google", {}):
        folder = tmp_path / form
        folder.mkdir()
        contents = written_form.tokenizer_files(path, tokenizer, **fields)
        written_form.write_files(str(folder), contents)
        path_of_copy = str(folder / "vocab.txt")
        copied = sources.read_tokenizer(None, None, path_of_copy, lower)
        assert copied.describe() == tokenizer.describe()
        assert copied.tokenize("\u00c9 \u4eac\u90fd") == expected.split()


# What `AutoTokenizer` gives for a pair that is cut to 7 tokens.
@pytest.mark.parametrize(
    "fields, direction, expected, second",
    [
        ({}, "Right", "[CLS] a b [SEP] c d [SEP]", 1),
        (LEFT, "Right", "[CLS] c d [SEP] a b [SEP]", 1),
        (ELECTRA, "Left", "[CLS] c d [SEP] a b [SEP]", 1),
        ({"truncation_side": "right"}, "Left", "[CLS] a b [SEP] c d [SEP]", 1),
        (PLAIN, "Right", "[CLS] a b [SEP] c d [SEP]", 0),
        (
            {"tokenizer_class": "DistilBertTokenizer"},
            "Right",
            "[CLS] a b [SEP] c d [SEP]",
            0,
        ),
    ],
)
def test_rows_follow_the_files(make, fields, direction, expected, second):
    content = described() | {"truncation": {"direction": direction}}
    tokenizer = make(fields, content)
    ids = tokenizer.convert_tokens_to_ids(expected.split())
    row = ids, [0] * 4 + [second] * 3
    assert make_row(*tokenizer.encode_ids(PAIR), tokenizer, 7) == row
    file = Tokenizer.from_str(tokenizer.to_json(7)).encode(*PAIR)
    assert (file.ids, file.type_ids) == row


@pytest.mark.parametrize(
    "fields, written, expected",
    [
        (None, False, False),
        (None, True, True),
        ({"tokenizer_class": "RobertaTokenizer"}, True, False),
        ({"add_prefix_space": True}, False, True),
        ({"add_prefix_space": False}, True, False),
    ],
)
def test_a_space_before_a_text(
    roberta_folder, tmp_path, fields, written, expected
):
    path = roberta_folder / "tokenizer.json"
    content = read_json(path)
    content["pre_tokenizer"]["add_prefix_space"] = written
    write_json(path, content)
    if fields is not None:
        write_json(roberta_folder / "tokenizer_config.json", fields)
    tokenizer = open_tokenizer(roberta_folder)
    plain = tokenizer.encode_ids(["the"])
    assert not expected or tokenizer.encode_ids([" the"]) == plain
    assert (plain == tokenizer.encode_words(["the"])) is expected
    config = sources.read_config(open_checkpoint(roberta_folder))
    copy = tmp_path / "copy"
    shutil.copytree(roberta_folder, copy)
    more = written_form.tokenizer_fields(config, tokenizer)
    contents = written_form.tokenizer_files(str(path), tokenizer, **more)
    written_form.write_files(str(copy), contents)
    copied = open_tokenizer(copy)
    assert copied.encode_ids(["the a"]) == tokenizer.encode_ids(["the a"])


@pytest.mark.parametrize(
    "fields, content, names",
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, None, ["Japanese"]),
        ({"truncation_side": "top"}, None, ["truncation_side", "'top'"]),
        ({"strip_accents": "no"}, None, ["strip_accents", "bool"]),
        (GENERIC, described(type="Sequence"), ["normalizer", "Sequence"]),
        (
            GENERIC,
            described() | {"pre_tokenizer": None},
            ["pre_tokenizer", "BertPreTokenizer"],
        ),
        (GENERIC, described(lowercase="yes"), ["normalizer", "yes"]),
    ],
)
def test_what_is_refused(make, fields, content, names):
    message = refusal(lambda: make(fields, content))
    assert all(name in message for name in names), message


def test_the_vocabulary_of_another_folder(folders, tmp_path, tiny_bert):
    """The model's own file counts where no other says anything."""
    folder = tmp_path / "bert"
    shutil.copytree(tiny_bert, folder)
    write_json(folder / "tokenizer_config.json", LEFT)
    opened = open_checkpoint(folder)
    other = folders("other")
    path = str(shutil.copy(folder / "vocab.txt", other))
    assert sources.read_tokenizer(opened, None, path).keeps_end
    write_json(other / "tokenizer_config.json", {})
    assert not sources.read_tokenizer(opened, None, path).keeps_end


def test_a_model_without_segments_is_described_as_before(
    tiny_bert, tiny_config, tmp_path
):
    folder = tmp_path / "bert"
    shutil.copytree(tiny_bert, folder)
    write_json(folder / "tokenizer_config.json", PLAIN)
    opened = open_checkpoint(folder)
    for count, fields in (0, {}), (1, {}), (2, PLAIN):
        config = dataclasses.replace(tiny_config, type_vocab_size=count)
        assert sources.read_tokenizer(opened, config).fields == fields


def test_one_vector_of_segments_is_for_both_texts(tiny_bert, tiny_config):
    opened = open_checkpoint(tiny_bert)
    for count, second in (2, 1), (1, 0):
        config = dataclasses.replace(tiny_config, type_vocab_size=count)
        tokenizer = sources.read_tokenizer(opened, config)
        _, segments = make_row([5], [6], tokenizer, 9)
        assert segments == [0, 0, 0, second, second]
        written = written_form.tokenizer_fields(config, tokenizer)
        assert written["tokenizer_class"].startswith(("Dist", "Bert")[second])


def test_an_mpnets_special_tokens_are_those_of_its_library(tmp_path):
    words = "<s> <pad> </s> [UNK] <mask> the".split()
    path = write_vocabulary(tmp_path, words)
    tokenizer = sources.read_tokenizer(None, None, path)
    config = BertConfig(len(words), type_vocab_size=0)
    written = written_form.tokenizer_fields(config, tokenizer)
    assert written["tokenizer_class"] == "MPNetTokenizer"
    added = as_decoder(as_added(["covid"], {"": len(words) - 1}))
    named = {**written, "sep_token": "</s>", **added}
    write_json(tmp_path / "tokenizer_config.json", named)
    assert peft_words.find_tokens(str(tmp_path), tokenizer, 1) == ["covid"]


@pytest.mark.parametrize("is_split", [False, True])
def test_typed_special_tokens_of_the_exported_file(tmp_path, is_split):
    """Plain text, also where the vocabulary lacks them."""
    path = write_vocabulary(tmp_path, [*WORDS[:4], *"a b mask [ ]".split()])
    fields = {
        "mask_token": "[MASK]",
        "additional_special_tokens": ["<e>", "<f>"],
        "model_specific_special_tokens": {"end": "<g>"},
        "split_special_tokens": is_split,
    }
    write_json(tmp_path / "tokenizer_config.json", fields)
    tokenizer = sources.read_tokenizer(None, None, path)
    text = "a [MASK] <e> b <f> <g> [CLS]"
    ids = tokenizer.encode_ids([text])[0]
    assert tokenizer.mask_id not in ids
    for token in "<f>", "<g>":
        assert (tokenizer.vocabulary[token] in ids) is not is_split
    file = Tokenizer.from_str(tokenizer.to_json(99))
    assert file.encode(text, add_special_tokens=False).ids == ids


def test_an_adapter_of_other_fields_is_refused(make, tiny_config):
    base = Base("bert", "0" * 64)
    # First of a tokenizer that is as usual.
    for tokenizer in make({}), make(LEFT):
        description = {
            "base": {"fingerprint": base.fingerprint},
            "tokenizer": tokenizer.describe(),
            "bert_config": dataclasses.asdict(tiny_config),
            "task": {"name": "custom"},
        }
        arguments = "run.json", base, tiny_config, tokenizer
        same_model.check(description, *arguments)
    description["tokenizer"]["strip_accents"] = False
    assert "another vocabulary" in refusal(
        lambda: same_model.check(description, *arguments)
    )
